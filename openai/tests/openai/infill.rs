//! Fill-in-the-middle over HTTP: requests and answers in llama-server's form, with a model whose vocabulary has
//! fill-in-the-middle tokens.

use std::io::{BufRead, BufReader};
use std::sync::OnceLock;

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::Engine;
use autoplace_openai::Api;
use proptest::prelude::*;
use serde_json::{Value, json};
use test_support::synthetic::{Sketch, in_32_bits};

use crate::api::{any_json, one_of};
use crate::server::{MODEL, Server};

const PATH: &str = "/infill";
/// In the synthetic vocabulary, three special tokens and the bytes come before the first filler word.
const FIRST_WORD: u32 = 3 + 256;

/// A model with these special tokens.
fn api_with(names: &[&str], n_ctx: u32) -> (Api, Engine) {
    let mut sketch: Sketch = in_32_bits("llama");
    let ids: Vec<(&str, u32)> = names.iter().copied().zip(FIRST_WORD..).collect();
    sketch.token_ids(&ids);
    let folder = tempfile::tempdir().unwrap();
    let path = test_support::random_weights::write(&sketch, folder.path());
    let model = Model::builder(&path).n_ctx(n_ctx).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    (Api::new(&model, &engine, MODEL), engine)
}

fn server_with(names: &[&str], n_ctx: u32, change: impl FnOnce(Api) -> Api) -> Server {
    let (api, engine) = api_with(names, n_ctx);
    Server::serve(change(api), &engine)
}

/// The metadata keys of these tokens. The tokens' texts are `word0` to `word5`.
const TOKENS: [&str; 6] = ["fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep", "fim_pad"];

fn asked(more: &Value) -> Value {
    let mut body = json!({"input_prefix": "def a():\n", "input_suffix": "\nend", "n_predict": 8,
        "temperature": 0, "ignore_eos": true});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn post(server: &Server, more: &Value) -> (u16, Value) {
    let request = ureq::post(server.url(PATH)).config().http_status_as_error(false).build();
    let mut response = request.send_json(asked(more)).unwrap();
    (response.status().as_u16(), response.body_mut().read_json().unwrap())
}

#[track_caller]
fn infill(server: &Server, more: &Value) -> Value {
    let (status, answer) = post(server, more);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The prompt that an answer reports. SentencePiece writes a space as `\u{2581}`.
fn prompt(answer: &Value) -> String {
    answer["prompt"].as_str().unwrap().replace('\u{2581}', " ")
}

#[test]
fn the_prompt_has_the_parts_in_the_order_of_the_model_s_tokens() {
    let server = server_with(&TOKENS, 512, |api| api);
    let plain = prompt(&infill(&server, &json!({"prompt": "  return"})));
    let own = "<s>word3 myproject\nword4 filename\n";
    assert_eq!(plain.replace(' ', ""), format!("{own}word0 def a():\n  returnword1 \nendword2").replace(' ', ""));
    let files = json!([{"filename": "b.py", "text": "b = 1\n"}, {"text": "c = 2\n"}]);
    let with_files = prompt(&infill(&server, &json!({"input_extra": files})));
    let expected = "<s>word3myproject\nword4b.py\nb=1\nword4tmp\nc=2\nword4filename\nword0defa():\nword1\nendword2";
    assert_eq!(with_files.replace(' ', ""), expected);
    // If a text contains a control token's name, the name is not read as that token.
    let tokens = |prefix: &str| infill(&server, &json!({"input_prefix": prefix}))["tokens_evaluated"].as_u64().unwrap();
    assert_eq!(tokens("</s>"), tokens("") + 4);

    let server = server_with(&TOKENS[..3], 512, |api| api.infill_suffix_first(true));
    let answer = prompt(&infill(&server, &json!({"input_extra": files})));
    let expected = "<s>\n\n---snippet---\n\nb=1\n\n\n---snippet---\n\nc=2\nword1\nendword0defa():\nword2";
    assert_eq!(answer.replace(' ', ""), expected);
}

#[test]
fn an_answer_has_the_fields_of_llama_server_s_whole_and_streamed() {
    let server = server_with(&TOKENS, 512, |api| api);
    let answer = infill(&server, &json!({"cache_prompt": false}));
    for name in ["content", "prompt", "model"] {
        assert!(answer[name].is_string(), "{name}: {answer}");
    }
    assert_eq!(
        (&answer["stop"], &answer["stop_type"], &answer["tokens_predicted"]),
        (&json!(true), &json!("limit"), &json!(8))
    );
    assert_eq!((&answer["truncated"], &answer["index"]), (&json!(false), &json!(0)));
    assert_eq!(answer["generation_settings"]["n_predict"], 8);
    assert!(answer["timings"]["predicted_n"] == 8 && answer["has_new_line"].is_boolean(), "{answer}");
    let total = answer["tokens_evaluated"].as_u64().unwrap() + 8;
    assert_eq!(answer["tokens_cached"], total);

    let body = asked(&json!({"stream": true, "cache_prompt": false}));
    let response = ureq::post(server.url(PATH)).send_json(&body).unwrap();
    let lines = BufReader::new(response.into_body().into_reader()).lines().map(Result::unwrap);
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    let events: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line.strip_prefix("data: ").expect("no name")).expect("no [DONE]"))
        .collect();
    let (last, texts) = events.split_last().unwrap();
    let text: String = texts.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!((&*text, &last["content"]), (answer["content"].as_str().unwrap(), &json!("")));
    assert!(texts.iter().all(|event| event["stop"] == false) && last["stop"] == true);
    assert_eq!((&last["stop_type"], &last["prompt"]), (&answer["stop_type"], &answer["prompt"]));

    let fields = json!({"response_fields": ["content", "timings/prompt_n", "stop_type", "nothing/there"]});
    let few = infill(&server, &fields);
    let mut names: Vec<&str> = few.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["content", "stop_type", "timings/prompt_n"]);
    assert_eq!(infill(&server, &json!({"response_fields": [""]})), json!({}));
    // An editor can let the server compute a prompt before it asks for the text.
    let ahead = infill(&server, &json!({"n_predict": 0, "prompt": "ahead"}));
    assert_eq!((&ahead["content"], &ahead["tokens_predicted"]), (&json!(""), &json!(0)));
    let again = infill(&server, &json!({"prompt": "ahead"}));
    assert!(again["timings"]["cache_n"].as_u64() > Some(10), "{again}");
}

#[test]
fn a_text_ends_at_a_word_or_a_line() {
    let server = server_with(&TOKENS, 512, |api| api);
    let lines = |more: Value| {
        let mut more = more;
        // With this grammar the model can write only this text.
        more["grammar"] = more["grammar"].as_str().unwrap_or("root ::= \"x\\n  y\\n\\n  y\\nz\\nz\\n\"").into();
        (more["n_predict"], more["ignore_eos"]) = (200.into(), false.into());
        infill(&server, &more)
    };
    let whole = lines(json!({}));
    assert_eq!((&whole["content"], &whole["stop_type"]), (&json!("x\n  y\n\n  y\nz\nz\n"), &json!("eos")));
    let block = lines(json!({"n_indent": 2}));
    assert_eq!((&block["content"], &block["stop_type"]), (&json!("x\n  y\n\n  y\n"), &json!("limit")));
    let word = lines(json!({"stop": ["nothing", "\nz"]}));
    let expected = (&json!("x\n  y\n\n  y"), &json!("word"), &json!("\nz"));
    assert_eq!((&word["content"], &word["stop_type"], &word["stopping_word"]), expected);
    let late = lines(json!({"t_max_predict_ms": 1, "grammar": "root ::= (\"ab\\n\"){200}"}));
    let content = late["content"].as_str().unwrap();
    assert!(content.ends_with("b\n") && late["tokens_predicted"].as_u64() < Some(200), "{late}");
    assert_eq!((&late["stop_type"], &late["has_new_line"]), (&json!("limit"), &json!(true)));
}

#[test]
fn parts_that_do_not_fit_are_left_out_and_the_answer_says_so() {
    let server = server_with(&TOKENS, 256, |api| api);
    let prefix: String = (0..400).map(|number| format!("{number};")).collect();
    for more in [
        json!({"input_prefix": prefix}),
        json!({"input_suffix": prefix}),
        json!({"input_prefix": "a".repeat(1 << 20), "input_suffix": "\u{1f600}".repeat(1 << 18)}),
        json!({"input_extra": [{"text": prefix}, {"filename": "b", "text": "kept"}]}),
    ] {
        let answer = infill(&server, &more);
        assert_eq!((&answer["truncated"], &answer["tokens_predicted"]), (&json!(true), &json!(8)), "{answer}");
    }
    let cut = prompt(&infill(&server, &json!({"input_prefix": prefix})));
    assert!(cut.contains("399;word1") && !cut.contains("0;1;2;") && cut.contains("end"), "{cut}");
    let files = json!([{"text": prefix}, {"filename": "b", "text": "kept"}]);
    let cut = prompt(&infill(&server, &json!({"input_extra": files})));
    assert!(cut.contains("kept") && !cut.contains("0;1;2;"), "{cut}");
}

#[test]
fn faults_and_impossible_requests_are_named() {
    let server = server_with(&TOKENS, 256, |api| api);
    let file = |file: Value| json!({"input_extra": [{"text": "a"}, file]});
    for (more, param) in [
        (json!({"input_prefix": null}), "input_prefix"),
        (json!({"input_suffix": null}), "input_suffix"),
        (json!({"input_prefix": 3}), "input_prefix"),
        (json!({"prompt": ["a"]}), "prompt"),
        (json!({"prompt": "1;".repeat(400)}), "prompt"),
        (json!({"prompt": "a".repeat(1 << 20)}), "prompt"),
        (json!({"input_extra": {}}), "input_extra"),
        (file(json!({"filename": "b"})), "input_extra[1]"),
        (file(json!({"filename": 3, "text": "b"})), "input_extra[1].filename"),
        (json!({"input_extra": vec![json!({"text": ""}); 1025]}), "input_extra"),
        (json!({"response_fields": vec!["a"; 65]}), "response_fields"),
        (json!({"n_indent": -1}), "n_indent"),
        (json!({"n": 2}), "n"),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"n_probs": 1}), "n_probs"),
        (json!({"grammar": "root ::= root"}), "grammar"),
        (json!({"model": "other"}), "model"),
    ] {
        let (status, answer) = post(&server, &more);
        let expected = if param == "model" { 404 } else { 400 };
        assert_eq!((status, answer["error"]["param"].as_str()), (expected, Some(param)), "{answer}");
    }
    for (names, missing) in [(&TOKENS[..0], "prefix, suffix, middle"), (&["fim_pre", "fim_mid"][..], "suffix")] {
        let server = server_with(names, 256, |api| api);
        let (status, answer) = post(&server, &json!({}));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 501 && message.contains(&format!("no token for {missing};")), "{answer}");
    }
    let demo = Server::start(256, ChatTemplate::family("chatml").unwrap());
    assert_eq!(post(&demo, &json!({})).0, 501);
}

const FIELDS: &str = "input_prefix input_suffix prompt input_extra n_indent t_max_predict_ms response_fields n_predict stop \
    grammar stream temperature n model seed logit_bias cache_prompt";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_request_ends_in_an_answer_or_an_error(fields in prop::collection::vec((one_of(FIELDS), any_json()), 0..4)) {
        static API: OnceLock<(Api, Engine)> = OnceLock::new();
        let (api, _) = API.get_or_init(|| api_with(&TOKENS, 256));
        let mut body = asked(&json!({"n_predict": 1}));
        for (name, value) in fields {
            body[name] = value;
        }
        let body = body.to_string();
        if let Err(error) = api.infill(body.as_bytes()) {
            prop_assert!((400..500).contains(&error.status) || error.status == 503, "{error}: {body}");
        }
    }
}
