//! Translates a request for a message to a chat request.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{blocks, stamps};
use crate::error::ApiError;
use crate::reading::{self, Body, List};
use crate::translation::{ChatFunction, ChatMessage, ChatWriter, Translation};

/// Maximum messages and tools of a request.
const MOST_MESSAGES: usize = 8192;
const MOST_TOOLS: usize = 4096;

/// Parameters that the translation reads itself.
const READ: [&str; 9] = [
    "messages",
    "system",
    "max_tokens",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
];
/// Parameters without effect here; docs/messages.md has the reasons.
const IGNORED: [&str; 10] = [
    "metadata",
    "cache_control",
    "service_tier",
    "inference_geo",
    "speed",
    "diagnostics",
    "user_profile_id",
    "workspace_id",
    "context_management",
    "betas",
];
/// Refused parameters: Anthropic's own services, and parameters of chat completions without a counterpart in a message.
const REFUSED: [&str; 12] = [
    "container",
    "mcp_servers",
    "fallbacks",
    "n",
    "n_cmpl",
    "logprobs",
    "top_logprobs",
    "stream_options",
    "max_completion_tokens",
    "continue_final_message",
    "add_generation_prompt",
    "reasoning_effort",
];

/// How an answer shows its thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Shown {
    #[default]
    Thoughts,
    /// As signatures (`display: "omitted"`).
    Signatures,
}

#[derive(Debug, Deserialize)]
struct MessageBody<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Debug, Deserialize)]
struct ToolBody<'a> {
    #[serde(borrow)]
    r#type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    description: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input_schema: Option<&'a RawValue>,
    strict: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ToolChoice {
    r#type: String,
    name: Option<String>,
    #[serde(default)]
    disable_parallel_tool_use: bool,
}

#[derive(Debug, Deserialize)]
struct Thinking {
    r#type: String,
    display: Option<String>,
}

#[derive(Debug, Deserialize)]
struct OutputConfig<'a> {
    effort: Option<String>,
    #[serde(borrow)]
    format: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct OutputFormat<'a> {
    r#type: String,
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
}

/// Translates the body of a request for a message.
pub(crate) fn translate(body: &[u8]) -> Result<(Translation, Shown), ApiError> {
    let bytes = body.len();
    let body = reading::with_integers(body);
    let body = reading::object_as_given(&body)?;
    if let Some(name) = REFUSED.into_iter().find(|name| body.get(name).is_some_and(|it| !is_nothing(it))) {
        return Err(ApiError::unsupported(name, format!("`{name}` is not supported by /v1/messages")));
    }
    let mut writer = ChatWriter::new(bytes);
    for (name, value) in body.entries() {
        let is_own = READ.contains(&name) || IGNORED.contains(&name) || REFUSED.contains(&name);
        match name {
            "chat_template_kwargs" => writer.variables(value)?,
            _ if is_own => {}
            _ => writer.pass(name, value),
        }
    }
    if let Some(limit) = body.get("max_tokens") {
        let limit: u64 = reading::value(limit, "max_tokens")?;
        writer.set("max_tokens", limit);
    }
    if let Some(stop) = body.get("stop_sequences") {
        writer.give("stop", "stop_sequences", stop);
    }
    conversation(&body, &mut writer)?;
    let is_forced = tools(&body, &mut writer)?;
    let has_form = form(&body, &mut writer)?;
    let shown = thinking(&body, &mut writer, has_form || is_forced)?;
    Ok((writer.finish()?, shown))
}

fn is_nothing(value: &RawValue) -> bool {
    matches!(value.get(), "null" | "false" | "[]" | "{}" | "1" | "0")
}

fn conversation<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<(), ApiError> {
    let given = body.get("messages").ok_or_else(|| ApiError::invalid("messages", "`messages` is missing"))?;
    let mut system = match body.get("system") {
        Some(system) => blocks::texts(system, "system")?,
        None => Vec::new(),
    };
    let stamps = stamps::take(&mut system);
    if !system.is_empty() {
        let system: Cow<'a, str> = match <[_; 1]>::try_from(system) {
            Ok([text]) => text,
            Err(texts) => texts.join("\n").into(),
        };
        writer.message(ChatMessage::new("system", system), || "system".to_owned());
    }
    let List::<MessageBody<'a>, MOST_MESSAGES>(messages) = reading::value(given, "messages")?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty"));
    }
    for (index, message) in messages.into_iter().enumerate() {
        let place = format!("messages[{index}]");
        let role = match &*message.role {
            "user" => "user",
            "assistant" => "assistant",
            "system" => "system",
            role => {
                let place = format!("{place}.role");
                let message = format!("{place} is `{role}`: `user`, `assistant` and `system` can be");
                return Err(ApiError::invalid(place, message));
            }
        };
        blocks::message(writer, role, message.content, &place)?;
    }
    // The answer continues the given text.
    let is_begun = |last: &ChatMessage<'_>| last.role == "assistant" && last.tool_calls.is_empty();
    let is_begun = writer.last().is_some_and(|last| is_begun(last) && !last.content.is_empty());
    if is_begun {
        writer.set("continue_final_message", true);
    } else if let (Some(last), false) = (writer.last_mut(), stamps.is_empty()) {
        // The next request repeats everything before this place.
        last.append(&format!("\n{}", stamps.join("\n")));
    }
    Ok(())
}

/// Translates the tools. Returns whether the model must call one.
fn tools<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<bool, ApiError> {
    let choice =
        body.get("tool_choice").map(|choice| reading::value::<ToolChoice>(choice, "tool_choice")).transpose()?;
    let named = choice.as_ref().and_then(|choice| choice.name.as_deref());
    if let Some(given) = body.get("tools") {
        let List::<ToolBody<'a>, MOST_TOOLS>(tools) = reading::value(given, "tools")?;
        for (index, tool) in tools.into_iter().enumerate() {
            let place = format!("tools[{index}]");
            let kind = tool.r#type.as_deref().unwrap_or("custom");
            if kind == "custom" {
                let ToolBody { name, description, input_schema: parameters, strict, .. } = tool;
                writer.tool(ChatFunction { name, description, parameters, strict }, place, "input_schema");
            } else if named == Some(&*tool.name) {
                let message =
                    format!("{place}: tools of type `{kind}` are not supported, and this one is to be called");
                return Err(ApiError::unsupported(place, message));
            } else {
                writer.leave_out(format!("{place}: tools of type `{kind}` are not supported"));
            }
        }
    }
    let Some(choice) = choice else { return Ok(false) };
    writer.rename("tool_choice", "tool_choice");
    let (chosen, is_forced) = match (&*choice.r#type, choice.name) {
        ("auto", _) => (json!("auto"), false),
        ("none", _) => (json!("none"), false),
        ("any", _) if !writer.has_tools() => {
            let message = "`tool_choice` is `any`, and there is no tool that can be called";
            return Err(ApiError::invalid("tool_choice", message));
        }
        ("any", _) => (json!("required"), true),
        ("tool", Some(name)) if writer.has_tool(&name) => {
            (json!({"type": "function", "function": {"name": name}}), true)
        }
        ("tool", Some(name)) => {
            let message = format!("tool_choice.name: there is no tool `{name}`");
            return Err(ApiError::invalid("tool_choice.name", message));
        }
        ("tool", None) => return Err(ApiError::invalid("tool_choice.name", "`tool_choice.name` is missing")),
        (kind, _) => {
            let message = format!("tool_choice.type is `{kind}`: `auto`, `any`, `tool` and `none` can be");
            return Err(ApiError::invalid("tool_choice.type", message));
        }
    };
    writer.set("tool_choice", chosen);
    if choice.disable_parallel_tool_use {
        writer.set("parallel_tool_calls", false);
    }
    Ok(is_forced)
}

/// Translates the form of the answer and the effort. Returns whether there is a form.
fn form<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<bool, ApiError> {
    const FORMS: [(&str, &str); 2] =
        [("output_config.format", "output_config.format.schema"), ("output_format", "output_format.schema")];
    let config: Option<OutputConfig<'a>> =
        body.get("output_config").map(|config| reading::value(config, "output_config")).transpose()?;
    let (effort, format) = config.map_or((None, None), |config| (config.effort, config.format));
    if let Some(effort) = effort {
        // Templates support three levels.
        let effort = if matches!(&*effort, "xhigh" | "max") { "high" } else { &*effort };
        writer.set("reasoning_effort", effort);
    }
    let given = [format, body.get("output_format")];
    let Some(((place, schema_place), given)) = FORMS.into_iter().zip(given).find_map(|(at, it)| Some((at, it?))) else {
        return Ok(false);
    };
    let OutputFormat { r#type, schema } = reading::value(given, place)?;
    let (true, Some(schema)) = (r#type == "json_schema", schema) else {
        let message = format!("{place}: `json_schema` with its `schema` can be, and this is `{type}`", r#type = r#type);
        return Err(ApiError::invalid(place, message));
    };
    writer.give("json_schema", schema_place, schema);
    Ok(true)
}

/// `is_held` means that the answer is constrained to a form or a call, which has no room for thoughts.
fn thinking(body: &Body<'_>, writer: &mut ChatWriter<'_>, is_held: bool) -> Result<Shown, ApiError> {
    let thinking = body.get("thinking").map(|it| reading::value::<Thinking>(it, "thinking")).transpose()?;
    // Without the parameter there are no thoughts, as with Anthropic's own models.
    let kind = thinking.as_ref().map_or("disabled", |thinking| &*thinking.r#type);
    match kind {
        "disabled" => writer.variable("enable_thinking", false),
        "enabled" | "adaptive" | "between_tools" if is_held => {}
        "enabled" | "adaptive" | "between_tools" => writer.variable("enable_thinking", true),
        kind => {
            let message =
                format!("thinking.type is `{kind}`: `enabled`, `adaptive`, `between_tools` and `disabled` can be");
            return Err(ApiError::invalid("thinking.type", message));
        }
    }
    match thinking.and_then(|thinking| thinking.display).as_deref() {
        None | Some("summarized") => Ok(Shown::Thoughts),
        Some("omitted") => Ok(Shown::Signatures),
        Some(display) => {
            let message = format!("thinking.display is `{display}`: `summarized` and `omitted` can be");
            Err(ApiError::invalid("thinking.display", message))
        }
    }
}
