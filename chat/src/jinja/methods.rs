//! Python's methods: those in minijinja's own collection, which cost fuel here, and a few others.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::fault::failed;
use super::kept::{is_dict, kept, pay, walk};
use super::list::List;
use super::{arguments, characters, python};

/// Maximum width to which a text can be padded.
const MAX_WIDTH: usize = 10_000;

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let made = match value.as_str() {
            Some(text) => text_method(state, text, method, arguments)?,
            None => value_method(state, value, method, arguments)?,
        };
        let made = match made {
            Some(made) => made,
            None => unknown_method_callback(state, value, method, arguments)?,
        };
        kept(state, made)
    });
}

/// The methods of dicts, lists and texts. If an attribute has one of these names, it is the method, even if there is a
/// key of the same name.
pub(super) const DICT_METHODS: &[&str] =
    &["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];
pub(super) const LIST_METHODS: &[&str] =
    &["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"];

/// The methods that change their object.
pub(super) const CHANGING: &[&str] =
    &["append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"];

fn text_method(state: &State, text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let three = |before: &str, between: &str, after: &str| {
        Value::from(Tuple::from(vec![before.into(), between.into(), after.into()]))
    };
    let bound = |only: usize, names: &[&str]| arguments::bound(method, arguments, only, names);
    let none = || bound(0, &[]).map(drop);
    let list = |parts: Vec<&str>| {
        pay(state, parts.len().saturating_mul(size_of::<Value>()))?;
        Ok::<_, Error>(parts.into_iter().map(Value::from).collect::<Vec<_>>())
    };
    Ok(Some(match method {
        "upper" => none().map(|()| text.to_uppercase())?.into(),
        "lower" => none().map(|()| text.to_lowercase())?.into(),
        "title" => none().map(|()| python::title(text))?.into(),
        "capitalize" => none().map(|()| python::capitalize(text))?.into(),
        "swapcase" => none().map(|()| python::swap_case(text))?.into(),
        "casefold" => none().map(|()| python::case_fold(text))?.into(),
        "istitle" => none().map(|()| python::is_title(text))?.into(),
        "isupper" | "islower" => {
            none()?;
            let is_title = text.chars().any(characters::is_title_case);
            let [has_upper, has_lower] =
                [char::is_uppercase, char::is_lowercase].map(|is_cased| text.chars().any(is_cased));
            let (wanted, other) = if method == "isupper" { (has_upper, has_lower) } else { (has_lower, has_upper) };
            (wanted && !other && !is_title).into()
        }
        "isspace" => none().map(|()| consists_of(text, python::is_space))?.into(),
        "isalpha" => none().map(|()| consists_of(text, characters::is_alpha))?.into(),
        "isalnum" => none().map(|()| consists_of(text, characters::is_alphanumeric))?.into(),
        "isdecimal" => none().map(|()| consists_of(text, characters::is_decimal))?.into(),
        "isdigit" => none().map(|()| consists_of(text, characters::is_digit))?.into(),
        "isnumeric" => none().map(|()| consists_of(text, characters::is_numeric))?.into(),
        "isprintable" => none().map(|()| text.chars().all(characters::is_printable))?.into(),
        "isidentifier" => {
            none()?;
            let mut places = text.chars().enumerate();
            (!text.is_empty() && places.all(|(at, c)| characters::is_of_identifier(c, at == 0))).into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let given = bound(1, &["chars"])?;
            let chars: Option<Vec<char>> = arguments::text(&given[0])?.map(|chars| chars.chars().collect());
            let is_cut = |c: char| chars.as_ref().map_or_else(|| python::is_space(c), |chars| chars.contains(&c));
            match method {
                "strip" => text.trim_matches(is_cut),
                "lstrip" => text.trim_start_matches(is_cut),
                _ => text.trim_end_matches(is_cut),
            }
            .into()
        }
        "replace" => {
            let given = bound(3, &["old", "new", "count"])?;
            let (old, new) = match (arguments::text(&given[0])?, arguments::text(&given[1])?) {
                (Some(old), Some(new)) => (old, new),
                _ => return Err(failed("replace expected at least 2 arguments")),
            };
            let most = arguments::integer(&given[2])?.unwrap_or(-1);
            replaced(state, text, old, new, most)?.into()
        }
        "join" => {
            let (items,): (&Value,) = from_args(arguments)?;
            join(state, text, items)?.into()
        }
        "format" => {
            check_format(state, text, '{', arguments)?;
            return Ok(None);
        }
        "split" | "rsplit" => {
            let given = bound(0, &["sep", "maxsplit"])?;
            let separator = arguments::text(&given[0])?;
            let most = arguments::integer(&given[1])?.and_then(|most| usize::try_from(most).ok());
            let from_right = method == "rsplit";
            let parts = match separator {
                None => python::words(text, most, from_right),
                Some("") => return Err(failed("empty separator")),
                Some(separator) => {
                    let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
                    pay(state, text.matches(separator).take(most).count().saturating_mul(size_of::<Value>()))?;
                    match from_right {
                        false => text.splitn(most, separator).collect(),
                        true => {
                            let mut parts: Vec<&str> = text.rsplitn(most, separator).collect();
                            parts.reverse();
                            parts
                        }
                    }
                }
            };
            list(parts)?.into()
        }
        "splitlines" => {
            let given = bound(0, &["keepends"])?;
            list(python::lines(text, arguments::flag(&given[0])))?.into()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            if separator.is_empty() {
                return Err(failed("empty separator"));
            }
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
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<&str>) = from_args(arguments)?;
            pad(text, method, usize::try_from(width).unwrap_or(0), fill.unwrap_or(" "))?.into()
        }
        "zfill" => {
            let (width,): (i64,) = from_args(arguments)?;
            let (sign, digits) = match text.strip_prefix(['+', '-']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            let width = usize::try_from(width).unwrap_or(0).saturating_sub(sign.len());
            format!("{sign}{}", pad(digits, "rjust", width, "0")?).into()
        }
        "expandtabs" => {
            let given = bound(0, &["tabsize"])?;
            let width = usize::try_from(arguments::integer(&given[0])?.unwrap_or(8)).unwrap_or(0);
            if width > MAX_WIDTH {
                return Err(failed(format!("expandtabs: the width is {width}, but at most {MAX_WIDTH} is allowed")));
            }
            pay(state, text.len().saturating_add(text.matches('\t').count().saturating_mul(width)))?;
            python::expand_tabs(text, width).into()
        }
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => {
            return within(text, method, &bound(3, &["sub", "start", "end"])?).map(Some);
        }
        _ => return Ok(None),
    }))
}

/// Whether a text has at least one character, and `is_one` is true for all of its characters.
fn consists_of(text: &str, is_one: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is_one)
}

/// The methods that search a part of a text.
fn within(text: &str, method: &str, given: &[Option<Value>]) -> Result<Value, Error> {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |value: &Option<Value>, default: i64| {
        let place = arguments::integer(value)?.unwrap_or(default);
        Ok::<_, Error>(if place < 0 { (place + length).max(0) } else { place })
    };
    let (start, end) = (place(&given[1], 0)?, place(&given[2], length)?.min(length));
    let byte = |place: i64| {
        let place = usize::try_from(place).unwrap_or(0);
        text.char_indices().nth(place).map_or(text.len(), |(at, _)| at)
    };
    // After the end of the text nothing is found, not even an empty text.
    let part = (start <= length && start <= end).then(|| &text[byte(start)..byte(end)]);
    let wanted = given[0].as_ref().ok_or_else(|| failed(format!("{method} expected at least 1 argument")))?;
    let is_at_end = |wanted: &Value| -> Result<bool, Error> {
        let wanted = wanted.as_str().ok_or_else(|| failed(format!("{method}: expected a text or a tuple of texts")))?;
        Ok(part.is_some_and(|part| match method {
            "startswith" => part.starts_with(wanted),
            _ => part.ends_with(wanted),
        }))
    };
    if let "startswith" | "endswith" = method {
        if wanted.downcast_object_ref::<Tuple>().is_some() {
            for wanted in wanted.try_iter()? {
                if is_at_end(&wanted)? {
                    return Ok(true.into());
                }
            }
            return Ok(false.into());
        }
        return is_at_end(wanted).map(Value::from);
    }
    let wanted = wanted.as_str().ok_or_else(|| failed(format!("{method}: expected a text")))?;
    let found = part.and_then(|part| match method {
        "find" | "index" => part.find(wanted).map(|at| part[..at].chars().count()),
        "rfind" | "rindex" => part.rfind(wanted).map(|at| part[..at].chars().count()),
        _ => Some(part.matches(wanted).count()),
    });
    let start = usize::try_from(start).unwrap_or(0);
    Ok(match (method, found) {
        ("count", found) => found.unwrap_or(0).into(),
        (_, Some(at)) => (start + at).into(),
        ("find" | "rfind", None) => (-1).into(),
        _ => return Err(failed("substring not found")),
    })
}

/// `str.replace`, with at most `most` replacements. If `most` is negative, there is no maximum.
pub(super) fn replaced(state: &State, text: &str, old: &str, new: &str, most: i64) -> Result<String, Error> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let found = text.matches(old).take(most).count();
    pay(state, text.len().saturating_add(new.len().saturating_mul(found)))?;
    Ok(text.replacen(old, new, found))
}

fn value_method(state: &State, value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    if let Some(list) = value.downcast_object_ref::<List>()
        && let Some(made) = list.change(state, method, arguments)?
    {
        return Ok(Some(made));
    }
    let is_list = value.kind() == ValueKind::Seq;
    match (value.kind(), method) {
        (ValueKind::Seq, "index") => {
            let given = arguments::bound(method, arguments, 3, &["value", "start", "stop"])?;
            let wanted = given[0].as_ref().ok_or_else(|| failed("index expected at least 1 argument"))?;
            let length = i64::try_from(value.len().unwrap_or(0)).unwrap_or(i64::MAX);
            let place = |value: &Option<Value>, default| {
                let place = arguments::integer(value)?.unwrap_or(default);
                Ok::<_, Error>(if place < 0 { (place + length).max(0) } else { place })
            };
            let (start, stop) = (place(&given[1], 0)?, place(&given[2], length)?);
            let mut places = (0..).zip(value.try_iter()?);
            let at = places.find(|(at, item)| *at >= start && *at < stop && item == wanted);
            let (at, _) = at.ok_or_else(|| failed("the value is not in the list"))?;
            Ok(Some(at.into()))
        }
        (ValueKind::Map | ValueKind::Seq, "copy") if is_dict(value) || is_list => {
            let () = from_args(arguments)?;
            match is_list {
                true => Ok(Some(value.try_iter()?.collect::<Vec<_>>().into())),
                false => Ok(Some(value.clone())),
            }
        }
        (_, "fromkeys")
            if is_dict(value) || value.as_object().is_some_and(|object| object.type_name().contains("Function")) =>
        {
            let (keys, default): (&Value, Option<Value>) = from_args(arguments)?;
            let default = default.unwrap_or_else(|| Value::from(()));
            let pairs: Vec<(Value, Value)> = keys.try_iter()?.map(|key| (key, default.clone())).collect();
            pay(state, pairs.len().saturating_mul(size_of::<Value>()))?;
            Ok(Some(Value::from_pairs(pairs)))
        }
        (ValueKind::Number, "is_integer") => {
            let number = f64::try_from(value.clone())?;
            Ok(Some((number.fract() == 0.0).into()))
        }
        // In jinja2's sandbox, a template must not change its input.
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

/// Refuses formats that would make their output very long. `begin` is the character that begins a placeholder.
pub(super) fn check_format(state: &State, text: &str, begin: char, arguments: &[Value]) -> Result<(), Error> {
    let mut digits = 0;
    for c in text.chars() {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return Err(failed("a format has a width of more than 9999"));
        }
    }
    if has_width_of_argument(text, begin) {
        return Err(failed("a format takes its width from an argument, which is not supported"));
    }
    let lengths = arguments.iter().map(|value| value.as_str().map_or(0, str::len));
    let longest = lengths.max().unwrap_or(0);
    pay(state, text.matches(begin).count().saturating_mul(longest))?;
    arguments.iter().try_for_each(|value| walk(state, value, 0).map(drop))
}

/// Whether a placeholder contains another one (`{:{}}`), or has the width that an argument gives (`%*d`).
fn has_width_of_argument(text: &str, begin: char) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find(begin) {
        let place = &rest[at + 1..];
        if let Some(behind) = place.strip_prefix(begin) {
            // If `begin` is written twice, it stands for the character itself.
            rest = behind;
            continue;
        }
        let (end, within) = match begin {
            '{' => (place.find(['{', '}']), '{'),
            // The letter of the conversion comes after the flags, the width and the precision.
            _ => (place.find(|c: char| !c.is_ascii_digit() && !"-+ #.".contains(c)), '*'),
        };
        let Some(end) = end else { return false };
        if place[end..].starts_with(within) {
            return true;
        }
        rest = &place[end..];
    }
    false
}

pub(super) fn pad(text: &str, method: &str, width: usize, fill: &str) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(failed(format!("{method}: the width is {width}, but at most {MAX_WIDTH} is allowed")));
    }
    if fill.chars().count() != 1 {
        return Err(failed("The fill character must be exactly one character long"));
    }
    let padding = fill.repeat(width.saturating_sub(text.chars().count()));
    Ok(match method {
        "ljust" => format!("{text}{padding}"),
        // If the spaces cannot be divided equally, CPython puts one more before the text if the text's length is odd,
        // and one more after it if the length is even.
        "center" => {
            let spaces = padding.chars().count();
            let left = spaces / 2 + (spaces & width & 1);
            let side = |count: usize| fill.repeat(count);
            format!("{}{text}{}", side(left), side(spaces - left))
        }
        _ => format!("{padding}{text}"),
    })
}
