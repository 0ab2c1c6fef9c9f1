//! Sampling parameters. This module has the parameters, reads the parameters that a model file recommends, and builds
//! the sampler chain.

mod build;
mod shipped;

use llama_sys::Token;
use serde::{Deserialize, Serialize};

/// Sampling parameters, in the terms of llama.cpp's server and with llama.cpp's defaults (common/common.h,
/// common_params_sampling).
///
/// A generation starts with the parameters from the model file ([`Model::sampling`](crate::Model::sampling)).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Sampling {
    /// The logits are divided by the temperature. With 0.0, the likeliest token is chosen among those that the earlier
    /// samplers leave. Default 0.8.
    pub temperature: f32,
    /// The temperature varies by up to this number in both directions, depending on the entropy of the candidates; 0.0,
    /// the default, is off.
    pub dynatemp_range: f32,
    /// Exponent of the normalised entropy in the dynamic temperature. Default 1.0.
    pub dynatemp_exponent: f32,
    /// Keeps the k likeliest tokens; 0 keeps all. Default 40.
    pub top_k: u32,
    /// Keeps the likeliest tokens whose probabilities add up to p; 1.0 keeps all. Default 0.95.
    pub top_p: f32,
    /// Keeps tokens that are at least p times as likely as the likeliest token; 0.0 keeps all. Default 0.05.
    pub min_p: f32,
    /// Locally typical sampling: keeps the tokens whose surprise is closest to the expected surprise, until their
    /// probabilities add up to p; 1.0, the default, keeps all.
    pub typical_p: f32,
    /// Keeps tokens whose logit is at most this many standard deviations below the highest logit; 0.0 or less keeps
    /// all. Default -1.0.
    pub top_n_sigma: f32,
    /// Probability that XTC drops the likeliest tokens, 0.0 (the default) to 1.0.
    pub xtc_probability: f32,
    /// XTC drops tokens that are at least this likely, except the least likely of them. With a threshold above 0.5, it
    /// drops none. Default 0.1.
    pub xtc_threshold: f32,
    /// Minimum number of tokens that top-p, min-p, typical and XTC leave; 0, the default, means one.
    pub min_keep: usize,
    /// Positive logits of recent tokens are divided by this number, others are multiplied by it; 1.0, the default, is
    /// off.
    pub repeat_penalty: f32,
    /// Number of recent tokens that the penalties consider, including tokens of the prompt. Default 64.
    pub repeat_last_n: u32,
    /// This number is subtracted from the logit of a recent token, once for each time that the token occurred; 0.0, the
    /// default, is off.
    pub frequency_penalty: f32,
    /// This number is subtracted from the logit of a recent token, once in all; 0.0, the default, is off.
    pub presence_penalty: f32,
    /// Penalises tokens that continue a repetition (DRY). The penalty is `dry_multiplier * dry_base^(length -
    /// dry_allowed_length)`; 0.0, the default, is off.
    pub dry_multiplier: f32,
    /// Base of the DRY penalty, at least 1.0. Default 1.75.
    pub dry_base: f32,
    /// Longest repetition without a DRY penalty, in tokens. Default 2.
    pub dry_allowed_length: u32,
    /// Number of recent tokens that DRY searches for repetitions. Default 64.
    pub dry_penalty_last_n: u32,
    /// Texts that end a repetition; at most 64 different texts. Default: line ends, colons, quotes and asterisks.
    pub dry_sequence_breakers: Vec<String>,
    /// Mirostat keeps the surprise of the text constant. It replaces all samplers except the temperature. Default: off.
    pub mirostat: Mirostat,
    /// Mirostat's target surprise, in bits per token. Default 5.0.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate. Default 0.1.
    pub mirostat_eta: f32,
    /// The probability that [`SamplerKind::AdaptiveP`] prefers; a negative value turns the preference off. Default
    /// -1.0.
    pub adaptive_target: f32,
    /// Decay of adaptive-p's memory, 0.0 to 0.99. Default 0.9.
    pub adaptive_decay: f32,
    /// Biases that are added to the logits of tokens: at most one for each token, and each at most a million in
    /// absolute value. A bias of -1000.0 forbids a token unless no other token is left.
    pub logit_bias: Vec<(Token, f32)>,
    /// Biases for texts, each of which must be exactly one token. The text of a control token is read as the token.
    pub logit_bias_text: Vec<(String, f32)>,
    /// The samplers in their order. Samplers that are off are skipped. Default: [`SamplerKind::DEFAULT`].
    pub samplers: Vec<SamplerKind>,
    /// Seed of the random choices; with `None`, a seed is drawn, which
    /// [`Statistics::seed`](crate::generate::Statistics::seed) reports.
    pub seed: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).into(),
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            logit_bias: Vec::new(),
            logit_bias_text: Vec::new(),
            samplers: SamplerKind::DEFAULT.into(),
            seed: None,
        }
    }
}

impl Sampling {
    /// Greedy sampling: always the likeliest token, so the text is the same each time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

/// A sampler in [`Sampling::samplers`]. The JSON names of the samplers are llama.cpp's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[doc(alias = "common_sampler_type")]
pub enum SamplerKind {
    /// Repeat, frequency and presence penalty.
    Penalties,
    /// DRY.
    Dry,
    /// Top-n-sigma.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Locally typical sampling.
    #[serde(rename = "typ_p")]
    TypicalP,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// XTC.
    Xtc,
    /// The temperature.
    Temperature,
    /// Adaptive-p, which replaces the random choice of the token. This sampler always comes last, no matter where it is
    /// in the list.
    AdaptiveP,
}

impl SamplerKind {
    /// The default samplers, in llama.cpp's order (common/common.h, common_params_sampling).
    pub const DEFAULT: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Finds a sampler by one of llama.cpp's names, such as `top_k`, `top-k` or `topk` (common/sampling.cpp,
    /// common_sampler_types_from_names). `None` for an unknown name.
    pub fn from_name(name: &str) -> Option<Self> {
        let name: String = name.trim().chars().filter(|char| !matches!(char, '_' | '-')).collect();
        Some(match name.as_str() {
            "penalties" => Self::Penalties,
            "dry" => Self::Dry,
            "topnsigma" => Self::TopNSigma,
            "topk" => Self::TopK,
            "typ" | "typp" | "typical" | "typicalp" => Self::TypicalP,
            "topp" | "nucleus" => Self::TopP,
            "minp" => Self::MinP,
            "xtc" => Self::Xtc,
            "temp" | "temperature" => Self::Temperature,
            "adaptivep" => Self::AdaptiveP,
            _ => return None,
        })
    }
}

/// The version of Mirostat that chooses the tokens (<https://arxiv.org/abs/2007.14966>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mirostat {
    /// No Mirostat.
    #[default]
    Off,
    /// Version 1, which estimates how many tokens to choose from. In a text that cannot reach the target surprise,
    /// llama.cpp's estimate eventually overflows, and only the likeliest token remains. Prefer version 2.
    V1,
    /// Version 2, which bounds the surprise of a token.
    V2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_json_keys_get_defaults_and_unknown_ones_are_ignored() {
        let some = r#"{"top_k": 3, "mirostat": "v2", "samplers": ["top_k", "typ_p"], "n_probs": 4}"#;
        let read: Sampling = serde_json::from_str(some).unwrap();
        let expected = Sampling {
            top_k: 3,
            mirostat: Mirostat::V2,
            samplers: vec![SamplerKind::TopK, SamplerKind::TypicalP],
            ..Sampling::default()
        };
        assert_eq!(read, expected);
        let text = serde_json::to_string(&expected).unwrap();
        assert_eq!(serde_json::from_str::<Sampling>(&text).unwrap(), expected);
    }

    #[test]
    fn samplers_have_the_names_that_llama_cpp_gives_them() {
        for name in ["top_k", "top-k", "topk", " top_k"] {
            assert_eq!(SamplerKind::from_name(name), Some(SamplerKind::TopK));
        }
        for name in ["infill", "", "k"] {
            assert_eq!(SamplerKind::from_name(name), None);
        }
        for kind in SamplerKind::DEFAULT {
            let name = serde_json::to_value(kind).unwrap();
            assert_eq!(SamplerKind::from_name(name.as_str().unwrap()), Some(kind));
        }
    }
}
