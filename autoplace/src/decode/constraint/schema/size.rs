//! Limits on the size of a schema.

use serde_json::Value;

use super::places;
use crate::decode::constraint::limits;

/// Maximum bytes of a schema, written without spaces.
const MAX_BYTES: usize = 1 << 20;
/// Maximum nesting, which is below serde_json's limit.
pub(super) const MAX_DEPTH: usize = 100;
/// The maximum number of entries of each keyword. The patterns of an object and the alternatives of a `oneOf` are
/// compared pairwise; llguidance visits properties and tuples by recursion.
const MAX_ENTRIES: [(&str, usize); 6] = [
    ("patternProperties", 24),
    ("oneOf", 256),
    ("properties", 1000),
    ("required", 1000),
    ("prefixItems", 1000),
    ("items", 1000),
];
/// The maximum number of pairs of list items that are compared for `oneOf`. The comparison of a pair takes 15 ns and
/// finds out whether two alternatives can apply at once.
const MAX_COMPARED: usize = 300_000_000;
/// Maximum number of numbers with bounds. Each of them becomes a regular expression, which takes 0.4 ms to build.
const MAX_RANGES: usize = 3000;
const BOUNDS: [&str; 5] = ["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"];

/// Refuses a schema that would need too much time, memory or stack. This is checked before anything else is done with
/// the schema.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut bytes = 0_usize;
    let (mut patterns, mut ranges, mut one_ofs) = (0_usize, 0_usize, Vec::new());
    let mut rest = vec![(schema, 0)];
    while let Some((value, depth)) = rest.pop() {
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        bytes += match value {
            Value::String(text) => text.len() + 3,
            Value::Object(members) => members.keys().map(|key| key.len() + 4).sum(),
            Value::Array(_) | Value::Number(_) | Value::Bool(_) | Value::Null => 3,
        };
        if bytes > MAX_BYTES {
            return Err(format!("it is larger than {} KiB", MAX_BYTES >> 10));
        }
        match value {
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => {
                one_ofs.extend(members.get("oneOf"));
                ranges += usize::from(BOUNDS.iter().any(|bound| members.contains_key(*bound)));
                if let Some(Value::String(pattern)) = members.get("pattern") {
                    patterns += limits::regex_weight(pattern);
                }
                if let Some(Value::Object(by_pattern)) = members.get("patternProperties") {
                    patterns += by_pattern.keys().map(|key| limits::regex_weight(key)).sum::<usize>();
                }
                for (keyword, most) in MAX_ENTRIES {
                    let count = members.get(keyword).map_or(0, places::length);
                    if count > most {
                        return Err(format!("`{keyword}` has {count} entries, at most {most}"));
                    }
                }
                rest.extend(members.values().map(|member| (member, depth + 1)));
            }
            _ => {}
        }
    }
    if one_ofs.into_iter().map(|alternatives| items(alternatives).pow(2) / 2).sum::<usize>() > MAX_COMPARED {
        return Err("its `oneOf`s hold too many values to tell their alternatives apart".to_owned());
    }
    if ranges > MAX_RANGES {
        return Err(format!("it has {ranges} numbers with bounds; at most {MAX_RANGES} are possible"));
    }
    limits::check_weight(patterns).map_err(|_| "its patterns are too large together".to_owned())
}

/// Number of items in all arrays of a value.
fn items(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len() + list.iter().map(items).sum::<usize>(),
        Value::Object(members) => members.values().map(items).sum(),
        _ => 0,
    }
}
