//! `Endpoint::responses`: conversations over OpenAI's Responses API, with our own server and with servers that answer
//! in other ways.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use autoplace::chat::{ChatTemplate, Message, ReplyPart, Tool};
use autoplace::generate::{Constraint, FinishReason, ToolChoice};
use autoplace_openai::Endpoint;
use autoplace_openai::client::Error;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use test_support::http::serve;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Recipe {
    #[expect(dead_code, reason = "that it is there is enough")]
    minutes: u8,
}

/// A template that shows thoughts, calls and tools, and that describes a call format.
const TEMPLATE: &str = "{% if tools %}{{ tools }}{# <tool_call> {\"name\" #}\n{% endif %}\
    {% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
    {{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\n\
    {% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{# </think> #}{% endif %}";

fn server() -> Server {
    Server::start(2048, ChatTemplate::new(TEMPLATE, <_>::default()).unwrap())
}

fn walk() -> Tool {
    let schema = json!({"type": "object", "properties": {"day": {"type": "integer", "minimum": 1, "maximum": 31}}, "required": ["day"],
        "additionalProperties": false});
    Tool::new("walk", "Walks.", schema)
}

#[test]
fn a_conversation_says_the_same_over_either_api() -> Outcome {
    let server = server();
    let talk = |endpoint: Endpoint| -> Result<_, Error> {
        let mut chat = endpoint.chat()?.system("Be brief.");
        chat = chat.with(|generate| generate.temp(0.0).max_tokens(12).seed(1).top_k(40).stop("never said"));
        let (mut text, mut pieces) = (String::new(), 0);
        for part in &mut chat.say("And the king said")? {
            let ReplyPart::Content(part) = part? else { continue };
            text.push_str(&part);
            pieces += 1;
        }
        let (reply, statistics) = chat.say("Go on.")?.finish()?;
        let counts = (statistics.prompt_tokens, statistics.generated_tokens, statistics.finish_reason);
        assert!(statistics.cached_tokens > 10 && statistics.first_token_latency.is_some(), "{statistics:?}");
        assert_eq!(chat.messages()[2].content, text);
        assert!(pieces > 1, "the text came in pieces");
        chat = chat.with(|generate| generate.max_tokens(64));
        chat.say_as::<Recipe>("A recipe.")?;
        assert_eq!(chat.messages().len(), 7);
        Ok((text, reply.content, counts))
    };
    let endpoint = || Endpoint::new(server.url("/v1"));
    let there = talk(endpoint().responses())?;
    assert_eq!(there, talk(endpoint())?);
    assert_eq!(there.2.2, Some(FinishReason::MaxTokens));
    Ok(())
}

#[test]
fn a_tool_is_called_and_its_result_and_the_thought_before_it_go_back() -> Outcome {
    let server = server();
    let mut chat = Endpoint::new(server.url("/v1")).responses().chat()?.tools([walk()]);
    chat = chat.with(|generate| generate.temp(0.0).max_tokens(64));
    chat.push(Message::user("Hm?"));
    chat.push(Message { reasoning_content: Some("so".into()), ..Message::assistant("Well.") });
    let mut forced = chat.clone().tool_choice(ToolChoice::Required);
    let (reply, statistics) = forced.say("How far?")?.finish()?;
    let [call] = &reply.tool_calls[..] else { panic!("{reply:?}") };
    assert!(call.name == "walk" && call.arguments["day"].is_i64() && call.id.is_some(), "{call:?}");
    assert!(statistics.generated_tokens > 4 && reply.finish_reason == Some(FinishReason::EndOfGeneration), "{reply:?}");
    forced.tool_result(call, "far");
    let (reply, with_result) = forced.answer()?.finish()?;
    assert!(reply.tool_calls.is_empty() || !reply.content.is_empty(), "the model is free again: {reply:?}");
    assert!(with_result.prompt_tokens > statistics.prompt_tokens, "{with_result:?}");
    // The same conversation has the same prompt in the other API.
    let (_, over_chat) = {
        let mut other = Endpoint::new(server.url("/v1")).chat()?.tools([walk()]);
        *other.messages_mut() = forced.messages()[..5].to_vec();
        other.with(|generate| generate.temp(0.0).max_tokens(1)).answer()?.finish()?
    };
    assert_eq!(over_chat.prompt_tokens, with_result.prompt_tokens);
    // If an answer must be a value of a type, it calls no tool, but its prompt still shows the tools.
    for choice in [ToolChoice::None, ToolChoice::Function("walk".into()), ToolChoice::OneOf(vec!["walk".into()])] {
        let mut chat = chat.clone().tool_choice(choice.clone());
        chat.say_as::<Recipe>("A recipe.")?;
        let (reply, _) = chat.say("And now?")?.finish()?;
        assert_eq!(reply.tool_calls.is_empty(), choice == ToolChoice::None, "{choice:?}: {reply:?}");
    }
    Ok(())
}

#[test]
fn thoughts_are_thoughts() -> Outcome {
    let server = server();
    let mut chat = Endpoint::new(server.url("/v1")).responses().chat()?.variable("enable_thinking", true);
    chat = chat.with(|generate| generate.temp(0.0).max_tokens(8));
    let (reply, _) = chat.say("And the king said")?.finish()?;
    assert!(reply.reasoning.is_some_and(|thought| !thought.is_empty()) && reply.content.is_empty());
    assert!(chat.messages()[1].reasoning_content.is_some());
    Ok(())
}

#[test]
fn refusals_and_inexpressible_requests_are_typed() -> Outcome {
    let server = server();
    let endpoint = Endpoint::new(server.url("/v1")).responses();
    let mut chat = endpoint.chat()?;
    let error = chat.say("word ".repeat(4000))?.finish().unwrap_err();
    assert!(error.is_too_long() && matches!(&error, Error::Refused { param: Some(param), .. } if param == "input"));
    assert_eq!(chat.messages(), []);
    let error = endpoint.clone().model("other").chat()?.say("a")?.finish().unwrap_err();
    assert!(matches!(&error, Error::Refused { status: 404, code: Some(code), .. } if code == "model_not_found"));
    assert!(matches!(endpoint.generate("a").text(), Err(Error::Inexpressible { .. })));
    let mut held = endpoint.chat()?.with(|generate| generate.constraint(Constraint::regex("a+")));
    assert!(matches!(held.say("a"), Err(Error::Inexpressible { .. })));
    Ok(())
}

/// A server that answers with these lines. Returns the server's address, and the bodies of the requests that it has
/// received.
fn scripted(lines: &'static [&'static str]) -> (SocketAddr, Arc<Mutex<Vec<Value>>>) {
    let received = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&received);
    let address = serve(move |request, mut stream: TcpStream| {
        assert_eq!(request.path, "/v1/responses");
        kept.lock().unwrap().push(serde_json::from_slice(&request.body).unwrap());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
        for line in lines {
            let _ = stream.write_all(format!("{line}\n\n").as_bytes());
        }
    });
    (address, received)
}

#[test]
fn events_of_others_are_read_and_an_end_in_the_middle_is_an_error() -> Outcome {
    let (address, received) = scripted(&[
        "event: response.created\ndata: {\"type\": \"response.created\", \"response\": {}}",
        ": a comment",
        "data: {\"type\": \"response.reasoning_summary_text.delta\", \"delta\": \"hm\"}",
        "data: {\"type\": \"response.output_text.delta\", \"delta\": \"Hel\"}",
        "data: {\"type\": \"response.something.new\", \"delta\": \"?\"}",
        "data: {\"type\": \"response.output_text.delta\", \"delta\": \"lo\"}",
        "data: {\"type\": \"response.output_item.done\", \"item\": {\"type\": \"function_call\", \"call_id\": \"c1\", \
            \"name\": \"walk\", \"arguments\": \"{}\"}}",
        "data: {\"type\": \"response.completed\", \"response\": {\"usage\": {\"input_tokens\": 7, \"output_tokens\": 3, \
            \"input_tokens_details\": {\"cached_tokens\": 5}}}}",
    ]);
    let endpoint = |address: SocketAddr| Endpoint::new(format!("http://{address}/v1")).model(MODEL).responses();
    let mut chat = endpoint(address).chat()?.system("S").tools([walk()]).with(|generate| generate.max_tokens(9));
    let (reply, statistics) = chat.say("Hi")?.finish()?;
    assert_eq!((&*reply.content, reply.reasoning.as_deref()), ("Hello", Some("hm")));
    assert_eq!((reply.tool_calls[0].id.as_deref(), &reply.tool_calls[0].arguments), (Some("c1"), &json!({})));
    let counts = (statistics.prompt_tokens, statistics.cached_tokens, statistics.generated_tokens);
    assert_eq!(counts, (7, 5, 3));
    let body = received.lock().unwrap()[0].clone();
    assert_eq!(
        (&body["max_output_tokens"], &body["store"], &body["max_tokens"]),
        (&json!(9), &json!(false), &Value::Null)
    );
    assert_eq!((&body["tools"][0]["name"], &body["tool_choice"]), (&json!("walk"), &json!("auto")));
    assert_eq!(body["input"], json!([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]));

    let (address, _) = scripted(&["data: {\"type\": \"response.output_text.delta\", \"delta\": \"Hel\"}"]);
    let error = endpoint(address).chat()?.say("Hi")?.finish().unwrap_err();
    assert!(matches!(error, Error::CutOff { .. }), "{error:?}");
    let (address, _) = scripted(&[
        "data: {\"type\": \"response.failed\", \"response\": {\"error\": {\"code\": \"server_error\", \"message\": \"m\"}}}",
    ]);
    let error = endpoint(address).chat()?.say("Hi")?.finish().unwrap_err();
    assert!(matches!(&error, Error::Refused { status: 500, message, .. } if message == "m"), "{error:?}");
    Ok(())
}
