//! Python's methods: those that minijinja's own collection has, counted, and a few more.

use std::sync::Arc;

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::fault::failed;
use super::filters::{center, replace};
use super::functions::check_format;
use super::markup::{escaped_all, marked};
use super::meter::{BYTES_PER_VALUE, Meter};
use super::sequences::{check_iterable, collected, is_tuple};

/// As wide as anything is padded.
const MOST_WIDE: usize = 10_000;

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let meter = Arc::clone(meter);
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        for argument in arguments {
            meter.reads(argument)?;
        }
        if let Some(text) = value.as_str() {
            meter.reads(value)?;
            if let ("startswith" | "endswith", Some(part)) = (method, arguments.first())
                && part.kind() == ValueKind::Seq
                && !is_tuple(part)
            {
                return Err(failed(format!("{method} takes a text or a tuple of texts")));
            }
            if matches!(method, "split" | "rsplit" | "splitlines") {
                let separator = arguments
                    .first()
                    .and_then(Value::as_str)
                    .filter(|it| !it.is_empty());
                let parts = separator.map_or(text.len(), |it| text.matches(it).count() + 1);
                meter.makes(parts.saturating_mul(BYTES_PER_VALUE))?;
            }
            let escaped_too = match value.is_safe() {
                true => escaped_all(&meter, method, arguments)?,
                false => arguments.to_vec(),
            };
            if let Some(made) = text_method(&meter, text, method, &escaped_too)? {
                meter.value(&made)?;
                return Ok(marked(value, made));
            }
            if method == "format" {
                check_format(&meter, text, '{', arguments)?;
            }
        } else if value.kind() == ValueKind::Seq {
            meter.reads(value)?;
        }
        if let Some(made) = other_method(value, method, arguments)? {
            meter.value(&made)?;
            return Ok(made);
        }
        let made = unknown_method_callback(state, value, method, arguments)?;
        let made = match made.kind() {
            ValueKind::Iterable => Value::from(collected(&meter, &made)?),
            _ => made,
        };
        let made = marked(value, made);
        // Of a dict, what was in it.
        if method != "get" {
            meter.value(&made)?;
        }
        Ok(made)
    });
}

fn text_method(
    meter: &Meter,
    text: &str,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let three = |before: &str, between: &str, after: &str| {
        Value::from(Tuple::from(vec![
            before.into(),
            between.into(),
            after.into(),
        ]))
    };
    Ok(Some(match method {
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(arguments)?;
            replace(meter, text, old, new, count)?.into()
        }
        "join" => {
            let (items,): (&Value,) = from_args(arguments)?;
            join(meter, text, items)?.into()
        }
        "partition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            match text.split_once(separator) {
                Some((before, after)) => three(before, separator, after),
                None => three(text, "", ""),
            }
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            match text.rsplit_once(separator) {
                Some((before, after)) => three(before, separator, after),
                None => three("", "", text),
            }
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(arguments)?;
            rsplit(text, separator, most).into()
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(arguments)?;
            pad(text, method, width, fill.unwrap_or(" "))?.into()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let (sign, digits) = match text.strip_prefix(['+', '-']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            let width = width.saturating_sub(sign.len());
            format!("{sign}{}", pad(digits, "rjust", width, "0")?).into()
        }
        "title" => titled(text).into(),
        "swapcase" => text.chars().map(swap_case).collect::<String>().into(),
        "casefold" => text.to_lowercase().into(),
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(arguments)?;
            let found = match method {
                "index" => text.find(part),
                _ => text.rfind(part),
            };
            let at = found.ok_or_else(|| failed("substring not found"))?;
            text[..at].chars().count().into()
        }
        "isdecimal" => (!text.is_empty() && text.chars().all(char::is_numeric)).into(),
        _ => return Ok(None),
    }))
}

fn other_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match (value.kind(), method) {
        (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = from_args(arguments)?;
            let at = value.try_iter()?.position(|item| item == *wanted);
            let at = at.ok_or_else(|| failed("the value is not in the list"))?;
            Ok(Some(at.into()))
        }
        (ValueKind::Map | ValueKind::Seq, "copy") => {
            let () = from_args(arguments)?;
            Ok(Some(value.clone()))
        }
        // jinja2's sandbox lets no template change what it was given.
        (
            ValueKind::Seq,
            "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse",
        )
        | (ValueKind::Map, "update" | "pop" | "popitem" | "clear" | "setdefault") => {
            Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("access to attribute '{method}' is unsafe"),
            ))
        }
        _ => Ok(None),
    }
}

fn join(meter: &Meter, separator: &str, items: &Value) -> Result<String, Error> {
    check_iterable(items)?;
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let Some(text) = item.as_str() else {
            return Err(failed(format!(
                "sequence item {index}: expected str instance, {} found",
                item.kind()
            )));
        };
        if index > 0 {
            meter.makes(separator.len())?;
            out.push_str(separator);
        }
        meter.makes(text.len())?;
        out.push_str(text);
    }
    Ok(out)
}

fn pad(text: &str, method: &str, width: usize, fill: &str) -> Result<String, Error> {
    if width > MOST_WIDE {
        return Err(failed(format!(
            "{method}: a width of {width}, over {MOST_WIDE}"
        )));
    }
    if fill.chars().count() != 1 {
        return Err(failed(
            "The fill character must be exactly one character long",
        ));
    }
    let padding = fill.repeat(width.saturating_sub(text.chars().count()));
    Ok(match method {
        "ljust" => format!("{text}{padding}"),
        "rjust" => format!("{padding}{text}"),
        _ if fill == " " => center(text, width),
        _ => {
            let length = padding.chars().count();
            let left = length / 2 + (length & width & 1);
            format!("{}{text}{}", fill.repeat(left), fill.repeat(length - left))
        }
    })
}

/// From the right, at most so many times.
fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Vec<Value> {
    let most = most.map_or(usize::MAX, |most| {
        usize::try_from(most).unwrap_or(usize::MAX)
    });
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                match rest.rfind(char::is_whitespace) {
                    Some(at) if parts.len() < most => {
                        let (before, word) = rest.split_at(at);
                        parts.push(word.trim_start());
                        rest = before.trim_end();
                    }
                    _ => {
                        parts.push(rest.trim_start());
                        break;
                    }
                }
            }
            parts
        }
    };
    parts.reverse();
    parts.into_iter().map(Value::from).collect()
}

/// Python's `str.title`: each letter that no letter stands before.
fn titled(text: &str) -> String {
    let mut follows_letter = false;
    text.chars()
        .flat_map(|c| {
            let cased: Vec<char> = match follows_letter {
                true => c.to_lowercase().collect(),
                false => c.to_uppercase().collect(),
            };
            follows_letter = c.is_alphabetic();
            cased
        })
        .collect()
}

fn swap_case(c: char) -> char {
    if c.is_uppercase() {
        c.to_lowercase().next().unwrap_or(c)
    } else {
        c.to_uppercase().next().unwrap_or(c)
    }
}
