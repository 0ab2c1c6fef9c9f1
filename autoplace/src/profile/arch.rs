//! How each architecture keeps its context.
//!
//! `llama_model::create_memory` (llama-model.cpp:2358-2897) gives a plain `llama_kv_cache` to every architecture that is not
//! named in its switch, is neither recurrent nor hybrid (llama-arch.cpp:1110-1148), sets no `swa_type` in its
//! `load_arch_hparams`, and reuses no layer. This list was made by reading `load_arch_hparams` of each file in models/;
//! an architecture that is not on it is unknown, which is an answer too. The laws beside the plain one are here only as far as
//! the conformance suite has seen llama.cpp allocate the same bytes.

/// How an architecture keeps its context, and what the header decides of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Law {
    /// Every block keeps every token, whatever the header says.
    Full,
    /// Some blocks attend to a window only.
    Windowed(Window),
    /// Windowed with 64 blocks, else full (models/exaone4.cpp:4).
    WindowedAt64Blocks(Window),
    /// Full unless it states the widths of compressed keys (models/deepseek2.cpp:16).
    Compressible,
    /// Every block keeps a state.
    Recurrent(Mixer),
    /// Blocks without key heads keep a state, the others every token (models/jamba.cpp:11).
    HybridByHeads(Mixer),
    /// Every block keeps both (models/falcon-h1.cpp:13, llama-model.cpp:2690).
    HybridInEveryBlock(Mixer),
}

/// Where `load_arch_hparams` takes its sliding window from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Its tokens where the header does not say.
    pub(super) unstated: Unstated,
    /// Of so many blocks the last is without a window, unless the header says otherwise.
    pub(super) pattern: u32,
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
}

/// What a recurrent block keeps (llama-hparams.cpp:208-272).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mixer {
    /// State space of one group: the convolution covers the inner width alone.
    Mamba,
    /// State space of several groups.
    Mamba2,
    /// Receptance-weighted keys and values.
    Rwkv,
}

/// How this architecture keeps its context, or `None` where we have not read it.
pub(super) fn law(architecture: &str) -> Option<Law> {
    let windowed = |unstated, pattern| Law::Windowed(Window { unstated, pattern });
    Some(match architecture {
        // phi3 reads a sliding window and then disables it (models/phi3.cpp:13-24); llama, qwen2 and mistral3 never read it.
        "llama" | "mistral3" | "qwen" | "qwen2" | "qwen2moe" | "qwen2vl" | "qwen3" | "qwen3moe"
        | "qwen3vl" | "qwen3vlmoe" | "phi2" | "phi3" | "gemma" | "granite" | "granitemoe"
        | "smollm3" | "arcee" | "apertus" | "seed_oss" | "ernie4_5" | "ernie4_5-moe"
        | "hunyuan-moe" | "hunyuan-dense" | "dots1" | "bailingmoe" | "bailingmoe2" | "glm4"
        | "glm4moe" | "hy_v3" | "chatglm" | "command-r" | "dbrx" | "arctic" | "grok"
        | "deepseek" | "minicpm" | "minimax-m2" | "olmo" | "olmoe" | "internlm2" | "stablelm"
        | "starcoder" | "starcoder2" | "falcon" | "gptneox" | "gpt2" | "mpt" | "bloom"
        | "baichuan" | "xverse" | "orion" | "plamo" | "codeshell" | "refact" | "nemotron"
        | "exaone" | "jais" | "jais2" | "openelm" | "bitnet" | "deci" | "pangu-embedded"
        | "maincoder" | "grovemoe" => Law::Full,
        "olmo2" => windowed(Unstated::NoWindow, 4),
        "gemma2" => windowed(Unstated::Tokens(4096), 2),
        "gemma3" => windowed(Unstated::NoWindow, 6),
        "gpt-oss" => windowed(Unstated::Refused, 2),
        "cohere2" => windowed(Unstated::Refused, 4),
        "exaone4" => Law::WindowedAt64Blocks(Window {
            unstated: Unstated::Tokens(4096),
            pattern: 4,
        }),
        "deepseek2" => Law::Compressible,
        "mamba" => Law::Recurrent(Mixer::Mamba),
        "mamba2" => Law::Recurrent(Mixer::Mamba2),
        "rwkv6" => Law::Recurrent(Mixer::Rwkv),
        "jamba" => Law::HybridByHeads(Mixer::Mamba),
        "falcon-h1" => Law::HybridInEveryBlock(Mixer::Mamba2),
        _ => return None,
    })
}

/// Why an architecture that llama.cpp knows is not on the list, for the message; `None` where we cannot say.
pub(super) fn why_unknown(architecture: &str) -> Option<&'static str> {
    Some(match architecture {
        "rwkv6qwen2" | "rwkv7" | "arwkv7" => {
            "it keeps a recurrent state instead of a cache (llama-arch.cpp:1110)"
        }
        "plamo2" | "granitehybrid" | "lfm2" | "lfm2moe" | "nemotron_h" | "nemotron_h_moe"
        | "qwen3next" | "kimi-linear" | "bailingmoe3" | "kimi-k3" | "glm5-next" | "qwen35"
        | "qwen35moe" | "qwen4exp" | "deepseek4" | "minimax-01" => {
            "it mixes attention with a recurrent state (llama-arch.cpp:1124)"
        }
        "gemma3n" | "gemma4" | "cohere2moe" | "llama4" | "exaone-moe" | "smallthinker"
        | "laguna" | "mimo2" | "step35" | "afmoe" | "plamo3" | "phimoe" | "granite_swa"
        | "mellum" | "muse-glimmer" | "maple" | "spark2_5" => {
            "some of its layers attend to a sliding window (llama-kv-cache-iswa.cpp)"
        }
        "deepseek32" | "glm-dsa" | "minimax-m3" | "hy_v4" | "dots3note" | "mistral4" => {
            "it compresses or indexes its keys (llama-model.cpp:2382-2593)"
        }
        "bert" | "jina-bert-v2" | "jina-bert-v3" | "nomic-bert" | "nomic-bert-moe" | "neo-bert"
        | "eurobert" | "modern-bert" | "gemma-embedding" | "t5" | "t5encoder" | "llama-embed"
        | "clip" | "wavtokenizer-dec" => "it does not generate text from a causal context",
        _ => return None,
    })
}
