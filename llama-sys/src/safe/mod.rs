//! The safe layer: llama.cpp's objects as types whose misuse is an error.
//!
//! This table lists the modules in the order of their imports: a module imports only from those above it.
//!
//! | room | what it holds |
//! |---|---|
//! | [`call`] | calls of the C++ shim, their errors, and llama.cpp's log |
//! | [`system`] | calls of the operating system that the standard library lacks |
//! | [`build`] | the native build: its instruction set, and the runtime that is opened |
//! | [`device`] | initialisation, ggml's registry, devices, and threads |
//! | [`model`] | a loaded model, its vocabulary, its tensors, and adapters |
//! | [`context`] | batches, decoding, the KV cache, states, and memory in use |
//! | [`media`] | projectors of images and sound |
//! | [`sampler`] | from logits to a token |
//! | [`measure`] | how long operations take on a device |

pub(crate) mod build;
pub(crate) mod call;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod measure;
pub(crate) mod media;
pub(crate) mod model;
pub(crate) mod sampler;
pub(crate) mod system;
