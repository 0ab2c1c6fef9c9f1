//! The sizes of well-known models, as their headers state them, for tests and benchmarks.

/// The sizes that most architectures share.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    pub n_layer: u64,
    pub n_embd: u64,
    pub n_ff: u64,
    pub n_head: u64,
    pub n_head_kv: u64,
    pub head_dim: u64,
    pub n_vocab: u64,
}

impl Dims {
    /// Takes the sizes in the order of the fields.
    pub const fn new(sizes: [u64; 7]) -> Self {
        let [n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab] = sizes;
        Self { n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab }
    }

    /// The number of elements in all queries of a token.
    pub fn q(&self) -> u64 {
        self.n_head * self.head_dim
    }

    /// The number of elements in all keys of a token.
    pub fn kv(&self) -> u64 {
        self.n_head_kv * self.head_dim
    }
}

/// The experts of a block.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub n: u64,
    /// The number of experts that each token uses.
    pub used: u64,
    /// The width of each expert.
    pub ff: u64,
}

/// A mixture of experts. `n_ff` in `dims` is the width of blocks without experts, even if the model has no such blocks.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    pub dims: Dims,
    pub experts: Experts,
}

impl Mixture {
    const fn new(sizes: [u64; 7], [n, used, ff]: [u64; 3]) -> Self {
        Self { dims: Dims::new(sizes), experts: Experts { n, used, ff } }
    }
}

/// Llama 3.1.
pub const LLAMA_8B: Dims = Dims::new([32, 4096, 14336, 32, 8, 128, 128_256]);
/// Llama 3.3.
pub const LLAMA_70B: Dims = Dims::new([80, 8192, 28672, 64, 8, 128, 128_256]);
/// Llama 3.2.
pub const LLAMA_1B: Dims = Dims::new([16, 2048, 8192, 32, 8, 64, 128_256]);
/// Qwen2.5 and its Coder.
pub const QWEN_14B: Dims = Dims::new([48, 5120, 13824, 40, 8, 128, 152_064]);
pub const QWEN3_8B: Dims = Dims::new([36, 4096, 12288, 32, 8, 128, 151_936]);
pub const GEMMA3_27B: Dims = Dims::new([62, 5376, 21504, 32, 16, 128, 262_208]);
pub const QWEN3_30B_A3B: Mixture = Mixture::new([48, 2048, 6144, 32, 4, 128, 151_936], [128, 8, 768]);
