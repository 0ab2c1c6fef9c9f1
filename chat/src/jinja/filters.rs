//! jinja2's filters and tests that minijinja has otherwise or not at all, and those that make much of little.

use std::sync::Arc;

use minijinja::filters::{batch, items, slice};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::fault::failed;
use super::functions::printf;
use super::json::Dumps;
use super::markup::{escaped, like};
use super::meter::{BYTES_PER_VALUE, Meter, is_dict};
use super::operators::whole_of;
use super::printing::text_of;
use super::sequences::{check_iterable, collected};

/// As wide as anything is padded: no way to make much of little.
const MOST_WIDE: usize = 10_000;

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let of = Arc::clone(meter);
    environment.add_filter(
        "tojson",
        move |value: &Value, arguments: Rest<Value>, named: Kwargs| {
            let dumped = Dumps::of(&arguments, &named)?.dump(value, &of)?;
            named.assert_all_used()?;
            Ok::<_, Error>(dumped)
        },
    );
    let of = Arc::clone(meter);
    environment.add_filter("string", move |value: &Value| text_of(&of, value));
    let of = Arc::clone(meter);
    environment.add_filter(
        "join",
        move |items: &Value, separator: Option<Value>, named: Kwargs| {
            let separator = match separator {
                Some(separator) => Some(separator),
                None => named.get::<Option<Value>>("d")?,
            };
            let separator = separator.map_or_else(|| Ok(String::new()), |it| text_of(&of, &it))?;
            let attribute = named.get::<Option<Value>>("attribute")?;
            named.assert_all_used()?;
            join(&of, items, &separator, attribute.as_ref())
        },
    );
    let of = Arc::clone(meter);
    environment.add_filter(
        "replace",
        move |text: &Value, old: &Value, new: &Value, count: Option<i64>| {
            let (text, old, new) = (text_of(&of, text)?, text_of(&of, old)?, text_of(&of, new)?);
            replace(&of, &text, &old, &new, count)
        },
    );
    let of = Arc::clone(meter);
    environment.add_filter("format", move |text: &str, arguments: Rest<Value>| {
        printf(&of, text, &arguments)
    });
    let of = Arc::clone(meter);
    environment.add_filter(
        "indent",
        move |text: &Value,
              width: Option<Value>,
              first: Option<bool>,
              blank: Option<bool>,
              named: Kwargs| {
            let width =
                width.map_or_else(|| named.get::<Option<Value>>("width"), |it| Ok(Some(it)))?;
            let first =
                first.map_or_else(|| named.get::<Option<bool>>("first"), |it| Ok(Some(it)))?;
            let blank =
                blank.map_or_else(|| named.get::<Option<bool>>("blank"), |it| Ok(Some(it)))?;
            named.assert_all_used()?;
            let with = match width {
                Some(with) if with.as_str().is_some() => {
                    with.as_str().unwrap_or_default().to_owned()
                }
                Some(width) => " ".repeat(wide(i64::try_from(width)?)?),
                None => " ".repeat(4),
            };
            let first = first.unwrap_or(false);
            let Some(text) = text.as_str() else {
                return Err(failed(format!("indent: a {} is no text", text.kind())));
            };
            indent(&of, text, &with, first, blank.unwrap_or(false))
        },
    );
    let of = Arc::clone(meter);
    environment.add_filter(
        "batch",
        move |state: &State, value: Value, count: usize, fill: Option<Value>| {
            batch(state, value, counted(&of, count)?, fill)
        },
    );
    let of = Arc::clone(meter);
    environment.add_filter(
        "slice",
        move |state: &State, value: Value, count: usize, fill: Option<Value>| {
            slice(state, value, counted(&of, count)?, fill)
        },
    );
    let of = Arc::clone(meter);
    environment.add_filter("center", move |text: &Value, width: Option<i64>| {
        let (text, width) = (text_of(&of, text)?, wide(width.unwrap_or(80))?);
        of.makes(width)?;
        Ok::<_, Error>(center(&text, width))
    });
    let of = Arc::clone(meter);
    environment.add_filter("list", move |value: &Value| match value.kind() {
        // jinja2 has none of these.
        ValueKind::None | ValueKind::Bool | ValueKind::Number => Err(failed("it is not iterable")),
        _ => collected(&of, value),
    });
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.kind() {
            ValueKind::Undefined => Ok(0),
            ValueKind::Iterable => Err(failed("object of type 'generator' has no len()")),
            _ => value
                .len()
                .ok_or_else(|| failed(format!("a {} has no len()", value.kind()))),
        });
    }
    for name in ["e", "escape", "forceescape"] {
        let of = Arc::clone(meter);
        environment.add_filter(name, move |value: &Value| {
            match value.is_safe() && name != "forceescape" {
                true => Ok(value.clone()),
                false => Ok::<_, Error>(Value::from_safe_string(escaped(
                    &of,
                    &text_of(&of, value)?,
                )?)),
            }
        });
    }
    let of = Arc::clone(meter);
    environment.add_filter("trim", move |value: &Value, chars: Option<&str>| {
        let text = text_of(&of, value)?;
        let trimmed = match chars {
            Some(chars) => text.trim_matches(|c| chars.contains(c)),
            None => text.trim(),
        };
        Ok::<_, Error>(like(value, trimmed.to_owned()))
    });
    let of = Arc::clone(meter);
    environment.add_filter("wordcount", move |value: &Value| {
        let text = text_of(&of, value)?;
        let words = text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty());
        Ok::<_, Error>(words.count())
    });
    environment.add_filter("attr", |value: &Value, name: &str| match value.kind() {
        // Of a dict, only its methods are attributes.
        ValueKind::Map if is_dict(value) => Ok(Value::UNDEFINED),
        _ => value.get_attr(name),
    });
    environment.add_filter("items", |value: &Value| match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => items(value),
    });
    environment.add_filter("int", int);
    environment.add_filter("float", |value: &Value, default: Option<Value>| {
        check_defined(value)?;
        let default = || default.unwrap_or_else(|| Value::from(0.0));
        Ok::<_, Error>(float(value).map_or_else(default, Value::from))
    });
    environment.add_filter("round", round);
    // Not jinja2's, and they make lists whose length nobody knows; and what prints otherwise than in Python.
    for name in ["zip", "chain", "lines", "pprint"] {
        environment.remove_filter(name);
    }
}

fn wide(width: i64) -> Result<usize, Error> {
    usize::try_from(width.max(0))
        .ok()
        .filter(|width| *width <= MOST_WIDE)
        .ok_or_else(|| failed(format!("a width of {width}, over {MOST_WIDE}")))
}

/// A list of so many is made. Counted at once: `map` does it for every item before anything is counted.
fn counted(meter: &Meter, count: usize) -> Result<usize, Error> {
    let count = wide(i64::try_from(count).unwrap_or(i64::MAX))?;
    meter.makes(count.saturating_mul(BYTES_PER_VALUE))?;
    Ok(count)
}

fn join(
    meter: &Meter,
    items: &Value,
    separator: &str,
    attribute: Option<&Value>,
) -> Result<String, Error> {
    check_iterable(items)?;
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let item = match attribute {
            Some(attribute) => attribute_of(&item, attribute)?,
            None => item,
        };
        if index > 0 {
            meter.makes(separator.len())?;
            out.push_str(separator);
        }
        out.push_str(&text_of(meter, &item)?);
    }
    Ok(out)
}

/// `a.b` is `b` of `a`.
fn attribute_of(item: &Value, attribute: &Value) -> Result<Value, Error> {
    match attribute.as_str() {
        Some(path) => path
            .split('.')
            .try_fold(item.clone(), |value, name| value.get_attr(name)),
        None => item.get_item(attribute),
    }
}

/// Python's `str.replace`: of all, or of the first so many.
pub(super) fn replace(
    meter: &Meter,
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let most = count.map_or(usize::MAX, |count| {
        usize::try_from(count).unwrap_or(usize::MAX)
    });
    let found = text.matches(old).take(most).count();
    let grows = new.len().saturating_sub(old.len()).saturating_mul(found);
    meter.makes(text.len().saturating_add(grows))?;
    Ok(text.replacen(old, new, found))
}

/// jinja2's `do_indent`.
fn indent(
    meter: &Meter,
    text: &str,
    with: &str,
    first: bool,
    blank: bool,
) -> Result<String, Error> {
    let lines = text.matches('\n').count() + 1;
    meter.makes(text.len().saturating_add(lines.saturating_mul(with.len())))?;
    let mut out = String::new();
    // As jinja2 does, so that a last line that is empty is one.
    let text = format!("{text}\n");
    for (index, line) in text.lines().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let is_indented = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if is_indented {
            out.push_str(with);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// Python's `str.center`: what is left over goes to the left of an odd width.
pub(super) fn center(text: &str, width: usize) -> String {
    let length = text.chars().count();
    let padding = width.saturating_sub(length);
    let left = padding / 2 + (padding & width & 1);
    let right = padding - left;
    format!("{}{text}{}", " ".repeat(left), " ".repeat(right))
}

/// jinja2's `do_int`: what is no number is the default.
fn int(
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Value, Error> {
    let default =
        default.map_or_else(|| named.get::<Option<Value>>("default"), |it| Ok(Some(it)))?;
    check_defined(value)?;
    let base = base.map_or_else(|| named.get::<Option<u32>>("base"), |it| Ok(Some(it)))?;
    named.assert_all_used()?;
    Ok(int_of(value, base).unwrap_or_else(|| default.unwrap_or_else(|| Value::from(0))))
}

fn int_of(value: &Value, base: Option<u32>) -> Option<Value> {
    let whole = |float: f64| {
        float
            .is_finite()
            .then(|| Value::from(float.trunc() as i128))
    };
    if let Some(text) = value.as_str() {
        let text = text.trim().replace('_', "");
        let base = base.filter(|base| (2..=36).contains(base)).unwrap_or(10);
        let digits = match base {
            16 => text.trim_start_matches("0x"),
            8 => text.trim_start_matches("0o"),
            2 => text.trim_start_matches("0b"),
            _ => &text,
        };
        return match i128::from_str_radix(digits, base) {
            Ok(number) => Some(Value::from(number)),
            Err(_) => text.parse().ok().and_then(whole),
        };
    }
    match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => f64::try_from(value.clone()).ok().and_then(whole),
        _ => None,
    }
}

fn check_defined(value: &Value) -> Result<(), Error> {
    match value.is_undefined() {
        true => Err(failed("it is undefined")),
        false => Ok(()),
    }
}

fn float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    }
}

/// jinja2's `do_round`: halves to even, as Python's.
fn round(
    value: &Value,
    precision: Option<i32>,
    method: Option<String>,
    named: Kwargs,
) -> Result<Value, Error> {
    let precision =
        precision.map_or_else(|| named.get::<Option<i32>>("precision"), |it| Ok(Some(it)))?;
    let method = method.map_or_else(|| named.get::<Option<String>>("method"), |it| Ok(Some(it)))?;
    named.assert_all_used()?;
    let method = method.unwrap_or_else(|| "common".to_owned());
    let precision = precision.unwrap_or(0).clamp(-300, 300);
    if let (Some(whole), "common", 0..) = (whole_of(value), method.as_str(), precision) {
        return Ok(i64::try_from(whole).map_or_else(|_| value.clone(), Value::from));
    }
    let number = Some(value).filter(|value| value.as_str().is_none());
    let float = number
        .and_then(float)
        .ok_or_else(|| failed(format!("round: a {} is no number", value.kind())))?;
    let scale = 10f64.powi(precision);
    Ok(Value::from(match &*method {
        "ceil" => (float * scale).ceil() / scale,
        "floor" => (float * scale).floor() / scale,
        "common" if precision >= 0 => {
            // The decimal digits are rounded, and not a product.
            let digits = usize::try_from(precision).unwrap_or(0);
            format!("{float:.digits$}").parse().unwrap_or(float)
        }
        "common" => (float * scale).round_ties_even() / scale,
        _ => return Err(failed("method must be common, ceil or floor")),
    }))
}
