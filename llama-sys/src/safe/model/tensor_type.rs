//! ggml's tensor types, as the compiled library defines them, and the types that a KV cache can have.

use std::fmt;
use std::str::FromStr;

use crate::raw;
use crate::safe::call::Error;
use crate::safe::call::text::owned;
use crate::safe::device::Backend;

/// Facts about the size of one tensor type, from ggml's own table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorTypeInfo {
    /// ggml's number, as written in a GGUF.
    pub id: u32,
    /// ggml's name, such as `q4_K`.
    pub name: String,
    /// Number of elements in a block.
    pub block_size: u64,
    /// Bytes of a block; 0 for numbers that ggml no longer uses.
    pub type_size: u64,
    /// Whether elements are stored in blocks with shared scales.
    pub quantized: bool,
}

/// Every tensor type in ggml's table, including removed ones (`type_size` 0).
///
/// # Errors
///
/// The errors of [`Backend::init`].
pub fn tensor_types() -> Result<Vec<TensorTypeInfo>, Error> {
    Backend::init()?;
    // ggml's enum is signed for MSVC (`raw::CEnum`); our number is unsigned.
    let types = (0..raw::GGML_TYPE_COUNT).zip(0..).map(|(id, number)| {
        // SAFETY: `id` is below GGML_TYPE_COUNT, the length of ggml's table (ggml.c, type_traits).
        unsafe {
            TensorTypeInfo {
                id: number,
                name: owned(raw::ggml_type_name(id)),
                block_size: raw::ggml_blck_size(id) as u64,
                type_size: raw::ggml_type_size(id) as u64,
                quantized: raw::ggml_is_quantized(id),
            }
        }
    });
    Ok(types.collect())
}

/// The types that a KV cache can have: llama.cpp's own list (common/arg.cpp, kv_cache_types). Other types lack the
/// operation that writes rows into the cache (SET_ROWS), or crash in attention. So this enum does not contain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, non_camel_case_types, reason = "the names are ggml's")]
#[non_exhaustive]
pub enum KvType {
    F32,
    #[default]
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    IQ4_NL,
    Q5_0,
    Q5_1,
}

impl KvType {
    /// Every type, in llama.cpp's order.
    pub const ALL: [Self; 9] =
        [Self::F32, Self::F16, Self::BF16, Self::Q8_0, Self::Q4_0, Self::Q4_1, Self::IQ4_NL, Self::Q5_0, Self::Q5_1];

    pub(crate) const fn id(self) -> raw::ggml_type {
        self.facts().0
    }

    /// ggml's number, name and elements per block (ggml.c, `type_traits`). They are repeated here because they are
    /// needed before a runtime is opened.
    const fn facts(self) -> (raw::ggml_type, &'static str, u32) {
        match self {
            Self::F32 => (raw::GGML_TYPE_F32, "f32", 1),
            Self::F16 => (raw::GGML_TYPE_F16, "f16", 1),
            Self::BF16 => (raw::GGML_TYPE_BF16, "bf16", 1),
            Self::Q8_0 => (raw::GGML_TYPE_Q8_0, "q8_0", 32),
            Self::Q4_0 => (raw::GGML_TYPE_Q4_0, "q4_0", 32),
            Self::Q4_1 => (raw::GGML_TYPE_Q4_1, "q4_1", 32),
            Self::IQ4_NL => (raw::GGML_TYPE_IQ4_NL, "iq4_nl", 32),
            Self::Q5_0 => (raw::GGML_TYPE_Q5_0, "q5_0", 32),
            Self::Q5_1 => (raw::GGML_TYPE_Q5_1, "q5_1", 32),
        }
    }

    /// Number of elements in a block: 1 unless the type is quantised.
    pub const fn block_size(self) -> u32 {
        self.facts().2
    }

    /// Whether elements are stored in blocks with shared scales.
    pub const fn is_quantized(self) -> bool {
        self.block_size() > 1
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().1)
    }
}

impl FromStr for KvType {
    type Err = Error;

    /// Reads ggml's name of a type, in upper or lower case.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|kv| kv.to_string().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
            Error::parameter(
                "type_k/type_v",
                text,
                format!("a KV cache must be of one of these types: {}", names.join(", ")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_types_are_ggmls_and_read_back_by_name() {
        let ggml = tensor_types().unwrap();
        for kv in KvType::ALL {
            assert_eq!(kv.to_string().parse::<KvType>().unwrap(), kv);
            let theirs = &ggml[kv.id() as usize];
            assert_eq!((&*theirs.name, theirs.block_size), (&*kv.to_string(), u64::from(kv.block_size())));
        }
    }

    #[test]
    fn types_without_row_writes_are_refused_by_name() {
        for name in ["iq2_xs", "i8", "q6_K", "nonsense"] {
            let error = name.parse::<KvType>().unwrap_err();
            assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
