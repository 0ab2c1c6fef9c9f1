//! `promises`: checks that docs/promises.md names a test for each promise of the documentation, and that SECURITY.md
//! names one for each bound.
//!
//! In: tables. docs/promises.md has one table below the name of each document. Out: rows whose words are not in the
//! document, and tests that do not exist.

use anyhow::{Result, bail};

use crate::workspace::Workspace;

const LIST: &str = "docs/promises.md";

/// Fails if a promise or a bound has no test.
pub(crate) fn promises(workspace: &Workspace) -> Result<()> {
    let read = |file: &str| std::fs::read_to_string(workspace.root.join(file)).unwrap_or_default();
    let (list, bounds) = (read(LIST), read("SECURITY.md"));
    let mut wrong = unsaid(&list, &read);
    let named = [tests(&list), tests(&bounds)].concat();
    let missing = named.iter().filter(|test| !is_test(test, &read));
    wrong.extend(missing.map(|test| format!("there is no test {test}")));
    if !wrong.is_empty() {
        bail!("{LIST} and SECURITY.md:\n{}", wrong.join("\n"));
    }
    println!("{} tests check the promises", named.len());
    Ok(())
}

/// Rows whose words are not in the document, and rows without a test. `read` returns the text of a file below the root.
fn unsaid(list: &str, read: &dyn Fn(&str) -> String) -> Vec<String> {
    let (mut document, mut wrong) = (String::new(), Vec::new());
    for line in list.lines() {
        if let Some(file) = line.strip_prefix("## ") {
            document = words(&read(file));
        }
        let row = line.strip_prefix("| ").filter(|row| !row.starts_with("promise "));
        let Some((promise, held)) = row.and_then(|row| row.split_once(" |")) else {
            continue;
        };
        if !document.contains(&words(promise)) {
            wrong.push(format!("the document does not contain this promise: {promise}"));
        }
        if tests(held).is_empty() {
            wrong.push(format!("no test checks this promise: {promise}"));
        }
    }
    wrong
}

/// The tests that a text names: `path.rs::name` in backticks.
fn tests(text: &str) -> Vec<&str> {
    text.split('`').filter(|part| part.contains(".rs::") && !part.contains(' ')).collect()
}

/// Whether the test exists. It must be a function with the test attribute that is not ignored, or be in the table of a
/// test without a harness.
fn is_test(test: &str, read: &dyn Fn(&str) -> String) -> bool {
    let (file, name) = test.split_once("::").unwrap_or_default();
    let text = read(file);
    let before = text.split_once(&format!("fn {name}(")).map(|(before, _)| before);
    let attributes = before.and_then(|before| before.rsplit_once("#[test]"));
    attributes.is_some_and(|(_, rest)| !rest.contains("fn ") && !rest.contains("#[ignore"))
        || text.contains(&format!("(\"{name}\", "))
}

/// The text on one line.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str) -> String {
        let text = match file {
            "a.md" => "It never\nfails.",
            "b.rs" => "#[test]\nfn one() {}\nfn two() {}\n#[test]\n#[ignore]\nfn long() {}\n(\"row\", two),",
            _ => "",
        };
        text.to_owned()
    }

    #[test]
    fn a_promise_is_in_its_document_and_has_a_test() {
        for (row, wrong) in [
            ("| never fails | `b.rs::one` |", None),
            ("| always fails | `b.rs::one` |", Some("the document does not contain this promise: always fails")),
            ("| never fails | |", Some("no test checks this promise: never fails")),
        ] {
            let list = format!("## a.md\n\n| promise | held by |\n|---|---|\n{row}\n");
            assert_eq!(unsaid(&list, &read), Vec::from_iter(wrong), "{row}");
        }
    }

    #[test]
    fn a_test_is_a_function_with_the_attribute() {
        assert_eq!(tests("`a b.rs::c`, `b.rs::one`, `b.rs`"), ["b.rs::one"]);
        let found = ["b.rs::one", "b.rs::row", "b.rs::two", "b.rs::long", "b.rs::no", "c.rs::one"]
            .map(|test| is_test(test, &read));
        assert_eq!(found, [true, true, false, false, false, false]);
    }
}
