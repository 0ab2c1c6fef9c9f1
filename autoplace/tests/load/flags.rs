//! docs/flags.md, held against llama.cpp's list of arguments (common/arg.cpp) and against our own methods.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::llama_source::read;

/// The programs whose flags a user of a library knows.
const PROGRAMS: [&str; 3] = ["COMMON", "CLI", "COMPLETION"];

/// What stands between quotes and begins with a dash.
fn quoted(text: &str, quote: char) -> impl Iterator<Item = &str> {
    text.split(quote).skip(1).step_by(2).filter(|part| part.starts_with('-'))
}

/// The flags of these programs, as they are registered: `add_opt(common_arg({"-m", "--model"},
/// ...).set_examples({...}))`.
fn flags() -> BTreeSet<String> {
    let source = read("common/arg.cpp");
    let mut flags = BTreeSet::new();
    for option in source.split("add_opt(common_arg(").skip(1) {
        let examples = option.split("set_examples({").nth(1);
        let examples = examples.and_then(|it| it.split("})").next()).unwrap_or("LLAMA_EXAMPLE_COMMON");
        let is_ours = |name: &str| {
            let name = name.trim().strip_prefix("LLAMA_EXAMPLE_");
            name.is_some_and(|name| PROGRAMS.contains(&name))
        };
        if !examples.split(',').any(is_ours) {
            continue;
        }
        // The names, and in a second list those that say the opposite.
        let mut lists = option.split('}');
        let names = lists.next().unwrap();
        let opposites = lists.next().filter(|list| list.trim_start_matches([',', ' ', '\n']).starts_with('{'));
        let all = quoted(names, '"').chain(quoted(opposites.unwrap_or_default(), '"'));
        flags.extend(all.map(str::to_owned));
    }
    flags
}

const TABLE: &str = include_str!("../../../docs/flags.md");

#[test]
fn every_flag_is_in_the_table_once() {
    let mut left = flags();
    assert!(left.len() > 300, "{}", left.len());
    for row in TABLE.lines().filter(|line| line.starts_with("| `-")) {
        let (first, _) = row.trim_start_matches("| ").split_once(" | ").unwrap();
        for flag in quoted(first, '`') {
            assert!(left.remove(flag), "{flag} is no flag, or twice in the table");
        }
    }
    assert!(left.is_empty(), "docs/flags.md says nothing of {left:?}");
}

/// All of our public functions, by name.
fn methods() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = ["autoplace/src", "chat/src", "planner/src", "llama-sys/src"].map(|it| root.join(it)).to_vec();
    let mut names = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(path).unwrap();
                let ends = |c: char| !(c.is_alphanumeric() || c == '_');
                let functions = ["pub fn ", "pub const fn "].into_iter().flat_map(|begin| text.split(begin).skip(1));
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
