//! The place of a text in a batch.

/// The part of a batch that belongs to one text.
#[derive(Debug, Default)]
pub(super) struct InBatch {
    pub(super) at: i32,
    pub(super) tokens: usize,
    /// Queued tokens that are not computed yet.
    pub(super) queued: usize,
    /// Index of the output that the next token is chosen from.
    pub(super) output: Option<i32>,
    /// Index of the first draft token.
    pub(super) draft_at: i32,
}
