//! Translates JSON Schema's patterns (ECMA 262) for llguidance, which follows the crate `regex`.

use serde_json::{Map, Value, json};

/// `WhiteSpace` and `LineTerminator` of ECMA 262, the characters of `\s`, for use within a class.
const SPACES: &str = r"\t\n\x0B\x0C\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
/// Strings that can be written without `\u`. llguidance drops characters that need `\u`.
const WRITTEN: &str = r"^[^\x00-\x07\x0B\x0E-\x1F\x7F]*$";

/// Translates the patterns of one schema.
pub(super) fn as_llguidance(members: &mut Map<String, Value>) {
    if let Some(Value::String(pattern)) = members.get_mut("pattern") {
        *pattern = with_spaces(pattern);
        if names_control(pattern) {
            let written = json!({ "pattern": WRITTEN });
            if let Value::Array(all) = members.entry("allOf").or_insert_with(|| json!([])) {
                all.push(written);
            }
        }
    }
    if let Some(Value::Object(patterns)) = members.get_mut("patternProperties") {
        *patterns =
            std::mem::take(patterns).into_iter().map(|(pattern, schema)| (with_spaces(&pattern), schema)).collect();
    }
}

/// Replaces `\s` and `\S` by the classes of ECMA 262. The classes may also be used within a class.
pub(in super::super) fn with_spaces(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(c) = characters.next() {
        let escaped = if c == '\\' { characters.next() } else { None };
        match escaped {
            Some('s') => written.push_str(&format!("[{SPACES}]")),
            Some('S') => written.push_str(&format!("[^{SPACES}]")),
            Some(other) => written.extend([c, other]),
            None => written.push(c),
        }
    }
    written
}

/// Whether a pattern may name a control character.
fn names_control(pattern: &str) -> bool {
    let escapes = [r"\x", r"\u", r"\c", r"\0", r"\v", r"\a", r"\p", r"\P", "[:"];
    escapes.iter().any(|escape| pattern.contains(escape)) || pattern.chars().any(|c| c.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::with_spaces;

    #[test]
    fn spaces_are_those_of_ecma_262_in_a_class_and_outside() {
        let spaces = with_spaces(r"a\sb[\s\d]\\s\S");
        assert_eq!(spaces.matches(r"\u{FEFF}").count(), 3, "{spaces}");
        assert!(spaces.starts_with("a[") && spaces.contains(r"\\s[^"), "{spaces}");
        let crate_regex = regex::Regex::new(&with_spaces(r"^[\s\d]\S$")).unwrap();
        assert!(crate_regex.is_match("\u{feff}x") && !crate_regex.is_match("xx"));
    }
}
