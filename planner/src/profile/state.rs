//! How a model's context takes memory.

/// How a model's context takes memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateLaw {
    /// We know the law of every block.
    Known {
        /// What each block keeps.
        blocks: Vec<BlockState>,
        /// Elements of the values of the widest block, whether that has a cache or not (`n_embd_v_gqa_max`): without
        /// flash attention all caches are as wide (llama-kv-cache.cpp, the constructor).
        widest_v: u32,
        /// Which blocks attend to a sliding window, those included that keep nothing of their own; empty if none does.
        windowed: Vec<bool>,
    },
    /// We do not know the law of this architecture: only a probe can say what its context takes.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// What one block keeps of its context, a tensor each; nothing in a block that predicts further tokens
/// (llama-model.cpp, `create_memory`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockState {
    /// The tensors.
    pub kept: Vec<KeptTensor>,
}

/// A tensor that a block keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptTensor {
    /// What it holds.
    pub part: Part,
    /// Elements of a row.
    pub n: u32,
    /// How many rows there are.
    pub rows: Rows,
}

/// What a tensor of a context holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Keys (`n_embd_k_gqa`, llama-hparams.cpp). Without values beside them they are compressed, one for all heads:
    /// multi-head latent attention (llama-kv-cache.cpp, the constructor).
    Keys,
    /// Values (`n_embd_v_gqa`).
    Values,
    /// Keys that select which others to attend to (`llama_kv_cache_dsa`, `llama_kv_cache_msa`,
    /// `llama_memory_hybrid_idx`), or that stand for several tokens each (`llama_kv_cache_dsv4`).
    IndexKeys,
    /// Values beside such keys, which nothing reads.
    IndexValues,
    /// A sequence's state in 32-bit floats: the past of a convolution or token shift (`n_embd_r`), a recurrent state
    /// (`n_embd_s`), what is to be distilled yet.
    State,
}

/// How many rows a tensor of a context has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rows {
    /// One for each token.
    Tokens,
    /// One for each of the last tokens (`n_swa`, `llama_kv_cache_iswa`), of all with `swa_full`.
    Window(u32),
    /// The same, with a window of its own for each sequence (llama-kv-cache-dsv4.cpp, the constructor).
    OwnWindow(u32),
    /// One for each group of so many tokens, for each sequence its own.
    Groups(u32),
    /// One for each sequence, and for each token that it can be taken back (`llama_memory_recurrent`).
    States,
    /// One for each sequence.
    Sequences,
}

impl BlockState {
    pub(super) fn of(kept: impl IntoIterator<Item = (Part, u32, Rows)>) -> Self {
        Self { kept: kept.into_iter().map(|(part, n, rows)| KeptTensor { part, n, rows }).collect() }
    }

    /// Keys and values.
    pub(super) fn attended((k, v): (u32, u32), rows: Rows) -> Self {
        Self::of([(Part::Keys, k, rows), (Part::Values, v, rows)])
    }

    /// Keys without values.
    pub(super) fn compressed(k: u32, rows: Rows) -> Self {
        Self::of([(Part::Keys, k, rows)])
    }

    /// Keys of every token, and keys that select which of them to attend to; values of both where there are any.
    pub(super) fn indexed(k: u32, v: Option<u32>, index_k: u32, index_v: Option<u32>) -> Self {
        let parts =
            [(Part::Keys, Some(k)), (Part::Values, v), (Part::IndexKeys, Some(index_k)), (Part::IndexValues, index_v)];
        Self::of(parts.into_iter().filter_map(|(part, n)| Some((part, n?, Rows::Tokens))))
    }

    /// The past and the state of each sequence.
    pub(super) fn recurrent(r: u32, s: u32) -> Self {
        Self::of([r, s].map(|n| (Part::State, n, Rows::States)))
    }

    /// This beside another.
    pub(super) fn and(mut self, other: &Self) -> Self {
        self.kept.extend(&other.kept);
        self
    }

    /// The first tensor of this part.
    pub fn part(&self, part: Part) -> Option<&KeptTensor> {
        self.kept.iter().find(|kept| kept.part == part)
    }

    /// Elements of the past and the state that each sequence has, whatever its length; 0 without.
    pub fn recurrent_elements(&self) -> u64 {
        self.kept.iter().filter(|kept| kept.rows == Rows::States).map(|kept| u64::from(kept.n)).sum()
    }

    /// Whether keys are compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        self.part(Part::Keys).is_some() && self.part(Part::Values).is_none()
    }
}

impl StateLaw {
    /// Whether keys are compressed: then values are part of them, and there is one type for both.
    pub fn is_compressed(&self) -> bool {
        self.blocks().unwrap_or_default().iter().any(BlockState::is_compressed)
    }

    /// Which blocks attend to a sliding window, where the law is known; empty if none does.
    pub fn windows(&self) -> Option<&[bool]> {
        if let Self::Known { windowed, .. } = self { Some(windowed) } else { None }
    }

    /// What each block keeps, where the law is known.
    pub fn blocks(&self) -> Option<&[BlockState]> {
        if let Self::Known { blocks, .. } = self { Some(blocks) } else { None }
    }
}
