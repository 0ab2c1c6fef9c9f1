//! The quantisations that models are published in, by the names that `llama-quantize` gives them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::gguf::TensorType;

/// A quantisation of a whole model: which type each of its matrices gets. See
/// [`ModelProfile::quantised`](super::ModelProfile::quantised).
#[doc(alias = "llama_ftype")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(non_camel_case_types)] // `Q4_K_M` is the name by which everybody knows it.
#[non_exhaustive]
pub enum Quantisation {
    /// 8 bits throughout.
    Q8_0,
    /// 6 bits throughout.
    Q6_K,
    /// 5 bits, 6 for half of `attn_v` and `ffn_down`.
    Q5_K_M,
    /// 5 bits.
    Q5_K_S,
    /// 4 bits, 6 for half of `attn_v` and `ffn_down`.
    Q4_K_M,
    /// 4 bits, 5 for some of the first blocks.
    Q4_K_S,
    /// 4 bits on a curve.
    IQ4_XS,
    /// 3 bits, 5 for `attn_v`, `attn_output` and `ffn_down`.
    Q3_K_L,
    /// 3 bits, 4 for `attn_v`, `attn_output` and `ffn_down`.
    Q3_K_M,
    /// 3 bits on a grid, 4 for `attn_v`, `attn_output` and some of `ffn_down`.
    IQ3_M,
    /// 3 bits.
    Q3_K_S,
    /// 3 bits on a grid, fewer for queries, keys and the feed-forward steps between.
    IQ3_XS,
    /// 2 bits, 3 and 4 for `attn_v`, `attn_output` and `ffn_down`.
    Q2_K,
    /// 2 bits on a grid, 3 and 4 for `attn_v`, `attn_output` and some of `ffn_down`.
    IQ2_M,
}

impl Quantisation {
    /// All of them, the largest first.
    pub const ALL: [Self; 14] = [
        Self::Q8_0,
        Self::Q6_K,
        Self::Q5_K_M,
        Self::Q5_K_S,
        Self::Q4_K_M,
        Self::Q4_K_S,
        Self::IQ4_XS,
        Self::Q3_K_L,
        Self::Q3_K_M,
        Self::IQ3_M,
        Self::Q3_K_S,
        Self::IQ3_XS,
        Self::Q2_K,
        Self::IQ2_M,
    ];

    /// Its name, as people write it in file names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "Q8_0",
            Self::Q6_K => "Q6_K",
            Self::Q5_K_M => "Q5_K_M",
            Self::Q5_K_S => "Q5_K_S",
            Self::Q4_K_M => "Q4_K_M",
            Self::Q4_K_S => "Q4_K_S",
            Self::IQ4_XS => "IQ4_XS",
            Self::Q3_K_L => "Q3_K_L",
            Self::Q3_K_M => "Q3_K_M",
            Self::IQ3_M => "IQ3_M",
            Self::Q3_K_S => "Q3_K_S",
            Self::IQ3_XS => "IQ3_XS",
            Self::Q2_K => "Q2_K",
            Self::IQ2_M => "IQ2_M",
        }
    }

    /// The type of most matrices (`llama_ftype_get_default_type`).
    #[must_use]
    pub const fn default_type(self) -> TensorType {
        match self {
            Self::Q8_0 => TensorType::Q8_0,
            Self::Q6_K => TensorType::Q6_K,
            Self::Q5_K_M | Self::Q5_K_S => TensorType::Q5_K,
            Self::Q4_K_M | Self::Q4_K_S => TensorType::Q4_K,
            Self::IQ4_XS => TensorType::IQ4_XS,
            Self::Q3_K_L | Self::Q3_K_M | Self::Q3_K_S => TensorType::Q3_K,
            Self::IQ3_M | Self::IQ3_XS => TensorType::IQ3_S,
            Self::Q2_K => TensorType::Q2_K,
            Self::IQ2_M => TensorType::IQ2_S,
        }
    }

    /// Bits per element of a block's matrices, all together: of Llama 3.1 8B as it is published, and within half a
    /// percent of 70B's and Qwen3 30B-A3B's.
    pub(super) const fn block_bits(self) -> f64 {
        match self {
            Self::Q8_0 => 8.509,
            Self::Q6_K => 6.577,
            Self::Q5_K_M => 5.660,
            Self::Q5_K_S => 5.511,
            Self::Q4_K_M => 4.807,
            Self::Q4_K_S => 4.546,
            Self::IQ4_XS => 4.287,
            Self::Q3_K_L => 4.199,
            Self::Q3_K_M => 3.855,
            Self::IQ3_M => 3.580,
            Self::Q3_K_S => 3.459,
            Self::IQ3_XS => 3.282,
            Self::Q2_K => 2.953,
            Self::IQ2_M => 2.775,
        }
    }

    /// The type of the output matrix, and of token embeddings that serve as one.
    pub(super) const fn output_type(self) -> TensorType {
        match self {
            Self::Q8_0 => TensorType::Q8_0,
            Self::IQ2_M => TensorType::Q5_K,
            _ => TensorType::Q6_K,
        }
    }
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no quantisation whose mixture of types is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no quantisation that sizes are known of, as Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q3_K_M and Q2_K are"
)]
pub struct QuantisationError {
    text: String,
}

impl FromStr for Quantisation {
    type Err = QuantisationError;

    fn from_str(text: &str) -> Result<Self, QuantisationError> {
        Self::ALL
            .into_iter()
            .find(|quantisation| quantisation.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| QuantisationError {
                text: text.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::Quantisation;

    #[test]
    fn every_quantisation_is_found_by_its_name_and_no_other_is() {
        for quantisation in Quantisation::ALL {
            let name = quantisation.to_string();
            assert_eq!(name.to_lowercase().parse(), Ok(quantisation));
            assert_eq!(serde_json::to_value(quantisation).unwrap(), name);
        }
        assert!("Q9_K".parse::<Quantisation>().is_err());
    }
}
