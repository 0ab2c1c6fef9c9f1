//! Runs the JSON-Schema-Test-Suite. Each schema is either refused, or enforced token by token so that all of its valid
//! instances and none of its invalid ones can be written.
//!
//! `cargo xtask schemas` fetches the suite and a model's vocabulary, runs this test, and writes the table of
//! docs/constrained-output.md.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs};

use llama_sys::{Model, ModelParams};
use serde_json::{Value, json};

use super::{Constraint, Matcher};
use crate::decode::error::Error;
use crate::load::vocabulary::Vocabulary;

const DRAFTS: [&str; 2] = ["draft7", "draft2020-12"];
/// Maximum number of spellings per instance, which differ in the order of the properties.
const MAX_SPELLINGS: usize = 800;
/// Files of the suite that test behaviour which JSON Schema leaves open, and for which this crate has chosen another
/// behaviour. Formats are enforced, contents of strings are not, and a custom `$schema` is not fetched.
const OTHER_BEHAVIOUR: [(&str, &str); 4] =
    [("draft7", "content"), ("draft7", "format"), ("draft2020-12", "format"), ("draft2020-12", "vocabulary")];
/// The optional folders include features that need a network or a base URI. The files of these folders are compiled
/// like all others.
const FOLDERS: [&str; 3] = ["", "optional", "optional/format"];

/// The results for the schemas of one keyword.
#[derive(Default)]
struct Row {
    followed: usize,
    refused: BTreeMap<String, usize>,
    valid: usize,
    invalid: usize,
    /// The number of valid instances that are never generated, because numbers and names are restricted.
    narrower: usize,
}

#[test]
#[ignore = "wants the suite and a model's vocabulary: `cargo xtask schemas`"]
fn every_schema_of_the_suite_is_followed_or_refused() {
    let folder = PathBuf::from(env::var_os("AUTOPLACE_SCHEMA_SUITE").expect("the suite's folder `tests`"));
    let model = env::var_os("AUTOPLACE_SCHEMA_MODEL").expect("a model, of which the vocabulary is used");
    let vocab = Model::load(model, ModelParams { vocab_only: true, ..ModelParams::default() }).unwrap().vocab();
    let vocabulary = Vocabulary::new(&vocab).unwrap();
    let only = env::var("AUTOPLACE_SCHEMA_ONLY").ok();
    let (mut rows, mut wrong) = (BTreeMap::<String, Row>::new(), Vec::new());
    for draft in DRAFTS {
        for kind in FOLDERS {
            let mut files: Vec<PathBuf> =
                fs::read_dir(folder.join(draft).join(kind)).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
            files.sort();
            for file in files {
                let stem = file.file_stem().unwrap().to_str().unwrap();
                if kind != "optional/format" && OTHER_BEHAVIOUR.contains(&(draft, stem)) {
                    continue;
                }
                if only.as_deref().is_some_and(|only| only != stem) {
                    continue;
                }
                let name = if kind == "optional/format" { format!("format: {stem}") } else { stem.to_owned() };
                let row = rows.entry(name.clone()).or_default();
                let cases: Vec<Value> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
                for case in &cases {
                    for fault in try_case(draft, case, &vocabulary, row) {
                        wrong.push(format!("{draft} {name}: {fault}"));
                    }
                }
            }
        }
    }
    let table = table(&rows);
    println!("{table}");
    if let Some(to) = env::var_os("AUTOPLACE_SCHEMA_TABLE") {
        fs::write(to, &table).unwrap();
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

/// Runs one schema with its instances, and returns the faults that were found.
fn try_case(draft: &str, case: &Value, vocabulary: &Arc<Vocabulary>, row: &mut Row) -> Vec<String> {
    let mut schema = case["schema"].clone();
    if let (Some(members), "draft7") = (schema.as_object_mut(), draft) {
        members.entry("$schema").or_insert(json!("http://json-schema.org/draft-07/schema#"));
    }
    let about = case["description"].as_str().unwrap();
    let tests = case["tests"].as_array().unwrap();
    let is_valid = |test: &&Value| test["valid"] == true;
    let closed = Constraint::json_schema(schema.clone());
    let begun = match Matcher::new(&Constraint::json_schema(schema).open_objects(), vocabulary) {
        Ok(begun) => begun,
        Err(Error::Constraint { reason, .. }) => {
            let keyword = reason.split('`').nth(1).map_or_else(|| reason.clone(), str::to_owned);
            *row.refused.entry(keyword).or_default() += 1;
            return Vec::new();
        }
        Err(error) => return vec![format!("{about}: {error}")],
    };
    row.followed += 1;
    let mut faults = Vec::new();
    for test in tests {
        let (instance, what) = (&test["data"], &test["description"]);
        let is_written = spellings(instance).iter().any(|text| allows(begun.clone(), vocabulary, text));
        match (is_valid(&test), is_written) {
            (true, true) => row.valid += 1,
            (false, false) => row.invalid += 1,
            (true, false) if is_narrower(instance) => row.narrower += 1,
            (true, false) => faults.push(format!("{about}: {what}: valid, and cannot be written: {instance}")),
            (false, true) => faults.push(format!("{about}: {what}: invalid, and can be written: {instance}")),
        }
    }
    // Objects are closed by default. This may exclude valid instances, but must not admit an invalid one.
    match Matcher::new(&closed, vocabulary) {
        Ok(begun) => {
            let allows = |text: &String| allows(begun.clone(), vocabulary, text);
            let writes = |instance: &Value| spellings(instance).iter().any(allows);
            for test in tests.iter().filter(|test| !is_valid(test) && writes(&test["data"])) {
                faults.push(format!("{about}: {}: invalid, and can be written by default", test["description"]));
            }
        }
        // A schema whose objects are closed is refused only if an object requires a property that it may not have.
        Err(Error::Constraint { .. }) => {}
        Err(error) => faults.push(format!("{about}: by default: {error}")),
    }
    faults
}

/// Whether a value lies outside the documented limits (docs/constrained-output.md): within the limits are integers that
/// a double represents exactly, strings without `\u` escapes, and host names without reserved labels.
fn is_narrower(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_none_or(|number| number.abs() > 9_007_199_254_740_991.0),
        Value::String(text) => {
            let is_reserved = text.split('.').any(|label| label.get(2..4) == Some("--"));
            is_reserved || text.chars().any(|c| c.is_ascii_control() && !matches!(c, '\u{8}'..='\n' | '\u{c}' | '\r'))
        }
        Value::Array(items) => items.iter().any(is_narrower),
        Value::Object(members) => members.values().any(is_narrower),
        Value::Null | Value::Bool(_) => false,
    }
}

/// The spellings of a value: with the properties in every order, and with whole numbers without a fraction.
fn spellings(value: &Value) -> Vec<String> {
    let mut texts = match value {
        Value::Number(number) => match number.as_f64() {
            Some(whole) if number.is_f64() && whole.fract() == 0.0 && whole.abs() < 9e15 => {
                vec![number.to_string(), format!("{whole:.0}")]
            }
            Some(tiny) if number.to_string().contains('e') => vec![format!("{tiny}")],
            _ => vec![number.to_string()],
        },
        Value::Array(items) => joined(items.iter().map(spellings).collect(), '[', ']'),
        Value::Object(members) => orders(members.len())
            .into_iter()
            .flat_map(|order| {
                let members: Vec<(&String, &Value)> = members.iter().collect();
                let parts = order.into_iter().map(|at| {
                    let (name, value) = members[at];
                    spellings(value).into_iter().map(|spelling| format!("{}:{spelling}", json!(name))).collect()
                });
                joined(parts.collect(), '{', '}')
            })
            .collect(),
        other => vec![other.to_string()],
    };
    texts.truncate(MAX_SPELLINGS);
    texts
}

fn joined(parts: Vec<Vec<String>>, begin: char, end: char) -> Vec<String> {
    let mut texts = vec![String::new()];
    for part in parts {
        texts = texts
            .iter()
            .flat_map(|text| {
                let comma = if text.is_empty() { "" } else { "," };
                part.iter().map(move |spelling| format!("{text}{comma}{spelling}"))
            })
            .take(MAX_SPELLINGS)
            .collect();
    }
    texts.into_iter().map(|text| format!("{begin}{text}{end}")).collect()
}

fn orders(count: usize) -> Vec<Vec<usize>> {
    if count > 5 {
        return vec![(0..count).collect()];
    }
    let mut orders = vec![Vec::new()];
    for _ in 0..count {
        orders = orders
            .iter()
            .flat_map(|order| {
                (0..count).filter(|index| !order.contains(index)).map(|index| [&order[..], &[index]].concat())
            })
            .collect();
    }
    orders
}

fn allows(mut matcher: Matcher, vocabulary: &Vocabulary, text: &str) -> bool {
    let env = vocabulary.factory.tok_env().clone();
    for token in env.tokenize_bytes(text.as_bytes()) {
        let Ok(mask) = matcher.mask() else { return false };
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 || matcher.accept(token as i32).is_err() {
            return false;
        }
    }
    matcher.may_end()
}

fn table(rows: &BTreeMap<String, Row>) -> String {
    let mut table = "| file of the suite | schemas followed | valid accepted | invalid refused | valid, never written | schemas refused, by \
                     what |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for (name, row) in rows {
        let refused: Vec<String> = row.refused.iter().map(|(what, count)| format!("{count}: {what}")).collect();
        let (followed, valid, invalid, narrower) = (row.followed, row.valid, row.invalid, row.narrower);
        table += &format!("| {name} | {followed} | {valid} | {invalid} | {narrower} | {} |\n", refused.join("; "));
    }
    table
}
