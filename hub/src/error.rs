//! Errors that occur when models are listed, chosen or fetched. Each fault about which a user can do something has a
//! variant.

use std::io;
use std::path::PathBuf;

use autoplace_planner::gguf;

use crate::NameError;

/// Why a model could not be listed, chosen or fetched.
///
/// Addresses are shown without their query, because the query may be a signature. No message contains the user's token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// The text is not the name of a model.
    #[error(transparent)]
    Name(#[from] NameError),

    /// An environment variable has a value that cannot be used, or it names a file whose content cannot be used.
    #[error("{variable}: {problem}")]
    Environment { variable: &'static str, problem: String },

    /// The file or repository is not in the cache, and in offline mode no request goes to the hub.
    #[error("{what} is not in the cache {cache}, and the hub is not asked: it is offline, by HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE or Hub::offline", cache = cache.display())]
    Offline { what: String, cache: PathBuf },

    /// The hub requires a token, another token, or an accepted licence.
    #[error("{url}: refused ({status}): {advice}")]
    Refused { url: String, status: u16, advice: String },

    /// There is no such repository, revision or file, or this token may not see it.
    #[error("{url}: {what} (404)")]
    Missing { url: String, what: String },

    /// At every attempt, the server failed or refused the request for the time being.
    #[error("{url}: the server answered {status} at each of {attempts} attempts")]
    Status { url: String, status: u16, attempts: u32 },

    /// At every attempt, the server could not be reached, or it stopped answering.
    #[error("{url}: {problem}, at each of {attempts} attempts")]
    Network { url: String, problem: String, attempts: u32 },

    /// This is not how a hub answers.
    #[error("{url}: {problem}")]
    Answer { url: String, problem: String },

    /// No GGUF file of the repository contains a whole model, or none has the quantisation that was asked for.
    #[error("{repository} has no {wanted}; it has {found}")]
    NoModel { repository: String, wanted: String, found: String },

    /// None of the repository's models meets the preference on this machine.
    #[error("{name}: {reason}")]
    Unmet { name: String, reason: String },

    /// No projector can be loaded together with the model on this machine.
    #[error("{reason}")]
    NoProjector { reason: String },

    /// The hash of the downloaded file is not the hub's. The file was removed.
    #[error("{file}: its hash is {found}, but the hub lists {wanted}: the downloaded file was removed; fetch it again")]
    Hash { file: String, wanted: String, found: String },

    /// There is not enough space for the model on the disk. Nothing was fetched.
    #[error("{folder}: {file} needs {needed} bytes more, but only {free} are free", folder = folder.display())]
    Space { folder: PathBuf, file: String, needed: u64, free: u64 },

    /// A file in the cache cannot be read or written.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// The file on the hub cannot be read as a GGUF file.
    #[error("{file}: {source}")]
    Header { file: String, source: gguf::Error },

    /// The caller cancelled the fetch. The bytes that were downloaded are kept for the next fetch.
    #[error("{file}: the fetch ended after {done} of {total} bytes; the next fetch continues there")]
    Cancelled { file: String, done: u64, total: u64 },
}
