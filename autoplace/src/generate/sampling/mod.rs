//! How the next token is chosen: the parameters, what the model's makers want them to be, and the chain that they make.

mod build;
mod shipped;

use llama_sys::Token;
use serde::{Deserialize, Serialize};

/// Sampling parameters, in the terms of llama.cpp's server and with llama.cpp's defaults (common/common.h,
/// common_params_sampling).
///
/// A generation starts with those that the model's makers put into the file
/// ([`Model::sampling`](crate::Model::sampling)).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Sampling {
    /// Divides the logits; 0.0 always takes the likeliest token of those that the samplers before leave. Default 0.8.
    pub temperature: f32,
    /// Lets the temperature go this far below and above, as the entropy of the candidates goes from 0 to the greatest
    /// possible one; 0.0, the default, is off.
    pub dynatemp_range: f32,
    /// The power that the entropy is raised to before that. Default 1.0.
    pub dynatemp_exponent: f32,
    /// Keeps the k likeliest tokens; 0 keeps all. Default 40.
    pub top_k: u32,
    /// Keeps the likeliest tokens whose probabilities add up to p; 1.0 keeps all. Default 0.95.
    pub top_p: f32,
    /// Keeps tokens at least p times as likely as the likeliest; 0.0 keeps all. Default 0.05.
    pub min_p: f32,
    /// Keeps the tokens that are about as surprising as is to be expected, whose probabilities add up to p; 1.0, the
    /// default, keeps all.
    pub typical_p: f32,
    /// Keeps tokens whose logit is at most this many standard deviations below the highest; 0.0 or less keeps
    /// all. Default -1.0.
    pub top_n_sigma: f32,
    /// How often the likeliest tokens are dropped (XTC), from 0.0, the default, to 1.0.
    pub xtc_probability: f32,
    /// From which probability on XTC drops a token, if another as likely is left; above 0.5 it drops none. Default 0.1.
    pub xtc_threshold: f32,
    /// Tokens that top-p, min-p, typical and XTC leave at least; 0, the default, is one.
    pub min_keep: usize,
    /// Divides the logits of recent tokens; 1.0, the default, is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalties look at, the prompt's among them. Default 64.
    pub repeat_last_n: u32,
    /// Is subtracted from the logit of a recent token for each time that it came; 0.0, the default, is off.
    pub frequency_penalty: f32,
    /// Is subtracted once from the logit of a recent token; 0.0, the default, is off.
    pub presence_penalty: f32,
    /// Punishes tokens that would go on with a repetition (DRY): by this times `dry_base` to the power of how much
    /// longer than `dry_allowed_length` it is; 0.0, the default, is off.
    pub dry_multiplier: f32,
    /// At least 1.0. Default 1.75.
    pub dry_base: f32,
    /// Repetitions of so many tokens and fewer cost nothing. Default 2.
    pub dry_allowed_length: u32,
    /// Among how many recent tokens repetitions are looked for. Default 64.
    pub dry_penalty_last_n: u32,
    /// What repetitions do not reach over: by default line ends, colons, quotes and asterisks.
    pub dry_sequence_breakers: Vec<String>,
    /// Keeps the surprise of the text at a level, instead of all samplers but the temperature. Default: off.
    pub mirostat: Mirostat,
    /// The level, in bits per token. Default 5.0.
    pub mirostat_tau: f32,
    /// How fast Mirostat learns. Default 0.1.
    pub mirostat_eta: f32,
    /// The probability that [`SamplerKind::AdaptiveP`] prefers; below 0.0 it prefers none. Default -1.0.
    pub adaptive_target: f32,
    /// How long adaptive-p remembers, 0.0 to 0.99. Default 0.9.
    pub adaptive_decay: f32,
    /// Is added to the logits of these tokens, each of which is named once. A million either way is the most; -1000.0
    /// forbids a token as long as there is another.
    pub logit_bias: Vec<(Token, f32)>,
    /// The same by text, which must be one token. Control tokens are written out.
    pub logit_bias_text: Vec<(String, f32)>,
    /// Which samplers apply, in this order: those that are on. Default: [`SamplerKind::DEFAULT`].
    pub samplers: Vec<SamplerKind>,
    /// Seed of the random choice; `None` draws one, which [`Statistics::seed`](super::Statistics::seed) reports.
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
    /// The likeliest token always: the same text every time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

/// A sampler, as one of [`Sampling::samplers`]. Its name in JSON is llama.cpp's.
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
    /// Adaptive-p. It chooses the token, in place of plain chance, after all others wherever it is in the list.
    AdaptiveP,
}

impl SamplerKind {
    /// Those that apply where nothing else is asked for, in llama.cpp's order (common/common.h,
    /// common_params_sampling).
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

    /// By one of the names that llama.cpp knows it by: `top_k`, `top-k` or `topk`, and some others
    /// (common/sampling.cpp, common_sampler_types_from_names). `None` for a name of none of these.
    pub fn from_name(name: &str) -> Option<Self> {
        let name: String = name.trim().chars().filter(|it| !matches!(it, '_' | '-')).collect();
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

/// Which Mirostat chooses the tokens (<https://arxiv.org/abs/2007.14966>), if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mirostat {
    /// None.
    #[default]
    Off,
    /// The first, which estimates how many tokens to choose from. Where the text cannot be as surprising as it should,
    /// llama.cpp's estimate overflows in the end, and only the likeliest token is left to choose: prefer the second.
    V1,
    /// The second, which bounds how surprising a token may be.
    V2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_leaves_out_is_as_by_default_and_what_it_adds_is_not_looked_at() {
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
