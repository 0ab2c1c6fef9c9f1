//! The published quantisations, and the profile of a model in another quantisation, which differs only in types and
//! bytes.

mod mixture;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gguf::TensorType;

use super::{ModelProfile, Weight, WeightBytes};

use mixture::{Mixture, block_of};

/// One line for each quantisation: its name, the type of most matrices (`llama_ftype_get_default_type`), the type of
/// the output matrix and of token embeddings that serve as output matrix (`llama_tensor_get_type_impl`), and the bits
/// per element of all blocks' matrices in the published Llama 3.1 8B.
macro_rules! quantisations {
    ($($name:ident, $default:ident, $output:ident, $bits:literal;)*) => {
        /// A quantisation of a whole model: the type of each matrix. See [`ModelProfile::quantised`].
        #[doc(alias = "llama_ftype")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(non_camel_case_types, missing_docs)] // `Q4_K_M` is the name by which everybody knows it.
        #[non_exhaustive]
        pub enum Quantisation {
            $($name,)*
        }

        impl Quantisation {
            /// All quantisations, the largest first.
            pub const ALL: [Self; 14] = [$(Self::$name,)*];

            /// The name, as in file names.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The type of most matrices, the type of the output matrix, and the bits per element of all blocks'
            /// matrices in an 8B model whose rows consist of whole blocks. [`ModelProfile::quantised`] returns the
            /// types of a particular model.
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

/// Alignment of each tensor's data in a file, in bytes (gguf.h, `GGUF_DEFAULT_ALIGNMENT`).
const ALIGNMENT: u64 = 32;

impl ModelProfile {
    /// This model as `llama-quantize` would write it in another quantisation: each tensor with its new type and bytes,
    /// without an importance matrix if the quantisation allows that. Norms, routers and other tensors that
    /// llama-quantize keeps stay as they are. If rows do not consist of whole blocks, the tensor gets the type that
    /// llama-quantize uses instead (src/llama-quant.cpp, `tensor_type_fallback`).
    ///
    /// The bytes of tensors are exact. The bytes of the file are slightly wrong, because the header's length is taken
    /// as unchanged.
    pub fn quantised(&self, quantisation: Quantisation) -> Self {
        if self.file_type == Some(quantisation.name()) {
            return self.clone();
        }
        let mut other = Self { file_type: Some(quantisation.name()), ..self.clone() };
        let mut file_bytes = other.file_bytes;
        let WeightBytes { blocks, input, output, rope, skipped, unplaced, .. } = &mut other.weights;
        let all = blocks.iter_mut().flatten().chain(input).chain(output).chain(rope).chain(skipped).chain(unplaced);
        let mut all: Vec<&mut Weight> = all.collect();
        all.sort_by(|a, b| (block_of(&a.name), &a.name).cmp(&(block_of(&b.name), &b.name)));
        let mut mixture = Mixture::new(quantisation, self, all.iter().map(|weight| &*weight.name));
        for weight in all {
            let ty = mixture.ty(&weight.name, weight.shape, weight.ty);
            if ty == weight.ty {
                continue;
            }
            let rows = weight.shape[1..].iter().copied().fold(1, u64::saturating_mul);
            let bytes = ty.row_bytes(weight.shape[0]).saturating_mul(rows);
            let padded = |bytes: u64| bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
            file_bytes = file_bytes.saturating_sub(padded(weight.bytes)).saturating_add(padded(bytes));
            (weight.ty, weight.bytes) = (ty, bytes);
        }
        other.file_bytes = file_bytes;
        other
    }
}
