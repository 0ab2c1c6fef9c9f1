//! Calls that look like a program's: `f(a='x', n=1)` in Python's way, `call:f{a:<|"|>x<|"|>,n:1}` in Gemma's.

use serde_json::{Map, Value};

use super::{CallError, arguments};
use crate::ToolCall;

/// Lists and objects within each other, as deep as `serde_json` reads them.
const DEPTH: u8 = 127;

/// How strings are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quotes {
    /// `'` and `"`, with backslashes.
    Python,
    /// `<|"|>`, with nothing escaped.
    Gemma,
}

/// Calls as Python writes them, in a list or not.
pub(super) fn python(text: &str) -> Result<Vec<ToolCall>, CallError> {
    let text = text.trim();
    let text = match text.strip_prefix('[') {
        Some(list) => list
            .strip_suffix(']')
            .ok_or_else(|| CallError::unexpected("]", ""))?,
        None => text,
    };
    let mut reader = Reader {
        rest: text.trim_start(),
        quotes: Quotes::Python,
    };
    let mut calls = Vec::new();
    while !reader.rest.is_empty() {
        let name = reader.until('(')?;
        let arguments = reader.entries('=', ')')?;
        calls.push(ToolCall {
            id: None,
            // Llama calls the tools that it was trained with by a method of theirs.
            name: arguments::tool_name(name.strip_suffix(".call").unwrap_or(name))?,
            arguments,
        });
        reader.rest = reader
            .rest
            .trim_start_matches(|c: char| c.is_whitespace() || c == ',' || c == ';');
    }
    if calls.is_empty() {
        return Err(CallError::NotACall);
    }
    Ok(calls)
}

/// A value as Python prints it.
pub(super) fn python_value(text: &str) -> Option<Value> {
    let mut reader = Reader {
        rest: text,
        quotes: Quotes::Python,
    };
    let value = reader.value(DEPTH).ok()?;
    reader.end().ok()?;
    Some(value)
}

/// A call as Gemma 4 writes it.
pub(super) fn gemma(text: &str) -> Result<ToolCall, CallError> {
    let text = text.trim();
    let rest = text
        .strip_prefix("call:")
        .ok_or_else(|| CallError::unexpected("call:", text))?;
    let mut reader = Reader {
        rest,
        quotes: Quotes::Gemma,
    };
    let name = arguments::tool_name(reader.until('{')?)?;
    let arguments = reader.entries(':', '}')?;
    reader.end()?;
    Ok(ToolCall {
        id: None,
        name,
        arguments,
    })
}

struct Reader<'a> {
    rest: &'a str,
    quotes: Quotes,
}

impl<'a> Reader<'a> {
    /// The text before `mark`, which is read too.
    fn until(&mut self, mark: char) -> Result<&'a str, CallError> {
        let (before, behind) = self
            .rest
            .split_once(mark)
            .ok_or_else(|| self.unexpected(&mark.to_string()))?;
        self.rest = behind;
        Ok(before)
    }

    fn unexpected(&self, expected: &str) -> CallError {
        CallError::unexpected(expected, self.rest)
    }

    fn end(&self) -> Result<(), CallError> {
        if self.rest.trim().is_empty() {
            Ok(())
        } else {
            Err(self.unexpected("the end of the call"))
        }
    }

    /// Whether `mark` is next, behind whitespace; then it is read.
    fn next(&mut self, mark: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(mark) {
            Some(behind) => {
                self.rest = behind;
                true
            }
            None => false,
        }
    }

    /// Keys and values up to `end`, as an object.
    fn entries(&mut self, between: char, end: char) -> Result<Value, CallError> {
        self.object(between, end, DEPTH)
    }

    fn object(&mut self, between: char, end: char, depth: u8) -> Result<Value, CallError> {
        let mut object = Map::new();
        while !self.next(end) {
            let key = match self.string()? {
                Some(key) => {
                    if !self.next(between) {
                        return Err(self.unexpected(&between.to_string()));
                    }
                    key
                }
                None => self.until(between)?.trim().to_owned(),
            };
            if !key.chars().all(|c| arguments::in_a_name(c) || c == ' ') {
                return Err(CallError::unexpected("the name of an argument", &key));
            }
            let value = self.value(depth)?;
            object.insert(key, value);
            if !self.next(',') && !self.rest.starts_with(end) {
                return Err(self.unexpected(&end.to_string()));
            }
        }
        Ok(Value::Object(object))
    }

    fn list(&mut self, end: char, depth: u8) -> Result<Value, CallError> {
        let mut list = Vec::new();
        while !self.next(end) {
            list.push(self.value(depth)?);
            if !self.next(',') && !self.rest.starts_with(end) {
                return Err(self.unexpected(&end.to_string()));
            }
        }
        Ok(Value::Array(list))
    }

    fn value(&mut self, depth: u8) -> Result<Value, CallError> {
        if let Some(text) = self.string()? {
            return Ok(Value::String(text));
        }
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.unexpected("a value less deep"));
        };
        if self.next('[') {
            self.list(']', depth)
        } else if self.next('(') {
            self.list(')', depth)
        } else if self.next('{') {
            self.object(':', '}', depth)
        } else {
            self.word()
        }
    }

    /// A number, a truth value or nothing.
    fn word(&mut self) -> Result<Value, CallError> {
        let end = self
            .rest
            .find(|c: char| c.is_whitespace() || ",)]}".contains(c))
            .unwrap_or(self.rest.len());
        let (word, behind) = self.rest.split_at(end);
        let value = match word {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::Null,
            word => serde_json::from_str(word).map_err(|_| self.unexpected("a value"))?,
        };
        self.rest = behind;
        Ok(value)
    }

    /// A string, if one is next.
    fn string(&mut self) -> Result<Option<String>, CallError> {
        self.rest = self.rest.trim_start();
        match self.quotes {
            Quotes::Gemma => {
                let Some(behind) = self.rest.strip_prefix("<|\"|>") else {
                    return Ok(None);
                };
                let (text, behind) = behind
                    .split_once("<|\"|>")
                    .ok_or_else(|| CallError::unexpected("<|\"|>", ""))?;
                self.rest = behind;
                Ok(Some(text.to_owned()))
            }
            Quotes::Python => {
                let Some(quote) = self.rest.chars().next().filter(|c| "'\"".contains(*c)) else {
                    return Ok(None);
                };
                self.quoted(quote).map(Some)
            }
        }
    }

    /// Templates put strings between quotes without escaping those within: only a quote that ends a value
    /// ends the string.
    fn quoted(&mut self, quote: char) -> Result<String, CallError> {
        let mut text = String::new();
        let mut rest = self.rest[quote.len_utf8()..].chars();
        while let Some(c) = rest.next() {
            if c == quote && ends_a_value(rest.as_str()) {
                self.rest = rest.as_str();
                return Ok(text);
            }
            if c == '\\' {
                match rest.next() {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('r') => text.push('\r'),
                    Some(escaped @ ('\\' | '\'' | '"')) => text.push(escaped),
                    Some(other) => text.extend(['\\', other]),
                    None => text.push('\\'),
                }
            } else {
                text.push(c);
            }
        }
        Err(CallError::unexpected(&quote.to_string(), ""))
    }
}

fn ends_a_value(behind: &str) -> bool {
    let next = behind.trim_start().chars().next();
    next.is_none_or(|c| ",)]}:".contains(c))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{gemma, python};

    #[test]
    fn python_has_its_own_words_and_quotes() {
        let text = r#"[f(a='it\'s', b="x, y", c=True, d=None, e=-1.5, g=[1, 'z'], h={"k": (2,)}), mod.g()]"#;
        let calls = python(text).unwrap();
        assert_eq!(
            calls[0].arguments,
            json!({"a": "it's", "b": "x, y", "c": true, "d": null, "e": -1.5, "g": [1, "z"], "h": {"k": [2]}})
        );
        assert_eq!(
            (calls[1].name.as_str(), &calls[1].arguments),
            ("mod.g", &json!({}))
        );
    }

    #[test]
    fn a_quote_within_a_string_is_part_of_it() {
        let calls = python("f(a='it's here', b='x')").unwrap();
        assert_eq!(calls[0].arguments, json!({"a": "it's here", "b": "x"}));
    }

    #[test]
    fn a_method_named_call_is_the_tool() {
        let calls = python(r#"brave_search.call(query="a (b)")"#).unwrap();
        assert_eq!(
            (calls[0].name.as_str(), &calls[0].arguments),
            ("brave_search", &json!({"query": "a (b)"}))
        );
    }

    #[test]
    fn gemma_quotes_strings_with_a_token() {
        let text = r#"call:f{a:<|"|>x, "y"}<|"|>,l:[1,<|"|>z<|"|>],n:2,o:{k:true},z:null}"#;
        let call = gemma(text).unwrap();
        assert_eq!(call.name, "f");
        assert_eq!(
            call.arguments,
            json!({"a": "x, \"y\"}", "l": [1, "z"], "n": 2, "o": {"k": true}, "z": null})
        );
    }

    #[test]
    fn what_is_no_value_is_an_error() {
        for text in [
            "f(1)",
            "f(a=b)",
            "f(a=1",
            "f(a='x)",
            "f(a=1 b=2)",
            "[f(a=1)",
            "f g()",
            "",
        ] {
            assert!(python(text).is_err(), "{text}");
        }
        for text in [
            "f{}",
            "call:f{a:x}",
            "call:f{a:1",
            "call:f{a:1}}",
            "call:{}",
        ] {
            assert!(gemma(text).is_err(), "{text}");
        }
        assert!(python(&format!("f(a={})", "[".repeat(100_000))).is_err());
    }
}
