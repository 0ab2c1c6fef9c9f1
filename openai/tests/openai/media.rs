//! Images in requests of the three APIs, with the demo model and a projector of random weights.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::OnceLock;
use std::thread;

use autoplace::chat::{ChatTemplate, Message, Part};
use autoplace::generate::Engine;
use autoplace::{Image, Model, Sound};
use autoplace_openai::{Api, ApiError, Endpoint, MediaHosts};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::server::Server;
use test_support::demo_path;
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;

/// The API of the demo model, with a projector.
fn seeing() -> &'static Api {
    engine_and_api().1
}

fn engine_and_api() -> (&'static Engine, &'static Api) {
    static SEEING: OnceLock<(tempfile::TempDir, Engine, Api)> = OnceLock::new();
    let (_, engine, api) = SEEING.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mmproj.gguf");
        mmproj::named("Small LLaVA").write_sparse(&path).unwrap();
        fill(&path);
        let model = Model::builder(demo_path()).parallel(2, 512).n_threads(1).mmproj(path).load().unwrap();
        let engine = Engine::new(&model).unwrap();
        let template = ChatTemplate::family("chatml").unwrap();
        let api = Api::new(&model, &engine, "demo").template(template);
        (folder, engine, api)
    });
    (engine, api)
}

/// A picture of one colour as a BMP file.
fn bmp(width: u8, height: u8, blue: u8) -> Vec<u8> {
    let row = (usize::from(width) * 3).next_multiple_of(4);
    let pixels = vec![blue; row * usize::from(height)];
    let mut file = b"BM".to_vec();
    file.extend((54 + pixels.len() as u32).to_le_bytes());
    file.extend([0; 4]);
    file.extend(54_u32.to_le_bytes());
    file.extend(40_u32.to_le_bytes());
    file.extend(i32::from(width).to_le_bytes());
    file.extend(i32::from(height).to_le_bytes());
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    file.extend(pixels);
    file
}

fn base64(file: &[u8]) -> String {
    BASE64_STANDARD.encode(file)
}

fn asked(url: &str) -> Value {
    json!({"max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "this?"},
    ]}]})
}

fn chat(api: &Api, body: &Value) -> Result<Value, ApiError> {
    api.chat(body.to_string().as_bytes())?.wait()
}

#[test]
fn the_properties_say_that_the_model_sees_and_does_not_hear() {
    let props = seeing().props().unwrap();
    assert_eq!(props["modalities"], json!({"vision": true, "video": false, "audio": false}), "{props}");
}

#[test]
fn the_three_apis_show_the_same_picture_in_the_same_prompt() {
    let data = base64(&bmp(30, 20, 200));
    let url = format!("data:image/bmp;base64,{data}");
    let api = seeing();
    let of_chat = chat(api, &asked(&url)).unwrap();
    let text = of_chat["choices"][0]["message"]["content"].as_str().unwrap();
    let of_messages = json!({"max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": data}},
        {"type": "text", "text": "this?"},
    ]}]});
    let of_messages = api.message(of_messages.to_string().as_bytes()).unwrap().wait().unwrap();
    assert_eq!(of_messages["content"][0]["text"], text, "{of_messages}");
    let of_responses = json!({"max_output_tokens": 6, "temperature": 0, "input": [{"role": "user", "content": [
        {"type": "input_text", "text": "What is"},
        {"type": "input_image", "image_url": url},
        {"type": "input_text", "text": "this?"},
    ]}]});
    let of_responses = api.respond(of_responses.to_string().as_bytes()).unwrap().wait().unwrap();
    assert_eq!(of_responses["output"][0]["content"][0]["text"], text, "{of_responses}");
    let counted = |usage: &Value| usage.as_u64().unwrap();
    let tokens = counted(&of_chat["usage"]["prompt_tokens"]);
    assert_eq!(counted(&of_responses["usage"]["input_tokens"]), tokens);
    // The picture's tokens are counted as prompt tokens.
    let without = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "What is\nthis?"}]});
    let without = chat(api, &without).unwrap();
    assert!(tokens > counted(&without["usage"]["prompt_tokens"]), "{tokens}");
}

#[test]
fn a_picture_that_a_tool_returns_is_shown() {
    let data = base64(&bmp(30, 20, 7));
    let body = json!({"max_tokens": 4, "messages": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
            {"type": "text", "text": "Here:"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": data}},
        ]}]},
    ], "tools": [{"name": "look", "input_schema": {"type": "object"}}]});
    let answer = seeing().message(body.to_string().as_bytes()).unwrap().wait().unwrap();
    assert!(answer["usage"]["output_tokens"].as_u64().unwrap() > 0, "{answer}");
}

#[test]
fn a_file_that_is_not_a_picture_is_an_error_that_names_its_place() {
    let refused = |url: &str| {
        let error = chat(seeing(), &asked(url)).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("messages[0].content[1].image_url")), "{url}");
        error.message
    };
    let text = base64(b"no picture at all");
    for (url, words) in [
        ("https://example.com/a.png", "an image is a data URL"),
        ("data:image/png,abc", "is base64"),
        ("data:image/png;base64,!!", "not valid base64"),
        (&format!("data:image/png;base64,{text}"), "not a PNG"),
        (&format!("data:image/bmp;base64,{}", base64(&bmp(30, 20, 1)[..60])), "damaged BMP"),
    ] {
        let message = refused(url);
        assert!(message.contains(words), "{url}: {message}");
    }
    let sound = json!({"messages": [{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}},
    ]}]});
    let error = chat(seeing(), &sound).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].content[0].input_audio"));
}

#[test]
fn a_model_without_a_projector_refuses_a_picture_before_it_is_decoded() {
    let (_model, _engine, api) = super::api::alone();
    let api = api.template(ChatTemplate::family("chatml").unwrap());
    let error = chat(&api, &asked("data:image/png;base64,!!")).unwrap_err();
    assert_eq!((error.status, error.code), (400, Some("unsupported_parameter")));
    assert!(error.message.contains("the model takes no images"), "{}", error.message);
    // The same contents, in the forms of the other two APIs.
    let of_responses = json!({"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "What"},
        {"type": "input_text", "text": "is"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    ]}]});
    let error = api.respond(of_responses.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("input[0].content[2].image_url"));
    assert!(error.message.starts_with("input[0].content[2].image_url: the model takes"), "{}", error.message);
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let of_messages = json!({"messages": [
        {"role": "user", "content": "Look:"},
        {"role": "user", "content": [image]},
    ]});
    let error = api.message(of_messages.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[1].content[0].source"));
}

#[test]
fn an_endpoint_sends_pictures_over_either_api_and_nothing_of_them_is_lost() {
    let (engine, api) = engine_and_api();
    let server = Server::serve(api.clone(), engine);
    let picture = Image::from_bytes(&bmp(30, 20, 200)).unwrap();
    let here = chat(api, &asked(&format!("data:image/bmp;base64,{}", base64(&bmp(30, 20, 200))))).unwrap();
    let text = here["choices"][0]["message"]["content"].as_str().unwrap();
    let endpoint = Endpoint::new(server.url("/v1"));
    for endpoint in [endpoint.clone(), endpoint.responses()] {
        let mut chat = endpoint.chat().unwrap().temp(0.0).max_tokens(6);
        let parts = || [Part::text("What is"), Part::image(picture.clone()), Part::text("this?")];
        assert_eq!(chat.say(parts()).unwrap().text().unwrap(), text);
        // The next request contains the picture again, at the same place.
        assert!(!chat.say("And now?").unwrap().finish().unwrap().0.content.is_empty());
        assert_eq!(chat.messages()[0], Message::user(parts()));
        // A sound is sent too, in the same way. This model does not accept sound, so the server refuses it, and the
        // error contains its place.
        let sound = Sound::from_samples(16_000, vec![0.25; 1600]).unwrap();
        let refused = chat.say([Part::audio(sound), Part::text("What is said?")]).unwrap().text().unwrap_err();
        assert!(refused.to_string().contains("[0].input_audio: the sound of 0.1 s cannot be used"), "{refused}");
    }
}

#[test]
fn a_picture_that_the_projector_refuses_is_named_by_place() {
    let url = format!("data:image/bmp;base64,{}", base64(&bmp(3, 2, 1)));
    let wav = base64(&Sound::from_samples(8_000, vec![0.5; 800]).unwrap().to_wav().unwrap());
    let body = json!({"max_tokens": 2, "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Look."}]},
        {"role": "user", "content": [
            {"type": "text", "text": "And listen:"},
            {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
            {"type": "text", "text": "Well?"},
        ]},
    ]});
    let error = chat(seeing(), &body).map(drop).unwrap_err();
    assert_eq!((error.status, error.param.as_deref()), (400, Some("messages[1].content[1].input_audio")), "{error}");
    assert!(error.message.contains("has no encoder of sound"), "{error}");
}

#[test]
fn a_part_beside_a_picture_keeps_its_own_keys_for_a_template_that_names_one() {
    let template = "{% for part in messages[0].content %}[{{ part.source_lang_code }}{{ part.text }}]{% endfor %}:";
    let api = seeing().clone().template(ChatTemplate::new(template, <_>::default()).unwrap());
    let url = format!("data:image/bmp;base64,{}", base64(&bmp(30, 20, 90)));
    let body = |code: &str| {
        json!({"max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}, "source_lang_code": code},
            {"type": "text", "text": "Hallo", "source_lang_code": "de"},
        ]}]})
    };
    let answer = chat(&api, &body("de")).unwrap();
    let rows = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    // The prompt contains the picture, and the language codes too.
    let longer = chat(&api, &body("deutsch, and other tongues")).unwrap();
    assert!(longer["usage"]["prompt_tokens"].as_u64().unwrap() > rows, "{longer}");
    // A template that does not mention this key shows the same picture, but not the codes.
    assert!(chat(seeing(), &body("de")).is_ok());
}

/// Answers requests for files, one after the other. Returns the address.
fn files(answers: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for answer in answers {
            let (mut client, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            // A client may disconnect before it has read everything.
            let _ = client.write_all(&answer);
        }
    });
    address
}

fn found(file: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", file.len());
    [head.as_bytes(), file].concat()
}

#[test]
fn pictures_are_fetched_only_from_named_hosts_with_public_addresses() {
    let picture = bmp(30, 20, 50);
    let redirect =
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let large = found(&vec![0; (16 << 20) + 1]);
    let address = files(vec![found(&picture), redirect.to_vec(), large]);
    let url = format!("http://{address}/a.bmp");
    let at_home = seeing().clone().media_hosts(MediaHosts::in_any_network([address.as_str()]));
    let there = chat(&at_home, &asked(&url)).unwrap();
    let here = chat(seeing(), &asked(&format!("data:image/bmp;base64,{}", base64(&picture)))).unwrap();
    assert_eq!(there["choices"][0]["message"], here["choices"][0]["message"]);
    let message = |api: &Api| chat(api, &asked(&url)).unwrap_err().message;
    let redirected = message(&at_home);
    assert!(redirected.contains("answers 302"), "{redirected}");
    let large = message(&at_home);
    assert!(large.contains("more than 16777216 bytes"), "{large}");
    // This host name means this machine, from which nothing may be fetched.
    let public = seeing().clone().media_hosts(MediaHosts::new([address.as_str()]));
    let refused = message(&public);
    assert!(refused.contains("its address is one of a private network or of this machine"), "{refused}");
}
