//! Metadata values. Arrays stay in the file until they are read.

use std::borrow::Cow;

use crate::error::Error;
use crate::source::{Cursor, Source};
use crate::value_type::ValueType;

/// A metadata value. Numbers and strings are in memory; arrays stay in the file until they are read.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A number or a boolean.
    Number(Number),
    /// A string up to its first NUL byte. llama.cpp reads strings in the same way (`gguf_get_val_str` returns a C
    /// string).
    Str(&'a str),
    /// A string, up to its first NUL byte, that is not UTF-8. llama.cpp accepts such strings.
    Bytes(&'a [u8]),
    /// An array in the file.
    Array(Array<'a>),
}

/// A number of any type, as stored in the file. A boolean is true unless its byte is 0, as in llama.cpp
/// (`ggml/src/gguf.cpp`, `gguf_reader::read(bool &)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub(crate) ty: ValueType,
    /// Little-endian, padded with zeros.
    pub(crate) bytes: [u8; 8],
}

impl Number {
    /// The number, if it is an integer of any type.
    pub(crate) fn as_integer(self) -> Option<i128> {
        let bits = u64::from_le_bytes(self.bytes);
        let unused = 64 - 8 * self.ty.size()?;
        match self.ty {
            ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => Some(bits.into()),
            ValueType::I8 | ValueType::I16 | ValueType::I32 | ValueType::I64 => {
                Some(((bits << unused).cast_signed() >> unused).into())
            }
            _ => None,
        }
    }

    /// The number as a float, unless it is a boolean.
    pub fn as_f64(self) -> Option<f64> {
        match self.ty {
            ValueType::F32 => Some(f32::from_le_bytes(*self.bytes.first_chunk()?).into()),
            ValueType::F64 => Some(f64::from_le_bytes(self.bytes)),
            _ => self.as_integer().map(|number| number as f64),
        }
    }
}

impl<'a> Value<'a> {
    /// The type in the file.
    pub const fn ty(&self) -> ValueType {
        match self {
            Self::Number(number) => number.ty,
            Self::Str(_) | Self::Bytes(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
        }
    }

    /// The value's bytes, little-endian as in the file: the bytes of a number, of a string without its length, or of
    /// all elements of an array.
    ///
    /// # Errors
    ///
    /// Those of [`Array::raw_bytes`].
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>, Error> {
        Ok(match *self {
            Self::Number(Number { ty, bytes }) => bytes.into_iter().take(ty.size().unwrap_or(0) as usize).collect(),
            Self::Str(text) => text.as_bytes().into(),
            Self::Bytes(bytes) => bytes.into(),
            Self::Array(array) => array.raw_bytes()?.into(),
        })
    }

    /// The bits of a number, padded with zeros; 0 for other values.
    pub(crate) fn bits(&self) -> u64 {
        self.as_number().map_or(0, |number| u64::from_le_bytes(number.bytes))
    }

    /// The number; `None` for other values.
    pub const fn as_number(&self) -> Option<Number> {
        if let Self::Number(number) = *self { Some(number) } else { None }
    }

    /// The text; `None` for values other than UTF-8 strings.
    pub const fn as_str(&self) -> Option<&'a str> {
        if let Self::Str(text) = *self { Some(text) } else { None }
    }

    /// The array; `None` for other values.
    pub const fn as_array(&self) -> Option<Array<'a>> {
        if let Self::Array(array) = *self { Some(array) } else { None }
    }
}

/// The position of an array, which the reader has checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ArrayPlace {
    pub(crate) ty: ValueType,
    pub(crate) count: u64,
    /// File offset of the first element.
    pub(crate) at: u64,
    /// Bytes of all elements, including the length fields of strings.
    pub(crate) bytes: u64,
}

/// An array in the metadata. Its type and length are in memory; its elements are read from the file on demand. Reading
/// fails if the file has changed since the header was read.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(crate) source: &'a Source,
    pub(crate) place: ArrayPlace,
}

/// Two arrays are equal if they are the same array of the same open header.
impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.source, other.source) && self.place == other.place
    }
}

impl<'a> Array<'a> {
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

    /// The elements as stored in the file: little-endian numbers, or strings with their 8-byte lengths.
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

    /// The elements of an array of strings, read one at a time until an element cannot be read. The elements are bytes,
    /// because llama.cpp does not require UTF-8 here, and tokens are often parts of characters.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the elements are not strings; [`Error::Changed`]. An element may give [`Error::Read`],
    /// or [`Error::Truncated`] if the file was overwritten after its header was read.
    pub fn strings(&self) -> Result<impl Iterator<Item = Result<Vec<u8>, Error>> + use<'a>, Error> {
        if self.place.ty != ValueType::Str {
            return Err(self.wrong_type("str"));
        }
        let (at, mut rest, mut cursor) = (self.place.at, 0..self.place.count, self.cursor()?);
        Ok(std::iter::from_fn(move || {
            let index = rest.next()?;
            let what = format_args!("string {index} of the array at byte {at}");
            let mut text = Vec::new();
            let length = cursor.string_len(what);
            let read = length.and_then(|length| cursor.bytes(length, &mut text, what)).map(|()| text);
            if read.is_err() {
                rest = 0..0;
            }
            Some(read)
        }))
    }

    /// The elements of an array of `u32`, or of an array of `i32` without negative numbers
    /// (`src/llama-model-loader.cpp`, `get_arr`).
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for elements of another type and for a negative number; [`Error::Changed`],
    /// [`Error::Read`].
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
                let problem = format_args!("element {index} of the array is {value}, which is not a u32");
                return Err(self.source.malformed(at, problem));
            }
            out.push(value.cast_unsigned());
        }
        Ok(out)
    }

    fn wrong_type(&self, wanted: &str) -> Error {
        let found = self.place.ty;
        let problem = format_args!("the elements of the array are of type {found}, not {wanted}");
        self.source.malformed(self.place.at, problem)
    }

    fn cursor(&self) -> Result<Cursor<'a>, Error> {
        self.source.check_unchanged()?;
        Ok(Cursor::over(self.source, self.place.at, self.place.at + self.place.bytes))
    }
}
