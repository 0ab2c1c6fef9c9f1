//! The usual block of most models, and options for models whose blocks differ.

use autoplace_gguf::TensorType as T;

use super::Sketch;

/// A block with grouped-query attention and a gated feed-forward step, in 4 and 6 bits.
#[derive(Clone, Copy)]
pub struct Block {
    /// The type of most matrices.
    pub ty: T,
    /// The type of the matrices that keep more bits: the values, and `ffn_down`.
    pub fine: T,
    /// The blocks in which these matrices have the type `fine`. In the other blocks they have the type `ty`.
    pub better: Better,
    /// Norms, which are vectors as wide as the stream.
    pub norms: &'static [&'static str],
    pub qk_norms: QkNorms,
    /// The projections that have a bias.
    pub biases: &'static [&'static str],
    /// Whether each head has a learned number (a sink) that takes attention away.
    pub sinks: bool,
    pub feed: Feed,
}

pub const PRE_NORMS: &[&str] = &["attn_norm.weight", "ffn_norm.weight"];
pub const POST_NORMS: &[&str] = &["post_attention_norm.weight", "post_ffw_norm.weight"];
pub const ALL_NORMS: &[&str] =
    &["attn_norm.weight", "ffn_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight"];
pub const QKV: &[&str] = &["attn_q", "attn_k", "attn_v"];

impl Block {
    pub const fn new(ty: T, fine: T) -> Self {
        Self {
            ty,
            fine,
            better: Better::Down,
            norms: PRE_NORMS,
            qk_norms: QkNorms::None,
            biases: &[],
            sinks: false,
            feed: Feed::Dense,
        }
    }

    /// The type of the matrices that keep more bits, in block `il` of `n_layer`.
    pub(super) fn fine_in(&self, il: u64, n_layer: u64) -> T {
        let eighth = n_layer / 8;
        let is_better = il < eighth || il >= 7 * eighth || (il - eighth) % 3 == 2 || self.better == Better::Down;
        if is_better { self.fine } else { self.ty }
    }
}

/// Which matrices keep more bits, and in which blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// `ffn_down`, in every block.
    Down,
    /// `ffn_down`, also that of experts, and the values. The blocks are the first and the last eighth, and every third
    /// block in between (Q4_K_M: `use_more_bits` of llama.cpp's llama-quant.cpp).
    Half,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum QkNorms {
    None,
    PerHead,
    OverAll,
}

/// The feed-forward step of a block.
#[derive(Clone, Copy)]
pub enum Feed {
    /// Three matrices, whose width is in the model's sizes.
    Dense,
    /// A router, and `n` experts of width `ff` and type `ty`.
    Experts { n: u64, ff: u64, ty: T },
    /// Experts, and a shared expert with its own width and type, which every token uses.
    Shared { n: u64, ff: u64, ty: T, shared: (u64, T) },
}

impl Sketch {
    /// Adds the same block to every layer.
    pub fn stack(&mut self, block: &Block) {
        for il in 0..self.dims.n_layer {
            self.put(il, block);
        }
    }

    /// Adds block number `il`.
    pub fn put(&mut self, il: u64, block: &Block) {
        let dims = self.dims;
        let (n_embd, q, kv) = (dims.n_embd, dims.q(), dims.kv());
        for norm in block.norms {
            self.vector(il, norm, n_embd);
        }
        let down = block.fine_in(il, dims.n_layer);
        let v = match block.better {
            Better::Half => down,
            Better::Down => block.ty,
        };
        for (name, ty, shape) in [
            ("attn_q", block.ty, [n_embd, q]),
            ("attn_k", block.ty, [n_embd, kv]),
            ("attn_v", v, [n_embd, kv]),
            ("attn_output", block.ty, [q, n_embd]),
        ] {
            self.block(il, &format!("{name}.weight"), ty, &shape);
            if block.biases.contains(&name) {
                self.vector(il, &format!("{name}.bias"), shape[1]);
            }
        }
        match block.qk_norms {
            QkNorms::None => {}
            QkNorms::PerHead => self.qk_norms(il),
            QkNorms::OverAll => {
                self.vector(il, "attn_q_norm.weight", q);
                self.vector(il, "attn_k_norm.weight", kv);
            }
        }
        if block.sinks {
            self.vector(il, "attn_sinks.weight", dims.n_head);
        }
        // If the type of the experts differs from the type of the block, it stays unchanged.
        let down_of_experts = |ty: T| if block.better == Better::Half && ty == block.ty { down } else { ty };
        match block.feed {
            Feed::Dense => self.feed_forward(il, block.ty, down),
            Feed::Experts { n, ff, ty } => self.experts(il, (ty, down_of_experts(ty)), n, ff),
            Feed::Shared { n, ff, ty, shared } => {
                self.experts(il, (ty, down_of_experts(ty)), n, ff);
                self.shared_expert(il, shared.1, shared.0);
            }
        }
    }

    /// Adds the router and `n` experts of width `ff`. `types` are the type of their matrices, and the type of
    /// `ffn_down_exps`.
    pub fn experts(&mut self, il: u64, types: (T, T), n: u64, ff: u64) {
        let (ty, down) = types;
        let n_embd = self.dims.n_embd;
        self.block(il, "ffn_gate_inp.weight", T::F32, &[n_embd, n]);
        self.block(il, "ffn_gate_exps.weight", ty, &[n_embd, ff, n]);
        self.block(il, "ffn_up_exps.weight", ty, &[n_embd, ff, n]);
        self.block(il, "ffn_down_exps.weight", down, &[ff, n_embd, n]);
    }

    /// Adds the expert of width `ff` that every token uses.
    pub fn shared_expert(&mut self, il: u64, ty: T, ff: u64) {
        let n_embd = self.dims.n_embd;
        self.block(il, "ffn_gate_shexp.weight", ty, &[n_embd, ff]);
        self.block(il, "ffn_up_shexp.weight", ty, &[n_embd, ff]);
        self.block(il, "ffn_down_shexp.weight", ty, &[ff, n_embd]);
    }

    /// Sets the keys of a mixture: the number of experts, the number of experts that each token uses, and their width.
    pub fn mixture(&mut self, n: u64, used: u64, ff: u64) {
        self.u32("expert_count", n);
        self.u32("expert_used_count", used);
        self.u32("expert_feed_forward_length", ff);
    }
}
