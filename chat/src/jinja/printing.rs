//! Values as Python prints them: what `str` and `repr` make of them.

use std::fmt::Write as _;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::meter::Meter;

/// Python's `str`.
pub(super) fn text_of(meter: &Meter, value: &Value) -> Result<String, Error> {
    meter.reads(value)?;
    let mut out = String::new();
    match value.kind() {
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => {}
        _ => repr(meter, value, &mut out)?,
    }
    meter.makes(out.len())?;
    Ok(out)
}

/// Python's `repr`.
fn repr(meter: &Meter, value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(
                &f64::try_from(value.clone()).map_or_else(|_| value.to_string(), python_float),
            );
        }
        // Quotes and escapes are minijinja's, which are Python's.
        ValueKind::String => {
            meter.makes(value.as_str().map_or(0, str::len))?;
            let _ = write!(out, "{value:?}");
        }
        ValueKind::Seq => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if is_tuple { '(' } else { '[' });
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(meter, &item, out)?;
            }
            if is_tuple && value.len() == Some(1) {
                out.push(',');
            }
            out.push(if is_tuple { ')' } else { ']' });
        }
        // Macros and loops are maps here, but say what they are.
        ValueKind::Map if super::meter::is_dict(value) => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(meter, &key, out)?;
                out.push_str(": ");
                repr(meter, &value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        ValueKind::Iterable => out.push_str("<generator object>"),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// Python's `repr` of a float: the fewest digits that are this number, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn python_float(float: f64) -> String {
    if !float.is_finite() {
        return float.to_string().to_lowercase();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || float == 0.0 {
        let plain = format!("{float}");
        return if plain.contains('.') {
            plain
        } else {
            format!("{plain}.0")
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_are_pythons() {
        for (float, written) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(python_float(float), written);
        }
    }
}
