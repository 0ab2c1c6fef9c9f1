//! Which architectures keep their context in the plain attention cache.
//!
//! `llama_model::create_memory` (llama-model.cpp:2358-2897) gives a plain `llama_kv_cache` to every architecture that is not
//! named in its switch, is neither recurrent nor hybrid (llama-arch.cpp:1110-1148), sets no `swa_type` in its
//! `load_arch_hparams`, and reuses no layer. This list was made by reading `load_arch_hparams` of each file in models/;
//! an architecture that is not on it is unknown, which is an answer too.

/// What decides whether an architecture is plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// Plain whatever the header says.
    Plain,
    /// Plain unless `<architecture>.attention.sliding_window` is there and above 0 (models/olmo2.cpp:6, models/gemma3.cpp:4).
    PlainWithoutWindow,
    /// Plain unless it has 64 blocks (models/exaone4.cpp:4).
    PlainUnless64Blocks,
    /// Plain unless it states the widths of compressed keys (models/deepseek2.cpp:16).
    PlainWithoutMla,
}

/// How the attention of this architecture keeps its context, or `None` where we have not read it.
pub(super) fn attention(architecture: &str) -> Option<Attention> {
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
        | "maincoder" | "grovemoe" => Attention::Plain,
        "olmo2" | "gemma3" => Attention::PlainWithoutWindow,
        "exaone4" => Attention::PlainUnless64Blocks,
        "deepseek2" => Attention::PlainWithoutMla,
        _ => return None,
    })
}

/// Why an architecture that llama.cpp knows is not on the list, for the message; `None` where we cannot say.
pub(super) fn why_unknown(architecture: &str) -> Option<&'static str> {
    Some(match architecture {
        "mamba" | "mamba2" | "rwkv6" | "rwkv6qwen2" | "rwkv7" | "arwkv7" => {
            "it keeps a recurrent state instead of a cache (llama-arch.cpp:1110)"
        }
        "jamba" | "falcon-h1" | "plamo2" | "granitehybrid" | "lfm2" | "lfm2moe" | "nemotron_h"
        | "nemotron_h_moe" | "qwen3next" | "kimi-linear" | "bailingmoe3" | "kimi-k3"
        | "glm5-next" | "qwen35" | "qwen35moe" | "qwen4exp" | "deepseek4" | "minimax-01" => {
            "it mixes attention with a recurrent state (llama-arch.cpp:1124)"
        }
        "gemma2" | "gemma3n" | "gemma4" | "gpt-oss" | "cohere2" | "cohere2moe" | "llama4"
        | "exaone-moe" | "smallthinker" | "laguna" | "mimo2" | "step35" | "afmoe" | "plamo3"
        | "phimoe" | "granite_swa" | "mellum" | "muse-glimmer" | "maple" | "spark2_5" => {
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
