//! Conversations as items of OpenAI's Responses API, and the events of its answers.

use autoplace::chat::{Message, ReplyPart, Role, Tool, ToolCall, with_ids};
use autoplace::generate::{Constraint, FinishReason, ToolChoice};
use serde_json::{Value, json};

use super::wire::File;
use super::{Error, wire};

/// The messages of a conversation as items. An item has no field for a user's name.
pub(super) fn items(messages: &[Message]) -> Result<Value, Error> {
    let messages = with_ids(messages, |number| format!("call_{number}"));
    let mut items = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        if message.role == Role::TOOL {
            let id = &message.tool_call_id;
            let output = wire::content(message, "input_text", part)?;
            items.push(json!({"type": "function_call_output", "call_id": id, "output": output}));
            continue;
        }
        if message.name.is_some() {
            return Err(Error::Inexpressible { what: "a user's message with a name, in the Responses API" });
        }
        if message.role != Role::ASSISTANT {
            let content = wire::content(message, "input_text", part)?;
            items.push(json!({"role": message.role, "content": content}));
            continue;
        }
        if !message.media.is_empty() {
            return Err(Error::Inexpressible {
                what: "an image or a sound in an answer of the model, in the Responses API",
            });
        }
        if let Some(thought) = &message.reasoning_content {
            let content = json!([{"type": "reasoning_text", "text": thought}]);
            items.push(json!({"type": "reasoning", "id": format!("rs_{index}"), "summary": [], "content": content}));
        }
        if !message.content.is_empty() || message.tool_calls.is_empty() {
            let content = json!([{"type": "output_text", "text": message.content, "annotations": []}]);
            items.push(json!({"type": "message", "id": format!("msg_{index}"), "role": "assistant",
                "status": "completed", "content": content}));
        }
        items.extend(message.tool_calls.iter().map(|call| {
            json!({"type": "function_call", "call_id": call.id, "name": call.name,
                "arguments": call.arguments.to_string()})
        }));
    }
    Ok(items.into())
}

fn part(file: File) -> Value {
    match file {
        File::Image(url) => json!({"type": "input_image", "image_url": url}),
        File::Sound(data) => File::sound(&data),
    }
}

pub(super) fn tools(tools: &[Tool]) -> Value {
    let tool = |tool: &Tool| {
        // OpenAI's own server enforces a schema unless `strict` is false.
        json!({"type": "function", "name": tool.name, "description": tool.description,
            "parameters": tool.parameters, "strict": false})
    };
    tools.iter().map(tool).collect()
}

pub(super) fn tool_choice(choice: &ToolChoice) -> Value {
    let function = |name: &String| json!({"type": "function", "name": name});
    match choice {
        ToolChoice::Function(name) => function(name),
        ToolChoice::OneOf(names) => {
            let tools: Value = names.iter().map(function).collect();
            json!({"type": "allowed_tools", "mode": "required", "tools": tools})
        }
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => wire::tool_choice(choice),
    }
}

/// The parameter `text`: the form of the answer.
pub(super) fn text(constraint: &Constraint) -> Result<Value, Error> {
    let mut format = wire::response_format(constraint)?;
    if let Some(schema) = format.get_mut("json_schema").and_then(Value::as_object_mut) {
        let schema = std::mem::take(schema);
        format = json!({"type": "json_schema"});
        for (name, value) in schema {
            format[name] = value;
        }
    }
    Ok(json!({"format": format}))
}

/// The content of an event.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    Part(ReplyPart),
    /// The end of the answer, with the `usage` of the last event.
    End(FinishReason, Value),
    /// Nothing new: a later event repeats the content, or this client does not know the event.
    Nothing,
}

/// Reads an event of the server at `url`.
pub(super) fn said(event: &Value, url: &str) -> Result<Said, Error> {
    let delta = || event["delta"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let part = |part: Option<ReplyPart>| part.map_or(Said::Nothing, Said::Part);
    let response = &event["response"];
    let usage = || response["usage"].clone();
    Ok(match event["type"].as_str().unwrap_or_default() {
        "response.output_text.delta" | "response.refusal.delta" => part(delta().map(ReplyPart::Content)),
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            part(delta().map(ReplyPart::Reasoning))
        }
        "response.output_item.done" if event["item"]["type"] == "function_call" => {
            Said::Part(ReplyPart::ToolCall(call(&event["item"])?))
        }
        "response.completed" => Said::End(FinishReason::EndOfGeneration, usage()),
        "response.incomplete" => match response["incomplete_details"]["reason"].as_str() {
            Some("max_output_tokens") => Said::End(FinishReason::MaxTokens, usage()),
            _ => Said::End(FinishReason::EndOfGeneration, usage()),
        },
        "response.failed" => return Err(Error::refused(url, 500, &json!({"error": response["error"]}).to_string())),
        "error" => {
            let error = event.get("error").filter(|error| error.is_object()).unwrap_or(event);
            return Err(Error::refused(url, 500, &json!({"error": error}).to_string()));
        }
        _ => Said::Nothing,
    })
}

/// A complete call.
fn call(item: &Value) -> Result<ToolCall, Error> {
    let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let id = Some(text("call_id")).filter(|id| !id.is_empty());
    wire::called(id, text("name"), text("arguments"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_items_in_its_order_and_names_have_no_place() {
        let call = ToolCall { id: None, name: "f".into(), arguments: json!({"n": 1}) };
        let said = Message {
            reasoning_content: Some("hm".into()),
            tool_calls: vec![call.clone()],
            ..Message::assistant("Let me look.")
        };
        let silent = Message { tool_calls: vec![call.clone()], ..Message::assistant("") };
        let talk = [Message::system("s"), Message::user("q"), said, Message::tool(&call, "1"), silent];
        let items = items(&talk).unwrap();
        let kinds: Vec<&str> =
            items.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap_or("-")).collect();
        let expected = ["-", "-", "reasoning", "message", "function_call", "function_call_output", "function_call"];
        assert_eq!(kinds, expected);
        assert_eq!(items[0], json!({"role": "system", "content": "s"}));
        assert_eq!((&items[4]["call_id"], &items[4]["arguments"]), (&items[5]["call_id"], &json!("{\"n\":1}")));
        let named = Message { name: Some("Ann".into()), ..Message::user("q") };
        assert!(matches!(super::items(&[named]), Err(Error::Inexpressible { .. })));
    }

    #[test]
    fn events_are_parts_an_end_or_an_error_and_unknown_ones_are_nothing() {
        let said = |event: Value| said(&event, "http://server");
        let text = |kind: &str| json!({"type": kind, "delta": "a"});
        let content = Said::Part(ReplyPart::Content("a".into()));
        assert_eq!(said(text("response.output_text.delta")).unwrap(), content);
        assert_eq!(said(text("response.refusal.delta")).unwrap(), content);
        let thought = Said::Part(ReplyPart::Reasoning("a".into()));
        assert_eq!(said(text("response.reasoning_text.delta")).unwrap(), thought);
        assert_eq!(said(text("response.reasoning_summary_text.delta")).unwrap(), thought);
        for event in [text("response.new.delta"), json!({"type": "response.output_text.delta"}), json!([])] {
            assert_eq!(said(event).unwrap(), Said::Nothing);
        }
        let item = |arguments: &str| {
            json!({"type": "response.output_item.done",
                "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}})
        };
        let Said::Part(ReplyPart::ToolCall(call)) = said(item("")).unwrap() else { panic!("no call") };
        assert_eq!((call.id.as_deref(), &*call.name, call.arguments), (Some("c"), "f", json!({})));
        assert!(matches!(said(item("{\"a\":")), Err(Error::Call { name, .. }) if name == "f"));
        let ended = |reason: &str| json!({"type": "response.incomplete", "response": {"incomplete_details": {"reason": reason}, "usage": 3}});
        assert_eq!(said(ended("max_output_tokens")).unwrap(), Said::End(FinishReason::MaxTokens, json!(3)));
        assert_eq!(said(ended("content_filter")).unwrap(), Said::End(FinishReason::EndOfGeneration, json!(3)));
        let error = json!({"code": "server_error", "message": "no memory"});
        for event in [
            json!({"type": "response.failed", "response": {"error": error}}),
            json!({"type": "error", "code": "server_error", "message": "no memory"}),
            json!({"type": "error", "error": error}),
        ] {
            let Err(Error::Refused { status, message, code, .. }) = said(event) else { panic!("no error") };
            assert_eq!((status, &*message, code.as_deref()), (500, "no memory", Some("server_error")));
        }
    }
}
