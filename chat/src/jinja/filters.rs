//! Filters and tests of jinja2 that minijinja lacks, or that behave in another way there.

use std::fmt;
use std::sync::Arc;

use minijinja::filters::{dictsort, max, min, sort, unique};
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::arguments::{self, bound};
use super::fault::failed;
use super::json::Dumps;
use super::kept::{is_dict, pay, walk};
use super::list::List;
use super::methods::{CHANGING, DICT_METHODS, LIST_METHODS, check_format, pad, replaced};
use super::numbers::{float_of, integer_of, truth, whole};
use super::printing::{escaped, marked_as, repr, text_of};
use super::source::{ATTRIBUTE, ITEMS, LIST, PRINTF, PRIVATE, UNSET};
use super::{characters, python};

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", |state: &State, value: &Value, arguments: Rest<Value>, named: Kwargs| {
        let dumped = Dumps::from_arguments(&arguments, &named)?.dump(state, value)?;
        named.assert_all_used()?;
        Ok::<_, Error>(dumped)
    });
    environment.add_filter(PRINTF, |state: &State, text: &str, value: &Value| {
        match value.downcast_object_ref::<Tuple>() {
            Some(tuple) => printf(state, text, &tuple.iter().cloned().collect::<Vec<_>>()),
            // As in Python, a text without placeholders accepts a mapping or a list, and ignores it.
            None if matches!(value.kind(), ValueKind::Map | ValueKind::Seq) && printf_kinds(text).is_empty() => {
                printf(state, text, &[])
            }
            None => printf(state, text, std::slice::from_ref(value)),
        }
    });
    environment.add_filter("format", |state: &State, text: &str, arguments: Rest<ValueOrKwargs>| {
        let arguments = all(arguments);
        let (values, named) = arguments::split(&arguments)?;
        let names: Vec<&str> = named.args().collect();
        if names.is_empty() {
            return printf(state, text, &values);
        }
        // In `'%(a)s'|format(a=1)`, each placeholder gets the value with its name.
        let mut ordered = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            plain.push_str(&rest[..=at]);
            rest = &rest[at + 1..];
            if let Some((name, behind)) = rest.strip_prefix('(').and_then(|behind| behind.split_once(')')) {
                ordered.push(named.get::<Value>(name)?);
                rest = behind;
            } else if let Some(behind) = rest.strip_prefix('%') {
                plain.push('%');
                rest = behind;
            } else {
                return Err(failed("format requires a mapping"));
            }
        }
        plain.push_str(rest);
        printf(state, &plain, &ordered)
    });
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("trim", |state: &State, value: &Value, arguments: Rest<ValueOrKwargs>| {
        let arguments = all(arguments);
        let given = bound("trim", &arguments, 0, &["chars"])?;
        let text = text_of(state, value)?;
        let trimmed = match arguments::text(&given[0])? {
            Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
            None => text.trim_matches(python::is_space).to_owned(),
        };
        Ok::<_, Error>(marked_as(value.is_safe(), trimmed))
    });
    environment.add_filter("replace", |state: &State, value: &Value, arguments: Rest<ValueOrKwargs>| {
        let arguments = all(arguments);
        let given = bound("replace", &arguments, 0, &["old", "new", "count"])?;
        let part = |index: usize| {
            let part = given[index].as_ref().ok_or_else(|| failed("replace: `old` and `new` are needed"))?;
            text_of(state, part)
        };
        let most = arguments::integer(&given[2])?.unwrap_or(-1);
        replaced(state, &text_of(state, value)?, &part(0)?, &part(1)?, most)
    });
    for (name, change) in [
        ("upper", str::to_uppercase as fn(&str) -> String),
        ("lower", str::to_lowercase),
        ("capitalize", python::capitalize),
    ] {
        environment.add_filter(name, move |state: &State, value: &Value| {
            Ok::<_, Error>(marked_as(value.is_safe(), change(&text_of(state, value)?)))
        });
    }
    // In jinja2, too, the result is never marked as HTML: it is joined from words.
    environment.add_filter("title", |state: &State, value: &Value| {
        Ok::<_, Error>(python::title_words(&text_of(state, value)?))
    });
    environment.add_filter("float", |value: &Value, arguments: Rest<ValueOrKwargs>| {
        let arguments = all(arguments);
        let given = bound("float", &arguments, 0, &["default"])?;
        let number = match value.as_str() {
            Some(text) => float_of(text),
            None => f64::try_from(value.clone()).ok().or_else(|| truth(value).map(|number| number as f64)),
        };
        Ok::<_, Error>(number.map(Value::from).or_else(|| given[0].clone()).unwrap_or_else(|| 0.0.into()))
    });
    environment.add_filter("int", |value: &Value, arguments: Rest<ValueOrKwargs>| {
        let arguments = all(arguments);
        let given = bound("int", &arguments, 0, &["default", "base"])?;
        let base = arguments::integer(&given[1])?.unwrap_or(10);
        let number = match value.as_str() {
            Some(text) => integer_of(text, base).or_else(|| whole(float_of(text)?)),
            None if value.is_integer() => Some(value.clone()),
            None => truth(value).map(Value::from).or_else(|| whole(f64::try_from(value.clone()).ok()?)),
        };
        Ok::<_, Error>(number.or_else(|| given[0].clone()).unwrap_or_else(|| 0.into()))
    });
    environment.add_filter("pprint", |state: &State, value: &Value| {
        walk(state, value, 0)?;
        let mut out = String::new();
        repr(value, &mut out)?;
        if out.chars().count() > PPRINT_WIDTH {
            return Err(failed("pprint: the value takes more than one line, which is not supported"));
        }
        Ok::<_, Error>(out)
    });
    environment.add_filter("center", |state: &State, value: &Value, arguments: Rest<ValueOrKwargs>| {
        let arguments = all(arguments);
        let given = bound("center", &arguments, 0, &["width"])?;
        let width = usize::try_from(arguments::integer(&given[0])?.unwrap_or(80)).unwrap_or(0);
        Ok::<_, Error>(marked_as(value.is_safe(), pad(&text_of(state, value)?, "center", width, " ")?))
    });
    environment.add_filter("wordcount", |state: &State, value: &Value| {
        let text = text_of(state, value)?;
        Ok::<_, Error>(
            text.split(|c: char| !(characters::is_alphanumeric(c) || c == '_')).filter(|word| !word.is_empty()).count(),
        )
    });
    environment.add_filter("sort", |state: &State, value: Value, given: Rest<ValueOrKwargs>| {
        sort(state, value, by_name("sort", &all(given), &["reverse", "case_sensitive", "attribute"])?)
    });
    environment.add_filter("dictsort", |value: &Value, given: Rest<ValueOrKwargs>| {
        dictsort(value, by_name("dictsort", &all(given), &["case_sensitive", "by", "reverse"])?)
    });
    environment.add_filter("unique", |state: &State, value: Value, given: Rest<ValueOrKwargs>| {
        unique(state, value, by_name("unique", &all(given), &["case_sensitive", "attribute"])?)
    });
    environment.add_filter("min", |state: &State, value: Value, given: Rest<ValueOrKwargs>| {
        min(state, value, by_name("min", &all(given), &["case_sensitive", "attribute"])?)
    });
    environment.add_filter("max", |state: &State, value: Value, given: Rest<ValueOrKwargs>| {
        max(state, value, by_name("max", &all(given), &["case_sensitive", "attribute"])?)
    });
    environment.add_filter(ATTRIBUTE, |value: &Value, name: &str| {
        let methods = match value.kind() {
            ValueKind::Map if is_dict(value) => DICT_METHODS,
            ValueKind::Seq => LIST_METHODS,
            _ => &[],
        };
        // In jinja2's sandbox, a template cannot use methods that change an object.
        if methods.contains(&name) && CHANGING.contains(&name) {
            return Ok(Value::UNDEFINED);
        }
        match methods.contains(&name) {
            true => Ok(Value::from_object(Method { of: value.clone(), name: name.to_owned() })),
            false => value.get_attr(name),
        }
    });
    environment.add_filter(PRIVATE, |_: &Value| -> Result<Value, Error> {
        Err(failed("Chat templates cannot store underscore-prefixed attributes on a namespace"))
    });
    environment.add_filter(LIST, |value: &Value| {
        let items: Vec<Value> = value.try_iter()?.collect();
        Ok::<_, Error>(List::value(items))
    });
    environment.add_filter(ITEMS, |state: &State, value: Value| match value.as_str() {
        Some(text) => {
            pay(state, text.len().saturating_mul(size_of::<Value>()))?;
            Ok::<_, Error>(text.chars().map(|c| Value::from(c.to_string())).collect())
        }
        None => Ok(value),
    });
    environment.add_global(UNSET, Value::from_object(Unset));
    environment.add_test(UNSET, |value: &Value| value.downcast_object_ref::<Unset>().is_some());
    environment.add_filter("indent", indent);
    for name in ["e", "escape"] {
        environment.add_filter(name, move |state: &State, value: &Value| {
            Ok::<_, Error>(match value.is_safe() {
                true => value.clone(),
                false => marked_as(true, escaped(state, &text_of(state, value)?)?),
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
    // jinja2 lacks these filters and tests.
    for name in ["zip", "chain", "lines", "split", "bool"] {
        environment.remove_filter(name);
    }
    for name in ["startingwith", "endingwith", "containing"] {
        environment.remove_test(name);
    }
}

/// The width of a line for `pprint`.
const PPRINT_WIDTH: usize = 79;

/// The value of a macro's parameter if no argument was given for it.
#[derive(Debug)]
struct Unset;

impl Object for Unset {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// A method that is named but not called, such as `spec.items`.
#[derive(Debug)]
struct Method {
    of: Value,
    name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, &self.name, arguments)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.of.kind() == ValueKind::Map { "dict" } else { "list" };
        write!(f, "<built-in method {} of {of} object at 0x7f0000000000>", self.name)
    }
}

/// All arguments as values. The last value may contain the named arguments.
fn all(arguments: Rest<ValueOrKwargs>) -> Vec<Value> {
    arguments.0.into_iter().map(ValueOrKwargs::into_value).collect()
}

/// Makes positional arguments named, for filters of minijinja that accept only named ones.
fn by_name(of: &str, arguments: &[Value], names: &[&str]) -> Result<Kwargs, Error> {
    let given = bound(of, arguments, 0, names)?;
    // `none` counts as if the argument were missing.
    let given =
        names.iter().zip(given).filter_map(|(name, value)| Some((*name, value.filter(|value| !value.is_none())?)));
    Ok(given.collect())
}

/// The filter that is `do_default` in jinja2.
fn default(value: Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = all(arguments);
    let given = bound("default", &arguments, 0, &["default_value", "boolean"])?;
    let is_wanting = value.is_undefined() || (arguments::flag(&given[1]) && !value.is_true());
    Ok(match is_wanting {
        true => given[0].clone().unwrap_or_else(|| "".into()),
        false => value,
    })
}

/// Python's operator `%` for a text.
fn printf(state: &State, text: &str, arguments: &[Value]) -> Result<String, Error> {
    check_format(state, text, '%', arguments)?;
    let kinds = printf_kinds(text);
    if arguments.len() > kinds.len() {
        return Err(failed("not all arguments converted during string formatting"));
    }
    // `%d` truncates a float, and does not refuse it.
    let mut kinds = kinds.into_iter();
    let arguments: Vec<Value> = arguments
        .iter()
        .map(|value| {
            let is_whole = kinds.next().is_some_and(|kind| "diu".contains(kind));
            let is_float = value.kind() == ValueKind::Number && !value.is_integer();
            let float = f64::try_from(value.clone()).ok().filter(|_| is_whole && is_float);
            float.and_then(whole).unwrap_or_else(|| value.clone())
        })
        .collect();
    format(FormatStyle::Printf, text, &arguments)
}

/// The conversion letters in a text, in their order.
fn printf_kinds(text: &str) -> Vec<char> {
    let mut kinds = Vec::new();
    let mut chars = text.chars();
    while chars.any(|c| c == '%') {
        let kind = chars.by_ref().find(|c| c.is_alphabetic() || *c == '%');
        kinds.extend(kind.filter(|kind| *kind != '%'));
    }
    kinds
}

/// The filter that is `do_indent` in jinja2. Its width may be a text.
fn indent(state: &State, value: &Value, arguments: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let text = value.as_str().ok_or_else(|| failed(format!("indent: a text is needed, not a {}", value.kind())))?;
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
    let lines = python::lines(text, false).len() + 1;
    pay(state, text.len().saturating_add(lines.saturating_mul(with.len())))?;
    let mut out = String::new();
    // As in jinja2, an empty last line counts as a line.
    for (index, line) in python::lines(&format!("{text}\n"), false).into_iter().enumerate() {
        out.push_str(if index > 0 { "\n" } else { "" });
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if is_indented { &with } else { "" });
        out.push_str(line);
    }
    Ok(marked_as(value.is_safe(), out))
}
