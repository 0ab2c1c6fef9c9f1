//! The key-value part of one file: reading it, keeping it small, finding a key.

use super::array::{Array, ArrayPlace, LongText};
use super::cursor::{Cursor, Fault};
use super::error::Error;
use super::source::Source;
use super::value::{Value, ValueType};

/// The longest key that the format allows, in bytes (`docs/gguf.md` of the ggml project: "at most 2^16-1 bytes long").
const MAX_KEY: u64 = 65535;

/// All keys together, in bytes. Real headers have about 2 KiB of them.
const MAX_KEYS: usize = 64 << 20;

/// The longest string that is kept, in bytes. Chat templates stay below 100 KiB; an embedded
/// `tokenizer.json` has megabytes.
pub(super) const MAX_KEPT_STRING: u64 = 1 << 20;

/// All kept strings together, in bytes.
const MAX_KEPT: u64 = 16 << 20;

/// The most elements that llama.cpp reads (`GGUF_MAX_ARRAY_ELEMENTS`, ggml/src/gguf.cpp).
const MAX_ARRAY: u64 = 1 << 30;

/// The least bytes that a key and its value take: length, one letter, type, one byte.
pub(super) const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;

/// The metadata of one file. Texts lie one after the other in one allocation.
#[derive(Default)]
pub(super) struct Metadata {
    text: String,
    /// Values that are not UTF-8.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Indices of `entries`, ordered by key.
    index: Vec<u32>,
}

struct Entry {
    key: Span,
    /// File offset of the entry.
    at: u64,
    value: Stored,
}

#[derive(Clone, Copy)]
enum Stored {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(Span),
    Bytes(Span),
    LongText { at: u64, bytes: u64 },
    Array(ArrayPlace),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A part of an arena. The arenas' limits keep both numbers within 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Appends `text` to the arena.
    pub(super) fn push(arena: &mut String, text: &str) -> Span {
        let span = Span {
            start: arena.len() as u32,
            len: text.len() as u32,
        };
        arena.push_str(text);
        span
    }

    /// The same part once its arena has been appended to `arena`.
    pub(super) fn after(self, arena: &str) -> Span {
        Span {
            start: self.start + arena.len() as u32,
            ..self
        }
    }

    pub(super) fn of(self, arena: &str) -> &str {
        let start = self.start as usize;
        &arena[start..start + self.len as usize]
    }
}

impl Metadata {
    /// Reads `count` entries, where the cursor stands.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, Error> {
        let mut metadata = Metadata::default();
        let mut scratch = Vec::new();
        let mut keys = 0;
        for index in 0..count {
            let at = cursor.at();
            let key = read_key(cursor, index, &mut scratch)?;
            keys += key.len();
            if keys > MAX_KEYS {
                return Err(Error::TooLong {
                    path: cursor.source().path_buf(),
                    at,
                    what: "the text of all keys".to_owned(),
                    length: keys as u64,
                    limit: MAX_KEYS as u64,
                });
            }
            let key = Span::push(&mut metadata.text, key);
            let value = metadata.read_value(cursor, key, &mut scratch)?;
            metadata.entries.push(Entry { key, at, value });
        }
        metadata.build_index(cursor.source())?;
        Ok(metadata)
    }

    fn read_value(
        &mut self,
        cursor: &mut Cursor<'_>,
        key: Span,
        scratch: &mut Vec<u8>,
    ) -> Result<Stored, Error> {
        let source = cursor.source();
        let ty = read_type(cursor, key.of(&self.text))?;
        if ty == ValueType::Array {
            return read_array(cursor, key.of(&self.text)).map(Stored::Array);
        }
        if ty == ValueType::Str {
            let value = self.read_string(cursor, scratch);
            return value.map_err(|f| f.about(source, value_of(key.of(&self.text))));
        }
        read_number(cursor, ty).map_err(|f| f.about(source, value_of(key.of(&self.text))))
    }

    fn read_string(
        &mut self,
        cursor: &mut Cursor<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Stored, Fault> {
        let length = cursor.string_len()?;
        let kept = (self.text.len() + self.bytes.len()) as u64;
        if length > MAX_KEPT_STRING || kept + length > MAX_KEPT {
            let at = cursor.at();
            cursor.skip(length)?;
            return Ok(Stored::LongText { at, bytes: length });
        }
        scratch.clear();
        cursor.append(length, scratch)?;
        // As far as llama.cpp sees it: gguf_get_val_str returns a C string.
        let nul = scratch.iter().position(|&b| b == 0);
        let value = &scratch[..nul.unwrap_or(scratch.len())];
        if let Ok(value) = str::from_utf8(value) {
            return Ok(Stored::Str(Span::push(&mut self.text, value)));
        }
        let span = Span {
            start: self.bytes.len() as u32,
            len: value.len() as u32,
        };
        self.bytes.extend_from_slice(value);
        Ok(Stored::Bytes(span))
    }

    /// Orders the keys, and refuses to have one twice.
    fn build_index(&mut self, source: &Source) -> Result<(), Error> {
        let key = |i: u32| self.entries[i as usize].key.of(&self.text);
        let mut index: Vec<u32> = (0..self.entries.len() as u32).collect();
        index.sort_unstable_by(|&a, &b| key(a).cmp(key(b)).then(a.cmp(&b)));
        if let Some(pair) = index.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
            return Err(Error::DuplicateKey {
                path: source.path_buf(),
                at: self.entries[pair[1] as usize].at,
                key: key(pair[1]).to_owned(),
                first_at: self.entries[pair[0] as usize].at,
            });
        }
        self.index = index;
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The key and value with this number, in the file's order.
    pub(super) fn entry<'a>(&'a self, source: &'a Source, number: usize) -> (&'a str, Value<'a>) {
        let entry = &self.entries[number];
        (entry.key.of(&self.text), self.value(source, entry.value))
    }

    pub(super) fn get<'a>(&'a self, source: &'a Source, key: &str) -> Option<Value<'a>> {
        self.find(key).map(|e| self.value(source, e.value))
    }

    /// The file offset of a key's entry.
    pub(super) fn offset_of(&self, key: &str) -> Option<u64> {
        self.find(key).map(|entry| entry.at)
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        let entry = |&i: &u32| &self.entries[i as usize];
        let found = self
            .index
            .binary_search_by(|i| entry(i).key.of(&self.text).cmp(key));
        found.ok().map(|place| entry(&self.index[place]))
    }

    fn value<'a>(&'a self, source: &'a Source, stored: Stored) -> Value<'a> {
        match stored {
            Stored::U8(v) => Value::U8(v),
            Stored::I8(v) => Value::I8(v),
            Stored::U16(v) => Value::U16(v),
            Stored::I16(v) => Value::I16(v),
            Stored::U32(v) => Value::U32(v),
            Stored::I32(v) => Value::I32(v),
            Stored::F32(v) => Value::F32(v),
            Stored::Bool(v) => Value::Bool(v),
            Stored::Str(span) => Value::Str(span.of(&self.text)),
            Stored::Bytes(span) => {
                let start = span.start as usize;
                Value::Bytes(&self.bytes[start..start + span.len as usize])
            }
            Stored::LongText { at, bytes } => Value::LongText(LongText::new(source, at, bytes)),
            Stored::Array(place) => Value::Array(Array::new(source, place)),
            Stored::U64(v) => Value::U64(v),
            Stored::I64(v) => Value::I64(v),
            Stored::F64(v) => Value::F64(v),
        }
    }
}

/// Reads a name (of a key or a tensor) of at most `limit` bytes into `scratch`, and checks that
/// llama.cpp reads the same.
pub(super) fn read_name<'b>(
    cursor: &mut Cursor<'_>,
    kind: &str,
    index: u64,
    limit: u64,
    scratch: &'b mut Vec<u8>,
) -> Result<&'b str, Error> {
    let source = cursor.source();
    let at = cursor.at();
    let what = || format!("the name of {kind} {index}");
    let length = cursor.string_len();
    let length = length.map_err(|fault| fault.about(source, what()))?;
    if length > limit {
        return Err(Error::TooLong {
            path: source.path_buf(),
            at,
            what: what(),
            length,
            limit,
        });
    }
    scratch.clear();
    let read = cursor.append(length, scratch);
    read.map_err(|fault| fault.about(source, what()))?;
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    if scratch.contains(&0) {
        return Err(Error::NulByte {
            path: source.path_buf(),
            at,
            what: what(),
            text: text(scratch),
        });
    }
    str::from_utf8(scratch).map_err(|_| Error::NotUtf8 {
        path: source.path_buf(),
        at,
        what: what(),
        text: text(scratch),
    })
}

fn read_key<'b>(
    cursor: &mut Cursor<'_>,
    index: u64,
    scratch: &'b mut Vec<u8>,
) -> Result<&'b str, Error> {
    let at = cursor.at();
    let key = read_name(cursor, "key", index, MAX_KEY, scratch)?;
    if key.is_empty() {
        return Err(Error::EmptyKey {
            path: cursor.source().path_buf(),
            at,
            index,
        });
    }
    Ok(key)
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, Error> {
    let source = cursor.source();
    let at = cursor.at();
    let id = cursor
        .u32()
        .map_err(|f| f.about(source, format_args!("the type of key '{key}'")))?;
    ValueType::from_id(id).ok_or_else(|| Error::ValueType {
        path: source.path_buf(),
        at,
        key: key.to_owned(),
        id,
    })
}

fn read_number(cursor: &mut Cursor<'_>, ty: ValueType) -> Result<Stored, Fault> {
    Ok(match ty {
        ValueType::U8 => Stored::U8(u8::from_le_bytes(cursor.array()?)),
        ValueType::I8 => Stored::I8(i8::from_le_bytes(cursor.array()?)),
        ValueType::U16 => Stored::U16(u16::from_le_bytes(cursor.array()?)),
        ValueType::I16 => Stored::I16(i16::from_le_bytes(cursor.array()?)),
        ValueType::U32 => Stored::U32(u32::from_le_bytes(cursor.array()?)),
        ValueType::I32 => Stored::I32(i32::from_le_bytes(cursor.array()?)),
        ValueType::F32 => Stored::F32(f32::from_le_bytes(cursor.array()?)),
        ValueType::U64 => Stored::U64(u64::from_le_bytes(cursor.array()?)),
        ValueType::I64 => Stored::I64(i64::from_le_bytes(cursor.array()?)),
        ValueType::F64 => Stored::F64(f64::from_le_bytes(cursor.array()?)),
        // Strings and arrays have been read by the caller.
        ValueType::Bool | ValueType::Str | ValueType::Array => {
            Stored::Bool(cursor.array::<1>()?[0] != 0)
        }
    })
}

/// Walks an array, checks that it is inside the file, and remembers where it is.
fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<ArrayPlace, Error> {
    let source = cursor.source();
    let value = |fault: Fault| fault.about(source, value_of(key));
    let type_at = cursor.at();
    let ty = read_type(cursor, key)?;
    if ty == ValueType::Array {
        return Err(Error::NestedArray {
            path: source.path_buf(),
            at: type_at,
            key: key.to_owned(),
        });
    }
    let count_at = cursor.at();
    let count = cursor.u64().map_err(value)?;
    if count > MAX_ARRAY {
        return Err(Error::TooLong {
            path: source.path_buf(),
            at: count_at,
            what: format!("the array '{key}'"),
            length: count,
            limit: MAX_ARRAY,
        });
    }
    let at = cursor.at();
    // No overflow: the count is at most 2^30. A string takes at least its length field.
    let least = count * ty.size().unwrap_or(8);
    let all = |f: Fault| {
        f.about(
            source,
            format_args!("the array '{key}' of {count} {ty} elements"),
        )
    };
    cursor.require(least).map_err(all)?;
    if ty == ValueType::Str {
        let walked = cursor.skip_strings(count);
        walked
            .map_err(|(i, f)| f.about(source, format_args!("string {i} of the array '{key}'")))?;
    } else {
        cursor.skip(least).map_err(value)?;
    }
    Ok(ArrayPlace {
        ty,
        count,
        at,
        bytes: cursor.at() - at,
    })
}

fn value_of(key: &str) -> String {
    format!("the value of key '{key}'")
}
