//! A metadata value and its type; arrays, which stay in the file, and the reading of them.

use std::borrow::Cow;
use std::fmt;

use super::error::Error;
use super::source::{Cursor, Source};

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
    /// A byte that is true if it is not 0.
    Bool = 7,
    /// A length of 8 bytes and as many bytes.
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
        let all = [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64];
        all.get(id as usize).copied()
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
        const NAMES: [&str; 13] =
            ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64"];
        NAMES[self as usize]
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
#[allow(missing_docs)] // The variants bear the names of Rust's types.
#[non_exhaustive]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    /// A truth value: any byte other than 0 is true, as in llama.cpp (`ggml/src/gguf.cpp`,
    /// `gguf_reader::read(bool &)`).
    Bool(bool),
    /// A string, up to its first NUL byte: llama.cpp sees no more of it (`gguf_get_val_str` returns a C string).
    Str(&'a str),
    /// A string (up to its first NUL byte) that is not UTF-8. llama.cpp accepts it, so we do.
    Bytes(&'a [u8]),
    /// The bytes of a string too long to be kept (over 1 MiB, or the kept ones exceed 16 MiB together), left in
    /// the file.
    LongText(Array<'a>),
    /// An array, left in the file.
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The number of this type that begins these bytes. Strings and arrays are none.
    pub(super) fn of_bytes(ty: ValueType, bytes: [u8; 8]) -> Self {
        let [a, b, c, d, ..] = bytes;
        match ty {
            ValueType::U8 => Self::U8(a),
            ValueType::I8 => Self::I8(a.cast_signed()),
            ValueType::U16 => Self::U16(u16::from_le_bytes([a, b])),
            ValueType::I16 => Self::I16(i16::from_le_bytes([a, b])),
            ValueType::U32 => Self::U32(u32::from_le_bytes([a, b, c, d])),
            ValueType::I32 => Self::I32(i32::from_le_bytes([a, b, c, d])),
            ValueType::F32 => Self::F32(f32::from_le_bytes([a, b, c, d])),
            ValueType::U64 => Self::U64(u64::from_le_bytes(bytes)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(bytes)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(bytes)),
            ValueType::Bool | ValueType::Str | ValueType::Array => Self::Bool(a != 0),
        }
    }

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

    /// The value's bytes in the file: of a number, of a text, or of all elements of an array.
    pub(crate) fn bytes(&self) -> Result<Cow<'a, [u8]>, Error> {
        Ok(match *self {
            Self::U8(v) => vec![v].into(),
            Self::I8(v) => v.to_le_bytes().to_vec().into(),
            Self::U16(v) => v.to_le_bytes().to_vec().into(),
            Self::I16(v) => v.to_le_bytes().to_vec().into(),
            Self::U32(v) => v.to_le_bytes().to_vec().into(),
            Self::I32(v) => v.to_le_bytes().to_vec().into(),
            Self::F32(v) => v.to_le_bytes().to_vec().into(),
            Self::Bool(v) => vec![v.into()].into(),
            Self::Str(v) => v.as_bytes().into(),
            Self::Bytes(v) => v.into(),
            Self::LongText(v) | Self::Array(v) => v.raw_bytes()?.into(),
            Self::U64(v) => v.to_le_bytes().to_vec().into(),
            Self::I64(v) => v.to_le_bytes().to_vec().into(),
            Self::F64(v) => v.to_le_bytes().to_vec().into(),
        })
    }

    /// The number, if this is an integer of any type.
    pub(super) fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// The number, if this is an integer of any type that is not negative.
    pub fn as_uint(&self) -> Option<u64> {
        self.as_integer()?.try_into().ok()
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

/// What the value of a key can be asked for as: it must be of exactly this type, because llama.cpp converts none
/// (`src/llama-model-loader.cpp`, `GGUFMeta::GKV::get_kv`).
pub(super) trait OfValue<'a>: Sized {
    const TYPE: ValueType;
    fn of_value(value: Value<'a>) -> Option<Self>;
}

macro_rules! of_value {
    ($($ty:ty, $variant:ident;)*) => {$(
        impl<'a> OfValue<'a> for $ty {
            const TYPE: ValueType = ValueType::$variant;
            fn of_value(value: Value<'a>) -> Option<Self> {
                match value {
                    Value::$variant(v) => Some(v),
                    _ => None,
                }
            }
        }
    )*};
}

of_value! {
    u16, U16;
    u32, U32;
    i32, I32;
    f32, F32;
    bool, Bool;
    &'a str, Str;
    Array<'a>, Array;
}

/// Where an array is, as the header's walk has found and checked it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ArrayPlace {
    pub(super) ty: ValueType,
    pub(super) count: u64,
    /// File offset of the first element.
    pub(super) at: u64,
    /// Bytes of all elements, the length fields of strings included.
    pub(super) bytes: u64,
}

/// An array in the metadata: its type and length are at hand, its elements are read from the file on demand.
///
/// A reading method takes the memory of what it returns, no more. It errs if the file has changed since the
/// header was read. Two arrays are equal if they are the same place of the same opened file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    source: &'a Source,
    place: ArrayPlace,
}

impl<'a> Array<'a> {
    pub(super) fn new(source: &'a Source, place: ArrayPlace) -> Array<'a> {
        Array { source, place }
    }

    /// The type of the elements, never [`ValueType::Array`].
    pub fn element_type(&self) -> ValueType {
        self.place.ty
    }

    /// The number of elements.
    pub fn len(&self) -> u64 {
        self.place.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.place.count == 0
    }

    /// The elements as the file holds them: little-endian numbers, or strings with their 8-byte lengths.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] or [`Error::Read`].
    pub fn raw_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        let what = format_args!("the array at byte {}", self.place.at);
        self.cursor()?.bytes(self.place.bytes, &mut out, what)?;
        Ok(out)
    }

    /// The elements of an array of strings, one at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the elements are no strings; [`Error::Changed`].
    pub fn strings(&self) -> Result<Strings<'a>, Error> {
        if self.place.ty != ValueType::Str {
            return Err(self.wrong_type("str"));
        }
        Ok(Strings { array: *self, cursor: self.cursor()?, next: 0, text: Vec::new() })
    }

    /// The elements of an array of `u32`, or of `i32` none of which is negative.
    ///
    /// llama.cpp reads both as `u32` (`src/llama-model-loader.cpp`, `get_arr`), but takes the bits of a negative
    /// one as they are.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for elements of another type and for a negative one; [`Error::Changed`], [`Error::Read`].
    pub fn to_u32s(&self) -> Result<Vec<u32>, Error> {
        let ty = self.place.ty;
        if !matches!(ty, ValueType::U32 | ValueType::I32) {
            return Err(self.wrong_type("u32 or i32"));
        }
        let bytes = self.raw_bytes()?;
        let mut out = Vec::with_capacity(bytes.len() / 4);
        for (index, bytes) in bytes.as_chunks().0.iter().enumerate() {
            let value = i32::from_le_bytes(*bytes);
            if ty == ValueType::I32 && value < 0 {
                let at = self.place.at + index as u64 * 4;
                let problem = format!("element {index} of the array is {value}, which is not a u32");
                return Err(self.source.malformed(at, problem));
            }
            out.push(value.cast_unsigned());
        }
        Ok(out)
    }

    /// The elements as `u32`s as llama.cpp reads a per-layer array: `u32`, `i32` or `bool`
    /// (`src/llama-model-loader.cpp`, `get_arr` into a `std::array`).
    pub(super) fn to_per_layer_u32s(self) -> Result<Vec<u32>, Error> {
        if self.place.ty != ValueType::Bool {
            return self.to_u32s();
        }
        let bytes = self.raw_bytes()?;
        Ok(bytes.iter().map(|&b| (b != 0).into()).collect())
    }

    fn wrong_type(&self, wanted: &str) -> Error {
        let found = self.place.ty;
        let problem = format!("the elements of the array are of type {found}, not {wanted}");
        self.source.malformed(self.place.at, problem)
    }

    fn cursor(&self) -> Result<Cursor<'a>, Error> {
        self.source.check_unchanged()?;
        let end = self.place.at + self.place.bytes;
        Ok(Cursor::over(self.source, self.place.at, end))
    }
}

/// The strings of an array, read as they are asked for.
///
/// As an iterator it yields owned bytes; [`read_next`](Self::read_next) lends them instead and so allocates nothing per
/// string. They are bytes because llama.cpp does not ask for UTF-8 here, and tokens often are parts of characters.
pub struct Strings<'a> {
    array: Array<'a>,
    cursor: Cursor<'a>,
    next: u64,
    text: Vec<u8>,
}

impl Strings<'_> {
    /// Lends the next string, or `None` after the last one or after an error.
    ///
    /// # Errors
    ///
    /// [`Error::Read`], or [`Error::Truncated`] if the file has been overwritten since its header was read.
    pub fn read_next(&mut self) -> Option<Result<&[u8], Error>> {
        if self.next == self.array.len() {
            return None;
        }
        let (at, index) = (self.array.place.at, self.next);
        let what = format_args!("string {index} of the array at byte {at}");
        let length = self.cursor.string_len(what);
        let read = length.and_then(|length| self.cursor.bytes(length, &mut self.text, what));
        self.next = match read {
            Ok(()) => index + 1,
            Err(_) => self.array.len(),
        };
        Some(read.map(|()| &self.text[..]))
    }
}

impl Iterator for Strings<'_> {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next().map(|read| read.map(<[u8]>::to_vec))
    }
}
