//! The header of a model: opening it, reading its files, and access to its content.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use crate::metadata::{MIN_ENTRY, Metadata};
use crate::shards::{self, Shard, assemble, open_beside};
use crate::source::{Cursor, Source};
use crate::tensor::{self, MIN_INFO, Tensor};
use crate::value::Value;
use crate::value_type::ValueType;

/// An accepted model has at most this many keys, and at most this many tensors. The largest models have about 2000
/// tensors and 100 keys; each key or tensor takes about 100 bytes of memory.
pub(crate) const MAX_COUNT: u64 = 1 << 20;

/// The default alignment of the data, in bytes (`GGUF_DEFAULT_ALIGNMENT`, `ggml/include/gguf.h`).
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;

/// The header of a GGUF model: its metadata and tensors, over all shards.
///
/// Clones share all data. The first file stays open, because arrays are read from it on demand.
#[doc(alias = "gguf_context")]
#[derive(Clone)]
pub struct Header {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// The first shard's metadata. Later shards only contain the keys of a split.
    pub(crate) metadata: Metadata,
    pub(crate) shards: Vec<Shard>,
    pub(crate) tensors: Vec<Tensor>,
    /// For each name, the tensor's index in `tensors`.
    pub(crate) by_name: HashMap<Arc<str>, usize>,
}

impl Header {
    /// Reads the header of the model at `path`. If the file is the first of several shards, reads all shards.
    ///
    /// As llama.cpp requires, the shards must be in the folder of the first shard and have names such as
    /// `NAME-00001-of-00003.gguf`.
    ///
    /// # Errors
    ///
    /// Any [`Error`]: the file cannot be read, is not a little-endian GGUF file of version 2 or 3, is damaged or
    /// incomplete, or is not the first shard.
    #[doc(alias = "gguf_init_from_file")]
    pub fn open(path: impl AsRef<Path>) -> Result<Header, Error> {
        let path = path.as_ref();
        let open = |index, count| open_beside(path, index, count);
        Ok(Header { inner: Arc::new(assemble(Source::open(path)?, open)?) })
    }

    /// Reads the header of a GGUF file that is completely in memory, including its tensor data.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open); [`Error::Shards`] for a split model.
    #[doc(alias = "gguf_init_from_buffer")]
    pub fn parse(bytes: impl Into<Arc<[u8]>>) -> Result<Header, Error> {
        Self::parse_shards([(bytes.into(), 0)])
    }

    /// Reads the header of a model from its shards in order. A shard is given as the beginning of its file and the
    /// length of the whole file. If the stated length is less than the length of the beginning, the length of the
    /// beginning is used.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open); [`Error::Truncated`] if a header is not completely in memory; [`Error::Shards`]
    /// if the number of shards is not that of the model.
    pub fn parse_shards(shards: impl IntoIterator<Item = (Arc<[u8]>, u64)>) -> Result<Header, Error> {
        let given: Vec<_> = shards.into_iter().collect();
        Self::in_memory("<memory>", &given)
    }

    /// Reads the header of a model in memory. Errors name the model `name`.
    pub(crate) fn in_memory(name: &str, given: &[(Arc<[u8]>, u64)]) -> Result<Header, Error> {
        let source = |index: usize| {
            let name = match given.len() {
                0 | 1 => name.to_owned(),
                _ => format!("<memory, shard {}>", index + 1),
            };
            let (bytes, file_bytes) = given.get(index).cloned().unwrap_or_default();
            Source::memory(&name, bytes, file_bytes)
        };
        let wrong_number = |count| {
            let given = given.len();
            let problem = format!("a model of {count} shards, but {given} are given");
            shards::wrong(Path::new(name), problem)
        };
        let inner = assemble(source(0), |index, count| {
            if given.len() == usize::from(count) { Ok(source(index.into())) } else { Err(wrong_number(count)) }
        })?;
        if given.len() > inner.shards.len() {
            return Err(wrong_number(1));
        }
        Ok(Header { inner: Arc::new(inner) })
    }

    /// The opened file; `<memory>` or `<builder>` for a header that was read from memory.
    pub fn path(&self) -> &Path {
        &self.inner.metadata.source.path
    }

    /// Whether the header was read from memory. Its path is then `<memory>` or `<builder>`, which is not a file.
    pub fn is_in_memory(&self) -> bool {
        self.inner.metadata.source.opened().is_none()
    }

    /// The files of the model, in order; at least one.
    pub fn shards(&self) -> &[Shard] {
        &self.inner.shards
    }

    /// The length of all files together, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.inner.shards.iter().map(Shard::file_bytes).fold(0, u64::saturating_add)
    }

    /// The alignment of the tensors' data in bytes, a power of two; of several shards, the smallest alignment.
    #[doc(alias = "general.alignment")]
    pub fn alignment(&self) -> u32 {
        self.inner.shards.iter().map(Shard::alignment).min().unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// Checks that every file of the model is still the file whose header was read. Call this before and after another
    /// reader, such as llama.cpp, opens the files again.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] for a file that was replaced or has another length or modification time; [`Error::Open`] for
    /// a missing file.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.shards().iter().try_for_each(Shard::check_unchanged)
    }

    /// The metadata in the file's order. A split model has the first shard's metadata, as in llama.cpp.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.inner.metadata.iter()
    }

    /// The value of a key.
    #[doc(alias = "gguf_find_key")]
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.inner.metadata.get(key)
    }

    /// The tensors in the order of their data, shard by shard.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.inner.tensors.iter()
    }

    /// The tensor with this name, in any shard.
    #[doc(alias = "gguf_find_tensor")]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        Some(&self.inner.tensors[*self.inner.by_name.get(name)?])
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Header").field(&self.path()).finish()
    }
}

/// Reads and checks the header of one file.
pub(crate) fn read(source: &Source) -> Result<(Metadata, Vec<Tensor>), Error> {
    let mut cursor = Cursor::new(source);
    check_version(&mut cursor)?;
    let tensor_count = read_count(&mut cursor, "tensors", MIN_INFO)?;
    let key_count = read_count(&mut cursor, "keys", MIN_ENTRY)?;
    let metadata = Metadata::read(&mut cursor, key_count)?;
    let alignment = alignment(&metadata)?.into();
    let mut tensors = Vec::new();
    for index in 0..tensor_count {
        tensors.push(Tensor::read(&mut cursor, index)?);
    }
    if !tensors.is_empty() {
        let data_offset = data_offset(source, cursor.at(), alignment)?;
        tensor::place(&mut tensors, source, alignment, data_offset)?;
    }
    Ok((metadata, tensors))
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), Error> {
    let found = cursor.u32(format_args!("the magic"))?.to_le_bytes();
    let version = cursor.u32(format_args!("the version"));
    let path = cursor.source().path_buf();
    if found != *b"GGUF" {
        return Err(Error::NotGguf { path, found });
    }
    match version? {
        2 | 3 => Ok(()),
        // llama.cpp makes the same test (`ggml/src/gguf.cpp`): the low half of a small number is zero if the byte order
        // is wrong.
        version if version != 0 && version & 0xffff == 0 => Err(Error::BigEndian { path, version }),
        version => Err(Error::Version { path, version }),
    }
}

/// Reads a number of items, each of which takes at least `least` bytes, and checks that the rest of the file is long
/// enough for them.
fn read_count(cursor: &mut Cursor<'_>, things: &str, least: u64) -> Result<u64, Error> {
    let at = cursor.at();
    let count = cursor.u64(format_args!("the number of {things}"))?;
    let room = cursor.remaining() / least;
    let (limit, why) = if room < MAX_COUNT {
        (room, "the rest of the file has no room for more")
    } else {
        (MAX_COUNT, "autoplace's own limit")
    };
    if count <= limit {
        return Ok(count);
    }
    let problem = format_args!("{count} {things}, but there can be at most {limit} ({why})");
    Err(cursor.source().malformed(at, problem))
}

pub(crate) fn alignment(metadata: &Metadata) -> Result<u32, Error> {
    let key = "general.alignment";
    let stated = metadata.typed(key, ValueType::U32)?;
    let alignment = stated.map_or(DEFAULT_ALIGNMENT, |value| value.bits() as u32);
    if alignment.is_power_of_two() {
        return Ok(alignment);
    }
    let problem = format_args!("{key} is {alignment}, not a power of two");
    Err(metadata.source.malformed(metadata.offset_of(key), problem))
}

/// The end of the header, rounded up to the alignment.
fn data_offset(source: &Source, header_bytes: u64, alignment: u64) -> Result<u64, Error> {
    let padded = header_bytes.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    if padded <= source.len {
        return Ok(padded);
    }
    Err(Error::Truncated {
        path: source.path_buf(),
        at: header_bytes,
        what: "the padding before the tensor data".to_owned(),
        needed: padded - header_bytes,
        available: source.len - header_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    #[test]
    fn a_file_is_not_in_memory_even_if_it_is_named_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        Builder::new("llama").write_sparse(&path).unwrap();
        let mut source = Source::open(&path).unwrap();
        source.path = Path::new("<x>.gguf").into();
        let none = |_, _| panic!("it has no other shard");
        let header = Header { inner: Arc::new(assemble(source, none).unwrap()) };
        assert_eq!(header.title().as_deref(), Some("<x>"));
        assert!(Builder::new("llama").header().unwrap().is_in_memory());
    }
}
