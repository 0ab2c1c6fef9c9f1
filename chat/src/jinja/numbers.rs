//! Conversions of numbers, as Python does them.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::python;

/// The number that a boolean stands for: 0 or 1. `None` for values of other types.
pub(super) fn truth(value: &Value) -> Option<i64> {
    (value.kind() == ValueKind::Bool).then(|| i64::from(value.is_true()))
}

/// Python's `float`, for a text.
pub(super) fn float_of(text: &str) -> Option<f64> {
    let text = text.trim_matches(python::is_space);
    without_underscores(text)?.parse().ok()
}

/// Python's `int`, for a text.
pub(super) fn integer_of(text: &str, base: i64) -> Option<Value> {
    let text = without_underscores(text.trim_matches(python::is_space))?.to_lowercase();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, of)| {
        let digits = digits.strip_prefix(prefix).filter(|_| base == of || base == 0)?;
        Some((digits, of))
    });
    let (digits, base) = prefixed.unwrap_or((digits, if base == 0 { 10 } else { base }));
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    i128::from_str_radix(&format!("{sign}{digits}"), base).ok().map(Value::from)
}

/// Removes the underscores between digits. `None` if an underscore stands anywhere else.
fn without_underscores(text: &str) -> Option<String> {
    let is_wrong = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!is_wrong).then(|| text.replace('_', ""))
}

/// A number without its fraction.
pub(super) fn whole(float: f64) -> Option<Value> {
    // Floats above this cannot be converted exactly, so `int` refuses them here.
    (float.is_finite() && float.abs() < 1e38).then(|| Value::from(float.trunc() as i128))
}
