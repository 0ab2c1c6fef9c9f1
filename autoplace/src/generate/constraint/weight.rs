//! How much work a regular expression or grammar is for llguidance, in bytes as it were.
//!
//! What it does with a text is quadratic in the parts of a sequence that may be missing, and cubic in the alternatives
//! of a rule, and none of its limits is looked at in between: 16,000 times `a?` take 1 GiB. So those are counted
//! before it sees them.

use std::collections::HashMap;

use super::compile::{MAX_BYTES, MAX_NESTING};
use super::lark::{is_name, length};

/// What a part that may be missing or repeated weighs, or a name that may stand for one.
const PART: usize = 64;
/// What one in a regular expression weighs.
const REPETITION: usize = 96;
/// What an alternative of a rule weighs.
const ALTERNATIVE: usize = 1024;

/// Refuses what weighs too much.
pub(super) fn check(weight: usize) -> Result<(), String> {
    if weight > MAX_BYTES {
        let (kib, parts) = (MAX_BYTES >> 10, MAX_BYTES / REPETITION);
        return Err(format!("it is larger than {kib} KiB, or has more than {parts} repetitions, groups and names"));
    }
    Ok(())
}

/// Of a regular expression.
pub(super) fn regex(regex: &str) -> usize {
    let mut is_escaped = false;
    let mut parts = 0;
    for c in regex.chars() {
        // A class of Unicode has hundreds of ranges.
        parts += usize::from(match is_escaped {
            true => matches!(c, 'p' | 'P' | 'w' | 'W' | 'd' | 'D' | 's' | 'S'),
            false => matches!(c, '?' | '*' | '{' | '('),
        });
        is_escaped = c == '\\' && !is_escaped;
    }
    regex.len() + REPETITION * parts
}

/// Of a grammar in Lark: of all its definitions, or of its heaviest terminal with all that it names.
pub(super) fn lark(lark: &str) -> usize {
    let mut all = 0;
    let mut definitions: Vec<Definition<'_>> = vec![Definition::default()];
    let (mut rest, mut depth, mut is_new) = (lark, 0_usize, true);
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
        let Some(definition) = definitions.last_mut() else {
            continue;
        };
        let weight = match first {
            // A string may be a schema's pattern.
            '"' | '/' if !token.starts_with("//") => regex(token),
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
        definition.weight += weight;
        all += weight;
    }
    all.max(heaviest(&definitions))
}

#[derive(Default)]
struct Definition<'a> {
    name: &'a str,
    is_terminal: bool,
    names: Vec<&'a str>,
    weight: usize,
}

/// Of the terminal that weighs most, with what it names in place of the names; too much where names lead on and on.
fn heaviest(definitions: &[Definition<'_>]) -> usize {
    let mut weights: HashMap<&str, usize> = HashMap::new();
    for _ in 0..MAX_NESTING {
        let mut is_done = true;
        for definition in definitions.iter().filter(|it| it.is_terminal) {
            let names = definition.names.iter().filter(|it| **it != definition.name);
            let named: usize = names.filter_map(|it| weights.get(it)).sum();
            let weight = (definition.weight + named).min(MAX_BYTES + 1);
            is_done &= weights.insert(definition.name, weight) == Some(weight);
        }
        if is_done {
            return weights.into_values().max().unwrap_or(0);
        }
    }
    MAX_BYTES + 1
}
