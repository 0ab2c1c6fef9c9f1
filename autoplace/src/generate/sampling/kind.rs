//! Which samplers there are.

use serde::{Deserialize, Serialize};

/// A sampler, as one of [`Sampling::samplers`](super::Sampling::samplers). Its name in JSON is llama.cpp's.
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
        let name: String = name
            .trim()
            .chars()
            .filter(|it| !matches!(it, '_' | '-'))
            .collect();
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
