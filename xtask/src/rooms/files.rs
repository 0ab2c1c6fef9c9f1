//! A crate's source as a graph of files and their imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::paths::{Named, named};
use crate::tree;

/// A module as the list of names from the crate's root.
pub(super) type Module = Vec<String>;

/// The files of a crate's `src`, except its tests.
pub(super) struct Files {
    files: BTreeMap<Module, File>,
}

struct File {
    /// The path relative to `src`.
    path: PathBuf,
    named: Vec<Named>,
}

/// A path in a file, and the file that contains the item.
pub(super) struct Import<'f> {
    pub(super) from: &'f Module,
    pub(super) file: &'f Path,
    pub(super) line: usize,
    /// The module in the path, before re-exports are followed.
    pub(super) named: Module,
    /// The module that contains the item.
    pub(super) to: &'f Module,
    pub(super) is_exported: bool,
}

impl Files {
    /// Reads a crate's `src`.
    pub(super) fn read(source: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for path in tree::files(source)? {
            // If a package has a library, its program is a separate crate.
            let is_apart = path == Path::new("main.rs") && source.join("lib.rs").is_file();
            if let Some(module) = module(&path).filter(|_| !is_apart) {
                let text = std::fs::read_to_string(source.join(&path))?;
                files.insert(module, File { path, named: named(&text) });
            }
        }
        Ok(Self { files })
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn path(&self, module: &Module) -> &Path {
        &self.files[module].path
    }

    /// Every path that leads to another file of the crate.
    pub(super) fn imports(&self) -> Vec<Import<'_>> {
        let mut imports = Vec::new();
        for (from, file) in &self.files {
            for path in &file.named {
                let (named, _) = self.walk(from, &path.names);
                if let Some(to) = self.resolve(from, &path.names, 0).filter(|to| *to != from) {
                    let is_exported = path.is_exported;
                    imports.push(Import { from, file: &file.path, line: path.line, named, to, is_exported });
                }
            }
        }
        imports
    }

    /// The module that contains the item of a path, after all re-exports are followed.
    fn resolve(&self, from: &Module, names: &[String], depth: usize) -> Option<&Module> {
        let (module, item) = self.walk(from, names);
        let (module, file) = self.files.get_key_value(&module)?;
        let exported = item.and_then(|item| file.named.iter().find(|named| named.is_exported && named.alias == item));
        match exported {
            // A re-export may lead back to itself through another re-export.
            Some(exported) if depth < 8 => self.resolve(module, &exported.names, depth + 1),
            _ => Some(module),
        }
    }

    /// Follows a path through modules. Returns the last module, and the name after it.
    fn walk(&self, from: &Module, names: &[String]) -> (Module, Option<String>) {
        let mut at = from.clone();
        for (index, name) in names.iter().enumerate() {
            match name.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                name => {
                    at.push(name.to_owned());
                    if !self.files.contains_key(&at) {
                        at.pop();
                        return (at, names.get(index).cloned());
                    }
                }
            }
        }
        (at, None)
    }

    /// Circles of imports with more than two files, each with the shortest path around it. Re-exports do not count as
    /// imports. Two files may import from each other, for example a module and a part of it, or a type and its
    /// iterator.
    pub(super) fn circles(&self) -> Vec<Vec<&Path>> {
        let mut edges: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
        for import in self.imports().iter().filter(|import| !import.is_exported) {
            edges.entry(import.from).or_default().insert(import.to);
        }
        let mut circles: BTreeMap<BTreeSet<&Module>, Vec<&Path>> = BTreeMap::new();
        for (&from, targets) in &edges {
            for &to in targets {
                if let Some(way) = way_back(&edges, from, to) {
                    let files = way.iter().map(|module| self.path(module)).collect();
                    circles.entry(way.into_iter().collect()).or_insert(files);
                }
            }
        }
        circles.into_values().collect()
    }
}

/// The shortest circle from `from` through `to` back to `from` that has more than these two files.
fn way_back<'m>(
    edges: &BTreeMap<&'m Module, BTreeSet<&'m Module>>,
    from: &'m Module,
    to: &'m Module,
) -> Option<Vec<&'m Module>> {
    let mut before: BTreeMap<&Module, &Module> = BTreeMap::new();
    let mut left = VecDeque::from([to]);
    while let Some(module) = left.pop_front() {
        for &next in edges.get(module).into_iter().flatten() {
            if next == from && module != to {
                let mut way = vec![module];
                while let Some(earlier) = before.get(way[way.len() - 1]) {
                    way.push(earlier);
                }
                way.push(from);
                way.reverse();
                return Some(way);
            }
            if next != from && next != to && !before.contains_key(next) {
                before.insert(next, module);
                left.push_back(next);
            }
        }
    }
    None
}

/// The module of a file; `None` for a file of tests and for a file that is not Rust.
fn module(path: &Path) -> Option<Module> {
    let mut names: Vec<String> =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    let is_test = names.iter().any(|name| name == "tests");
    if is_test || path.extension().is_none_or(|extension| extension != "rs") {
        return None;
    }
    let is_root = names.len() == 1 && ["lib", "main"].contains(&names[0].as_str());
    if is_root || names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> Files {
        let file = |&(path, text): &(&str, &str)| {
            let path = PathBuf::from(path);
            Some((module(&path)?, File { named: named(text), path }))
        };
        Files { files: list.iter().filter_map(file).collect() }
    }

    #[test]
    fn a_file_is_the_module_of_its_folder_or_its_name() {
        let of = |path: &str| module(Path::new(path)).map(|names| names.join("::"));
        assert_eq!(of("lib.rs").as_deref(), Some(""));
        assert_eq!(of("run.rs").as_deref(), Some("run"));
        assert_eq!(of("run/mod.rs").as_deref(), Some("run"));
        assert_eq!(of("run/engine/queue.rs").as_deref(), Some("run::engine::queue"));
        assert_eq!((of("run/tests.rs"), of("run/a.txt")), (None, None));
    }

    #[test]
    fn an_import_leads_to_the_file_of_the_item_not_of_its_re_export() {
        let files = files(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::Item;\n"),
            ("a/mod.rs", "mod deep;\npub use deep::Item;\n"),
            ("a/deep.rs", "pub struct Item;\n"),
            ("b.rs", "use crate::Item;\n"),
        ]);
        let imports = files.imports();
        let of_b: Vec<String> =
            imports.iter().filter(|import| import.from == &["b"]).map(|import| import.to.join("::")).collect();
        assert_eq!(of_b, ["a::deep"]);
    }

    #[test]
    fn two_files_may_need_each_other_and_three_may_not() {
        let pair = [("a.rs", "use crate::b::B;\n"), ("b.rs", "use crate::a::A;\n")];
        assert!(files(&pair).circles().is_empty());
        let three =
            [("a.rs", "use crate::b::B;\n"), ("b.rs", "use crate::c::C;\n"), ("c.rs", "use super::a::{A, D};\n")];
        assert_eq!(files(&three).circles(), [["a.rs", "b.rs", "c.rs"].map(Path::new)]);
        let exported = [three[0], three[1], ("c.rs", "pub use crate::a::A;\n")];
        assert!(files(&exported).circles().is_empty());
        // A module imports from all of its parts, and no part imports from another.
        let star = [
            ("a/mod.rs", "mod b;\nmod c;\nuse b::B;\nuse c::C;\n"),
            ("a/b.rs", "use super::A;\n"),
            ("a/c.rs", "use super::A;\n"),
        ];
        assert!(files(&star).circles().is_empty());
        let closed = [star[0], ("a/b.rs", "use super::c::C;\n"), star[2]];
        assert_eq!(files(&closed).circles().len(), 1);
    }
}
