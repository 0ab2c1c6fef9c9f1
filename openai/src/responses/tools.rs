//! The tools of a request, and the choice among them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::reading::{self, Body, List};
use crate::translation::{ChatFunction, ChatWriter};

/// Maximum number of tools in a request.
const MAX_TOOLS: usize = 4096;

#[derive(Debug, Deserialize)]
struct ToolBody<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    description: Option<Cow<'a, str>>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
    strict: Option<bool>,
}

/// A `tool_choice` that is an object.
#[derive(Debug, Deserialize)]
struct ChoiceBody {
    r#type: String,
    name: Option<String>,
    mode: Option<String>,
    #[serde(default)]
    tools: Vec<AllowedTool>,
}

#[derive(Debug, Deserialize)]
struct AllowedTool {
    r#type: Option<String>,
    name: Option<String>,
}

/// Which tools the model may or must call, according to the request.
enum Choice {
    Mode(String),
    Function(String),
    /// Only some of the tools, with a mode.
    Allowed(Vec<String>, String),
}

/// Adds the tools of a request to the chat. The prompt shows all functions, including those that may not be called.
pub(super) fn write<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<(), ApiError> {
    let choice = choice(body)?;
    if let Some(given) = body.get("tools") {
        let List::<ToolBody<'a>, MAX_TOOLS>(tools) = reading::value(given, "tools")?;
        for (index, tool) in tools.into_iter().enumerate() {
            let place = format!("tools[{index}]");
            let ToolBody { r#type: kind, name, description, parameters, strict } = tool;
            if kind != "function" {
                writer.leave_out(format!("{place}: tools of type `{kind}` are not supported"));
                continue;
            }
            let name = name.ok_or_else(|| ApiError::missing(&place, "name"))?;
            writer.tool(ChatFunction { name, description, parameters, strict }, place, "parameters");
        }
    }
    let no_tool = |place: &str, what: String| Err(ApiError::invalid(place, format!("{place}: {what}")));
    let nothing_to_call = || {
        let what = "a tool must be called, but there is no function that may be called".to_owned();
        no_tool("tool_choice", what)
    };
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    match choice {
        Choice::Mode(mode) if mode == "required" && !writer.has_tools() => return nothing_to_call(),
        Choice::Mode(mode) if writer.has_tools() => writer.set("tool_choice", "tool_choice", mode),
        Choice::Allowed(_, mode) if mode == "none" => writer.set("tool_choice", "tool_choice", mode),
        Choice::Allowed(names, mode) => {
            if mode == "required" && !names.iter().any(|name| writer.has_tool(name)) {
                return nothing_to_call();
            }
            let tools: Vec<Value> = names.iter().map(|name| function(name)).collect();
            let allowed = json!({"mode": mode, "tools": tools});
            writer.set("tool_choice", "tool_choice", json!({"type": "allowed_tools", "allowed_tools": allowed}));
        }
        Choice::Function(name) if !writer.has_tool(&name) => {
            return no_tool("tool_choice.name", format!("there is no function `{name}`"));
        }
        Choice::Function(name) => writer.set("tool_choice", "tool_choice", function(&name)),
        Choice::Mode(_) => {}
    }
    Ok(())
}

fn choice(body: &Body<'_>) -> Result<Choice, ApiError> {
    const PLACE: &str = "tool_choice";
    let mode = |mode: String, place: &str| match &*mode {
        "auto" | "none" | "required" => Ok(mode),
        other => Err(ApiError::invalid(place, format!("{place} is `{other}`: use `auto`, `none` or `required`"))),
    };
    let Some(given) = body.get(PLACE) else { return Ok(Choice::Mode("auto".to_owned())) };
    if reading::is_text(given) {
        return Ok(Choice::Mode(mode(reading::value(given, PLACE)?, PLACE)?));
    }
    let choice: ChoiceBody = body.counted(given, PLACE)?;
    match (&*choice.r#type, choice.name) {
        ("function", Some(name)) => Ok(Choice::Function(name)),
        ("function", None) => Err(ApiError::invalid("tool_choice.name", "`tool_choice.name` is missing")),
        ("allowed_tools", _) => {
            let functions =
                choice.tools.into_iter().filter(|tool| tool.r#type.as_deref().unwrap_or("function") == "function");
            let names = functions.filter_map(|tool| tool.name).collect();
            let of_all = choice.mode.unwrap_or_else(|| "auto".to_owned());
            Ok(Choice::Allowed(names, mode(of_all, "tool_choice.mode")?))
        }
        (kind, _) => {
            let message = format!("tool_choice: tools of type `{kind}` are not supported, but one must be called");
            Err(ApiError::unsupported(PLACE, message))
        }
    }
}
