//! Running: who calls the steps of decoding, and how the pieces of text reach their reader.
//!
//! A `LocalSession` owns the model's context in this process. A [`Session`](crate::generate::Session) is driven by its
//! owner's thread; an [`Engine`](crate::generate::Engine) drives one on a thread of its own for many requests; a
//! [`TokenStream`](crate::generate::TokenStream) reads one text. `remote` has both sides of the same calls for a model
//! in a worker process.

#[cfg(feature = "async")]
pub(crate) mod async_stream;
pub(crate) mod channel;
pub(crate) mod engine;
pub(crate) mod local;
pub(crate) mod remote;
pub(crate) mod session;
pub(crate) mod token_stream;
#[cfg(feature = "schemars")]
mod typed;
