//! The sums of a model that its compute buffers depend on: from its profile and the parameters of a context.

use super::{Buffers, n, saturate};
use crate::machine::Gpu;
use crate::memory::KvType;
use crate::memory::backend::{Family, fuses_attention};
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::{BlockState, Group, LoraPair, ModelProfile, Part, Rows, Weight};

/// From so many tokens on a GPU computes with weights that the host keeps (`ggml_backend_cuda_device_offload_op`).
const OFFLOAD_FROM: u64 = 32;

impl Buffers {
    /// `window`: cells of the windowed caches; `pinned`: whether a GPU pins the host's memory.
    pub(in crate::memory::estimate) fn new(
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
        sizes: &ContextSizes,
        (window, pinned): (u64, bool),
    ) -> Self {
        let hparams = &profile.hparams;
        let most = |of: &[u32]| n(of.iter().copied().max().unwrap_or(0));
        let tokens = n(sizes.n_tokens);
        let (heads, n_embd) = (most(&hparams.n_head), n(hparams.n_embd));
        let experts = hparams.experts;
        let (used, n_ff) = experts.map_or((0, 0), |of| (n(of.used), n(of.n_ff)));
        let head_dim = n(hparams.head_dim_k.max(hparams.head_dim_v));
        let (e, q) = (4 * tokens * n_embd, 4 * tokens * heads * head_dim);
        let u = 4 * tokens * n(hparams.n_ff).max(used * n_ff);
        let d = if used > 0 { used * e } else { e };
        let steps = (3 * u).max(if used > 0 { 2 * d + e } else { 0 });
        let logits = 4 * n(hparams.n_vocab) * n(sizes.n_outputs);
        let adapted = profile.adapters.adapted.iter();
        let per_layer = profile.weights.input.iter().find(|weight| weight.name.starts_with("per_layer_token_embd"));
        let states = || profile.state.blocks().unwrap_or_default().iter();
        let cacheless = profile.state.blocks().is_some() && states().all(|block| block.kept.is_empty());
        let attends = |block: &[Weight]| block.iter().any(|it| it.name.contains("attn_q"));
        let keys_row = head_dim * most(&hparams.n_head_kv);
        let named = |parts: &[&str]| profile.weights.stems.iter().any(|it| parts.iter().any(|part| it.contains(part)));
        let compressed = profile.state.is_compressed();
        let plain = params.flash_attn == FlashAttention::Off;
        let values = 8 * tokens * most(&hparams.n_head_kv) * n(hparams.head_dim_v);
        let lends = params.op_offload && !gpus.is_empty();
        let is_fused = |gpu: &&Gpu| fuses_attention(Family::of(&gpu.backend), profile, params);
        // Of Metal 32 groups for each of at most 32 queries of a stream, and the last 64 cells of each stream: of each
        // head rows of all, unless they are copied in F16.
        let queries = tokens.min(32 * n(sizes.streams));
        let cell = |ty: KvType| match ty.is_quantized() && tokens >= 32 * n(sizes.streams) {
            true => 2 * keys_row,
            false => most(&hparams.n_head_kv) * n(ty.tensor_type().row_bytes(saturate(keys_row))),
        };
        let cells = 64 * n(sizes.streams) * (cell(params.type_k) + cell(params.type_v));
        let partial = 4 * queries * heads * 32 * (head_dim + 2) + cells + (1 << 20);
        Self {
            tokens,
            cells: if cacheless { tokens } else { n(sizes.cells) },
            window: n(window),
            heads,
            e,
            q,
            wide: match (compressed, plain) {
                (true, false) => 3 * q,
                (true, true) => 2 * q,
                (false, false) => 2 * q.saturating_sub(e),
                (false, true) => 3 * q.saturating_sub(e),
            },
            partial,
            u,
            d,
            steps: steps.max(mixer(profile, sizes, params.n_seq_max)),
            logits,
            further_logits: further_logits(profile, sizes, logits),
            outputs: 4 * n_embd * n(sizes.n_outputs),
            inputs: 40 * tokens + (256 << 10),
            places: if plain { values } else { 0 },
            experts: used > 0,
            plain,
            may_be_plain: !plain && !gpus.iter().all(is_fused),
            compressed,
            indexed: states().any(|block| block.part(Part::IndexKeys).is_some()),
            biased: if named(&["attn_rel_b."]) { n(hparams.n_layer) } else { 0 },
            weighted: named(&["attn_sinks.", "attn_v_b."]),
            beside: !named(&["ffn_norm.", "post_attention_norm.", "post_ffw_norm."]),
            offload_kqv: params.offload_kqv,
            op_offload: lends,
            lends: lends && sizes.n_tokens >= OFFLOAD_FROM,
            lends_output: lends && sizes.n_outputs >= OFFLOAD_FROM,
            may_repack: params.repack && !pinned,
            converts: (params.type_k != KvType::F16, params.type_v != KvType::F16 && !compressed),
            adapters: n(most_of_adapters(profile, sizes)),
            adapted: n(profile.adapters.bytes()),
            embedded: adapted.filter(|(group, _)| *group == Group::Input).map(|(_, pair)| n(pair.bytes())).sum(),
            gpus: gpus.iter().map(|gpu| Family::of(&gpu.backend)).collect(),
            overridden: false,
            deepstack: n(hparams.n_deepstack_layers),
            per_layer: 4 * tokens * per_layer.map_or(0, |weight| n(weight.shape[0])),
            cacheless,
            reuses: !cacheless
                && states().zip(&profile.weights.blocks).any(|(state, block)| state.kept.is_empty() && attends(block)),
            fitted: params.embeddings.is_none()
                && profile.state.blocks().is_some_and(is_fitted)
                && !named(&["altup_", "enc.", "attn_rel_b.", "cross_attn"])
                && !computes_elsewhere(profile),
        }
    }
}

/// Attention over everything, over windows, or over compressed keys.
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

/// Whether some block keeps a cache and has no weights of its own, so that its device does not decide where it is
/// computed: a router's (models/granite-switch.cpp), and one that shares those of an earlier block
/// (models/hrm-text.cpp). AUTO gives fused attention up there.
fn computes_elsewhere(profile: &ModelProfile) -> bool {
    let mut blocks = profile.state.blocks().unwrap_or_default().iter().zip(&profile.weights.blocks);
    blocks.any(|(state, block)| !state.kept.is_empty() && !block.iter().any(Weight::is_matrix))
}

/// A copy of the logits (models/chameleon.cpp, models/qwen3tts.cpp), or logits that are computed with the embedding,
/// which the host keeps (models/bitnet.cpp).
fn further_logits(profile: &ModelProfile, sizes: &ContextSizes, logits: u128) -> u128 {
    match (&*profile.architecture, profile.weights.token_embedding()) {
        ("chameleon" | "qwen3tts", _) => logits,
        ("bitnet", Some(embedding)) if sizes.n_outputs >= OFFLOAD_FROM => logits + n(embedding.bytes),
        ("bitnet", _) => logits,
        _ => 0,
    }
}

/// What a block that keeps a state computes at once, generously: three of its widest projections, and
/// three of its states.
fn mixer(profile: &ModelProfile, sizes: &ContextSizes, n_seq: u32) -> u128 {
    let blocks = profile.state.blocks().unwrap_or_default();
    let states = blocks.iter().map(|block| n(block.recurrent_elements()));
    let Some(state) = states.max().filter(|&state| state > 0) else {
        return 0;
    };
    let weights = profile.weights.blocks.iter().flatten();
    let projections = weights.filter(|weight| weight.name.ends_with(".ssm_in.weight"));
    let width = n(projections.map(|weight| weight.shape[1]).max().unwrap_or(0));
    12 * width * n(sizes.n_tokens) + 12 * state * n(n_seq)
}

/// What the products of adapters add to a device's buffer at most: beside one, the two of a pair.
fn most_of_adapters(profile: &ModelProfile, sizes: &ContextSizes) -> u64 {
    let used = profile.hparams.experts.map_or(1, |experts| u64::from(experts.used.max(1)));
    let width = |(_, one): &(Group, LoraPair)| {
        let copies = if one.a.shape[2] > 1 { used } else { 1 };
        one.b.shape[1].saturating_mul(2).saturating_add(one.b.shape[0]).saturating_mul(copies)
    };
    let widest = profile.adapters.adapted.iter().map(width).max().unwrap_or(0);
    widest.saturating_mul(4).saturating_mul(sizes.n_tokens)
}
