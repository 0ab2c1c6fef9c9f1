//! Messages and tools, from the API's shape to the one that templates know.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::reading;
use autoplace::chat::{Message, Role, Tool, ToolCall};
use autoplace::generate::ToolChoice;

#[derive(Debug, Deserialize)]
struct MessageBody {
    role: Role,
    content: Option<Value>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<CallBody>>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CallBody {
    id: Option<String>,
    function: FunctionBody,
}

#[derive(Debug, Deserialize)]
struct FunctionBody {
    name: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Debug, Deserialize)]
struct ToolBody {
    function: ToolFunction,
}

#[derive(Debug, Deserialize)]
struct ToolFunction {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Value>,
}

/// The messages of a request. `knows_developers`: whether the template has that role; else it is the system's.
pub(super) fn messages(
    given: Option<&Value>,
    knows_developers: bool,
) -> Result<Vec<Message>, ApiError> {
    let bodies: Vec<MessageBody> = match given {
        None | Some(Value::Null) => {
            return Err(ApiError::invalid("messages", "`messages` is missing"));
        }
        Some(given) => reading::value(given, "messages")?,
    };
    if bodies.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty"));
    }
    let mut messages: Vec<Message> = Vec::with_capacity(bodies.len());
    for (index, body) in bodies.into_iter().enumerate() {
        let message = body.into_message(index, &messages)?;
        messages.push(message);
    }
    if !knows_developers {
        let developers = messages.iter_mut();
        for message in developers.filter(|it| it.role == Role::DEVELOPER) {
            message.role = Role::SYSTEM;
        }
    }
    Ok(messages)
}

impl MessageBody {
    fn into_message(self, index: usize, before: &[Message]) -> Result<Message, ApiError> {
        let place = format!("messages[{index}]");
        let calls = self.tool_calls.unwrap_or_default().into_iter().enumerate();
        let calls: Result<_, _> = calls
            .map(|(call, body)| body.into_call(&format!("{place}.tool_calls[{call}]")))
            .collect();
        let mut message = Message {
            reasoning_content: self.reasoning_content,
            tool_calls: calls?,
            tool_call_id: self.tool_call_id,
            name: self.name,
            ..Message::new(self.role, content(self.content, &place)?)
        };
        // Templates that show which tool has answered know it by its name, which the API leaves out.
        if message.role == Role::TOOL && message.name.is_none() {
            let mut calls = before.iter().rev().flat_map(|it| &it.tool_calls);
            let called = calls.find(|call| call.id == message.tool_call_id);
            message.name = called.map(|call| call.name.clone());
        }
        Ok(message)
    }
}

/// A text, or a list of parts that are texts, a line each (as llama.cpp's server has it).
fn content(content: Option<Value>, place: &str) -> Result<String, ApiError> {
    let parts = match content {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(_) => {
            let place = format!("{place}.content");
            let message = format!("{place}: expected a text or a list of parts");
            return Err(ApiError::invalid(place, message));
        }
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let place = || format!("{place}.content[{index}]");
        let kind = part.get("type").and_then(Value::as_str);
        let text = match kind {
            Some("text" | "refusal") => part.get("text").or_else(|| part.get("refusal")),
            Some(kind) => {
                let message = format!("{}: parts of type `{kind}` are not supported", place());
                return Err(ApiError::unsupported(place(), message));
            }
            None => None,
        };
        let Some(text) = text.and_then(Value::as_str) else {
            let message = format!("{}: expected {{\"type\": \"text\", \"text\": ...}}", place());
            return Err(ApiError::invalid(place(), message));
        };
        texts.push(text);
    }
    Ok(texts.join("\n"))
}

impl CallBody {
    fn into_call(self, place: &str) -> Result<ToolCall, ApiError> {
        let arguments = match self.function.arguments {
            Value::Null => json!({}),
            Value::String(text) if text.trim().is_empty() => json!({}),
            Value::String(text) => serde_json::from_str(&text).map_err(|error| {
                let place = format!("{place}.function.arguments");
                let message = format!("{place}: no JSON: {error}");
                ApiError::invalid(place, message)
            })?,
            arguments => arguments,
        };
        Ok(ToolCall { id: self.id, name: self.function.name, arguments })
    }
}

/// The tools of a request, unless it forbids them: as the template is shown them, and as answers are read by them; and
/// whether one of them has to be called.
pub(super) fn tools(
    body: &Map<String, Value>,
) -> Result<(Vec<Value>, Vec<Tool>, ToolChoice), ApiError> {
    let choice = body.get("tool_choice").unwrap_or(&Value::Null);
    let function = choice.pointer("/function/name").and_then(Value::as_str);
    let choice = match (choice.as_str(), function) {
        (Some("none"), _) => return Ok(<_>::default()),
        (Some("required"), _) => ToolChoice::Required,
        (_, Some(name)) if choice["type"] == "function" => ToolChoice::Function(name.to_owned()),
        _ if choice.is_null() || choice == "auto" => ToolChoice::Auto,
        _ => {
            let message = "`tool_choice` can be `auto`, `none`, `required` or a function";
            return Err(ApiError::unsupported("tool_choice", message));
        }
    };
    let tools = match body.get("tools") {
        None | Some(Value::Null) => &Value::Array(Vec::new()),
        Some(tools) => tools,
    };
    let typed: Vec<ToolBody> = reading::value(tools, "tools")?;
    let as_tool = |tool: ToolBody| Tool {
        name: tool.function.name,
        description: tool.function.description.unwrap_or_default(),
        parameters: tool.function.parameters.unwrap_or_else(|| json!({})),
    };
    let shown = tools.as_array().cloned().unwrap_or_default();
    Ok((shown, typed.into_iter().map(as_tool).collect(), choice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(given: &Value, param: &str) -> ApiError {
        let error = messages(Some(given), true).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert_eq!(error.status, 400);
        error
    }

    #[test]
    fn contents_are_texts_or_parts() {
        let given = json!([
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c", "name": "Ann"},
            {"role": "assistant", "content": null},
            {"role": "user", "content": ""},
        ]);
        let read = messages(Some(&given), true).unwrap();
        let texts: Vec<&str> = read.iter().map(|it| &*it.content).collect();
        assert_eq!(texts, ["a\nb", "c", "", ""]);
        assert_eq!(read[1].name.as_deref(), Some("Ann"));
    }

    #[test]
    fn calls_and_their_results_belong_together() {
        let given = json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bonn\"}"}},
                {"id": "2", "type": "function", "function": {"name": "time", "arguments": ""}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
        ]);
        let read = messages(Some(&given), true).unwrap();
        assert_eq!(read[1].tool_calls[0].arguments, json!({"city": "Bonn"}));
        assert_eq!(read[1].tool_calls[1].arguments, json!({}));
        assert_eq!(read[2].name.as_deref(), Some("weather"));
    }

    #[test]
    fn a_developer_is_the_system_where_the_template_knows_none() {
        let given = json!([{"role": "developer", "content": "Be brief."}]);
        assert_eq!(messages(Some(&given), false).unwrap()[0].role, Role::SYSTEM);
        let kept = messages(Some(&given), true).unwrap();
        assert_eq!(kept[0].role, Role::DEVELOPER);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        refused(&json!([]), "messages");
        refused(&json!("Hello"), "messages");
        refused(&json!([{"content": "a"}]), "messages[0]");
        refused(&json!([{"role": 3}]), "messages[0].role");
        refused(&json!([{"role": "user", "content": 3}]), "messages[0].content");
        let image = json!([{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image_url"}]}]);
        let error = refused(&image, "messages[0].content[1]");
        assert!(error.message.contains("image_url"), "{error}");
        let textless = json!([{"role": "user", "content": [{"type": "text"}]}]);
        refused(&textless, "messages[0].content[0]");
        let broken = json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]);
        refused(&broken, "messages[0].tool_calls[0].function.arguments");
        assert_eq!(messages(None, true).unwrap_err().param.as_deref(), Some("messages"));
    }

    #[test]
    fn tools_are_shown_as_they_were_given_unless_they_are_forbidden() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": true}});
        let read = |choice: Value| {
            let body = json!({"tools": [tool], "tool_choice": choice});
            tools(body.as_object().unwrap())
        };
        let (shown, typed, choice) = read(Value::Null).unwrap();
        assert_eq!(choice, ToolChoice::Auto);
        assert_eq!(shown, std::slice::from_ref(&tool));
        assert_eq!(typed[0].name, "f");
        assert!(read(json!("none")).unwrap().1.is_empty());
        assert_eq!(read(json!("auto")).unwrap().1.len(), 1);
        assert_eq!(read(json!("required")).unwrap().2, ToolChoice::Required);
        let named = read(json!({"type": "function", "function": {"name": "f"}})).unwrap();
        assert_eq!(named.2, ToolChoice::Function("f".into()));
        for unknown in [json!("some"), json!({"type": "function"}), json!(1)] {
            let error = read(unknown).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tool_choice"));
        }
        let body = json!({"tools": [{"type": "function"}]});
        let error = tools(body.as_object().unwrap()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[0]"));
    }
}
