//! The filter `tojson`, as transformers defines it: Python's `json.dumps`, but without escapes for `<` and `é`
//! (`chat_template_utils.py`, `tojson`).

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, State, Value};

use super::fault::failed;
use super::kept::walk;
use super::printing::number;

/// The options for `json.dumps`.
pub(super) struct Dumps {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Dumps {
    /// Reads the filter's arguments, which may be positional or named: `ensure_ascii`, `indent`, `separators`,
    /// `sort_keys`.
    pub(super) fn from_arguments(arguments: &[Value], named: &Kwargs) -> Result<Self, Error> {
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
                let width = i64::try_from(indent)?.clamp(0, MAX_INDENT);
                Some(" ".repeat(usize::try_from(width).unwrap_or(0)))
            }
            None => None,
        };
        let (item_separator, key_separator) = match argument(2, "separators")? {
            Some(separators) => {
                let text = |index: usize| -> Result<String, Error> {
                    let separator = separators.get_item_by_index(index)?;
                    let separator = separator.as_str().map(str::to_owned);
                    separator.ok_or_else(|| failed("tojson: `separators` must be two texts"))
                };
                (text(0)?, text(1)?)
            }
            // Python's defaults. If there is an indent, no space follows the comma after an item.
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        let flag =
            |index, name| -> Result<bool, Error> { Ok(argument(index, name)?.is_some_and(|value| value.is_true())) };
        Ok(Self {
            ensure_ascii: flag(0, "ensure_ascii")?,
            sort_keys: flag(3, "sort_keys")?,
            indent,
            item_separator,
            key_separator,
        })
    }

    pub(super) fn dump(&self, state: &State, value: &Value) -> Result<String, Error> {
        walk(state, value, 0)?;
        let mut out = String::new();
        self.write(state, value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, state: &State, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(match &*number(value) {
                "nan" => "NaN",
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                number => number,
            }),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                out.push('[');
                for (index, item) in value.try_iter()?.enumerate() {
                    self.begin_item(state, index, level, out)?;
                    self.write(state, &item, level + 1, out)?;
                }
                self.end_items(value, level, out);
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (index, key) in keys.iter().enumerate() {
                    self.begin_item(state, index, level, out)?;
                    let mut name = String::new();
                    match key.kind() {
                        ValueKind::String => name.push_str(key.as_str().unwrap_or_default()),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            self.write(state, key, level, &mut name)?;
                        }
                        kind => return Err(failed(format!("tojson: a key cannot be a {kind}"))),
                    }
                    self.text(&name, out);
                    out.push_str(&self.key_separator);
                    self.write(state, &value.get_item(key)?, level + 1, out)?;
                }
                self.end_items(value, level, out);
                out.push('}');
            }
            kind => {
                return Err(failed(format!("tojson: Object of type {kind} is not JSON serializable")));
            }
        }
        Ok(())
    }

    /// Separators and indents may have any length, so they cost additional fuel.
    fn begin_item(&self, state: &State, index: usize, level: usize, out: &mut String) -> Result<(), Error> {
        let indent = self.indent.as_ref().map_or(0, String::len);
        let bytes = self.item_separator.len() + self.key_separator.len() + indent.saturating_mul(level + 1);
        state.consume_fuel((bytes / 64) as u64)?;
        if index > 0 {
            out.push_str(&self.item_separator);
        }
        self.line(level + 1, out);
        Ok(())
    }

    fn end_items(&self, value: &Value, level: usize, out: &mut String) {
        if value.len() != Some(0) {
            self.line(level, out);
        }
    }

    fn line(&self, level: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(level));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ensure_ascii {
            return out.push_str(&quoted);
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}

/// Maximum indent. No published template needs more, and an output with this indent is not much longer.
const MAX_INDENT: i64 = 1000;
