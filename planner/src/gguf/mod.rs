//! What a GGUF file says, before anything is loaded.
//!
//! **In:** a path (every shard of a split model is followed), or bytes in memory. **Out:** a [`Header`]: the metadata,
//! the tensors with their types, shapes and places in its shards. Nothing here knows what a layer is; that is the next
//! room's work.
//!
//! The reader accepts what llama.cpp's own reader accepts (`ggml/src/gguf.cpp`, `src/llama-model-loader.cpp`) and
//! refuses the rest with an [`Error`] that names the file, the byte, the key or tensor, what was needed and what
//! there was. It is a little stricter in places where llama.cpp would end the process or read a name differently from
//! how it is written:
//!
//! * `split.no` of another type than `u16` (llama.cpp aborts), an inconsistent `split.count` in a later shard;
//! * keys longer than 65535 bytes (the format's own limit), keys and tensor names that are not UTF-8 or hold a NUL byte
//!   (llama.cpp cuts a name there, so that two different names become one);
//! * tensors with a dimension of zero elements;
//! * more than 2^20 keys or tensors, or more than 64 MiB of keys and tensor names.
//!
//! How it reads, and why so: through a window of 256 KiB with positioned reads, never through a memory map, so that
//! there is no `unsafe` and a file that shrinks while it is read gives an error instead of a signal. Long arrays (a
//! vocabulary) are walked, every length in them checked, and left in the file; [`Array`] reads them again on demand.
//! The header of a 70B model with a vocabulary of 128k tokens so takes a few milliseconds and less than 1 MiB of heap.
//!
//! [`Builder`] is the way back: metadata and tensors in, a GGUF file out, whose data may be a hole;
//! [`Header::skeleton`] makes one of a model for llama.cpp to be asked about.

#![forbid(unsafe_code)]

mod builder;
mod error;
mod getters;
mod header;
mod metadata;
mod shards;
mod source;
mod tensor;
mod tensor_type;
mod value;

pub use builder::Builder;
pub use error::Error;
pub(crate) use header::DEFAULT_ALIGNMENT;
pub use header::Header;
pub use shards::Shard;
pub use tensor::Tensor;
pub use tensor_type::TensorType;
pub use value::{Array, Strings, Value, ValueType};
