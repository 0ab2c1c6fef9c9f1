//! Running: who calls the steps of decoding, and how the pieces of text reach their reader.
//!
//! A `LocalSession` owns the model's context in this process. A [`Session`](crate::generate::Session) is driven by its
//! owner's thread; an [`Engine`](crate::generate::Engine) drives one on a thread of its own for many requests; a
//! [`TokenStream`](crate::generate::TokenStream) reads one text. For a model in a worker process each of the three asks
//! the worker (`remote`), which runs a local session or engine for it (`host`).

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
