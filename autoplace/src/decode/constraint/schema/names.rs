//! Removes a pattern of property names if only names of listed properties match it. Otherwise llguidance would allow
//! the first character of another name, which could then not be completed.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

/// The maximum number of steps to check whether a pattern matches any other names. If this is still unknown after that
/// many steps, the pattern stays.
const STEPS: u64 = 10_000;
/// Characters that a name can contain without `\u`.
const WRITTEN: &str = r"[^\x00-\x07\x0B\x0E-\x1F\x7F]*";

/// Removes patterns that match only named properties. These properties then also get the pattern's schema. If patterns
/// and properties together cover all names, forbids other properties.
pub(super) fn without_exhausted(members: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = members.get("patternProperties") else { return };
    let patterns = patterns.clone();
    let mut names = Names::default();
    let read: Option<Vec<_>> = patterns.keys().map(|key| names.pattern(key)).collect();
    // An invalid expression is refused later, with the whole schema.
    let Some(read) = read else { return };
    let own: Vec<String> =
        members.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect();
    let literals: Vec<RegexAst> = own.iter().map(|name| RegexAst::Literal(name.clone())).collect();
    for ((pattern, schema), expression) in patterns.iter().zip(&read) {
        if !names.are_none(expression, &literals) {
            continue;
        }
        if let Some(Value::Object(left)) = members.get_mut("patternProperties") {
            left.shift_remove(pattern);
        }
        if let Some(Value::Object(properties)) = members.get_mut("properties") {
            for (name, literal) in own.iter().zip(&literals) {
                let both = RegexAst::And(vec![literal.clone(), expression.clone()]);
                if !names.are_none(&both, &[]) {
                    let property = properties.get(name).cloned().unwrap_or(Value::Bool(true));
                    properties.insert(name.clone(), json!({"allOf": [property, schema]}));
                }
            }
        }
    }
    let taken = [read, literals].concat();
    if members.get("additionalProperties") != Some(&Value::Bool(false))
        && names.are_none(&RegexAst::Regex("(?s:.*)".to_owned()), &taken)
    {
        members.insert("additionalProperties".to_owned(), false.into());
    }
}

#[derive(Default)]
struct Names(RegexBuilder);

impl Names {
    /// Reads a pattern, which may match anywhere in a name.
    fn pattern(&mut self, pattern: &str) -> Option<RegexAst> {
        let expression = self.0.mk_regex_for_serach(&regex_to_lark(pattern, "dw")).ok()?;
        Some(RegexAst::ExprRef(expression))
    }

    /// Whether every writable name that matches `these` also matches one of `others`.
    fn are_none(&mut self, these: &RegexAst, others: &[RegexAst]) -> bool {
        let mut all = vec![RegexAst::Regex(WRITTEN.to_owned()), these.clone()];
        if !others.is_empty() {
            all.push(RegexAst::Not(Box::new(RegexAst::Or(others.to_vec()))));
        }
        let expression = self.0.mk(&RegexAst::And(all)).ok();
        let regex = expression.and_then(|expression| self.0.to_regex_limited(expression, STEPS).ok());
        regex.is_some_and(|mut regex| regex.always_empty())
    }
}
