//! Generates text from prompts.
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
//! A [`TokenStream`] is an iterator over pieces of text. When it is dropped, the generation is cancelled. A [`Chat`]
//! keeps a conversation. An [`Engine`] serves many requests at once. A [`Session`] generates several texts on its
//! owner's thread. As in llama.cpp's own loop, each token needs one call of decode, one call of the sampler and one
//! conversion to text, and nothing else. The model can be re-placed between two tokens.
//!
//! This module contains only public names. The code is in the rooms `decode`, `run` and `conversation`.

pub use crate::chat::FinishReason;
pub use crate::conversation::chat::Chat;
pub use crate::conversation::stream::ChatStream;
#[cfg(feature = "constraints")]
pub use crate::conversation::tool_choice::ToolChoice;
pub use crate::conversation::window::ChatFull;
pub use crate::decode::checkpoints::CheckpointUse;
#[cfg(feature = "constraints")]
pub use crate::decode::constraint::{Constraint, Unenforced};
pub use crate::decode::error::Error;
pub use crate::decode::piece::{End, Piece, SequenceId, TokenLogprobs};
pub use crate::decode::prompt::Prompt;
pub use crate::decode::request::{GenerateRequest, WhenFull};
pub use crate::decode::sampling::{Mirostat, SamplerKind, Sampling};
pub use crate::decode::speculative::Speculation;
pub use crate::decode::stats::{DraftingPaused, Replaced, Resumed, Statistics};
#[cfg(feature = "async")]
pub use crate::run::async_stream::AsyncStream;
pub use crate::run::engine::{Engine, EngineBuilder};
pub use crate::run::local::fork::Fork;
pub use crate::run::local::roll_back::RolledBack;
pub use crate::run::metrics::Metrics;
pub use crate::run::places::Shutdown;
pub use crate::run::session::Session;
pub use crate::run::token_stream::TokenStream;
