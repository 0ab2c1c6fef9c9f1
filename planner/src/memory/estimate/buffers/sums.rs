//! The sizes that determine a model's compute buffers. The model's profile and the parameters of a context flow in.

use super::{Buffers, saturate, u128_of};
use crate::machine::Gpu;
use crate::memory::KvType;
use crate::memory::backend::{Family, fuses_attention};
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::{BlockState, Group, LoraPair, ModelProfile, Part, Rows, Weight};

/// From this many tokens on, a GPU computes with the host's weights (`ggml_backend_cuda_device_offload_op`).
const MIN_OFFLOADED_TOKENS: u64 = 32;

impl Buffers {
    /// `window` is the number of cells of the windowed caches. `pinned` states whether a GPU pins the host's memory.
    pub(in crate::memory::estimate) fn new(
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
        sizes: &ContextSizes,
        (window, pinned): (u64, bool),
    ) -> Self {
        let hparams = &profile.hparams;
        let most = |of: &[u32]| u128_of(of.iter().copied().max().unwrap_or(0));
        let tokens = u128_of(sizes.n_tokens);
        let (heads, n_embd) = (most(&hparams.n_head), u128_of(hparams.n_embd));
        let experts = hparams.experts;
        let (used, n_ff) = experts.map_or((0, 0), |of| (u128_of(of.used), u128_of(of.n_ff)));
        let head_dim = u128_of(hparams.head_dim_k.max(hparams.head_dim_v));
        let (stream, queries) = (4 * tokens * n_embd, 4 * tokens * heads * head_dim);
        let hidden = 4 * tokens * u128_of(hparams.n_ff).max(used * n_ff);
        let ffn_out = if used > 0 { used * stream } else { stream };
        let ffn_step = (3 * hidden).max(if used > 0 { 2 * ffn_out + stream } else { 0 });
        let rows = if params.computes_logits(profile) { sizes.n_outputs } else { 0 };
        let logits = 4 * u128_of(hparams.n_vocab) * u128_of(rows);
        let adapted = profile.adapters.adapted.iter();
        let per_layer = profile.weights.input.iter().find(|weight| weight.name.starts_with("per_layer_token_embd"));
        let states = || profile.state.blocks().unwrap_or_default().iter();
        let cacheless = profile.state.blocks().is_some() && states().all(|block| block.kept.is_empty());
        let attends = |block: &[Weight]| block.iter().any(|weight| weight.name.contains("attn_q"));
        let keys_row = head_dim * most(&hparams.n_head_kv);
        let named =
            |parts: &[&str]| profile.weights.stems.iter().any(|stem| parts.iter().any(|part| stem.contains(part)));
        let compressed = profile.state.is_compressed();
        let unfused = params.flash_attn == FlashAttention::Off;
        let values = 8 * tokens * most(&hparams.n_head_kv) * u128_of(hparams.head_dim_v);
        let offloads = params.op_offload && !gpus.is_empty();
        let is_fused = |gpu: &&Gpu| fuses_attention(Family::from_backend(&gpu.backend), profile, params);
        // Metal keeps partial results: 32 groups for each of at most 32 queries of a stream, and the last 64 cells of
        // each stream. If the cells are not copied as F16, the cells of each head contain the rows of all heads.
        let group_queries = tokens.min(32 * u128_of(sizes.streams));
        let cell = |ty: KvType| match ty.is_quantized() && tokens >= 32 * u128_of(sizes.streams) {
            true => 2 * keys_row,
            false => most(&hparams.n_head_kv) * u128_of(ty.tensor_type().row_bytes(saturate(keys_row))),
        };
        let cells = 64 * u128_of(sizes.streams) * (cell(params.type_k) + cell(params.type_v));
        let partial = 4 * group_queries * heads * 32 * (head_dim + 2) + cells + (1 << 20);
        Self {
            tokens,
            cells: if cacheless { tokens } else { u128_of(sizes.cells) },
            window: u128_of(window),
            heads,
            stream,
            queries,
            extra_queries: match (compressed, unfused) {
                (true, false) => 3 * queries,
                (true, true) => 2 * queries,
                (false, false) => 2 * queries.saturating_sub(stream),
                (false, true) => 3 * queries.saturating_sub(stream),
            },
            metal_partials: partial,
            hidden,
            ffn_out,
            ffn_step: ffn_step.max(mixer(profile, sizes, params.n_seq_max)),
            logits,
            further_logits: further_logits(profile, sizes, logits),
            output_embeddings: 4 * n_embd * u128_of(sizes.n_outputs),
            inputs: 40 * tokens + (256 << 10),
            value_indices: if unfused { values } else { 0 },
            has_experts: used > 0,
            unfused,
            may_be_unfused: !unfused && !gpus.iter().all(is_fused),
            compressed,
            indexed: states().any(|block| block.part(Part::IndexKeys).is_some()),
            relative_bias_blocks: if named(&["attn_rel_b."]) { u128_of(hparams.n_layer) } else { 0 },
            has_attention_weights: named(&["attn_sinks.", "attn_v_b."]),
            shares_input: !named(&["ffn_norm.", "post_attention_norm.", "post_ffw_norm."]),
            offload_kqv: params.offload_kqv,
            op_offload: offloads,
            offloads_blocks: offloads && sizes.n_tokens >= MIN_OFFLOADED_TOKENS,
            rotates_on_host: offloads
                && sizes.n_tokens >= MIN_OFFLOADED_TOKENS
                && !params.offload_kqv
                && (params.type_k.is_quantized() || params.type_v.is_quantized()),
            offloads_output: offloads && sizes.n_outputs >= MIN_OFFLOADED_TOKENS,
            may_repack: params.repack && !pinned,
            converts_kv: (params.type_k != KvType::F16, params.type_v != KvType::F16 && !compressed),
            adapter_products: u128_of(adapter_products(profile, sizes)),
            adapter_bytes: u128_of(profile.adapters.bytes()),
            adapter_embedding_bytes: adapted
                .filter(|(group, _)| *group == Group::Input)
                .map(|(_, pair)| u128_of(pair.bytes()))
                .sum(),
            gpus: gpus.iter().map(|gpu| Family::from_backend(&gpu.backend)).collect(),
            overridden: false,
            deepstack: u128_of(hparams.n_deepstack_layers),
            per_layer: 4 * tokens * per_layer.map_or(0, |weight| u128_of(weight.shape[0])),
            cacheless,
            reuses_caches: !cacheless
                && states().zip(&profile.weights.blocks).any(|(state, block)| state.kept.is_empty() && attends(block)),
            fitted: params.embeddings.is_none()
                && profile.state.blocks().is_some_and(is_fitted)
                && !named(&["altup_", "enc.", "attn_rel_b.", "cross_attn"])
                && !computes_elsewhere(profile),
        }
    }
}

/// Whether all blocks attend over everything, over windows, or over compressed keys.
fn is_fitted(blocks: &[BlockState]) -> bool {
    let is_fitted = |block: &BlockState| {
        block.kept.iter().all(|kept| match kept.rows {
            Rows::Tokens => matches!(kept.part, Part::Keys | Part::Values),
            Rows::Window(_) => !block.is_compressed(),
            _ => false,
        })
    };
    blocks.iter().all(is_fitted)
}

/// Whether some block has a cache but no weights, such as a router's block (models/granite-switch.cpp) or a block that
/// shares an earlier block's weights (models/hrm-text.cpp). If there is such a block, its device does not decide where
/// it is computed, and AUTO disables fused attention.
fn computes_elsewhere(profile: &ModelProfile) -> bool {
    let mut blocks = profile.state.blocks().unwrap_or_default().iter().zip(&profile.weights.blocks);
    blocks.any(|(state, block)| !state.kept.is_empty() && !block.iter().any(Weight::is_matrix))
}

/// Bytes of a second copy of the logits (models/chameleon.cpp, models/qwen3tts.cpp), or of the logits and the embedding
/// if the host computes the logits (models/bitnet.cpp).
fn further_logits(profile: &ModelProfile, sizes: &ContextSizes, logits: u128) -> u128 {
    match (&*profile.architecture, profile.weights.token_embedding()) {
        ("chameleon" | "qwen3tts", _) => logits,
        ("bitnet", Some(embedding)) if sizes.n_outputs >= MIN_OFFLOADED_TOKENS => logits + u128_of(embedding.bytes),
        ("bitnet", _) => logits,
        _ => 0,
    }
}

/// A generous bound for a block with a recurrent state: three of its widest projections and three of its states.
fn mixer(profile: &ModelProfile, sizes: &ContextSizes, n_seq: u32) -> u128 {
    let blocks = profile.state.blocks().unwrap_or_default();
    let states = blocks.iter().map(|block| u128_of(block.recurrent_elements()));
    let Some(state) = states.max().filter(|&state| state > 0) else {
        return 0;
    };
    let weights = profile.weights.blocks.iter().flatten();
    let projections = weights.filter(|weight| weight.name.ends_with(".ssm_in.weight"));
    let width = u128_of(projections.map(|weight| weight.shape[1]).max().unwrap_or(0));
    12 * width * u128_of(sizes.n_tokens) + 12 * state * u128_of(n_seq)
}

/// Maximum bytes that the products of adapters add to a device's buffer: the two products of a pair, and one result.
fn adapter_products(profile: &ModelProfile, sizes: &ContextSizes) -> u64 {
    let used = profile.hparams.experts.map_or(1, |experts| u64::from(experts.used.max(1)));
    let width = |(_, one): &(Group, LoraPair)| {
        let copies = if one.a.shape[2] > 1 { used } else { 1 };
        one.b.shape[1].saturating_mul(2).saturating_add(one.b.shape[0]).saturating_mul(copies)
    };
    let widest = profile.adapters.adapted.iter().map(width).max().unwrap_or(0);
    widest.saturating_mul(4).saturating_mul(sizes.n_tokens)
}
