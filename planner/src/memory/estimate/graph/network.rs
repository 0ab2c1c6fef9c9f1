//! What a graph needs to know of a model, prepared once.

use super::style::{self, Positions, Rope, Style};
use super::weights::{Part, Stored, Weights};
use crate::profile::{BlockState, ModelProfile, StateLaw, Switches};

/// Keys and values of all heads in one (MLA): models/deepseek2.cpp.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latent {
    /// Elements of a key that are rotated by position.
    pub(super) rope: u64,
    /// Elements of a key that are not.
    pub(super) nope: u64,
    /// Elements of a value.
    pub(super) value: u64,
    /// Elements that both are compressed to.
    pub(super) rank: u64,
    /// Whether the cache keeps them compressed.
    pub(super) kept: bool,
}

/// A model whose graph we know.
#[derive(Debug, Clone)]
pub(super) struct Network {
    pub(super) style: Style,
    pub(super) switches: Switches,
    pub(super) weights: Weights,
    pub(super) states: Vec<BlockState>,
    /// Heads of queries and of keys, block by block.
    pub(super) heads: Vec<(u64, u64)>,
    pub(super) head_k: u64,
    pub(super) head_v: u64,
    /// Elements of the values of the widest block.
    pub(super) widest_v: u64,
    pub(super) n_embd: u64,
    /// Blocks that compute a token.
    pub(super) trunk: usize,
    pub(super) experts_used: u64,
    pub(super) latent: Option<Latent>,
    /// Whether the context keeps windows apart (`llama_kv_cache_iswa`).
    pub(super) windowed: bool,
    /// Blocks of the same number have parts of the same shapes.
    pub(super) shape_class: Vec<usize>,
    /// Blocks of the same number have parts of the same shapes and types.
    pub(super) type_class: Vec<usize>,
}

impl Network {
    /// `None` where we have not read the graph of this architecture, or this model has something that it does not.
    pub(super) fn of(profile: &ModelProfile) -> Option<Self> {
        let style = style::of(&profile.architecture)?;
        let StateLaw::Known {
            blocks, widest_v, ..
        } = &profile.state
        else {
            return None;
        };
        let hparams = &profile.hparams;
        let switches = profile.switches;
        let weights = Weights::of(profile);
        let attends = |state: &BlockState| {
            matches!(
                state,
                BlockState::None
                    | BlockState::Full(_)
                    | BlockState::Windowed { .. }
                    | BlockState::Compressed { .. }
            )
        };
        let one_width = (hparams.head_dim_k, hparams.head_dim_v)
            == (hparams.head_dim_k_swa, hparams.head_dim_v_swa);
        if weights.others || !one_width || !blocks.iter().all(attends) {
            return None;
        }
        let style_knows = (style.deepstack || switches.deepstack_layers == 0)
            && !switches.deepstack_mapping
            && switches.rope_finetuned != Some(false)
            && switches.embedding_scale.is_none_or(|scale| scale != 0.0)
            && (switches.expert_gating <= 2 || style.mixing.softmax_of_chosen);
        // models/stablelm.cpp: a block without this norm is wired in another way.
        let rewired = profile.architecture == "stablelm"
            && !weights
                .blocks
                .iter()
                .all(|block| block.find(Part::FfnNorm).is_some());
        // models/qwen3vl.cpp puts logits before those of an output that is narrower than the embedding.
        let rows = |stored: Option<Stored>| stored.map(|stored| stored.ne[1]);
        let narrowed = style.deepstack && rows(weights.embedding) != rows(weights.output);
        if !style_knows || narrowed || rewired {
            return None;
        }
        let windowed = |state: &BlockState| matches!(state, BlockState::Windowed { .. });
        let heads = hparams.n_head.iter().zip(&hparams.n_head_kv);
        let mut network = Self {
            windowed: style.windowed_caches || blocks.iter().any(windowed),
            style,
            switches,
            states: blocks.clone(),
            heads: heads.map(|(&q, &kv)| (q.into(), kv.into())).collect(),
            head_k: hparams.head_dim_k.into(),
            head_v: hparams.head_dim_v.into(),
            widest_v: (*widest_v).into(),
            n_embd: hparams.n_embd.into(),
            trunk: hparams.n_layer_trunk() as usize,
            experts_used: hparams.experts.map_or(0, |experts| experts.used.into()),
            latent: None,
            shape_class: Vec::new(),
            type_class: Vec::new(),
            weights,
        };
        if profile.architecture == "deepseek2" {
            network.latent = Some(network.latent()?);
        }
        network.classify();
        Some(network)
    }

    /// The same without what is added to the model.
    pub(super) fn without_adapters(mut self) -> Self {
        self.weights.forget_adapters();
        self.classify();
        self
    }

    /// Finds out which blocks are alike.
    fn classify(&mut self) {
        self.shape_class = self.classes(|a, b| self.same_shapes(a, b));
        self.type_class = self.classes(|a, b| {
            self.same_shapes(a, b)
                && self.weights.blocks[a].weights == self.weights.blocks[b].weights
        });
    }

    /// Elements of a key and of a value as attention sees them, and the fewest queries that share a key.
    pub(super) fn attention_shape(&self) -> (u64, u64, u64) {
        match self.latent {
            Some(Latent {
                rank, rope, kept, ..
            }) if kept => {
                let queries = self.heads.iter().map(|&(q, _)| q).min();
                (rank.saturating_add(rope), rank, queries.unwrap_or(0))
            }
            _ => {
                let shared = self.heads.iter().filter_map(|&(q, kv)| q.checked_div(kv));
                (self.head_k, self.head_v, shared.min().unwrap_or(0))
            }
        }
    }

    fn latent(&self) -> Option<Latent> {
        let switches = &self.switches;
        // llama-hparams.cpp, n_embd_head_k_mla: without the widths of compressed keys those of the heads hold.
        let kept = switches.key_length_mla > 0 && switches.value_length_mla > 0;
        let (key, value) = if kept {
            (
                switches.key_length_mla.into(),
                switches.value_length_mla.into(),
            )
        } else {
            (self.head_k, self.head_v)
        };
        let rope = u64::from(switches.rotated);
        let nope = key.checked_sub(rope)?;
        let rank = u64::from(switches.kv_rank);
        (rope > 0 && nope > 0 && rank > 0).then_some(Latent {
            rope,
            nope,
            value,
            rank,
            kept,
        })
    }

    /// Whether this block rotates queries and keys by position.
    pub(super) fn rotates(&self, block: usize) -> bool {
        let windowed = matches!(self.states[block], BlockState::Windowed { .. });
        match self.style.rope {
            Rope::Always => true,
            Rope::Windowed => windowed,
            Rope::WindowedIfAny => windowed || !self.windowed,
            Rope::AllBut(n) => !(block + 1).is_multiple_of(n),
        }
    }

    /// Positions of a token.
    pub(super) fn positions(&self) -> u64 {
        match self.style.positions {
            Positions::Four => 4,
            Positions::FourIfStated if self.switches.sections => 4,
            Positions::One | Positions::FourIfStated => 1,
        }
    }

    /// Whether what a block adds to the stream is multiplied by a number.
    pub(super) fn scales_residual(&self) -> bool {
        let stated = self.switches.residual_scale.map(|scale| scale != 0.0);
        let unstated = self.style.scaled_residual;
        unstated.is_some_and(|always| stated.unwrap_or(always))
    }

    /// Whether a part of the embeddings is added after this block.
    pub(super) fn adds_embeddings(&self, block: usize) -> bool {
        block < self.switches.deepstack_layers as usize
    }

    /// Whether a control vector has a part for this block.
    pub(super) fn adds_direction(&self, block: usize) -> bool {
        self.weights.control_vector && block > 0
    }

    fn same_shapes(&self, a: usize, b: usize) -> bool {
        self.states[a] == self.states[b]
            && self.heads[a] == self.heads[b]
            && self.rotates(a) == self.rotates(b)
            && self.adds_embeddings(a) == self.adds_embeddings(b)
            && self.adds_direction(a) == self.adds_direction(b)
            && self.weights.blocks[a].same_shapes(&self.weights.blocks[b])
    }

    /// Numbers the blocks so that those of one number are alike.
    fn classes(&self, alike: impl Fn(usize, usize) -> bool) -> Vec<usize> {
        let mut classes: Vec<usize> = Vec::with_capacity(self.trunk);
        let mut first: Vec<usize> = Vec::new();
        for block in 0..self.trunk {
            let known = first.iter().position(|&other| alike(block, other));
            classes.push(known.unwrap_or(first.len()));
            if known.is_none() {
                first.push(block);
            }
        }
        classes
    }
}
