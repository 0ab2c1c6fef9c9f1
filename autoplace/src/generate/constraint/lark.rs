//! A grammar in Lark made ready for llguidance: its schemas as those that stand alone, and nothing in it that no limit
//! bounds.

use serde_json::Deserializer;

use super::compile::json_schema;

/// The grammar that is compiled, or why it cannot be.
pub(super) fn prepared(grammar: &str) -> Result<String, String> {
    let mut prepared = String::with_capacity(grammar.len());
    let mut rest = grammar;
    while !rest.is_empty() {
        let (token, after) = rest.split_at(length(rest));
        rest = after;
        let is_directive = prepared.ends_with('%');
        match token {
            // `a::_: a::incr(_)` is a rule for each of 2^64 numbers, all in one step.
            ":" if prepared.ends_with(':') => {
                return Err("it has parameters (`::`), of which rules without end can be made".to_owned());
            }
            "lark" if is_directive => return Err("it has a grammar within it (`%lark`)".to_owned()),
            // Each step would keep the text so far.
            "capture" | "stop_capture" => {
                return Err(format!("it has a `{token}`, which nothing reads"));
            }
            "json" if is_directive => {
                let mut values = Deserializer::from_str(rest).into_iter();
                if let Some(Ok(schema)) = values.next() {
                    rest = &rest[values.byte_offset()..];
                    prepared.push_str(&format!("json {}", json_schema(&schema)?));
                    continue;
                }
            }
            _ => {}
        }
        prepared.push_str(token);
    }
    Ok(prepared)
}

/// Bytes of the token that a text begins with: a literal, a comment, a name, or a character.
pub(super) fn length(text: &str) -> usize {
    let first = text.chars().next().unwrap_or_default();
    let line = || text.find('\n').unwrap_or(text.len());
    match first {
        '#' => line(),
        '/' if text.starts_with("//") => line(),
        '"' | '/' => {
            let mut is_escaped = false;
            let end = text[1..].find(|c| {
                let is_end = c == first && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            });
            end.map_or(text.len(), |at| at + 2)
        }
        // The name of a token, which may hold a quote.
        '<' => {
            let end = text[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace());
            end.filter(|at| text[at + 1..].starts_with('>')).map_or(1, |at| at + 2)
        }
        c if is_name(c) => text.find(|c| !is_name(c)).unwrap_or(text.len()),
        c => c.len_utf8(),
    }
}

pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}
