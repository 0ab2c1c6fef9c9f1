//! Checks the weight of regular expressions and Lark grammars before llguidance sees them.
//!
//! llguidance takes time quadratic in the optional parts of a sequence and cubic in the alternatives of a rule, and
//! checks none of its limits meanwhile: a sequence of 16,000 times `a?` takes 1 GiB. Such parts therefore get a weight
//! in bytes.

use std::collections::HashMap;

use serde_json::{Deserializer, Value};

use super::limits::{MAX_BYTES, check_weight, regex_weight};
use super::schema;

/// The weight of an optional or repeated part, and of a name that may stand for such a part.
const PART: usize = 64;
/// Weight of an alternative of a rule.
const ALTERNATIVE: usize = 1024;
/// Maximum length of a chain of terminals that name each other.
const MAX_DEPTH: usize = 100;

/// Prepares a schema inside a grammar. Such a schema follows JSON Schema to the letter.
fn json_schema(schema: &Value) -> Result<Value, String> {
    schema::prepared(schema, true).map_err(|unenforced| unenforced.to_string())
}

/// The grammar to compile, or the reason why it is refused.
pub(super) fn prepared(grammar: &str) -> Result<String, String> {
    check_weight(weight(grammar))?;
    let mut prepared = String::with_capacity(grammar.len());
    let mut rest = grammar;
    while !rest.is_empty() {
        let (token, after) = rest.split_at(length(rest));
        rest = after;
        let is_directive = prepared.ends_with('%');
        match token {
            // `a::_: a::incr(_)` would create a rule for each of 2^64 numbers, all in one step.
            ":" if prepared.ends_with(':') => {
                return Err("it has parameters (`::`), which could create rules without end".to_owned());
            }
            "lark" if is_directive => return Err("it contains another grammar (`%lark`)".to_owned()),
            // With a capture, each step would keep the text so far.
            "capture" | "stop_capture" => return Err(format!("it has a `{token}`, which is not supported")),
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

/// The larger of two weights: all definitions together, or the heaviest terminal together with the terminals that it
/// names.
fn weight(grammar: &str) -> usize {
    let mut definitions: Vec<Definition<'_>> = vec![Definition::default()];
    let (mut rest, mut depth, mut is_new) = (grammar, 0_usize, true);
    while let Some(first) = rest.chars().next() {
        let (token, after) = rest.split_at(length(rest));
        rest = after;
        if is_name(first) && is_new {
            let name = token.trim_start_matches('_');
            definitions.push(Definition {
                name: token,
                is_terminal: name.starts_with(|c: char| c.is_ascii_uppercase()),
                ..Definition::default()
            });
        }
        is_new = first == '\n' && depth == 0 || is_new && matches!(first, ' ' | '\t' | '\r' | '!' | '?');
        let Some(definition) = definitions.last_mut() else { break };
        definition.weight += match first {
            // A grammar may contain a schema, in which a string may be a pattern.
            '"' | '/' if !token.starts_with("//") => regex_weight(token),
            '|' if definition.is_terminal => 1,
            '|' => ALTERNATIVE,
            '<' => PART * token.split(',').count(),
            '?' | '*' | '~' | '&' => PART,
            '{' | '[' | '(' => {
                depth += 1;
                PART
            }
            '}' | ']' | ')' => {
                depth = depth.saturating_sub(1);
                1
            }
            c if is_name(c) => {
                definition.names.push(token);
                PART
            }
            _ => token.len(),
        };
    }
    definitions.iter().map(|definition| definition.weight).sum::<usize>().max(heaviest(&definitions))
}

#[derive(Default)]
struct Definition<'a> {
    name: &'a str,
    is_terminal: bool,
    names: Vec<&'a str>,
    weight: usize,
}

/// The weight of the heaviest terminal after the terminals that it names were inserted. A recursive terminal is over
/// the limit.
fn heaviest(definitions: &[Definition<'_>]) -> usize {
    let mut weights: HashMap<&str, usize> = HashMap::new();
    for _ in 0..MAX_DEPTH {
        let mut is_done = true;
        for definition in definitions.iter().filter(|definition| definition.is_terminal) {
            let names = definition.names.iter().filter(|name| **name != definition.name);
            let named: usize = names.filter_map(|name| weights.get(name)).sum();
            let weight = (definition.weight + named).min(MAX_BYTES + 1);
            is_done &= weights.insert(definition.name, weight) == Some(weight);
        }
        if is_done {
            return weights.into_values().max().unwrap_or(0);
        }
    }
    MAX_BYTES + 1
}

/// Length in bytes of the first lexical token: a literal, a comment, a name, or a character.
fn length(text: &str) -> usize {
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
        // The name of a vocabulary token, which may contain a quote.
        '<' => {
            let end = text[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace());
            end.filter(|at| text[at + 1..].starts_with('>')).map_or(1, |at| at + 2)
        }
        c if is_name(c) => text.find(|c| !is_name(c)).unwrap_or(text.len()),
        c => c.len_utf8(),
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}
