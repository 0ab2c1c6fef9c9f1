//! Errors of finding and installing runtimes: one variant for each fault that a user can act on.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A fault of a runtime. Workers send errors to their applications, so the messages of the system are stored as text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// The folder contains no runtime, or its manifest is invalid.
    #[error("{}: no runtime: {reason}", folder.display())]
    NoManifest { folder: PathBuf, reason: String },

    /// The set was built from another llama.cpp or by another version of autoplace.
    #[error("{}: the runtime is of {theirs}, but this program needs {ours}", folder.display())]
    OtherBuild { folder: PathBuf, theirs: String, ours: String },

    /// The set was built for another kind of machine.
    #[error("{}: the runtime is for {theirs}, but this program is for {ours}", folder.display())]
    OtherTarget { folder: PathBuf, theirs: String, ours: String },

    /// A file of the set differs from the manifest: it is missing, or has another length or content.
    #[error("{}: {problem}: the runtime is damaged or was copied in part; install it again", file.display())]
    Damaged { file: PathBuf, problem: String },

    /// A library in the folder is not in the manifest. llama.cpp would open it, because it opens every backend in the
    /// folder.
    #[error("{}: the manifest does not list this library, so the runtime is not opened; remove the library", file.display())]
    Unlisted { file: PathBuf },

    /// The set is complete and of this build, but this machine cannot open it.
    #[error("{}: the runtime cannot be opened: {reason}", folder.display())]
    Unusable { folder: PathBuf, reason: String },

    /// No folder in the search path has a usable set.
    #[error("no runtime of {wanted}: {}", .looked.join("; "))]
    None { wanted: String, looked: Vec<String> },

    /// The source of an installation is not an archive of a runtime, or not the expected one.
    #[error("{what}: {problem}; nothing was installed")]
    Source { what: String, problem: String },

    /// A file or folder cannot be read or written.
    #[error("{}: cannot {action}: {reason}", path.display())]
    Io { path: PathBuf, action: String, reason: String },

    /// The caller cancelled the installation.
    #[error("{what}: the installation ended after {done} bytes; nothing was installed")]
    Cancelled { what: String, done: u64 },
}

/// Makes an error from a failed system call, with the action and the file.
pub(crate) fn io<E: Display>(path: &Path, action: &str) -> impl FnOnce(E) -> Error {
    move |error| Error::Io { path: path.to_owned(), action: action.to_owned(), reason: error.to_string() }
}
