//! What can be wrong with a file, one variant per thing that somebody can act on.

use std::io;
use std::path::{Path, PathBuf};

use super::value::ValueType;

/// Why a GGUF file could not be read, or a value in it could not be had.
///
/// Every message begins with the file's path and, where a place in the file is meant, the byte offset from
/// its beginning (`at`). The path of a header in memory is `<memory>`, that of a
/// [`Builder`](super::Builder) is `<builder>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum Error {
    /// The file cannot be opened.
    #[error("{}: cannot open: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },

    /// The path leads to a folder, a pipe or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile { path: PathBuf },

    /// The system failed to read bytes that should be there.
    #[error("{}: byte {at}: cannot read {needed} bytes: {source}", path.display())]
    Read {
        path: PathBuf,
        at: u64,
        needed: u64,
        source: io::Error,
    },

    /// The system failed to write a file that is being built.
    #[error("{}: cannot write: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },

    /// The file is another one than when its header was read.
    #[error("{}: the file has changed since its header was read ({was} bytes then, {is} bytes now)", path.display())]
    Changed { path: PathBuf, was: u64, is: u64 },

    /// The header goes on after the last byte.
    #[error("{}: byte {at}: {what} needs {needed} bytes, but only {available} are left", path.display())]
    Truncated {
        path: PathBuf,
        at: u64,
        what: String,
        needed: u64,
        available: u64,
    },

    /// The first four bytes are not `GGUF`.
    #[error("{}: byte 0: not a GGUF file: it begins with \"{}\", not \"GGUF\"{}", path.display(), found.escape_ascii(), hint(found))]
    NotGguf { path: PathBuf, found: [u8; 4] },

    /// The file is for a big-endian machine.
    #[error("{}: byte 4: a big-endian GGUF file (its version reads {version:#010x} in little-endian order): convert it with gguf-py's gguf_convert_endian.py", path.display())]
    BigEndian { path: PathBuf, version: u32 },

    /// The format's version is neither 2 nor 3.
    #[error("{}: byte 4: GGUF version {version} is not supported, only 2 and 3 are{}", path.display(), if *version == 1 { " (version 1 is of August 2023: convert the model again)" } else { "" })]
    Version { path: PathBuf, version: u32 },

    /// The file says that it holds more than it can, or more than we accept.
    #[error("{}: byte {at}: {count} {what}, but there can be at most {limit} ({why})", path.display())]
    TooMany {
        path: PathBuf,
        at: u64,
        what: &'static str,
        count: u64,
        limit: u64,
        why: &'static str,
    },

    /// A name, string or array is longer than is allowed.
    #[error("{}: byte {at}: {what} has a length of {length}, but at most {limit} is allowed", path.display())]
    TooLong {
        path: PathBuf,
        at: u64,
        what: String,
        length: u64,
        limit: u64,
    },

    /// A key without a name.
    #[error("{}: byte {at}: key {index} is empty", path.display())]
    EmptyKey { path: PathBuf, at: u64, index: u64 },

    /// A key or a tensor name, or a value of which text was wanted, is not UTF-8.
    #[error("{}: byte {at}: {what} is not UTF-8: \"{text}\"", path.display())]
    NotUtf8 {
        path: PathBuf,
        at: u64,
        what: String,
        text: String,
    },

    /// A key or a tensor name holds a NUL byte, where llama.cpp would cut it.
    #[error("{}: byte {at}: {what} holds a NUL byte: \"{text}\"", path.display())]
    NulByte {
        path: PathBuf,
        at: u64,
        what: String,
        text: String,
    },

    /// Two keys have the same name.
    #[error("{}: byte {at}: key '{key}' again, it is already at byte {first_at}", path.display())]
    DuplicateKey {
        path: PathBuf,
        at: u64,
        key: String,
        first_at: u64,
    },

    /// A value's type is none of the format's thirteen.
    #[error("{}: byte {at}: key '{key}' has the value type {id}, but only 0 to 12 exist", path.display())]
    ValueType {
        path: PathBuf,
        at: u64,
        key: String,
        id: u32,
    },

    /// An array of arrays, which llama.cpp refuses.
    #[error("{}: byte {at}: key '{key}' is an array of arrays", path.display())]
    NestedArray { path: PathBuf, at: u64, key: String },

    /// `general.alignment` is not a power of two.
    #[error("{}: byte {at}: general.alignment is {alignment}, not a power of two", path.display())]
    Alignment {
        path: PathBuf,
        at: u64,
        alignment: u32,
    },

    /// Two tensors have the same name, in one shard or in two.
    #[error("{}: byte {at}: tensor '{tensor}' again, it is already in {} at byte {first_at}", path.display(), first_path.display())]
    DuplicateTensor {
        path: PathBuf,
        at: u64,
        tensor: String,
        first_path: PathBuf,
        first_at: u64,
    },

    /// A tensor has more than four dimensions.
    #[error("{}: byte {at}: tensor '{tensor}' has {n_dims} dimensions, but at most 4 are allowed", path.display())]
    TensorDims {
        path: PathBuf,
        at: u64,
        tensor: String,
        n_dims: u32,
    },

    /// A tensor has a dimension without elements or with a negative number of them.
    #[error("{}: byte {at}: dimension {dim} of tensor '{tensor}' has {elements} elements", path.display())]
    TensorShape {
        path: PathBuf,
        at: u64,
        tensor: String,
        dim: u32,
        elements: i64,
    },

    /// A tensor has more elements or bytes than 63 bits can count.
    #[error("{}: byte {at}: tensor '{tensor}' with shape {shape:?} is larger than 2^63", path.display())]
    TensorTooLarge {
        path: PathBuf,
        at: u64,
        tensor: String,
        shape: [u64; 4],
    },

    /// A tensor's type is unknown to, or was removed from, the llama.cpp that this version of autoplace is built on.
    #[error("{}: byte {at}: tensor '{tensor}' has the type {id} ({})", path.display(), removed.unwrap_or("unknown: the file is newer than this llama.cpp, or damaged"))]
    TensorType {
        path: PathBuf,
        at: u64,
        tensor: String,
        id: u32,
        removed: Option<&'static str>,
    },

    /// A tensor's rows are no whole number of blocks.
    #[error("{}: byte {at}: tensor '{tensor}' has rows of {elements} elements, not a multiple of the {block_size} in a block of {ty}", path.display())]
    TensorRow {
        path: PathBuf,
        at: u64,
        tensor: String,
        elements: u64,
        ty: super::TensorType,
        block_size: u64,
    },

    /// A tensor does not begin where the one before it ends; llama.cpp accepts neither gaps nor overlaps
    /// nor another order.
    #[error("{}: byte {at}: tensor '{tensor}' is {}: its data begins at offset {offset} of the data section, not at {expected}", path.display(), misplaced(*offset, *expected, *alignment))]
    TensorOffset {
        path: PathBuf,
        at: u64,
        tensor: String,
        offset: u64,
        expected: u64,
        alignment: u64,
    },

    /// A tensor's data reaches past the end of the file: the download is incomplete.
    #[error("{}: byte {at}: the data of tensor '{tensor}' ends at byte {end}, but the file has only {file_bytes}: it is incomplete", path.display())]
    TensorOutside {
        path: PathBuf,
        at: u64,
        tensor: String,
        end: u64,
        file_bytes: u64,
    },

    /// A shard other than the first was opened.
    #[error("{}: this is shard {} of {count}: open the first{}", path.display(), index + 1, first.as_ref().map(|p| format!(", {}", p.display())).unwrap_or_default())]
    NotFirstShard {
        path: PathBuf,
        index: u16,
        count: u16,
        first: Option<PathBuf>,
    },

    /// The name of a split model's first file does not say where the others are.
    #[error("{}: one of {count} shards, so its name must end in \"{expected}\"", path.display())]
    ShardName {
        path: PathBuf,
        count: u16,
        expected: String,
    },

    /// A shard of a split model cannot be opened.
    #[error("{}: shard {} of {count} is missing: {source}", path.display(), index + 1)]
    ShardMissing {
        path: PathBuf,
        index: u16,
        count: u16,
        source: io::Error,
    },

    /// A split model in memory has another number of shards than it says.
    #[error("{}: a model of {count} shards, but {given} are given", path.display())]
    ShardsGiven {
        path: PathBuf,
        count: u16,
        given: usize,
    },

    /// A shard says of itself that it is another one.
    #[error("{}: the key '{key}' is {found}, not {wanted}: a shard of another model, or under another's name", path.display())]
    ShardMismatch {
        path: PathBuf,
        key: &'static str,
        found: i64,
        wanted: i64,
    },

    /// The shards do not hold as many tensors as the first one says.
    #[error("{}: split.tensors.count is {said}, but the shards hold {found} tensors", path.display())]
    ShardTensors {
        path: PathBuf,
        said: i32,
        found: usize,
    },

    /// A key that is needed is not there.
    #[error("{}: the key '{key}' is missing", path.display())]
    MissingKey { path: PathBuf, key: String },

    /// A key has a value of another type than the one wanted; llama.cpp converts none either.
    #[error("{}: key '{key}' is of type {found}, not {wanted}", path.display())]
    WrongType {
        path: PathBuf,
        key: String,
        wanted: ValueType,
        found: ValueType,
    },

    /// The elements of an array have another type than one of those wanted.
    #[error("{}: byte {at}: the elements of the array are of type {found}, not {wanted}", path.display())]
    ElementType {
        path: PathBuf,
        at: u64,
        wanted: &'static str,
        found: ValueType,
    },

    /// An array has another length than the one wanted.
    #[error("{}: key '{key}' has {found} elements, not {wanted}", path.display())]
    ArrayLength {
        path: PathBuf,
        key: String,
        wanted: u64,
        found: u64,
    },

    /// A number does not fit the type wanted (a negative one where none may be).
    #[error("{}: {what} is {value}, which is not {wanted}", path.display())]
    OutOfRange {
        path: PathBuf,
        what: String,
        value: String,
        wanted: &'static str,
    },
}

impl Error {
    /// The file that the error is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Open { path, .. }
            | Self::NotAFile { path }
            | Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Changed { path, .. }
            | Self::Truncated { path, .. }
            | Self::NotGguf { path, .. }
            | Self::BigEndian { path, .. }
            | Self::Version { path, .. }
            | Self::TooMany { path, .. }
            | Self::TooLong { path, .. }
            | Self::EmptyKey { path, .. }
            | Self::NotUtf8 { path, .. }
            | Self::NulByte { path, .. }
            | Self::DuplicateKey { path, .. }
            | Self::ValueType { path, .. }
            | Self::NestedArray { path, .. }
            | Self::Alignment { path, .. }
            | Self::DuplicateTensor { path, .. }
            | Self::TensorDims { path, .. }
            | Self::TensorShape { path, .. }
            | Self::TensorTooLarge { path, .. }
            | Self::TensorType { path, .. }
            | Self::TensorRow { path, .. }
            | Self::TensorOffset { path, .. }
            | Self::TensorOutside { path, .. }
            | Self::NotFirstShard { path, .. }
            | Self::ShardName { path, .. }
            | Self::ShardMissing { path, .. }
            | Self::ShardsGiven { path, .. }
            | Self::ShardMismatch { path, .. }
            | Self::ShardTensors { path, .. }
            | Self::MissingKey { path, .. }
            | Self::WrongType { path, .. }
            | Self::ElementType { path, .. }
            | Self::ArrayLength { path, .. }
            | Self::OutOfRange { path, .. } => path,
        }
    }
}

/// What a file that is no GGUF probably is: each of these is a common accident.
fn hint(found: &[u8; 4]) -> &'static str {
    match found {
        b"vers" => " (a Git LFS pointer: fetch the file itself with `git lfs pull`)",
        b"<!do" | b"<!DO" | b"<htm" => " (a web page: the download was refused)",
        b"PK\x03\x04" => " (a PyTorch or zip archive: convert it with convert_hf_to_gguf.py)",
        b"lmgg" | b"fmgg" | b"tjgg" => {
            " (a GGML file of before August 2023: convert the model again)"
        }
        [0, 0, 0, 0] => " (zeros: the download is incomplete)",
        _ => "",
    }
}

/// How a tensor whose offset is not the expected one lies.
fn misplaced(offset: u64, expected: u64, alignment: u64) -> String {
    if !offset.is_multiple_of(alignment) {
        format!("not aligned to {alignment} bytes")
    } else if offset < expected {
        "overlapping the one before it".to_owned()
    } else {
        "not directly after the one before it".to_owned()
    }
}
