//! Compares docs/flags.md with our own methods. The program's tests compare it with llama.cpp's flags.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const TABLE: &str = include_str!("../../../docs/flags.md");

/// The names of all our public functions.
fn methods() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = ["autoplace", "chat", "hub", "llama-sys", "openai", "planner"];
    let mut folders = crates.map(|it| root.join(it).join("src")).to_vec();
    let mut names = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(path).unwrap();
                let ends = |c: char| !(c.is_alphanumeric() || c == '_');
                let functions = ["pub fn ", "pub const fn ", "pub async fn "]
                    .into_iter()
                    .flat_map(|begin| text.split(begin).skip(1));
                let setters =
                    text.split("setters! {").skip(1).flat_map(|it| it.split("\n    }").next().unwrap().lines());
                let names_of = functions.chain(setters.map(str::trim_start));
                names.extend(names_of.map(|it| it.split(ends).next().unwrap().to_owned()));
            }
        }
    }
    names
}

#[test]
fn every_method_of_the_table_is_there() {
    let methods = methods();
    let mut named = 0;
    for code in TABLE.split('`').skip(1).step_by(2) {
        let Some(method) = code.strip_prefix('.') else { continue };
        let method = method.split('(').next().unwrap();
        assert!(methods.contains(method), "{code}");
        named += 1;
    }
    assert!(named > 50, "{named}");
}
