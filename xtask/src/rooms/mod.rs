//! `rooms`: checks three rules. The rooms of a crate import in one direction, in the order of ARCHITECTURE.md; no
//! circle of imports has more than two files; and all modules with parts are named in the same way.
//!
//! In: the table of crates and rooms, and the source. A room is a module of a crate, such as `load` or `safe::model`. A
//! room may import from the rooms above it in the table. Out: the circles, and the lines that import from a lower room.
//! Tests and comments do not count.

mod files;
mod paths;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::tree;
use crate::workspace::Workspace;
use files::{Files, Module};

const LIST: &str = "ARCHITECTURE.md";

/// Folders in which circles are accepted. In the search, the placements own the costs, and the costs are computed from
/// the placements.
const WITH_CIRCLES: [&str; 1] = ["planner/src/plan/search"];

/// Fails for an import from a later room, for a circle of more than two files, and for a module in two places.
pub(crate) fn rooms(workspace: &Workspace) -> Result<()> {
    let list = std::fs::read_to_string(workspace.root.join(LIST))?;
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (crate_folder, rooms) in listed(&list) {
        let files = Files::read(&workspace.root.join(&crate_folder).join("src"))?;
        checked += files.len();
        wrong.extend(upward(&files, &rooms).into_iter().map(|line| format!("{crate_folder}/src/{line}")));
        let source = Path::new(&crate_folder).join("src");
        let remains = |file: &&Path| WITH_CIRCLES.iter().any(|folder| source.join(file).starts_with(folder));
        wrong.extend(files.circles().into_iter().filter(|circle| !circle.iter().all(remains)).map(|circle| {
            let circle: Vec<String> = circle.iter().map(|file| file.display().to_string()).collect();
            format!("{}: {} import from each other in a circle", source.display(), circle.join(" -> "))
        }));
    }
    if checked == 0 {
        bail!("{LIST} lists no rooms");
    }
    for folder in folders_of_code(workspace)? {
        wrong.extend(in_two_places(&tree::files(&folder)?).map(|file| {
            let own = folder.join(file.with_extension("")).join("mod.rs");
            format!("{} must be moved into its module's folder, as {}", folder.join(file).display(), own.display())
        }));
    }
    if !wrong.is_empty() {
        bail!("the rooms of {LIST}, and the files of modules:\n{}", wrong.join("\n"));
    }
    println!("{checked} files import from earlier rooms only, in no circle of more than two");
    Ok(())
}

/// The folders of the crates with their rooms, in the order of the table.
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

/// The names in backticks in a cell.
fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The imports of a room from a room below it, as `FILE:LINE: ...`.
fn upward(files: &Files, rooms: &[String]) -> Vec<String> {
    let room_of = |module: &Module| rooms.iter().position(|room| is_in(module, room));
    let mut found = Vec::new();
    for import in files.imports() {
        let Some(own) = room_of(import.from) else { continue };
        // If the path goes through a re-export, both the room in the path and the room of the item count.
        let later = [room_of(&import.named), room_of(import.to)].into_iter().flatten().find(|room| *room > own);
        if let Some(later) = later {
            let (file, line) = (import.file.display(), import.line);
            found
                .push(format!("{file}:{line}: `{}` imports from `{}`, which comes after it", rooms[own], rooms[later]));
        }
    }
    found
}

/// Whether a module belongs to a room: `safe::model::vocab` belongs to `safe::model`.
fn is_in(module: &Module, room: &str) -> bool {
    let mut names = module.iter();
    room.split("::").all(|name| names.next().is_some_and(|own| own == name))
}

/// The folders with Rust code in every crate of the workspace.
fn folders_of_code(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(&workspace.root)? {
        let folder = entry?.path();
        if folder.join("Cargo.toml").is_file() {
            folders.extend(
                ["src", "tests", "build"].map(|code| folder.join(code)).into_iter().filter(|path| path.is_dir()),
            );
        }
    }
    folders.sort();
    Ok(folders)
}

/// The files of modules that have further files in a folder of the same name: both `x.rs` and `x/y.rs` exist.
fn in_two_places(files: &BTreeSet<PathBuf>) -> impl Iterator<Item = &PathBuf> {
    let is_rust = |file: &&PathBuf| file.extension().is_some_and(|extension| extension == "rs");
    files.iter().filter(is_rust).filter(move |file| {
        let folder = file.with_extension("");
        files.iter().filter(is_rust).any(|other| other.parent() == Some(&folder))
    })
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
    fn a_room_has_the_modules_below_it_and_no_others() {
        let is_in = |module: &str| is_in(&module.split("::").map(str::to_owned).collect(), "safe::run");
        assert!(is_in("safe::run") && is_in("safe::run::engine::queue"));
        assert!(!is_in("safe") && !is_in("safe::runs") && !is_in("run") && !is_in("safe::decode::run"));
    }

    #[test]
    fn a_module_with_parts_is_one_folder() {
        let files = ["a.rs", "a/b.rs", "c/mod.rs", "c/d.rs", "e.rs", "e/text.txt"].map(PathBuf::from);
        let wrong: Vec<PathBuf> = in_two_places(&files.into()).cloned().collect();
        assert_eq!(wrong, [PathBuf::from("a.rs")]);
    }
}
