//! Patterns as JSON Schema has them, ECMA 262's, for llguidance, which reads them as the crate `regex` does.

use serde_json::{Map, Value, json};

/// ECMA 262, `WhiteSpace` and `LineTerminator`: what `\s` is, within a class.
const SPACES: &str = r"\t\n\x0B\x0C\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
/// Strings that can be written without `\u`: llguidance leaves characters out that cannot.
const WRITTEN: &str = r"^[^\x00-\x07\x0B\x0E-\x1F\x7F]*$";

/// Writes the patterns of one schema anew.
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
        *patterns = std::mem::take(patterns).into_iter().map(|(it, schema)| (with_spaces(&it), schema)).collect();
    }
}

/// A pattern with `\s` and `\S` as the classes that ECMA 262 says they are. A class may stand within a class.
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

/// Whether a pattern may name a control character by itself.
fn names_control(pattern: &str) -> bool {
    let escapes = [r"\x", r"\u", r"\c", r"\0", r"\v", r"\a", r"\p", r"\P", "[:"];
    escapes.iter().any(|it| pattern.contains(it)) || pattern.chars().any(|c| c.is_ascii_control())
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
