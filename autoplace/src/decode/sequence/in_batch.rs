//! The place of a text in a batch.

/// The part of a batch that belongs to one text.
#[derive(Debug, Default)]
pub(super) struct InBatch {
    pub(super) at: i32,
    pub(super) tokens: usize,
    /// The number of queued tokens that are not computed yet.
    pub(super) queued: usize,
    /// The index of the output from which the next token is chosen.
    pub(super) output: Option<i32>,
    /// Index of the first draft token.
    pub(super) draft_at: i32,
}
