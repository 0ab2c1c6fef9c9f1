//! What the architectures of llama.cpp have in common.

/// Architectures whose blocks are experts, whatever the header says.
pub(super) const EXPERTS_ONLY: &[&str] = &[
    "llama4",
    "cohere2moe",
    "grok",
    "qwen2moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vlmoe",
    "qwen35moe",
    "qwen4exp",
    "phimoe",
    "dbrx",
    "olmoe",
    "arctic",
    "deepseek",
    "deepseek2",
    "deepseek2-ocr",
    "deepseek32",
    "deepseek4",
    "dots1",
    "dots3note",
    "glm4moe",
    "glm-dsa",
    "glm5-next",
    "exaone-moe",
    "bailingmoe",
    "bailingmoe2",
    "bailingmoe3",
    "afmoe",
    "ernie4_5-moe",
    "hunyuan-moe",
    "hy_v3",
    "hy_v4",
    "gpt-oss",
    "lfm2moe",
    "smallthinker",
    "llada-moe",
    "grovemoe",
    "maple",
    "minimax-01",
    "minimax-m2",
    "minimax-m3",
    "rnd1",
    "mimo2",
    "kimi-linear",
    "kimi-k3",
    "step35",
    "mistral4",
    "mellum",
    "laguna",
    "nemotron_h_moe",
    "nomic-bert-moe",
];

/// Architectures that come with experts and without.
pub(super) const EXPERTS_TOO: &[&str] = &[
    "llama",
    "refact",
    "minicpm",
    "granite",
    "granitemoe",
    "granitehybrid",
    "mistral3",
    "llama-embed",
    "jamba",
    "gemma4",
    "ernie4_5",
    "paddleocr",
];

/// Architectures whose loader knows prediction blocks (`TENSOR_SKIP` in models/*.cpp).
pub(super) const PREDICTS: &[&str] = &[
    "bailingmoe2",
    "bailingmoe3",
    "cohere2moe",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "dots3note",
    "exaone-moe",
    "exaone4",
    "glm-dsa",
    "glm4",
    "glm4moe",
    "glm5-next",
    "hy_v3",
    "mimo2",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "qwen4exp",
    "step35",
];

/// Of these, those whose prediction blocks it never loads, asked for or not.
pub(super) const NEVER_PREDICTS: &[&str] =
    &["bailingmoe2", "dots3note", "exaone-moe", "exaone4", "glm4"];

/// Blocks without key heads are recurrent.
pub(super) const HYBRID_BY_HEADS: &[&str] = &[
    "plamo2",
    "jamba",
    "nemotron_h",
    "nemotron_h_moe",
    "granitehybrid",
    "lfm2",
    "lfm2moe",
    "kimi-linear",
    "kimi-k3",
    "bailingmoe3",
    "glm5-next",
];

/// Compressed keys.
pub(super) const LATENT: &[&str] = &[
    "deepseek2",
    "deepseek32",
    "glm-dsa",
    "glm5-next",
    "dots3note",
    "hy_v4",
    "kimi-linear",
    "kimi-k3",
    "bailingmoe3",
    "mistral4",
];

/// The pattern of windows is a list.
pub(super) const LISTED_WINDOWS: &[&str] = &[
    "cohere2moe",
    "mimo2",
    "step35",
    "muse-glimmer",
    "granite_swa",
    "dots3note",
    "maple",
    "spark2_5",
    "gemma4",
    "gemma4-assistant",
];
