//! What can be wrong with a saved cache.

use std::path::PathBuf;
use std::sync::Arc;

use crate::plan::ModelIdentity;

/// Why a cache was not saved, or a file not restored.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SavedCacheError {
    /// There is nothing to save: no text has left anything in the context, or none of this one is computed.
    #[error("nothing to save in {}: the context holds no token of the text", .path.display())]
    Nothing {
        /// Where it was to be saved.
        path: PathBuf,
    },
    /// The file cannot be written or read. A file that was there before is unchanged.
    #[error("cannot {doing} {}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done: `write`, `read`.
        doing: &'static str,
        /// What the operating system said.
        error: Arc<std::io::Error>,
    },
    /// The file is something else.
    #[error("{} is no saved cache: it does not begin with `autoplKV`", .path.display())]
    NotSaved {
        /// The file.
        path: PathBuf,
    },
    /// Another version of autoplace wrote it.
    #[error("{}: version {found} of the format at byte 8, and this is version {needed}", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that can be read.
        needed: u32,
        /// Its version.
        found: u32,
    },
    /// The file is shorter or longer than it says at byte 16.
    #[error("{} says that it is {needed} bytes long, and has {found}", .path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that it should have.
        needed: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// Something in the file is not as it was written.
    #[error("{} was altered: the checksum of bytes 0 to {end} is not the one behind them", .path.display())]
    Altered {
        /// The file.
        path: PathBuf,
        /// The byte after the last that the checksum is of.
        end: u64,
    },
    /// The checksum is right, and what it is of makes no sense.
    #[error("{}, {field} at byte {offset}: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        field: &'static str,
        /// Where it begins.
        offset: u64,
        /// Why.
        reason: String,
    },
    /// It is of another model.
    #[error("{} is of {found}, and this is {needed}", .path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The model that is loaded.
        needed: Box<ModelIdentity>,
        /// The model that it was saved from.
        found: Box<ModelIdentity>,
    },
    /// It is of a model with the same header and other weights: a fine-tune of the same size, say.
    #[error("{} is of a model like {model}, but with other weights", .path.display())]
    OtherWeights {
        /// The file.
        path: PathBuf,
        /// The model that is loaded.
        model: Box<ModelIdentity>,
    },
    /// It is of a cache that lies in memory otherwise.
    #[error("{} is of a cache with {field} {found}, and this one has {needed}", .path.display())]
    OtherCache {
        /// The file.
        path: PathBuf,
        /// What differs, by llama.cpp's name.
        field: &'static str,
        /// What this context has.
        needed: String,
        /// What the context had that it was saved from.
        found: String,
    },
    /// The context has no place for it.
    #[error("{} holds {tokens} tokens, and the context has places for {context}", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Tokens that it holds.
        tokens: usize,
        /// Tokens that there are places for, those that texts are running on not counted.
        context: usize,
    },
    /// llama.cpp did not take it.
    #[error("{}: {reason}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
}
