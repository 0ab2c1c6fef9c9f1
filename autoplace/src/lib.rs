#![doc = include_str!("../README.md")]
//!
//! # Where things are
//!
//! The types that a first program needs are at the root: [`Model`], [`Chat`], [`Engine`], [`TokenStream`],
//! [`ReplyPart`], [`Message`], [`Part`], [`Tool`], [`Plan`], [`KvType`], [`Error`], and `Constraint` with the feature
//! `constraints`. The other types are in these modules: [`load`] (options and report of a load), [`generate`] (texts,
//! chats, sessions, sampling), [`embed`], [`watch`] (the sentinel) and [`worker`] (a model in its own process). The
//! modules [`gguf`], [`profile`], [`machine`], [`memory`], [`plan`] and [`chat`] come from separate crates.
//!
//! # Logging
//!
//! The crate prints nothing. Its events go to `tracing`, with these targets:
//!
//! - `autoplace::load`: a line for each load (`info`), and each failed attempt (`warn`);
//! - `autoplace::generate`: chats that outgrow their context;
//! - `autoplace::watch`: the sentinel's events;
//! - `autoplace::worker`: the log lines of workers;
//! - `llama`, `ggml`, `ggml::cuda` and so on: llama.cpp's own lines. llama.cpp's INFO lines have the level `debug`.
//!
//! The events have fields. There are no spans. The filter `autoplace=info` suits an application.
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as autoplace;

/// Implements `Debug` with only the named fields, because the other fields have no `Debug`.
macro_rules! debug_with {
    ($name:ident $(<$of:lifetime>)?: $($field:tt),*) => {
        impl std::fmt::Debug for $name $(<$of>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        }
    };
}

mod conversation;
mod decode;
pub mod embed;
mod error;
pub mod generate;
pub mod load;
mod private;
mod run;
mod serve;
pub mod store;
mod sync;
pub mod watch;
pub mod worker;

#[doc(no_inline)]
pub use autoplace_chat as chat;
/// Finds and fetches models by their names, for [`ModelBuilder::hub`] and [`ModelBuilder::preference`].
#[cfg(feature = "hub")]
#[doc(no_inline)]
pub use autoplace_hub as hub;
/// Decodes files of pictures and sounds.
#[cfg(feature = "media")]
#[doc(no_inline)]
pub use autoplace_media as media;
#[cfg(feature = "media")]
#[doc(no_inline)]
pub use autoplace_media::{Image, Sound};
pub use autoplace_planner::memory::KvType;
#[doc(no_inline)]
pub use autoplace_planner::{Plan, Planner, gguf, machine, memory, plan, profile};
#[doc(no_inline)]
pub use chat::{Message, Part, ReplyPart, Tool};
pub use embed::Embedder;
pub use error::Error;
#[cfg(feature = "constraints")]
#[doc(no_inline)]
pub use generate::Constraint;
#[doc(no_inline)]
pub use generate::{Chat, Engine, TokenStream};
pub use load::{AbortHandle, Model, ModelBuilder};
#[cfg(fuzzing)]
pub use serve::read_frames;
pub use serve::worker_main;
pub use worker::{Isolation, OnDeath, WorkerProcess};

/// llama.cpp's libraries, opened at run time instead of linked: their sources and versions. See docs/runtime.md.
#[cfg(feature = "prebuilt-runtime")]
#[doc(no_inline)]
pub use llama_sys::runtime;

/// The native layer, in the version that this crate was built with.
pub use llama_sys;

/// Compiles the Rust code in the documentation.
#[cfg(all(doctest, feature = "schemars", feature = "async"))]
mod documentation {
    #[doc = include_str!("../../docs/using.md")]
    struct Using;

    #[doc = include_str!("../../docs/if-you-know.md")]
    struct IfYouKnow;

    #[cfg(feature = "media")]
    #[doc = include_str!("../../docs/media.md")]
    struct Media;
}

#[cfg(test)]
mod tests {
    use super::{AbortHandle, Embedder, Model, generate};

    /// Checks which types can go to other threads, as stated in docs/using.md.
    #[test]
    fn types_go_to_other_threads_as_documented() {
        fn is_sent<T: Send>() {}
        fn is_shared<T: Clone + Send + Sync>() {}
        is_shared::<(Model, generate::Engine, AbortHandle)>();
        is_sent::<(generate::Chat, generate::Session, generate::TokenStream)>();
        is_sent::<(generate::ChatStream<&mut generate::Chat>, generate::ChatStream<Box<generate::Chat>>, Embedder)>();
    }
}
