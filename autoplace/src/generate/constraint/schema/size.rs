//! How large a schema may be.

use serde_json::Value;

use super::super::weight;

/// Bytes of a schema, written without spaces.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Values in values: as deep as serde_json reads.
const MAX_DEPTH: usize = 100;
/// Patterns of one object, each of which is held against each other.
const MAX_PATTERNS: usize = 24;
/// Alternatives of one `oneOf`, each of which is held against each other.
const MAX_ONE_OF: usize = 256;
/// Properties of one object, and entries of a tuple: llguidance goes through them by recursion.
const MAX_MEMBERS: usize = 1000;

/// Refuses what would take too long, or too much memory or stack, before anything is done with it.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut bytes = 0_usize;
    let mut patterns = 0_usize;
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
                if let Some(Value::String(pattern)) = members.get("pattern") {
                    patterns += weight::regex(pattern);
                }
                if let Some(Value::Object(by_pattern)) = members.get("patternProperties") {
                    patterns += by_pattern.keys().map(|it| weight::regex(it)).sum::<usize>();
                }
                let most = |keyword: &str, most: usize| {
                    let count = match members.get(keyword) {
                        Some(Value::Array(list)) => list.len(),
                        Some(Value::Object(map)) => map.len(),
                        _ => 0,
                    };
                    if count > most {
                        return Err(format!("`{keyword}` has {count} entries, at most {most}"));
                    }
                    Ok(())
                };
                most("patternProperties", MAX_PATTERNS)?;
                most("oneOf", MAX_ONE_OF)?;
                most("properties", MAX_MEMBERS)?;
                most("required", MAX_MEMBERS)?;
                most("prefixItems", MAX_MEMBERS)?;
                most("items", MAX_MEMBERS)?;
                rest.extend(members.values().map(|member| (member, depth + 1)));
            }
            _ => {}
        }
    }
    weight::check(patterns).map_err(|_| "its patterns are too large together".to_owned())?;
    Ok(())
}
