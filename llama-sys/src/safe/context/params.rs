//! The parameters of a context, and checks for values with which llama.cpp would end the process.

use super::rope::Rope;
use crate::raw;
use crate::safe::call::Error;
use crate::safe::model::{KvType, Model, Pooling};

/// ggml's limit (ggml.h, GGML_MAX_N_THREADS).
const MAX_THREADS: u32 = raw::GGML_MAX_N_THREADS;

/// Refuses a number of threads on which ggml would fail an assertion.
pub(super) fn check_threads(name: &'static str, threads: u32) -> Result<(), Error> {
    if (1..=MAX_THREADS).contains(&threads) {
        return Ok(());
    }
    let wanted = format!("it must be 1 to {MAX_THREADS} threads");
    Err(Error::parameter(name, threads, wanted))
}

/// The parameters of a context. The fields are those of `llama_context_params`.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextParams {
    /// Context length in tokens; 0 means the length that the model was trained with. llama.cpp rounds it up to a
    /// multiple of 256.
    pub n_ctx: u32,
    /// Maximum number of tokens in one [`Context::decode`](crate::Context::decode).
    pub n_batch: u32,
    /// Maximum number of tokens in one graph; 0 means `n_batch`.
    pub n_ubatch: u32,
    /// The number of sequences, at least 1.
    pub n_seq_max: u32,
    /// Maximum number of outputs in one decode; 0 means `n_batch`. 1 is enough to generate one sequence, and saves
    /// compute memory.
    pub n_outputs_max: u32,
    /// Threads for generation. `None` means as many as the process may use.
    pub n_threads: Option<u32>,
    /// Threads for prompts. `None` means as many as the process may use.
    pub n_threads_batch: Option<u32>,
    /// Whether attention is fused.
    pub flash_attention: FlashAttention,
    /// Type of the cache of keys.
    pub type_k: KvType,
    /// Type of the cache of values; quantised types need flash attention.
    pub type_v: KvType,
    /// Keeps the KV cache of offloaded layers on their device.
    pub offload_kqv: bool,
    /// Copies the host's weights to a device for large batches.
    pub op_offload: bool,
    /// Gives sliding-window layers a cache of full length.
    pub swa_full: bool,
    /// Lets all sequences share one cache. Otherwise each sequence has its own cache.
    pub kv_unified: bool,
    /// Computes embeddings instead of logits.
    pub embeddings: bool,
    /// How the embeddings of a sequence are combined.
    pub pooling: Pooling,
    /// The context's role in predicting further tokens.
    pub mtp: Mtp,
    /// By how many tokens a recurrent state can go back, if these tokens were computed together. The parameter has no
    /// effect on other kinds of memory, or on architectures for which llama.cpp does not support it.
    pub n_rs_seq: u32,
    /// Bytes of a cache on the GPUs for experts that lie in host memory; 0, the default, means no cache. The GPUs share
    /// these bytes in the same proportion as the layers. A layer whose experts lie on a device, or have another layout,
    /// is not cached ([`Model::moe_cache_shape`]). Batches of up to 32 tokens compute with cached experts, and load the
    /// missing ones; larger batches do not change the cache. A context with such a cache cannot use pipeline
    /// parallelism.
    pub moe_cache_size: u64,
    /// Whether the context computes rows of pictures and sounds too ([`decode_rows`](crate::Context::decode_rows)). Its
    /// compute buffers are then reserved for as many rows as tokens, which may need more memory.
    pub rows: bool,
    /// How positions are scaled.
    pub rope: Rope,
}

/// A context's role in predicting further tokens (MTP), for a model that was loaded with prediction blocks
/// ([`ModelParams::load_mtp`](crate::ModelParams::load_mtp)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mtp {
    /// The context takes no part in predictions.
    #[default]
    Off,
    /// The context computes with all blocks except the prediction blocks. Besides the logits, it outputs the [hidden
    /// state](crate::Context::hidden) of every token.
    Trunk,
    /// The context computes with the prediction blocks, from tokens and hidden states
    /// ([`decode_heads`](crate::Context::decode_heads)).
    Heads,
}

impl Default for ContextParams {
    /// llama.cpp's own defaults (llama-context.cpp, llama_context_default_params). Only the threads differ: llama.cpp
    /// uses 4, and here the default is as many as the process may use.
    fn default() -> Self {
        Self {
            n_ctx: 512,
            n_batch: 2048,
            n_ubatch: 512,
            n_seq_max: 1,
            n_outputs_max: 0,
            n_threads: None,
            n_threads_batch: None,
            flash_attention: FlashAttention::Auto,
            type_k: KvType::F16,
            type_v: KvType::F16,
            offload_kqv: true,
            op_offload: true,
            swa_full: true,
            kv_unified: false,
            embeddings: false,
            pooling: Pooling::Unspecified,
            mtp: Mtp::Off,
            n_rs_seq: 0,
            moe_cache_size: 0,
            rows: false,
            rope: Rope::default(),
        }
    }
}

/// Whether attention runs fused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say enough")]
pub enum FlashAttention {
    /// Fused if the device of every layer supports it.
    #[default]
    Auto,
    Enabled,
    Disabled,
}

impl FlashAttention {
    pub(in crate::safe) fn to_native(self) -> raw::llama_flash_attn_type {
        match self {
            Self::Auto => raw::LLAMA_FLASH_ATTN_TYPE_AUTO,
            Self::Enabled => raw::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            Self::Disabled => raw::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }
    }
}

impl ContextParams {
    /// Refuses parameters with which llama_init_from_model would end the process.
    pub(super) fn check(&self, model: &Model) -> Result<(), Error> {
        // llama-context.cpp pads n_ctx to a multiple of 256 in 32 bits, and positions are signed.
        const MAX_CTX: u32 = (i32::MAX as u32) & !255;
        // llama-cparams.h, LLAMA_MAX_SEQ.
        const MAX_SEQ: u32 = 256;
        if model.is_vocab_only() {
            return Err(Error::parameter("vocab_only", true, "a model without tensors cannot have a context"));
        }
        if self.n_ctx > MAX_CTX {
            return Err(Error::parameter("n_ctx", self.n_ctx, format!("it must be at most {MAX_CTX} tokens")));
        }
        let n_ctx = if self.n_ctx == 0 { model.n_ctx_train() } else { self.n_ctx };
        if n_ctx == 0 {
            return Err(Error::parameter(
                "n_ctx",
                0,
                "the model's header states no context length, so a number is needed",
            ));
        }
        if self.n_seq_max == 0 || self.n_seq_max > MAX_SEQ {
            return Err(Error::parameter("n_seq_max", self.n_seq_max, format!("it must be 1 to {MAX_SEQ} sequences")));
        }
        if self.n_batch == 0 || self.n_batch > MAX_CTX {
            return Err(Error::parameter("n_batch", self.n_batch, format!("it must be 1 to {MAX_CTX} tokens")));
        }
        if self.n_ubatch > MAX_CTX {
            return Err(Error::parameter("n_ubatch", self.n_ubatch, format!("it must be at most {MAX_CTX} tokens")));
        }
        // llama-context.cpp reserves graphs with n_seq_max sequences in n_tokens tokens, and asserts that they fit.
        let shape = model.shape();
        let n_batch = if shape.causal { self.n_batch.min(n_ctx) } else { self.n_batch };
        let n_ubatch = if self.n_ubatch == 0 { n_batch } else { self.n_ubatch.min(n_batch) };
        if self.n_seq_max > n_batch || self.n_seq_max > n_ubatch {
            return Err(Error::parameter(
                "n_seq_max",
                self.n_seq_max,
                format!("it must be at most n_batch ({n_batch}) and n_ubatch ({n_ubatch}), one token per sequence"),
            ));
        }
        // llama-batch.cpp, `split_equal`, keeps the tokens by which the state can go back, and the token before them,
        // in one graph. It asserts that `n_ubatch` is larger than the number of these tokens.
        if self.n_rs_seq > 0 && n_ubatch < self.n_rs_seq.saturating_add(2) {
            return Err(Error::parameter(
                "n_rs_seq",
                self.n_rs_seq,
                format!("it must be at most n_ubatch - 2 ({})", n_ubatch.saturating_sub(2)),
            ));
        }
        if self.n_outputs_max != 0 && self.n_outputs_max < self.n_seq_max {
            return Err(Error::parameter(
                "n_outputs_max",
                self.n_outputs_max,
                format!("it must be 0 or at least n_seq_max ({}), one output per sequence", self.n_seq_max),
            ));
        }
        for (name, threads) in [("n_threads", self.n_threads), ("n_threads_batch", self.n_threads_batch)] {
            if let Some(threads) = threads {
                check_threads(name, threads)?;
            }
        }
        self.rope.check()?;
        // With flash attention, llama.cpp checks the row's size itself. Without it, an assertion fails later
        // (llama-kv-cache.cpp, `cpy_k`).
        for (name, kv, head) in [("type_k", self.type_k, shape.head_k), ("type_v", self.type_v, shape.head_v)] {
            if head % kv.block_size() != 0 {
                return Err(Error::parameter(
                    name,
                    kv,
                    format!(
                        "the model's attention heads of {head} elements are not a multiple of its blocks of {}",
                        kv.block_size()
                    ),
                ));
            }
        }
        if self.mtp != Mtp::Off && (self.embeddings || model.n_layer_nextn() == 0) {
            return Err(Error::parameter(
                "mtp",
                format!("{:?}", self.mtp),
                "it needs a model that was loaded with prediction blocks (load_mtp), and no embeddings",
            ));
        }
        if self.embeddings {
            self.check_pooling(model, n_ctx, n_ubatch)?;
        }
        if self.moe_cache_size > 0 {
            self.check_moe_cache(model)?;
        }
        if self.type_v.is_quantized() && self.flash_attention == FlashAttention::Disabled {
            return Err(Error::parameter("type_v", self.type_v, "a quantised V cache needs flash attention"));
        }
        Ok(())
    }

    /// Refuses a pooling with which llama.cpp would end the process, or read past the end of the model's output.
    /// `n_ctx` and `n_ubatch` must be the values that llama.cpp will use, and not a 0 that stands for a default.
    fn check_pooling(&self, model: &Model, n_ctx: u32, n_ubatch: u32) -> Result<(), Error> {
        let shape = model.embedding_shape();
        let pooling = match self.pooling {
            Pooling::Unspecified => shape.pooling.unwrap_or(Pooling::None),
            stated => stated,
        };
        if pooling == Pooling::Rank && shape.n_cls_out.is_none() {
            return Err(Error::parameter(
                "pooling_type",
                "rank",
                "the model has no classification head, which computes the scores",
            ));
        }
        // `graph_reserve` in llama-context.cpp rounds the tokens up to a multiple of the sequences, but not the
        // outputs. Mean pooling needs as many outputs as tokens.
        let n_tokens = n_ubatch.min(n_ctx.next_multiple_of(256));
        if pooling == Pooling::Mean && !n_tokens.is_multiple_of(self.n_seq_max) {
            return Err(Error::parameter(
                "n_seq_max",
                self.n_seq_max,
                format!("with mean pooling it must divide the {n_tokens} tokens of a graph"),
            ));
        }
        Ok(())
    }

    /// Refuses a cache of experts for which the constructor in llama-moe-cache.cpp would fail. If the cache is on
    /// several GPUs, or for layers of several layouts, it must be larger than the minimum; llama.cpp itself then
    /// refuses a cache that is too small. If no layer has its experts on the host, llama.cpp only logs a warning and
    /// makes no cache.
    fn check_moe_cache(&self, model: &Model) -> Result<(), Error> {
        let refused = |requirement: String| Err(Error::parameter("moe_cache_size", self.moe_cache_size, requirement));
        if model.shape().n_expert == 0 {
            return refused("it must be 0 bytes: the model has no experts".to_owned());
        }
        let shape = model.moe_cache_shape()?;
        if shape.n_gpu == 0 {
            return refused("it must be 0 bytes: the model uses no GPU, which would hold the cache".to_owned());
        }
        if shape.splits_tensors {
            return refused("it must be 0 bytes: the model is split by tensors (split_mode)".to_owned());
        }
        if usize::try_from(self.moe_cache_size).is_err() {
            return refused(format!("it must be at most {} bytes", usize::MAX));
        }
        if self.moe_cache_size < shape.least_bytes {
            return refused(format!(
                "it must be 0, or at least {} bytes: the experts of one token, and one more",
                shape.least_bytes
            ));
        }
        Ok(())
    }

    /// llama.cpp's own struct; the callbacks keep their defaults.
    pub(super) fn to_native(&self) -> raw::llama_context_params {
        let available = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let threads = |wanted: Option<u32>| wanted.unwrap_or(available).min(MAX_THREADS) as i32;
        // SAFETY: returns a plain struct.
        let mut native = unsafe { raw::llama_context_default_params() };
        native.n_ctx = self.n_ctx;
        native.n_batch = self.n_batch;
        native.n_ubatch = self.n_ubatch;
        native.n_seq_max = self.n_seq_max;
        native.n_outputs_max = self.n_outputs_max;
        native.n_threads = threads(self.n_threads);
        native.n_threads_batch = threads(self.n_threads_batch);
        native.flash_attn_type = self.flash_attention.to_native();
        native.type_k = self.type_k.id();
        native.type_v = self.type_v.id();
        native.offload_kqv = self.offload_kqv;
        native.op_offload = self.op_offload;
        native.swa_full = self.swa_full;
        native.kv_unified = self.kv_unified;
        native.embeddings = self.embeddings;
        native.n_rs_seq = self.n_rs_seq;
        // `check_moe_cache` refuses values that do not fit into a `usize`.
        native.moe_cache_size = usize::try_from(self.moe_cache_size).unwrap_or(usize::MAX);
        self.rope.set(&mut native);
        if self.mtp == Mtp::Heads {
            native.ctx_type = raw::LLAMA_CONTEXT_TYPE_MTP;
        }
        native.pooling_type = match self.pooling {
            Pooling::Unspecified => raw::LLAMA_POOLING_TYPE_UNSPECIFIED,
            Pooling::None => raw::LLAMA_POOLING_TYPE_NONE,
            Pooling::Mean => raw::LLAMA_POOLING_TYPE_MEAN,
            Pooling::Cls => raw::LLAMA_POOLING_TYPE_CLS,
            Pooling::Last => raw::LLAMA_POOLING_TYPE_LAST,
            Pooling::Rank => raw::LLAMA_POOLING_TYPE_RANK,
        };
        native
    }
}
