//! How a model computes embeddings, according to its header.

use std::ffi::CStr;

use super::Model;
use crate::raw;

/// The facts that decide how a model computes embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmbeddingShape {
    /// Elements of an embedding.
    pub n_embd_out: u32,
    /// The number of scores that the model's classification head returns, if there is a head that llama.cpp can read
    /// ([`Pooling::Rank`]).
    pub n_cls_out: Option<u32>,
    /// The number of rows in the table of learned positions, if there is such a table (BERT, GPT-2). No position may
    /// lie beyond it.
    pub n_positions: Option<u32>,
    /// The model's own pooling. `None` if the header states no pooling, or one that llama.cpp does not know.
    pub pooling: Option<Pooling>,
}

/// How the embeddings of a sequence are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooling {
    /// The model's own pooling.
    #[default]
    Unspecified,
    /// One embedding for each token.
    None,
    /// The mean of the sequence's embeddings.
    Mean,
    /// The embedding of the first token.
    Cls,
    /// The embedding of the last token.
    Last,
    /// A reranking score.
    Rank,
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
    /// The facts that decide how the model computes embeddings.
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
            // From the head's output, llama.cpp reads as many scores as the header states (llama-context.cpp).
            n_cls_out: positive(shape.n_cls_out).filter(|&n| n == shape.n_head_out),
            n_positions: positive(shape.n_positions),
            pooling: Pooling::from_native(shape.pooling),
        }
    }

    /// The label that the model gives to a score of its classification head, if there is one.
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

    /// Elements of a hidden state.
    pub fn n_embd_out(&self) -> u32 {
        self.embedding_shape().n_embd_out
    }
}
