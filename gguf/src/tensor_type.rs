//! The element types of tensors, and their sizes in bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One line for each type of `enum ggml_type` (ggml/include/ggml.h): name, id, elements per block, bytes per block. The
/// sizes are those of `type_traits` (ggml/src/ggml.c) and of the structs in `ggml/src/ggml-common.h`.
macro_rules! tensor_types {
    ($($name:ident = $id:literal, $block:literal, $bytes:literal;)*) => {
        /// The type of a tensor's elements, with the number of elements in a block and the block's bytes.
        ///
        /// The variants have llama.cpp's names in upper case. The ids that llama.cpp has removed (4, 5, 31-33, 36-38)
        /// are missing; a file with such an id is rejected with [`Error::Malformed`](crate::Error::Malformed).
        #[doc(alias = "ggml_type")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(non_camel_case_types)] // `Q4_K` is the name by which everybody knows it.
        #[non_exhaustive]
        #[repr(u8)]
        pub enum TensorType {
            $(
                #[doc = concat!("`", stringify!($name), "`: ", stringify!($block), " element(s) in ", stringify!($bytes), " byte(s).")]
                $name = $id,
            )*
        }

        impl TensorType {
            /// Every type, in the order of the ids.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$name,)*];

            /// The number of elements in a block: 1 for plain numbers; 32, 64, 128 or 256 for quantised types.
            #[doc(alias = "ggml_blck_size")]
            pub const fn block_size(self) -> u64 {
                match self { $(TensorType::$name => $block,)* }
            }

            /// The number of bytes in a block.
            #[doc(alias = "ggml_type_size")]
            pub const fn type_size(self) -> u64 {
                match self { $(TensorType::$name => $bytes,)* }
            }

            /// The name in upper case: `Q4_K`, `IQ2_XXS`, `F16`.
            #[doc(alias = "ggml_type_name")]
            pub const fn name(self) -> &'static str {
                match self { $(TensorType::$name => stringify!($name),)* }
            }

            /// The type with this id, or `None` if llama.cpp does not know this id or has removed it.
            pub const fn from_id(id: u32) -> Option<TensorType> {
                match id { $($id => Some(TensorType::$name),)* _ => None }
            }
        }
    };
}

tensor_types! {
    F32     =  0,   1,   4;
    F16     =  1,   1,   2;
    Q4_0    =  2,  32,  18;
    Q4_1    =  3,  32,  20;
    Q5_0    =  6,  32,  22;
    Q5_1    =  7,  32,  24;
    Q8_0    =  8,  32,  34;
    Q8_1    =  9,  32,  36;
    Q2_K    = 10, 256,  84;
    Q3_K    = 11, 256, 110;
    Q4_K    = 12, 256, 144;
    Q5_K    = 13, 256, 176;
    Q6_K    = 14, 256, 210;
    Q8_K    = 15, 256, 292;
    IQ2_XXS = 16, 256,  66;
    IQ2_XS  = 17, 256,  74;
    IQ3_XXS = 18, 256,  98;
    IQ1_S   = 19, 256,  50;
    IQ4_NL  = 20,  32,  18;
    IQ3_S   = 21, 256, 110;
    IQ2_S   = 22, 256,  82;
    IQ4_XS  = 23, 256, 136;
    I8      = 24,   1,   1;
    I16     = 25,   1,   2;
    I32     = 26,   1,   4;
    I64     = 27,   1,   8;
    F64     = 28,   1,   8;
    IQ1_M   = 29, 256,  56;
    BF16    = 30,   1,   2;
    TQ1_0   = 34, 256,  54;
    TQ2_0   = 35, 256,  66;
    MXFP4   = 39,  32,  17;
    NVFP4   = 40,  64,  36;
    Q1_0    = 41, 128,  18;
    Q2_0    = 42,  64,  18;
    F8_E4M3 = 43,   1,   1;
}

impl TensorType {
    /// The id in a file, `enum ggml_type` in llama.cpp.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Whether the elements are quantised, so that a block must be decoded to read one of them.
    #[doc(alias = "ggml_is_quantized")]
    pub const fn is_quantized(self) -> bool {
        self.block_size() > 1
    }

    /// The bytes of a row of `ne0` elements. A partial block counts as a whole block; an overflow gives `u64::MAX`.
    #[doc(alias = "ggml_row_size")]
    pub const fn row_bytes(self, ne0: u64) -> u64 {
        ne0.div_ceil(self.block_size()).saturating_mul(self.type_size())
    }

    /// The reason why an id is not a type (ggml/src/ggml.c, `type_traits`: the ids that llama.cpp has removed).
    pub(crate) fn why_unknown(id: u32) -> String {
        if let Some(name) = in_ik_llama_cpp(id) {
            return format!(
                "{name} of ik_llama.cpp, which llama.cpp does not support: use a file with a type of llama.cpp"
            );
        }
        match id {
            4 | 5 | 31..=33 | 36..=38 => {
                "removed from llama.cpp: use a file in Q4_0 or IQ4_NL, which is repacked at the load"
            }
            _ => "unknown: the file is newer than this llama.cpp, or damaged",
        }
        .to_owned()
    }
}

/// The name of a type that only ik_llama.cpp has (its ggml/include/ggml.h, `enum ggml_type`).
fn in_ik_llama_cpp(id: u32) -> Option<String> {
    // A type with four, eight or sixteen interleaved rows has the plain type's id plus 200, except for these.
    let interleaved = match id {
        233 => Some("Q6_0".to_owned()),
        397 | 399 => Some("Q8_K".to_owned()),
        398 => Some("Q8_KV".to_owned()),
        200..400 => {
            let plain = id - 200;
            TensorType::from_id(plain).map(|ty| ty.name().to_owned()).or_else(|| in_ik_llama_cpp(plain))
        }
        _ => None,
    };
    if let Some(name) = interleaved {
        return Some(format!("{name} with interleaved rows"));
    }
    let name = match id {
        133 => "Q6_0",
        134 => "IQ1_BN",
        135 => "IQ2_BN",
        137 => "IQ2_K",
        138 => "IQ3_K",
        139 => "IQ4_K",
        140 => "IQ5_K",
        141 => "IQ6_K",
        144 => "IQ4_KS",
        145 => "IQ2_KS",
        146 => "IQ4_KSS",
        151 => "Q8_KV",
        152 => "IQ5_KS",
        153 => "IQ2_KT",
        154 => "IQ3_KT",
        155 => "IQ4_KT",
        156 => "IQ3_KS",
        157 => "IQ2_KL",
        158 => "IQ1_KT",
        _ => return None,
    };
    Some(name.to_owned())
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `GGML_TYPE_COUNT` (ggml/include/ggml.h).
    const COUNT: u32 = 44;

    #[test]
    fn every_id_is_a_type_or_a_removed_one() {
        for id in 0..COUNT {
            let ty = TensorType::from_id(id);
            assert_ne!(ty.is_some(), TensorType::why_unknown(id).starts_with("removed"), "id {id}");
            assert_eq!(ty.map_or(id, TensorType::id), id);
        }
        assert_eq!(TensorType::from_id(COUNT), None);
        assert_eq!(TensorType::from_id(u32::MAX), None);
        assert_eq!(TensorType::ALL.len() + 8, COUNT as usize);
    }

    #[test]
    fn types_of_ik_llama_cpp_are_named() {
        for (id, name) in [
            (139, "IQ4_K of"),
            (151, "Q8_KV of"),
            (152, "IQ5_KS of"),
            (212, "Q4_K with interleaved rows of"),
            (233, "Q6_0 with"),
            (339, "IQ4_K with"),
            (398, "Q8_KV with"),
            (399, "Q8_K with"),
        ] {
            let why = TensorType::why_unknown(id);
            assert!(why.starts_with(name) && why.contains("ik_llama.cpp"), "{id}: {why}");
        }
        for id in [44, 136, 160, 199, 200 + 99, 400] {
            assert!(TensorType::why_unknown(id).starts_with("unknown"), "{id}");
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Q4_K.row_bytes(4096), 4096 / 256 * 144);
        assert_eq!(TensorType::Q8_0.row_bytes(33), 68);
        assert_eq!(TensorType::F64.row_bytes(u64::MAX), u64::MAX);
        // A type of 8 bits without a shared scale is a plain number.
        assert_eq!((TensorType::F8_E4M3.row_bytes(33), TensorType::F8_E4M3.is_quantized()), (33, false));
    }
}
