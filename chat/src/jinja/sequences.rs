//! Lists, tuples, slices and generators, as Python has them.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, Value};

use super::fault::failed;
use super::markup::like;
use super::meter::{BYTES_PER_VALUE, Meter};
use super::operators::{python_type, whole_of};

/// What Python computes one at a time: true even when it is empty, and without a length.
#[derive(Debug)]
pub(super) struct Generator(Vec<Value>);

impl Generator {
    /// All of an iterator at once.
    pub(super) fn of(meter: &Meter, value: &Value) -> Result<Value, Error> {
        Ok(Value::from_object(Self(collected(meter, value)?)))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, index: &Value) -> Option<Value> {
        self.0.get(index.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<generator object>")
    }
}

/// The items of anything that can be gone through.
pub(super) fn collected(meter: &Meter, value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(text) = value.as_str() {
        meter.makes(text.len().saturating_mul(BYTES_PER_VALUE))?;
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        meter.makes(BYTES_PER_VALUE)?;
        items.push(item);
    }
    Ok(items)
}

/// Refuses what Python does not go through.
pub(super) fn check_iterable(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain => Err(failed(
            format!("{} object is not iterable", python_type(value)),
        )),
        _ => Ok(()),
    }
}

/// What a `for` goes through.
pub(super) fn items(meter: &Meter, value: &Value) -> Result<Value, Error> {
    check_iterable(value)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Map if value.len().is_some() => {
            meter.glances(value)?;
            Ok(value.clone())
        }
        ValueKind::Undefined => Ok(value.clone()),
        _ => Ok(collected(meter, value)?.into()),
    }
}

/// Python's slices of texts, lists and tuples.
pub(super) fn slice(
    meter: &Meter,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let bound = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => match whole_of(value) {
            Some(it) => Ok(Some(it)),
            None => Err(failed("slice indices must be integers or None")),
        },
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(failed("slice step cannot be zero"));
    }
    meter.glances(value)?;
    let indices = |length: usize| {
        let length = length as i128;
        let (least, most) = if step > 0 {
            (0, length)
        } else {
            (-1, length - 1)
        };
        let place = |at: i128| {
            (if at < 0 {
                at.saturating_add(length)
            } else {
                at
            })
            .clamp(least, most)
        };
        let start = start.map_or(if step > 0 { least } else { most }, place);
        let stop = stop.map_or(if step > 0 { most } else { least }, place);
        let mut at = start;
        std::iter::from_fn(move || {
            let is_inside = if step > 0 { at < stop } else { at > stop };
            let index = is_inside.then(|| usize::try_from(at).ok()).flatten()?;
            at = at.saturating_add(step);
            Some(index)
        })
    };
    if let Some(text) = value.as_str() {
        if text.is_ascii() {
            meter.makes(text.len())?;
            let bytes = text.as_bytes();
            let picked = indices(bytes.len()).filter_map(|index| bytes.get(index));
            return Ok(like(value, picked.map(|byte| char::from(*byte)).collect()));
        }
        meter.makes(text.len().saturating_mul(4))?;
        let chars: Vec<char> = text.chars().collect();
        let picked = indices(chars.len()).filter_map(|index| chars.get(index));
        return Ok(like(value, picked.collect()));
    }
    match value.kind() {
        ValueKind::Seq => {}
        ValueKind::Undefined => return Err(failed("a slice of what is undefined")),
        // As jinja2 finds nothing in what has no items.
        _ => return Ok(Value::UNDEFINED),
    }
    let items = collected(meter, value)?;
    let picked = indices(items.len()).filter_map(|index| items.get(index).cloned());
    Ok(list_like(value, picked.collect()))
}

/// A list, or a tuple where the one it comes from is one.
pub(super) fn list_like(of: &Value, items: Vec<Value>) -> Value {
    match is_tuple(of) {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    }
}

pub(super) fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}
