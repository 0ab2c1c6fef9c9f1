//! The global functions of jinja2 and transformers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use minijinja::functions::{dict, namespace};
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::globals::joiner;

use super::arguments::split;
use super::clock::LocalTime;
use super::fault::{carried, failed};
use super::kept::{kept, walk};

pub(super) fn add(environment: &mut Environment<'_>, now: Option<LocalTime>) {
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(carried(crate::Error::Refused { reason: message.to_string() }))
    });
    // All parts of a prompt see the same time.
    let now_once = OnceLock::new();
    environment.add_function("strftime_now", move |format: &str| {
        if format.len() > 1000 {
            return Err(failed("strftime_now: the format has more than 1000 bytes"));
        }
        now_once.get_or_init(|| now.unwrap_or_else(LocalTime::now)).format(format)
    });
    environment.add_function("joiner", joiner);
    environment.remove_global("debug");
    // These functions make objects that contain other values. Fuel for those values is charged here.
    environment.add_function("cycler", |state: &State, items: Rest<Value>| {
        for item in items.iter() {
            walk(state, item, 0)?;
        }
        match items.is_empty() {
            true => Err(failed("at least one item has to be provided")),
            false => Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) })),
        }
    });
    environment.add_function("dict", |state: &State, value: Option<Value>, named: Kwargs| {
        let value = match value {
            Some(value) if value.kind() == ValueKind::Map => Some(value),
            // `dict` also accepts a list of pairs, each with a key and a value.
            Some(value) if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) => {
                let pairs = value.try_iter()?.map(|pair| Ok((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?)));
                Some(Value::from_pairs(pairs.collect::<Result<Vec<(Value, Value)>, Error>>()?))
            }
            Some(value) => return Err(failed(format!("dict() does not accept a {}", value.kind()))),
            None => None,
        };
        kept(state, dict(value, named)?)
    });
    environment.add_function("namespace", |state: &State, arguments: Rest<ValueOrKwargs>| {
        let arguments: Vec<Value> = arguments.0.into_iter().map(ValueOrKwargs::into_value).collect();
        let (given, named) = split(&arguments)?;
        let mut entries: Vec<(Value, Value)> = Vec::new();
        for map in &given {
            for key in map.try_iter()? {
                let value = map.get_item(&key)?;
                entries.push((key, value));
            }
        }
        for name in named.args() {
            let value: Value = named.get(name)?;
            entries.push((name.into(), value));
        }
        let names: Vec<&str> = entries.iter().filter_map(|(name, _)| name.as_str()).collect();
        if let Some(private) = names.into_iter().find(|name| name.starts_with('_')) {
            return Err(failed(format!(
                "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{private}'"
            )));
        }
        let entries = Value::from_pairs(entries);
        let (defaults,): (Option<ValueOrKwargs>,) = from_args(std::slice::from_ref(&entries))?;
        let made = namespace(defaults)?;
        for key in made.try_iter()? {
            walk(state, &made.get_item(&key)?, 0)?;
        }
        Ok::<_, Error>(made)
    });
}

/// The object that is `Cycler` in jinja2.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        let at = self.at.load(Ordering::Relaxed) % self.items.len();
        self.items[at].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        let () = from_args(arguments)?;
        match method {
            "next" => {
                let item = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(item)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
