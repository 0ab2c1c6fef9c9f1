//! Calls that look like source code: `f(a='x', n=1)` in Python's syntax, `call:f{a:<|"|>x<|"|>,n:1}` in Gemma's.

use serde_json::{Map, Value};

use super::reader::{Reader, each};
use super::{CallError, arguments};
use crate::ToolCall;

/// Maximum nesting of lists and objects. It is the same in `serde_json`.
const DEPTH: u8 = 127;

/// The text with which Gemma's calls begin.
pub(super) const GEMMA_CALL: &str = "call:";

/// How strings are written.
#[derive(Debug, Clone, Copy)]
enum Quotes {
    /// In `'` or `"`, with backslash escapes.
    Python,
    /// In `<|"|>` or `<escape>`, without escapes.
    Gemma,
}

/// Parses calls in Python's syntax. They may stand in a list.
pub(super) fn python(text: &str) -> Result<Vec<ToolCall>, CallError> {
    let mut text = text.trim();
    if let Some(list) = text.strip_prefix('[') {
        let list = list.strip_suffix(']');
        text = list.ok_or_else(|| CallError::unexpected("]", ""))?;
    }
    each(text, ",;", |reader, calls| {
        // If Llama calls a tool that it knows from its training, it writes the method `call` after the tool's name.
        let name = reader.until("(")?;
        let name = name.strip_suffix(".call").unwrap_or(name);
        let arguments = reader.object("=", ")", Quotes::Python, DEPTH)?;
        calls.push(ToolCall::new(arguments::tool_name(name)?, arguments));
        Ok(())
    })
}

/// A value in Python's notation.
pub(super) fn python_value(text: &str) -> Option<Value> {
    let mut reader = Reader(text);
    let value = reader.value(Quotes::Python, DEPTH).ok()?;
    reader.end().ok()?;
    Some(value)
}

/// A call in Gemma's syntax.
pub(super) fn gemma(text: &str) -> Result<ToolCall, CallError> {
    let mut reader = Reader(text.trim());
    reader.expect(GEMMA_CALL)?;
    let name = arguments::tool_name(reader.until("{")?)?;
    let arguments = reader.object(":", "}", Quotes::Gemma, DEPTH)?;
    reader.end()?;
    Ok(ToolCall::new(name, arguments))
}

impl Reader<'_> {
    /// Parses keys with their values, up to `end`.
    fn object(&mut self, between: &str, end: &str, quotes: Quotes, depth: u8) -> Result<Value, CallError> {
        let mut object = Map::new();
        while !self.next_is(end) {
            let key = match self.string(quotes)? {
                Some(key) => {
                    self.expect(between)?;
                    key
                }
                None => {
                    let key = self.until(between)?.trim();
                    if !key.chars().all(|c| arguments::in_a_name(c) || c == ' ') {
                        return Err(CallError::unexpected("the name of an argument", key));
                    }
                    key.to_owned()
                }
            };
            object.insert(key, self.value(quotes, depth)?);
            self.comma_or(end)?;
        }
        Ok(object.into())
    }

    fn list(&mut self, end: &str, quotes: Quotes, depth: u8) -> Result<Value, CallError> {
        let mut list = Vec::new();
        while !self.next_is(end) {
            list.push(self.value(quotes, depth)?);
            self.comma_or(end)?;
        }
        Ok(list.into())
    }

    fn comma_or(&mut self, end: &str) -> Result<(), CallError> {
        match self.next_is(",") || self.0.starts_with(end) {
            true => Ok(()),
            false => Err(self.unexpected(end)),
        }
    }

    fn value(&mut self, quotes: Quotes, depth: u8) -> Result<Value, CallError> {
        if let Some(text) = self.string(quotes)? {
            return Ok(text.into());
        }
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.unexpected("a value that is nested less deeply"));
        };
        if self.next_is("[") {
            self.list("]", quotes, depth)
        } else if self.next_is("(") {
            self.list(")", quotes, depth)
        } else if self.next_is("{") {
            self.object(":", "}", quotes, depth)
        } else {
            self.word()
        }
    }

    /// A number, a boolean or `None`.
    fn word(&mut self) -> Result<Value, CallError> {
        let is_end = |c: char| c.is_whitespace() || ",)]}".contains(c);
        let word = &self.0[..self.0.find(is_end).unwrap_or(self.0.len())];
        let value = match word {
            "True" => true.into(),
            "False" => false.into(),
            "None" => Value::Null,
            _ => word.parse().map_err(|_| self.unexpected("a value"))?,
        };
        self.take(word.len());
        Ok(value)
    }

    /// If a string comes next, reads it.
    fn string(&mut self, quotes: Quotes) -> Result<Option<String>, CallError> {
        match quotes {
            Quotes::Gemma if self.next_is("<|\"|>") => Ok(Some(self.until("<|\"|>")?.to_owned())),
            Quotes::Gemma if self.next_is("<escape>") => Ok(Some(self.until("<escape>")?.to_owned())),
            // Sometimes models write lists and objects as JSON, with strings in plain quotation marks.
            Quotes::Gemma if self.next_is("\"") => self.quoted('"').map(Some),
            Quotes::Python if self.next_is("'") => self.quoted('\'').map(Some),
            Quotes::Python if self.next_is("\"") => self.quoted('"').map(Some),
            _ => Ok(None),
        }
    }

    /// Reads a string, up to the quotation mark with which the value ends. Quotation marks before it belong to the
    /// string, because templates do not escape them.
    fn quoted(&mut self, quote: char) -> Result<String, CallError> {
        let mut text = String::new();
        let mut rest = self.0.chars();
        while let Some(c) = rest.next() {
            if c == quote && ends_a_value(rest.as_str()) {
                self.0 = rest.as_str();
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            match rest.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some('b') => text.push('\u{8}'),
                Some('f') => text.push('\u{c}'),
                Some(escaped @ ('\\' | '\'' | '"')) => text.push(escaped),
                Some(other) => text.extend(['\\', other]),
                None => text.push('\\'),
            }
        }
        Err(CallError::unexpected(&quote.to_string(), ""))
    }
}

fn ends_a_value(behind: &str) -> bool {
    let next = behind.trim_start().chars().next();
    next.is_none_or(|c| ",)]}:".contains(c))
}
