//! jinja2's filters and tests that minijinja has otherwise or not at all.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::json::Dumps;
use super::kept::pay;
use super::methods::{check_format, pad};
use super::printing::{escaped, text_of};
use super::source::PRINTF;

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", |state: &State, value: &Value, arguments: Rest<Value>, named: Kwargs| {
        let dumped = Dumps::of(&arguments, &named)?.dump(state, value)?;
        named.assert_all_used()?;
        Ok::<_, Error>(dumped)
    });
    environment.add_filter(PRINTF, |state: &State, text: &str, value: &Value| {
        match value.downcast_object_ref::<Tuple>() {
            Some(tuple) => printf(state, text, &tuple.iter().cloned().collect::<Vec<_>>()),
            None => printf(state, text, std::slice::from_ref(value)),
        }
    });
    environment
        .add_filter("format", |state: &State, text: &str, arguments: Rest<Value>| printf(state, text, &arguments));
    environment.add_filter("indent", indent);
    for name in ["e", "escape"] {
        environment.add_filter(name, move |state: &State, value: &Value| {
            Ok::<_, Error>(match value.is_safe() {
                true => value.clone(),
                false => Value::from_safe_string(escaped(state, &text_of(state, value)?)?),
            })
        });
    }
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_test("callable", |value: &Value| {
        let name = value.as_object().map_or("", |object| object.type_name());
        value.kind() == ValueKind::Plain || name.ends_with("Macro")
    });
    // Not jinja2's.
    for name in ["zip", "chain", "lines", "pprint", "split", "bool"] {
        environment.remove_filter(name);
    }
    for name in ["startingwith", "endingwith", "containing"] {
        environment.remove_test(name);
    }
}

/// Python's `%` of a text.
fn printf(state: &State, text: &str, arguments: &[Value]) -> Result<String, Error> {
    check_format(state, text, '%', arguments)?;
    format(FormatStyle::Printf, text, arguments)
}

/// jinja2's `do_indent`, whose width may be a text.
fn indent(state: &State, text: &str, arguments: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let argument = |index: usize, name: &str| match arguments.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => named.get::<Option<Value>>(name),
    };
    let with = match argument(0, "width")? {
        Some(with) if with.as_str().is_some() => text_of(state, &with)?,
        Some(width) => pad("", "ljust", usize::try_from(width)?, " ")?,
        None => "    ".to_owned(),
    };
    let is_set = |index, name| Ok::<_, Error>(argument(index, name)?.is_some_and(|value| value.is_true()));
    let (first, blank) = (is_set(1, "first")?, is_set(2, "blank")?);
    named.assert_all_used()?;
    let lines = text.matches('\n').count() + 1;
    pay(state, text.len().saturating_add(lines.saturating_mul(with.len())))?;
    let mut out = String::new();
    // As jinja2 does, so that a last line that is empty is one.
    for (index, line) in format!("{text}\n").lines().enumerate() {
        out.push_str(if index > 0 { "\n" } else { "" });
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if is_indented { &with } else { "" });
        out.push_str(line);
    }
    Ok(out)
}
