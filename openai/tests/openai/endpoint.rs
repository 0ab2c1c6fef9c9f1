//! `Endpoint`: it has the calls of a local model. It is tested with our own server, and with servers that answer as
//! other servers do, or wrongly.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use autoplace::Model;
use autoplace::chat::{ChatTemplate, Message, ReplyPart, Tool};
use autoplace::generate::{Constraint, FinishReason, ToolChoice};
use autoplace_openai::Endpoint;
use autoplace_openai::client::Error;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use test_support::demo_path;
use test_support::http::{Request, serve};
use test_support::llama_server::LlamaServer;
use test_support::program::Program;

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Recipe {
    #[expect(dead_code, reason = "that it is there is enough")]
    minutes: u8,
}

/// Code for a conversation, which is the same for a local model and an endpoint.
macro_rules! talk {
    ($chat:expr) => {{
        let mut chat = $chat.system("Be brief.").with(|generate| generate.temp(0.0).max_tokens(12).seed(1));
        let mut text = String::new();
        for part in &mut chat.say("And the king said")? {
            if let ReplyPart::Content(part) = part? {
                text.push_str(&part);
            }
        }
        assert_eq!(chat.messages().len(), 3);
        assert_eq!(chat.messages()[2].content, text);
        let (reply, statistics) = chat.say("Go on.")?.finish()?;
        assert_eq!(chat.messages()[4].content, reply.content);
        chat = chat.with(|generate| generate.max_tokens(64));
        chat.say_as::<Recipe>("A recipe.")?;
        assert_eq!(chat.messages().len(), 7);
        (text, statistics)
    }};
}

/// Code for a text, which is the same for a local model and an endpoint.
macro_rules! text_of {
    ($model:expr) => {{
        let stream = $model.generate("In the beginning").temp(0.0).max_tokens(9).stop("never said").stream()?;
        stream.collect::<Result<String, _>>()?
    }};
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn a_program_goes_on_at_an_endpoint_with_the_same_lines() -> Outcome {
    let model = Model::builder(demo_path()).n_ctx(512).n_threads(1).load()?;
    let (here, _) = talk!(model.chat_with(ChatTemplate::family("chatml")?));
    assert!(!here.is_empty() && !text_of!(model).is_empty());

    let server = Server::start(512, ChatTemplate::family("chatml")?);
    let model = Endpoint::new(server.url("/v1/"));
    assert_eq!(model.models()?, [MODEL]);
    let (there, statistics) = talk!(model.chat()?);
    let said = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "And the king said"}]);
    let asked = json!({"messages": said, "temperature": 0, "max_tokens": 12, "seed": 1});
    let answer = server.post("/v1/chat/completions", &asked);
    assert_eq!(answer["choices"][0]["message"]["content"], there);
    assert!(statistics.prompt_tokens > 12 && statistics.generated_tokens > 0, "{statistics:?}");
    assert!(statistics.first_token_latency.is_some());

    let asked = json!({"prompt": "In the beginning", "temperature": 0, "max_tokens": 9});
    let answer = server.post("/v1/completions", &asked);
    assert_eq!(answer["choices"][0]["text"], text_of!(model));
    model.generate("A recipe:").temp(0.0).max_tokens(64).parse::<Recipe>()?;
    let words = Constraint::json_schema(json!({"type": "string", "maxLength": 4}));
    let text = model.generate("A word:").constraint(words).max_tokens(64).text()?;
    assert!(serde_json::from_str::<String>(&text)?.len() <= 16, "{text}");
    Ok(())
}

/// A template that shows tools.
const TOOLS: &str = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n\
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn a_required_tool_is_called_and_its_result_is_sent() -> Outcome {
    let server = Server::start(1024, ChatTemplate::new(TOOLS, <_>::default())?);
    let schema = json!({"type": "object", "properties": {"day": {"type": "integer", "maximum": 31}}, "required": ["day"], "additionalProperties": false});
    let mut chat = Endpoint::new(server.url("/v1")).chat()?;
    chat = chat.tools([Tool::new("weather", "The weather of a day.", schema)]).tool_choice(ToolChoice::Required);
    chat = chat.with(|generate| generate.temp(0.0).max_tokens(64));
    let (reply, _) = chat.say("How will it be?")?.finish()?;
    let [call] = &reply.tool_calls[..] else { panic!("{reply:?}") };
    assert!(call.name == "weather" && call.arguments["day"].is_i64() && call.id.is_some(), "{call:?}");
    chat.tool_result(call, "rain");
    let (reply, _) = chat.answer()?.finish()?;
    assert!(reply.tool_calls.is_empty() || !reply.content.is_empty(), "the model is free again: {reply:?}");
    assert_eq!(chat.messages().len(), 4);
    chat.say_as::<Recipe>("A recipe.")?;
    // The conversation begins again. The model must then call one of two tools, or the one tool that is named.
    chat.truncate(0);
    let free = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let tools = ["weather", "tide", "moon"].map(|name| Tool::new(name, "", free.clone()));
    let two = ToolChoice::OneOf(vec!["tide".to_owned(), "moon".to_owned()]);
    for (choice, names) in [(two, &["tide", "moon"][..]), (ToolChoice::Function("moon".to_owned()), &["moon"])] {
        let mut chat = chat.clone().tools(tools.clone()).tool_choice(choice);
        let (reply, _) = chat.say("How will it be?")?.finish()?;
        let [call] = &reply.tool_calls[..] else { panic!("{reply:?}") };
        assert!(names.contains(&&*call.name), "{call:?}");
        assert_eq!(chat.messages().len(), 2);
    }
    Ok(())
}

#[test]
fn a_refusal_is_typed_and_the_message_is_removed() -> Outcome {
    let server = Server::start(512, ChatTemplate::family("chatml")?);
    let mut chat = Endpoint::new(server.url("/v1")).chat()?;
    let error = chat.say("word ".repeat(2000))?.finish().unwrap_err();
    assert!(error.is_too_long() && matches!(error, Error::Refused { status: 400, .. }), "{error:?}");
    assert_eq!(chat.messages(), []);
    let other = Endpoint::new(server.url("/v1")).model("other");
    let error = other.generate("a").text().unwrap_err();
    assert!(matches!(&error, Error::Refused { status: 404, code: Some(code), .. } if code == "model_not_found"));
    for constraint in [Constraint::regex("a+"), Constraint::choices(["a"]), Constraint::lark("start: \"a\"")] {
        let error = other.generate("a").constraint(constraint).text().unwrap_err();
        assert!(matches!(error, Error::Inexpressible { .. }), "{error:?}");
    }
    drop(server);
    let error = chat.say("Hello!")?.finish().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    Ok(())
}

#[test]
fn an_answer_that_is_aborted_or_dropped_is_cancelled_at_the_server() -> Outcome {
    const ENDLESS: &str = "Blessed is the man that";

    let server = Server::start(65_536, ChatTemplate::family("chatml")?);
    let model = Endpoint::new(server.url("/v1"));
    // The likeliest text repeats itself for thousands of tokens, so it does not end before it is aborted.
    let endless = || model.generate(ENDLESS).temp(0.0).max_tokens(60_000).stop("\u{0}").stream();
    let mut stream = endless()?;
    assert!(stream.next().is_some());
    let abort = stream.abort_handle();
    let aborts = thread::spawn(move || abort.abort());
    let pieces = stream.by_ref().filter(Result::is_ok).count();
    aborts.join().unwrap();
    assert_eq!(stream.finish_reason(), Some(FinishReason::Aborted), "{pieces}");
    drop(stream);
    server.until_idle();
    let mut stream = endless()?;
    assert!(stream.next().is_some());
    drop(stream);
    server.until_idle();
    // An answer that another thread ends stays in the conversation as far as it came.
    let mut chat = model.chat()?.with(|generate| generate.temp(0.0).max_tokens(60_000).stop("\u{0}"));
    let mut answer = chat.say(ENDLESS)?;
    assert!(answer.next().is_some() && answer.reply().is_none());
    let abort = answer.abort_handle();
    let aborts = thread::spawn(move || abort.abort());
    while answer.next().is_some() {}
    aborts.join().unwrap();
    let reply = answer.reply().cloned().expect("it is over");
    assert_eq!(reply.finish_reason, Some(FinishReason::Aborted));
    drop(answer);
    assert_eq!(chat.messages()[1].content, reply.content);
    server.until_idle();
    Ok(())
}

#[test]
fn a_text_from_an_endpoint_says_what_it_took() -> Outcome {
    let server = Server::start(512, ChatTemplate::family("chatml")?);
    let model = Endpoint::new(server.url("/v1"));
    let mut stream = model.generate("In the beginning").temp(0.0).max_tokens(9).stream()?;
    for piece in stream.by_ref() {
        piece?;
    }
    let statistics = stream.statistics();
    let asked = json!({"prompt": "In the beginning", "temperature": 0, "max_tokens": 9});
    let usage = server.post("/v1/completions", &asked)["usage"].clone();
    assert_eq!(
        json!([statistics.prompt_tokens, statistics.generated_tokens]),
        json!([usage["prompt_tokens"], usage["completion_tokens"]])
    );
    Ok(())
}

/// A server that answers each request with this function.
fn canned(answer: impl Fn(&mut TcpStream, &Request, Value) + Send + Sync + 'static) -> String {
    let address = serve(move |request, mut stream| {
        answer(&mut stream, request, serde_json::from_slice(&request.body).unwrap_or_default());
    });
    format!("http://{address}/v1")
}

fn send(to: &mut TcpStream, status: &str, kind: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n");
    // If the client has disconnected, which it may do, this fails.
    let _ = to.write_all(format!("{head}{body}").as_bytes());
}

fn chunk(delta: &Value, finish: &Value) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
}

#[test]
fn numbers_are_sent_as_decimals_and_nan_is_refused() -> Outcome {
    // This server's answer repeats the parameters of the request.
    let url = canned(|to, _, mut body| {
        let body = body.as_object_mut().unwrap();
        body.retain(|name, _| !["model", "messages", "prompt", "stream", "stream_options"].contains(&name.as_str()));
        let said = json!({"choices": [{"index": 0, "text": json!(body).to_string(), "finish_reason": "stop"}]});
        send(to, "200 OK", "text/event-stream", &format!("data: {said}\n\ndata: [DONE]\n\n"));
    });
    let model = Endpoint::new(&url).model("any");
    let sent = model.generate("a").temp(0.7).top_p(0.95).min_p(1e-7).frequency_penalty(-0.1).presence_penalty(2.0);
    let sent = sent.text()?;
    for decimals in
        ["\"temperature\":0.7,", "\"top_p\":0.95,", "\"frequency_penalty\":-0.1,", "\"presence_penalty\":2.0"]
    {
        assert!(format!("{},", sent.trim_end_matches('}')).contains(decimals), "{decimals} {sent}");
    }
    assert!(sent.contains("\"min_p\":1e-7"), "{sent}");

    for (number, value) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let error = model.generate("a").top_p(0.5).temp(number).min_p(f32::NAN).text().unwrap_err();
        assert_eq!(error, Error::NotFinite { parameter: "temperature", value: value.to_owned() });
        assert_eq!(error.to_string(), format!("`temperature` is {value}: a request can contain finite numbers only"));
        let mut chat = model.chat()?.with(|generate| generate.frequency_penalty(number));
        let error = chat.say("a").unwrap_err();
        assert!(matches!(error, Error::NotFinite { parameter: "frequency_penalty", .. }), "{error}");
        assert!(chat.messages().is_empty(), "the question is taken back");
        assert!(Endpoint::new(&url).model("any").responses().chat()?.temp(number).say("a").is_err());
    }
    Ok(())
}

#[test]
fn an_answer_in_pieces_as_other_servers_send_it_is_read_whole() -> Outcome {
    let url = canned(|to, request, body| {
        assert_eq!(request.header("authorization"), Some("Bearer a-key"));
        if request.method == "GET" {
            return send(to, "200 OK", "application/json", r#"{"data": [{"id": "qwen3"}]}"#);
        }
        assert_eq!((&body["model"], &body["stream"]), (&json!("qwen3"), &json!(true)));
        assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": true}));
        assert_eq!(body["response_format"], json!({"type": "json_object"}));
        let call = |deltas: Value| chunk(&json!({"tool_calls": deltas}), &Value::Null);
        let events = [
            ": a comment\n\n".to_owned(),
            chunk(&json!({"role": "assistant", "content": null, "reasoning_content": "Hm"}), &Value::Null),
            chunk(&json!({"content": "Well"}), &Value::Null),
            call(json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"n\":"}}])),
            call(json!([{"index": 0, "function": {"arguments": " 1}"}}, {"index": 1, "function": {"name": "g"}}])),
            call(json!([{"id": "b", "function": {"name": "h"}}, {"id": "c", "function": {"name": "h"}}])),
            chunk(&json!({}), &json!("tool_calls")),
            "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 5}}\n\n".to_owned(),
            "data: [DONE]\n\n".to_owned(),
        ];
        send(to, "200 OK", "text/event-stream; charset=utf-8", &events.concat());
    });
    let model = Endpoint::new(url).api_key("a-key");
    assert!(!format!("{model:?}").contains("a-key"));
    let mut chat = model.chat()?.variable("enable_thinking", true);
    chat = chat.with(|generate| generate.constraint(Constraint::json_object()));
    // An endpoint can continue the messages of another conversation.
    chat.messages_mut().extend([Message::user("q"), Message::assistant("a")]);
    let (reply, statistics) = chat.say("Go on.")?.finish()?;
    assert_eq!((&*reply.content, reply.reasoning.as_deref()), ("Well", Some("Hm")));
    let calls = reply.tool_calls.iter().map(|call| json!([call.id, call.name, call.arguments]));
    let [f, g] = [json!(["a", "f", {"n": 1}]), json!([null, "g", {}])];
    assert_eq!(calls.collect::<Vec<_>>(), [f, g, json!(["b", "h", {}]), json!(["c", "h", {}])]);
    assert_eq!((statistics.prompt_tokens, statistics.generated_tokens), (7, 5));
    assert_eq!(chat.messages().len(), 4);
    Ok(())
}

#[test]
fn each_way_of_answering_badly_is_an_error_of_its_own() {
    const STREAM: &str = "text/event-stream";
    const JSON: &str = "application/json";
    let begun = || chunk(&json!({"content": "In the"}), &Value::Null);
    let listed = json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "[1]"}}]});
    type Case = (&'static str, &'static str, String, fn(&Error) -> bool);
    let cases: [Case; 11] = [
        ("200 OK", JSON, "{}".into(), |error| matches!(error, Error::Protocol { .. })),
        ("200 OK", STREAM, "data: {\n\n".into(), |error| matches!(error, Error::Protocol { .. })),
        ("200 OK", STREAM, begun(), |error| matches!(error, Error::CutOff { .. })),
        ("200 OK", STREAM, begun() + "data: [DONE]\n\n", |error| matches!(error, Error::CutOff { .. })),
        ("200 OK", STREAM, "data: {\"error\": {\"message\": \"no memory\", \"code\": 503}}\n\n".into(), Error::is_busy),
        ("307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/", STREAM, String::new(), |error| {
            matches!(error, Error::Refused { status: 307, .. })
        }),
        ("429 Too Many Requests", "text/html", "<h1>slow down</h1>\nand more".into(), |error| {
            error.is_busy() && error.to_string().ends_with(": <h1>slow down</h1>")
        }),
        ("200 OK", STREAM, chunk(&listed, &json!("tool_calls")), |error| matches!(error, Error::Call { .. })),
        // The forms in which vLLM and llama-server send errors.
        (
            "503 Service Unavailable",
            JSON,
            r#"{"object": "error", "message": "too many", "code": 429}"#.into(),
            |error| error.is_busy() && error.to_string().ends_with(" answers 429: too many"),
        ),
        ("503 Service Unavailable", JSON, r#"{"error": "model is loading"}"#.into(), |error| {
            error.is_busy() && error.to_string().ends_with(": model is loading")
        }),
        (
            "400 Bad Request",
            JSON,
            r#"{"error": {"code": 400, "type": "exceed_context_size_error"}}"#.into(),
            Error::is_too_long,
        ),
    ];
    for (status, kind, body, is_right) in cases {
        let sent = body.clone();
        let model = Endpoint::new(canned(move |to, _, _| send(to, status, kind, &sent))).model("m");
        let error = model.chat().unwrap().say("Hello!").unwrap().finish().unwrap_err();
        assert!(is_right(&error), "{status} {body:?}: {error:?}");
        let names_server = error.to_string().starts_with("http://127.0.0.1:");
        assert!(names_server || matches!(error, Error::Call { .. }), "{error}");
    }
    let several = Endpoint::new(canned(|to, _, _| {
        send(to, "200 OK", "application/json", r#"{"data": [{"id": "a"}, {"id": "b"}]}"#);
    }));
    assert!(several.chat().unwrap_err().to_string().ends_with("has 2 models: name one of [a, b]"));
    // Ollama's answer if it has no models.
    let empty = Endpoint::new(canned(|to, _, _| {
        send(to, "200 OK", "application/json", r#"{"object": "list", "data": null}"#);
    }));
    assert!(empty.models().unwrap().is_empty());
    let silent = Endpoint::new(canned(|_, _, _| thread::sleep(Duration::from_secs(120))))
        .model("m")
        .timeout(Duration::from_millis(50));
    assert!(matches!(silent.generate("a").text(), Err(Error::Silent { .. })));
    let nowhere = Endpoint::new("http://127.0.0.1:1/v1").chat().unwrap_err();
    assert!(matches!(nowhere, Error::Unreachable { .. }), "{nowhere:?}");
}

#[test]
fn the_example_is_short_and_talks_to_a_server() -> Outcome {
    let source = include_str!("../../examples/outgrow.rs");
    let code = source.lines().filter(|line| !line.is_empty() && !line.starts_with("//!")).count();
    assert!(code <= 30, "{code} lines");
    let server = Server::start(512, ChatTemplate::family("chatml")?);
    let output = Program("outgrow").run(&[&server.url("/v1"), "And the king said"]);
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
    Ok(())
}

#[test]
#[ignore = "compiles llama-server: cargo xtask llama-server"]
fn a_real_llama_server_is_an_endpoint() -> Outcome {
    let server = LlamaServer::new(&["-c", "1024", "-np", "1", "-t", "1", "--chat-template", "chatml"]);
    let model = Endpoint::new(format!("{}/v1", server.url));
    assert!(!model.models()?.is_empty());
    let (text, statistics) = talk!(model.chat()?);
    assert!(!text.is_empty() && statistics.prompt_tokens > 12 && statistics.generated_tokens > 0, "{statistics:?}");
    assert!(!text_of!(model).is_empty());
    let error = model.chat()?.say("word ".repeat(4000))?.finish().unwrap_err();
    assert!(error.is_too_long(), "{error:?}");
    Ok(())
}
