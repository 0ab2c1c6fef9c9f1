//! A hash of the sources of the native code. A program opens no libraries with another hash.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The mark in the bindings' text that precedes the hash of their source.
pub(crate) const MARK: &str = "// llama.cpp's source: ";

/// The hash of the source that the committed bindings were made from.
pub(crate) fn of_bindings() -> String {
    let text = fs::read_to_string("src/raw/bindings.rs").expect("the bindings are part of this crate");
    let line = text.lines().find_map(|line| line.strip_prefix(MARK));
    line.expect("the bindings name their source").to_owned()
}

/// A hash of all sources that are compiled. It is used because the packaged source has no commit. Equal hashes mean
/// equal builds.
pub(crate) fn of_source(source: &Path) -> String {
    hash(source, &["include", "src", "ggml"])
}

/// A hash of the files below some folders, by path and content.
pub(crate) fn hash(root: &Path, folders: &[&str]) -> String {
    let (mut files, mut left) = (BTreeSet::new(), folders.iter().map(|folder| root.join(folder)).collect::<Vec<_>>());
    while let Some(dir) = left.pop() {
        let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display()));
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                left.push(path);
            } else {
                files.insert(path);
            }
        }
    }
    // FNV-1a, which is the same on every machine, and good enough to distinguish sources.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files {
        let name = file.strip_prefix(root).expect("it was found there").to_string_lossy().replace('\\', "/");
        add(name.as_bytes());
        add(&fs::read(&file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display())));
    }
    format!("{hash:016x}")
}
