//! String arguments without quotes, which a schema constrains and a mark ends.

use serde_json::{Map, Value};

use super::values::Argument;
use super::{Writer, escaped};
use crate::decode::constraint::schema::{text_format, with_spaces};
use crate::decode::constraint::unenforced::Unenforced;

/// Maximum length of a chain of references.
const MAX_REFERENCES: usize = 16;

impl Writer<'_> {
    /// The value of an argument and the mark after it. The value contains none of the texts in `held_by_none`.
    pub(super) fn bare(&mut self, argument: &Argument, end: &str, held_by_none: &[&str]) -> Result<String, Unenforced> {
        let refused = |reason| Unenforced { place: argument.place.clone(), reason };
        let mut text = Text { root: &argument.root, references: 0 };
        let mut terminal = text.terminals(&argument.schema).map_err(refused)?;
        terminal.push_str(&self.without(held_by_none));
        let number = self.number();
        self.rule(&format!("VALUE_{number}"), &format!("/[^\\x00-\\x08\\x0B-\\x1F]*/ & {terminal}"));
        self.rule(&format!("BARE_{number}"), &format!("VALUE_{number} /{}/", self.expression(end)));
        Ok(format!("BARE_{number}"))
    }
}

/// The constraints that a schema puts on a text, as terminals joined by `&`.
struct Text<'a> {
    root: &'a Value,
    references: usize,
}

/// Any text.
const ANY: &str = "/(?s:.)*/";

impl Text<'_> {
    fn terminals(&mut self, schema: &Value) -> Result<String, String> {
        let Some(members) = schema.as_object() else { return Ok(ANY.to_owned()) };
        let mut all = Vec::new();
        if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
            self.references += 1;
            if self.references > MAX_REFERENCES {
                return Err("its references form a chain without end".to_owned());
            }
            let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            let target = target.ok_or_else(|| format!("`$ref`: there is no {reference}"))?.clone();
            all.push(self.terminals(&target)?);
        }
        let values = members.get("enum").and_then(Value::as_array).cloned();
        let values = values.or_else(|| members.get("const").map(|value| vec![value.clone()]));
        if let Some(values) = values {
            let texts: Vec<String> = values.iter().filter_map(Value::as_str).map(escaped).collect();
            all.push(format!("/(?:{})/", texts.join("|")));
        }
        let length = |keyword: &str| members.get(keyword).and_then(Value::as_u64);
        match (length("minLength"), length("maxLength")) {
            (None, None) => {}
            (least, None) => all.push(format!("/(?s:.){{{},}}/", least.unwrap_or(0))),
            (least, Some(most)) => all.push(format!("/(?s:.){{{},{most}}}/", least.unwrap_or(0))),
        }
        if let Some(pattern) = members.get("pattern").and_then(Value::as_str) {
            all.push(searched(pattern)?);
        }
        if let Some(format) = members.get("format").and_then(Value::as_str)
            && let Some(expression) = text_format(format)?
        {
            all.push(format!("/(?:{})/", slashes(&expression)));
        }
        for schema in list(members, "allOf") {
            all.push(self.terminals(schema)?);
        }
        for keyword in ["anyOf", "oneOf"] {
            let texts: Vec<&Value> = list(members, keyword).filter(|schema| allows_text(schema)).collect();
            match texts[..] {
                [] => {}
                [only] => all.push(self.terminals(only)?),
                _ if keyword == "anyOf" => {
                    let options: Result<Vec<_>, _> = texts.iter().map(|text| self.terminals(text)).collect();
                    let options: Vec<String> = options?.iter().map(|option| format!("({option})")).collect();
                    all.push(format!("({})", options.join(" | ")));
                }
                _ => return Err("`oneOf` of several texts is not enforced in a format without quotes".to_owned()),
            }
        }
        Ok(if all.is_empty() { ANY.to_owned() } else { all.join(" & ") })
    }
}

fn list<'a>(members: &'a Map<String, Value>, keyword: &str) -> impl Iterator<Item = &'a Value> {
    members.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

fn allows_text(schema: &Value) -> bool {
    let is_text = |value: &Value| value == "string";
    let by_type = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().any(is_text),
        Some(kind) => is_text(kind),
        None => true,
    };
    let by_value = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) => values.iter().any(Value::is_string),
        (_, Some(value)) => value.is_string(),
        _ => true,
    };
    by_type && by_value
}

/// Turns a pattern that may match anywhere into a pattern that matches the whole text.
fn searched(pattern: &str) -> Result<String, String> {
    let is_split = has_outside(pattern, '|');
    let (mut inner, mut before, mut behind) = (pattern, "(?s:.*)", "(?s:.*)");
    if !is_split {
        if let Some(rest) = inner.strip_prefix('^') {
            (inner, before) = (rest, "");
        }
        let is_escaped = inner.strip_suffix('$').is_some_and(|rest| rest.ends_with('\\') && !rest.ends_with(r"\\"));
        if let (Some(rest), false) = (inner.strip_suffix('$'), is_escaped) {
            (inner, behind) = (rest, "");
        }
    }
    let has_anchor = ['^', '$'].iter().any(|anchor| has_anywhere(inner, *anchor));
    if has_anchor || [r"\b", r"\B", "(?=", "(?!", "(?<"].iter().any(|anchor| inner.contains(anchor)) {
        return Err("`pattern`: inner anchors and look-around are not enforced in a format without quotes".to_owned());
    }
    let inner = with_spaces(inner);
    Ok(format!("/{before}(?:{}){behind}/", slashes(&inner)))
}

/// Whether a character occurs outside of brackets, classes and escapes.
fn has_outside(pattern: &str, wanted: char) -> bool {
    found(pattern, wanted, true)
}

/// Whether a character occurs outside of classes and escapes.
fn has_anywhere(pattern: &str, wanted: char) -> bool {
    found(pattern, wanted, false)
}

fn found(pattern: &str, wanted: char, outside: bool) -> bool {
    let (mut depth, mut in_class) = (0_usize, false);
    let mut characters = pattern.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => {
                characters.next();
            }
            '[' => in_class = true,
            ']' => in_class = false,
            _ if in_class => {}
            c if c == wanted && (depth == 0 || !outside) => return true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Escapes a regular expression for use between slashes.
fn slashes(expression: &str) -> String {
    let mut written = String::new();
    let mut characters = expression.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => {
                written.push(c);
                written.extend(characters.next());
            }
            '/' => written.push_str(r"\/"),
            '\n' => written.push_str(r"\n"),
            c => written.push(c),
        }
    }
    written
}
