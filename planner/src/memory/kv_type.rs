//! The types for the cache of keys and values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::gguf::TensorType;
use crate::machine::ParseError;

/// One line for each type, the widest first.
macro_rules! kv_types {
    ($($(#[$default:meta])* $name:ident;)*) => {
        /// A type for keys or values in the cache.
        ///
        /// llama.cpp writes the cache with `SET_ROWS`. The CPU writes every type that it can quantise to (ggml-cpu.cpp,
        /// `ggml_backend_cpu_device_supports_op`). CUDA writes only these nine types (ggml-cuda.cu,
        /// `ggml_backend_cuda_device_supports_op`), which are also the types that llama.cpp's programs accept
        /// (common/arg.cpp, `kv_cache_types`). Any other type aborts the process or, like `I8`, corrupts the output.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(non_camel_case_types, missing_docs)] // `Q8_0` is the name by which everybody knows it.
        pub enum KvType {
            $($(#[$default])* $name,)*
        }

        impl KvType {
            /// All types, the widest first.
            pub const ALL: [Self; 9] = [$(Self::$name,)*];

            /// The same type as a tensor type.
            pub const fn tensor_type(self) -> TensorType {
                match self { $(Self::$name => TensorType::$name,)* }
            }

            /// Whether the type is quantised, that is, whether the elements of a block share a scale.
            pub const fn is_quantized(self) -> bool {
                self.tensor_type().is_quantized()
            }
        }
    };
}

kv_types! {
    F32;
    #[default]
    F16;
    BF16;
    Q8_0;
    Q5_1;
    Q5_0;
    Q4_1;
    Q4_0;
    IQ4_NL;
}

impl KvType {
    /// The relative rise of perplexity with keys and values of this type instead of `F16`: 0.01 is 1 %. `None` if no
    /// figure is published for llama.cpp.
    ///
    /// `Q8_0`: 6.2344 instead of 6.2322 (LLaMA 3 8B, ggml-org/llama.cpp#7412); 7.8569 instead of 7.8551 (Gemma 3 4B,
    /// #21551). `Q4_0`: 7.9506 instead of 7.8551 (Gemma 3 4B, #21551), 5.2709 instead of 5.2306 (Gemma 4 31B,
    /// ikawrakow/ik_llama.cpp#1599). The method returns the larger figure of each type. All figures are for the short
    /// texts of llama-perplexity, which have a few hundred tokens; longer texts may lose more.
    pub const fn perplexity_cost(self) -> Option<f64> {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => Some(0.0),
            Self::Q8_0 => Some(0.0004),
            Self::Q4_0 => Some(0.0122),
            _ => None,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor_type().fmt(f)
    }
}

impl FromStr for KvType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let what = "not a KV cache type: use f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl";
        Self::ALL
            .into_iter()
            .find(|ty| ty.tensor_type().name().eq_ignore_ascii_case(text))
            .ok_or_else(|| ParseError::new(text, what))
    }
}

#[cfg(test)]
mod tests {
    use super::KvType;

    #[test]
    fn every_type_is_found_by_its_name_and_other_names_are_refused() {
        for ty in KvType::ALL {
            assert_eq!(ty.to_string().to_lowercase().parse(), Ok(ty));
        }
        assert!("q4_K".parse::<KvType>().is_err());
        assert!("iq2_xxs".parse::<KvType>().is_err());
    }
}
