//! The functions that guard values. [`source`](super::source) inserts calls of them into templates.

use std::sync::Arc;
use std::time::{Duration, Instant};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::fault::{carried, failed};
use super::limits::{Limit, Limits};
use super::source::{DATA, GENERATED, KEPT, TICK};

/// Maximum nesting of values. Recursion is safe up to this depth. JSON readers allow a nesting of 128.
const MAX_LEVELS: u32 = 200;

/// How many bytes of text cost one step. The number takes into account that texts are copied, and that printing adds
/// quotes and escapes.
const BYTES_PER_STEP: usize = 16;

pub(super) fn add(environment: &mut Environment<'_>, limits: Limits) {
    environment.add_filter(KEPT, kept);
    environment.add_filter(GENERATED, |state: &State, value: Value| match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items = kept(state, value)?.try_iter()?.collect();
            Ok(Value::from_object(Generator(items)))
        }
        _ => Ok::<_, Error>(value),
    });
    environment.add_filter(DATA, |state: &State, value: Value| {
        if !matches!(value.kind(), ValueKind::Map | ValueKind::Plain) || is_dict(&value) {
            return kept(state, value);
        }
        // Objects such as namespaces are refused. Otherwise a namespace could contain itself.
        Err(no_data(&value))
    });
    let end = Instant::now() + Duration::from_secs(limits.seconds);
    environment.add_function(TICK, move || match Instant::now() > end {
        true => Err(carried(crate::Error::Limit { limit: Limit::Seconds(limits.seconds), line: 0 })),
        false => Ok(false),
    });
}

/// Charges fuel for a value and everything in it, and limits how deep values are nested. A lazy value becomes a list.
///
/// A namespace, a macro, a loop or a cycler is returned unchanged, but no other value may contain it.
pub(super) fn kept(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => return walk(state, &value, 0).map(|_| value),
        _ if value.downcast_object_ref::<Generator>().is_some() => return Ok(value),
        ValueKind::Seq | ValueKind::Iterable => {}
        _ if is_dict(&value) => {}
        _ => return Ok(value),
    }
    Ok(walk(state, &value, 0)?.unwrap_or(value))
}

/// Goes through a value and charges fuel for it. If the value must change, returns a replacement.
pub(super) fn walk(state: &State, value: &Value, level: u32) -> Result<Option<Value>, Error> {
    if level > MAX_LEVELS {
        return Err(carried(crate::Error::Limit { limit: Limit::Nesting(MAX_LEVELS), line: 0 }));
    }
    state.consume_fuel(1)?;
    match value.kind() {
        ValueKind::String => {
            let bytes = value.as_str().map_or(0, str::len);
            state.consume_fuel((bytes / BYTES_PER_STEP) as u64)?;
            Ok(None)
        }
        kind @ (ValueKind::Seq | ValueKind::Iterable) => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            // A list of another type may have attributes, such as a group of `groupby`.
            let is_plain = is_tuple || value.downcast_object_ref::<Vec<Value>>().is_some();
            let mut changed = (kind == ValueKind::Iterable).then(Vec::new);
            for (index, item) in value.try_iter()?.enumerate() {
                let made = walk(state, &item, level + 1)?;
                if made.is_some() && is_plain && changed.is_none() {
                    changed = Some(value.try_iter()?.take(index).collect());
                }
                if let Some(items) = &mut changed {
                    items.push(made.unwrap_or(item));
                }
            }
            Ok(changed.map(|items| match is_tuple {
                true => Value::from(Tuple::from(items)),
                false => Value::from(items),
            }))
        }
        ValueKind::Map if is_dict(value) => {
            let mut entries = Vec::new();
            let mut is_changed = false;
            for key in value.try_iter()? {
                walk(state, &key, level + 1)?;
                let item = value.get_item(&key)?;
                let made = walk(state, &item, level + 1)?;
                is_changed |= made.is_some();
                entries.push((key, made.unwrap_or(item)));
            }
            Ok(is_changed.then(|| Value::from_pairs(entries)))
        }
        ValueKind::Map | ValueKind::Plain => Err(no_data(value)),
        _ => Ok(None),
    }
}

/// The value that Python has for a lazy iterable. Such a value is true even if it is empty, and JSON does not treat it
/// as a list. Here it is computed at once, and not lazily.
#[derive(Debug)]
struct Generator(Vec<Value>);

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
}

/// Charges fuel for a text. This must be called before the text is created.
pub(super) fn pay(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(1 + (bytes / 64) as u64)
}

fn no_data(value: &Value) -> Error {
    failed(format!("lists, dicts and namespaces can contain data only, not a {}", type_name(value)))
}

/// Whether a map is a dict. In minijinja, namespaces, macros and loops are maps too.
pub(super) fn is_dict(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !matches!(type_name(value), "Namespace" | "Macro" | "Loop")
}

/// The last segment of the name of an object's type.
fn type_name(value: &Value) -> &'static str {
    let name = value.as_object().map_or("", |object| object.type_name());
    name.rsplit("::").next().unwrap_or(name)
}
