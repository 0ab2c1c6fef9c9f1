//! How each architecture keeps its context.
//!
//! `llama_model::create_memory` (llama-model.cpp) gives a plain `llama_kv_cache` to every architecture that is not
//! named in its switch, is neither recurrent nor hybrid (llama-arch.cpp, `llm_arch_is_recurrent`,
//! `llm_arch_is_hybrid`), sets no `swa_type` in its `load_arch_hparams`, and reuses no layer. This list was made by
//! reading that function and `load_arch_hparams` of each file in models/, and `tests/load/architectures.rs` holds every
//! entry against llama.cpp; what it has not seen equal is unknown, which is an answer too.

/// How an architecture keeps its context, and what the header decides of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Law {
    /// No block keeps anything: a text is computed at once.
    Nothing,
    /// Every block keeps every token, whatever the header says.
    Full,
    /// As `Full`, the last layer included, which llama.cpp counts among those that predict.
    Routed,
    /// As `Full`, one cache for each block that encodes; no more may decode (models/t5.cpp, `load_arch_hparams`).
    EncoderDecoder,
    /// Some blocks attend to a window only.
    Windowed(Window),
    /// As `Windowed`, unless it is made of another kind of block (models/dflash.cpp, `load_arch_hparams`).
    Drafting(Window),
    /// Windowed with 64 blocks, else full (models/exaone4.cpp, `load_arch_hparams`).
    WindowedAt64Blocks(Window),
    /// Windowed, and the blocks from this one on use the caches of earlier ones (`n_layer_kv_from_start`); without a
    /// number it is so many of the last blocks as the header says.
    Reused(Window, Option<u32>),
    /// Full unless it states the widths of compressed keys (models/deepseek2.cpp, `load_arch_hparams`).
    Compressible,
    /// Keys to choose keys by, beside the cache.
    Indexed(Indexer),
    /// Every block keeps a state.
    Recurrent(Mixer),
    /// Some blocks keep a state, the others tokens (or all of them both).
    Hybrid(Hybrid),
}

/// Where `load_arch_hparams` takes its sliding window from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Its tokens where the header does not say.
    pub(super) unstated: Unstated,
    /// Its tokens where the header says any others than 0, which then means no window.
    pub(super) fixed: Option<u32>,
    /// Which blocks are windowed.
    pub(super) pattern: Pattern,
}

/// What a header without `attention.sliding_window` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unstated {
    /// A window of so many tokens.
    Tokens(u32),
    /// No window; neither is there one where the header states 0 tokens.
    NoWindow,
    /// llama.cpp refuses the file.
    Refused,
    /// llama.cpp ends the process, also where the header states 0 tokens: its graph knows only windowed caches
    /// (models/afmoe.cpp, `graph::graph`).
    Fatal,
}

/// Which blocks are windowed, unless the header says otherwise (`load_swa_pattern`, llama-model.cpp).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Of so many blocks the last is without a window.
    LastIsFull(u32),
    /// Of so many blocks the first is without a window.
    FirstIsFull(u32),
    /// The header must list them.
    Listed,
}

/// What a recurrent block keeps (llama-hparams.cpp, `n_embd_r`, `n_embd_s`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mixer {
    /// State space of one group: the convolution covers the inner width alone.
    Mamba,
    /// State space of several groups, or the delta rule, whose sizes have the same names.
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

/// Which blocks are recurrent, and what the others keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hybrid {
    pub(super) mixer: Mixer,
    pub(super) recurring: Recurring,
    pub(super) attention: Attention,
    /// What the blocks keep that predict further tokens.
    pub(super) predicting: Predicting,
}

/// Which blocks of a hybrid are recurrent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recurring {
    /// Those without key heads.
    WithoutKeyHeads,
    /// Those without key heads and without a feed-forward width; what has one keeps nothing (models/nemotron-h.cpp,
    /// `load_arch_hparams`).
    WithoutKeyHeadsAndForward,
    /// All of them, and all of them attend too (models/falcon-h1.cpp, `load_arch_hparams`).
    Every,
    /// All but the last of every so many, unless the header says otherwise (models/qwen3next.cpp, `load_arch_hparams`).
    AllButEvery(u32),
}

/// What the other blocks of a hybrid keep: every token, unless it is said here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attention {
    /// Keys are compressed.
    pub(super) compressed: bool,
    /// All have a window, if the header states one (models/lfm2.cpp, `load_arch_hparams`).
    pub(super) windowed: bool,
    /// Beside the keys, the rows of an indexer that pools so many together.
    pub(super) indexed: Option<u32>,
}

/// What a hybrid's block keeps that predicts further tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Predicting {
    /// No loader that we have read knows such blocks there.
    Unread,
    /// Nothing: the filters stop before it.
    Nothing,
    /// What any block does: the filters ask only whether it is recurrent.
    AsOthers,
}

/// Which blocks have an indexer, and beside what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Indexer {
    /// Every block; compressed keys.
    Every,
    /// The blocks that the header lists, or every block, or from so long a context on those of GLM 5.2; compressed keys
    /// (models/glm-dsa.cpp, `load_arch_hparams`).
    Glm(u32),
    /// The blocks that the header lists, if it states how many keys to choose; compressed keys.
    ListedIfChoosing,
    /// The blocks that the header lists; the others attend to a window; compressed keys.
    ListedBesideWindows,
    /// The blocks that are not dense; keys and values.
    AfterDense,
    /// A window, and compressed caches of what lies before it.
    Distilled,
}

/// How this architecture keeps its context, or `None` where we have not read it.
pub(super) fn law(architecture: &str) -> Option<Law> {
    use Mixer::{Kda, Lightning, Mamba, Mamba2, Rwkv, ShortConvolution};
    use Pattern::{FirstIsFull, LastIsFull, Listed};
    use Predicting::{AsOthers, Nothing, Unread};
    use Recurring::{AllButEvery, Every, WithoutKeyHeads, WithoutKeyHeadsAndForward};
    use Unstated::{Fatal, NoWindow, Refused, Tokens};
    let full = Attention::default();
    let compressed = Attention { compressed: true, ..full };
    let window = |unstated, pattern| Window { unstated, fixed: None, pattern };
    let fixed = |tokens, unstated, pattern| Window { fixed: Some(tokens), ..window(unstated, pattern) };
    let windowed = |unstated, pattern| Law::Windowed(window(unstated, pattern));
    let hybrid =
        |mixer, recurring, attention, predicting| Law::Hybrid(Hybrid { mixer, recurring, attention, predicting });
    Some(match architecture {
        // phi3 reads a sliding window and then disables it (models/phi3.cpp, `load_arch_hparams`); phimoe, llama, qwen2
        // and mistral3 never read it.
        "llama" | "llama-embed" | "mistral3" | "qwen" | "qwen2" | "qwen2moe" | "qwen2vl" | "qwen3" | "qwen3moe"
        | "qwen3vl" | "qwen3vlmoe" | "qwen3tts" | "phi2" | "phi3" | "phimoe" | "gemma" | "granite" | "granitemoe"
        | "smollm3" | "arcee" | "apertus" | "seed_oss" | "ernie4_5" | "ernie4_5-moe" | "paddleocr" | "hunyuan-moe"
        | "hunyuan-dense" | "hunyuan_vl" | "dots1" | "bailingmoe" | "bailingmoe2" | "glm4" | "glm4moe" | "hy_v3"
        | "chatglm" | "cogvlm" | "command-r" | "dbrx" | "arctic" | "grok" | "deepseek" | "deepseek2-ocr"
        | "minicpm" | "minicpm3" | "minimax-m2" | "olmo" | "olmoe" | "internlm2" | "stablelm" | "starcoder"
        | "starcoder2" | "falcon" | "gptneox" | "gpt2" | "mpt" | "bloom" | "baichuan" | "xverse" | "orion"
        | "plamo" | "plm" | "codeshell" | "refact" | "nemotron" | "exaone" | "jais" | "jais2" | "openelm"
        | "bitnet" | "deci" | "pangu-embedded" | "maincoder" | "grovemoe" | "chameleon" | "hrm_text" | "talkie"
        | "pockettts" | "t5encoder" | "nanbeige" => Law::Full,
        "graniteswitch" => Law::Routed,
        "t5" => Law::EncoderDecoder,
        "bert" | "jina-bert-v2" | "jina-bert-v3" | "nomic-bert" | "nomic-bert-moe" | "neo-bert" | "eurobert"
        | "modern-bert" | "gemma-embedding" | "wavtokenizer-dec" | "dream" | "llada" | "llada-moe" | "rnd1"
        | "clef" => Law::Nothing,
        "olmo2" | "mellum" => windowed(NoWindow, LastIsFull(4)),
        "afmoe" => windowed(Fatal, LastIsFull(4)),
        "gemma3" => windowed(NoWindow, LastIsFull(6)),
        "plamo3" => windowed(NoWindow, LastIsFull(8)),
        "laguna" => windowed(NoWindow, FirstIsFull(4)),
        "gemma2" => windowed(Tokens(4096), LastIsFull(2)),
        "gpt-oss" => windowed(Refused, LastIsFull(2)),
        "cohere2" | "muse-glimmer" | "exaone-moe" => windowed(Refused, LastIsFull(4)),
        "cohere2moe" => windowed(Refused, FirstIsFull(4)),
        "mimo2" | "step35" | "maple" | "spark2_5" | "granite_swa" => windowed(Refused, Listed),
        // Whatever the header says, if it says anything but 0.
        "llama4" => Law::Windowed(fixed(8192, Tokens(8192), LastIsFull(4))),
        "smallthinker" => Law::Windowed(fixed(4096, NoWindow, FirstIsFull(4))),
        "dflash" => Law::Drafting(window(NoWindow, Listed)),
        "exaone4" => Law::WindowedAt64Blocks(window(Tokens(4096), LastIsFull(4))),
        "gemma3n" => Law::Reused(window(Refused, LastIsFull(5)), Some(20)),
        "gemma4" => Law::Reused(window(Refused, Listed), None),
        "deepseek2" | "mistral4" => Law::Compressible,
        "deepseek32" => Law::Indexed(Indexer::Every),
        "glm-dsa" => Law::Indexed(Indexer::Glm(1_048_576)),
        "hy_v4" => Law::Indexed(Indexer::ListedIfChoosing),
        "dots3note" => Law::Indexed(Indexer::ListedBesideWindows),
        "minimax-m3" => Law::Indexed(Indexer::AfterDense),
        "deepseek4" => Law::Indexed(Indexer::Distilled),
        "mamba" => Law::Recurrent(Mamba),
        "mamba2" => Law::Recurrent(Mamba2),
        "rwkv6" | "rwkv6qwen2" | "rwkv7" | "arwkv7" => Law::Recurrent(Rwkv),
        "jamba" => hybrid(Mamba, WithoutKeyHeads, full, Unread),
        "plamo2" | "granitehybrid" => hybrid(Mamba2, WithoutKeyHeads, full, Unread),
        "lfm2" => hybrid(ShortConvolution, WithoutKeyHeads, Attention { windowed: true, ..full }, Unread),
        "lfm2moe" => hybrid(ShortConvolution, WithoutKeyHeads, full, Unread),
        "kimi-linear" | "kimi-k3" => hybrid(Kda, WithoutKeyHeads, compressed, Unread),
        "bailingmoe3" => hybrid(Kda, WithoutKeyHeads, compressed, AsOthers),
        // key, gate, and what is pooled
        "glm5-next" => hybrid(Kda, WithoutKeyHeads, Attention { indexed: Some(3), ..compressed }, Nothing),
        "nemotron_h" | "nemotron_h_moe" => hybrid(Mamba2, WithoutKeyHeadsAndForward, full, AsOthers),
        "falcon-h1" => hybrid(Mamba2, Every, full, Unread),
        "qwen3next" | "qwen35" | "qwen35moe" => hybrid(Mamba2, AllButEvery(4), full, Nothing),
        // key, and what is pooled
        "qwen4exp" => hybrid(Mamba2, AllButEvery(4), Attention { indexed: Some(2), ..full }, Nothing),
        "minimax-01" => hybrid(Lightning, AllButEvery(8), full, Unread),
        _ => return None,
    })
}

/// Why an architecture is not on the list, for the message.
pub(super) fn why_unknown(architecture: &str) -> &'static str {
    match architecture {
        "eagle3" | "gemma4-assistant" => {
            "drafts for another model, without which it has no context (llama-context.cpp, the constructor)"
        }
        "clip" | "gptj" => "is named by llama.cpp, which does not load it",
        _ => "is no architecture we have read",
    }
}
