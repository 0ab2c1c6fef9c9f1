//! The quantisations that models are published in, and the same model in another one: other types, other bytes,
//! nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gguf::TensorType;

use super::{ModelProfile, Weight, WeightBytes};

/// The short names of `general.file_type`, as people write them in file names (include/llama.h, `llama_ftype`), in the
/// order of their numbers; `-` where there is none.
const FILE_TYPES: &str = "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M \
    Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 \
    MXFP4_MOE NVFP4 Q1_0 Q2_0";

/// The name of a `general.file_type`.
pub(super) fn file_type(number: u32) -> Option<&'static str> {
    FILE_TYPES.split_whitespace().nth(number as usize).filter(|name| *name != "-")
}

/// One line per quantisation: its name, the type of most matrices (`llama_ftype_get_default_type`), that of the output
/// matrix and of token embeddings that serve as one, and the bits per element of a block's matrices, all together: of
/// Llama 3.1 8B as it is published, and within half a percent of 70B's and Qwen3 30B-A3B's.
macro_rules! quantisations {
    ($($name:ident, $default:ident, $output:ident, $bits:literal;)*) => {
        /// A quantisation of a whole model: which type each of its matrices gets. See [`ModelProfile::quantised`].
        #[doc(alias = "llama_ftype")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(non_camel_case_types, missing_docs)] // `Q4_K_M` is the name by which everybody knows it.
        #[non_exhaustive]
        pub enum Quantisation {
            $($name,)*
        }

        impl Quantisation {
            /// All of them, the largest first.
            pub const ALL: [Self; 14] = [$(Self::$name,)*];

            /// Its name, as people write it in file names.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The type of most matrices, that of the output matrix, and the bits per element of all blocks'.
            pub const fn types(self) -> (TensorType, TensorType, f64) {
                match self { $(Self::$name => (TensorType::$default, TensorType::$output, $bits),)* }
            }
        }
    };
}

quantisations! {
    Q8_0, Q8_0, Q8_0, 8.509;
    Q6_K, Q6_K, Q6_K, 6.577;
    Q5_K_M, Q5_K, Q6_K, 5.660;
    Q5_K_S, Q5_K, Q6_K, 5.511;
    Q4_K_M, Q4_K, Q6_K, 4.807;
    Q4_K_S, Q4_K, Q6_K, 4.546;
    IQ4_XS, IQ4_XS, Q6_K, 4.287;
    Q3_K_L, Q3_K, Q6_K, 4.199;
    Q3_K_M, Q3_K, Q6_K, 3.855;
    IQ3_M, IQ3_S, Q6_K, 3.580;
    Q3_K_S, Q3_K, Q6_K, 3.459;
    IQ3_XS, IQ3_S, Q6_K, 3.282;
    Q2_K, Q2_K, Q6_K, 2.953;
    IQ2_M, IQ2_S, Q5_K, 2.775;
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl ModelProfile {
    /// This model in another quantisation, about: each matrix of a block has the quantisation's bits per element, where
    /// `llama-quantize` gives some more and some fewer. Together they are within a hundredth of published files. What
    /// is not quantised in this file (norms, routers), or has rows of no whole blocks, stays as it is.
    pub fn quantised(&self, quantisation: Quantisation) -> Self {
        if self.file_type == Some(quantisation.name()) {
            return self.clone();
        }
        let (default, output, bits) = quantisation.types();
        let mut other = Self { file_type: Some(quantisation.name()), ..self.clone() };
        let WeightBytes { blocks, input, output: last, rope, skipped, unplaced, .. } = &mut other.weights;
        let all = blocks.iter_mut().flatten().chain(input).chain(last).chain(rope).chain(skipped).chain(unplaced);
        let all: Vec<&mut Weight> = all.collect();
        let tied = all.iter().all(|weight| &*weight.name != "output.weight");
        for weight in all {
            let ty = match &*weight.name {
                "output.weight" => output,
                "token_embd.weight" if tied => output,
                _ => default,
            };
            let is_kept = weight.ty == TensorType::F32 || !weight.name.ends_with(".weight");
            if is_kept || !weight.shape[0].is_multiple_of(ty.block_size()) {
                continue;
            }
            let elements = weight.shape.into_iter().fold(1, u64::saturating_mul);
            let rows = elements / weight.shape[0].max(1);
            let bytes = if weight.name.starts_with("blk.") {
                (elements as f64 * bits / 8.0).ceil() as u64
            } else {
                ty.row_bytes(weight.shape[0]).saturating_mul(rows)
            };
            other.file_bytes = other.file_bytes.saturating_sub(weight.bytes).saturating_add(bytes);
            (weight.ty, weight.bytes) = (ty, bytes);
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::file_type;

    #[test]
    fn file_types_have_the_names_of_llama_h() {
        for (number, name) in [(0, "F32"), (7, "Q8_0"), (15, "Q4_K_M"), (32, "BF16"), (36, "TQ1_0"), (41, "Q2_0")] {
            assert_eq!(file_type(number), Some(name), "{number}");
        }
        assert!([4, 33, 42].into_iter().all(|number| file_type(number).is_none()));
    }
}
