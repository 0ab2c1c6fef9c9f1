//! docs/defaults.md is compared with the source of the llama.cpp that was built, and with our own defaults.

use std::collections::{BTreeMap, BTreeSet};

use autoplace::generate::Sampling;
use autoplace::memory::{ContextParams, Pooling};
use serde_json::{Map, Value};

use test_support::llama_source::read;

/// The names of fields, each with its value as the source states it. A value is never empty.
type Fields = BTreeMap<String, String>;

/// Fields of the C API that are left out: callbacks, data, and fields that select another kind of model or context.
const API_APART: &str = include_str!("defaults_api_apart.txt");

/// Fields of the tools' parameters that are left out: those that only one tool uses, names of files, the server's
/// network and pages, and training.
const TOOLS_APART: &str = include_str!("defaults_tools_apart.txt");

/// The members of a struct in common.h.
fn members(source: &str, name: &str) -> Fields {
    let begin = source.find(&format!("struct {name} {{\n")).unwrap();
    let body = source[begin..].split("\n};").next().unwrap();
    let (mut fields, mut statement) = (Fields::new(), String::new());
    for line in body.lines().skip(1) {
        let line = line.split("//").next().unwrap();
        let is_inner = line.starts_with("     ") || !line.starts_with("    ");
        if statement.is_empty() && is_inner {
            continue;
        }
        statement = format!("{statement} {}", line.trim());
        let whole = statement.trim_end();
        if let Some(whole) = whole.strip_suffix(';') {
            let (left, value) = whole.split_once(" = ").unwrap_or((whole, ""));
            let name = left.split_whitespace().next_back().unwrap();
            let name = name.split('[').next().unwrap();
            if !left.contains('(') {
                fields.insert(name.to_owned(), in_one_line(value));
            }
            statement.clear();
        } else if whole.ends_with('{') && whole.contains('(') {
            // This statement is a part of the body of a function.
            statement.clear();
        }
    }
    fields
}

/// The values that this function sets. It is one of the functions that return defaults.
fn initialisers(file: &str, function: &str) -> Fields {
    let source = read(file);
    let begin = source.find(&format!("{function}() {{")).unwrap();
    let body = source[begin..].split("};").next().unwrap();
    let initialiser = |line: &str| {
        let (name, value) = line.trim().strip_prefix("/*.")?.split_once("=*/")?;
        let value = value.split("//").next()?.trim().trim_end_matches(',');
        Some((name.trim().to_owned(), value.to_owned()))
    };
    body.lines().filter_map(initialiser).collect()
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The values in this column of the document.
fn documented(column: &str) -> Fields {
    let text = include_str!("../../../docs/defaults.md");
    let (mut index, mut fields) = (None, Fields::new());
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells.contains(&"autoplace") {
            index = cells.iter().position(|cell| *cell == column);
            continue;
        }
        let cell = index.map_or("", |index| cells[index]);
        for entry in cell.split('`').skip(1).step_by(2) {
            let (name, value) = entry.split_once(" = ").unwrap_or((entry, ""));
            let before = fields.insert(name.to_owned(), value.to_owned());
            let once = before.is_none_or(|before| before.is_empty());
            assert!(once, "{name} is there twice");
        }
    }
    fields
}

/// Checks that the document contains exactly these fields, with their values. The document may omit the fields in
/// `apart`, but llama.cpp must still have them.
#[track_caller]
fn hold(column: &str, theirs: &Fields, apart: &str) {
    let documented = documented(column);
    for (name, value) in &documented {
        let theirs = theirs.get(name);
        assert_eq!(theirs, Some(value), "{name} in the column `{column}`");
    }
    let apart: BTreeSet<&str> = apart.split_whitespace().collect();
    let known = |name: &&String| documented.contains_key(*name) || apart.contains(name.as_str());
    let new: Vec<_> = theirs.keys().filter(|name| !known(name)).collect();
    assert!(new.is_empty(), "not in docs/defaults.md: {new:?}");
    let gone: Vec<_> = apart.into_iter().filter(|name| !theirs.contains_key(*name)).collect();
    assert!(gone.is_empty(), "gone from llama.cpp: {gone:?}");
}

#[test]
fn the_defaults_of_the_c_api_are_documented() {
    let mut theirs = initialisers("src/llama-context.cpp", "llama_context_default_params");
    theirs.append(&mut initialisers("src/llama-model.cpp", "llama_model_default_params"));
    assert!(theirs.len() > 40, "{theirs:?}");
    hold("C API", &theirs, API_APART);
}

#[test]
fn the_defaults_of_llama_cpps_tools_are_documented() {
    let source = read("common/common.h");
    let mut theirs = members(&source, "common_params");
    assert!(theirs.len() > 150, "{theirs:?}");
    let sampling = members(&source, "common_params_sampling");
    theirs.extend(prefixed("sampling", sampling));
    // Only some members of these structs are in the document.
    for (prefix, name) in [("cpuparams", "common_cpu_params"), ("speculative.draft", "common_params_speculative_draft")]
    {
        let some = prefixed(prefix, members(&source, name));
        let documented = documented("llama.cpp's tools");
        theirs.extend(some.filter(|(name, _)| documented.contains_key(name)));
    }
    hold("llama.cpp's tools", &theirs, TOOLS_APART);
}

fn prefixed(prefix: &str, fields: Fields) -> impl Iterator<Item = (String, String)> {
    fields.into_iter().map(move |(name, value)| (format!("{prefix}.{name}"), value))
}

#[test]
fn our_own_defaults_are_documented() {
    fn fields(value: &impl serde::Serialize) -> Map<String, Value> {
        // The value is converted to text and back. In the text, an f32 has only the digits that it needs.
        serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
    }
    let mut ours = fields(&ContextParams::default());
    // Some fields are omitted if they are off. They are turned on here.
    let mut on = ContextParams::default();
    (on.embeddings, on.mtp, on.n_rs_seq) = (Some(Pooling::Model), true, 1);
    let off = [("embeddings", Value::Null), ("mtp", false.into()), ("n_rs_seq", 0.into())];
    for (name, value) in off {
        assert_eq!(ours.insert(name.to_owned(), value), None);
    }
    assert!(fields(&on).keys().eq(ours.keys()));
    ours.extend(fields(&Sampling::default()));
    let mut documented = documented("autoplace");
    // If a row has no value, such as `Headroom::Default`, it is not a field.
    documented.retain(|_, value| !value.is_empty());
    for (name, value) in &documented {
        let value: Value = serde_json::from_str(value).unwrap();
        assert_eq!(ours.get(name), Some(&value), "{name}");
    }
    let missing: Vec<_> = ours.keys().filter(|name| !documented.contains_key(*name)).collect();
    assert!(missing.is_empty(), "not in docs/defaults.md: {missing:?}");
}
