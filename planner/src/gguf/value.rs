//! A metadata value and its type.

use std::fmt;

use super::array::{Array, LongText};

/// The type of a metadata value or of an array's elements (`enum gguf_type`, `ggml/include/gguf.h`).
#[doc(alias = "gguf_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ValueType {
    /// 8-bit unsigned integer.
    U8 = 0,
    /// 8-bit signed integer.
    I8 = 1,
    /// 16-bit unsigned integer.
    U16 = 2,
    /// 16-bit signed integer.
    I16 = 3,
    /// 32-bit unsigned integer.
    U32 = 4,
    /// 32-bit signed integer.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// A byte that is true if it is not 0.
    Bool = 7,
    /// A length of 8 bytes and as many bytes.
    Str = 8,
    /// An element type, a count and the elements.
    Array = 9,
    /// 64-bit unsigned integer.
    U64 = 10,
    /// 64-bit signed integer.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The id in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type with this id, if there is one.
    pub fn from_id(id: u32) -> Option<ValueType> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The bytes of one value in a file, or `None` for strings and arrays, whose size is their own.
    pub const fn size(self) -> Option<u64> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Str | Self::Array => return None,
        })
    }

    /// The name that llama.cpp prints: `u32`, `str`, `arr`.
    #[doc(alias = "gguf_type_name")]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "str",
            Self::Array => "arr",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value. Numbers and strings are at hand; arrays and very long strings stay in the file until
/// they are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// 8-bit unsigned integer.
    U8(u8),
    /// 8-bit signed integer.
    I8(i8),
    /// 16-bit unsigned integer.
    U16(u16),
    /// 16-bit signed integer.
    I16(i16),
    /// 32-bit unsigned integer.
    U32(u32),
    /// 32-bit signed integer.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// A truth value: any byte other than 0 is true, as in llama.cpp (`ggml/src/gguf.cpp`,
    /// `gguf_reader::read(bool &)`).
    Bool(bool),
    /// A string, up to its first NUL byte: llama.cpp sees no more of it (`gguf_get_val_str` returns a C string).
    Str(&'a str),
    /// A string (up to its first NUL byte) that is not UTF-8. llama.cpp accepts it, so we do.
    Bytes(&'a [u8]),
    /// A string too long to be kept (over 1 MiB, or the kept ones exceed 16 MiB together).
    LongText(LongText<'a>),
    /// An array, left in the file.
    Array(Array<'a>),
    /// 64-bit unsigned integer.
    U64(u64),
    /// 64-bit signed integer.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type in the file.
    pub const fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) | Self::Bytes(_) | Self::LongText(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The number, if this is an integer of any type that is not negative.
    pub fn as_uint(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The text, if this is a string that is kept and is UTF-8.
    pub const fn as_str(&self) -> Option<&'a str> {
        match *self {
            Self::Str(v) => Some(v),
            _ => None,
        }
    }

    /// The array, if this is one.
    pub const fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}

/// Numbers and strings as they are; bytes that are no UTF-8 with a replacement character; `[u32; 12]` for an array.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::Str(v) => v.fmt(f),
            Self::Bytes(v) => String::from_utf8_lossy(v).fmt(f),
            Self::LongText(v) => write!(f, "[{} bytes of text]", v.len()),
            Self::Array(v) => write!(f, "[{}; {}]", v.element_type(), v.len()),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_gguf_h_and_thirteen_is_none() {
        for (id, ty) in ValueType::ALL.iter().enumerate() {
            assert_eq!(ty.id() as usize, id);
        }
        assert_eq!(ValueType::from_id(9), Some(ValueType::Array));
        assert_eq!(ValueType::from_id(13), None);
        assert_eq!(ValueType::from_id(u32::MAX), None);
    }

    #[test]
    fn an_integer_of_any_type_is_a_number_unless_it_is_negative() {
        assert_eq!(Value::I64(7).as_uint(), Some(7));
        assert_eq!(Value::U8(255).as_uint(), Some(255));
        assert_eq!(Value::I8(-1).as_uint(), None);
        assert_eq!(Value::F32(1.0).as_uint(), None);
    }
}
