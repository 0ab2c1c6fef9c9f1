//! Values that stay in the file, and the reading of them.

use super::cursor::Cursor;
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

    /// The bytes of all elements in the file, the 8-byte lengths of strings included.
    pub fn byte_len(&self) -> u64 {
        self.place.bytes
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
                let problem =
                    format!("element {index} of the array is {value}, which is not a u32");
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
