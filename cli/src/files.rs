//! Reads files that the user names. The errors contain the file's name.

use std::fmt::Display;
use std::fs;
use std::path::Path;

/// The text of a file. The error contains the file's name.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| in_file(file, error))
}

/// An error message that begins with the file's name.
pub(crate) fn in_file(file: &Path, error: impl Display) -> String {
    format!("{}: {error}", file.display())
}
