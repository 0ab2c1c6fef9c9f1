//! The types of metadata values.

use std::fmt;

/// The type of a metadata value or of an array's elements (`enum gguf_type`, `ggml/include/gguf.h`).
#[doc(alias = "gguf_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The variants bear the names of Rust's types.
#[repr(u8)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    /// A byte; true unless it is 0.
    Bool = 7,
    /// A length of 8 bytes, followed by that many bytes.
    Str = 8,
    /// An element type, a count and the elements.
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The id in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type with this id, if there is one.
    pub fn from_id(id: u32) -> Option<ValueType> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// The bytes of a value in a file; `None` for strings and arrays, whose size varies.
    pub const fn size(self) -> Option<u64> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Str | Self::Array => return None,
        })
    }
}

impl fmt::Display for ValueType {
    /// Writes the name that llama.cpp prints (`gguf_type_name`): `u32`, `str`, `arr`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 13] =
            ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64"];
        f.pad(NAMES[*self as usize])
    }
}
