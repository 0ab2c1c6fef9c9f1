//! Python's operators, and what jinja2 makes of `for`: each counts what it takes before it takes it.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::fault::failed;
use super::functions::printf;
use super::guard::{ADD, CONCAT, CYCLE, IN, ITEMS, MODULO, MULTIPLY, ORDERED, SLICE};
use super::markup::{escaped, like};
use super::meter::{BYTES_PER_VALUE, Meter};
use super::printing::text_of;
use super::sequences::{is_tuple, items, list_like, slice};

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let of = Arc::clone(meter);
    environment.add_function(CONCAT, move |values: Rest<Value>| concat(&of, &values));
    let of = Arc::clone(meter);
    environment.add_function(ADD, move |values: Rest<Value>| sum(&of, &values));
    let of = Arc::clone(meter);
    environment.add_function(MULTIPLY, move |left: &Value, right: &Value| {
        product(&of, left, right)
    });
    let of = Arc::clone(meter);
    environment.add_function(MODULO, move |left: &Value, right: &Value| {
        modulo(&of, left, right)
    });
    let of = Arc::clone(meter);
    environment.add_function(IN, move |value: &Value, container: &Value| {
        contains(&of, container, value)
    });
    let of = Arc::clone(meter);
    environment.add_function(
        ORDERED,
        move |operator: &str, left: &Value, right: &Value| is_ordered(&of, operator, left, right),
    );
    let of = Arc::clone(meter);
    environment.add_function(
        SLICE,
        move |value: &Value, start: &Value, stop: &Value, step: &Value| {
            slice(&of, value, start, stop, step)
        },
    );
    let of = Arc::clone(meter);
    let gone_through = move |value: &Value| items(&of, value);
    environment.add_function(ITEMS, gone_through.clone());
    environment.add_filter(ITEMS, gone_through);
    environment.add_function(CYCLE, |of: &Value, values: Rest<Value>| {
        let index = of.get_attr("index0")?;
        let index = usize::try_from(index).map_err(|_| failed("only a loop has a cycle"))?;
        let value = index
            .checked_rem(values.len())
            .and_then(|index| values.get(index));
        value
            .cloned()
            .ok_or_else(|| failed("no items for cycling given"))
    });
}

fn concat(meter: &Meter, values: &[Value]) -> Result<String, Error> {
    let mut out = String::new();
    for value in values {
        if let Some(text) = value.as_str() {
            meter.makes(text.len())?;
            out.push_str(text);
        } else {
            out.push_str(&text_of(meter, value)?);
        }
    }
    Ok(out)
}

/// `a + b + c`.
fn sum(meter: &Meter, values: &[Value]) -> Result<Value, Error> {
    if values
        .iter()
        .all(|value| value.as_str().is_some() && !value.is_safe())
    {
        return Ok(concat(meter, values)?.into());
    }
    let mut values = values.iter();
    let first = values.next().cloned().unwrap_or_default();
    values.try_fold(first, |left, right| plus(meter, &left, right))
}

fn plus(meter: &Meter, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(text), Some(more)) = (left.as_str(), right.as_str()) {
        meter.makes(text.len().saturating_add(more.len()))?;
        return Ok(match (left.is_safe(), right.is_safe()) {
            (false, false) => [text, more].concat().into(),
            // Marked as HTML, one text makes the other so.
            (true, false) => Value::from_safe_string([text, &escaped(meter, more)?].concat()),
            (false, true) => Value::from_safe_string([&escaped(meter, text)?, more].concat()),
            (true, true) => Value::from_safe_string([text, more].concat()),
        });
    }
    let is_list = |value: &Value| value.kind() == ValueKind::Seq;
    if is_list(left) && is_list(right) && is_tuple(left) == is_tuple(right) {
        let length = left
            .len()
            .unwrap_or(0)
            .saturating_add(right.len().unwrap_or(0));
        meter.makes(length.saturating_mul(BYTES_PER_VALUE))?;
        let items = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(list_like(left, items));
    }
    match numbers(left, right) {
        Some(Numbers::Whole(left, right)) => whole(left.checked_add(right)),
        Some(Numbers::Float(left, right)) => Ok((left + right).into()),
        None => Err(unsupported("+", left, right)),
    }
}

fn product(meter: &Meter, left: &Value, right: &Value) -> Result<Value, Error> {
    for (value, times) in [(left, right), (right, left)] {
        let is_repeated = matches!(value.kind(), ValueKind::String | ValueKind::Seq);
        let Some(times) = is_repeated.then(|| whole_of(times)).flatten() else {
            continue;
        };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = value.as_str() {
            meter.makes(text.len().saturating_mul(times))?;
            return Ok(like(
                value,
                text.repeat(if text.is_empty() { 0 } else { times }),
            ));
        }
        let length = value.len().unwrap_or(0).saturating_mul(times);
        meter.makes(length.saturating_mul(BYTES_PER_VALUE))?;
        let items: Vec<Value> = value.try_iter()?.collect();
        let items = items.iter().cycle().take(length).cloned().collect();
        return Ok(list_like(value, items));
    }
    match numbers(left, right) {
        Some(Numbers::Whole(left, right)) => whole(left.checked_mul(right)),
        Some(Numbers::Float(left, right)) => Ok((left * right).into()),
        None => Err(unsupported("*", left, right)),
    }
}

/// Python's `%`: of a text, its format; of numbers, the remainder with the sign of the divisor.
fn modulo(meter: &Meter, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let arguments: Vec<Value> = match is_tuple(right) {
            true => right.try_iter()?.collect(),
            false => vec![right.clone()],
        };
        let arguments: Result<Vec<Value>, Error> = arguments
            .into_iter()
            .map(|argument| match argument.as_str() {
                Some(text) if left.is_safe() && !argument.is_safe() => {
                    escaped(meter, text).map(Value::from)
                }
                _ => Ok(argument),
            })
            .collect();
        return Ok(like(left, printf(meter, text, &arguments?)?));
    }
    match numbers(left, right) {
        Some(Numbers::Whole(_, 0)) => Err(failed("integer modulo by zero")),
        Some(Numbers::Whole(left, right)) => {
            let remainder = left.wrapping_rem(right);
            let differs = remainder != 0 && (remainder < 0) != (right < 0);
            whole(Some(if differs {
                remainder + right
            } else {
                remainder
            }))
        }
        Some(Numbers::Float(_, 0.0)) => Err(failed("float modulo by zero")),
        Some(Numbers::Float(left, right)) => {
            let remainder = left % right;
            let differs = remainder != 0.0 && (remainder < 0.0) != (right < 0.0);
            Ok(Value::from(if differs {
                remainder + right
            } else {
                remainder
            }))
        }
        None => Err(unsupported("%", left, right)),
    }
}

/// Python's `in`.
pub(super) fn contains(meter: &Meter, container: &Value, value: &Value) -> Result<bool, Error> {
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::String => {
            let part = value.as_str().ok_or_else(|| {
                failed(format!(
                    "'in <string>' requires string as left operand, not {}",
                    python_type(value)
                ))
            })?;
            meter.glances(container)?;
            meter.glances(value)?;
            Ok(container.as_str().unwrap_or_default().contains(part))
        }
        ValueKind::Map => {
            let is_list = value.kind() == ValueKind::Seq && !is_tuple(value);
            if is_list || value.kind() == ValueKind::Map {
                return Err(failed(format!("unhashable type: {}", python_type(value))));
            }
            meter.reads(value)?;
            Ok(!container.get_item(value)?.is_undefined())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let cost = meter.cost(value)?;
            for item in container.try_iter()? {
                meter.steps(cost)?;
                if item == *value {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(failed(format!(
            "argument of type {} is not iterable",
            python_type(container)
        ))),
    }
}

/// Python's `<`, `<=`, `>` and `>=`.
pub(super) fn is_ordered(
    meter: &Meter,
    operator: &str,
    left: &Value,
    right: &Value,
) -> Result<bool, Error> {
    let ordering = compared(meter, operator, left, right)?;
    Ok(ordering.is_some_and(|it| match operator {
        "<" => it.is_lt(),
        "<=" => it.is_le(),
        ">" => it.is_gt(),
        _ => it.is_ge(),
    }))
}

/// How two values are ordered; `None` where one is not a number.
fn compared(
    meter: &Meter,
    operator: &str,
    left: &Value,
    right: &Value,
) -> Result<Option<Ordering>, Error> {
    meter.reads(left)?;
    meter.reads(right)?;
    let are = |kind| left.kind() == kind && right.kind() == kind;
    match numbers(left, right) {
        Some(Numbers::Whole(left, right)) => Ok(Some(left.cmp(&right))),
        Some(Numbers::Float(left, right)) => Ok(left.partial_cmp(&right)),
        None if are(ValueKind::String) => Ok(Some(left.as_str().cmp(&right.as_str()))),
        None if are(ValueKind::Seq) && is_tuple(left) == is_tuple(right) => {
            for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
                if left != right {
                    return compared(meter, operator, &left, &right);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        None => Err(failed(format!(
            "'{operator}' not supported between instances of {} and {}",
            python_type(left),
            python_type(right)
        ))),
    }
}

enum Numbers {
    Whole(i128, i128),
    Float(f64, f64),
}

fn numbers(left: &Value, right: &Value) -> Option<Numbers> {
    match (whole_of(left), whole_of(right)) {
        (Some(left), Some(right)) => Some(Numbers::Whole(left, right)),
        _ => Some(Numbers::Float(float_of(left)?, float_of(right)?)),
    }
}

/// A whole number, which a bool is in Python.
pub(super) fn whole_of(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn float_of(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn whole(number: Option<i128>) -> Result<Value, Error> {
    let number = number.ok_or_else(|| failed("a whole number of more than 128 bits"))?;
    Ok(i64::try_from(number).map_or_else(|_| Value::from(number), Value::from))
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    let (left, right) = (python_type(left), python_type(right));
    failed(format!(
        "unsupported operand type(s) for {operator}: {left} and {right}"
    ))
}

/// What Python calls the type of a value.
pub(super) fn python_type(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "'Undefined'",
        ValueKind::None => "'NoneType'",
        ValueKind::Bool => "'bool'",
        ValueKind::Number if value.is_integer() => "'int'",
        ValueKind::Number => "'float'",
        ValueKind::String => "'str'",
        ValueKind::Seq if is_tuple(value) => "'tuple'",
        ValueKind::Seq => "'list'",
        ValueKind::Map => "'dict'",
        ValueKind::Iterable => "'generator'",
        _ => "'object'",
    }
}
