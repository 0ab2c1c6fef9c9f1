//! The functions that a template finds: those of jinja2 and transformers, and the guards.

use std::sync::{Arc, OnceLock};

use minijinja::formatting::{FormatStyle, format};
use minijinja::functions::{dict, namespace};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};
use minijinja_contrib::globals::cycler;

use super::clock::LocalTime;
use super::fault::{FaultKind, error, failed};
use super::guard::{GENERATED, GLANCE, KEPT, MADE, NO_LOADER, READ, STORED};
use super::meter::{BYTES_PER_VALUE, Meter};
use super::sequences::{Generator, collected};

/// The longest range that jinja2's sandbox makes (`sandbox.py`, `MAX_RANGE`).
const MOST_IN_RANGE: i128 = 100_000;

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<Meter>, now: Option<LocalTime>) {
    environment.add_function(
        "raise_exception",
        |message: &Value| -> Result<Value, Error> {
            Err(error(FaultKind::Raised(message.to_string())))
        },
    );
    // All of a prompt is of one moment.
    let now_once = OnceLock::new();
    environment.add_function("strftime_now", move |format: &str| {
        if format.len() > 1000 {
            return Err(failed("strftime_now: a format of over 1000 bytes"));
        }
        now_once
            .get_or_init(|| now.unwrap_or_else(LocalTime::now))
            .format(format)
    });
    let of = Arc::clone(meter);
    environment.add_function(
        "range",
        move |first: i64, second: Option<i64>, step: Option<i64>| range(&of, first, second, step),
    );
    let of = Arc::clone(meter);
    environment.add_function("cycler", move |items: Rest<Value>| {
        of.reads(&Value::from(items.0.clone()))?;
        cycler(items.0)
    });
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.remove_global("debug");
    guards(environment, meter);
}

/// What [`super::guard`] puts into a template.
fn guards(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let of = Arc::clone(meter);
    let made = move |value: &Value| -> Result<Value, Error> {
        let value = match value.kind() {
            ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_none() => {
                Value::from(collected(&of, value)?)
            }
            _ => value.clone(),
        };
        of.value(&value)?;
        Ok(value)
    };
    environment.add_function(MADE, made.clone());
    environment.add_filter(MADE, made);
    let of = Arc::clone(meter);
    environment.add_filter(GENERATED, move |value: &Value| match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let generator = Generator::of(&of, value)?;
            of.reads(&generator)?;
            Ok(generator)
        }
        _ => of.value(value).map(|()| value.clone()),
    });
    let of = Arc::clone(meter);
    let read = move |value: &Value| -> Result<Value, Error> {
        of.reads(value)?;
        Ok(value.clone())
    };
    environment.add_function(READ, read);
    let of = Arc::clone(meter);
    // A filter that goes through a text makes a list of it first.
    environment.add_filter(READ, move |value: &Value| -> Result<Value, Error> {
        of.reads(value)?;
        if let Some(text) = value.as_str() {
            of.makes(text.len().saturating_mul(BYTES_PER_VALUE))?;
        }
        Ok(value.clone())
    });
    let of = Arc::clone(meter);
    let glance = move |value: &Value| -> Result<Value, Error> {
        of.glances(value)?;
        Ok(value.clone())
    };
    environment.add_function(GLANCE, glance.clone());
    environment.add_filter(GLANCE, glance);
    let of = Arc::clone(meter);
    environment.add_function(STORED, move |value: &Value| -> Result<Value, Error> {
        of.stores(value)?;
        Ok(value.clone())
    });
    let of = Arc::clone(meter);
    environment.add_function(KEPT, move |text: &Value| -> Result<Value, Error> {
        of.glances(text)?;
        Ok(text.clone())
    });
    environment.add_function(NO_LOADER, || -> Result<Value, Error> {
        Err(failed("no loader for this environment specified"))
    });
    // Each of them makes a value of others.
    let of = Arc::clone(meter);
    environment.add_function("dict", move |value: Option<Value>, named: Kwargs| {
        if let Some(value) = value
            .as_ref()
            .filter(|value| value.kind() != ValueKind::Map)
        {
            return Err(failed(format!("dict() of a {}", value.kind())));
        }
        let made = dict(value, named)?;
        of.reads(&made)?;
        Ok::<_, Error>(made)
    });
    let of = Arc::clone(meter);
    environment.add_function("namespace", move |defaults: Option<ValueOrKwargs>| {
        let made = namespace(defaults)?;
        of.reads(&made)?;
        for key in made.try_iter()? {
            of.stores(&made.get_item(&key)?)?;
        }
        Ok::<_, Error>(made)
    });
}

fn range(
    meter: &Meter,
    first: i64,
    second: Option<i64>,
    step: Option<i64>,
) -> Result<Vec<i64>, Error> {
    let (start, stop) = match second {
        Some(stop) => (i128::from(first), i128::from(stop)),
        None => (0, i128::from(first)),
    };
    let step = i128::from(step.unwrap_or(1));
    if step == 0 {
        return Err(failed("range() arg 3 must not be zero"));
    }
    let distance = if step > 0 { stop - start } else { start - stop };
    let by = step.abs();
    let length = (distance.max(0) + by - 1) / by;
    if length > MOST_IN_RANGE {
        return Err(failed(format!(
            "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MOST_IN_RANGE})."
        )));
    }
    let length = usize::try_from(length).unwrap_or(0);
    meter.makes(length.saturating_mul(BYTES_PER_VALUE))?;
    let number = |n: usize| i64::try_from(start + step * n as i128).unwrap_or(i64::MAX);
    Ok((0..length).map(number).collect())
}

/// Python's `%` of a text.
pub(super) fn printf(meter: &Meter, text: &str, arguments: &[Value]) -> Result<String, Error> {
    check_format(meter, text, '%', arguments)?;
    // A list or a dict may be there to be looked into.
    let is_one = |value: &Value| !matches!(value.kind(), ValueKind::Seq | ValueKind::Map);
    if places(text) < arguments.len() && (arguments.len() > 1 || arguments.iter().any(is_one)) {
        return Err(failed(
            "not all arguments converted during string formatting",
        ));
    }
    let made = format(FormatStyle::Printf, text, arguments)?;
    meter.makes(made.len())?;
    Ok(made)
}

/// How many values a `printf` format has a place for.
fn places(text: &str) -> usize {
    text.replace("%%", "").matches('%').count()
}

/// Refuses a format that makes much of little: `begin` begins a place for a value.
pub(super) fn check_format(
    meter: &Meter,
    text: &str,
    begin: char,
    arguments: &[Value],
) -> Result<(), Error> {
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
    let mut longest = MOST_WIDE;
    for argument in arguments {
        let steps = meter.cost(argument)?;
        let bytes = argument
            .as_str()
            .map_or(steps.saturating_mul(BYTES_PER_STEP), str::len);
        longest = longest.max(bytes);
    }
    let places = text.matches(begin).count();
    if places.saturating_mul(longest) > MOST_BYTES_FOR_NOTHING {
        meter.makes(places.saturating_mul(longest))?;
    }
    meter.makes(text.len())
}

/// The widest place that a format has.
const MOST_WIDE: usize = 9999;

/// Bytes of a printed value per step that it takes to read it: names, quotes, escapes.
const BYTES_PER_STEP: usize = 512;

/// What a format may make without being counted before.
const MOST_BYTES_FOR_NOTHING: usize = 1 << 20;
