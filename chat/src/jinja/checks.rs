//! jinja2's tests that minijinja has otherwise, and those that read all of a value.

use std::sync::Arc;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Value};

use super::fault::failed;
use super::meter::Meter;
use super::operators::{contains, is_ordered, whole_of};

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    for name in ["lower", "upper"] {
        let of = Arc::clone(meter);
        environment.add_test(name, move |value: &Value| {
            of.reads(value)?;
            let text = value.to_string();
            let is_other = |c: char| {
                if name == "lower" {
                    c.is_uppercase()
                } else {
                    c.is_lowercase()
                }
            };
            Ok::<_, Error>(!text.chars().any(is_other) && text.chars().any(char::is_alphabetic))
        });
    }
    for (operator, names) in [
        ("<", ["lt", "lessthan", "<"].as_slice()),
        ("<=", &["le", "<="]),
        (">", &["gt", "greaterthan", ">"]),
        (">=", &["ge", ">="]),
    ] {
        for name in names {
            let of = Arc::clone(meter);
            environment.add_test(*name, move |value: &Value, other: &Value| {
                is_ordered(&of, operator, value, other)
            });
        }
    }
    for name in ["startingwith", "endingwith", "containing"] {
        environment.remove_test(name);
    }
    for name in ["in", "eq", "equalto", "==", "ne", "!="] {
        let of = Arc::clone(meter);
        environment.add_test(name, move |value: &Value, other: &Value| {
            if name == "in" {
                return contains(&of, other, value);
            }
            of.reads(value)?;
            of.reads(other)?;
            Ok::<_, Error>(match name {
                "ne" | "!=" => value != other,
                _ => value == other,
            })
        });
    }
    for (name, remainder) in [("even", 0), ("odd", 1)] {
        environment.add_test(name, move |value: &Value| is_remainder(value, 2, remainder));
    }
    environment.add_test("divisibleby", |value: &Value, divisor: i32| {
        is_remainder(value, divisor, 0)
    });
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
}

/// Whether a number divided by another leaves this.
fn is_remainder(value: &Value, divisor: i32, remainder: i32) -> Result<bool, Error> {
    let undefined = || failed(format!("a {} has no remainder", value.kind()));
    if let Some(whole) = whole_of(value) {
        let left = whole.checked_rem_euclid(divisor.into());
        return Ok(left.ok_or_else(undefined)? == remainder.into());
    }
    match value.kind() {
        ValueKind::Number => {
            let left = f64::try_from(value.clone())?.rem_euclid(divisor.into());
            Ok((left - f64::from(remainder)).abs() < f64::EPSILON)
        }
        _ => Err(undefined()),
    }
}
