//! Errors of listing, choosing and fetching models. There is a variant for each fault that a user can act on.

use std::io;
use std::path::PathBuf;

use autoplace_planner::gguf;

use crate::NameError;

/// Why a model could not be listed, chosen or fetched.
///
/// Addresses are shown without their query, which may be a signature. No message contains a token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum Error {
    /// The text is not a model's name.
    #[error(transparent)]
    Name(#[from] NameError),

    /// The value of an environment variable, or of the file that it names, cannot be used.
    #[error("{variable}: {problem}")]
    Environment { variable: &'static str, problem: String },

    /// The cache lacks the item, and offline mode forbids asking the hub.
    #[error("{what} is not in the cache {cache}, and the hub is not asked: it is offline, by HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE or Hub::offline", cache = cache.display())]
    Offline { what: String, cache: PathBuf },

    /// The hub requires a token, another token, or an accepted licence.
    #[error("{url}: refused ({status}): {advice}")]
    Refused { url: String, status: u16, advice: String },

    /// The repository, revision or file does not exist, or this token may not see it.
    #[error("{url}: {what} (404)")]
    Missing { url: String, what: String },

    /// The server failed or refused temporarily at every attempt.
    #[error("{url}: the server answered {status} at each of {attempts} attempts")]
    Status { url: String, status: u16, attempts: u32 },

    /// At every attempt, the server could not be reached or stopped answering.
    #[error("{url}: {problem}, at each of {attempts} attempts")]
    Network { url: String, problem: String, attempts: u32 },

    /// The server's answer is not that of a hub.
    #[error("{url}: {problem}")]
    Answer { url: String, problem: String },

    /// The repository has no GGUF file of a whole model, or no file with the requested quantisation.
    #[error("{repository} has no {wanted}; it has {found}")]
    NoModel { repository: String, wanted: String, found: String },

    /// No model of the repository meets the preference on this machine.
    #[error("{name}: {reason}")]
    Unmet { name: String, reason: String },

    /// No projector can be loaded beside the model on this machine.
    #[error("{reason}")]
    NoProjector { reason: String },

    /// The downloaded file's hash differs from the hub's. The file was removed.
    #[error("{file}: its hash is {found}, but the hub lists {wanted}: it was removed; fetch it again")]
    Hash { file: String, wanted: String, found: String },

    /// The disk has too little space for the model. Nothing was fetched.
    #[error("{folder}: {file} needs {needed} bytes more, but only {free} are free", folder = folder.display())]
    Space { folder: PathBuf, file: String, needed: u64, free: u64 },

    /// A file of the cache cannot be read or written.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// The hub's file is not a readable GGUF file.
    #[error("{file}: {source}")]
    Header { file: String, source: gguf::Error },

    /// The caller cancelled the fetch. The downloaded bytes stay for the next fetch.
    #[error("{file}: ended after {done} of {total} bytes; the next fetch goes on there")]
    Cancelled { file: String, done: u64, total: u64 },
}
