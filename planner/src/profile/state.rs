//! The tensors that a model keeps in a context.

/// The tensors that a model's blocks keep in a context.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvLayout {
    /// The layout of every block is known.
    Known {
        /// The state of each block.
        blocks: Vec<BlockState>,
        /// The number of elements of the widest block's values, whether or not that block has a cache
        /// (`n_embd_v_gqa_max`). Without flash attention all caches have this width (llama-kv-cache.cpp, the
        /// constructor).
        widest_v: u32,
        /// For each block, including blocks without a cache of their own, whether it attends to a sliding window. Empty
        /// if no block does.
        windowed: Vec<bool>,
    },
    /// The layout of this architecture is unknown: only a probe can measure the context's memory.
    Unknown {
        /// The reason.
        reason: String,
    },
}

/// The tensors that one block keeps. Most blocks that predict further tokens keep none (llama-model.cpp,
/// `create_memory`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockState {
    /// The tensors.
    pub kept: Vec<KeptTensor>,
    /// An earlier block whose compressed keys this block reads. If it is on another device than the earlier block, that
    /// device gets one copy of the keys for all its readers (llama-kv-cache-dsv4.cpp, the constructor).
    pub reads: Option<usize>,
}

/// A tensor that a block keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptTensor {
    /// The content.
    pub part: Part,
    /// The number of elements of a row.
    pub n: u32,
    /// The number of rows.
    pub rows: Rows,
    /// The matrix by which the cache rotates these rows.
    pub rotation: Rotation,
}

/// The square matrix of 32-bit floats by which a cache rotates the rows of a tensor. Each tensor has its own matrix, on
/// the device of the cache (llama-kv-cache.cpp, `init_rotation`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rotation {
    /// No matrix.
    #[default]
    Never,
    /// A matrix of this width, if the type of the cache is quantised.
    IfQuantised(u32),
    /// A matrix of this width with every type.
    Always(u32),
}

/// The content of a tensor in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Keys (`n_embd_k_gqa`, llama-hparams.cpp). Without values they are compressed keys, shared by all heads:
    /// multi-head latent attention (llama-kv-cache.cpp, the constructor).
    Keys,
    /// Values (`n_embd_v_gqa`).
    Values,
    /// Keys that select which keys to attend to (`llama_kv_cache_dsa`, `llama_kv_cache_msa`,
    /// `llama_memory_hybrid_idx`), or that represent several tokens each (`llama_kv_cache_dsv4`).
    IndexKeys,
    /// Values that are stored with index keys, although nothing reads these values.
    IndexValues,
    /// A sequence's state in 32-bit floats: the past of a convolution or token shift (`n_embd_r`), a recurrent state
    /// (`n_embd_s`), or tokens that are still to be compressed.
    State,
}

/// The number of rows of a tensor in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rows {
    /// One row for each token.
    Tokens,
    /// One row for each token of the window (`n_swa`, `llama_kv_cache_iswa`), or, with `swa_full`, for each token of
    /// the context.
    Window(u32),
    /// One row for each token of a window, separately for each sequence (llama-kv-cache-dsv4.cpp, the constructor).
    OwnWindow(u32),
    /// One row for each group of this many tokens, separately for each sequence.
    Groups(u32),
    /// One row for each sequence, and one more for each token of rollback (`llama_memory_recurrent`).
    States,
    /// One row for each sequence, and one more for each token of rollback. The rows contain tokens that are still to be
    /// compressed (llama-kv-cache-dsv4.cpp, `llama_dsv4_comp_state`).
    Pending,
}

impl BlockState {
    pub(super) fn new(kept: impl IntoIterator<Item = (Part, u32, Rows)>) -> Self {
        let tensor = |(part, n, rows)| KeptTensor { part, n, rows, rotation: Rotation::Never };
        Self { kept: kept.into_iter().map(tensor).collect(), reads: None }
    }

    /// Keys and values.
    pub(super) fn attended((k, v): (u32, u32), rows: Rows) -> Self {
        Self::new([(Part::Keys, k, rows), (Part::Values, v, rows)])
    }

    /// Keys without values.
    pub(super) fn compressed(k: u32, rows: Rows) -> Self {
        Self::new([(Part::Keys, k, rows)])
    }

    /// Keys and index keys of every token, each kind with its values if it has any.
    pub(super) fn indexed(k: u32, v: Option<u32>, index_k: u32, index_v: Option<u32>) -> Self {
        let parts =
            [(Part::Keys, Some(k)), (Part::Values, v), (Part::IndexKeys, Some(index_k)), (Part::IndexValues, index_v)];
        Self::new(parts.into_iter().filter_map(|(part, n)| Some((part, n?, Rows::Tokens))))
    }

    /// The convolution's past and the recurrent state of each sequence.
    pub(super) fn recurrent(r: u32, s: u32) -> Self {
        Self::new([r, s].map(|n| (Part::State, n, Rows::States)))
    }

    /// This state, to which the tensors of another state are added.
    pub(super) fn and(mut self, other: &Self) -> Self {
        self.kept.extend(&other.kept);
        self
    }

    /// The first tensor with this content.
    pub fn part(&self, part: Part) -> Option<&KeptTensor> {
        self.kept.iter().find(|kept| kept.part == part)
    }

    /// The number of elements in a sequence's recurrent state and in the past of its convolution. The sequence's length
    /// does not change this number. 0 without such a state.
    pub fn recurrent_elements(&self) -> u64 {
        self.kept.iter().filter(|kept| kept.rows == Rows::States).map(|kept| u64::from(kept.n)).sum()
    }

    /// Whether keys are compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        self.part(Part::Keys).is_some() && self.part(Part::Values).is_none()
    }
}

impl KvLayout {
    /// Whether keys are compressed. If they are, values are a part of the keys and have the same type.
    pub fn is_compressed(&self) -> bool {
        self.blocks().unwrap_or_default().iter().any(BlockState::is_compressed)
    }

    /// For each block, whether it attends to a sliding window; empty if none does, `None` if the layout is unknown.
    pub fn windows(&self) -> Option<&[bool]> {
        if let Self::Known { windowed, .. } = self { Some(windowed) } else { None }
    }

    /// The state of each block, if the layout is known.
    pub fn blocks(&self) -> Option<&[BlockState]> {
        if let Self::Known { blocks, .. } = self { Some(blocks) } else { None }
    }
}
