//! Folders that belong to this user alone.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Creates the folder so that only this user can use it. Does nothing if something with this name exists.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "folders have no mode there"))]
    let mut options = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut options, 0o700);
    match options.create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(of_file(folder, &error)),
        _ => Ok(()),
    }
}

/// Whether the folder belongs to the user, and its mode grants none of the bits `refused` to others.
#[cfg(unix)]
pub(crate) fn is_of(there: &fs::Metadata, user: u32, refused: u32) -> bool {
    use std::os::unix::fs::MetadataExt;

    there.uid() == user && there.mode() & refused == 0
}

#[cfg(not(unix))]
pub(crate) const fn is_of(_: &fs::Metadata, _: u32, _: u32) -> bool {
    true
}

/// The same error, with the path of the file to which it applies.
pub(crate) fn of_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
