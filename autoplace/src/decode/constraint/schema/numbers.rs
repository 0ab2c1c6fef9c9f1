//! The numbers in a schema. Their bounds are changed so that they hold even after a parser has rounded a number to a
//! double.

use serde_json::{Map, Value};

use super::subschemas::{ANNOTATIONS, APPLICATORS, is_in};

/// The largest integer up to which a double represents every integer (JavaScript's `Number.MAX_SAFE_INTEGER`).
pub(super) const MAX_INTEGER: f64 = 9_007_199_254_740_991.0;

/// The smallest number that is allowed if numbers must be above 0.
const MIN_ABOVE_ZERO: f64 = 1e-15;

/// Bounds every number to the exact range of a double, and tightens exclusive bounds so that they hold after parsing.
/// For example, 0.99999999999999999999 is below 1 but is parsed as 1.
pub(super) fn bound_all(members: &mut Map<String, Value>) -> Result<(), String> {
    let allowed = match members.get("type") {
        Some(Value::String(name)) => is_number(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(is_number),
        _ => true,
    };
    if !allowed {
        return Ok(());
    }
    let above = bound(members, "minimum", "exclusiveMinimum", just_above, f64::max)?;
    let below = bound(members, "maximum", "exclusiveMaximum", just_below, f64::min)?;
    let above = above.unwrap_or(-MAX_INTEGER).max(-MAX_INTEGER);
    let below = below.unwrap_or(MAX_INTEGER).min(MAX_INTEGER);
    members.insert("minimum".to_owned(), above.into());
    members.insert("maximum".to_owned(), below.into());
    if above < 0.0 && below >= 0.0 {
        without_minus_zero(members);
    }
    Ok(())
}

/// Splits integers into negative and non-negative integers. Otherwise llguidance would allow `-0`, which is not parsed
/// as an integer.
fn without_minus_zero(members: &mut Map<String, Value>) {
    let types = match members.get("type") {
        Some(Value::String(name)) => vec![Value::from(name.as_str())],
        Some(Value::Array(names)) => names.clone(),
        _ => return,
    };
    let has = |name: &str| types.iter().any(|kind| kind == name);
    let is_applied = APPLICATORS.split(' ').any(|keyword| members.contains_key(keyword));
    if !has("integer") || has("number") || is_applied {
        return;
    }
    let (said, others): (Map<_, _>, Map<_, _>) =
        std::mem::take(members).into_iter().partition(|(keyword, _)| !is_in(ANNOTATIONS, keyword));
    *members = others;
    let option = |types: Vec<Value>, bound: Option<(&str, i64)>| {
        let mut option = said.clone();
        option.insert("type".to_owned(), types.into());
        option.extend(bound.map(|(keyword, bound)| (keyword.to_owned(), bound.into())));
        Value::Object(option)
    };
    let mut options = vec![
        option(vec!["integer".into()], Some(("minimum", 0))),
        option(vec!["integer".into()], Some(("maximum", -1))),
    ];
    let rest: Vec<_> = types.iter().filter(|kind| *kind != "integer").cloned().collect();
    if !rest.is_empty() {
        options.push(option(rest, None));
    }
    members.insert("anyOf".to_owned(), options.into());
}

fn is_number(name: &str) -> bool {
    matches!(name, "number" | "integer")
}

/// The next number above `bound`, but not a number so close to 0 that it has hundreds of digits.
fn just_above(bound: f64) -> f64 {
    let next = bound.next_up();
    if next > 0.0 { next.max(MIN_ABOVE_ZERO) } else { next }
}

fn just_below(bound: f64) -> f64 {
    -just_above(-bound)
}

/// Combines the bounds of two keywords into one and removes the keywords.
fn bound(
    members: &mut Map<String, Value>,
    inclusive: &str,
    exclusive: &str,
    inside: fn(f64) -> f64,
    tighter: fn(f64, f64) -> f64,
) -> Result<Option<f64>, String> {
    let number = |keyword: &str, value: Value| value.as_f64().ok_or_else(|| format!("`{keyword}` is not a number"));
    let bound = members.remove(inclusive).map(|value| number(inclusive, value)).transpose()?;
    let excluded = match members.remove(exclusive) {
        // Draft 4 has a boolean here.
        Some(Value::Bool(excluded)) => bound.filter(|_| excluded),
        Some(value) => Some(number(exclusive, value)?),
        None => None,
    };
    let excluded = excluded.map(inside);
    Ok(match (bound, excluded) {
        (Some(one), Some(other)) => Some(tighter(one, other)),
        (one, other) => one.or(other),
    })
}

/// Refuses numbers that llguidance would change, and strings that need `\u`.
pub(super) fn exact(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) => {
            let fits = number.as_f64().is_some_and(|number| number.is_finite() && number.abs() <= MAX_INTEGER);
            if fits {
                return Ok(());
            }
            Err(format!("the number {number} is beyond {MAX_INTEGER}, the largest exact integer"))
        }
        Value::String(text) => written(text),
        Value::Array(items) => items.iter().try_for_each(exact),
        Value::Object(members) => {
            members.iter().try_for_each(|(name, value)| written(name).and_then(|()| exact(value)))
        }
        Value::Null | Value::Bool(_) => Ok(()),
    }
}

/// Refuses a text that needs `\u` in JSON, because llguidance would drop its control characters.
pub(super) fn written(text: &str) -> Result<(), String> {
    let is_unwritten = |c: &char| c.is_ascii_control() && !matches!(c, '\u{8}' | '\t' | '\n' | '\u{c}' | '\r');
    match text.chars().find(is_unwritten) {
        Some(c) => Err(format!("{text:?} has the control character U+{:04X}, which cannot be written", u32::from(c))),
        None => Ok(()),
    }
}
