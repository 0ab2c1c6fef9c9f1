//! The form that a request demands of a text. Several parameters can set it: OpenAI's `response_format`, vLLM's
//! `structured_outputs` and `guided_*`, llama-server's `grammar` and `json_schema`.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::reading::{self, Body, List};
use autoplace::generate::Constraint;

/// Maximum number of choices in a list.
const MAX_CHOICES: usize = 4096;

/// vLLM's parameter `structured_outputs`.
#[derive(Debug, Deserialize)]
struct StructuredOutputs<'a> {
    #[serde(borrow)]
    json: Option<&'a RawValue>,
    regex: Option<String>,
    #[serde(borrow)]
    choice: Option<&'a RawValue>,
    grammar: Option<String>,
    json_object: Option<bool>,
    #[serde(borrow)]
    structural_tag: Option<&'a RawValue>,
    whitespace_pattern: Option<String>,
    disable_additional_properties: Option<bool>,
}

/// The constraint that a request sets, and the parameter that sets it.
///
/// # Errors
///
/// Status 400 if two parameters set different forms. Of llama-server's own two parameters, `grammar` takes precedence.
pub(super) fn read(body: &Body<'_>) -> Result<Option<(&'static str, Constraint)>, ApiError> {
    let mut forms: Vec<(&'static str, Constraint)> = Vec::new();
    forms.extend(response_format(body)?.map(|constraint| ("response_format", constraint)));
    let structured = structured_outputs(body)?;
    forms.extend(structured.map(|constraint| ("structured_outputs", constraint)));
    forms.extend(guided(body)?);
    forms.extend(own(body)?);
    if let [(first, _), (second, _), ..] = &forms[..] {
        let message = format!("`{second}` is given in addition to `{first}`: use one of them");
        return Err(ApiError::invalid(*second, message));
    }
    let is_open = is_open(body)?;
    Ok(forms.pop().map(|(name, form)| (name, if is_open { form.open_objects() } else { form })))
}

/// Whether objects may have properties that the schema does not name, as JSON Schema allows. They may if
/// `disable_additional_properties` is `false`, either in the request or in its `structured_outputs`.
pub(super) fn is_open(body: &Body<'_>) -> Result<bool, ApiError> {
    const NAME: &str = "disable_additional_properties";
    let of_all: Option<bool> = body.read(NAME)?;
    let within = read_structured(body)?.and_then(|outputs| outputs.disable_additional_properties);
    if let (Some(of_all), Some(within)) = (of_all, within)
        && of_all != within
    {
        return Err(ApiError::given_twice("structured_outputs.disable_additional_properties", NAME));
    }
    Ok(of_all.or(within) == Some(false))
}

fn response_format(body: &Body<'_>) -> Result<Option<Constraint>, ApiError> {
    let mut form: Value = body.tree::<Map<_, _>>("response_format")?.unwrap_or_default().into();
    // Clients of llama-cpp-python send the type `json_object`, and put the schema into the second of these places.
    let places = [("/json_schema/schema", "response_format.json_schema.schema"), ("/schema", "response_format.schema")];
    let [first, second] =
        places.map(|(at, _)| form.pointer_mut(at).map(Value::take).filter(|schema| !schema.is_null()));
    let [(_, first_place), (_, second_place)] = places;
    let schema = match (first, second) {
        (Some(first), Some(second)) if first != second => {
            return Err(ApiError::given_twice(second_place, first_place));
        }
        (Some(schema), _) => Some(Constraint::json_schema(schema).at(first_place)),
        (None, second) => second.map(|schema| Constraint::json_schema(schema).at(second_place)),
    };
    Ok(match (form["type"].as_str(), schema) {
        (Some("text"), _) => None,
        (None, None) if form["type"].is_null() => None,
        (Some("json_object" | "json_schema"), Some(schema)) => Some(schema),
        (Some("json_object"), None) => Some(Constraint::json_object().at("response_format")),
        _ => {
            let can_be = "use `text`, `json_object`, or `json_schema` with its schema";
            let message = format!("`response_format` of type {}: {can_be}", form["type"]);
            return Err(ApiError::invalid("response_format", message));
        }
    })
}

fn read_structured<'a>(body: &Body<'a>) -> Result<Option<StructuredOutputs<'a>>, ApiError> {
    body.read("structured_outputs")
}

fn structured_outputs(body: &Body<'_>) -> Result<Option<Constraint>, ApiError> {
    let Some(asked) = read_structured(body)? else { return Ok(None) };
    for (name, is_given) in [
        ("structural_tag", asked.structural_tag.is_some_and(|tag| tag.get() != "null")),
        ("whitespace_pattern", asked.whitespace_pattern.is_some()),
    ] {
        if is_given {
            let place = format!("structured_outputs.{name}");
            return Err(ApiError::unsupported(&place, format!("`{place}` is not supported")));
        }
    }
    let mut forms = Vec::new();
    if let Some(json) = asked.json.filter(|json| json.get() != "null") {
        forms.push(schema(body, json, "structured_outputs.json")?);
    }
    forms.extend(asked.regex.map(Constraint::regex));
    if let Some(choice) = asked.choice.filter(|choice| choice.get() != "null") {
        forms.push(choices(choice, "structured_outputs.choice")?);
    }
    if let Some(text) = asked.grammar.filter(|grammar| !grammar.is_empty()) {
        forms.push(Constraint::grammar(text));
    }
    if asked.json_object == Some(true) {
        forms.push(Constraint::json_object().at("structured_outputs.json_object"));
    }
    if forms.len() > 1 {
        let message = "`structured_outputs` has several forms: use one of them";
        return Err(ApiError::invalid("structured_outputs", message));
    }
    Ok(forms.pop())
}

/// Parameters that vLLM had before version 0.12.
fn guided(body: &Body<'_>) -> Result<Vec<(&'static str, Constraint)>, ApiError> {
    let mut forms = Vec::new();
    if let Some(json) = body.get("guided_json") {
        forms.push(("guided_json", schema(body, json, "guided_json")?));
    }
    if let Some(regex) = body.read::<String>("guided_regex")? {
        forms.push(("guided_regex", Constraint::regex(regex)));
    }
    if let Some(choice) = body.get("guided_choice") {
        forms.push(("guided_choice", choices(choice, "guided_choice")?));
    }
    if let Some(text) = body.read::<String>("guided_grammar")? {
        forms.push(("guided_grammar", Constraint::grammar(text)));
    }
    Ok(forms)
}

/// llama-server's parameters.
fn own(body: &Body<'_>) -> Result<Option<(&'static str, Constraint)>, ApiError> {
    if let Some(text) = body.read::<String>("grammar")?.filter(|text| !text.is_empty()) {
        return Ok(Some(("grammar", Constraint::grammar(text))));
    }
    let Some(given) = body.get("json_schema") else { return Ok(None) };
    Ok(Some(("json_schema", schema(body, given, "json_schema")?)))
}

/// The constraint that a schema expresses. `given` is the schema itself, or a string with its JSON.
fn schema(body: &Body<'_>, given: &RawValue, place: &str) -> Result<Constraint, ApiError> {
    let schema: Value = if reading::is_text(given) {
        let text: String = reading::value(given, place)?;
        body.count(&text, place)?;
        serde_json::from_str(&text)
            .map_err(|error| ApiError::invalid(place, format!("{place}: not valid JSON: {error}")))?
    } else {
        body.count(given.get(), place)?;
        reading::value(given, place)?
    };
    Ok(Constraint::json_schema(schema).at(place))
}

fn choices(given: &RawValue, place: &str) -> Result<Constraint, ApiError> {
    let List::<String, MAX_CHOICES>(choices) = reading::value(given, place)?;
    Ok(Constraint::choices(choices))
}
