//! The KV layout of each architecture.
//!
//! `llama_model::create_memory` (llama-model.cpp) creates a plain `llama_kv_cache` for an architecture, with four
//! exceptions: the function's `switch` names the architecture, the architecture is recurrent or hybrid (llama-arch.cpp,
//! `llm_arch_is_recurrent`, `llm_arch_is_hybrid`), the architecture's `load_arch_hparams` sets a `swa_type`, or the
//! model reuses layers. The list below was made by reading `create_memory` and the `load_arch_hparams` of each file in
//! models/. `tests/load/architectures.rs` compares every entry with llama.cpp. An architecture without such a
//! comparison is listed as unknown.

/// The rule by which an architecture's header determines the state of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayoutRule {
    /// No block keeps anything: each text is computed in one batch.
    Nothing,
    /// Every block keeps every token.
    Full,
    /// Like `Full`, including the last layer, which llama.cpp counts as a prediction layer.
    Routed,
    /// As `Full`, with one cache for each encoding block. The decoding blocks may not outnumber the encoding blocks
    /// (models/t5.cpp, `load_arch_hparams`).
    EncoderDecoder,
    /// Some blocks attend to a window only.
    Windowed(Window),
    /// As `Windowed`, but if keys are compressed, every block has a window. The layout of models with hyper-connections
    /// is unknown (models/dflash.cpp, `load_arch_hparams`).
    Drafting(Window),
    /// Windowed with 64 blocks, otherwise full (models/exaone4.cpp, `load_arch_hparams`).
    WindowedAt64Blocks(Window),
    /// Windowed, and the blocks from this number on use the caches of earlier blocks (`n_layer_kv_from_start`). If the
    /// number is `None`, the header states how many of the last blocks do so.
    Reused(Window, Option<u32>),
    /// Full, unless the header states the widths of compressed keys (models/deepseek2.cpp, `load_arch_hparams`).
    Compressible,
    /// Each block has a cache; some also have index keys that select among the cached keys.
    Indexed(Indexer),
    /// Every block keeps a recurrent state.
    Recurrent(Mixer),
    /// Some blocks keep a recurrent state and the others keep tokens, or every block keeps both.
    Hybrid(Hybrid),
}

/// The source of the sliding window in `load_arch_hparams`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// The meaning of a header that states no window.
    pub(super) unstated: Unstated,
    /// With `Some`, the window has this many tokens, whatever number the header states. A 0 in the header still means
    /// no window.
    pub(super) fixed: Option<u32>,
    /// Which blocks are windowed.
    pub(super) pattern: Pattern,
}

/// The meaning of a header without `attention.sliding_window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unstated {
    /// A window of this many tokens.
    Tokens(u32),
    /// There is no window. A 0 in the header means the same.
    NoWindow,
    /// llama.cpp rejects the file.
    Refused,
    /// llama.cpp aborts the process, even if the header states 0 tokens: its graph requires windowed caches
    /// (models/afmoe.cpp, `graph::graph`).
    Fatal,
}

/// The windowed blocks, unless the header lists them (`load_swa_pattern`, llama-model.cpp).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// In each group of this many blocks, the last block has no window.
    LastIsFull(u32),
    /// In each group of this many blocks, the first block has no window.
    FirstIsFull(u32),
    /// The header must list them.
    Listed,
}

/// The kind of state of a recurrent block (llama-hparams.cpp, `n_embd_r`, `n_embd_s`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mixer {
    /// A state space with one group. Its convolution covers only the inner width.
    Mamba,
    /// A state space with several groups; or the delta rule, whose sizes have the same keys in the header.
    Mamba2,
    /// Receptance-weighted keys and values.
    Rwkv,
    /// Short convolutions without a state.
    ShortConvolution,
    /// The delta rule with a gate per channel (Kimi).
    Kda,
    /// Linear attention without a convolution (`MiniMax`).
    Lightning,
}

/// The recurrent blocks of a hybrid model, and the state of its other blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hybrid {
    pub(super) mixer: Mixer,
    pub(super) recurring: Recurring,
    pub(super) attention: Attention,
    /// The state of blocks that predict further tokens.
    pub(super) predicting: Predicting,
}

/// The recurrent blocks of a hybrid model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recurring {
    /// Blocks without key heads.
    WithoutKeyHeads,
    /// Blocks without key heads and without a feed-forward width. A block with only a feed-forward width keeps nothing
    /// (models/nemotron-h.cpp, `load_arch_hparams`).
    WithoutKeyHeadsAndForward,
    /// All blocks, which also attend (models/falcon-h1.cpp, `load_arch_hparams`).
    Every,
    /// All but the last of each group of this many blocks, unless the header lists them (models/qwen3next.cpp,
    /// `load_arch_hparams`).
    AllButEvery(u32),
}

/// The state of a hybrid model's attention blocks. They keep every token, with the exceptions that these fields
/// describe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attention {
    /// Whether keys are compressed.
    pub(super) compressed: bool,
    /// The blocks that attend to a window.
    pub(super) windowed: Windowed,
    /// If blocks have an index: the number of vectors for each token in an index with pooled keys (the key, the pooled
    /// key and, in some architectures, a gate).
    pub(super) indexed: Option<u32>,
}

/// The blocks of a hybrid model that attend to a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Windowed {
    /// No block attends to a window.
    #[default]
    Never,
    /// All blocks that attend, if the header states a window (models/lfm2.cpp, `load_arch_hparams`).
    AllIfStated,
    /// The blocks that the header lists (models/lfm3.cpp, `load_arch_hparams`).
    Listed,
}

/// The state of a hybrid model's blocks that predict further tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Predicting {
    /// Unknown: none of the loaders that we have read has such blocks.
    Unread,
    /// They keep nothing, because llama.cpp's filters exclude them.
    Nothing,
    /// They keep the same as other blocks, because llama.cpp's filters only test whether a block is recurrent.
    AsOthers,
}

/// The blocks with an index, and the kind of cache that they have in addition to the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Indexer {
    /// Every block has an index, in addition to compressed keys.
    Every,
    /// The blocks that the header lists have an index, in addition to compressed keys (models/glm-dsa.cpp,
    /// `load_arch_hparams`). Without a list, these are the blocks of GLM 5.2 if the training context has at least this
    /// many tokens, otherwise all blocks.
    Glm(u32),
    /// The blocks that the header lists have an index, in addition to compressed keys, if the header states how many
    /// keys to select.
    ListedIfChoosing,
    /// The blocks that the header lists have an index; the other blocks attend to a window. All keys are compressed.
    ListedBesideWindows,
    /// The blocks that are not dense have an index, in addition to keys and values.
    AfterDense,
    /// The blocks that the header lists (all blocks if there is no list) have an index, in addition to compressed keys.
    /// Other blocks may use these keys again (models/mistral-large4.cpp, `load_arch_hparams`).
    ListedAndReused,
    /// Every block keeps a window, and compressed caches of the tokens before it.
    Distilled,
    /// Like `Distilled`, but a block may use the compressed cache of an earlier block (models/deepseek41.cpp,
    /// `load_arch_hparams`).
    DistilledAndReused,
}

/// The layout rule of this architecture, or `None` if we have not read its code.
pub(super) fn layout_rule(architecture: &str) -> Option<LayoutRule> {
    use Mixer::{Kda, Lightning, Mamba, Mamba2, Rwkv, ShortConvolution};
    use Pattern::{FirstIsFull, LastIsFull, Listed};
    use Predicting::{AsOthers, Nothing, Unread};
    use Recurring::{AllButEvery, Every, WithoutKeyHeads, WithoutKeyHeadsAndForward};
    use Unstated::{Fatal, NoWindow, Refused, Tokens};
    let full = Attention::default();
    let compressed = Attention { compressed: true, ..full };
    let window = |unstated, pattern| Window { unstated, fixed: None, pattern };
    let fixed = |tokens, unstated, pattern| Window { fixed: Some(tokens), ..window(unstated, pattern) };
    let windowed = |unstated, pattern| LayoutRule::Windowed(window(unstated, pattern));
    let hybrid = |mixer, recurring, attention, predicting| {
        LayoutRule::Hybrid(Hybrid { mixer, recurring, attention, predicting })
    };
    Some(match architecture {
        // phi3 reads a sliding window and then disables it (models/phi3.cpp, `load_arch_hparams`); phimoe, llama, qwen2
        // and mistral3 never read one.
        "llama" | "llama-embed" | "mistral3" | "qwen" | "qwen2" | "qwen2moe" | "qwen2vl" | "qwen3" | "qwen3moe"
        | "qwen3vl" | "qwen3vlmoe" | "qwen3tts" | "phi2" | "phi3" | "phimoe" | "gemma" | "granite" | "granitemoe"
        | "smollm3" | "arcee" | "apertus" | "seed_oss" | "ernie4_5" | "ernie4_5-moe" | "paddleocr" | "hunyuan-moe"
        | "hunyuan-dense" | "hunyuan_vl" | "dots1" | "bailingmoe" | "bailingmoe2" | "glm4" | "glm4moe" | "hy_v3"
        | "chatglm" | "cogvlm" | "command-r" | "dbrx" | "arctic" | "grok" | "deepseek" | "deepseek2-ocr"
        | "minicpm" | "minicpm3" | "minimax-m2" | "olmo" | "olmoe" | "internlm2" | "stablelm" | "starcoder"
        | "starcoder2" | "falcon" | "gptneox" | "gpt2" | "mpt" | "bloom" | "baichuan" | "xverse" | "orion"
        | "plamo" | "plm" | "codeshell" | "refact" | "nemotron" | "exaone" | "jais" | "jais2" | "openelm"
        | "bitnet" | "deci" | "pangu-embedded" | "maincoder" | "grovemoe" | "chameleon" | "hrm_text" | "talkie"
        | "pockettts" | "t5encoder" | "nanbeige" | "k2-horizon" | "sensenova_u1" | "vllm-decision2" => LayoutRule::Full,
        "graniteswitch" => LayoutRule::Routed,
        "t5" => LayoutRule::EncoderDecoder,
        "bert" | "jina-bert-v2" | "jina-bert-v3" | "nomic-bert" | "nomic-bert-moe" | "neo-bert" | "eurobert"
        | "modern-bert" | "gemma-embedding" | "gemma-embedding2" | "wavtokenizer-dec" | "dream" | "llada"
        | "llada-moe" | "rnd1" | "clef" => LayoutRule::Nothing,
        "olmo2" | "mellum" => windowed(NoWindow, LastIsFull(4)),
        "afmoe" => windowed(Fatal, LastIsFull(4)),
        "gemma3" => windowed(NoWindow, LastIsFull(6)),
        "plamo3" => windowed(NoWindow, LastIsFull(8)),
        "laguna" => windowed(NoWindow, FirstIsFull(4)),
        "gemma2" => windowed(Tokens(4096), LastIsFull(2)),
        "gpt-oss" => windowed(Refused, LastIsFull(2)),
        "cohere2" | "muse-glimmer" | "exaone-moe" | "limite" => windowed(Refused, LastIsFull(4)),
        "cohere2moe" => windowed(Refused, FirstIsFull(4)),
        "mimo2" | "step35" | "maple" | "spark2_5" | "granite_swa" | "beam" | "flint" | "kolibri1" | "maion-coder"
        | "muse-spark" => windowed(Refused, Listed),
        // The window is fixed unless the header states 0.
        "llama4" => LayoutRule::Windowed(fixed(8192, Tokens(8192), LastIsFull(4))),
        "smallthinker" => LayoutRule::Windowed(fixed(4096, NoWindow, FirstIsFull(4))),
        "dflash" => LayoutRule::Drafting(window(NoWindow, Listed)),
        "exaone4" => LayoutRule::WindowedAt64Blocks(window(Tokens(4096), LastIsFull(4))),
        "gemma3n" => LayoutRule::Reused(window(Refused, LastIsFull(5)), Some(20)),
        "gemma4" => LayoutRule::Reused(window(Refused, Listed), None),
        "deepseek2" | "mistral4" => LayoutRule::Compressible,
        "deepseek32" => LayoutRule::Indexed(Indexer::Every),
        "glm-dsa" => LayoutRule::Indexed(Indexer::Glm(1_048_576)),
        "hy_v4" => LayoutRule::Indexed(Indexer::ListedIfChoosing),
        "dots3note" => LayoutRule::Indexed(Indexer::ListedBesideWindows),
        "minimax-m3" => LayoutRule::Indexed(Indexer::AfterDense),
        "mistral-large4" => LayoutRule::Indexed(Indexer::ListedAndReused),
        "deepseek4" => LayoutRule::Indexed(Indexer::Distilled),
        "deepseek41" => LayoutRule::Indexed(Indexer::DistilledAndReused),
        "mamba" => LayoutRule::Recurrent(Mamba),
        "mamba2" => LayoutRule::Recurrent(Mamba2),
        "rwkv6" | "rwkv6qwen2" | "rwkv7" | "arwkv7" => LayoutRule::Recurrent(Rwkv),
        "jamba" => hybrid(Mamba, WithoutKeyHeads, full, Unread),
        "plamo2" | "granitehybrid" => hybrid(Mamba2, WithoutKeyHeads, full, Unread),
        "lfm2" => {
            hybrid(ShortConvolution, WithoutKeyHeads, Attention { windowed: Windowed::AllIfStated, ..full }, Unread)
        }
        "lfm3" => hybrid(ShortConvolution, WithoutKeyHeads, Attention { windowed: Windowed::Listed, ..full }, Unread),
        "lfm2moe" => hybrid(ShortConvolution, WithoutKeyHeads, full, Unread),
        "kimi-linear" | "kimi-k3" => hybrid(Kda, WithoutKeyHeads, compressed, Unread),
        "bailingmoe3" => hybrid(Kda, WithoutKeyHeads, compressed, AsOthers),
        // The index has three vectors for each token: a key, a gate and the pooled key.
        "glm5-next" => hybrid(Kda, WithoutKeyHeads, Attention { indexed: Some(3), ..compressed }, Nothing),
        "nemotron_h" | "nemotron_h_moe" => hybrid(Mamba2, WithoutKeyHeadsAndForward, full, AsOthers),
        "falcon-h1" => hybrid(Mamba2, Every, full, Unread),
        "qwen3next" | "qwen35" | "qwen35moe" => hybrid(Mamba2, AllButEvery(4), full, Nothing),
        // The index has two vectors for each token: a key and the pooled key.
        "qwen4exp" => hybrid(Mamba2, AllButEvery(4), Attention { indexed: Some(2), ..full }, Nothing),
        "minimax-01" => hybrid(Lightning, AllButEvery(8), full, Unread),
        _ => return None,
    })
}

/// The reason why an architecture is unknown, for the error message.
pub(super) fn why_unknown(architecture: &str) -> &'static str {
    match architecture {
        "eagle3" | "gemma4-assistant" => {
            "drafts for another model, without which it has no context (llama-context.cpp, the constructor)"
        }
        "clip" | "gptj" => "is named in llama.cpp, which cannot load it",
        _ => "is an unknown architecture",
    }
}
