//! Python's methods: those that minijinja's own collection has, counted, and a few more.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::fault::failed;
use super::kept::{is_dict, kept, pay, walk};

/// As wide as anything is padded.
const MOST_WIDE: usize = 10_000;

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let made = match text_method(state, value, method, arguments)? {
            Some(made) => made,
            None => match list_method(value, method, arguments)? {
                Some(made) => made,
                None => unknown_method_callback(state, value, method, arguments)?,
            },
        };
        kept(state, made)
    });
}

fn text_method(state: &State, value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let Some(text) = value.as_str() else {
        return Ok(None);
    };
    let three = |before: &str, between: &str, after: &str| {
        Value::from(Tuple::from(vec![before.into(), between.into(), after.into()]))
    };
    Ok(Some(match method {
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(arguments)?;
            let most = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
            let found = text.matches(old).take(most).count();
            pay(state, text.len().saturating_add(new.len().saturating_mul(found)))?;
            text.replacen(old, new, found).into()
        }
        "join" => {
            let (items,): (&Value,) = from_args(arguments)?;
            join(state, text, items)?.into()
        }
        "format" => {
            check_format(state, text, '{', arguments)?;
            return Ok(None);
        }
        "split" | "splitlines" => {
            let separator = arguments.first().and_then(Value::as_str).filter(|it| !it.is_empty());
            let parts = separator.map_or_else(|| text.split_whitespace().count(), |it| text.matches(it).count());
            pay(state, (parts + text.lines().count()).saturating_mul(size_of::<Value>()))?;
            return Ok(None);
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let is_first = method == "partition";
            match if is_first { text.split_once(separator) } else { text.rsplit_once(separator) } {
                Some((before, after)) => three(before, separator, after),
                None if is_first => three(text, "", ""),
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
            pay(state, text.len().saturating_mul(size_of::<Value>()))?;
            rsplit(text, separator, most)?.into()
        }
        "ljust" | "rjust" => {
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

fn list_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match (value.kind(), method) {
        (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = from_args(arguments)?;
            let at = value.try_iter()?.position(|item| item == *wanted);
            let at = at.ok_or_else(|| failed("the value is not in the list"))?;
            Ok(Some(at.into()))
        }
        (ValueKind::Map | ValueKind::Seq, "copy") if is_dict(value) => {
            let () = from_args(arguments)?;
            Ok(Some(value.clone()))
        }
        // jinja2's sandbox lets no template change what it was given.
        (ValueKind::Seq, "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse")
        | (ValueKind::Map, "update" | "pop" | "popitem" | "clear" | "setdefault") => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("access to attribute '{method}' is unsafe")))
        }
        _ => Ok(None),
    }
}

fn join(state: &State, separator: &str, items: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let Some(text) = item.as_str() else {
            let kind = item.kind();
            return Err(failed(format!("sequence item {index}: expected str instance, {kind} found")));
        };
        pay(state, separator.len() + text.len())?;
        out.push_str(if index > 0 { separator } else { "" });
        out.push_str(text);
    }
    Ok(out)
}

/// Refuses a format that makes much of little: `begin` begins a place for a value.
pub(super) fn check_format(state: &State, text: &str, begin: char, arguments: &[Value]) -> Result<(), Error> {
    let mut digits = 0;
    for c in text.chars() {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return Err(failed("a format with a width of over 9999"));
        }
    }
    if text.contains('*') || text.contains(":{") {
        return Err(failed("a format whose width is an argument"));
    }
    let lengths = arguments.iter().map(|value| value.as_str().map_or(0, str::len));
    let longest = lengths.max().unwrap_or(0);
    pay(state, text.matches(begin).count().saturating_mul(longest))?;
    arguments.iter().try_for_each(|value| walk(state, value, 0).map(drop))
}

pub(super) fn pad(text: &str, method: &str, width: usize, fill: &str) -> Result<String, Error> {
    if width > MOST_WIDE {
        return Err(failed(format!("{method}: a width of {width}, over {MOST_WIDE}")));
    }
    if fill.chars().count() != 1 {
        return Err(failed("The fill character must be exactly one character long"));
    }
    let padding = fill.repeat(width.saturating_sub(text.chars().count()));
    Ok(match method {
        "ljust" => format!("{text}{padding}"),
        _ => format!("{padding}{text}"),
    })
}

/// From the right, at most so many times; at whitespace without a bound alone.
fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Result<Vec<Value>, Error> {
    let most = most.and_then(|most| usize::try_from(most).ok());
    let mut parts: Vec<&str> = match (separator, most) {
        (Some(separator), most) => text.rsplitn(most.unwrap_or(usize::MAX - 1) + 1, separator).collect(),
        (None, None) => text.split_whitespace().rev().collect(),
        (None, Some(_)) => return Err(failed("rsplit: a bound, and no separator")),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
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
