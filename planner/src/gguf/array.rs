//! Values that stay in the file: arrays and very long strings, and the reading of them.

use std::fmt::Display;

use super::cursor::{Cursor, Fault};
use super::error::Error;
use super::source::Source;
use super::value::ValueType;

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
/// header was read.
#[derive(Clone, Copy, Debug)]
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

    /// The bytes of all elements in the file, the 8-byte lengths of strings included.
    pub fn byte_len(&self) -> u64 {
        self.place.bytes
    }

    /// The offset of the first element from the beginning of the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.place.at
    }

    /// The elements as the file holds them: little-endian numbers, or strings with their 8-byte lengths.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] or [`Error::Read`].
    pub fn raw_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        let mut cursor = self.cursor()?;
        cursor
            .append(self.place.bytes, &mut out)
            .map_err(|fault| self.fault(fault, "elements"))?;
        Ok(out)
    }

    /// The elements of an array of strings, one at a time.
    ///
    /// # Errors
    ///
    /// [`Error::ElementType`] if the elements are no strings; [`Error::Changed`].
    pub fn strings(&self) -> Result<Strings<'a>, Error> {
        self.expect(&[ValueType::Str], "str")?;
        Ok(Strings {
            array: *self,
            cursor: self.cursor()?,
            next: 0,
            text: Vec::new(),
        })
    }

    /// The elements of an array of `u32`, or of `i32` none of which is negative.
    ///
    /// llama.cpp reads both as `u32` (`src/llama-model-loader.cpp`, `get_arr`), but takes the bits of a negative
    /// one as they are.
    ///
    /// # Errors
    ///
    /// [`Error::ElementType`], [`Error::OutOfRange`] for a negative element, [`Error::Changed`], [`Error::Read`].
    pub fn to_u32s(&self) -> Result<Vec<u32>, Error> {
        match self.place.ty {
            ValueType::U32 => self.numbers(u32::from_le_bytes),
            _ => {
                self.expect(&[ValueType::I32], "u32 or i32")?;
                self.convert(self.numbers(i32::from_le_bytes)?, "a u32")
            }
        }
    }

    /// The elements of an array of `i32`, or of `u32` all of which fit.
    ///
    /// # Errors
    ///
    /// [`Error::ElementType`], [`Error::OutOfRange`] for an element above 2^31 - 1, [`Error::Changed`],
    /// [`Error::Read`].
    pub fn to_i32s(&self) -> Result<Vec<i32>, Error> {
        match self.place.ty {
            ValueType::I32 => self.numbers(i32::from_le_bytes),
            _ => {
                self.expect(&[ValueType::U32], "i32 or u32")?;
                self.convert(self.numbers(u32::from_le_bytes)?, "an i32")
            }
        }
    }

    /// The elements of an array of integers of any type (`bool` counts as 0 or 1), none of which is negative.
    ///
    /// # Errors
    ///
    /// [`Error::ElementType`], [`Error::OutOfRange`] for a negative element, [`Error::Changed`], [`Error::Read`].
    pub fn to_uints(&self) -> Result<Vec<u64>, Error> {
        let wanted = "a number >= 0";
        match self.place.ty {
            ValueType::U8 => self.numbers(|b| u64::from(u8::from_le_bytes(b))),
            ValueType::U16 => self.numbers(|b| u64::from(u16::from_le_bytes(b))),
            ValueType::U32 => self.numbers(|b| u64::from(u32::from_le_bytes(b))),
            ValueType::U64 => self.numbers(u64::from_le_bytes),
            ValueType::Bool => self.numbers(|b: [u8; 1]| u64::from(b[0] != 0)),
            ValueType::I8 => self.convert(self.numbers(i8::from_le_bytes)?, wanted),
            ValueType::I16 => self.convert(self.numbers(i16::from_le_bytes)?, wanted),
            ValueType::I32 => self.convert(self.numbers(i32::from_le_bytes)?, wanted),
            ValueType::I64 => self.convert(self.numbers(i64::from_le_bytes)?, wanted),
            _ => Err(self.wrong_type("an integer type")),
        }
    }

    /// The elements of an array of `u64`.
    ///
    /// # Errors
    ///
    /// [`Error::ElementType`], [`Error::Changed`], [`Error::Read`].
    pub fn to_u64s(&self) -> Result<Vec<u64>, Error> {
        self.expect(&[ValueType::U64], "u64")?;
        self.numbers(u64::from_le_bytes)
    }

    /// The elements of an array of `f32`.
    ///
    /// # Errors
    ///
    /// [`Error::ElementType`], [`Error::Changed`], [`Error::Read`].
    pub fn to_f32s(&self) -> Result<Vec<f32>, Error> {
        self.expect(&[ValueType::F32], "f32")?;
        self.numbers(f32::from_le_bytes)
    }

    /// The elements of an array of `bool`; any byte other than 0 is true.
    ///
    /// # Errors
    ///
    /// [`Error::ElementType`], [`Error::Changed`], [`Error::Read`].
    pub fn to_bools(&self) -> Result<Vec<bool>, Error> {
        self.expect(&[ValueType::Bool], "bool")?;
        self.numbers(|b: [u8; 1]| b[0] != 0)
    }

    /// The elements as `u32`s as llama.cpp reads a per-layer array: `u32`, `i32` or `bool`
    /// (`src/llama-model-loader.cpp`, `get_arr` into a `std::array`).
    pub(super) fn to_per_layer_u32s(self) -> Result<Vec<u32>, Error> {
        match self.place.ty {
            ValueType::Bool => self.numbers(|b: [u8; 1]| u32::from(b[0] != 0)),
            _ => self.to_u32s(),
        }
    }

    fn expect(&self, accepted: &[ValueType], wanted: &'static str) -> Result<(), Error> {
        if accepted.contains(&self.place.ty) {
            return Ok(());
        }
        Err(self.wrong_type(wanted))
    }

    fn wrong_type(&self, wanted: &'static str) -> Error {
        Error::ElementType {
            path: self.source.path_buf(),
            at: self.place.at,
            wanted,
            found: self.place.ty,
        }
    }

    /// Reads `count` elements of `N` bytes. Growing by what was read, not by what the file says, costs nothing here.
    fn numbers<const N: usize, T>(&self, number: impl Fn([u8; N]) -> T) -> Result<Vec<T>, Error> {
        debug_assert_eq!(self.place.ty.size(), Some(N as u64));
        let mut cursor = self.cursor()?;
        let mut out = Vec::new();
        for _ in 0..self.place.count {
            let bytes = cursor
                .array::<N>()
                .map_err(|fault| self.fault(fault, "elements"))?;
            out.push(number(bytes));
        }
        Ok(out)
    }

    fn convert<T: Copy + Display, U: TryFrom<T>>(
        &self,
        values: Vec<T>,
        wanted: &'static str,
    ) -> Result<Vec<U>, Error> {
        let mut out = Vec::with_capacity(values.len());
        for (index, value) in values.into_iter().enumerate() {
            out.push(U::try_from(value).map_err(|_| Error::OutOfRange {
                path: self.source.path_buf(),
                what: format!("element {index} of the array at byte {}", self.place.at),
                value: value.to_string(),
                wanted,
            })?);
        }
        Ok(out)
    }

    fn cursor(&self) -> Result<Cursor<'a>, Error> {
        self.source.check_unchanged()?;
        let end = self.place.at + self.place.bytes;
        Ok(Cursor::over(self.source, self.place.at, end))
    }

    #[cold]
    fn fault(&self, fault: Fault, what: &str) -> Error {
        let at = self.place.at;
        fault.about(self.source, format_args!("the array at byte {at}: {what}"))
    }
}

/// Two arrays are equal if they are the same place of the same opened file; their elements are not compared.
impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place && self.source.is(other.source)
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
        let index = self.next;
        self.text.clear();
        let length = self.cursor.string_len();
        let read = length.and_then(|length| self.cursor.append(length, &mut self.text));
        Some(match read {
            Ok(()) => {
                self.next += 1;
                Ok(&self.text)
            }
            Err(fault) => {
                self.next = self.array.len();
                Err(self.array.fault(fault, &format!("string {index}")))
            }
        })
    }
}

impl Iterator for Strings<'_> {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next().map(|read| read.map(<[u8]>::to_vec))
    }
}

/// A string that is too long to be kept in memory; it is read from the file on demand.
#[derive(Clone, Copy, Debug)]
pub struct LongText<'a> {
    source: &'a Source,
    at: u64,
    bytes: u64,
}

impl<'a> LongText<'a> {
    pub(super) fn new(source: &'a Source, at: u64, bytes: u64) -> LongText<'a> {
        LongText { source, at, bytes }
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether there is no text; a long text has some.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The whole text, which may not be UTF-8.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] or [`Error::Read`].
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        let place = ArrayPlace {
            ty: ValueType::U8,
            count: self.bytes,
            at: self.at,
            bytes: self.bytes,
        };
        Array::new(self.source, place).raw_bytes()
    }
}

/// Two texts are equal if they are the same place of the same opened file; the text is not compared.
impl PartialEq for LongText<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.bytes) == (other.at, other.bytes) && self.source.is(other.source)
    }
}
