//! What a GGUF file says, before anything is loaded.
//!
//! **In:** a path (every shard of a split model is followed), or bytes in memory. **Out:** a [`Header`]: the metadata,
//! the tensors with their types, shapes and places in its shards.
//!
//! The reader accepts what llama.cpp's own reader accepts (`ggml/src/gguf.cpp`, `src/llama-model-loader.cpp`) and
//! refuses the rest with an [`Error`] that names the file, the byte, the key or tensor, what was needed and what
//! there was. It is stricter where llama.cpp would end the process or read a name differently from how it is written:
//! `split.no` of another type than `u16`, an inconsistent `split.count` in a later shard; keys longer than 65535 bytes;
//! names that are not UTF-8 or hold a control character; tensors with a dimension of zero elements; more than 2^20 keys
//! or tensors, or more than 64 MiB of keys and tensor names.
//!
//! It reads through a window of 256 KiB, never through a memory map: there is no `unsafe`, and a file that shrinks
//! while it is read gives an error instead of a signal. Long arrays (a vocabulary) are walked, every length in them
//! checked, and left in the file; [`Array`] reads them again on demand.
//!
//! [`Builder`] is the way back; [`Header::skeleton`] makes a file of a model for llama.cpp to be asked about.

mod builder;
mod error;
mod getters;
mod header;
mod metadata;
mod part;
mod shards;
mod source;
mod tensor;
mod tensor_type;
mod value;
mod vocabulary;

pub use builder::Builder;
pub use error::Error;
pub use header::Header;
pub use part::Part;
pub use shards::{Shard, shard_name, shard_of_name};
pub use tensor::Tensor;
pub use tensor_type::TensorType;
pub use value::{Array, Number, Value, ValueType};
