//! What can be wrong with a saved cache.

use std::path::PathBuf;
use std::sync::Arc;

use crate::plan::ModelIdentity;

/// Why a cache was not saved, or a file not restored.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum SavedCacheError {
    /// There is nothing to save: no text has left anything in the context, or none of this one is computed.
    #[error("nothing to save in {}: the context holds no token of the text", .path.display())]
    Nothing { path: PathBuf },
    /// The file cannot be written or read. A file that was there before is unchanged.
    #[error("cannot {doing} {}: {error}", .path.display())]
    Io {
        path: PathBuf,
        doing: &'static str,
        error: Arc<std::io::Error>,
    },
    /// The file is something else.
    #[error("{} is no saved cache: it does not begin with `autoplKV`", .path.display())]
    NotSaved { path: PathBuf },
    /// Another version of autoplace wrote it.
    #[error("{}: version {found} of the format at byte 8, and this is version {needed}", .path.display())]
    Version {
        path: PathBuf,
        needed: u32,
        found: u32,
    },
    /// The file is shorter or longer than it says at byte 16.
    #[error("{} says that it is {needed} bytes long, and has {found}", .path.display())]
    Length {
        path: PathBuf,
        needed: u64,
        found: u64,
    },
    /// Something in the file is not as it was written.
    #[error("{} was altered: the SHA-256 of bytes 0 to {end} is not the one behind them", .path.display())]
    Altered { path: PathBuf, end: u64 },
    /// The checksum is right, and what it is of makes no sense.
    #[error("{}, {field} at byte {offset}: {reason}", .path.display())]
    Malformed {
        path: PathBuf,
        field: &'static str,
        offset: u64,
        reason: String,
    },
    /// It is of another model.
    #[error("{} is of {found}, and this is {needed}", .path.display())]
    OtherModel {
        path: PathBuf,
        needed: Box<ModelIdentity>,
        found: Box<ModelIdentity>,
    },
    /// It is of a model with the same header and other weights: a fine-tune of the same size, say.
    #[error("{} is of a model like {model}, but with other weights", .path.display())]
    OtherWeights {
        path: PathBuf,
        model: Box<ModelIdentity>,
    },
    /// It is of a cache that lies in memory otherwise: in this field, by llama.cpp's name.
    #[error("{} is of a cache with {field} {found}, and this one has {needed}", .path.display())]
    OtherCache {
        path: PathBuf,
        field: &'static str,
        needed: String,
        found: String,
    },
    /// The context has no place for it beside the texts that run.
    #[error("{} holds {tokens} tokens, and the context has places for {context}", .path.display())]
    TooLong {
        path: PathBuf,
        tokens: usize,
        context: usize,
    },
    /// llama.cpp did not take it.
    #[error("{}: {reason}", .path.display())]
    Refused { path: PathBuf, reason: String },
}
