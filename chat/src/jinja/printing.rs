//! Prints values as Python does: `str`, `repr`, and joined texts.

use std::fmt::Write as _;

use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::characters;
use super::fault::failed;
use super::kept::{is_dict, kept, pay, walk};
use super::source::{SUM, TEXT};

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&text_of(state, value)?)?),
    });
    environment.add_filter("string", text_filter);
    environment.add_filter(TEXT, unmarked);
    environment.add_function(SUM, sum);
}

/// Python's `+`, with one or more operands. Some templates mark texts as HTML by mistake. A marked text then escapes
/// the texts that are added to it, as in transformers.
fn sum(state: &State, values: Rest<Value>) -> Result<Value, Error> {
    let Some(texts) = values.iter().map(Value::as_str).collect::<Option<Vec<&str>>>() else {
        let mut values = values.0.into_iter();
        let first = values.next().unwrap_or_default();
        return values.try_fold(first, |sum, value| plain_sum(state, sum, value));
    };
    let is_safe = values.iter().any(Value::is_safe);
    let mut out = String::new();
    for (value, text) in values.iter().zip(texts) {
        pay(state, text.len())?;
        match is_safe && !value.is_safe() {
            true => out.push_str(&escaped(state, text)?),
            false => out.push_str(text),
        }
    }
    Ok(marked_as(is_safe, out))
}

/// The sum by minijinja's own operator.
fn plain_sum(state: &State, left: Value, right: Value) -> Result<Value, Error> {
    let sum = state.env().compile_expression("left + right")?.eval(minijinja::context! { left, right });
    // The error's line would be that of this expression.
    sum.map_err(|error| match error.detail() {
        Some(detail) => failed(detail.to_owned()),
        None => error,
    })
}

/// A text as a value that is marked as HTML, or not.
pub(super) fn marked_as(is_safe: bool, text: String) -> Value {
    match is_safe {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    }
}

/// The operands of `~` are not marked, and neither is its result.
fn unmarked(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String if !value.is_safe() => kept(state, value),
        _ => Ok(text_of(state, &value)?.into()),
    }
}

fn text_filter(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => kept(state, value),
        _ => Ok(text_of(state, &value)?.into()),
    }
}

/// Escapes a text as markupsafe does.
pub(super) fn escaped(state: &State, text: &str) -> Result<String, Error> {
    pay(state, text.len().saturating_mul(5))?;
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    Ok(text.replace('\'', "&#39;").replace('"', "&#34;"))
}

/// Python's `str`.
pub(super) fn text_of(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) || is_dict(value) {
        walk(state, value, 0)?;
    }
    if !value.is_undefined() {
        repr(value, &mut out)?;
    }
    Ok(out)
}

/// Python's `repr`.
pub(super) fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if is_tuple { '(' } else { '[' });
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, out)?;
            }
            out.push_str(if is_tuple && value.len() == Some(1) { "," } else { "" });
            out.push(if is_tuple { ')' } else { ']' });
        }
        // In minijinja, macros and loops are maps too. But they are not printed as maps.
        ValueKind::Map if is_dict(value) => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            repr_text(value.as_str().unwrap_or_default(), out);
            out.push(')');
        }
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// Python's `repr`, for a text. The text is written in single quotes. If it contains single but no double quotes, it is
/// written in double quotes. Characters that cannot be printed are escaped.
fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if characters::is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..0x100 => write!(out, "\\x{code:02x}"),
                    0x100..0x1_0000 => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `repr`, for a number. A float has the fewest digits that distinguish it from other floats. It has an
/// exponent if it is below 1e-4, or at least 1e16.
pub(super) fn number(value: &Value) -> String {
    let float = match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float,
        _ => return value.to_string(),
    };
    if !float.is_finite() {
        return float.to_string().to_lowercase();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || float == 0.0 {
        let plain = format!("{float}");
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
