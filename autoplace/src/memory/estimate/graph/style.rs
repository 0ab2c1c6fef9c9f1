//! How the blocks of an architecture are wired: what llama.cpp's `models/*.cpp` say in code, as far as it decides what is computed
//! in which order. What a block has beyond that (biases, norms of queries and keys, experts) its weights tell.

use super::weights::Part;

/// How token embeddings enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Embedding {
    Plain,
    /// Multiplied by a number.
    Scaled,
    /// Multiplied row by row, by an input.
    ScaledByRow,
}

/// `ggml_rms_norm` or `ggml_norm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Norm {
    Rms,
    Mean,
}

/// Which blocks rotate queries and keys by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rope {
    Always,
    /// Those with a window.
    Windowed,
    /// Those with a window; all of a model without windows.
    WindowedIfAny,
}

/// What becomes of the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logits {
    Plain,
    /// `scale`, if the header gives one.
    Scaled,
    /// `scale`, `tanh`, `scale`.
    Capped,
    /// The same, if the header says so.
    CappedIfStated,
}

/// How the experts are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mixing {
    /// Whether the weights of the chosen experts are made to sum up to one; `None`: as the header says.
    pub(super) normalized: Option<bool>,
    /// Whether they are multiplied by a number that the header gives.
    pub(super) scaled: bool,
    /// Whether they are made of the scores of the chosen experts only.
    pub(super) softmax_of_chosen: bool,
}

/// How the blocks of an architecture are wired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) embedding: Embedding,
    pub(super) norm: Norm,
    pub(super) rope: Rope,
    pub(super) rope_factors: bool,
    /// Whether queries and keys are normed before they are split into heads.
    pub(super) flat_norms: bool,
    /// Whether queries are multiplied by a number.
    pub(super) scaled_queries: bool,
    /// Whether queries are multiplied by an input, if the header says so.
    pub(super) tempered_queries: bool,
    /// Whether the scores are capped: `scale`, `tanh`, `scale` without fused attention.
    pub(super) capped_scores: bool,
    /// Whether attention and the feed-forward step see the same input.
    pub(super) parallel: bool,
    /// The norm before the feed-forward step.
    pub(super) ffn_norm: Option<Part>,
    /// Whether the results of both are normed before they are added.
    pub(super) post_norms: bool,
    /// Whether the residual comes first in the sum after attention, and in the one after the feed-forward step.
    pub(super) residual_first: [bool; 2],
    /// Whether gate and up are the halves of one matrix.
    pub(super) fused_gate: bool,
    pub(super) mixing: Mixing,
    /// Whether rows are picked for output after the last block instead of within it, the block's result being an output too.
    pub(super) late_outputs: bool,
    /// Whether the caches are those of a model with windows even if no block has one.
    pub(super) windowed_caches: bool,
    pub(super) logits: Logits,
}

/// models/llama.cpp.
const LLAMA: Style = Style {
    embedding: Embedding::Plain,
    norm: Norm::Rms,
    rope: Rope::Always,
    rope_factors: true,
    flat_norms: false,
    scaled_queries: false,
    tempered_queries: false,
    capped_scores: false,
    parallel: false,
    ffn_norm: Some(Part::FfnNorm),
    post_norms: false,
    residual_first: [false, false],
    fused_gate: false,
    mixing: Mixing {
        normalized: Some(true),
        scaled: false,
        softmax_of_chosen: false,
    },
    late_outputs: false,
    windowed_caches: false,
    logits: Logits::Plain,
};

/// models/gemma2.cpp.
const GEMMA2: Style = Style {
    embedding: Embedding::Scaled,
    rope_factors: false,
    scaled_queries: true,
    capped_scores: true,
    post_norms: true,
    windowed_caches: true,
    logits: Logits::Capped,
    ..LLAMA
};

/// The style of an architecture, or `None` where we have not read its graph.
pub(super) fn of(architecture: &str) -> Option<Style> {
    let plain = Style {
        rope_factors: false,
        ..LLAMA
    };
    Some(match architecture {
        "llama" | "deci" => LLAMA,
        "qwen2" | "qwen3" | "qwen3moe" | "openelm" => Style {
            residual_first: [architecture == "openelm", false],
            ..plain
        },
        "mistral3" => Style {
            tempered_queries: true,
            ..LLAMA
        },
        "qwen2moe" => Style {
            mixing: Mixing {
                normalized: Some(false),
                ..LLAMA.mixing
            },
            ..plain
        },
        "glm4moe" => Style {
            ffn_norm: Some(Part::AttnPostNorm),
            mixing: Mixing {
                normalized: None,
                scaled: true,
                softmax_of_chosen: false,
            },
            ..plain
        },
        "deepseek2" => Style {
            tempered_queries: true,
            mixing: Mixing {
                normalized: None,
                scaled: true,
                softmax_of_chosen: false,
            },
            ..plain
        },
        "phi3" => Style {
            scaled_queries: true,
            residual_first: [false, true],
            fused_gate: true,
            ..LLAMA
        },
        "gemma2" => GEMMA2,
        "gemma3" => Style {
            embedding: Embedding::ScaledByRow,
            capped_scores: false,
            windowed_caches: false,
            logits: Logits::CappedIfStated,
            ..GEMMA2
        },
        "cohere2" => Style {
            norm: Norm::Mean,
            rope: Rope::Windowed,
            parallel: true,
            windowed_caches: true,
            logits: Logits::Scaled,
            ..LLAMA
        },
        "olmo2" => Style {
            flat_norms: true,
            post_norms: true,
            ffn_norm: None,
            ..plain
        },
        "exaone4" => Style {
            rope: Rope::WindowedIfAny,
            post_norms: true,
            ffn_norm: None,
            ..LLAMA
        },
        "gpt-oss" => Style {
            ffn_norm: Some(Part::AttnPostNorm),
            mixing: Mixing {
                normalized: Some(false),
                scaled: false,
                softmax_of_chosen: true,
            },
            late_outputs: true,
            windowed_caches: true,
            ..plain
        },
        _ => return None,
    })
}
