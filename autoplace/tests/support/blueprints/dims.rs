//! How large the models are.

use super::keys::Dims;
use super::lists::LATENT;

/// `large` has more blocks, and queries share keys where the architecture lets them.
pub(super) fn dims(arch: &str, large: bool) -> Dims {
    let mut dims = Dims {
        n_layer: 2,
        n_nextn: 0,
        n_embd: 256,
        n_head: 2,
        n_head_kv: 2,
        n_ff: 384,
        n_vocab: 128,
    };
    if large {
        dims.n_layer = 7;
        dims.n_head = 4;
        dims.n_head_kv = 2;
    }
    match arch {
        "llama4" => dims.n_layer = dims.n_layer.max(4),
        "gemma4" | "gemma4-assistant" => {
            (dims.n_embd, dims.n_ff) = (128, 192);
            dims.n_layer = dims.n_layer.max(5);
        }
        "gemma3n" => {
            (dims.n_embd, dims.n_head, dims.n_head_kv, dims.n_ff) = (64, 1, 1, 96);
            // The cache of the first 20 is used again by the others.
            dims.n_layer = if large { 25 } else { 22 };
        }
        "deepseek4" => {
            (dims.n_embd, dims.n_head, dims.n_head_kv, dims.n_ff) = (512, 8, 1, 1024);
            dims.n_layer = dims.n_layer.max(4);
        }
        "step35" | "laguna" => dims.n_embd = if large { 320 } else { 160 },
        "qwen3" => (dims.n_head, dims.n_head_kv) = (4, 1),
        "muse-glimmer" | "afmoe" => (dims.n_head, dims.n_head_kv) = (4, 2),
        "nemotron_h" | "nemotron_h_moe" => dims.n_layer = dims.n_layer.max(3),
        "chameleon" => dims.n_vocab = 10240,
        "qwen3tts" => dims.n_vocab = 4096,
        "rwkv6" | "minimax-01" => (dims.n_head, dims.n_head_kv) = (2, 2),
        "hrm_text" => dims.n_layer = if large { 12 } else { 2 },
        "wavtokenizer-dec" => dims.n_layer = 6,
        "eagle3" => dims.n_layer = 1,
        _ => {}
    }
    if LATENT.contains(&arch) {
        (dims.n_embd, dims.n_head, dims.n_head_kv, dims.n_ff) = (128, 1, 1, 192);
    }
    // Heads of one size for queries, keys and values.
    if matches!(
        arch,
        "gpt2"
            | "starcoder"
            | "bloom"
            | "gptneox"
            | "bert"
            | "nomic-bert"
            | "nomic-bert-moe"
            | "jina-bert-v2"
            | "jina-bert-v3"
            | "neo-bert"
            | "modern-bert"
            | "codeshell"
            | "phi2"
            | "mpt"
            | "plm"
            | "t5"
            | "t5encoder"
            | "minicpm3"
            | "qwen"
            | "cogvlm"
            | "chameleon"
            | "pockettts"
            | "jais"
            | "talkie"
            | "rwkv6qwen2"
            | "arwkv7"
            | "olmoe"
            | "bitnet"
            | "plamo"
            | "deepseek2-ocr"
            | "dots1"
    ) {
        dims.n_head_kv = dims.n_head;
    }
    dims
}
