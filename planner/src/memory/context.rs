//! The parameters of a context, and the sizes that llama.cpp derives from them.

use serde::{Deserialize, Serialize};

use crate::profile::{Hyperparameters, ModelProfile};

use super::{Error, KvType, Pooling, Rope};

/// Contexts are padded to multiples of this many tokens (llama-context.cpp, the constructor).
pub(crate) const CONTEXT_PADDING: u32 = 256;

/// Positions are signed, so a padded context must stay below 2^31.
const MAX_CONTEXT: u32 = i32::MAX as u32 & !(CONTEXT_PADDING - 1);

/// `LLAMA_MAX_SEQ` (llama-cparams.h).
const MAX_SEQUENCES: u32 = 256;

/// Maximum number of tokens by which a recurrent state can be rolled back. llama.cpp has no limit, but each token costs
/// the memory of a whole state.
pub(crate) const MAX_ROLLBACK_TOKENS: u32 = 64;

/// Whether attention is computed in one fused step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlashAttention {
    /// Fused if every device with a layer can fuse it: llama.cpp's default.
    #[default]
    Auto,
    /// Fused.
    On,
    /// Not fused.
    Off,
}

/// The parameters of a load and its context that determine its memory: a part of `llama_model_params` and
/// `llama_context_params`, under the same names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextParams {
    /// Tokens of context, more than 0. In llama.cpp 0 means the training context; callers must replace 0 by that
    /// number.
    pub n_ctx: u32,
    /// The number of tokens that one call may submit.
    pub n_batch: u32,
    /// The number of tokens of one computation.
    pub n_ubatch: u32,
    /// The number of sequences that the context holds at once.
    pub n_seq_max: u32,
    /// How many tokens of a batch may request logits; 0 means all of them. To generate, 1 is enough and saves much
    /// memory (llama-context.cpp, the constructor, `sched_reserve`).
    pub n_outputs_max: u32,
    /// The type of the cached keys.
    pub type_k: KvType,
    /// The type of the cached values.
    pub type_v: KvType,
    /// Whether attention is fused.
    pub flash_attn: FlashAttention,
    /// Whether a layer's cache lies on the layer's device; otherwise it lies on the host.
    pub offload_kqv: bool,
    /// Whether a GPU computes large batches with weights of the host.
    pub op_offload: bool,
    /// Whether all sequences share one cache.
    pub kv_unified: bool,
    /// Whether windowed layers keep the whole context, so that decoding can return to any earlier token of a text.
    pub swa_full: bool,
    /// Whether the file is mapped (`LLAMA_LOAD_MODE_AUTO`, or `_MMAP` if every device can use a mapped file) or read.
    pub mmap: bool,
    /// Whether the CPU may rearrange weights for its instruction set (`use_extra_bufts`).
    pub repack: bool,
    /// For a context that embeds texts, how the vectors of a text are combined. `None` means that the context
    /// generates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<Pooling>,
    /// Whether the blocks that predict further tokens are loaded (`load_mtp`), with a second context of their own
    /// (`LLAMA_CONTEXT_TYPE_MTP`).
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub mtp: bool,
    /// By how many tokens a recurrent model's state can be rolled back, up to 64. Every sequence keeps one more state
    /// for each of these tokens (llama-memory-recurrent.cpp, the constructor).
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub n_rs_seq: u32,
    /// Bytes of GPU memory, over all GPUs together, for recently used experts that lie on the host while their layers
    /// are on GPUs; 0 for no such cache. llama.cpp divides the bytes among GPUs in the proportions of the layers, and
    /// uses no more bytes than these experts have (llama-moe-cache.cpp, the constructor).
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub moe_cache_size: u64,
    /// How positions are scaled.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub rope: Rope,
}

impl Default for ContextParams {
    /// The values of llama.cpp's programs (common.h, `common_params`), except that the context has 4096 tokens and one
    /// output. The context of a plan comes from its [`Request`](crate::plan::Request): by default 4096 to 32,768
    /// tokens. docs/defaults.md compares all values.
    fn default() -> Self {
        Self {
            n_ctx: 4096,
            n_batch: 2048,
            n_ubatch: 512,
            n_seq_max: 1,
            n_outputs_max: 1,
            type_k: KvType::F16,
            type_v: KvType::F16,
            flash_attn: FlashAttention::Auto,
            offload_kqv: true,
            op_offload: true,
            kv_unified: false,
            swa_full: false,
            mmap: true,
            repack: true,
            embeddings: None,
            mtp: false,
            n_rs_seq: 0,
            moe_cache_size: 0,
            rope: Rope::default(),
        }
    }
}

/// The sizes that llama.cpp derives from [`ContextParams`] (llama-context.cpp, the constructor, `sched_reserve`,
/// `graph_reserve`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextSizes {
    /// Tokens of context over all sequences, padded.
    pub n_ctx: u64,
    /// Tokens that one call may submit.
    pub n_batch: u64,
    /// Cells of one cache: the tokens of one stream.
    pub cells: u64,
    /// The number of streams; each has a cache.
    pub streams: u64,
    /// The number of tokens of the largest computation.
    pub n_tokens: u64,
    /// The number of rows of logits of the largest computation.
    pub n_outputs: u64,
    /// The maximum number of rows in the buffer that returns logits.
    pub output_rows: u64,
}

impl ContextParams {
    /// The number of tokens of context for each sequence. llama.cpp rounds them up to a multiple of 256, but plans
    /// count the requested number.
    pub const fn n_ctx_seq(&self) -> u32 {
        match self.n_seq_max {
            0 | 1 => self.n_ctx,
            _ if self.kv_unified => self.n_ctx,
            sequences => self.n_ctx / sequences,
        }
    }

    /// The number of tokens in one computation: `n_ubatch`, but at most `n_batch`. An `n_ubatch` of 0 means `n_batch`.
    pub(crate) const fn computed(&self) -> u32 {
        match self.n_ubatch {
            1.. if self.n_ubatch < self.n_batch => self.n_ubatch,
            _ => self.n_batch,
        }
    }

    /// The sizes that llama.cpp derives from these parameters.
    ///
    /// # Errors
    ///
    /// [`Error::Context`] if llama.cpp would abort the process or reject the parameters.
    pub fn sizes(&self) -> Result<ContextSizes, Error> {
        let refuse = |parameter, value: u32, limit: &str| {
            Err(Error::Context { parameter, value: value.into(), limit: limit.to_owned() })
        };
        if !(1..=MAX_CONTEXT).contains(&self.n_ctx) {
            let limit =
                "a context has 1 to 2147483392 tokens (it is padded to a multiple of 256, and positions are signed)";
            return refuse("n_ctx", self.n_ctx, limit);
        }
        if !(1..=MAX_SEQUENCES).contains(&self.n_seq_max) {
            return refuse("n_seq_max", self.n_seq_max, "llama.cpp takes 1 to 256 (`LLAMA_MAX_SEQ`)");
        }
        if self.n_batch == 0 {
            return refuse("n_batch", 0, "llama.cpp aborts on an empty batch");
        }
        if self.n_rs_seq > MAX_ROLLBACK_TOKENS {
            return refuse("n_rs_seq", self.n_rs_seq, "at most 64 more states are kept");
        }
        let (n_ctx, n_seq) = (u64::from(self.n_ctx), u64::from(self.n_seq_max));
        // llama.cpp limits the batch by the context before it pads the context (llama-context.cpp, the constructor).
        let n_batch = u64::from(self.n_batch).min(n_ctx);
        if n_seq > n_batch {
            let limit =
                format!("a batch has only {n_batch} tokens, and llama.cpp aborts unless every sequence has one");
            return refuse("n_seq_max", self.n_seq_max, &limit);
        }
        let n_ubatch = n_batch.min(self.computed().into());
        if self.n_rs_seq > 0 && u64::from(self.n_rs_seq) + 2 > n_ubatch {
            let limit = format!(
                "a computation has only {n_ubatch} tokens, and llama.cpp aborts unless it has at least two more than this (llama-batch.cpp, `split_equal`)"
            );
            return refuse("n_rs_seq", self.n_rs_seq, &limit);
        }
        let padded = |tokens: u64| tokens.next_multiple_of(CONTEXT_PADDING.into());
        let n_ctx = padded(n_ctx);
        let (cells, streams) = if self.kv_unified { (n_ctx, 1) } else { (padded(n_ctx / n_seq), n_seq) };
        let n_ctx = cells * streams;
        let n_outputs_max = match self.n_outputs_max {
            0 => n_batch,
            // Every sequence yields at least one row (llama-context.cpp, `sched_reserve`).
            n => n_batch.min(u64::from(n.max(self.n_seq_max))),
        };
        let n_tokens = n_ctx.min(n_ubatch);
        Ok(ContextSizes {
            n_ctx,
            n_batch,
            cells,
            streams,
            // llama.cpp reserves the graph for the same number of tokens of each sequence (llama-context.cpp,
            // `graph_reserve`).
            n_tokens: n_tokens.next_multiple_of(n_seq),
            n_outputs: n_tokens.min(n_outputs_max),
            output_rows: n_outputs_max.max(n_seq),
        })
    }

    /// Checks the cache types against the model's heads (llama-context.cpp, `llama_init_from_model`).
    pub(crate) fn check_kv_types(&self, hparams: &Hyperparameters) -> Result<(), Error> {
        if self.type_v.is_quantized() && self.flash_attn == FlashAttention::Off {
            return Err(Error::NeedsFlashAttention { ty: self.type_v });
        }
        for (parameter, ty, head) in [
            ("type_k", self.type_k, hparams.head_dim_k),
            ("type_v", self.type_v, hparams.head_dim_v),
            ("type_k", self.type_k, hparams.head_dim_k_swa),
            ("type_v", self.type_v, hparams.head_dim_v_swa),
        ] {
            let block = ty.tensor_type().block_size();
            if !u64::from(head).is_multiple_of(block) {
                return Err(Error::KvWidth { parameter, ty, block, head });
            }
        }
        Ok(())
    }

    /// Whether the context's graphs compute logits. A context that combines the vectors of a text computes none
    /// (llama-graph.cpp, `build_logits`), except for T5 (llama-context.cpp, `output_reserve`).
    pub(super) fn computes_logits(&self, profile: &ModelProfile) -> bool {
        matches!(self.embeddings, None | Some(Pooling::None)) || profile.architecture == "t5"
    }

    /// Bytes of the buffer that returns logits and embeddings (llama-context.cpp, `output_reserve`). If prediction
    /// blocks are loaded, the buffer also contains the hidden states of a whole batch and, for each sequence, the
    /// logits and the hidden state of the second context.
    pub(super) fn output_bytes(&self, profile: &ModelProfile, sizes: &ContextSizes) -> u64 {
        let (width, n_vocab) = (profile.hparams.n_embd_out.into(), u64::from(profile.hparams.n_vocab));
        let embedding = if self.embeddings.is_some() { width } else { 0 };
        let row = n_vocab.saturating_add(embedding);
        let mut numbers = if self.computes_logits(profile) {
            row.saturating_mul(sizes.output_rows)
        } else {
            // llama.cpp makes the first buffer, for one row of each sequence, before it builds a graph without logits.
            row.saturating_mul(self.n_seq_max.into()).max(embedding.saturating_mul(sizes.output_rows))
        };
        if self.mtp {
            let heads = n_vocab.saturating_add(width).saturating_mul(self.n_seq_max.into());
            numbers = numbers.saturating_add(width.saturating_mul(sizes.n_batch)).saturating_add(heads);
        }
        numbers.saturating_mul(4)
    }
}

#[cfg(test)]
mod tests {
    use super::{ContextParams, ContextSizes, Error};

    fn with(change: impl FnOnce(&mut ContextParams)) -> Result<ContextSizes, Error> {
        let mut params = ContextParams::default();
        change(&mut params);
        params.sizes()
    }

    #[test]
    fn contexts_are_divided_among_sequences_and_padded_to_256_tokens() {
        // 4096 / 3 = 1365, padded to 1536 for each of three streams. The graph has 171 tokens of each stream.
        for ((n_ctx, n_seq_max, kv_unified, n_outputs_max), (all, cells, streams), batch, outputs) in [
            ((4097, 1, false, 1), (4352, 4352, 1), (2048, 512), (1, 1)),
            ((100, 1, false, 1), (256, 256, 1), (100, 100), (1, 1)),
            ((4096, 3, false, 1), (4608, 1536, 3), (2048, 513), (3, 3)),
            ((4096, 3, true, 0), (4096, 4096, 1), (2048, 513), (512, 2048)),
            ((4096, 1, false, 100_000), (4096, 4096, 1), (2048, 512), (512, 2048)),
        ] {
            let sizes = with(|params| {
                (params.n_ctx, params.n_seq_max, params.kv_unified, params.n_outputs_max) =
                    (n_ctx, n_seq_max, kv_unified, n_outputs_max);
            });
            let sizes = sizes.unwrap();
            assert_eq!((sizes.n_ctx, sizes.cells, sizes.streams), (all, cells, streams));
            assert_eq!((sizes.n_batch, sizes.n_tokens), batch);
            assert_eq!((sizes.n_outputs, sizes.output_rows), outputs);
        }
    }

    #[test]
    fn parameters_that_would_abort_the_process_are_named_in_an_error() {
        type Edit = fn(&mut ContextParams);
        let cases: [(Edit, &str); 8] = [
            (|params| params.n_ctx = 0, "n_ctx"),
            (|params| params.n_ctx = u32::MAX, "n_ctx"),
            (|params| params.n_batch = 0, "n_batch"),
            (|params| params.n_seq_max = 0, "n_seq_max"),
            (|params| params.n_seq_max = 300, "n_seq_max"),
            (|params| (params.n_batch, params.n_seq_max) = (2, 3), "n_seq_max"),
            (|params| params.n_rs_seq = 65, "n_rs_seq"),
            (|params| (params.n_ubatch, params.n_rs_seq) = (5, 4), "n_rs_seq"),
        ];
        for (change, named) in cases {
            match with(change) {
                Err(Error::Context { parameter, .. }) => assert_eq!(parameter, named),
                other => panic!("{named}: {other:?}"),
            }
        }
    }
}
