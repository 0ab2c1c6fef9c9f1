//! Why a placement has no cost.

use super::KvType;

/// What is asked for cannot be computed, or llama.cpp would not take it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter of the context is outside of what llama.cpp takes.
    #[error("{parameter} is {value}, but {limit}")]
    Context {
        /// The parameter, as `llama_context_params` names it.
        parameter: &'static str,
        /// What was asked for.
        value: u64,
        /// What llama.cpp takes, and where it says so.
        limit: String,
    },
    /// A quantised cache type whose blocks do not divide a head (llama-context.cpp, `llama_init_from_model`).
    #[error("{parameter} {ty} stores blocks of {block} elements, which do not divide heads of {head}")]
    KvWidth {
        /// `type_k` or `type_v`.
        parameter: &'static str,
        /// The type.
        ty: KvType,
        /// Elements of its blocks.
        block: u64,
        /// Elements of the model's heads.
        head: u32,
    },
    /// A quantised cache of values needs flash attention (llama-context.cpp, `llama_init_from_model`).
    #[error("type_v {ty} needs flash attention, which is turned off")]
    NeedsFlashAttention {
        /// The type.
        ty: KvType,
    },
    /// Compressed keys and values need one type (llama-context.cpp, `llama_init_from_model`).
    #[error("this model compresses its keys: type_k {type_k} and type_v {type_v} must be the same")]
    KvTypesDiffer {
        /// The type of the keys.
        type_k: KvType,
        /// The type of the values.
        type_v: KvType,
    },
    /// No device has free memory, so there are no proportions to split the layers by: llama.cpp divides by zero there
    /// (llama-model.cpp, `load_tensors`) and throws later.
    #[error("the GPUs have no free memory to split the layers by")]
    NothingFree,
    /// A proportion that llama.cpp cannot split by.
    #[error("tensor_split[{index}] is {value}, but {limit}")]
    TensorSplit {
        /// Its index.
        index: usize,
        /// What was asked for.
        value: String,
        /// What is taken.
        limit: &'static str,
    },
    /// An override that cannot be followed.
    #[error("tensor_buft_overrides `{pattern}`: {reason}")]
    Override {
        /// Its pattern.
        pattern: String,
        /// Why not.
        reason: String,
    },
}
