//! Lists that a template creates and may change. Kimi K2's template appends to such a list, and pops from it.
//!
//! In jinja2's sandbox no list can be changed. Here too, the lists of the conversation itself cannot be changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind, from_args};
use minijinja::{Error, State, Value};

use super::fault::failed;
use super::kept::{is_dict, walk};

/// A list that a template may change.
#[derive(Debug)]
pub(super) struct List(Mutex<Vec<Value>>);

impl List {
    pub(super) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items)))
    }

    fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a method that changes the list. Returns `None` if the method is another one.
    pub(super) fn change(&self, state: &State, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
        let place = |at: i64, length: usize| {
            let length = i64::try_from(length).unwrap_or(i64::MAX);
            if at < 0 { at + length } else { at }
        };
        match method {
            "append" => {
                let (item,): (Value,) = from_args(arguments)?;
                let item = frozen(state, &item)?;
                self.items().push(item);
            }
            "extend" => {
                let (added,): (&Value,) = from_args(arguments)?;
                let added: Vec<Value> = added.try_iter()?.map(|item| frozen(state, &item)).collect::<Result<_, _>>()?;
                self.items().extend(added);
            }
            "insert" => {
                let (at, item): (i64, Value) = from_args(arguments)?;
                let item = frozen(state, &item)?;
                let mut items = self.items();
                let at = usize::try_from(place(at, items.len())).unwrap_or(0).min(items.len());
                items.insert(at, item);
            }
            "pop" => {
                let (at,): (Option<i64>,) = from_args(arguments)?;
                let mut items = self.items();
                let at = usize::try_from(place(at.unwrap_or(-1), items.len())).ok();
                let at = at.filter(|at| *at < items.len()).ok_or_else(|| failed("pop index out of range"))?;
                return Ok(Some(items.remove(at)));
            }
            "clear" => self.items().clear(),
            "reverse" => self.items().reverse(),
            _ => return Ok(None),
        }
        Ok(Some(Value::from(())))
    }
}

/// A copy that cannot be changed. Because copies are stored, no list can contain itself. Charges fuel.
fn frozen(state: &State, value: &Value) -> Result<Value, Error> {
    walk(state, value, 0)?;
    copied(value)
}

fn copied(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq if value.downcast_object_ref::<List>().is_some() => {
            let items: Vec<Value> = value.try_iter()?.map(|item| copied(&item)).collect::<Result<_, _>>()?;
            Ok(items.into())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.map(|item| copied(&item)).collect::<Result<_, _>>()?;
            Ok(match value.downcast_object_ref::<minijinja::value::Tuple>() {
                Some(_) => Value::from(minijinja::value::Tuple::from(items)),
                None => items.into(),
            })
        }
        ValueKind::Map if is_dict(value) => {
            let keys = value.try_iter()?;
            let pairs = keys.map(|key| Ok((key.clone(), copied(&value.get_item(&key)?)?)));
            Ok(Value::from_pairs(pairs.collect::<Result<Vec<(Value, Value)>, Error>>()?))
        }
        _ => Ok(value.clone()),
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, index: &Value) -> Option<Value> {
        self.items().get(index.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }
}
