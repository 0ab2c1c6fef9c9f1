//! `tojson` as transformers has it: Python's `json.dumps`, which keeps `<` and `é` as they are (`chat_template_utils.py`, `tojson`).

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::fault::failed;
use super::meter::Meter;
use super::printing::python_float;

/// How a value is written.
pub(super) struct Dumps {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Dumps {
    /// By the arguments of the filter: `ensure_ascii`, `indent`, `separators`, `sort_keys`, also in this order.
    pub(super) fn of(arguments: &[Value], named: &Kwargs) -> Result<Self, Error> {
        let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
            let value = match arguments.get(index) {
                Some(value) => Some(value.clone()),
                None => named.get::<Option<Value>>(name)?,
            };
            Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
        };
        let indent = match argument(1, "indent")? {
            Some(indent) if indent.as_str().is_some() => indent.as_str().map(str::to_owned),
            Some(indent) => {
                let width = i64::try_from(indent)?.clamp(0, MOST_INDENT);
                Some(" ".repeat(usize::try_from(width).unwrap_or(0)))
            }
            None => None,
        };
        let (item_separator, key_separator) = match argument(2, "separators")? {
            Some(separators) => {
                let text = |index: usize| -> Result<String, Error> {
                    let separator = separators.get_item_by_index(index)?;
                    let separator = separator.as_str().map(str::to_owned);
                    separator.ok_or_else(|| failed("tojson: separators are two texts"))
                };
                (text(0)?, text(1)?)
            }
            // Python's default; behind items no space where lines end there.
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        let flag = |index, name| -> Result<bool, Error> {
            Ok(argument(index, name)?.is_some_and(|value| value.is_true()))
        };
        Ok(Self {
            ensure_ascii: flag(0, "ensure_ascii")?,
            sort_keys: flag(3, "sort_keys")?,
            indent,
            item_separator,
            key_separator,
        })
    }

    pub(super) fn dump(&self, value: &Value, meter: &Meter) -> Result<String, Error> {
        meter.reads(value)?;
        let mut out = String::new();
        self.write(value, 0, meter, &mut out)?;
        Ok(out)
    }

    fn write(
        &self,
        value: &Value,
        level: usize,
        meter: &Meter,
        out: &mut String,
    ) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => {
                self.text(value.as_str().unwrap_or_default(), meter, out)?;
            }
            ValueKind::Seq => {
                let mut items = value.try_iter()?.peekable();
                out.push('[');
                let is_empty = items.peek().is_none();
                for (index, item) in items.enumerate() {
                    self.begin_item(index, level, meter, out)?;
                    self.write(&item, level + 1, meter, out)?;
                }
                self.end_items(is_empty, level, meter, out)?;
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (index, key) in keys.iter().enumerate() {
                    self.begin_item(index, level, meter, out)?;
                    match key.kind() {
                        ValueKind::String => {
                            self.text(key.as_str().unwrap_or_default(), meter, out)?;
                        }
                        ValueKind::None => out.push_str("\"null\""),
                        ValueKind::Bool => {
                            let _ = write!(out, "\"{}\"", key.is_true());
                        }
                        ValueKind::Number => {
                            let _ = write!(out, "\"{}\"", number(key));
                        }
                        kind => return Err(failed(format!("tojson: a key is a {kind}"))),
                    }
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, level + 1, meter, out)?;
                }
                self.end_items(keys.is_empty(), level, meter, out)?;
                out.push('}');
            }
            kind => {
                return Err(failed(format!(
                    "tojson: Object of type {kind} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn begin_item(
        &self,
        index: usize,
        level: usize,
        meter: &Meter,
        out: &mut String,
    ) -> Result<(), Error> {
        meter.makes(self.item_separator.len() + self.key_separator.len())?;
        if index > 0 {
            out.push_str(&self.item_separator);
        }
        self.line(level + 1, meter, out)
    }

    fn end_items(
        &self,
        is_empty: bool,
        level: usize,
        meter: &Meter,
        out: &mut String,
    ) -> Result<(), Error> {
        if is_empty {
            return Ok(());
        }
        self.line(level, meter, out)
    }

    fn line(&self, level: usize, meter: &Meter, out: &mut String) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            meter.makes(1 + indent.len().saturating_mul(level))?;
            out.push('\n');
            for _ in 0..level {
                out.push_str(indent);
            }
        }
        Ok(())
    }

    fn text(&self, text: &str, meter: &Meter, out: &mut String) -> Result<(), Error> {
        let is_escaped = |byte: &u8| *byte < b' ' || matches!(byte, b'"' | b'\\' | 0x7f..);
        meter.makes(text.len() + 6 * text.bytes().filter(is_escaped).count())?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c >= '\u{7f}' && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

/// Wider than any published template indents, and no way to make much of little.
const MOST_INDENT: i64 = 1000;

/// A number as Python writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => "NaN".to_owned(),
        Ok(float) if float == f64::INFINITY => "Infinity".to_owned(),
        Ok(float) if float == f64::NEG_INFINITY => "-Infinity".to_owned(),
        Ok(float) => python_float(float),
        Err(_) => value.to_string(),
    }
}
