//! Runs the steps of decoding, and brings the pieces of text to their readers.
//!
//! A `LocalSession` owns the model's context in this process. A [`Session`](crate::generate::Session) is driven by its
//! owner's thread; an [`Engine`](crate::generate::Engine) drives a local session on its own thread, for many requests;
//! a [`TokenStream`](crate::generate::TokenStream) reads one text. If the model is in a worker process, each of the
//! three sends its calls to the worker (`remote`), which runs a local session or engine (`host`).

#[cfg(feature = "async")]
pub(crate) mod async_stream;
mod channel;
pub(crate) mod engine;
mod generate;
pub(crate) mod host;
pub(crate) mod local;
pub(crate) mod metrics;
pub(crate) mod places;
mod progress;
pub(crate) mod remote;
pub(crate) mod session;
pub(crate) mod thread;
pub(crate) mod token_stream;
#[cfg(feature = "schemars")]
mod typed;
