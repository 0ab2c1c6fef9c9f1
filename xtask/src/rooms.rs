//! `rooms`: checks that the rooms of a crate import in one direction, as ARCHITECTURE.md lists them.
//!
//! In: the table of crates and rooms, and the source. A room is a top-level module of a crate; it may import from the
//! rooms above it in the table. Out: the lines that import from a room below. Tests and comments do not count.

use std::path::Path;

use anyhow::{Result, bail};

use crate::tree;
use crate::workspace::Workspace;

const LIST: &str = "ARCHITECTURE.md";

/// Fails for an import from a later room.
pub(crate) fn rooms(workspace: &Workspace) -> Result<()> {
    let list = std::fs::read_to_string(workspace.root.join(LIST))?;
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (crate_folder, rooms) in listed(&list) {
        let source = workspace.root.join(&crate_folder).join("src");
        for file in tree::files(&source)? {
            let Some(at) = rooms.iter().position(|room| is_in(&file, room)) else { continue };
            let text = std::fs::read_to_string(source.join(&file))?;
            checked += 1;
            let imports = imports(&text).into_iter();
            let upward = imports.filter(|(_, room)| rooms[at + 1..].contains(room));
            wrong.extend(upward.map(|(line, room)| {
                let (file, own) = (file.display(), &rooms[at]);
                format!("{crate_folder}/src/{file}:{line}: `{own}` imports from `{room}`, which comes after it")
            }));
        }
    }
    if checked == 0 {
        bail!("{LIST} lists no rooms");
    }
    if !wrong.is_empty() {
        bail!("a room imports from the rooms above it in {LIST}:\n{}", wrong.join("\n"));
    }
    println!("{checked} files import from earlier rooms only");
    Ok(())
}

/// The crates' folders with their rooms, in the order of the table.
fn listed(list: &str) -> Vec<(String, Vec<String>)> {
    let mut crates: Vec<(String, Vec<String>)> = Vec::new();
    let table = list.lines().skip_while(|line| !line.starts_with("| crate | room |"));
    for row in table.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let [_, folder, room, ..] = cells[..] {
            if let Some(folder) = names(folder).first() {
                crates.push((folder.clone(), Vec::new()));
            }
            if let Some((_, rooms)) = crates.last_mut() {
                rooms.extend(names(room));
            }
        }
    }
    crates.retain(|(_, rooms)| !rooms.is_empty());
    crates
}

/// The names in backticks.
fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a file of a crate's source belongs to a room and is not a test.
fn is_in(file: &Path, room: &str) -> bool {
    let is_test = file.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
    let first = file.components().next().and_then(|part| Path::new(part.as_os_str()).file_stem()?.to_str());
    let is_rust = file.extension().is_some_and(|extension| extension == "rs");
    is_rust && !is_test && first == Some(room)
}

/// The rooms that the code names after `crate::`, with the numbers of their lines. Comments and the tests at the end of
/// a file do not count. `crate::{a, b}` names the rooms `a` and `b`.
fn imports(text: &str) -> Vec<(usize, String)> {
    let mut imports = Vec::new();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    for (line, code) in (1..).zip(code.lines()) {
        let code = code.split("//").next().unwrap_or_default();
        for named in code.split("crate::").skip(1) {
            let paths = match named.strip_prefix('{') {
                Some(group) => group.split('}').next().unwrap_or_default().split(',').collect(),
                None => vec![named],
            };
            for path in paths {
                let is_of_name = |letter: &char| letter.is_alphanumeric() || *letter == '_';
                let room = path.trim().chars().take_while(is_of_name).collect();
                imports.push((line, room));
            }
        }
    }
    imports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_the_rooms_of_each_crate_in_their_order() {
        let list = "text\n| crate | room | in | out |\n|---|---|---|---|\n| `a` | `one` | x | `y` |\n| | `two`, `three` | | |\n| `b` | | | |\n\n| `c` | `no` |\n";
        let rooms = ["one", "two", "three"].map(str::to_owned).to_vec();
        assert_eq!(listed(list), [("a".to_owned(), rooms)]);
    }

    #[test]
    fn imports_are_found_in_code_and_not_in_comments_or_tests() {
        let text = "//! crate::a\nuse crate::b::C;\nuse crate::{d, e::F};\n    crate::g::h(); // crate::i\n#[cfg(test)]\nmod tests {\n    use crate::j;\n";
        let found: Vec<(usize, String)> = imports(text);
        let expected = [(2, "b"), (3, "d"), (3, "e"), (4, "g")].map(|(line, room)| (line, room.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_belongs_to_the_room_that_its_folder_or_its_name_says() {
        let is_in = |file: &str| is_in(Path::new(file), "run");
        assert!(is_in("run.rs") && is_in("run/mod.rs") && is_in("run/engine/queue.rs"));
        assert!(!is_in("runs/mod.rs") && !is_in("decode/run.rs") && !is_in("run/tests.rs") && !is_in("run/a.txt"));
    }
}
