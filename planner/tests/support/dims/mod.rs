//! The sizes of models that people run, as their headers state them: stated here once, for tests and benchmarks alike.

/// The sizes that most architectures share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    pub(crate) n_layer: u64,
    pub(crate) n_embd: u64,
    pub(crate) n_ff: u64,
    pub(crate) n_head: u64,
    pub(crate) n_head_kv: u64,
    pub(crate) head_dim: u64,
    pub(crate) n_vocab: u64,
}

impl Dims {
    /// Elements of all queries of a token.
    pub(crate) fn q(&self) -> u64 {
        self.n_head * self.head_dim
    }

    /// Elements of all keys of a token.
    pub(crate) fn kv(&self) -> u64 {
        self.n_head_kv * self.head_dim
    }
}

/// The experts of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) n: u64,
    /// How many a token uses.
    pub(crate) used: u64,
    /// The width of each.
    pub(crate) ff: u64,
}

/// A mixture of experts; `n_ff` of its sizes is the width of a block without experts, whether there is one or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixture {
    pub(crate) dims: Dims,
    pub(crate) experts: Experts,
}

/// Llama 3.1.
pub(crate) const LLAMA_8B: Dims = Dims {
    n_layer: 32,
    n_embd: 4096,
    n_ff: 14336,
    n_head: 32,
    n_head_kv: 8,
    head_dim: 128,
    n_vocab: 128_256,
};

/// Llama 3.3.
pub(crate) const LLAMA_70B: Dims = Dims {
    n_layer: 80,
    n_embd: 8192,
    n_ff: 28672,
    n_head: 64,
    ..LLAMA_8B
};

/// Llama 3.2.
pub(crate) const LLAMA_1B: Dims = Dims {
    n_layer: 16,
    n_embd: 2048,
    n_ff: 8192,
    head_dim: 64,
    ..LLAMA_8B
};

pub(crate) const MIXTRAL_8X7B: Mixture = Mixture {
    dims: Dims {
        n_vocab: 32000,
        ..LLAMA_8B
    },
    experts: Experts {
        n: 8,
        used: 2,
        ff: 14336,
    },
};

/// Qwen2.5 and its Coder.
pub(crate) const QWEN_14B: Dims = Dims {
    n_layer: 48,
    n_embd: 5120,
    n_ff: 13824,
    n_head: 40,
    n_vocab: 152_064,
    ..LLAMA_8B
};

pub(crate) const QWEN3_8B: Dims = Dims {
    n_layer: 36,
    n_ff: 12288,
    n_vocab: 151_936,
    ..LLAMA_8B
};

pub(crate) const QWEN3_30B_A3B: Mixture = Mixture {
    dims: Dims {
        n_layer: 48,
        n_embd: 2048,
        n_ff: 6144,
        n_head_kv: 4,
        n_vocab: 151_936,
        ..LLAMA_8B
    },
    experts: Experts {
        n: 128,
        used: 8,
        ff: 768,
    },
};

/// Mistral Small 3.
pub(crate) const MISTRAL_24B: Dims = Dims {
    n_layer: 40,
    n_embd: 5120,
    n_ff: 32768,
    n_vocab: 131_072,
    ..LLAMA_8B
};

pub(crate) const GEMMA3_27B: Dims = Dims {
    n_layer: 62,
    n_embd: 5376,
    n_ff: 21504,
    n_head_kv: 16,
    n_vocab: 262_208,
    ..LLAMA_8B
};

pub(crate) const GPT_OSS_20B: Mixture = Mixture {
    dims: Dims {
        n_layer: 24,
        n_embd: 2880,
        n_ff: 2880,
        n_head: 64,
        n_head_kv: 8,
        head_dim: 64,
        n_vocab: 201_088,
    },
    experts: Experts {
        n: 32,
        used: 4,
        ff: 2880,
    },
};

pub(crate) const GPT_OSS_120B: Mixture = Mixture {
    dims: Dims {
        n_layer: 36,
        ..GPT_OSS_20B.dims
    },
    experts: Experts {
        n: 128,
        ..GPT_OSS_20B.experts
    },
};

/// 671 billion parameters; of its heads one common key is kept, so it states one.
pub(crate) const DEEPSEEK_V3: Mixture = Mixture {
    dims: Dims {
        n_layer: 61,
        n_embd: 7168,
        n_ff: 18432,
        n_head: 128,
        n_head_kv: 1,
        n_vocab: 129_280,
        ..LLAMA_8B
    },
    experts: Experts {
        n: 256,
        used: 8,
        ff: 2048,
    },
};
