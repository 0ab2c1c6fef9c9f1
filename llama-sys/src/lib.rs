//! Safe access to llama.cpp, which this crate builds itself. The crate has three modules:
//!
//! - [`raw`]: the bindings, as bindgen wrote them.
//! - The safe layer (`safe` in the source), whose names are re-exported here: devices, models, contexts, samplers.
//! - [`sim`]: simulated GPUs for tests. They have no memory of their own: only the number of allocated bytes is
//!   counted.
//!
//! The safe layer takes paths, parameters and tokens. It returns logits, tokens, bytes per device, and typed [`Error`]s
//! that carry llama.cpp's log. Three rules hold everywhere:
//!
//! - Handles hold `Arc`s of the objects that they need, so users write no lifetimes. A type is `Send` and `Sync`
//!   exactly if llama.cpp allows it.
//! - Every call that can throw goes through the C++ shim (`native/`), which also turns most of llama.cpp's assertions
//!   into errors. An assertion that fails during a computation still ends the process.
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
mod safe;
pub mod sim;

pub use safe::build::{BUILD, BuildInfo, TARGET, build_info};
pub use safe::call::log::quietly;
pub use safe::call::{Error, Failure, FailureCause, OutOfMemory};
pub use safe::context::{
    AbortHandle, Batch, BufferUse, ComputeBuffers, Context, ContextParams, FlashAttention, MemoryBreakdown,
    MoeCacheUses, Mtp, Position, Rope, RopeScaling, RowPiece, RowShape, Rows, SeqId, State, StateRows,
};
pub use safe::device::{Backend, Device, DeviceKind, DeviceMemory, ThreadWait, attach_threads};
pub use safe::measure::{Bench, LinkTiming, Operation, Timing};
pub use safe::media::{
    MediaChunk, MediaChunks, MediaKind, MediaMemory, MediaPart, Projector, ProjectorBytes, ProjectorParams, has_media,
};
pub use safe::model::{
    AddedTokens, EmbeddingShape, FimTokens, KvType, LoadMode, LoraAdapter, Model, ModelParams, ModelShape, ModelTensor,
    MoeCacheShape, Pooling, TensorOverride, TensorPlace, TensorTypeInfo, Token, Vocab, WeakVocab, architectures,
    tensor_types,
};
pub use safe::sampler::{Candidate, Candidates, Sampler, SamplerChain};
#[cfg(windows)]
pub use safe::system::{VideoMemory, VideoMemoryUse, make_sparse, print_to_stderr};
pub use safe::system::{end_this_process, exit_at_once, file_in_memory, longest_file, most_open_files, user_id};

/// llama.cpp as a runtime: a set of shared libraries that the program opens when it starts.
#[cfg(feature = "prebuilt-runtime")]
pub mod runtime {
    pub use crate::safe::build::runtime::{
        Choice, Error, FOLDER, LIBRARIES, MANIFEST, Manifest, Set, VARIABLE, find, open_from, opened, user_folder,
    };
    pub use crate::safe::device::shortcomings;
}
