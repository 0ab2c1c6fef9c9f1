//! The metadata of one file: reading it, storing it compactly, finding a key.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::source::{Cursor, Source};
use crate::value::{Array, ArrayPlace, Number, Value};
use crate::value_type::ValueType;

/// The longest key that the format allows, in bytes (`docs/gguf.md` of the ggml project: "at most 2^16-1 bytes long").
const MAX_KEY: u64 = 65535;

/// Maximum bytes of all keys together. Real headers have about 2 KiB.
const MAX_KEYS: u64 = 64 << 20;

/// Maximum number of elements that llama.cpp reads (`GGUF_MAX_ARRAY_ELEMENTS`, ggml/src/gguf.cpp).
const MAX_ARRAY: u64 = 1 << 30;

/// Minimum bytes of a key and its value: length, one letter, type, one byte.
pub(crate) const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;

/// The metadata of one file.
pub(crate) struct Metadata {
    pub(crate) source: Source,
    entries: Vec<Entry>,
    /// For each key, the entry's index in `entries`.
    by_key: HashMap<Arc<str>, usize>,
}

struct Entry {
    key: Arc<str>,
    /// File offset of the entry.
    at: u64,
    value: Stored,
}

enum Stored {
    Number(Number),
    Text(Box<[u8]>),
    Array(ArrayPlace),
}

impl Metadata {
    /// Reads `count` entries at the cursor.
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, Error> {
        let source = cursor.source();
        let mut entries: Vec<Entry> = Vec::new();
        let mut by_key = HashMap::new();
        let mut keys = 0;
        for index in 0..count {
            let at = cursor.at();
            let key = read_name(cursor, MAX_KEY, format_args!("the name of key {index}"))?;
            if key.is_empty() {
                return Err(source.malformed(at, format_args!("key {index} is empty")));
            }
            keys += key.len() as u64;
            if keys > MAX_KEYS {
                return Err(source.too_long(at, format_args!("the text of all keys"), keys, MAX_KEYS));
            }
            let value = read_value(cursor, &key)?;
            if let Some(first) = by_key.insert(key.clone(), entries.len()) {
                let first = entries[first].at;
                let problem = format_args!("key '{key}' occurs twice, first at byte {first}");
                return Err(source.malformed(at, problem));
            }
            entries.push(Entry { key, at, value });
        }
        Ok(Metadata { source: source.clone(), entries, by_key })
    }

    /// The keys and values in the file's order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|entry| (&*entry.key, self.value(&entry.value)))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value<'_>> {
        self.find(key).map(|entry| self.value(&entry.value))
    }

    /// The file offset of a key's entry.
    pub(crate) fn offset_of(&self, key: &str) -> u64 {
        self.find(key).map_or(0, |entry| entry.at)
    }

    /// The value of a key, which must have exactly this type; `None` if the header lacks the key. Values are not
    /// converted, as in llama.cpp (src/llama-model-loader.cpp, `GGUFMeta::GKV::get_kv`).
    pub(crate) fn typed(&self, key: &str, wanted: ValueType) -> Result<Option<Value<'_>>, Error> {
        match self.get(key) {
            Some(value) if value.ty() != wanted => Err(self.wrong_type(key, wanted, value.ty())),
            value => Ok(value),
        }
    }

    pub(crate) fn wrong_type(&self, key: &str, wanted: ValueType, found: ValueType) -> Error {
        Error::WrongType { path: self.source.path_buf(), at: self.offset_of(key), key: key.to_owned(), wanted, found }
    }

    /// The value of a required key.
    pub(crate) fn required(&self, key: &str, wanted: ValueType) -> Result<Value<'_>, Error> {
        self.typed(key, wanted)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn missing(&self, key: &str) -> Error {
        Error::MissingKey { path: self.source.path_buf(), key: key.to_owned() }
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        self.by_key.get(key).map(|&index| &self.entries[index])
    }

    fn value<'a>(&'a self, stored: &'a Stored) -> Value<'a> {
        match stored {
            Stored::Number(number) => Value::Number(*number),
            Stored::Text(text) => std::str::from_utf8(text).map_or(Value::Bytes(text), Value::Str),
            Stored::Array(place) => Value::Array(Array { source: &self.source, place: *place }),
        }
    }
}

/// Reads the name of a key or tensor of at most `limit` bytes. Control characters are rejected: llama.cpp would cut a
/// name at a NUL, and terminals obey other control characters.
pub(crate) fn read_name(cursor: &mut Cursor<'_>, limit: u64, what: fmt::Arguments<'_>) -> Result<Arc<str>, Error> {
    let source = cursor.source();
    let at = cursor.at();
    let length = cursor.string_len(what)?;
    if length > limit {
        return Err(source.too_long(at, what, length, limit));
    }
    let mut name = Vec::new();
    cursor.bytes(length, &mut name, what)?;
    let name = String::from_utf8(name).map_err(|error| source.not_utf8(at, what, error.as_bytes()))?;
    if name.contains(char::is_control) {
        let name = name.as_bytes().escape_ascii();
        let problem = format_args!("{what} contains a control character: \"{name}\"");
        return Err(source.malformed(at, problem));
    }
    Ok(name.into())
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, Error> {
    let at = cursor.at();
    let id = cursor.u32(format_args!("the type of key '{key}'"))?;
    ValueType::from_id(id).ok_or_else(|| {
        let problem = format_args!("key '{key}' has the value type {id}, but only 0 to 12 exist");
        cursor.source().malformed(at, problem)
    })
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Stored, Error> {
    let what = format_args!("the value of key '{key}'");
    let ty = read_type(cursor, key)?;
    if ty == ValueType::Array {
        return read_array(cursor, key).map(Stored::Array);
    }
    if let Some(size) = ty.size() {
        return Ok(Stored::Number(Number { ty, bytes: cursor.padded(size, what)? }));
    }
    let length = cursor.string_len(what)?;
    let mut text = Vec::new();
    cursor.bytes(length, &mut text, what)?;
    // gguf_get_val_str returns a C string, so llama.cpp sees the text up to its first NUL.
    text.truncate(text.iter().position(|&b| b == 0).unwrap_or(text.len()));
    Ok(Stored::Text(text.into()))
}

/// Goes through an array, checks that it lies inside the file, and records its position.
fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<ArrayPlace, Error> {
    let source = cursor.source();
    let type_at = cursor.at();
    let ty = read_type(cursor, key)?;
    if ty == ValueType::Array {
        return Err(source.malformed(type_at, format_args!("key '{key}' is an array of arrays")));
    }
    let count_at = cursor.at();
    let count = cursor.u64(format_args!("the value of key '{key}'"))?;
    if count > MAX_ARRAY {
        let what = format_args!("the array '{key}'");
        return Err(source.too_long(count_at, what, count, MAX_ARRAY));
    }
    let at = cursor.at();
    // The product cannot overflow, because the count is at most 2^30. A string takes at least its length field.
    let least = count * ty.size().unwrap_or(8);
    let all = format_args!("the array '{key}' of {count} {ty} elements");
    cursor.require(least, all)?;
    if ty == ValueType::Str {
        let mut index = 0;
        while index < count {
            let what = format_args!("string {index} of the array '{key}'");
            let length = cursor.string_len(what)?;
            cursor.skip(length, what)?;
            // The vocabulary is the largest part of a header. To skip all strings within the window at once takes a
            // quarter of the time of skipping them one by one.
            index += 1 + cursor.skip_strings(count - index - 1);
        }
    } else {
        cursor.skip(least, all)?;
    }
    Ok(ArrayPlace { ty, count, at, bytes: cursor.at() - at })
}
