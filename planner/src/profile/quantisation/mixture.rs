//! The type that `llama-quantize` gives each tensor of a file. In: a tensor's name and shape. Out: its type.
//!
//! This follows `tensor_allows_quantization`, `llama_tensor_get_type_impl` and `tensor_type_fallback` of llama.cpp's
//! src/llama-quant.cpp, for the quantisations of [`Quantisation`]. `autoplace/tests/load/quantised.rs` compares each
//! tensor's type with the type that llama.cpp itself writes.

use crate::gguf::TensorType as T;
use crate::profile::ModelProfile;

use super::Quantisation as Q;

/// Parts of the names of tensors that are never quantised.
const KEPT: &str = "_norm.weight ffn_gate_inp.weight ffn_gate_tid2eid.weight altup laurel per_layer_model_proj \
    ssm_conv1d shortconv.conv.weight indexer.k_proj.weight indexer.q_proj.weight time_mix_first.weight \
    time_mix_w0.weight time_mix_w1.weight time_mix_w2.weight time_mix_v0.weight time_mix_v1.weight time_mix_v2.weight \
    time_mix_a0.weight time_mix_a1.weight time_mix_a2.weight time_mix_g1.weight time_mix_g2.weight \
    time_mix_decay_w1.weight time_mix_decay_w2.weight time_mix_lerp_fused.weight attn_rel_b.weight .position_embd \
    engram_gate.weight conv2d_spatial.weight conv_dw sam.pos_embd sam.neck. sam.net_ .rel_pos .patch_embd .patch_merger a.rvq.codebook mm.a.code_embd";

/// Whole names of tensors that are never quantised (BERT and its relatives).
const KEPT_WHOLE: [&str; 2] = ["position_embd.weight", "token_types.weight"];

/// Starts of the names of tensors that are never quantised.
const KEPT_STARTS: [&str; 2] = ["a.conv1d.", "a.gen.wav.quant."];

/// Parts of the names of tensors that are never quantised in `limite`.
const KEPT_LIMITE: &str = "attn_gate.weight attn_ve_gate.weight mudd_";

/// Parts of the names of tensors that are never quantised in `glm5-next`.
const KEPT_GLM5_NEXT: &str = "hc_ indexer.attn_q_b indexer.attn_k indexer.proj indexer_compressor_gate \
    indexer_compressor_ape ssm_f_a.weight ssm_f_b.weight ssm_g_a.weight ssm_g_b.weight ssm_beta.weight \
    attn_kv_a_mqa.weight attn_k_b.weight attn_v_b.weight";

/// The category of a tensor in the choice of its type (`tensor_category`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Category {
    Output,
    TokenEmbedding,
    /// `attn_v`, and the fused tensors that include values: `attn_qkv`, `attn_qkv_gate`, `attn_kv_b`.
    AttentionValue,
    AttentionKey,
    AttentionQuery,
    AttentionOutput,
    FfnUp,
    FfnGate,
    FfnDown,
    /// `attn_gate` and `ffn_latent_*`. Only `muse-spark` has a rule for these tensors.
    GateOrLatent,
    Other,
}

impl Category {
    /// The category of the tensor with this name: `tensor_get_category`.
    fn from_name(name: &str) -> Self {
        const PARTS: [(&str, Category); 12] = [
            ("attn_qkv.weight", Category::AttentionValue),
            ("attn_qkv_gate.weight", Category::AttentionValue),
            ("attn_kv_b.weight", Category::AttentionValue),
            ("attn_v.weight", Category::AttentionValue),
            ("attn_k.weight", Category::AttentionKey),
            ("attn_q.weight", Category::AttentionQuery),
            ("attn_output.weight", Category::AttentionOutput),
            ("ffn_up", Category::FfnUp),
            ("ffn_gate", Category::FfnGate),
            ("ffn_latent", Category::GateOrLatent),
            ("attn_gate.weight", Category::GateOrLatent),
            ("ffn_down", Category::FfnDown),
        ];
        match name {
            "output.weight" => Self::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Self::TokenEmbedding,
            _ => PARTS.into_iter().find(|(part, _)| name.contains(part)).map_or(Self::Other, |(_, category)| category),
        }
    }
}

/// The block of a tensor; `None` for a tensor outside a block. llama-quantize first takes the tensors outside blocks,
/// and then the blocks in ascending order. Within a block it takes the tensors by name (llama-model-loader.h,
/// `weight_name_comparer`).
pub(super) fn block_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Chooses the types of one model's tensors. A choice depends on the number of tensors seen before, so tensors must
/// come in llama-quantize's order.
pub(super) struct Mixture<'a> {
    to: Q,
    architecture: &'a str,
    /// The number of blocks of the model (`n_layer_all`).
    n_layer: u32,
    n_expert: u32,
    /// The number of query heads for each head of keys and values in the first block.
    n_gqa: u32,
    /// Whether llama.cpp classifies the model as a 70B model. Such a model has few value tensors, which get more bits.
    is_70b: bool,
    /// Whether the token embedding also computes the logits.
    is_tied: bool,
    /// The number of tensors of attention values in the model.
    n_values: u32,
    /// The number of tensors of attention values seen so far.
    values: u32,
    downs: u32,
    gates: u32,
    ups: u32,
}

impl<'a> Mixture<'a> {
    /// The choice for a model with tensors of these names.
    pub(super) fn new<'n>(to: Q, model: &'a ModelProfile, names: impl IntoIterator<Item = &'n str>) -> Self {
        let hparams = &model.hparams;
        let first = |heads: &[u32]| heads.first().copied().unwrap_or(0);
        let (n_head, n_head_kv) = (first(&hparams.n_head), first(&hparams.n_head_kv));
        let (mut is_tied, mut n_values) = (true, 0);
        for name in names {
            match Category::from_name(name) {
                Category::Output => is_tied = false,
                Category::AttentionValue => n_values += 1,
                _ => {}
            }
        }
        // models/{llama,qwen2,deci,olmo,jais2}.cpp, `load_arch_hparams`.
        let is_70b = match (&*model.architecture, hparams.n_layer_trunk()) {
            ("llama", 80) => n_head != n_head_kv,
            ("qwen2" | "deci" | "olmo", 80) | ("jais2", 68) => true,
            _ => false,
        };
        Self {
            to,
            architecture: &model.architecture,
            n_layer: hparams.n_layer,
            n_expert: hparams.experts.map_or(0, |experts| experts.count),
            n_gqa: n_head.checked_div(n_head_kv).unwrap_or(0),
            is_70b,
            is_tied,
            n_values,
            values: 0,
            downs: 0,
            gates: 0,
            ups: 0,
        }
    }

    /// Chooses the type of the next tensor, whose type in the source is `now`.
    pub(super) fn ty(&mut self, name: &str, shape: [u64; 4], now: T) -> T {
        if !self.is_quantised(name, shape) {
            return now;
        }
        let wanted = self.wanted(name, shape[0]);
        fitting(wanted, shape[0])
    }

    /// Whether the tensor is quantised at all: `tensor_allows_quantization`.
    fn is_quantised(&self, name: &str, shape: [u64; 4]) -> bool {
        let has_part = |parts: &str| parts.split_whitespace().any(|part| name.contains(part));
        let is_matrix = shape[1..].iter().any(|&n| n > 1);
        let is_kept = KEPT_WHOLE.contains(&name)
            || KEPT_STARTS.iter().any(|start| name.starts_with(start))
            || has_part(KEPT)
            || match self.architecture {
                "glm5-next" => has_part(KEPT_GLM5_NEXT),
                "limite" => has_part(KEPT_LIMITE),
                "vllm-decision2" => name.starts_with("decision."),
                _ => false,
            };
        is_matrix && name.ends_with("weight") && !is_kept
    }

    /// The type before the length of the rows is considered: `llama_tensor_get_type_impl`.
    fn wanted(&mut self, name: &str, row: u64) -> T {
        let (default, output, _) = self.to.types();
        let is_falcon = self.architecture == "falcon";
        if self.architecture == "glm5-next"
            && ["attn_q_a", "attn_q_b", "nextn.eh_proj"].iter().any(|part| name.contains(part))
        {
            return T::Q8_0;
        }
        match Category::from_name(name) {
            // No quantisation has more bits per weight than Q8_0.
            Category::GateOrLatent if self.architecture == "muse-spark" => T::Q8_0,
            Category::Output => self.of_logits(row, is_falcon, output),
            Category::TokenEmbedding if self.is_tied => self.of_logits(row, is_falcon, output),
            Category::TokenEmbedding => {
                if self.to == Q::IQ2_M {
                    T::IQ3_S
                } else {
                    default
                }
            }
            Category::AttentionValue => {
                let index = self.values;
                self.values += 1;
                self.of_values(index).unwrap_or(default)
            }
            Category::AttentionKey if self.n_expert == 8 => {
                if self.to == Q::IQ2_M {
                    T::Q4_K
                } else {
                    T::Q8_0
                }
            }
            Category::AttentionKey | Category::AttentionQuery if self.to == Q::IQ3_XS => T::IQ3_XXS,
            Category::AttentionOutput => self.of_attention_output(is_falcon).unwrap_or(default),
            Category::FfnDown => {
                // For IQ2_M, the running count decides; for the other quantisations, the block does.
                let index = if self.to == Q::IQ2_M { self.downs } else { self.layer(name, self.downs) };
                self.downs += 1;
                self.of_ffn_down(index, is_falcon).unwrap_or(default)
            }
            Category::FfnGate => {
                let index = self.layer(name, self.gates);
                self.gates += 1;
                self.of_ffn_way_in(index).unwrap_or(default)
            }
            Category::FfnUp => {
                let index = self.layer(name, self.ups);
                self.ups += 1;
                self.of_ffn_way_in(index).unwrap_or(default)
            }
            _ => default,
        }
    }

    /// The index of a feed-forward tensor: in a mixture of experts, its block; otherwise, the number of such tensors
    /// before it (`layer_info`).
    fn layer(&self, name: &str, seen: u32) -> u32 {
        match block_of(name) {
            Some(block) if self.n_expert > 1 => block,
            _ => seen,
        }
    }

    /// The type of the matrix that computes the logits.
    fn of_logits(&self, row: u64, is_falcon: bool, output: T) -> T {
        let whole = row.is_multiple_of(self.to.types().0.block_size());
        if is_falcon || !whole { T::Q8_0 } else { output }
    }

    fn of_values(&self, index: u32) -> Option<T> {
        let shared = self.n_gqa >= 4;
        if self.to == Q::IQ2_M {
            return Some(if shared || self.n_expert >= 4 { T::Q4_K } else { T::IQ3_S });
        }
        let chosen = match self.to {
            Q::Q2_K => Some(if shared { T::Q4_K } else { T::Q3_K }),
            Q::IQ3_XS if shared => Some(T::Q4_K),
            Q::IQ3_M => Some(T::Q4_K),
            Q::Q3_K_M => Some(if index < 2 { T::Q5_K } else { T::Q4_K }),
            Q::Q3_K_L => Some(T::Q5_K),
            Q::IQ4_XS if shared => Some(T::Q5_K),
            Q::Q4_K_M | Q::Q5_K_M if gets_more_bits(index, self.n_values) => Some(T::Q6_K),
            Q::Q4_K_S if index < 4 => Some(T::Q5_K),
            _ => None,
        };
        if self.n_expert == 8 {
            return Some(T::Q8_0);
        }
        let ty = chosen.unwrap_or(self.to.types().0);
        Some(if self.is_70b && matches!(ty, T::Q3_K | T::Q4_K) { T::Q5_K } else { ty })
    }

    fn of_attention_output(&self, is_falcon: bool) -> Option<T> {
        match (self.to, is_falcon, self.n_expert == 8) {
            (Q::IQ2_M, _, true) => Some(T::Q5_K),
            (Q::IQ2_M, _, false) => Some(T::IQ3_S),
            (Q::Q3_K_L, true, _) => Some(T::Q4_K),
            (_, true, _) => None,
            (Q::Q8_0 | Q::Q6_K | Q::Q5_K_M | Q::Q5_K_S | Q::Q3_K_L, false, true) => None,
            (_, false, true) => Some(T::Q5_K),
            (Q::Q2_K, false, false) => Some(T::Q3_K),
            (Q::Q3_K_M | Q::IQ3_M, false, false) => Some(T::Q4_K),
            (Q::Q3_K_L, false, false) => Some(T::Q5_K),
            _ => None,
        }
    }

    fn of_ffn_down(&self, index: u32, is_falcon: bool) -> Option<T> {
        let n = self.n_layer;
        let more = gets_more_bits(index, n);
        match self.to {
            Q::IQ2_M => (index < n / 8).then_some(T::IQ3_S),
            Q::Q2_K => Some(T::Q3_K),
            Q::Q3_K_M if index < n / 16 => Some(T::Q5_K),
            Q::Q3_K_M => Some(if !is_falcon || more { T::Q4_K } else { T::Q3_K }),
            Q::IQ3_M => (index < n / 8 || (self.n_expert == 8 && more)).then_some(T::Q4_K),
            Q::Q3_K_L => Some(if is_falcon { T::Q4_K } else { T::Q5_K }),
            Q::Q4_K_M if is_falcon && index < n / 16 => Some(T::Q6_K),
            Q::Q4_K_M if is_falcon => more.then_some(T::Q5_K),
            Q::Q4_K_M | Q::Q5_K_M => more.then_some(T::Q6_K),
            // With an importance matrix, llama-quantize would not choose this type.
            Q::IQ4_XS => (index < n / 8).then_some(T::Q5_K),
            Q::Q4_K_S => (!is_falcon && index < n / 8).then_some(T::Q5_K),
            _ => None,
        }
    }

    /// The type of `ffn_gate` and `ffn_up`.
    fn of_ffn_way_in(&self, index: u32) -> Option<T> {
        let n = self.n_layer;
        (self.to == Q::IQ3_XS && (n / 8..7 * n / 8).contains(&index)).then_some(T::IQ3_XXS)
    }
}

/// `use_more_bits`.
fn gets_more_bits(index: u32, n: u32) -> bool {
    index < n / 8 || index >= 7 * n / 8 || (index - n / 8) % 3 == 2
}

/// The type for rows of this many elements (`tensor_type_fallback`).
fn fitting(wanted: T, row: u64) -> T {
    let fits = |ty: T| row.is_multiple_of(ty.block_size());
    if fits(wanted) {
        return wanted;
    }
    let smaller_block = match wanted {
        T::IQ2_S | T::IQ3_XXS | T::IQ3_S | T::IQ4_XS => T::IQ4_NL,
        T::Q2_K | T::Q3_K => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        other => other,
    };
    if fits(smaller_block) { smaller_block } else { T::F16 }
}
