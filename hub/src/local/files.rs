//! Facts about a file that are known before its header is read: its identity, its length, and whether it begins like a
//! GGUF file.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use super::SkipReason;

/// The identity of a file or folder. It is the same whatever path leads there.
#[cfg(unix)]
pub(crate) type Id = (u64, u64);
#[cfg(not(unix))]
pub(crate) type Id = std::path::PathBuf;

#[cfg(unix)]
pub(crate) fn id(_: &Path, file: &Metadata) -> Option<Id> {
    use std::os::unix::fs::MetadataExt;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
pub(crate) fn id(path: &Path, _: &Metadata) -> Option<Id> {
    path.canonicalize().ok()
}

/// The metadata of a file. Links are followed. The error says why there is no file.
pub(super) fn look(path: &Path) -> Result<Metadata, SkipReason> {
    std::fs::metadata(path).map_err(|error| match path.symlink_metadata() {
        Ok(link) if link.is_symlink() && error.kind() == io::ErrorKind::NotFound => SkipReason::BrokenLink,
        _ => unreadable(&error),
    })
}

pub(super) fn unreadable(error: &io::Error) -> SkipReason {
    SkipReason::Unreadable(error.to_string())
}

/// Opens a regular file, and checks that its first bytes are `GGUF`.
pub(super) fn check(path: &Path, file: &Metadata) -> Result<(), SkipReason> {
    // If this were a pipe, opening it would wait for a writer.
    if !file.is_file() {
        return Err(SkipReason::Unreadable("not a regular file".to_owned()));
    }
    let mut begins = Vec::with_capacity(4);
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    file.take(4).read_to_end(&mut begins).map_err(|error| unreadable(&error))?;
    if begins == *b"GGUF" { Ok(()) } else { Err(SkipReason::NotGguf(begins)) }
}
