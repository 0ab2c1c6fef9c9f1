//! Headers that say something else than those of the other models.

use super::dims::dims;
use super::header::{WINDOW, keys_without};
use super::keys::Keys;

/// A model whose header says something else than those above, where that decides what it keeps.
pub(super) struct Twist {
    pub(super) arch: &'static str,
    pub(super) name: &'static str,
    omits: &'static [&'static str],
    says: &'static [(&'static str, u32)],
    lists: &'static [(&'static str, &'static [u32])],
}

const PATTERN: &str = "attention.sliding_window_pattern";
const INTERVAL: &str = "full_attention_interval";

const fn omits(arch: &'static str, name: &'static str, omits: &'static [&'static str]) -> Twist {
    Twist {
        arch,
        name,
        omits,
        says: &[],
        lists: &[],
    }
}

const fn says(
    arch: &'static str,
    name: &'static str,
    says: &'static [(&'static str, u32)],
) -> Twist {
    Twist {
        says,
        ..omits(arch, name, &[])
    }
}

pub(super) const TWISTS: &[Twist] = &[
    omits("gemma3", "windowless", &[WINDOW]),
    omits("olmo2", "windowless", &[WINDOW]),
    omits("gemma2", "default-window", &[WINDOW]),
    omits("llama4", "default-window", &[WINDOW]),
    omits("smallthinker", "windowless", &[WINDOW]),
    says("llama4", "windowless", &[(WINDOW, 0)]),
    says("laguna", "windowless", &[(WINDOW, 0)]),
    says("mellum", "windowless", &[(WINDOW, 0)]),
    says("plamo3", "windowless", &[(WINDOW, 0)]),
    says("lfm2", "windowless", &[(WINDOW, 0)]),
    omits("afmoe", "own-pattern", &[PATTERN]),
    omits("cohere2", "own-pattern", &[PATTERN]),
    omits("cohere2moe", "own-pattern", &[PATTERN]),
    omits("exaone-moe", "own-pattern", &[PATTERN]),
    omits("gemma2", "own-pattern", &[PATTERN]),
    omits("gemma3", "own-pattern", &[PATTERN]),
    omits("gemma3n", "own-pattern", &[PATTERN]),
    omits("gpt-oss", "own-pattern", &[PATTERN]),
    omits("laguna", "own-pattern", &[PATTERN]),
    omits("llama4", "own-pattern", &[PATTERN]),
    omits("mellum", "own-pattern", &[PATTERN]),
    omits("muse-glimmer", "own-pattern", &[PATTERN]),
    omits("olmo2", "own-pattern", &[PATTERN]),
    Twist {
        says: &[("block_count", 17)],
        ..omits("plamo3", "own-pattern", &[PATTERN])
    },
    omits("smallthinker", "own-pattern", &[PATTERN]),
    says("cohere2", "all-windowed", &[(PATTERN, 0)]),
    says("gpt-oss", "third", &[(PATTERN, 3)]),
    Twist {
        lists: &[(PATTERN, &[1, 1, 0, 1, 0, 0, 1])],
        ..omits("gpt-oss", "listed", &[])
    },
    Twist {
        says: &[("block_count", 64)],
        ..omits("exaone4", "64-blocks", &[PATTERN])
    },
    omits("glm4", "one-position", &["rope.dimension_sections"]),
    omits("glm4moe", "one-position", &["rope.dimension_sections"]),
    omits(
        "granite",
        "unscaled",
        &["embedding_scale", "residual_scale"],
    ),
    says("qwen3vl", "deepstack", &[("n_deepstack_layers", 3)]),
    says("qwen3vlmoe", "deepstack", &[("n_deepstack_layers", 3)]),
    omits("qwen3next", "fourth", &[INTERVAL]),
    omits("qwen35", "fourth", &[INTERVAL]),
    omits("minimax-01", "eighth", &[INTERVAL]),
    Twist {
        lists: &[("attention.recurrent_layers", &[1, 0, 0, 1, 1, 0, 1])],
        ..omits("qwen35moe", "listed", &[])
    },
    Twist {
        says: &[
            ("attention.key_length", 192),
            ("attention.value_length", 128),
        ],
        ..omits(
            "deepseek2",
            "uncompressed",
            &["attention.key_length_mla", "attention.value_length_mla"],
        )
    },
    says(
        "hy_v4",
        "without-indexer",
        &[("attention.indexer.top_k", 0)],
    ),
    Twist {
        lists: &[("attention.indexer.types", &[1, 0, 0, 1, 0, 1, 0])],
        ..omits("glm-dsa", "listed", &[])
    },
    says("glm-dsa", "long", &[("context_length", 1_048_576)]),
    Twist {
        lists: &[("attention.indexer.types", &[1, 0, 0, 0, 1, 0, 1])],
        ..omits("glm5-next", "listed", &[])
    },
    omits("qwen4exp", "unpooled", &["attention.compress_ratios"]),
    Twist {
        says: &[(WINDOW, 100)],
        lists: &[(PATTERN, &[1, 0, 1, 1, 0, 1, 1])],
        ..omits("dflash", "windowed", &[])
    },
    Twist {
        says: &[
            (WINDOW, 100),
            ("hyper_connection.count", 4),
            ("hyper_connection.sinkhorn_iterations", 2),
            ("attention.output_group_count", 4),
            ("attention.output_lora_rank", 32),
            ("expert_count", 2),
            ("expert_used_count", 1),
            ("expert_shared_count", 1),
            ("expert_feed_forward_length", 384),
            ("expert_gating_func", 4),
        ],
        ..omits("dflash", "hyper-connected", &["attention.head_count_kv"])
    },
    says("nanbeige", "twice", &[("num_loops", 2)]),
    says("t5", "short-decoder", &[("decoder_block_count", 3)]),
    Twist {
        lists: &[
            ("attention.head_count", &[4, 4, 4, 4, 0, 4, 4]),
            ("attention.head_count_kv", &[2, 1, 4, 2, 0, 0, 1]),
        ],
        ..omits("deci", "mixed-heads", &[])
    },
    Twist {
        lists: &[
            ("attention.head_count", &[4, 8, 4, 8, 4, 4, 8]),
            ("attention.head_count_kv", &[2, 1, 4, 2, 2, 1, 4]),
        ],
        says: &[("attention.key_length", 64), ("attention.value_length", 64)],
        ..omits("openelm", "mixed-heads", &[])
    },
];

impl Twist {
    pub(super) fn keys(&self, experts: bool) -> Keys {
        let mut dims = dims(self.arch, true);
        if let Some(&(_, n)) = self.says.iter().find(|(key, _)| *key == "block_count") {
            dims.n_layer = n;
        }
        let mut keys = keys_without(self.arch, dims, experts, self.omits);
        for (key, value) in self.says {
            keys.u32(key, *value);
        }
        for (key, values) in self.lists {
            keys.u32s(key, values);
        }
        keys
    }
}
