//! Texts that are marked as HTML (`safe`, `escape`): transformers escapes nothing by itself, but what such a text is joined with.

use minijinja::{Error, Value};

use super::meter::Meter;

/// A text, marked as HTML where the one it comes from is.
pub(super) fn like(of: &Value, text: String) -> Value {
    match of.is_safe() {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    }
}

/// As markupsafe escapes.
pub(super) fn escaped(meter: &Meter, text: &str) -> Result<String, Error> {
    let grows = text.bytes().filter(|byte| b"&<>'\"".contains(byte)).count();
    meter.makes(text.len().saturating_add(4 * grows))?;
    let mut out = String::with_capacity(text.len() + 4 * grows);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// What a method of a text that is marked as HTML makes, is.
pub(super) fn marked(of: &Value, made: Value) -> Value {
    match made.as_str() {
        Some(text) if of.is_safe() && !made.is_safe() => Value::from_safe_string(text.to_owned()),
        _ => made,
    }
}

/// The texts that a method puts into one that is marked as HTML.
pub(super) fn escaped_all(
    meter: &Meter,
    method: &str,
    arguments: &[Value],
) -> Result<Vec<Value>, Error> {
    let one = |value: &Value| match value.as_str() {
        Some(text) if !value.is_safe() => escaped(meter, text).map(Value::from),
        _ => Ok(value.clone()),
    };
    match (method, arguments) {
        ("replace", _) => arguments.iter().map(one).collect(),
        ("join", [items]) => {
            let items: Result<Vec<Value>, Error> =
                items.try_iter()?.map(|item| one(&item)).collect();
            Ok(vec![items?.into()])
        }
        _ => Ok(arguments.to_vec()),
    }
}
