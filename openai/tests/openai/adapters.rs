//! LoRA adapters in requests: `lora` and `/lora-adapters`, as in llama-server.

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::Engine;
use autoplace::gguf::{Header, TensorType};
use autoplace_openai::Api;
use serde_json::{Value, json};

use crate::server::Server;
use test_support::demo_path;
use test_support::lora::Adapter;

const PROMPT: &str = "And the king said unto his servants,";

/// The demo model with two adapters. The first of them is on.
fn model(folder: &std::path::Path) -> Model {
    let header = Header::open(demo_path()).unwrap();
    let file = |name: &str, part: &str, seed| {
        let adapter = Adapter::new("llama").alpha(8.0);
        let adapter = adapter.of_weights(&header, 8, TensorType::F32, |weight| weight.contains(part));
        adapter.write_random(folder, name, seed, 0.9)
    };
    let builder = Model::builder(demo_path()).n_ctx(512).n_threads(1);
    builder.lora(file("one", "attn_q", 1), 1.0).lora(file("two", "attn_v", 2), 0.0).load().unwrap()
}

#[test]
fn a_request_names_its_adapters_and_others_have_those_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let generate = || model.generate(PROMPT).temp(0.0).max_tokens(12);
    let [both, one, two, none] = [&[("one", 1.0), ("two", 0.5)][..], &[("one", 1.0)], &[("two", 1.0)], &[]]
        .map(|set| generate().lora(set.iter().copied()).text().unwrap());
    let engine = Engine::new(&model).unwrap();
    let server =
        Server::serve(Api::new(&model, &engine, "demo").template(ChatTemplate::family("chatml").unwrap()), &engine);
    let text = |lora: Value| {
        let body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "lora": lora});
        server.post("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let adapter = |id, scale| json!({"id": id, "scale": scale});
    assert_eq!(text(json!(null)), one);
    assert_eq!(text(json!([adapter(json!(1), 1.0)])), two);
    assert_eq!(text(json!([adapter(json!("one"), 1.0), adapter(json!(1), 0.5)])), both);
    assert_eq!(text(json!([adapter(json!(0), 0.0)])), none);
    // The adapters of one request do not affect the next request.
    assert_eq!(text(json!([])), one);

    let listed: Value = server.get("/lora-adapters");
    assert_eq!(listed[0]["id"], 0);
    assert_eq!((&listed[0]["name"], &listed[0]["scale"]), (&json!("one"), &json!(1.0)));
    assert_eq!(listed[1]["path"], "two.gguf", "no folder of the machine is shown");
    assert_eq!(server.post("/lora-adapters", &json!([adapter(json!(1), 1.0)])), json!({"success": true}));
    assert_eq!(text(json!(null)), two);
    assert_eq!(text(json!([adapter(json!(0), 1.0)])), one);
    let scales: Vec<_> =
        server.get("/lora-adapters").as_array().unwrap().iter().map(|adapter| adapter["scale"].clone()).collect();
    assert_eq!(scales, [json!(0.0), json!(1.0)]);
    assert_eq!(server.post("/lora-adapters", &json!([])), json!({"success": true}));
    assert_eq!(text(json!(null)), none);
}

#[test]
fn an_adapter_that_is_not_there_and_a_list_that_is_none_are_refused_by_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let engine = Engine::new(&model).unwrap();
    let api = Api::new(&model, &engine, "demo");
    for (lora, message) in [
        (json!([{"id": 0, "scale": 1}, {"id": 2, "scale": 1}]), "lora[1].id is 2: the model has the adapters 0 to 1"),
        (json!([{"id": "three", "scale": 1}]), "lora[0].id is `three`: the model has the adapters 0 to 1"),
        (json!([{"id": 0, "scale": 1e40}]), "lora[0].scale"),
        (json!([{"id": 0}]), "lora[0]: missing field `scale`"),
        (json!("one"), "lora: "),
    ] {
        let body = json!({"prompt": PROMPT, "lora": lora}).to_string();
        let error = api.complete(body.as_bytes()).unwrap_err();
        assert_eq!(error.status, 400);
        assert!(error.message.starts_with(message), "{}", error.message);
        assert!(api.apply_adapters(lora.to_string().as_bytes()).is_err(), "{lora}");
    }
    assert!(api.apply_adapters(b"{").unwrap_err().message.contains("not a list of adapters"));
    // A list that is refused changes nothing.
    assert_eq!(api.adapters()[0]["scale"], 1.0);
    api.apply_no_adapters();
    assert_eq!(api.adapters()[0]["scale"], 0.0);
}
