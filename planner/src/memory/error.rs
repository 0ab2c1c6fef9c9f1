//! Errors of the memory estimate.

use super::KvType;

/// The error for memory that cannot be computed, or for a request that llama.cpp would reject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// A parameter of the context is outside llama.cpp's range.
    #[error("{parameter} is {value}, but {limit}")]
    Context { parameter: &'static str, value: u64, limit: String },
    /// The blocks of a quantised cache type do not divide a head (llama-context.cpp, `llama_init_from_model`).
    #[error("{parameter} {ty} stores blocks of {block} elements, which do not divide heads of {head}")]
    KvWidth { parameter: &'static str, ty: KvType, block: u64, head: u32 },
    /// A quantised cache of values needs flash attention (llama-context.cpp, `llama_init_from_model`).
    #[error("type_v {ty} needs flash attention, which is turned off")]
    NeedsFlashAttention { ty: KvType },
    /// A model with compressed keys needs the same type for keys and values (llama-context.cpp,
    /// `llama_init_from_model`).
    #[error("this model compresses its keys: type_k {type_k} and type_v {type_v} must be the same")]
    KvTypesDiffer { type_k: KvType, type_v: KvType },
    /// The sum of the GPUs' proportions cannot be used to split layers.
    #[error("the layers cannot be split by proportions whose sum is {sum}")]
    SplitSum { sum: String },
    /// A proportion that llama.cpp cannot use.
    #[error("tensor_split[{index}] is {value}, but {limit}")]
    TensorSplit { index: usize, value: String, limit: &'static str },
    /// An override with an invalid pattern or place.
    #[error("tensor_buft_overrides `{pattern}`: {reason}")]
    Override { pattern: String, reason: String },
}
