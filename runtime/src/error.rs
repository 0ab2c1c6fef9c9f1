//! Why there is no runtime to open, or none to install: one variant per thing that somebody can act on.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What is wrong with a set of libraries. It crosses from workers to their applications, so what the system said is
/// text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum Error {
    /// The folder holds no runtime, or its manifest cannot be understood.
    #[error("{}: no runtime: {reason}", folder.display())]
    NoManifest { folder: PathBuf, reason: String },

    /// The set was built from another llama.cpp or by another version of autoplace.
    #[error("{}: the runtime is of {theirs}; this program wants {ours}", folder.display())]
    OtherBuild { folder: PathBuf, theirs: String, ours: String },

    /// The set was built for another kind of machine.
    #[error("{}: the runtime is for {theirs}; this program is for {ours}", folder.display())]
    OtherTarget { folder: PathBuf, theirs: String, ours: String },

    /// A file of the set is not what the manifest says: it is absent, of another length, or of another content.
    #[error("{}: {problem}: the runtime is damaged or was copied in part; install it again", file.display())]
    Damaged { file: PathBuf, problem: String },

    /// A library that does not belong to the set. llama.cpp opens every backend that lies in the folder.
    #[error("{}: a library that the manifest does not list; the runtime is not opened beside it", file.display())]
    Unlisted { file: PathBuf },

    /// Whole, of this build, and nevertheless not to be opened here.
    #[error("{}: the runtime cannot be opened: {reason}", folder.display())]
    Unusable { folder: PathBuf, reason: String },

    /// No folder in which a program looks has a set that it can open.
    #[error("no runtime of {wanted}: {}", .looked.join("; "))]
    None { wanted: String, looked: Vec<String> },

    /// What was to be installed is not what it was said to be.
    #[error("{what}: {problem}; nothing was installed")]
    Source { what: String, problem: String },

    /// A file or folder cannot be read or written.
    #[error("{}: cannot {action}: {reason}", path.display())]
    Io { path: PathBuf, action: String, reason: String },

    /// Whoever asked for it has ended it.
    #[error("{what}: ended after {done} bytes; nothing was installed")]
    Cancelled { what: String, done: u64 },
}

/// Says of an error of the system what was being done, to which file.
pub(crate) fn io<E: Display>(path: &Path, action: &str) -> impl FnOnce(E) -> Error {
    move |error| Error::Io { path: path.to_owned(), action: action.to_owned(), reason: error.to_string() }
}
