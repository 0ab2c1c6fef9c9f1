//! Constraints on tool calls. During generation a grammar enforces them as far as a grammar can, and each finished call
//! is checked again.

use autoplace::chat::{ReplyFormat, Tool, ToolCall, ToolCallFormat};
use autoplace::generate::Constraint;
use serde_json::{Value, json};

use super::error::ApiError;
use super::message::Tools;

/// How to generate and parse an answer that may call tools.
pub(super) struct Plan {
    /// `None` means that the text is not constrained.
    pub(super) constraint: Option<Constraint>,
    pub(super) format: ReplyFormat,
    /// Whether the answer is either a call, or a text of the requested form. The answer's first character decides
    /// between the two.
    pub(super) is_either: bool,
    /// Whether reasoning may come before the answer.
    pub(super) may_think: bool,
    /// Keywords that are not enforced during generation: "tools[0].function.parameters.properties.tags: `uniqueItems`
    /// is not enforced".
    pub(super) unenforced: Vec<String>,
}

/// Chooses the constraint of an answer. `form` is the form that the request asks for. `own` is the call format of the
/// model's template. `is_open` says whether objects may have properties that the schema does not name.
///
/// # Errors
///
/// Status 400 for a required tool that does not exist, and for a `strict` tool whose schema cannot be enforced.
pub(super) fn plan(tools: &Tools, form: Option<Constraint>, own: ReplyFormat, is_open: bool) -> Result<Plan, ApiError> {
    for (number, tool, _) in tools.callable().filter(|(_, tool, is_strict)| *is_strict && tool.parameters.is_object()) {
        let place = format!("tools[{number}].function.parameters");
        let schema = Constraint::json_schema(tool.parameters.clone()).at(&place);
        let checked = if is_open { schema.open_objects().check() } else { schema.check() };
        checked.map_err(|error| ApiError::of_generation(&error, "messages"))?;
    }
    let forced =
        tools.choice.forced(&tools.typed, None).map_err(|error| ApiError::invalid("tool_choice", error.to_string()))?;
    let opened = |constraint: Constraint| if is_open { constraint.open_objects() } else { constraint };
    Ok(match (forced, form) {
        (Some((constraint, format)), _) => Plan {
            constraint: Some(opened(constraint)),
            format,
            is_either: false,
            may_think: false,
            unenforced: unenforced(tools),
        },
        (None, Some(form)) if tools.callable().next().is_some() => {
            let callable: Vec<Tool> = tools.callable().map(|(_, tool, _)| tool.clone()).collect();
            Plan {
                constraint: Some(opened(form.or_calls(&callable))),
                format: ReplyFormat::plain().with_tool_calls(ToolCallFormat::Hermes),
                is_either: true,
                may_think: false,
                unenforced: unenforced(tools),
            }
        }
        (None, Some(form)) => Plan {
            constraint: Some(form),
            format: ReplyFormat::plain(),
            is_either: false,
            may_think: false,
            unenforced: Vec::new(),
        },
        (None, None) => {
            let constraint = text_or_calls(tools, &own, opened)?;
            let unenforced = if constraint.is_some() { unenforced(tools) } else { Vec::new() };
            Plan { constraint, format: own, is_either: false, may_think: true, unenforced }
        }
    })
}

/// The constraint for an answer that may be free text, but whose calls must match their tools' schemas. `None` if no
/// tool is `strict` and all tools may be called, or if the model has no call format.
fn text_or_calls(
    tools: &Tools,
    own: &ReplyFormat,
    opened: impl Fn(Constraint) -> Constraint,
) -> Result<Option<Constraint>, ApiError> {
    let called: Vec<(&Tool, bool)> = tools.callable().map(|(_, tool, is_strict)| (tool, is_strict)).collect();
    let some_strict = called.iter().any(|(_, is_strict)| *is_strict);
    let is_held = !called.is_empty() && (some_strict || tools.is_restricted());
    let Some(format) = own.tool_calls().filter(|_| is_held) else { return Ok(None) };
    let constraint = opened(Constraint::text_or_calls(format, &called));
    constraint.check().map_err(|error| {
        let mut refused = ApiError::of_generation(&error, "messages");
        if refused.param.as_deref() == Some("response_format") {
            // The fault concerns the tools as a whole.
            refused.param = Some("tools".to_owned());
        }
        refused
    })?;
    Ok(Some(constraint))
}

/// The keywords in the tools' schemas that are not enforced during generation, with their places in the request.
fn unenforced(tools: &Tools) -> Vec<String> {
    let of_one = |(number, tool, _): (usize, &Tool, bool)| {
        let (_, left_out) = match tool.parameters.is_object() {
            true => Constraint::enforceable(&tool.parameters),
            false => (Value::Null, Vec::new()),
        };
        let place = format!("tools[{number}].function.parameters");
        left_out.into_iter().map(move |keyword| match keyword.place.is_empty() {
            true => format!("{place}: {}", keyword.reason),
            false => format!("{place}.{}: {}", keyword.place, keyword.reason),
        })
    };
    tools.callable().flat_map(of_one).collect()
}

/// Checks each finished call against the whole schema of its tool.
#[derive(Debug, Clone, Default)]
pub(super) struct CallCheck {
    tools: Vec<(Tool, bool)>,
}

impl CallCheck {
    pub(super) fn new(tools: &Tools) -> Self {
        Self { tools: tools.typed.iter().cloned().zip(tools.strict.iter().copied()).collect() }
    }

    /// The way in which a call's arguments violate its tool's schema, and whether the tool is `strict`. `None` if they
    /// are valid, if the tool does not exist or has no valid schema, or if a limit cut the arguments short.
    pub(super) fn violation(&self, call: &ToolCall) -> Option<(String, bool)> {
        let (tool, is_strict) = self.tools.iter().find(|(tool, _)| tool.name == call.name)?;
        if !call.arguments.is_object() {
            // Arguments that a limit cut short are a string.
            return None;
        }
        let schema = match &tool.parameters {
            Value::Object(_) => without_nulls(&tool.parameters),
            _ => json!({}),
        };
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).ok()?;
        let error = validator.validate(&call.arguments).err()?;
        let at = error.instance_path().to_string();
        Some((format!("{}: arguments{at}: {error}", call.name), *is_strict))
    }
}

/// Removes keywords with the value `null`, which count as absent.
fn without_nulls(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, value)| {
                !value.is_null() || matches!(name.as_str(), "const" | "default" | "example" | "examples")
            });
            let cleaned = kept.map(|(name, value)| {
                let is_data = matches!(name.as_str(), "const" | "default" | "enum" | "example" | "examples");
                (name.clone(), if is_data { value.clone() } else { without_nulls(value) })
            });
            Value::Object(cleaned.collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tool `book` with these parameters, and the tool `free` without a schema.
    fn check(parameters: Value, is_strict: bool) -> CallCheck {
        let tool = |name: &str, parameters| Tool { name: name.to_owned(), description: String::new(), parameters };
        CallCheck { tools: vec![(tool("book", parameters), is_strict), (tool("free", Value::Null), false)] }
    }

    fn call(name: &str, arguments: Value) -> ToolCall {
        ToolCall { id: None, name: name.to_owned(), arguments }
    }

    #[test]
    fn finished_arguments_are_checked_against_the_keywords_that_no_grammar_follows() {
        let seats = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
        let schema = json!({"type": "object", "properties": {"seats": seats, "day": {"type": "string", "format": "date"}},
            "if": {"required": ["day"]}, "then": {"required": ["seats"]}});
        for is_strict in [false, true] {
            let check = check(schema.clone(), is_strict);
            let of = |arguments: Value| check.violation(&call("book", arguments));
            for valid in [json!({}), json!({"seats": [1, 2]}), json!({"day": "2024-02-29", "seats": []})] {
                assert_eq!(of(valid), None);
            }
            for (invalid, begin) in [
                (json!({"seats": [3, 3]}), "book: arguments/seats: "),
                (json!({"day": "2023-02-29", "seats": []}), "book: arguments/day: "),
                (json!({"day": "2024-02-29"}), "book: arguments: "),
            ] {
                let (said, of_strict) = of(invalid).expect("it is not valid");
                assert!(said.starts_with(begin), "{said}");
                assert_eq!(of_strict, is_strict);
            }
        }
    }

    #[test]
    fn calls_without_a_schema_to_check_have_no_violation() {
        let check = check(json!({"type": "object", "required": ["a"]}), true);
        // Arguments that a limit cut short are a text and not an object.
        assert_eq!(check.violation(&call("book", json!("{\"a\": "))), None);
        assert_eq!(check.violation(&call("free", json!({"anything": 1}))), None);
        assert_eq!(check.violation(&call("unknown", json!({}))), None);
        assert!(check.violation(&call("book", json!({}))).is_some());
    }

    #[test]
    fn a_keyword_that_is_null_counts_as_absent_and_data_stays_as_it_is() {
        let schema = json!({"type": "object", "required": null, "properties": {
            "kind": {"const": null}, "level": {"enum": [null, 1], "minimum": null}}});
        let check = check(schema, false);
        let is_valid = |arguments: Value| check.violation(&call("book", arguments)).is_none();
        assert!(is_valid(json!({})) && is_valid(json!({"kind": null, "level": null})) && is_valid(json!({"level": 1})));
        assert!(!is_valid(json!({"kind": 1})) && !is_valid(json!({"level": 2})));
    }
}
