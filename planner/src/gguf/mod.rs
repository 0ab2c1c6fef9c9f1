//! GGUF headers, read without loading the model.
//!
//! A path (with all shards of a split model) or bytes in memory flow in. A [`Header`] flows out: the metadata, and the
//! tensors with their types, shapes and positions.
//!
//! The reader accepts the files that llama.cpp's reader accepts (`ggml/src/gguf.cpp`, `src/llama-model-loader.cpp`). It
//! rejects others with an [`Error`] that names the file, the byte, the key or tensor, the required value and the actual
//! one. It is stricter where llama.cpp would abort or misread a name. It rejects `split.no` of another type than `u16`;
//! an inconsistent `split.count` in a later shard; keys longer than 65535 bytes; names that are not UTF-8 or contain a
//! control character; tensors with a dimension of zero elements; more than 2^20 keys or tensors, or more than 64 MiB of
//! keys and tensor names.
//!
//! It reads through a window of 256 KiB, not through a memory map: the code has no `unsafe`, and a file that shrinks
//! meanwhile gives an error instead of a signal. Long arrays (a vocabulary) are walked with every length checked, and
//! stay in the file; [`Array`] reads them on demand.
//!
//! [`Builder`] writes GGUF files; [`Header::skeleton`] makes the file that llama.cpp is probed with.

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
