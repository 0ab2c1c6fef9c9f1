//! Calls that look like a program's: `f(a='x', n=1)` in Python's way, `call:f{a:<|"|>x<|"|>,n:1}` in Gemma's.

use serde_json::{Map, Value};

use super::call::{Reader, each};
use super::{CallError, arguments};
use crate::ToolCall;

/// Lists and objects within each other, as deep as `serde_json` reads them.
const DEPTH: u8 = 127;

/// The beginning of Gemma's calls.
pub(super) const GEMMA_CALL: &str = "call:";
/// What stands around Gemma's strings, in which nothing is escaped.
const GEMMA_QUOTE: &str = "<|\"|>";

/// Calls as Python writes them, in a list or not.
pub(super) fn python(text: &str) -> Result<Vec<ToolCall>, CallError> {
    let mut text = text.trim();
    if let Some(list) = text.strip_prefix('[') {
        let list = list.strip_suffix(']');
        text = list.ok_or_else(|| CallError::unexpected("]", ""))?;
    }
    each(text, ",;", |reader, calls| {
        // Llama calls the tools that it was trained with by a method of theirs.
        let name = reader.until("(")?;
        let name = name.strip_suffix(".call").unwrap_or(name);
        let arguments = Literal::python(reader).object("=", ")", DEPTH)?;
        calls.push(ToolCall {
            id: None,
            name: arguments::tool_name(name)?,
            arguments,
        });
        Ok(())
    })
}

/// A value as Python prints it.
pub(super) fn python_value(text: &str) -> Option<Value> {
    let mut reader = Reader(text);
    let value = Literal::python(&mut reader).value(DEPTH).ok()?;
    reader.end().ok()?;
    Some(value)
}

/// A call as Gemma 4 writes it.
pub(super) fn gemma(text: &str) -> Result<Vec<ToolCall>, CallError> {
    let mut reader = Reader(text.trim());
    reader.expect(GEMMA_CALL)?;
    let name = arguments::tool_name(reader.until("{")?)?;
    let mut literal = Literal {
        reader: &mut reader,
        is_gemma: true,
    };
    let arguments = literal.object(":", "}", DEPTH)?;
    reader.end()?;
    Ok(vec![ToolCall {
        id: None,
        name,
        arguments,
    }])
}

struct Literal<'r, 'a> {
    reader: &'r mut Reader<'a>,
    /// Whether strings are Gemma's, and not Python's.
    is_gemma: bool,
}

impl<'r, 'a> Literal<'r, 'a> {
    fn python(reader: &'r mut Reader<'a>) -> Self {
        Self {
            reader,
            is_gemma: false,
        }
    }

    /// Whether `mark` is next, behind whitespace; then it is read.
    fn next_is(&mut self, mark: &str) -> bool {
        self.reader.skip();
        self.reader.next_is(mark)
    }

    /// Reads `item` over and over up to `end`, and commas between.
    fn items(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        while !self.next_is(end) {
            item(self)?;
            if !self.next_is(",") && !self.reader.0.starts_with(end) {
                return Err(self.reader.unexpected(end));
            }
        }
        Ok(())
    }

    /// Keys and values up to `end`.
    fn object(&mut self, between: &str, end: &str, depth: u8) -> Result<Value, CallError> {
        let mut object = Map::new();
        self.items(end, |this| {
            let key = match this.string()? {
                Some(key) => {
                    this.reader.skip();
                    this.reader.expect(between)?;
                    key
                }
                None => this.reader.until(between)?.trim().to_owned(),
            };
            if !key.chars().all(|c| arguments::in_a_name(c) || c == ' ') {
                return Err(CallError::unexpected("the name of an argument", &key));
            }
            object.insert(key, this.value(depth)?);
            Ok(())
        })?;
        Ok(object.into())
    }

    fn list(&mut self, end: &str, depth: u8) -> Result<Value, CallError> {
        let mut list = Vec::new();
        self.items(end, |this| {
            list.push(this.value(depth)?);
            Ok(())
        })?;
        Ok(list.into())
    }

    fn value(&mut self, depth: u8) -> Result<Value, CallError> {
        if let Some(text) = self.string()? {
            return Ok(text.into());
        }
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.reader.unexpected("a value less deep"));
        };
        if self.next_is("[") {
            self.list("]", depth)
        } else if self.next_is("(") {
            self.list(")", depth)
        } else if self.next_is("{") {
            self.object(":", "}", depth)
        } else {
            self.word()
        }
    }

    /// A number, a truth value or nothing.
    fn word(&mut self) -> Result<Value, CallError> {
        let text = self.reader.0;
        let is_end = |c: char| c.is_whitespace() || ",)]}".contains(c);
        let word = &text[..text.find(is_end).unwrap_or(text.len())];
        let value = match word {
            "True" => true.into(),
            "False" => false.into(),
            "None" => Value::Null,
            _ => serde_json::from_str(word).map_err(|_| self.reader.unexpected("a value"))?,
        };
        self.reader.take(word.len());
        Ok(value)
    }

    /// A string, if one is next.
    fn string(&mut self) -> Result<Option<String>, CallError> {
        self.reader.skip();
        if self.is_gemma {
            let is_string = self.reader.next_is(GEMMA_QUOTE);
            return is_string
                .then(|| Ok(self.reader.until(GEMMA_QUOTE)?.to_owned()))
                .transpose();
        }
        let quote = self.reader.0.chars().next();
        let quote = quote.filter(|c| "'\"".contains(*c));
        quote.map(|quote| self.quoted(quote)).transpose()
    }

    /// Templates put strings between quotes without escaping those within: only a quote that ends a value
    /// ends the string.
    fn quoted(&mut self, quote: char) -> Result<String, CallError> {
        let mut text = String::new();
        let mut rest = self.reader.0[quote.len_utf8()..].chars();
        while let Some(c) = rest.next() {
            if c == quote && ends_a_value(rest.as_str()) {
                self.reader.0 = rest.as_str();
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
