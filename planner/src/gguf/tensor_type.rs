//! The element types that a tensor can be stored in, and how many bytes they take.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One line per type of `enum ggml_type` (ggml/include/ggml.h): name, id, elements per block, bytes per block,
/// quantised. Block and byte counts are those of `type_traits` (ggml/src/ggml.c), whose sizes are the structs of
/// `ggml/src/ggml-common.h`.
macro_rules! tensor_types {
    ($($name:ident = $id:literal, $block:literal, $bytes:literal, $quantized:literal;)*) => {
        /// The type of a tensor's elements: how many of them share a block, and how many bytes a block takes.
        ///
        /// The variants bear llama.cpp's names in capitals. Ids that llama.cpp has removed (4, 5, 31-33, 36-38) are not
        /// among them; a file that uses one is refused with [`Error::TensorType`](crate::gguf::Error::TensorType).
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
            /// Every type, in the order of their ids.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$name,)*];

            /// The number of elements in a block: 1 for plain numbers, 32, 64, 128 or 256 for quantised types.
            #[doc(alias = "ggml_blck_size")]
            pub const fn block_size(self) -> u64 {
                match self { $(TensorType::$name => $block,)* }
            }

            /// The number of bytes in a block.
            #[doc(alias = "ggml_type_size")]
            pub const fn type_size(self) -> u64 {
                match self { $(TensorType::$name => $bytes,)* }
            }

            /// Whether the elements are quantised, so that a block must be decoded to read one of them.
            #[doc(alias = "ggml_is_quantized")]
            pub const fn is_quantized(self) -> bool {
                match self { $(TensorType::$name => $quantized,)* }
            }

            /// The name in capitals, as files and people write it: `Q4_K`, `IQ2_XXS`, `F16`.
            #[doc(alias = "ggml_type_name")]
            pub const fn name(self) -> &'static str {
                match self { $(TensorType::$name => stringify!($name),)* }
            }

            /// The type with this id, or `None` if llama.cpp knows none or has removed it.
            pub const fn from_id(id: u32) -> Option<TensorType> {
                match id { $($id => Some(TensorType::$name),)* _ => None }
            }
        }
    };
}

tensor_types! {
    F32     =  0,   1,   4, false;
    F16     =  1,   1,   2, false;
    Q4_0    =  2,  32,  18, true;
    Q4_1    =  3,  32,  20, true;
    Q5_0    =  6,  32,  22, true;
    Q5_1    =  7,  32,  24, true;
    Q8_0    =  8,  32,  34, true;
    Q8_1    =  9,  32,  36, true;
    Q2_K    = 10, 256,  84, true;
    Q3_K    = 11, 256, 110, true;
    Q4_K    = 12, 256, 144, true;
    Q5_K    = 13, 256, 176, true;
    Q6_K    = 14, 256, 210, true;
    Q8_K    = 15, 256, 292, true;
    IQ2_XXS = 16, 256,  66, true;
    IQ2_XS  = 17, 256,  74, true;
    IQ3_XXS = 18, 256,  98, true;
    IQ1_S   = 19, 256,  50, true;
    IQ4_NL  = 20,  32,  18, true;
    IQ3_S   = 21, 256, 110, true;
    IQ2_S   = 22, 256,  82, true;
    IQ4_XS  = 23, 256, 136, true;
    I8      = 24,   1,   1, false;
    I16     = 25,   1,   2, false;
    I32     = 26,   1,   4, false;
    I64     = 27,   1,   8, false;
    F64     = 28,   1,   8, false;
    IQ1_M   = 29, 256,  56, true;
    BF16    = 30,   1,   2, false;
    TQ1_0   = 34, 256,  54, true;
    TQ2_0   = 35, 256,  66, true;
    MXFP4   = 39,  32,  17, true;
    NVFP4   = 40,  64,  36, true;
    Q1_0    = 41, 128,  18, true;
    Q2_0    = 42,  64,  18, true;
}

impl TensorType {
    /// The id in a file, `enum ggml_type` in llama.cpp.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type with this name, in capitals or not.
    pub fn from_name(name: &str) -> Option<TensorType> {
        let same = |ty: &&TensorType| ty.name().eq_ignore_ascii_case(name);
        Self::ALL.iter().find(same).copied()
    }

    /// The bytes of a row of `ne0` elements; a block begun is counted whole, and what does not fit in 64
    /// bits is `u64::MAX`.
    ///
    /// llama.cpp requires `ne0` to be a multiple of [`block_size`](Self::block_size);
    /// [`Header`](crate::gguf::Header) has checked that of every tensor. Use
    /// [`checked_row_bytes`](Self::checked_row_bytes) for a number that nobody has checked.
    #[doc(alias = "ggml_row_size")]
    pub const fn row_bytes(self, ne0: u64) -> u64 {
        ne0.div_ceil(self.block_size())
            .saturating_mul(self.type_size())
    }

    /// The bytes of a row of `ne0` elements, or `None` if that is no whole number of blocks or exceeds 64 bits.
    pub const fn checked_row_bytes(self, ne0: u64) -> Option<u64> {
        if ne0.is_multiple_of(self.block_size()) {
            (ne0 / self.block_size()).checked_mul(self.type_size())
        } else {
            None
        }
    }

    /// What llama.cpp says of an id it has removed (ggml/src/ggml.c, `type_traits`): the old name and
    /// what to use instead.
    pub(super) const fn removed(id: u32) -> Option<&'static str> {
        Some(match id {
            4 => "Q4_2, removed from llama.cpp",
            5 => "Q4_3, removed from llama.cpp",
            31 => "Q4_0_4_4, removed from llama.cpp: use Q4_0, which is repacked when it is loaded",
            32 => "Q4_0_4_8, removed from llama.cpp: use Q4_0, which is repacked when it is loaded",
            33 => "Q4_0_8_8, removed from llama.cpp: use Q4_0, which is repacked when it is loaded",
            36 => {
                "IQ4_NL_4_4, removed from llama.cpp: use IQ4_NL, which is repacked when it is loaded"
            }
            37 => {
                "IQ4_NL_4_8, removed from llama.cpp: use IQ4_NL, which is repacked when it is loaded"
            }
            38 => {
                "IQ4_NL_8_8, removed from llama.cpp: use IQ4_NL, which is repacked when it is loaded"
            }
            _ => return None,
        })
    }
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
    const COUNT: u32 = 43;

    #[test]
    fn every_id_is_a_type_or_a_removed_one() {
        for id in 0..COUNT {
            let ty = TensorType::from_id(id);
            assert_ne!(ty.is_some(), TensorType::removed(id).is_some(), "id {id}");
            assert_eq!(ty.map_or(id, TensorType::id), id);
        }
        assert_eq!(TensorType::from_id(COUNT), None);
        assert_eq!(TensorType::from_id(u32::MAX), None);
        assert_eq!(TensorType::ALL.len() + 8, COUNT as usize);
    }

    #[test]
    fn names_are_found_in_capitals_or_not_and_unknown_ones_are_not() {
        for &ty in TensorType::ALL {
            assert_eq!(TensorType::from_name(&ty.to_string()), Some(ty));
            assert_eq!(TensorType::from_name(&ty.name().to_lowercase()), Some(ty));
        }
        assert_eq!(TensorType::from_name("Q4_K_M"), None);
        assert_eq!(format!("{:>6}", TensorType::Q4_K), "  Q4_K");
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Q4_K.row_bytes(4096), 4096 / 256 * 144);
        assert_eq!(TensorType::Q8_0.row_bytes(33), 68);
        assert_eq!(TensorType::Q8_0.checked_row_bytes(33), None);
        assert_eq!(TensorType::Q8_0.checked_row_bytes(64), Some(68));
        assert_eq!(TensorType::F64.row_bytes(u64::MAX), u64::MAX);
        assert_eq!(TensorType::F64.checked_row_bytes(u64::MAX), None);
    }

    #[test]
    fn serialises_as_its_name() {
        let text = serde_json::to_string(&TensorType::IQ4_NL).unwrap();
        assert_eq!(text, "\"IQ4_NL\"");
        assert_eq!(
            serde_json::from_str::<TensorType>(&text).unwrap(),
            TensorType::IQ4_NL
        );
    }
}
