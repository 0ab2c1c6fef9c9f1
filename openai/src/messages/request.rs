//! Translates a request for a message to a chat request.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::thoughts::Shown;
use super::{blocks, stamps};
use crate::error::ApiError;
use crate::parameters;
use crate::reading::{self, Body, List};
use crate::translation::{ChatFunction, ChatMessage, ChatWriter, Translation, joined};

/// Maximum number of messages, and of tools, in a request.
const MAX_MESSAGES: usize = 8192;
const MAX_TOOLS: usize = 4096;

/// Parameters that the translation itself reads.
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
/// Parameters that are ignored, for the reasons in docs/messages.md.
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
/// Parameters that are refused: those for Anthropic's own services, and parameters of chat completions without a
/// counterpart here. For each there is one value that has no effect and is accepted; `false` is accepted too.
const REFUSED: [(&str, &str); 12] = [
    ("container", "{}"),
    ("mcp_servers", "[]"),
    ("fallbacks", "[]"),
    ("n", "1"),
    ("n_cmpl", "1"),
    ("logprobs", ""),
    ("top_logprobs", "0"),
    ("stream_options", "{}"),
    ("max_completion_tokens", ""),
    ("continue_final_message", ""),
    ("add_generation_prompt", "true"),
    ("reasoning_effort", ""),
];

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
    parameters::refuse(&body, &REFUSED, " by /v1/messages")?;
    let mut writer = ChatWriter::new(bytes);
    let is_refused = |name: &str| REFUSED.iter().any(|(refused, _)| *refused == name);
    writer.pass_others(&body, |name| READ.contains(&name) || IGNORED.contains(&name) || is_refused(name))?;
    if let Some(limit) = body.read::<u64>("max_tokens")? {
        writer.set("max_tokens", "max_tokens", limit);
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

fn conversation<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<(), ApiError> {
    let given = body.get("messages").ok_or_else(|| ApiError::invalid("messages", "`messages` is missing"))?;
    let mut system = match body.get("system") {
        Some(system) => blocks::texts(system, "system")?,
        None => Vec::new(),
    };
    let List::<MessageBody<'a>, MAX_MESSAGES>(messages) = reading::value(given, "messages")?;
    let Some(last) = messages.last() else {
        return Err(ApiError::invalid("messages", "`messages` is empty"));
    };
    stamps::leave_out_headers(&mut system);
    // The stamps go to the end of the last message. If that message were the assistant's, the model would take them for
    // its own words.
    let stamps = if last.role == "user" { stamps::take(&mut system) } else { Vec::new() };
    if !system.is_empty() {
        writer.message(ChatMessage::new("system", joined(system)), || "system".to_owned());
    }
    for (index, message) in messages.into_iter().enumerate() {
        let place = format!("messages[{index}]");
        let role = match &*message.role {
            "user" => "user",
            "assistant" => "assistant",
            "system" => "system",
            role => {
                let place = format!("{place}.role");
                let message = format!("{place} is `{role}`: use `user`, `assistant` or `system`");
                return Err(ApiError::invalid(place, message));
            }
        };
        blocks::message(writer, role, message.content, &place)?;
    }
    // If the last message is the assistant's, the answer continues the text of that message.
    let is_begun = |last: &ChatMessage<'_>| last.role == "assistant" && last.tool_calls.is_empty();
    let is_begun = writer.last().is_some_and(|last| is_begun(last) && !last.content.is_empty());
    if is_begun {
        writer.set("continue_final_message", "messages", true);
    }
    if let (Some(last), false) = (writer.last_mut(), stamps.is_empty()) {
        // The stamps come last, so the next request can repeat everything before them.
        last.append(&format!("\n{}", stamps.join("\n")));
    }
    Ok(())
}

/// Translates the tools. Returns whether the model must call one.
fn tools<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<bool, ApiError> {
    let choice: Option<ToolChoice> = body.read("tool_choice")?;
    let named = choice.as_ref().and_then(|choice| choice.name.as_deref());
    if let Some(given) = body.get("tools") {
        let List::<ToolBody<'a>, MAX_TOOLS>(tools) = reading::value(given, "tools")?;
        for (index, tool) in tools.into_iter().enumerate() {
            let place = format!("tools[{index}]");
            let kind = tool.r#type.as_deref().unwrap_or("custom");
            if kind == "custom" {
                let ToolBody { name, description, input_schema: parameters, strict, .. } = tool;
                writer.tool(ChatFunction { name, description, parameters, strict }, place, "input_schema");
            } else if named == Some(&*tool.name) {
                let message =
                    format!("{place}: tools of type `{kind}` are not supported, but `tool_choice` names this tool");
                return Err(ApiError::unsupported(place, message));
            } else {
                writer.leave_out(format!("{place}: tools of type `{kind}` are not supported"));
            }
        }
    }
    let Some(choice) = choice else { return Ok(false) };
    let (chosen, is_forced) = match (&*choice.r#type, choice.name) {
        ("auto", _) => (json!("auto"), false),
        ("none", _) => (json!("none"), false),
        ("any", _) if !writer.has_tools() => {
            let message = "`tool_choice` is `any`, but there is no tool that can be called";
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
            let message = format!("tool_choice.type is `{kind}`: use `auto`, `any`, `tool` or `none`");
            return Err(ApiError::invalid("tool_choice.type", message));
        }
    };
    writer.set("tool_choice", "tool_choice", chosen);
    if choice.disable_parallel_tool_use {
        writer.set("parallel_tool_calls", "tool_choice.disable_parallel_tool_use", false);
    }
    Ok(is_forced)
}

/// Translates the form of the answer and the effort. Returns whether there is a form.
fn form<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<bool, ApiError> {
    let config: Option<OutputConfig<'a>> = body.read("output_config")?;
    let (effort, format) = config.map_or((None, None), |config| (config.effort, config.format));
    if let Some(effort) = effort {
        writer.effort("output_config.effort", &effort);
    }
    let (place, schema_place, given) = match (format, body.get("output_format")) {
        (Some(_), Some(_)) => return Err(ApiError::given_twice("output_format", "output_config.format")),
        (Some(format), None) => ("output_config.format", "output_config.format.schema", format),
        (None, Some(format)) => ("output_format", "output_format.schema", format),
        (None, None) => return Ok(false),
    };
    let OutputFormat { r#type, schema } = reading::value(given, place)?;
    let (true, Some(schema)) = (r#type == "json_schema", schema) else {
        let message = format!("{place}: use `json_schema` with its `schema`; this is `{type}`", r#type = r#type);
        return Err(ApiError::invalid(place, message));
    };
    writer.schema(schema_place, schema)?;
    Ok(true)
}

/// Translates the settings for thoughts. `is_held` says whether the answer is constrained to a form or a call. Then it
/// cannot contain thoughts.
fn thinking(body: &Body<'_>, writer: &mut ChatWriter<'_>, is_held: bool) -> Result<Shown, ApiError> {
    let thinking: Option<Thinking> = body.read("thinking")?;
    // Without this parameter there are no thoughts, as with Anthropic's own models.
    let kind = thinking.as_ref().map_or("disabled", |thinking| &*thinking.r#type);
    match kind {
        "disabled" => writer.variable("enable_thinking", false),
        "enabled" | "adaptive" | "between_tools" if is_held => {}
        "enabled" | "adaptive" | "between_tools" => writer.variable("enable_thinking", true),
        kind => {
            let message =
                format!("thinking.type is `{kind}`: use `enabled`, `adaptive`, `between_tools` or `disabled`");
            return Err(ApiError::invalid("thinking.type", message));
        }
    }
    match thinking.and_then(|thinking| thinking.display).as_deref() {
        None | Some("summarized") => Ok(Shown::Thoughts),
        Some("omitted") => Ok(Shown::Signatures),
        Some(display) => {
            let message = format!("thinking.display is `{display}`: use `summarized` or `omitted`");
            Err(ApiError::invalid("thinking.display", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn translated(more: &Value) -> Result<Value, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "Hello"}]});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        translate(body.to_string().as_bytes())
            .map(|(translation, _)| serde_json::from_slice(&translation.body).unwrap())
    }

    #[test]
    fn lines_that_change_are_never_lost_and_never_the_assistants_words() {
        let stamp = "Current time: 2026-11-28T22:14:03Z";
        let system = format!("{stamp}\nBe brief.");
        let user = json!({"role": "user", "content": "Hello"});
        let call = json!({"type": "tool_use", "id": "1", "name": "walk", "input": {}});
        let called = json!({"role": "assistant", "content": [call]});
        let result =
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "far"}]});
        for (messages, holder) in [
            (json!([user]), 1),
            (json!([user, called, result]), 3),
            (json!([user, {"role": "assistant", "content": "It is"}]), 0),
            (json!([user, called]), 0),
            (json!([user, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}]), 0),
            (json!([user, {"role": "system", "content": "Be kind."}]), 0),
        ] {
            let body = translated(&json!({"system": system, "messages": messages})).unwrap();
            for (index, message) in body["messages"].as_array().unwrap().iter().enumerate() {
                let has_stamp = message["content"].as_str().unwrap().contains(stamp);
                assert_eq!(has_stamp, index == holder, "{messages}: {body}");
            }
        }
        // The header is for Anthropic's servers, and is always left out.
        let header = json!([{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"}]);
        let begun = json!([user, {"role": "assistant", "content": "It is"}]);
        let body = translated(&json!({"system": header, "messages": begun})).unwrap();
        assert_eq!(body["messages"].as_array().unwrap().len(), 2, "{body}");
    }

    #[test]
    fn a_value_that_would_have_an_effect_is_refused_and_others_are_not() {
        for (name, value) in [
            ("max_completion_tokens", json!(1)),
            ("logprobs", json!(1)),
            ("top_logprobs", json!(1)),
            ("n", json!(0)),
            ("add_generation_prompt", json!(false)),
            ("container", json!("c")),
        ] {
            let error = translated(&json!({name: value})).unwrap_err();
            assert_eq!((error.param.as_deref(), error.code), (Some(name), Some("unsupported_parameter")), "{value}");
        }
        for (name, value) in
            [("n", json!(1)), ("top_logprobs", json!(0)), ("logprobs", json!(false)), ("mcp_servers", json!([]))]
        {
            assert!(translated(&json!({name: value})).is_ok(), "{name}: {value}");
        }
    }

    #[test]
    fn a_parameter_under_two_names_is_refused_by_both() {
        let format = json!({"type": "json_schema", "schema": {}});
        let config = json!({"format": format});
        let one_call = json!({"type": "auto", "disable_parallel_tool_use": true});
        for (more, names) in [
            (json!({"stop_sequences": ["a"], "stop": ["b"]}), ["stop_sequences", "stop"]),
            (json!({"max_tokens": 3, "max_output_tokens": 4}), ["max_tokens", "max_output_tokens"]),
            (
                json!({"tool_choice": one_call, "parallel_tool_calls": true}),
                ["tool_choice.disable_parallel_tool_use", "parallel_tool_calls"],
            ),
            (json!({"output_config": config, "output_format": format}), ["output_format", "output_config.format"]),
            (json!({"output_config": config, "json_schema": {}}), ["output_config.format.schema", "json_schema"]),
            (json!({"output_format": format, "grammar": "root ::= \"a\""}), ["output_format.schema", "grammar"]),
        ] {
            let error = translated(&more).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(names[0])), "{more}: {error}");
            assert!(names.iter().all(|name| error.message.contains(&format!("`{name}`"))), "{error}");
        }
    }

    #[test]
    fn all_of_a_document_that_can_be_read_is_read() {
        let document = json!({"type": "document", "title": "A", "context": "B",
            "source": {"type": "text", "media_type": "text/plain", "data": "C"}});
        let body = translated(&json!({"messages": [{"role": "user", "content": [document]}]})).unwrap();
        assert_eq!(body["messages"][0]["content"], "A\nB\nC");
    }

    #[test]
    fn thoughts_that_follow_one_another_are_lines_of_one() {
        let thought = json!({"type": "thinking", "thinking": "hm"});
        let thoughts = json!({"role": "assistant", "content": vec![thought; 1024]});
        let messages = json!([{"role": "user", "content": "Hello"}, thoughts, thoughts]);
        let body = translated(&json!({"messages": messages})).unwrap();
        assert_eq!(body["messages"][1]["reasoning_content"], vec!["hm"; 2048].join("\n"));
    }
}
