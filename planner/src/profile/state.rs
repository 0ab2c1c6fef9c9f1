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

/// What one block keeps of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockState {
    /// Nothing: a next-token-prediction block (llama-model.cpp, `create_memory`).
    None,
    /// The keys and values of every token (`llama_kv_cache`).
    Full(LayerState),
    /// The keys and values of the last tokens (`llama_kv_cache_iswa`), of all where the context asks for
    /// it (`swa_full`).
    Windowed {
        /// What is kept of a token.
        state: LayerState,
        /// Tokens of the window (`n_swa`).
        window: u32,
    },
    /// One compressed key of every token for all heads, and no values: multi-head latent attention (llama-kv-cache.cpp,
    /// the constructor).
    Compressed {
        /// Elements of the key.
        k: u32,
    },
    /// The same of the last tokens only (`llama_kv_cache_dsa_iswa`).
    CompressedWindowed {
        /// Elements of the key.
        k: u32,
        /// Tokens of the window (`n_swa`).
        window: u32,
    },
    /// The keys of every token, and shorter keys that tell which of them to attend to (`llama_kv_cache_dsa`,
    /// `llama_kv_cache_msa`, `llama_memory_hybrid_idx`).
    Indexed(IndexedState),
    /// The keys of a window, and keys that stand for several tokens each before it (`llama_kv_cache_dsv4`).
    Distilled(DistilledState),
    /// A state of each sequence, whatever its length (`llama_memory_recurrent`).
    Recurrent(RecurrentState),
    /// Both, side by side (`llama_memory_hybrid`).
    FullAndRecurrent(LayerState, RecurrentState),
}

/// What one block keeps of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerState {
    /// Elements of its keys (`n_embd_k_gqa`, llama-hparams.cpp).
    pub k: u32,
    /// Elements of its values (`n_embd_v_gqa`).
    pub v: u32,
}

/// What one block with an indexer keeps of one token. Without values where keys are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexedState {
    /// Elements of its keys.
    pub k: u32,
    /// Elements of its values.
    pub v: Option<u32>,
    /// Elements of the indexer's keys.
    pub index_k: u32,
    /// Elements of the indexer's values, which nothing reads.
    pub index_v: Option<u32>,
}

/// What one block keeps that distils the tokens before its window (`DeepSeek` V4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DistilledState {
    /// Elements of a token's key.
    pub k: u32,
    /// Tokens of the window (`n_swa`).
    pub window: u32,
    /// How the tokens before it are kept, if they are.
    pub distilled: Option<Distilled>,
}

/// How tokens before a window are kept (llama-kv-cache-dsv4.cpp, the constructor).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Distilled {
    /// Tokens that one key stands for.
    pub ratio: u32,
    /// Elements of the indexer's keys, where there is an indexer.
    pub index_k: Option<u32>,
    /// Elements of what is not distilled yet, twice in 32-bit floats for each sequence; 0 in a block that
    /// predicts further tokens.
    pub pending: u32,
    /// The same of the indexer.
    pub index_pending: u32,
}

/// What one block keeps of one sequence, in 32-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecurrentState {
    /// Elements of the convolution's or token shift's past (`n_embd_r`).
    pub r: u32,
    /// Elements of the state (`n_embd_s`).
    pub s: u32,
}

impl StateLaw {
    /// Whether keys are compressed: then values are part of them, and there is one type for both.
    pub fn is_compressed(&self) -> bool {
        let compressed = |block: &BlockState| match block {
            BlockState::Compressed { .. } | BlockState::CompressedWindowed { .. } | BlockState::Distilled(_) => true,
            BlockState::Indexed(state) => state.v.is_none(),
            _ => false,
        };
        self.blocks().unwrap_or_default().iter().any(compressed)
    }

    /// Which blocks attend to a sliding window, where the law is known; empty if none does.
    pub fn windows(&self) -> Option<&[bool]> {
        match self {
            Self::Known { windowed, .. } => Some(windowed),
            Self::Unknown { .. } => None,
        }
    }

    /// What each block keeps, where the law is known.
    pub fn blocks(&self) -> Option<&[BlockState]> {
        match self {
            Self::Known { blocks, .. } => Some(blocks),
            Self::Unknown { .. } => None,
        }
    }
}
