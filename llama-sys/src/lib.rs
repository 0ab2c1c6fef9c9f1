//! llama.cpp, safely: our own build of it, raw bindings, and one safe noun per module.
//!
//! It takes paths, parameters and tokens, and returns logits, tokens, bytes per device, and typed [`Error`]s that carry
//! llama.cpp's log. Three rules hold everywhere:
//!
//! - Handles hold `Arc`s of the objects that they need, so users write no lifetimes. `Send` and `Sync` are asserted
//!   exactly where llama.cpp allows them.
//! - Every call that can throw goes through the C++ shim (`native/`), which also turns most of llama.cpp's assertions
//!   into errors while nothing computes.
//! - An argument that would end the process is refused before the call.
//!
//! ```no_run
//! use llama_sys::{Batch, Context, ContextParams, Model, ModelParams, Sampler};
//!
//! let model = Model::load("model.gguf", ModelParams::default())?;
//! let mut context = Context::new(&model, ContextParams::default())?;
//! let prompt = model.vocab().tokenize("Once upon a time", true, false)?;
//! let mut batch = Batch::with_capacity(prompt.len());
//! for (position, &token) in prompt.iter().enumerate() {
//!     batch.add(token, position as i32, 0, position + 1 == prompt.len());
//! }
//! context.decode(&batch)?;
//! let mut sampler = Sampler::chain(&model)?.greedy()?;
//! let next = sampler.sample(&mut context, -1)?;
//! # let _ = next;
//! # Ok::<(), llama_sys::Error>(())
//! ```

pub mod raw;
pub mod sim;

mod adapter;
mod backend;
mod batch;
mod blueprint;
mod build_info;
mod context;
mod context_params;
#[macro_use]
#[allow(unused_macros, reason = "one for each processor")]
mod cpu_features;
mod device;
mod embeddings;
mod error;
mod isa;
mod kv_cache;
mod log;
mod measure;
mod memory;
mod model;
mod model_params;
mod mtp;
mod rope;
mod rpc;
#[cfg(feature = "prebuilt-runtime")]
pub mod runtime;
mod sampler;
mod shim;
#[cfg(windows)]
mod sparse;
mod stack;
mod state;
#[cfg(windows)]
mod stdout;
mod system;
mod tensor_type;
mod threadpool;
mod tokenize;
#[cfg(windows)]
mod video_memory;
mod vocab;

pub use adapter::LoraAdapter;
pub use backend::Backend;
pub use batch::Batch;
pub use blueprint::{ModelTensor, architectures};
pub use build_info::{BuildInfo, build_info};
pub use context::{AbortHandle, Context};
pub use context_params::{ContextParams, FlashAttention, Mtp, Pooling};
pub use device::{Device, DeviceKind, DeviceMemory};
pub use embeddings::{AddedTokens, EmbeddingShape};
pub use error::{Error, Failure, FailureCause, OutOfMemory};
pub use log::quietly;
pub use measure::{Bench, LinkTiming, Operation, Timing};
pub use memory::{BufferUse, MemoryBreakdown, TensorPlace};
pub use model::{Model, ModelShape};
pub use model_params::{LoadMode, ModelParams, TensorOverride};
pub use rope::{Rope, RopeScaling};
pub use sampler::{Candidate, Candidates, Sampler, SamplerChain};
#[cfg(windows)]
pub use sparse::make_sparse;
pub use state::State;
#[cfg(windows)]
pub use stdout::print_to_stderr;
pub use system::{end_this_process, file_in_memory, longest_file, user_id};
pub use tensor_type::{KvType, TensorTypeInfo, tensor_types};
pub use threadpool::attach_threads;
#[cfg(windows)]
pub use video_memory::{VideoMemory, VideoMemoryUse};
pub use vocab::{Token, Vocab, WeakVocab};

/// A hash of the bindings and of the native code. A runtime of another build is not opened.
pub const BUILD: &str = env!("LLAMA_SYS_BUILD");

/// The processor, system and C library that this was compiled for, in the notation of runtimes: `x86_64-linux-gnu`.
pub const TARGET: &str = env!("LLAMA_SYS_TARGET");

/// A sequence in the KV cache: 0 up to `n_seq_max` of the context.
pub type SeqId = i32;

/// A position in a sequence, counted from 0.
pub type Position = i32;
