//! What can be wrong between a name and a file on this machine: one variant per thing that somebody can act on.

use std::io;
use std::path::PathBuf;

use autoplace_planner::gguf;

use crate::NameError;

/// Why a model could not be listed, chosen or fetched.
///
/// An address is given without its query, which may be a signature. No message holds a token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum Error {
    /// The text is no name of a model.
    #[error(transparent)]
    Name(#[from] NameError),

    /// A variable of the environment, or a file that it names, has no value that can be used.
    #[error("{variable}: {problem}")]
    Environment { variable: &'static str, problem: String },

    /// The hub may not be asked, and the cache does not have it.
    #[error("{what} is not in the cache {cache}, and the hub is not asked: it is offline, by HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE or Hub::offline", cache = cache.display())]
    Offline { what: String, cache: PathBuf },

    /// The hub wants a token, another token, or that a licence is accepted.
    #[error("{url}: refused ({status}): {advice}")]
    Refused { url: String, status: u16, advice: String },

    /// There is no such repository, revision or file, or none that this token may see.
    #[error("{url}: {what} (404)")]
    Missing { url: String, what: String },

    /// The server has refused for now, or failed, each time that it was asked.
    #[error("{url}: the server answered {status} at each of {attempts} attempts")]
    Status { url: String, status: u16, attempts: u32 },

    /// The server could not be reached, or went silent, at each attempt.
    #[error("{url}: {problem}, at each of {attempts} attempts")]
    Network { url: String, problem: String, attempts: u32 },

    /// The server answers what a hub does not.
    #[error("{url}: {problem}")]
    Answer { url: String, problem: String },

    /// The repository has no GGUF file of a whole model, or none of the quantisation that was asked for.
    #[error("{repository} has no {wanted}; it has {found}")]
    NoModel { repository: String, wanted: String, found: String },

    /// None of the repository's models is what was wished for on this machine.
    #[error("{name}: {reason}")]
    Unmet { name: String, reason: String },

    /// What has arrived is not what the hub lists. It is removed.
    #[error("{file}: its hash is {found}, but the hub lists {wanted}: it was removed; fetch it again")]
    Hash { file: String, wanted: String, found: String },

    /// The model does not fit on the disk. Nothing has been fetched.
    #[error("{folder}: {file} needs {needed} bytes more, but only {free} are free", folder = folder.display())]
    Space { folder: PathBuf, file: String, needed: u64, free: u64 },

    /// A file of the cache cannot be read or written.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// What the hub has is no GGUF file that can be read.
    #[error("{file}: {source}")]
    Header { file: String, source: gguf::Error },

    /// Whoever asked for it has ended it. What has arrived stays for the next time.
    #[error("{file}: ended after {done} of {total} bytes; the next fetch goes on there")]
    Cancelled { file: String, done: u64, total: u64 },
}
