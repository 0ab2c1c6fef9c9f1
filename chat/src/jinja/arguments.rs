//! Assigns arguments to parameters by position or by name, as Python does.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::fault::failed;

/// The value of each parameter; `None` if its argument is missing. `names` are the parameters in order. The first
/// `only` parameters accept arguments by position only.
pub(super) fn bound(of: &str, arguments: &[Value], only: usize, names: &[&str]) -> Result<Vec<Option<Value>>, Error> {
    let (mut values, named) = split(arguments)?;
    if values.len() > names.len() {
        let (most, given) = (names.len(), values.len());
        return Err(failed(format!("{of}() takes at most {most} arguments ({given} given)")));
    }
    let mut bound: Vec<Option<Value>> = values.drain(..).map(Some).collect();
    bound.resize(names.len(), None);
    for (index, name) in names.iter().enumerate().skip(only) {
        if named.has(name) {
            if bound[index].is_some() {
                return Err(failed(format!("{of}() got multiple values for argument '{name}'")));
            }
            bound[index] = Some(named.get::<Value>(name)?);
        }
    }
    named.assert_all_used()?;
    Ok(bound)
}

/// Separates positional arguments from named ones.
pub(super) fn split(arguments: &[Value]) -> Result<(Vec<Value>, Kwargs), Error> {
    match arguments.split_last() {
        Some((last, before)) if last.is_kwargs() => Ok((before.to_vec(), Kwargs::try_from(last.clone())?)),
        _ => Ok((arguments.to_vec(), Kwargs::from_iter(std::iter::empty::<(String, Value)>()))),
    }
}

/// The text of an optional argument; `None` if it is missing.
pub(super) fn text(value: &Option<Value>) -> Result<Option<&str>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(failed(format!("expected a text, not a {}", value.kind()))),
        },
    }
}

/// The whole number of an optional argument; `None` if it is missing.
pub(super) fn integer(value: &Option<Value>) -> Result<Option<i64>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) if value.kind() == ValueKind::Bool => Ok(Some(i64::from(value.is_true()))),
        Some(value) => i64::try_from(value.clone()).map(Some),
    }
}

/// Whether an optional argument is given and true.
pub(super) fn flag(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}
