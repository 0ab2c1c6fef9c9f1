//! Embeddings: the vectors of the last batch.
//!
//! A context with [`ContextParams::embeddings`](crate::ContextParams::embeddings) returns vectors and no logits. With
//! pooling there is one vector for each sequence of a batch; without pooling, one for each token. With pooling, all
//! tokens are computed in one graph, because llama.cpp does not pool across graphs.

use std::ptr::NonNull;

use super::{Context, SeqId};
use crate::raw;
use crate::safe::call::{self, Error, Failure};
use crate::safe::model::Pooling;

impl Context {
    /// Number of elements of a vector: the width of an embedding, or the number of scores with [`Pooling::Rank`].
    pub fn embedding_width(&self) -> usize {
        let shape = self.model().embedding_shape();
        let width = match self.pooling {
            Pooling::Rank => shape.n_cls_out.unwrap_or(0),
            _ => shape.n_embd_out,
        };
        width as usize
    }

    /// The maximum length in tokens of a text that can be embedded. The text must fit into one graph, into one
    /// sequence, and into the positions that the model has learned.
    pub fn longest_text(&self) -> u32 {
        let positions = self.model().embedding_shape().n_positions;
        let graph = self.n_ubatch().min(self.n_batch());
        graph.min(self.n_ctx_seq()).min(positions.unwrap_or(u32::MAX)).max(1)
    }

    /// The embedding of a sequence of the last batch, with [`embedding_width`](Self::embedding_width) elements. It is
    /// not normalised.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if the sequence was not in the last batch, or the context does not pool;
    /// [`Error::Poisoned`]; [`Error::Call`] when a device fails.
    pub fn embeddings_seq(&mut self, seq: SeqId) -> Result<&[f32], Error> {
        self.check_usable()?;
        self.check_seq(seq)?;
        let none = || Error::parameter("seq_id", seq, "the last batch pooled no sequence of this number");
        if !self.pools() || !self.has_outputs() {
            return Err(none());
        }
        let width = self.embedding_width();
        // SAFETY: the context lives and is borrowed mutably.
        let row = call::quick(|error| unsafe { raw::shim_embeddings_seq(self.as_ptr(), seq, error) });
        let row = self.embedding(row)?.ok_or_else(none)?;
        // SAFETY: llama-context.cpp keeps a vector of `width` elements for each sequence of the last batch. The vector
        // stays valid until the next batch, and the mutable borrow excludes another batch.
        Ok(unsafe { std::slice::from_raw_parts(row.as_ptr(), width) })
    }

    /// The embedding of token `index` of the last batch; -1 is the last. It is not normalised.
    ///
    /// # Errors
    ///
    /// The errors of [`embeddings_seq`](Self::embeddings_seq), and [`Error::InvalidParameter`] if sequences are pooled.
    pub fn embeddings_ith(&mut self, index: i32) -> Result<&[f32], Error> {
        self.check_usable()?;
        let none = || Error::parameter("index", index, "the last batch has no embedding at this index");
        if !self.embeddings || self.pools() || !self.is_output(index) {
            return Err(none());
        }
        let width = self.embedding_width();
        // SAFETY: the context lives and is borrowed mutably; `index` is an output of the last batch.
        let row = call::quick(|error| unsafe { raw::shim_embeddings_ith(self.as_ptr(), index, error) });
        let row = self.embedding(row)?.ok_or_else(none)?;
        // SAFETY: the row lies in the output buffer (llama-context.cpp, output_reserve), and stays valid as in
        // `embeddings_seq`.
        Ok(unsafe { std::slice::from_raw_parts(row.as_ptr(), width) })
    }

    fn embedding(&mut self, row: Result<*mut f32, Failure>) -> Result<Option<NonNull<f32>>, Error> {
        row.map(NonNull::new).map_err(|failure| {
            self.poison(&failure);
            Error::Call { what: "reading embeddings", failure }
        })
    }
}
