//! Converts messages and tools from the API's form to the form that chat templates expect.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::error::ApiError;
use super::media::Seen;
use super::reading::{self, Body, List};
use autoplace::chat::{Content, Message, Part, Role, Tool, ToolCall};
use autoplace::generate::ToolChoice;

/// Maximum number of messages in a conversation.
const MAX_MESSAGES: usize = 8192;
/// Maximum number of parts in a message.
const MAX_PARTS: usize = 1024;

#[derive(Debug, Deserialize)]
struct MessageBody<'a> {
    role: Role,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    reasoning_content: Option<String>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "{\"type\": \"text\", \"text\": ...}")]
struct PartBody<'a> {
    r#type: Option<String>,
    text: Option<String>,
    refusal: Option<String>,
    #[serde(borrow)]
    image_url: Option<&'a RawValue>,
    #[serde(borrow)]
    input_audio: Option<AudioBody<'a>>,
}

#[derive(Debug, Deserialize)]
struct UrlBody<'a> {
    #[serde(borrow)]
    url: Cow<'a, str>,
}

/// A sound. Its format is detected from its bytes.
#[derive(Debug, Deserialize)]
struct AudioBody<'a> {
    #[serde(borrow)]
    data: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
struct CallBody<'a> {
    id: Option<String>,
    #[serde(borrow)]
    function: FunctionBody<'a>,
}

#[derive(Debug, Deserialize)]
struct FunctionBody<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
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
    #[serde(default)]
    strict: Option<bool>,
}

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// The tools in the form that the template expects. The prompt shows all of them, whatever the `choice` is. So a
    /// request with another choice still finds its prompt in the cache.
    pub(super) shown: Vec<Value>,
    /// The tools, in the form that is needed to parse answers.
    pub(super) typed: Vec<Tool>,
    /// Whether each tool is `strict`.
    pub(super) strict: Vec<bool>,
    /// Whether the model may or must call a tool.
    pub(super) choice: ToolChoice,
    /// The names of the tools that may be called; `None` means all.
    allowed: Option<Vec<String>>,
}

impl Tools {
    /// The tools that the answer may call, each with its index, and whether it is `strict`.
    pub(super) fn callable(&self) -> impl Iterator<Item = (usize, &Tool, bool)> {
        let tools = self.typed.iter().zip(&self.strict).enumerate();
        let tools = tools.map(|(index, (tool, is_strict))| (index, tool, *is_strict));
        tools.filter(|(_, tool, _)| self.choice.allows(&tool.name) && self.is_allowed(&tool.name))
    }

    /// Whether some tools may be called, but the model also sees a tool that it may not call.
    pub(super) fn is_restricted(&self) -> bool {
        self.allowed.is_some() && self.typed.iter().any(|tool| !self.is_allowed(&tool.name))
    }

    fn is_allowed(&self, name: &str) -> bool {
        self.allowed.as_ref().is_none_or(|names| names.iter().any(|allowed| allowed == name))
    }
}

/// The parts of contents in which a part has keys that the API does not define. Each entry has the index of its
/// message.
type OwnParts = Vec<(usize, Vec<Value>)>;

/// The messages of a request, and the parts of some contents ([`OwnParts`]), which a template may need in addition to
/// the texts. `knows_developers` says whether the template supports the role `developer`. If it does not, that role
/// becomes `system`.
pub(super) fn messages(
    request: &Body<'_>,
    knows_developers: bool,
    seen: &Seen<'_>,
) -> Result<(Vec<Message>, OwnParts), ApiError> {
    let missing = || ApiError::invalid("messages", "`messages` is missing");
    let given = request.get("messages").ok_or_else(missing)?;
    let List::<MessageBody<'_>, MAX_MESSAGES>(bodies) = reading::value(given, "messages")?;
    if bodies.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty"));
    }
    let mut messages: Vec<Message> = Vec::with_capacity(bodies.len());
    let mut parts = Vec::new();
    for (index, body) in bodies.into_iter().enumerate() {
        if let Some(content) = body.content.filter(|content| has_own_keys(content)) {
            parts.push((index, request.counted(content, &format!("messages[{index}].content"))?));
        }
        let message = body.into_message(request, index, &messages, seen)?;
        messages.push(message);
    }
    if !knows_developers {
        let developers = messages.iter_mut();
        for message in developers.filter(|message| message.role == Role::DEVELOPER) {
            message.role = Role::SYSTEM;
        }
    }
    Ok((messages, parts))
}

/// Whether the content is a list in which a part has a key that the API does not define.
fn has_own_keys(content: &RawValue) -> bool {
    const KNOWN: [&str; 7] = ["type", "text", "refusal", "annotations", "cache_control", "image_url", "input_audio"];
    type Keys = BTreeMap<String, IgnoredAny>;
    let parts =
        reading::value::<List<Keys, MAX_PARTS>>(content, "content").map_or_else(|_| Vec::new(), |parts| parts.0);
    parts.iter().flat_map(BTreeMap::keys).any(|key| !KNOWN.contains(&key.as_str()))
}

impl<'a> MessageBody<'a> {
    fn into_message(
        self,
        request: &Body<'a>,
        index: usize,
        before: &[Message],
        seen: &Seen<'_>,
    ) -> Result<Message, ApiError> {
        let place = format!("messages[{index}]");
        let calls: Vec<CallBody<'_>> = match self.tool_calls {
            Some(calls) => request.counted(calls, &format!("{place}.tool_calls"))?,
            None => Vec::new(),
        };
        let calls = calls.into_iter().enumerate();
        let calls: Result<_, _> =
            calls.map(|(call, body)| body.into_call(request, &format!("{place}.tool_calls[{call}]"))).collect();
        let mut message = Message {
            reasoning_content: self.reasoning_content,
            tool_calls: calls?,
            tool_call_id: self.tool_call_id,
            name: self.name,
            ..Message::new(self.role, content(self.content, format!("{place}.content"), seen)?)
        };
        // A template may need the name of the tool that answered, but the API leaves that name out.
        if message.role == Role::TOOL && message.name.is_none() {
            let mut calls = before.iter().rev().flat_map(|message| &message.tool_calls);
            let called = calls.find(|call| call.id == message.tool_call_id);
            message.name = called.map(|call| call.name.clone());
        }
        Ok(message)
    }
}

/// The content of a message: a text, or a list of parts. Texts are joined with line breaks, as in llama.cpp's server.
fn content(content: Option<&RawValue>, place: String, seen: &Seen<'_>) -> Result<Content, ApiError> {
    let parts: List<PartBody<'_>, MAX_PARTS> = match content {
        None => return Ok(Content::default()),
        Some(text) if reading::is_text(text) => return reading::value(text, &place).map(|text: String| text.into()),
        Some(parts) if parts.get().starts_with('[') => reading::value(parts, &place)?,
        Some(_) => {
            let message = format!("{place}: expected a text or a list of parts");
            return Err(ApiError::invalid(place, message));
        }
    };
    let parts = parts.0.into_iter().enumerate();
    parts.map(|(index, part)| part.into_part(&format!("{place}[{index}]"), seen)).collect()
}

impl PartBody<'_> {
    fn into_part(self, place: &str, seen: &Seen<'_>) -> Result<Part, ApiError> {
        let text = match self.r#type.as_deref() {
            Some("text" | "refusal") => self.text.or(self.refusal),
            Some("image_url") => {
                let given = self.image_url.ok_or_else(|| ApiError::missing(place, "image_url"))?;
                let place = format!("{place}.image_url");
                // Some clients send the URL alone, without an object around it.
                let url = match reading::is_text(given) {
                    true => reading::text(given, &place)?,
                    false => reading::value::<UrlBody<'_>>(given, &place)?.url,
                };
                return seen.image(&url, &place).map(Part::Media);
            }
            Some("input_audio") => {
                let given = self.input_audio.ok_or_else(|| ApiError::missing(place, "input_audio"))?;
                return seen.audio(&given.data, &format!("{place}.input_audio")).map(Part::Media);
            }
            Some(kind) => {
                let message = format!("{place}: parts of type `{kind}` are not supported");
                return Err(ApiError::unsupported(place, message));
            }
            None => None,
        };
        text.map(Part::Text).ok_or_else(|| {
            let message = format!("{place}: expected {{\"type\": \"text\", \"text\": ...}}");
            ApiError::invalid(place, message)
        })
    }
}

impl<'a> CallBody<'a> {
    fn into_call(self, request: &Body<'a>, place: &str) -> Result<ToolCall, ApiError> {
        let place = format!("{place}.function.arguments");
        let arguments = match self.function.arguments {
            None => json!({}),
            Some(text) if reading::is_text(text) => {
                let text: String = reading::value(text, &place)?;
                // The arguments are a text, so they were counted as one value. But they become a tree.
                request.count(&text, &place)?;
                match text.trim() {
                    "" => json!({}),
                    text => text
                        .parse()
                        .map_err(|error| ApiError::invalid(&place, format!("{place}: not valid JSON: {error}")))?,
                }
            }
            Some(arguments) => reading::value(arguments, &place)?,
        };
        Ok(ToolCall { id: self.id, name: self.function.name, arguments })
    }
}

/// The tools of a request, and which of them may or must be called.
pub(super) fn tools(body: &Body<'_>) -> Result<Tools, ApiError> {
    // The tools are read twice and become two trees, so their values count twice towards `MAX_VALUES`.
    let typed: Vec<ToolBody> = body.tree("tools")?.unwrap_or_default();
    let shown = body.tree("tools")?.unwrap_or_default();
    let as_tool = |tool: ToolBody| Tool {
        name: tool.function.name,
        description: tool.function.description.unwrap_or_default(),
        // As in OpenAI's API, a function without `parameters` takes no arguments.
        parameters: tool.function.parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
    };
    let strict = typed.iter().map(|tool| tool.function.strict == Some(true)).collect();
    let typed: Vec<Tool> = typed.into_iter().map(as_tool).collect();
    let (choice, allowed) = choice(body, &typed)?;
    Ok(Tools { shown, typed, strict, choice, allowed })
}

/// The `tool_choice` of a request, and the names that `allowed_tools` permits.
fn choice(body: &Body<'_>, tools: &[Tool]) -> Result<(ToolChoice, Option<Vec<String>>), ApiError> {
    let given: Value = body.tree("tool_choice")?.unwrap_or_default();
    let name = |of: &Value| of.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    let choice = match (given.as_str(), given["type"].as_str()) {
        _ if given.is_null() => ToolChoice::Auto,
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("none"), _) => ToolChoice::None,
        (Some("required"), _) => ToolChoice::Required,
        (None, Some("function")) if name(&given).is_some() => ToolChoice::Function(name(&given).unwrap_or_default()),
        (None, Some("allowed_tools")) => return allowed(&given["allowed_tools"], tools, name),
        _ => {
            let message = "`tool_choice` can be `auto`, `none`, `required`, a function, or `allowed_tools`";
            return Err(ApiError::unsupported("tool_choice", message));
        }
    };
    Ok((choice, None))
}

/// OpenAI's `allowed_tools`: a list of tools. The model may (`auto`) or must (`required`) call one of them.
fn allowed(
    given: &Value,
    tools: &[Tool],
    name: impl Fn(&Value) -> Option<String>,
) -> Result<(ToolChoice, Option<Vec<String>>), ApiError> {
    let names: Vec<String> = given["tools"].as_array().into_iter().flatten().filter_map(name).collect();
    let is_there = |name: &String| tools.iter().any(|tool| tool.name == *name);
    match given["mode"].as_str() {
        Some("required") if !names.iter().any(is_there) => {
            let message = format!("tool_choice: one of the tools {names:?} must be called, and none of them exists");
            Err(ApiError::invalid("tool_choice", message))
        }
        Some("required") => Ok((ToolChoice::OneOf(names), None)),
        Some("auto") => Ok((ToolChoice::Auto, Some(names))),
        mode => {
            let place = "tool_choice.allowed_tools.mode";
            let message = format!("{place} is `{}`: use `auto` or `required`", mode.unwrap_or("missing"));
            Err(ApiError::invalid(place, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: &Value, knows_developers: bool) -> Result<Vec<Message>, ApiError> {
        let body = json!({"messages": messages}).to_string();
        let seen = Seen::default();
        Ok(super::messages(&reading::object(body.as_bytes()).unwrap(), knows_developers, &seen)?.0)
    }

    #[test]
    fn contents_are_texts_or_parts() {
        let given = json!([
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c", "name": "Ann"},
            {"role": "assistant", "content": null},
            {"role": "user", "content": ""},
        ]);
        let read = read(&given, true).unwrap();
        let texts: Vec<&str> = read.iter().map(|part| &*part.content).collect();
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
        let read = read(&given, true).unwrap();
        assert_eq!(read[1].tool_calls[0].arguments, json!({"city": "Bonn"}));
        assert_eq!(read[1].tool_calls[1].arguments, json!({}));
        assert_eq!(read[2].name.as_deref(), Some("weather"));
    }

    #[test]
    fn a_developer_becomes_the_system_if_the_template_lacks_that_role() {
        let given = json!([{"role": "developer", "content": "Be brief."}]);
        assert_eq!(read(&given, false).unwrap()[0].role, Role::SYSTEM);
        let kept = read(&given, true).unwrap();
        assert_eq!(kept[0].role, Role::DEVELOPER);
    }

    #[test]
    fn tools_are_shown_as_they_were_given_whichever_may_be_called() {
        let tool = |name: &str, strict: bool| {
            json!({"type": "function",
                "function": {"name": name, "parameters": {"type": "object"}, "strict": strict}})
        };
        let given = [tool("f", true), tool("g", false)];
        let function = |name: &str| json!({"type": "function", "function": {"name": name}});
        let allowed = |mode: &str, name: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(name)]}});
        let read = |choice: Value| {
            let body = json!({"tools": given, "tool_choice": choice}).to_string();
            tools(&reading::object(body.as_bytes())?)
        };
        for (asked, choice, callable) in [
            (Value::Null, ToolChoice::Auto, &["f", "g"][..]),
            (json!("auto"), ToolChoice::Auto, &["f", "g"]),
            (json!("none"), ToolChoice::None, &[]),
            (json!("required"), ToolChoice::Required, &["f", "g"]),
            (function("g"), ToolChoice::Function("g".into()), &["g"]),
            (allowed("required", "g"), ToolChoice::OneOf(vec!["g".into()]), &["g"]),
            (allowed("auto", "g"), ToolChoice::Auto, &["g"]),
            (allowed("auto", "h"), ToolChoice::Auto, &[]),
        ] {
            let tools = read(asked.clone()).unwrap();
            assert_eq!((&tools.choice, &tools.shown[..], &tools.strict[..]), (&choice, &given[..], &[true, false][..]));
            let names: Vec<&str> = tools.callable().map(|(_, tool, _)| &*tool.name).collect();
            assert_eq!(names, callable, "{asked}");
            assert_eq!(tools.is_restricted(), asked["allowed_tools"]["mode"] == "auto", "{asked}");
        }
        for (asked, param) in [
            (json!("sometimes"), "tool_choice"),
            (json!({"type": "function"}), "tool_choice"),
            (allowed("required", "h"), "tool_choice"),
            (allowed("sometimes", "f"), "tool_choice.allowed_tools.mode"),
        ] {
            assert_eq!(read(asked).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
