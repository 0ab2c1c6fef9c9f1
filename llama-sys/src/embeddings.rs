//! Embeddings: a model's facts about its own, and the vectors of the last batch.
//!
//! A context with [`ContextParams::embeddings`] yields vectors instead of logits: with pooling one for each sequence of
//! a batch, without pooling one for each token. Pooled tokens are computed as one graph, because llama.cpp pools only
//! the tokens of a sequence that one graph holds.

use std::ffi::CStr;
use std::ptr::NonNull;

use crate::batch::Batch;
use crate::context::Context;
use crate::context_params::{ContextParams, Pooling};
use crate::error::{Error, Failure};
use crate::model::Model;
use crate::vocab::{Token, Vocab};
use crate::{SeqId, raw, shim};

/// The facts that decide how a model embeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmbeddingShape {
    /// Elements of an embedding.
    pub n_embd_out: u32,
    /// Scores of the model's classification head, if it has a head that llama.cpp can read ([`Pooling::Rank`]).
    pub n_cls_out: Option<u32>,
    /// Rows of the table of learned positions, if there is one; no position may lie beyond it (BERT, GPT-2).
    pub n_positions: Option<u32>,
    /// The model's own pooling. `None` if the header states none, or one that llama.cpp does not know.
    pub pooling: Option<Pooling>,
}

/// The tokens that a vocabulary puts around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AddedTokens {
    /// The token before the text: `[CLS]` of BERT.
    pub bos: Option<Token>,
    /// The token after the text. If one is required and the vocabulary has none, the separator takes its place, as in
    /// llama.cpp's server.
    pub eos: Option<Token>,
    /// The token after the text and between two texts: `[SEP]` of BERT.
    pub sep: Option<Token>,
}

impl Pooling {
    /// include/llama.h, `llama_pooling_type`.
    fn from_native(native: i32) -> Option<Self> {
        match native {
            raw::LLAMA_POOLING_TYPE_NONE => Some(Self::None),
            raw::LLAMA_POOLING_TYPE_MEAN => Some(Self::Mean),
            raw::LLAMA_POOLING_TYPE_CLS => Some(Self::Cls),
            raw::LLAMA_POOLING_TYPE_LAST => Some(Self::Last),
            raw::LLAMA_POOLING_TYPE_RANK => Some(Self::Rank),
            _ => None,
        }
    }
}

impl Model {
    /// The facts that decide how the model embeds.
    pub fn embedding_shape(&self) -> EmbeddingShape {
        // SAFETY: the shim fills every field of the struct, whose all-zero state is valid.
        let shape = unsafe {
            let mut shape: raw::shim_embedding_shape = std::mem::zeroed();
            raw::shim_model_embedding_shape(self.as_ptr(), &raw mut shape);
            shape
        };
        let positive = |n: u32| Some(n).filter(|&n| n > 0);
        EmbeddingShape {
            n_embd_out: shape.n_embd_out,
            // llama-context.cpp reads as many scores from the head's output as the header says.
            n_cls_out: positive(shape.n_cls_out).filter(|&n| n == shape.n_head_out),
            n_positions: positive(shape.n_positions),
            pooling: Pooling::from_native(shape.pooling),
        }
    }

    /// The label of a score of the classification head, if the model states it.
    pub fn cls_label(&self, index: u32) -> Option<String> {
        // SAFETY: the model is loaded; llama.cpp checks the index, and the text lives as long as the model.
        let label = unsafe { raw::llama_model_cls_label(self.as_ptr(), index) };
        if label.is_null() {
            return None;
        }
        // SAFETY: a NUL-terminated string of the model (std::string::c_str).
        let label = unsafe { CStr::from_ptr(label) };
        Some(label.to_string_lossy().into_owned())
    }
}

impl Vocab {
    /// The tokens that [`tokenize`](Self::tokenize) puts around a text with `add_special`.
    pub fn added_tokens(&self) -> AddedTokens {
        if !self.has_tokenizer() {
            return AddedTokens::default();
        }
        // SAFETY: the vocabulary lives; absent tokens are -1.
        let (bos, eos, sep) = unsafe {
            (
                raw::llama_vocab_get_add_bos(self.as_ptr()),
                raw::llama_vocab_get_add_eos(self.as_ptr()),
                raw::llama_vocab_get_add_sep(self.as_ptr()),
            )
        };
        // SAFETY: as above.
        let separator = Some(unsafe { raw::llama_vocab_sep(self.as_ptr()) }).filter(|token| self.contains(*token));
        AddedTokens {
            bos: self.bos().filter(|_| bos),
            eos: self.eos().or(separator).filter(|_| eos),
            sep: separator.filter(|_| sep),
        }
    }
}

impl ContextParams {
    /// Refuses a pooling that would end the process, or read past the model's output. `n_ctx` and `n_ubatch` are
    /// resolved.
    pub(crate) fn check_pooling(&self, model: &Model, n_ctx: u32, n_ubatch: u32) -> Result<(), Error> {
        let shape = model.embedding_shape();
        let pooling = match self.pooling {
            Pooling::Unspecified => shape.pooling.unwrap_or(Pooling::None),
            stated => stated,
        };
        if pooling == Pooling::Rank && shape.n_cls_out.is_none() {
            return Err(Error::parameter(
                "pooling_type",
                "rank",
                "the model has no classification head that gives the scores",
            ));
        }
        // `graph_reserve` in llama-context.cpp reserves for a multiple of the sequences, and for as many outputs as
        // there were tokens before that.
        let n_tokens = n_ubatch.min(n_ctx.next_multiple_of(256));
        if pooling == Pooling::Mean && !n_tokens.is_multiple_of(self.n_seq_max) {
            return Err(Error::parameter(
                "n_seq_max",
                self.n_seq_max,
                format!("for a mean it must divide the {n_tokens} tokens of a graph"),
            ));
        }
        Ok(())
    }
}

impl Context {
    /// Whether the context yields embeddings instead of logits.
    pub fn embeds(&self) -> bool {
        self.embeddings
    }

    /// How the embeddings of a sequence are combined: as the parameters ask, otherwise as the model states, otherwise
    /// not at all. Never [`Pooling::Unspecified`].
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Whether there is one vector for each sequence.
    pub(crate) fn pools(&self) -> bool {
        self.embeddings && self.pooling != Pooling::None
    }

    /// Elements of each vector: those of an embedding, or the scores with [`Pooling::Rank`].
    pub fn embedding_width(&self) -> usize {
        let shape = self.model().embedding_shape();
        let width = match self.pooling {
            Pooling::Rank => shape.n_cls_out.unwrap_or(0),
            _ => shape.n_embd_out,
        };
        width as usize
    }

    /// Tokens of the longest text that can be embedded. The limits are one graph, one sequence, and the positions that
    /// the model has learned.
    pub fn longest_text(&self) -> u32 {
        let positions = self.model().embedding_shape().n_positions;
        let graph = self.n_ubatch().min(self.n_batch());
        graph.min(self.n_ctx_seq()).min(positions.unwrap_or(u32::MAX)).max(1)
    }

    /// Refuses a batch of which llama.cpp would pool only parts.
    pub(crate) fn check_embedded(&self, batch: &Batch) -> Result<(), Error> {
        // llama-kv-cache.cpp, init_batch: sequences with separate caches are computed as several graphs if their
        // lengths differ; recurrent memory computes each whole sequence in one graph.
        let model = self.model();
        let shares = self.kv_unified() || model.is_recurrent() || model.is_hybrid();
        let splits = self.has_memory() && !shares && self.n_seq_max() > 1;
        let first = batch.seqs.first();
        if self.pools() && splits && batch.seqs.iter().any(|seq| Some(seq) != first) {
            return Err(Error::parameter(
                "kv_unified",
                false,
                "several sequences can be pooled at once in a unified cache only",
            ));
        }
        Ok(())
    }

    /// The embedding of a sequence of the last batch, with [`embedding_width`](Self::embedding_width) elements. It is
    /// not normalised.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if the last batch did not hold the sequence, or nothing is pooled;
    /// [`Error::Poisoned`]; [`Error::Call`] when a device fails.
    pub fn embeddings_seq(&mut self, seq: SeqId) -> Result<&[f32], Error> {
        self.check_usable()?;
        self.check_seq(seq)?;
        let none = || Error::parameter("seq_id", seq, "the last batch pooled no such sequence");
        if !self.pools() || !self.has_outputs() {
            return Err(none());
        }
        let width = self.embedding_width();
        // SAFETY: the context lives and is borrowed mutably.
        let row = shim::quick(|error| unsafe { raw::shim_embeddings_seq(self.as_ptr(), seq, error) });
        let row = self.embedding(row)?.ok_or_else(none)?;
        // SAFETY: llama-context.cpp keeps a vector of `width` elements for each sequence of the last batch. It stays
        // valid until the next batch, which the mutable borrow rules out.
        Ok(unsafe { std::slice::from_raw_parts(row.as_ptr(), width) })
    }

    /// The embedding of token `index` of the last batch; -1 is the last. It is not normalised.
    ///
    /// # Errors
    ///
    /// As [`embeddings_seq`](Self::embeddings_seq), and [`Error::InvalidParameter`] if sequences are pooled.
    pub fn embeddings_ith(&mut self, index: i32) -> Result<&[f32], Error> {
        self.check_usable()?;
        let none = || Error::parameter("index", index, "the last batch has no such embedding");
        if !self.embeddings || self.pools() || !self.is_output(index) {
            return Err(none());
        }
        let width = self.embedding_width();
        // SAFETY: the context lives and is borrowed mutably; `index` is an output of the last batch.
        let row = shim::quick(|error| unsafe { raw::shim_embeddings_ith(self.as_ptr(), index, error) });
        let row = self.embedding(row)?.ok_or_else(none)?;
        // SAFETY: a row of the output buffer (llama-context.cpp, output_reserve), as above.
        Ok(unsafe { std::slice::from_raw_parts(row.as_ptr(), width) })
    }

    fn embedding(&mut self, row: Result<*mut f32, Failure>) -> Result<Option<NonNull<f32>>, Error> {
        row.map(NonNull::new).map_err(|failure| {
            self.poison(&failure);
            Error::Call { what: "reading embeddings", failure }
        })
    }
}
