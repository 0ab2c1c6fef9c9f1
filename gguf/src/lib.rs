//! Reads the headers of GGUF files, and writes GGUF files.
//!
//! ```
//! use autoplace_gguf::{Builder, Header, TensorType};
//!
//! // A model of our own, whose weights are zeros. `write_sparse` writes a model of any size in microseconds.
//! let bytes = Builder::new("llama")
//!     .u32("llama.block_count", 1)
//!     .tensor("token_embd.weight", TensorType::Q4_K, &[256, 32_000])
//!     .to_bytes()?;
//!
//! let header = Header::parse(bytes)?; // or Header::open("model.gguf")
//! assert_eq!(header.architecture()?, "llama");
//! assert_eq!(header.u32("llama.block_count")?, Some(1));
//! for tensor in header.tensors() {
//!     println!("{} {} {:?}: {} bytes", tensor.name(), tensor.ty(), tensor.shape(), tensor.bytes());
//! }
//! # Ok::<(), autoplace_gguf::Error>(())
//! ```
//!
//! Input: a path, or bytes in memory. For a split model, this is the path of the first shard. Output: a [`Header`] with
//! the metadata, and with the types, shapes and positions of the tensors. No tensor data is read.
//!
//! The reader accepts the files that llama.cpp's reader accepts (`ggml/src/gguf.cpp`, `src/llama-model-loader.cpp`). It
//! rejects other files with an [`Error`] that names the file, the byte, the key or tensor, the required value and the
//! actual value. It also rejects some files that llama.cpp would accept, misread or abort on: files with a `split.no`
//! whose type is not `u16`; an inconsistent `split.count` in a later shard; keys longer than 65535 bytes; names that
//! are not UTF-8 or contain a control character; tensors with a dimension of zero elements; more than 2^20 keys or
//! tensors, or more than 64 MiB of keys.
//!
//! The reader uses a window of 256 KiB, not a memory map. So the code has no `unsafe`, and a file that shrinks during
//! the read gives an error instead of a signal. The reader goes through long arrays, such as a vocabulary, once to
//! check every length, and leaves them in the file; [`Array`] reads them on demand.
//!
//! [`Builder`] writes GGUF files whose tensor data is zeros. [`Header::part`] writes some tensors of a model, with
//! their data, to a separate file. [`Header::skeleton`] is a model without its vocabulary, and [`Header::vocabulary`] a
//! vocabulary without its model. With such small files, llama.cpp can tell how much memory a large model would take,
//! although the large file is missing.

#![forbid(unsafe_code)]

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
mod text;
mod value;
mod value_type;
mod vocabulary;

pub use builder::Builder;
pub use error::Error;
pub use header::Header;
pub use part::Part;
pub use shards::{Shard, shard_name, shard_of_name};
pub use tensor::Tensor;
pub use tensor_type::TensorType;
pub use text::read_text;
pub use value::{Array, Number, Value};
pub use value_type::ValueType;

// The example of the README must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
