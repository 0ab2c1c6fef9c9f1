//! The model's only context, while a session uses it, and the context's capacity in tokens.

use llama_sys::{Context, Vocab};

use crate::memory::{ContextParams, KvType};

#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) context: Context,
    pub(crate) vocab: Vocab,
    pub(crate) room: Room,
    /// Type of the keys in the cache.
    pub(crate) type_k: KvType,
}

/// Capacity of a context, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// The number of tokens for which each sequence has room.
    pub(crate) each: usize,
    /// The number of tokens for which all sequences together have room.
    pub(crate) all: usize,
    pub(crate) sequences: usize,
}

impl Room {
    pub(crate) fn new(params: &ContextParams) -> Self {
        let [each, all, sequences] =
            [params.n_ctx_seq(), params.n_ctx, params.n_seq_max.max(1)].map(|count| count as usize);
        Self { each, all, sequences }
    }
}

impl Lent {
    pub(crate) fn new(context: Context, params: &ContextParams) -> Self {
        let mut room = Room::new(params);
        room.each = room.each.min(context.n_ctx_seq() as usize);
        Self { vocab: context.model().vocab(), context, room, type_k: params.type_k }
    }
}
