//! Errors of GGUF files: one variant for each problem that a user can act on.

use std::io;
use std::path::PathBuf;

use crate::value_type::ValueType;

/// The reason why a GGUF file or a value in it could not be read.
///
/// Every message begins with the file's path and, if it concerns a position in the file, its byte offset (`at`). The
/// path of a header in memory is `<memory>`, and the path of a header from a [`Builder`](crate::Builder) is
/// `<builder>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// The file cannot be opened.
    #[error("{path}: cannot open: {source}")]
    Open { path: PathBuf, source: io::Error },
    /// The path is that of a folder, a pipe or a device.
    #[error("{path}: not a regular file")]
    NotAFile { path: PathBuf },
    /// The system failed to read bytes that should exist.
    #[error("{path}: byte {at}: cannot read {needed} bytes: {source}")]
    Read { path: PathBuf, at: u64, needed: u64, source: io::Error },
    /// The system failed to write a file that is being built.
    #[error("{path}: cannot write: {source}")]
    Write { path: PathBuf, source: io::Error },
    /// The file was changed or replaced after its header was read.
    #[error("{path}: the file was changed or replaced since its header was read ({was} bytes then, {is} bytes now)")]
    Changed { path: PathBuf, was: u64, is: u64 },
    /// The header extends past the last byte.
    #[error("{path}: byte {at}: {what} needs {needed} bytes, but only {available} are left")]
    Truncated { path: PathBuf, at: u64, what: String, needed: u64, available: u64 },
    /// The first four bytes are not `GGUF`.
    #[error("{path}: byte 0: not a GGUF file: it begins with \"{}\", not \"GGUF\"{}", found.escape_ascii(), hint(found))]
    NotGguf { path: PathBuf, found: [u8; 4] },
    /// The file is for a big-endian machine.
    #[error(
        "{path}: byte 4: a big-endian GGUF file (its version reads {version:#010x} in little-endian order): convert it with gguf-py's gguf_convert_endian.py"
    )]
    BigEndian { path: PathBuf, version: u32 },
    /// The format's version is neither 2 nor 3.
    #[error("{path}: byte 4: GGUF version {version} is not supported, only 2 and 3 are{}", if *version == 1 { " (version 1 dates from August 2023: convert the model again)" } else { "" })]
    Version { path: PathBuf, version: u32 },
    /// The header is invalid at this byte or exceeds our limits. The file is damaged or was written incorrectly.
    #[error("{path}: byte {at}: {problem}")]
    Malformed { path: PathBuf, at: u64, problem: String },
    /// A tensor's data extends past the end of the file: the download is incomplete.
    #[error(
        "{path}: byte {at}: the data of tensor '{tensor}' ends at byte {end}, but the file has only {file_bytes}: it is incomplete"
    )]
    TensorOutside { path: PathBuf, at: u64, tensor: String, end: u64, file_bytes: u64 },
    /// A shard of a split model cannot be opened.
    #[error("{path}: shard {} of {count} is missing: {source}", index + 1)]
    ShardMissing { path: PathBuf, index: u16, count: u16, source: io::Error },
    /// The shards of a split model do not belong together, their names do not match, or the file is not the first
    /// shard.
    #[error("{path}: {problem}")]
    Shards { path: PathBuf, problem: String },
    /// A required key is missing.
    #[error("{path}: the key '{key}' is missing")]
    MissingKey { path: PathBuf, key: String },
    /// A key's value does not have the required type. As in llama.cpp, the value is not converted.
    #[error("{path}: byte {at}: key '{key}' is of type {found}, not {wanted}")]
    WrongType { path: PathBuf, at: u64, key: String, wanted: ValueType, found: ValueType },
}

/// The probable kind of a file that is not GGUF. Each of these kinds is a common mistake.
fn hint(found: &[u8; 4]) -> &'static str {
    match found {
        b"vers" => " (a Git LFS pointer: fetch the file itself with `git lfs pull`)",
        b"<!do" | b"<!DO" | b"<htm" => " (a web page: the download was refused)",
        b"PK\x03\x04" => " (a PyTorch or zip archive: convert it with convert_hf_to_gguf.py)",
        b"lmgg" | b"fmgg" | b"tjgg" => " (a GGML file from before August 2023: convert the model again)",
        [0, 0, 0, 0] => " (zeros: the download is incomplete)",
        _ => "",
    }
}
