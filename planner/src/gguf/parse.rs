//! One file's header, from the magic to the beginning of its data.

use super::cursor::Cursor;
use super::error::Error;
use super::metadata::{MIN_ENTRY, Metadata};
use super::source::Source;
use super::tensor::{MIN_INFO, TensorInfo, place_tensors, read_tensors};
use super::value::{Value, ValueType};

/// The most keys, and the most tensors of a model, that we accept. The largest models have about 2000 tensors and 100
/// keys; each takes about 100 bytes of memory.
pub(super) const MAX_COUNT: u64 = 1 << 20;

/// The alignment of the data unless a file says otherwise (`GGUF_DEFAULT_ALIGNMENT`, `ggml/include/gguf.h`), in bytes.
pub(super) const DEFAULT_ALIGNMENT: u32 = 32;

/// Everything that one file says.
pub(super) struct Part {
    pub(super) version: u32,
    pub(super) alignment: u64,
    pub(super) metadata: Metadata,
    pub(super) names: String,
    pub(super) tensors: Vec<TensorInfo>,
    /// Where the header ends, before the padding, in bytes.
    pub(super) header_bytes: u64,
    /// Where the data section begins, in bytes.
    pub(super) data_offset: u64,
}

/// Reads and checks the header of one file.
pub(super) fn read(source: &Source) -> Result<Part, Error> {
    let mut cursor = Cursor::new(source);
    let version = read_version(&mut cursor)?;
    let tensor_count = read_count(&mut cursor, "tensors", MIN_INFO)?;
    let key_count = read_count(&mut cursor, "keys", MIN_ENTRY)?;
    let metadata = Metadata::read(&mut cursor, key_count)?;
    let alignment = alignment(source, &metadata)?;
    let mut names = String::new();
    let mut tensors = read_tensors(&mut cursor, tensor_count, &mut names)?;
    let header_bytes = cursor.at();
    let data_offset = data_offset(source, header_bytes, alignment, !tensors.is_empty())?;
    place_tensors(source, alignment, data_offset, &names, &mut tensors)?;
    Ok(Part {
        version,
        alignment,
        metadata,
        names,
        tensors,
        header_bytes,
        data_offset,
    })
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let source = cursor.source();
    let magic: [u8; 4] = cursor.array().map_err(|f| f.about(source, "the magic"))?;
    if magic != *b"GGUF" {
        return Err(Error::NotGguf {
            path: source.path_buf(),
            found: magic,
        });
    }
    let version = cursor.u32().map_err(|f| f.about(source, "the version"))?;
    match version {
        2 | 3 => Ok(version),
        // llama.cpp's own test (`ggml/src/gguf.cpp`): a small number in the wrong order has nothing in its low half.
        _ if version != 0 && version & 0xffff == 0 => Err(Error::BigEndian {
            path: source.path_buf(),
            version,
        }),
        _ => Err(Error::Version {
            path: source.path_buf(),
            version,
        }),
    }
}

/// Reads a count of things that take at least `least` bytes each, and checks that they can be there.
fn read_count(cursor: &mut Cursor<'_>, what: &'static str, least: u64) -> Result<u64, Error> {
    let source = cursor.source();
    let at = cursor.at();
    let count = cursor
        .u64()
        .map_err(|f| f.about(source, format_args!("the number of {what}")))?;
    let room = cursor.remaining() / least;
    let (limit, why) = if room < MAX_COUNT {
        (room, "what is left of the file has room for no more")
    } else {
        (MAX_COUNT, "autoplace's own limit")
    };
    if count <= limit {
        return Ok(count);
    }
    Err(Error::TooMany {
        path: source.path_buf(),
        at,
        what,
        count,
        limit,
        why,
    })
}

fn alignment(source: &Source, metadata: &Metadata) -> Result<u64, Error> {
    let key = "general.alignment";
    match metadata.get(source, key) {
        None => Ok(DEFAULT_ALIGNMENT.into()),
        Some(Value::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment.into()),
        Some(Value::U32(alignment)) => Err(Error::Alignment {
            path: source.path_buf(),
            at: metadata.offset_of(key).unwrap_or_default(),
            alignment,
        }),
        Some(other) => Err(Error::WrongType {
            path: source.path_buf(),
            key: key.to_owned(),
            wanted: ValueType::U32,
            found: other.ty(),
        }),
    }
}

/// The header's end rounded up to the alignment, but only if there are tensors, as in llama.cpp.
fn data_offset(
    source: &Source,
    header_bytes: u64,
    alignment: u64,
    any: bool,
) -> Result<u64, Error> {
    if !any {
        return Ok(header_bytes);
    }
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
