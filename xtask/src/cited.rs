//! `cited`: lists differences between the pinned llama.cpp and an earlier one that no test may notice: changes in
//! functions that our comments cite, and new assertions.
//!
//! In: the folder of the earlier llama.cpp, the pinned source, and the comments of the tracked files. A comment cites a
//! function after its file: `llama-context.cpp, output_reserve`. Out: a line for each cited function that differs or is
//! missing, with the files that cite it; and the new assertions in `src` and `ggml/src`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{source, tree};

/// Endings of the cited files.
const ENDINGS: [&str; 6] = [".cpp, ", ".h, ", ".c, ", ".cu, ", ".cuh, ", ".m, "];

/// A cited file and function, as the comment writes them.
type Cited = (String, String);

pub(crate) fn cited(workspace: &Workspace, earlier: &Path) -> Result<()> {
    let pinned = Sources::read(&source::find(workspace)?)?;
    let earlier = Sources::read(earlier)?;
    for ((file, function), users) in citations(workspace)? {
        let (before, after) = (earlier.definitions(&file, &function), pinned.definitions(&file, &function));
        let users = Vec::from_iter(users).join(", ");
        if before.is_empty() || before == after {
            continue;
        }
        let change = if after.is_empty() { "is gone".to_owned() } else { changed(&before, &after) };
        println!("{file}, {function}: {change} <- {users}");
    }
    println!();
    let libraries = |path: &Path| path.starts_with("src") || path.starts_with("ggml/src");
    for (path, text) in pinned.files.iter().filter(|(path, _)| libraries(path)) {
        let known = earlier.files.get(path).map(|text| assertions(text)).unwrap_or_default();
        for assertion in assertions(text).difference(&known) {
            println!("{}: {assertion}", path.display());
        }
    }
    Ok(())
}

/// The texts of llama.cpp's source files, by their paths in the source.
struct Sources {
    files: BTreeMap<PathBuf, String>,
}

impl Sources {
    fn read(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for folder in ["src", "ggml/src", "common", "tools"] {
            for file in tree::files(&root.join(folder))? {
                let path = Path::new(folder).join(file);
                let text = fs::read(root.join(&path)).with_context(|| path.display().to_string())?;
                files.insert(path, String::from_utf8_lossy(&text).into_owned());
            }
        }
        Ok(Self { files })
    }

    /// The definitions of a function in the files whose path ends with `file`.
    fn definitions(&self, file: &str, function: &str) -> Vec<String> {
        let files = self.files.iter().filter(|(path, _)| path.ends_with(file));
        files.flat_map(|(_, text)| definitions(text, function)).collect()
    }
}

/// The functions that comments of tracked files cite, each with the files that cite it.
fn citations(workspace: &Workspace) -> Result<BTreeMap<Cited, BTreeSet<String>>> {
    let listed = workspace.git(&["ls-files", "*.rs", "*.cpp", "*.h", "*.md", "*.cmake"])?;
    let mut all: BTreeMap<Cited, BTreeSet<String>> = BTreeMap::new();
    for file in listed.lines() {
        let text = fs::read_to_string(workspace.root.join(file)).with_context(|| file.to_owned())?;
        for cited in cited_in(&text) {
            all.entry(cited).or_default().insert(file.to_owned());
        }
    }
    Ok(all)
}

/// The citations in a text, in which a line break may come anywhere in a citation.
fn cited_in(text: &str) -> Vec<Cited> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!', '#']).trim());
    let text = lines.collect::<Vec<_>>().join(" ");
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let mut all = Vec::new();
    for ending in ENDINGS {
        for (at, _) in text.match_indices(ending) {
            let end = at + ending.len();
            let file = text[..end - 2].rsplit(|c: char| !is_path(c)).next().unwrap_or_default();
            // A citation may list several functions of one file. The list ends at the end of the brackets or at another
            // file.
            let names = text[end..].split([')', ';', ':']).next().unwrap_or_default();
            let names = names.split(|c: char| !(c.is_ascii_alphanumeric() || "_.".contains(c)));
            let names = names.take_while(|name| !name.contains('.')).filter(|name| name.len() > 3);
            all.extend(names.map(|name| (file.to_owned(), name.to_owned())));
        }
    }
    all
}

/// The definitions of a function in llama.cpp's style. A definition begins with a line at the margin that contains the
/// name before a bracket, and ends with the next line that closes a brace at the margin.
fn definitions(source: &str, function: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let call = format!("{function}(");
    // Calls in one-line definitions and initialisers do not count.
    let names = |line: &str| {
        let line = line.split(['{', '=']).next().unwrap_or_default();
        line.match_indices(&call).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    };
    let begins = |line: &str| line.starts_with(|c: char| c.is_ascii_alphabetic()) && names(line);
    let mut all = Vec::new();
    for begin in (0..lines.len()).filter(|&at| begins(lines[at])) {
        let head = lines[begin..].iter().position(|line| line.contains('{') || line.trim_end().ends_with(';'));
        let Some(head) = head.map(|head| begin + head).filter(|&head| lines[head].contains('{')) else {
            continue; // a declaration
        };
        let is_one_line = lines[head].matches('{').count() == lines[head].matches('}').count();
        let rest = lines[head..].iter().position(|line| line.starts_with('}'));
        let end = if is_one_line { head } else { rest.map_or(lines.len() - 1, |rest| head + rest) };
        all.push(lines[begin..=end].join("\n"));
    }
    all
}

/// The number of lines that only one of the two versions has.
fn changed(before: &[String], after: &[String]) -> String {
    let lines = |all: &[String]| all.iter().flat_map(|one| one.lines()).map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, after) = (lines(before), lines(after));
    format!("{} lines less, {} more", before.difference(&after).count(), after.difference(&before).count())
}

/// The lines of a text with an assertion.
fn assertions(text: &str) -> BTreeSet<&str> {
    let asserts = |line: &&str| line.contains("GGML_ASSERT(") || line.contains("GGML_ABORT(");
    text.lines().map(str::trim).filter(asserts).filter(|line| !line.starts_with("//")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_citation_is_found_across_lines_and_with_all_its_functions() {
        let text =
            "/// Padded (llama-context.cpp, `output_reserve` and\n/// `encode`; ggml.c,\n/// ggml_row_size).\n// a.h";
        let of = |file: &str, name: &str| (file.to_owned(), name.to_owned());
        let found: BTreeSet<Cited> = cited_in(text).into_iter().collect();
        for cited in [
            of("llama-context.cpp", "output_reserve"),
            of("llama-context.cpp", "encode"),
            of("ggml.c", "ggml_row_size"),
        ] {
            assert!(found.contains(&cited), "{cited:?} of {found:?}");
        }
    }

    #[test]
    fn a_definition_ends_at_the_margin_and_declarations_and_calls_are_excluded() {
        let source = "int one(int x);\nint one(\n        int x) {\n    if (x) {\n        one(0);\n    }\n    return x;\n}\n\
                      static int anyone(int x) { return one(x); }\n";
        assert_eq!(
            definitions(source, "one"),
            ["int one(\n        int x) {\n    if (x) {\n        one(0);\n    }\n    return x;\n}"]
        );
        assert_eq!(definitions(source, "anyone"), ["static int anyone(int x) { return one(x); }"]);
        assert!(definitions(source, "two").is_empty());
    }
}
