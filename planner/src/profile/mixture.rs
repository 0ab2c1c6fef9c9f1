//! Which type each matrix of a model gets in a quantisation: what `llama-quantize` decides (llama-quant.cpp), given an importance
//! matrix, without which nobody publishes the small ones.

use crate::gguf::TensorType as T;

use super::{ModelProfile, Quantisation as Q, Weight};

/// What a tensor is to the rules (`tensor_get_category`, llama-quant.cpp:119).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Category {
    TokenEmbd,
    AttentionQ,
    AttentionK,
    /// `attn_v`.
    AttentionV,
    /// `attn_qkv`, to which the rules of `attn_v` come first.
    AttentionQkv,
    /// `attn_kv_b`, likewise.
    AttentionKvB,
    AttentionOutput,
    FfnUp,
    FfnGate,
    FfnDown,
    Output,
    Other,
}

impl Category {
    fn of(name: &str) -> Self {
        /// The first that is part of the name decides.
        const PARTS: [(&str, Category); 9] = [
            ("attn_qkv.weight", Category::AttentionQkv),
            ("attn_kv_b.weight", Category::AttentionKvB),
            ("attn_v.weight", Category::AttentionV),
            ("attn_k.weight", Category::AttentionK),
            ("attn_q.weight", Category::AttentionQ),
            ("attn_output.weight", Category::AttentionOutput),
            ("ffn_up", Category::FfnUp),
            ("ffn_gate", Category::FfnGate),
            ("ffn_down", Category::FfnDown),
        ];
        match name {
            "output.weight" => Self::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Self::TokenEmbd,
            _ => PARTS
                .iter()
                .find(|(part, _)| name.contains(part))
                .map_or(Self::Other, |&(_, category)| category),
        }
    }

    /// `category_is_attn_v`.
    const fn is_attention_v(self) -> bool {
        matches!(
            self,
            Self::AttentionV | Self::AttentionQkv | Self::AttentionKvB
        )
    }
}

/// Names of which a part keeps a tensor as it is (`tensor_allows_quantization`, llama-quant.cpp:287).
const KEPT: [&str; 37] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
    "position_embd.weight",
    "token_types.weight",
];

/// The same of `glm5-next` alone (llama-quant.cpp:332).
const KEPT_GLM5_NEXT: [&str; 14] = [
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// And those that it has in no fewer than 8 bits (llama-quant.cpp:473).
const WIDE_GLM5_NEXT: [&str; 3] = ["attn_q_a", "attn_q_b", "nextn.eh_proj"];

/// Counts through a model's tensors in the order in which `llama-quantize` goes through them: what has no block first, then by block
/// and name (`weight_name_comparer`, llama-model-loader.h).
#[derive(Debug)]
pub(super) struct Mixture<'a> {
    quantisation: Q,
    architecture: &'a str,
    /// Whether there is no `output.weight`.
    tied: bool,
    n_layer: u32,
    n_expert: u32,
    /// Query heads per head of keys, of the first block.
    n_gqa: u32,
    /// Whether llama.cpp counts it among the models of 70 billion (`LLM_TYPE_70B`).
    is_70b: bool,
    n_attention_v: u32,
    i_attention_v: u32,
    i_ffn_down: u32,
    i_ffn_gate: u32,
    i_ffn_up: u32,
}

/// `use_more_bits` (llama-quant.cpp:452): the first and the last eighth, and every third between.
const fn use_more_bits(i: u32, n: u32) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

impl<'a> Mixture<'a> {
    /// `names` are those of all tensors.
    pub(super) fn new<'n>(
        quantisation: Q,
        profile: &'a ModelProfile,
        names: impl Iterator<Item = &'n str>,
    ) -> Self {
        let hparams = &profile.hparams;
        let heads = |of: &[u32]| of.first().copied().unwrap_or(0);
        let (n_head, n_head_kv) = (heads(&hparams.n_head), heads(&hparams.n_head_kv));
        let architecture = profile.architecture.as_str();
        let mut tied = true;
        let mut n_attention_v = 0;
        for category in names.map(Category::of) {
            tied &= category != Category::Output;
            n_attention_v += u32::from(category.is_attention_v());
        }
        // models/llama.cpp:28, models/qwen2.cpp:14, models/deci.cpp:8, models/olmo.cpp:10, models/jais2.cpp:8.
        let is_70b = match (architecture, hparams.n_layer_trunk()) {
            ("llama", 80) => n_head != n_head_kv,
            ("qwen2" | "deci" | "olmo", 80) | ("jais2", 68) => true,
            _ => false,
        };
        Self {
            quantisation,
            architecture,
            tied,
            n_layer: hparams.n_layer,
            n_expert: hparams.experts.map_or(0, |experts| experts.count),
            n_gqa: n_head.checked_div(n_head_kv).unwrap_or(0),
            is_70b,
            n_attention_v,
            i_attention_v: 0,
            i_ffn_down: 0,
            i_ffn_gate: 0,
            i_ffn_up: 0,
        }
    }

    /// The type of the next tensor (`llama_tensor_get_type`, llama-quant.cpp:717).
    pub(super) fn next(&mut self, weight: &Weight) -> T {
        if !self.is_quantised(weight) {
            return weight.ty;
        }
        let ty = self.wanted(weight);
        fallback(ty, weight.shape[0])
    }

    fn is_quantised(&self, weight: &Weight) -> bool {
        let name = weight.name.as_str();
        let is_matrix = weight.shape[1..].iter().any(|&n| n > 1);
        let part_of = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        let is_kept =
            part_of(&KEPT) || self.architecture == "glm5-next" && part_of(&KEPT_GLM5_NEXT);
        is_matrix && name.ends_with("weight") && !is_kept
    }

    /// `llama_tensor_get_type_impl` (llama-quant.cpp:446).
    fn wanted(&mut self, weight: &Weight) -> T {
        let name = weight.name.as_str();
        let default = self.quantisation.default_type();
        let wide = || WIDE_GLM5_NEXT.iter().any(|part| name.contains(part));
        if self.architecture == "glm5-next" && wide() {
            return T::Q8_0;
        }
        let category = Category::of(name);
        let is_output = category == Category::Output;
        if is_output || (self.tied && category == Category::TokenEmbd) {
            return self.output(weight, default);
        }
        if category == Category::TokenEmbd {
            return match self.quantisation {
                Q::IQ2_M => T::IQ3_S,
                _ => default,
            };
        }
        if self.quantisation == Q::IQ2_M {
            return self.two_bits(category, default);
        }
        match category {
            category if category.is_attention_v() => self.attention_v(default),
            Category::AttentionK if self.n_expert == 8 => T::Q8_0,
            Category::AttentionK | Category::AttentionQ => match self.quantisation {
                Q::IQ3_XS => T::IQ3_XXS,
                _ => default,
            },
            Category::FfnDown => self.ffn_down(name, default),
            Category::AttentionOutput => self.attention_output(default),
            Category::FfnGate => {
                let i = self.layer(name, self.i_ffn_gate);
                self.i_ffn_gate += 1;
                self.ffn_up_or_gate(i, default)
            }
            Category::FfnUp => {
                let i = self.layer(name, self.i_ffn_up);
                self.i_ffn_up += 1;
                self.ffn_up_or_gate(i, default)
            }
            _ => default,
        }
    }

    fn output(&self, weight: &Weight, default: T) -> T {
        let odd = !weight.shape[0].is_multiple_of(default.block_size());
        match self.quantisation {
            _ if self.architecture == "falcon" || odd => T::Q8_0,
            Q::Q8_0 => T::Q8_0,
            Q::IQ2_M => T::Q5_K,
            _ => T::Q6_K,
        }
    }

    fn two_bits(&mut self, category: Category, default: T) -> T {
        match category {
            category if category.is_attention_v() => {
                if self.n_gqa >= 4 || self.n_expert >= 4 {
                    T::Q4_K
                } else {
                    T::IQ3_S
                }
            }
            Category::AttentionK if self.n_expert == 8 => T::Q4_K,
            Category::FfnDown => {
                let i = self.i_ffn_down;
                self.i_ffn_down += 1;
                if i < self.n_layer / 8 {
                    T::IQ3_S
                } else {
                    default
                }
            }
            Category::AttentionOutput if self.n_expert == 8 => T::Q5_K,
            Category::AttentionOutput => T::IQ3_S,
            _ => default,
        }
    }

    fn attention_v(&mut self, default: T) -> T {
        let i = self.i_attention_v;
        self.i_attention_v += 1;
        let more = use_more_bits(i, self.n_attention_v);
        let shared = self.n_gqa >= 4;
        let ty = match self.quantisation {
            Q::Q2_K if shared => T::Q4_K,
            Q::Q2_K => T::Q3_K,
            Q::IQ3_XS if shared => T::Q4_K,
            Q::IQ3_M => T::Q4_K,
            Q::Q3_K_M if i < 2 => T::Q5_K,
            Q::Q3_K_M => T::Q4_K,
            Q::Q3_K_L => T::Q5_K,
            Q::IQ4_XS if shared => T::Q5_K,
            Q::Q4_K_M | Q::Q5_K_M if more => T::Q6_K,
            Q::Q4_K_S if i < 4 => T::Q5_K,
            _ => default,
        };
        match ty {
            _ if self.n_expert == 8 => T::Q8_0,
            T::Q3_K | T::Q4_K if self.is_70b => T::Q5_K,
            ty => ty,
        }
    }

    fn ffn_down(&mut self, name: &str, default: T) -> T {
        let (i, n) = (self.layer(name, self.i_ffn_down), self.n_layer);
        self.i_ffn_down += 1;
        let falcon = self.architecture == "falcon";
        let more = use_more_bits(i, n);
        match self.quantisation {
            Q::Q2_K => T::Q3_K,
            Q::Q3_K_M if i < n / 16 => T::Q5_K,
            Q::Q3_K_M if !falcon || more => T::Q4_K,
            Q::IQ3_M if i < n / 8 || (self.n_expert == 8 && more) => T::Q4_K,
            Q::Q3_K_L if falcon => T::Q4_K,
            Q::Q3_K_L => T::Q5_K,
            Q::Q4_K_M if falcon && i >= n / 16 && more => T::Q5_K,
            Q::Q4_K_M if if falcon { i < n / 16 } else { more } => T::Q6_K,
            Q::Q5_K_M if more => T::Q6_K,
            Q::Q4_K_S if !falcon && i < n / 8 => T::Q5_K,
            _ => default,
        }
    }

    fn attention_output(&self, default: T) -> T {
        match self.quantisation {
            Q::Q3_K_L if self.architecture == "falcon" => T::Q4_K,
            _ if self.architecture == "falcon" => default,
            Q::Q2_K
            | Q::IQ3_XS
            | Q::Q3_K_S
            | Q::Q3_K_M
            | Q::Q4_K_S
            | Q::Q4_K_M
            | Q::IQ3_M
            | Q::IQ4_XS
                if self.n_expert == 8 =>
            {
                T::Q5_K
            }
            _ if self.n_expert == 8 => default,
            Q::Q2_K => T::Q3_K,
            Q::Q3_K_M | Q::IQ3_M => T::Q4_K,
            Q::Q3_K_L => T::Q5_K,
            _ => default,
        }
    }

    fn ffn_up_or_gate(&self, i: u32, default: T) -> T {
        let between = i >= self.n_layer / 8 && i < 7 * self.n_layer / 8;
        match self.quantisation {
            Q::IQ3_XS if between => T::IQ3_XXS,
            _ => default,
        }
    }

    /// `layer_info` (llama-quant.cpp:456): of models with experts the block in the name, of others how many there were before.
    fn layer(&self, name: &str, before: u32) -> u32 {
        if self.n_expert <= 1 {
            return before;
        }
        block_of(name).unwrap_or(before)
    }
}

/// The block that a name is of.
pub(super) fn block_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("blk.")?.split('.').next()?;
    number.parse().ok()
}

/// The type that takes rows of this many elements instead of one that does not (`tensor_type_fallback`, llama-quant.cpp:390).
fn fallback(ty: T, n: u64) -> T {
    let takes = |ty: T| n.is_multiple_of(ty.block_size());
    if takes(ty) {
        return ty;
    }
    let other = match ty {
        T::IQ2_S | T::IQ3_XXS | T::IQ3_S | T::IQ4_XS => T::IQ4_NL,
        T::Q2_K | T::Q3_K => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        ty => ty,
    };
    if takes(other) { other } else { T::F16 }
}

#[cfg(test)]
mod tests {
    use super::{Category, T, fallback, use_more_bits};

    #[test]
    fn rows_that_are_no_whole_blocks_take_another_type() {
        assert_eq!(fallback(T::Q4_K, 4096), T::Q4_K);
        // gpt-oss is 2880 wide.
        assert_eq!(fallback(T::Q4_K, 2880), T::Q5_0);
        assert_eq!(fallback(T::Q6_K, 2880), T::Q8_0);
        assert_eq!(fallback(T::IQ2_S, 2880), T::IQ4_NL);
        assert_eq!(fallback(T::Q2_K, 50), T::F16);
        assert_eq!(fallback(T::Q8_0, 50), T::F16);
    }

    #[test]
    fn half_of_the_blocks_get_more_bits() {
        let more = (0..32).filter(|&i| use_more_bits(i, 32)).count();
        assert_eq!(more, 16);
    }

    #[test]
    fn the_first_part_of_a_name_decides() {
        let of = Category::of;
        assert_eq!(of("blk.0.ffn_down_exps.weight"), Category::FfnDown);
        assert_eq!(of("blk.0.attn_qkv.weight"), Category::AttentionQkv);
        assert_eq!(of("output.weight"), Category::Output);
        assert_eq!(of("blk.0.attn_output.weight"), Category::AttentionOutput);
        assert_eq!(of("blk.0.ssm_in.weight"), Category::Other);
        assert!(of("blk.0.attn_kv_b.weight").is_attention_v());
    }
}
