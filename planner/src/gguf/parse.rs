//! One file's header, from the magic to the beginning of its data.

use super::cursor::Cursor;
use super::error::Error;
use super::metadata::{MIN_ENTRY, Metadata};
use super::shards::Shard;
use super::source::Source;
use super::tensor::{self, MIN_INFO, Tensor};

/// The most keys, and the most tensors of a model, that we accept. The largest models have about 2000 tensors and 100
/// keys; each takes about 100 bytes of memory.
pub(super) const MAX_COUNT: u64 = 1 << 20;

/// The alignment of the data unless a file says otherwise (`GGUF_DEFAULT_ALIGNMENT`, `ggml/include/gguf.h`), in bytes.
pub(super) const DEFAULT_ALIGNMENT: u32 = 32;

/// Everything that one file says.
pub(super) struct Part {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Tensor>,
    pub(super) shard: Shard,
}

/// Reads and checks the header of one file.
pub(super) fn read(source: &Source) -> Result<Part, Error> {
    let mut cursor = Cursor::new(source);
    check_version(&mut cursor)?;
    let tensor_count = read_count(&mut cursor, "tensors", MIN_INFO)?;
    let key_count = read_count(&mut cursor, "keys", MIN_ENTRY)?;
    let metadata = Metadata::read(&mut cursor, key_count)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::new();
    for index in 0..tensor_count {
        tensors.push(Tensor::read(&mut cursor, index)?);
    }
    let header_bytes = cursor.at();
    let data_offset = if tensors.is_empty() {
        header_bytes
    } else {
        data_offset(source, header_bytes, alignment)?
    };
    tensor::place(&mut tensors, source, alignment, data_offset)?;
    let shard = Shard {
        path: source.path().clone(),
        file_bytes: source.len(),
    };
    Ok(Part {
        metadata,
        tensors,
        shard,
    })
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), Error> {
    let found = cursor.array("the magic")?;
    let version = cursor.u32("the version");
    let path = cursor.source().path_buf();
    if found != *b"GGUF" {
        return Err(Error::NotGguf { path, found });
    }
    match version? {
        2 | 3 => Ok(()),
        // llama.cpp's own test (`ggml/src/gguf.cpp`): a small number in the wrong order has nothing in its low half.
        version if version != 0 && version & 0xffff == 0 => Err(Error::BigEndian { path, version }),
        version => Err(Error::Version { path, version }),
    }
}

/// Reads a count of things that take at least `least` bytes each, and checks that they can be there.
fn read_count(cursor: &mut Cursor<'_>, things: &str, least: u64) -> Result<u64, Error> {
    let at = cursor.at();
    let count = cursor.u64(format_args!("the number of {things}"))?;
    let room = cursor.remaining() / least;
    let (limit, why) = if room < MAX_COUNT {
        (room, "what is left of the file has room for no more")
    } else {
        (MAX_COUNT, "autoplace's own limit")
    };
    if count <= limit {
        return Ok(count);
    }
    let problem = format_args!("{count} {things}, but there can be at most {limit} ({why})");
    Err(cursor.source().malformed(at, problem))
}

fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    let key = "general.alignment";
    let alignment: u32 = metadata.typed(key)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() {
        return Ok(alignment.into());
    }
    let problem = format_args!("{key} is {alignment}, not a power of two");
    Err(metadata.source.malformed(metadata.offset_of(key), problem))
}

/// The header's end rounded up to the alignment.
fn data_offset(source: &Source, header_bytes: u64, alignment: u64) -> Result<u64, Error> {
    let padded = header_bytes.checked_next_multiple_of(alignment);
    let padded = padded.unwrap_or(u64::MAX);
    if padded <= source.len() {
        return Ok(padded);
    }
    Err(Error::Truncated {
        path: source.path_buf(),
        at: header_bytes,
        what: "the padding before the tensor data".to_owned(),
        needed: padded - header_bytes,
        available: source.len() - header_bytes,
    })
}
