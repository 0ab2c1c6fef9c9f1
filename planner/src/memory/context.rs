//! The parameters of a context, and the sizes that llama.cpp makes of them.

use serde::{Deserialize, Serialize};

use crate::profile::{Hyperparameters, ModelProfile};

use super::{Error, KvType, Pooling, Rope};

/// Contexts are padded to multiples of so many tokens (llama-context.cpp, the constructor).
pub(crate) const CONTEXT_PADDING: u32 = 256;

/// Padded contexts must stay within the signed positions.
const MAX_CONTEXT: u32 = i32::MAX as u32 & !(CONTEXT_PADDING - 1);

/// `LLAMA_MAX_SEQ` (llama-cparams.h).
const MAX_SEQUENCES: u32 = 256;

/// Tokens that a recurrent state can be taken back at most. llama.cpp knows no limit; each costs a whole state.
pub(crate) const MOST_TAKEN_BACK: u32 = 64;

/// Whether attention is computed in one fused step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlashAttention {
    /// Where every device that holds a layer can: llama.cpp's default.
    #[default]
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

/// The parameters of a load and its context that decide how many bytes it takes: a part of `llama_model_params` and
/// `llama_context_params`, under their names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextParams {
    /// Tokens of context. Above 0: the 0 that means "as trained" in llama.cpp is resolved before.
    pub n_ctx: u32,
    /// Tokens that one call may submit.
    pub n_batch: u32,
    /// Tokens that are computed at once.
    pub n_ubatch: u32,
    /// Sequences that are held at once.
    pub n_seq_max: u32,
    /// Tokens of a batch whose logits may be asked for; 0 means all of them. 1 is enough to generate, and saves much
    /// (llama-context.cpp, the constructor, `sched_reserve`).
    pub n_outputs_max: u32,
    /// The type of the keys.
    pub type_k: KvType,
    /// The type of the values.
    pub type_v: KvType,
    /// Fused attention.
    pub flash_attn: FlashAttention,
    /// Whether the cache of a layer lives where the layer lives; else it lives on the host.
    pub offload_kqv: bool,
    /// Whether a GPU computes large batches with weights that the host keeps.
    pub op_offload: bool,
    /// Whether all sequences share one cache.
    pub kv_unified: bool,
    /// Whether layers with a sliding window keep the whole context all the same, so that a text may go back to any
    /// token.
    pub swa_full: bool,
    /// Whether the file is mapped (`LLAMA_LOAD_MODE_AUTO` and `_MMAP` where every device can) or read.
    pub mmap: bool,
    /// Whether the CPU may rearrange weights for its instruction set (`use_extra_bufts`).
    pub repack: bool,
    /// Vectors instead of text, combined so. `None`: the context generates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<Pooling>,
    /// Whether the blocks that predict further tokens are loaded (`load_mtp`), and have a context of their own beside
    /// this one (`LLAMA_CONTEXT_TYPE_MTP`).
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub mtp: bool,
    /// Tokens that the state of a recurrent model can be taken back, up to 64: for each, a state more of every sequence
    /// is kept (llama-memory-recurrent.cpp, the constructor).
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub n_rs_seq: u32,
    /// How positions are scaled.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub rope: Rope,
}

impl Default for ContextParams {
    /// Those of llama.cpp's programs (common.h, `common_params`), but for a context of 4096 tokens and one output: a
    /// plan's context is what its [`Request`](crate::plan::Request) asks for, by default 4096 to 32,768 tokens.
    /// docs/defaults.md holds each beside theirs.
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
            rope: Rope::default(),
        }
    }
}

/// The sizes that llama.cpp makes of [`ContextParams`] (llama-context.cpp, the constructor, `sched_reserve`,
/// `graph_reserve`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextSizes {
    /// Tokens of context over all sequences, padded.
    pub n_ctx: u64,
    /// Tokens that one call may submit.
    pub n_batch: u64,
    /// Cells of a cache: tokens of one stream.
    pub cells: u64,
    /// Caches side by side.
    pub streams: u64,
    /// Tokens of the largest computation.
    pub n_tokens: u64,
    /// Rows of logits of the largest computation.
    pub n_outputs: u64,
    /// Rows of the buffer that logits are returned in, at its largest.
    pub output_rows: u64,
}

impl ContextParams {
    /// Tokens of context that each sequence has. llama.cpp rounds them up to a multiple of 256; what was asked for, and
    /// planned, is what holds.
    pub const fn n_ctx_seq(&self) -> u32 {
        match self.n_seq_max {
            0 | 1 => self.n_ctx,
            _ if self.kv_unified => self.n_ctx,
            sequences => self.n_ctx / sequences,
        }
    }

    /// Tokens that are computed at once, of those that one call may submit; an `n_ubatch` of 0 stands for all of them.
    pub(crate) const fn computed(&self) -> u32 {
        match self.n_ubatch {
            1.. if self.n_ubatch < self.n_batch => self.n_ubatch,
            _ => self.n_batch,
        }
    }

    /// The sizes that llama.cpp makes of these parameters.
    ///
    /// # Errors
    ///
    /// [`Error::Context`] where llama.cpp would end the process or refuse.
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
            return refuse("n_batch", 0, "a batch of no tokens ends the process");
        }
        if self.n_rs_seq > MOST_TAKEN_BACK {
            return refuse("n_rs_seq", self.n_rs_seq, "at most 64 states more are kept");
        }
        let (n_ctx, n_seq) = (u64::from(self.n_ctx), u64::from(self.n_seq_max));
        // The batch is limited by the context before that is padded (llama-context.cpp, the constructor).
        let n_batch = u64::from(self.n_batch).min(n_ctx);
        if n_seq > n_batch {
            let limit = format!("a batch has only {n_batch} tokens, which ends the process");
            return refuse("n_seq_max", self.n_seq_max, &limit);
        }
        let n_ubatch = n_batch.min(self.computed().into());
        if self.n_rs_seq > 0 && u64::from(self.n_rs_seq) + 2 > n_ubatch {
            let limit = format!(
                "a computation has only {n_ubatch} tokens, which ends the process unless there are two more (llama-batch.cpp, `split_equal`)"
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
            // The graph is reserved for as many tokens of each sequence (llama-context.cpp, `graph_reserve`).
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

    /// Bytes of the buffer that logits are returned in, and embeddings beside them (llama-context.cpp,
    /// `output_reserve`); to predict further tokens, the hidden states of a whole batch too, and the second context's
    /// logits and hidden state for each sequence.
    pub(super) fn output_bytes(&self, profile: &ModelProfile, sizes: &ContextSizes) -> u64 {
        let (width, n_vocab) = (profile.hparams.n_embd_out.into(), u64::from(profile.hparams.n_vocab));
        let embedding = if self.embeddings.is_some() { width } else { 0 };
        let row = n_vocab.saturating_add(embedding);
        let mut numbers = row.saturating_mul(sizes.output_rows);
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
    fn a_context_is_shared_out_and_padded_to_256_tokens_and_has_an_output_per_sequence_and_at_most_a_batch() {
        // 4096 / 3 = 1365, padded to 1536 for each of three streams; 171 tokens of each at once.
        for ((n_ctx, n_seq_max, kv_unified, n_outputs_max), (all, cells, streams), batch, outputs) in [
            ((4097, 1, false, 1), (4352, 4352, 1), (2048, 512), (1, 1)),
            ((100, 1, false, 1), (256, 256, 1), (100, 100), (1, 1)),
            ((4096, 3, false, 1), (4608, 1536, 3), (2048, 513), (3, 3)),
            ((4096, 3, true, 0), (4096, 4096, 1), (2048, 513), (512, 2048)),
            ((4096, 1, false, 100_000), (4096, 4096, 1), (2048, 512), (512, 2048)),
        ] {
            let sizes = with(|it| {
                (it.n_ctx, it.n_seq_max, it.kv_unified, it.n_outputs_max) =
                    (n_ctx, n_seq_max, kv_unified, n_outputs_max);
            });
            let sizes = sizes.unwrap();
            assert_eq!((sizes.n_ctx, sizes.cells, sizes.streams), (all, cells, streams));
            assert_eq!((sizes.n_batch, sizes.n_tokens), batch);
            assert_eq!((sizes.n_outputs, sizes.output_rows), outputs);
        }
    }

    #[test]
    fn what_would_end_the_process_is_an_error_that_names_the_parameter() {
        type Edit = fn(&mut ContextParams);
        let cases: [(Edit, &str); 8] = [
            (|it| it.n_ctx = 0, "n_ctx"),
            (|it| it.n_ctx = u32::MAX, "n_ctx"),
            (|it| it.n_batch = 0, "n_batch"),
            (|it| it.n_seq_max = 0, "n_seq_max"),
            (|it| it.n_seq_max = 300, "n_seq_max"),
            (|it| (it.n_batch, it.n_seq_max) = (2, 3), "n_seq_max"),
            (|it| it.n_rs_seq = 65, "n_rs_seq"),
            (|it| (it.n_ubatch, it.n_rs_seq) = (5, 4), "n_rs_seq"),
        ];
        for (change, named) in cases {
            match with(change) {
                Err(Error::Context { parameter, .. }) => assert_eq!(parameter, named),
                other => panic!("{named}: {other:?}"),
            }
        }
    }
}
