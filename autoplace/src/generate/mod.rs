//! Generation: prompts in, text out.
//!
//! ```no_run
//! let model = autoplace::Model::load("model.gguf")?;
//! let text = model.generate("Once upon a time").temp(0.7).max_tokens(200);
//! for piece in text.stream()? {
//!     print!("{}", piece?);
//! }
//! # Ok::<(), autoplace::Error>(())
//! ```
//!
//! A [`TokenStream`] is an iterator of text; dropping it cancels the generation. A [`Chat`] keeps a conversation. An
//! [`Engine`] serves many requests at once. A [`Session`] generates several texts on its owner's thread. The loop adds
//! nothing to llama.cpp's own: one decode, one sample and one piece per token. The model can be re-placed between two
//! tokens.

#[cfg(feature = "async")]
mod async_stream;
mod cache;
mod channel;
mod chat;
mod chat_stream;
mod chat_window;
mod checkpoints;
mod choose;
#[cfg_attr(not(feature = "constraints"), path = "unconstrained.rs")]
mod constraint;
mod context;
mod custom;
mod engine;
mod error;
mod fork;
mod local;
mod model;
mod piece;
mod prompt;
pub(crate) mod remote;
mod replace;
mod request;
mod roll_back;
mod sampling;
mod schedule;
mod sequence;
mod session;
mod shift;
mod speculative;
mod stats;
mod step;
mod text;
mod token_stream;

#[cfg(feature = "async")]
pub use async_stream::AsyncStream;
pub use chat::Chat;
pub use chat_stream::ChatStream;
pub use chat_window::ChatFull;
pub use checkpoints::CheckpointUse;
#[cfg(feature = "constraints")]
pub use constraint::{Constraint, ToolChoice, Unenforced};
pub use engine::{Engine, EngineBuilder, Metrics, Shutdown};
pub use error::Error;
pub use fork::Fork;
pub use piece::{End, FinishReason, Piece, SequenceId, TokenLogprobs};
pub use prompt::Prompt;
pub use request::{GenerateRequest, WhenFull};
pub use roll_back::RolledBack;
pub use sampling::{Mirostat, SamplerKind, Sampling};
pub use session::Session;
pub use speculative::Speculation;
pub use stats::{DraftingPaused, Replaced, Resumed, Statistics};
pub use token_stream::TokenStream;
