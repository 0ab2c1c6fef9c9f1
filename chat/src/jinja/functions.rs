//! The functions that a template finds: those of jinja2 and transformers.

use std::sync::OnceLock;

use minijinja::functions::{dict, namespace};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};
use minijinja_contrib::globals::{cycler, joiner};

use super::clock::LocalTime;
use super::fault::{carried, failed};
use super::kept::{kept, walk};

pub(super) fn add(environment: &mut Environment<'_>, now: Option<LocalTime>) {
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(carried(crate::Error::Refused { reason: message.to_string() }))
    });
    // All of a prompt is of one moment.
    let now_once = OnceLock::new();
    environment.add_function("strftime_now", move |format: &str| {
        if format.len() > 1000 {
            return Err(failed("strftime_now: a format of over 1000 bytes"));
        }
        now_once.get_or_init(|| now.unwrap_or_else(LocalTime::now)).format(format)
    });
    environment.add_function("joiner", joiner);
    environment.remove_global("debug");
    // These hold other values.
    environment.add_function("cycler", |state: &State, items: Rest<Value>| {
        for item in items.iter() {
            walk(state, item, 0)?;
        }
        cycler(items.0)
    });
    environment.add_function("dict", |state: &State, value: Option<Value>, named: Kwargs| {
        if let Some(value) = value.as_ref().filter(|value| value.kind() != ValueKind::Map) {
            return Err(failed(format!("dict() of a {}", value.kind())));
        }
        kept(state, dict(value, named)?)
    });
    environment.add_function("namespace", |state: &State, defaults: Option<ValueOrKwargs>| {
        let made = namespace(defaults)?;
        for key in made.try_iter()? {
            walk(state, &made.get_item(&key)?, 0)?;
        }
        Ok::<_, Error>(made)
    });
}
