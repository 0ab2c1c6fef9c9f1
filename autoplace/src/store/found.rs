//! The pieces that the store takes, and those that it returns.

use std::sync::Arc;

/// A hash that identifies a root or a piece.
pub(crate) type Id = u128;

/// Whether a piece was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Added {
    Yes {
        /// The pieces whose files are to be written.
        to_write: Vec<Id>,
    },
    /// There will be room once the folder's thread has written other pieces.
    Later,
    No,
}

/// A piece that is to be stored.
#[derive(Debug)]
pub(crate) enum NewPiece {
    /// The rows of the tokens from the index `from` on.
    Rows { from: usize, data: Vec<u8> },
    /// The part of a state that belongs to all tokens together.
    Rest(Vec<u8>),
}

/// The pieces of the longest stored beginning of a prompt.
#[derive(Debug, Default, Clone)]
pub(crate) struct Found {
    pub(crate) pieces: Vec<FoundPiece>,
    /// Number of tokens in the beginning.
    pub(crate) tokens: usize,
    pub(crate) rest: Option<Id>,
    /// Bytes of the pieces in memory, and in the folder.
    pub(crate) bytes: [u64; 2],
}

impl Found {
    /// Whether a piece is only in the folder.
    pub(crate) fn is_in_folder(&self) -> bool {
        let [_, in_folder] = self.bytes;
        in_folder > 0
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundPiece {
    pub(super) id: Id,
    pub(super) tokens: usize,
    pub(super) wanted: usize,
}

/// Pieces in memory. Each entry has the data, the number of tokens, and how many of these tokens are wanted.
#[derive(Debug)]
pub(crate) struct Brought {
    pub(crate) pieces: Vec<(Arc<Vec<u8>>, usize, usize)>,
    pub(crate) rest: Option<Arc<Vec<u8>>>,
    /// Tokens whose rows were read from the folder.
    pub(crate) from_folder: usize,
}
