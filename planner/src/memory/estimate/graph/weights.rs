//! The weights of a model by what llama.cpp's graphs do with them.

use crate::gguf::TensorType;
use crate::profile::{Adapted, Factor, Layer, ModelProfile, Weight};

macro_rules! parts {
    ($($part:ident = $name:literal,)*) => {
        /// What a weight of a block is for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Part {
            $(#[doc = concat!("`blk.N.", $name, "`")] $part,)*
        }

        impl Part {
            const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$part),)*];
        }
    };
}

parts! {
    AttnNorm = "attn_norm.weight",
    AttnNormBias = "attn_norm.bias",
    Q = "attn_q.weight",
    K = "attn_k.weight",
    V = "attn_v.weight",
    Qkv = "attn_qkv.weight",
    QBias = "attn_q.bias",
    KBias = "attn_k.bias",
    VBias = "attn_v.bias",
    QkvBias = "attn_qkv.bias",
    Out = "attn_output.weight",
    OutBias = "attn_output.bias",
    QNorm = "attn_q_norm.weight",
    KNorm = "attn_k_norm.weight",
    Sinks = "attn_sinks.weight",
    AttnPostNorm = "post_attention_norm.weight",
    QA = "attn_q_a.weight",
    QANorm = "attn_q_a_norm.weight",
    QB = "attn_q_b.weight",
    KvAMqa = "attn_kv_a_mqa.weight",
    KvANorm = "attn_kv_a_norm.weight",
    KvB = "attn_kv_b.weight",
    KB = "attn_k_b.weight",
    VB = "attn_v_b.weight",
    FfnNorm = "ffn_norm.weight",
    FfnNormBias = "ffn_norm.bias",
    FfnPostNorm = "post_ffw_norm.weight",
    Gate = "ffn_gate.weight",
    Up = "ffn_up.weight",
    Down = "ffn_down.weight",
    GateBias = "ffn_gate.bias",
    UpBias = "ffn_up.bias",
    DownBias = "ffn_down.bias",
    Router = "ffn_gate_inp.weight",
    RouterBias = "ffn_gate_inp.bias",
    ProbsBias = "exp_probs_b.bias",
    GateExps = "ffn_gate_exps.weight",
    UpExps = "ffn_up_exps.weight",
    DownExps = "ffn_down_exps.weight",
    GateExpsBias = "ffn_gate_exps.bias",
    UpExpsBias = "ffn_up_exps.bias",
    DownExpsBias = "ffn_down_exps.bias",
    GateUpExps = "ffn_gate_up_exps.weight",
    SharedRouter = "ffn_gate_inp_shexp.weight",
    GateShared = "ffn_gate_shexp.weight",
    UpShared = "ffn_up_shexp.weight",
    DownShared = "ffn_down_shexp.weight",
}

/// A weight as a graph sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) ty: TensorType,
    pub(super) ne: [u64; 4],
}

impl Stored {
    fn of(weight: &Weight) -> Self {
        Self {
            ty: weight.ty,
            ne: weight.shape,
        }
    }
}

/// What an adapter adds to a weight: the products with both, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) a: Stored,
    pub(super) b: Stored,
}

impl Pair {
    fn of(adapted: &Adapted) -> Self {
        let stored = |factor: Factor| Stored {
            ty: factor.ty,
            ne: factor.shape,
        };
        Self {
            a: stored(adapted.a),
            b: stored(adapted.b),
        }
    }
}

/// The weights of one block.
#[derive(Debug, Clone)]
pub(super) struct BlockWeights {
    /// For each part the index of its weight; `ABSENT` without.
    index: [u8; Part::ALL.len()],
    /// In the order of [`Block::weights`](crate::profile::Block::weights).
    pub(super) weights: Vec<Stored>,
    /// What adapters add, each with the index of its weight.
    pub(super) adapted: Vec<(usize, Pair)>,
    /// The parts of `weights`; `None` for a name that no part has.
    parts: Vec<Option<Part>>,
    /// The full names of `weights`.
    pub(super) names: Vec<String>,
}

const ABSENT: u8 = u8::MAX;

impl BlockWeights {
    fn of(weights: &[Weight]) -> Self {
        let mut block = Self {
            index: [ABSENT; Part::ALL.len()],
            weights: weights.iter().map(Stored::of).collect(),
            adapted: Vec::new(),
            parts: Vec::with_capacity(weights.len()),
            names: weights.iter().map(|weight| weight.name.clone()).collect(),
        };
        for (i, weight) in weights.iter().enumerate() {
            // `blk.7.attn_q.weight`
            let suffix = weight.name.splitn(3, '.').nth(2).unwrap_or_default();
            let part = Part::ALL.iter().find(|(name, _)| *name == suffix);
            let index = u8::try_from(i).ok().filter(|&index| index != ABSENT);
            let known = part.zip(index).map(|(&(_, part), index)| {
                block.index[part as usize] = index;
                part
            });
            block.parts.push(known);
        }
        block
    }

    /// The index of the weight for this part.
    pub(super) fn find(&self, part: Part) -> Option<usize> {
        let index = self.index[part as usize];
        (index != ABSENT).then_some(index.into())
    }

    /// Whether both have the same parts of the same shapes.
    pub(super) fn same_shapes(&self, other: &Self) -> bool {
        let shapes = |block: &Self| {
            let shapes = block.weights.iter().map(|weight| weight.ne);
            shapes.collect::<Vec<_>>()
        };
        self.parts == other.parts && shapes(self) == shapes(other) && self.adapted == other.adapted
    }
}

/// All weights that a graph computes with.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    pub(super) blocks: Vec<BlockWeights>,
    pub(super) embedding: Option<Stored>,
    pub(super) output: Option<Stored>,
    pub(super) output_norm: Option<Stored>,
    pub(super) output_norm_bias: Option<Stored>,
    pub(super) output_bias: Option<Stored>,
    /// Whether the output matrix is the embedding.
    pub(super) tied: bool,
    /// `rope_freqs`, or the long or short factors, which are alike.
    pub(super) rope: Option<Stored>,
    pub(super) rope_name: Option<String>,
    /// What adapters add to the token embedding and to the output matrix.
    pub(super) adapted_embedding: Vec<Pair>,
    pub(super) adapted_output: Vec<Pair>,
    /// Whether a vector is added to what leaves each block but the first.
    pub(super) control_vector: bool,
    /// Whether some weight is none of these: then we do not know the graph.
    pub(super) others: bool,
}

impl Weights {
    pub(super) fn of(profile: &ModelProfile) -> Self {
        let weights = &profile.weights;
        let output = |name: &str| {
            let named = weights.output.iter().find(|weight| weight.name == name);
            named.map(Stored::of)
        };
        let known = |weight: &Weight| {
            matches!(
                weight.name.as_str(),
                "output.weight" | "output_norm.weight" | "output_norm.bias" | "output.bias"
            )
        };
        let mut all = Self {
            blocks: weights
                .blocks
                .iter()
                .map(|block| BlockWeights::of(&block.weights))
                .collect(),
            embedding: weights.token_embedding().map(Stored::of),
            output: weights.output_matrix().map(Stored::of),
            output_norm: output("output_norm.weight"),
            output_norm_bias: output("output_norm.bias"),
            output_bias: output("output.bias"),
            tied: weights.tied_output,
            rope: weights.rope.first().map(Stored::of),
            rope_name: weights.rope.first().map(|weight| weight.name.clone()),
            adapted_embedding: Vec::new(),
            adapted_output: Vec::new(),
            control_vector: profile.adapters.control_vector,
            others: weights.input.len() != 1
                || !weights.unplaced.is_empty()
                || !weights.output.iter().all(known),
        };
        all.adapt(&profile.adapters.adapted);
        all
    }

    /// Leaves the model's own weights alone.
    pub(super) fn forget_adapters(&mut self) {
        for block in &mut self.blocks {
            block.adapted.clear();
        }
        self.adapted_embedding.clear();
        self.adapted_output.clear();
        self.control_vector = false;
    }

    fn adapt(&mut self, adapted: &[Adapted]) {
        for one in adapted {
            let pair = Pair::of(one);
            match one.layer {
                Layer::Input => self.adapted_embedding.push(pair),
                Layer::Output => self.adapted_output.push(pair),
                Layer::Block(block) => {
                    let Some(block) = self.blocks.get_mut(block) else {
                        continue;
                    };
                    let index = block.names.iter().position(|name| *name == one.weight);
                    block.adapted.extend(index.map(|index| (index, pair)));
                }
            }
        }
    }
}
