//! How the blocks of an architecture are wired: what llama.cpp's `models/*.cpp` say in code, as far as it decides what is computed
//! in which order. What a block has beyond that (biases, norms of queries and keys, experts) its weights tell.

use super::weights::Part;

/// How token embeddings enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Embedding {
    Plain,
    /// Multiplied by a number.
    Scaled,
    /// The same, if the header says so.
    ScaledIfStated,
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
    /// All but every so many-th.
    AllBut(usize),
}

/// What becomes of the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logits {
    Plain,
    /// `scale`.
    Scaled,
    /// `scale`, if the header gives one.
    ScaledIfStated,
    /// `scale`, `tanh`, `scale`.
    Capped,
    /// The same, if the header says so.
    CappedIfStated,
}

/// Positions of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Positions {
    One,
    /// Of pictures and films there are four (M-RoPE).
    Four,
    /// Four, if the header says so.
    FourIfStated,
}

/// How a block's two steps are joined to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residual {
    /// One after the other.
    Sequential,
    /// Both see the same normed input: the feed-forward step and the stream are added first, then attention.
    Parallel,
    /// The same, with attention and the feed-forward step added first: attention comes first in the sum, or second.
    ParallelSteps { attention_first: bool },
}

/// What becomes of a dense feed-forward step without a matrix of its own for a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gateless {
    /// The gate is half of the matrix.
    Half,
    /// There is none: operations of one operand, such as gelu, or relu and sqr.
    Unary(u8),
}

/// Whether the results of attention and the feed-forward step are normed before they are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostNorms {
    None,
    /// The second is named for no block, so that nothing pins it.
    Unnamed,
    /// Both are named for their block.
    Named,
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
    pub(super) positions: Positions,
    /// Whether queries and keys are normed after they are rotated.
    pub(super) late_norms: bool,
    /// Whether queries and keys are normed before they are split into heads.
    pub(super) flat_norms: bool,
    /// Whether queries are multiplied by a number.
    pub(super) scaled_queries: bool,
    /// Whether queries are multiplied by an input, if the header says so.
    pub(super) tempered_queries: bool,
    /// Whether the scores are capped: `scale`, `tanh`, `scale` without fused attention.
    pub(super) capped_scores: bool,
    pub(super) residual: Residual,
    /// Whether what is added to the stream is multiplied by a number, if the header says so; `Some(true)`: even if it is silent.
    pub(super) scaled_residual: Option<bool>,
    /// The norm before the feed-forward step.
    pub(super) ffn_norm: Option<Part>,
    pub(super) post_norms: PostNorms,
    /// Whether the residual comes first in the sum after attention, and in the one after the feed-forward step.
    pub(super) residual_first: [bool; 2],
    pub(super) gateless: Gateless,
    pub(super) mixing: Mixing,
    /// Whether rows are picked for output after the last block instead of within it, the block's result being an output too.
    pub(super) late_outputs: bool,
    /// Whether the caches are those of a model with windows even if no block has one.
    pub(super) windowed_caches: bool,
    /// Whether parts of the embeddings are added after the first blocks, if the header says so.
    pub(super) deepstack: bool,
    pub(super) logits: Logits,
}

/// models/llama.cpp.
const LLAMA: Style = Style {
    embedding: Embedding::Plain,
    norm: Norm::Rms,
    rope: Rope::Always,
    rope_factors: true,
    positions: Positions::One,
    late_norms: false,
    flat_norms: false,
    scaled_queries: false,
    tempered_queries: false,
    capped_scores: false,
    residual: Residual::Sequential,
    scaled_residual: None,
    ffn_norm: Some(Part::FfnNorm),
    post_norms: PostNorms::None,
    residual_first: [false, false],
    gateless: Gateless::Half,
    mixing: Mixing {
        normalized: Some(true),
        scaled: false,
        softmax_of_chosen: false,
    },
    late_outputs: false,
    windowed_caches: false,
    deepstack: false,
    logits: Logits::Plain,
};

/// models/gemma2.cpp.
const GEMMA2: Style = Style {
    embedding: Embedding::Scaled,
    rope_factors: false,
    scaled_queries: true,
    capped_scores: true,
    post_norms: PostNorms::Unnamed,
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
        "llama" | "deci" | "exaone" => LLAMA,
        "qwen2" | "qwen3" | "qwen3moe" | "openelm" | "internlm2" | "qwen" | "xverse"
        | "chatglm" | "pangu-embedded" | "ernie4_5" | "mellum" => Style {
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
            positions: Positions::FourIfStated,
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
            residual: Residual::Parallel,
            windowed_caches: true,
            logits: Logits::ScaledIfStated,
            ..LLAMA
        },
        "olmo2" => Style {
            flat_norms: true,
            post_norms: PostNorms::Unnamed,
            ffn_norm: None,
            ..plain
        },
        "exaone4" => Style {
            rope: Rope::WindowedIfAny,
            post_norms: PostNorms::Unnamed,
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
        // models/smollm3.cpp: `n_no_rope_layer_step` is 4.
        "smollm3" => Style {
            rope: Rope::AllBut(4),
            ..plain
        },
        "seed_oss" => Style {
            ffn_norm: Some(Part::AttnPostNorm),
            ..plain
        },
        "hunyuan-dense" | "hunyuan-moe" => Style {
            late_norms: true,
            ..LLAMA
        },
        "maincoder" => Style {
            late_norms: true,
            ..plain
        },
        "glm4" => Style {
            positions: Positions::FourIfStated,
            post_norms: PostNorms::Named,
            ..plain
        },
        "command-r" => Style {
            norm: Norm::Mean,
            residual: Residual::Parallel,
            logits: Logits::ScaledIfStated,
            ..plain
        },
        "gemma" => Style {
            embedding: Embedding::Scaled,
            scaled_queries: true,
            ..plain
        },
        "olmoe" => Style {
            flat_norms: true,
            mixing: Mixing {
                normalized: Some(false),
                scaled: false,
                softmax_of_chosen: false,
            },
            ..plain
        },
        "minimax-m2" => Style {
            flat_norms: true,
            ..plain
        },
        "qwen2vl" => Style {
            positions: Positions::Four,
            ..plain
        },
        "qwen3vl" | "qwen3vlmoe" => Style {
            positions: Positions::Four,
            deepstack: true,
            ..plain
        },
        "granite" | "granitemoe" => Style {
            embedding: Embedding::ScaledIfStated,
            scaled_residual: Some(false),
            logits: Logits::Scaled,
            ..LLAMA
        },
        // models/minicpm.cpp: numbers of its own stand for those that the header does not give.
        "minicpm" => Style {
            embedding: Embedding::Scaled,
            scaled_residual: Some(true),
            logits: Logits::Scaled,
            ..LLAMA
        },
        "arcee" => Style {
            gateless: Gateless::Unary(2),
            ..LLAMA
        },
        "apertus" => Style {
            gateless: Gateless::Unary(1),
            ..LLAMA
        },
        "starcoder2" | "codeshell" => Style {
            norm: Norm::Mean,
            gateless: Gateless::Unary(1),
            ..plain
        },
        "nemotron" | "jais2" => Style {
            norm: Norm::Mean,
            gateless: Gateless::Unary(2),
            ..plain
        },
        "orion" => Style {
            norm: Norm::Mean,
            ..plain
        },
        "phi2" => Style {
            norm: Norm::Mean,
            scaled_queries: true,
            residual: Residual::ParallelSteps {
                attention_first: true,
            },
            gateless: Gateless::Unary(1),
            ..plain
        },
        "plamo" => Style {
            residual: Residual::ParallelSteps {
                attention_first: false,
            },
            ..plain
        },
        "deepseek" => Style {
            mixing: Mixing {
                normalized: Some(false),
                scaled: true,
                softmax_of_chosen: false,
            },
            ..LLAMA
        },
        "dots1" | "bailingmoe2" => Style {
            mixing: Mixing {
                normalized: None,
                scaled: true,
                softmax_of_chosen: false,
            },
            ..plain
        },
        "bailingmoe" => Style {
            mixing: Mixing {
                normalized: None,
                scaled: true,
                softmax_of_chosen: false,
            },
            ..LLAMA
        },
        "exaone-moe" => Style {
            rope: Rope::Windowed,
            windowed_caches: true,
            mixing: Mixing {
                normalized: None,
                scaled: true,
                softmax_of_chosen: false,
            },
            ..LLAMA
        },
        "phimoe" => Style {
            scaled_queries: true,
            residual_first: [false, true],
            ..LLAMA
        },
        "stablelm" => Style {
            norm: Norm::Mean,
            ..plain
        },
        _ => return None,
    })
}
