//! docs/flags.md and docs/if-you-know.md are compared with our own methods. The tests of the program compare
//! docs/flags.md with llama.cpp's flags.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const TABLE: &str = include_str!("../../../docs/flags.md");

/// The names of all our public functions.
fn methods() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = ["autoplace", "chat", "hub", "llama-sys", "openai", "planner"];
    let mut folders = crates.map(|folder| root.join(folder).join("src")).to_vec();
    let mut names = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(path).unwrap();
                let ends = |c: char| !(c.is_alphanumeric() || c == '_');
                let functions = ["pub fn ", "pub const fn ", "pub async fn "]
                    .into_iter()
                    .flat_map(|begin| text.split(begin).skip(1));
                names.extend(functions.map(|function| function.split(ends).next().unwrap().to_owned()));
            }
        }
    }
    names
}

/// Checks that every method exists that the document names. Returns the number of these methods.
fn named(document: &str) -> usize {
    let methods = methods();
    let codes =
        document.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`').skip(1).step_by(2));
    let named: Vec<&str> = codes.filter_map(|code| code.strip_prefix('.')).collect();
    for method in &named {
        let name = method.split(['(', ':']).next().unwrap();
        assert!(methods.contains(name), ".{method}");
    }
    named.len()
}

#[test]
fn every_method_of_the_flag_table_exists() {
    let named = named(TABLE);
    assert!(named > 50, "{named}");
}

#[test]
fn every_method_of_if_you_know_exists() {
    let named = named(include_str!("../../../docs/if-you-know.md"));
    assert!(named > 50, "{named}");
}
