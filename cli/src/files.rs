//! Reads files that the user names. Errors name the file.

use std::fmt::Display;
use std::fs;
use std::path::Path;

/// The content of a file. The error names the file.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| in_file(file, error))
}

/// An error message with its file.
pub(crate) fn in_file(file: &Path, error: impl Display) -> String {
    format!("{}: {error}", file.display())
}
