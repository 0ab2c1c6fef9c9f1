//! OpenAI's HTTP API without the HTTP, so that any web framework can use it: this crate takes the JSON of a request,
//! and returns the JSON of an answer. `Server` (feature `server`) is a complete server.
//!
//! In: bodies of OpenAI's `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` and `/v1/responses`, of
//! Anthropic's `/v1/messages`, and of llama-server's `/v1/rerank` and `/infill`. Out: a [`Completion`], which yields
//! chunks or the whole answer. Embeddings and scores are returned whole. Every error is an [`ApiError`] in the API's
//! form.
//!
//! ```no_run
//! use autoplace::{Model, generate::Engine};
//! use autoplace_openai::Api;
//! let model = Model::builder("model.gguf").parallel(8, 4096).load()?;
//! let api = Api::new(&model, &Engine::new(&model)?, "my-model");
//! let body = br#"{"model": "my-model", "messages": [{"role": "user", "content": "Hello!"}]}"#;
//! match api.chat(body) {
//!     Ok(completion) => println!("{}", completion.wait()?),
//!     Err(error) => println!("{}: {}", error.status, error.to_json()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parameters of a request
//!
//! The first three entries are OpenAI's own parameters.
//!
//! - `/v1/chat/completions` and `/v1/completions`: `model`, `stream`, `stream_options.include_usage`, `n`, `stop`,
//!   `max_tokens`, `seed`, `response_format`, `temperature`, `top_p`, `frequency_penalty`, `presence_penalty`,
//!   `logit_bias`
//! - `/v1/chat/completions` only: `messages`, `tools`, `tool_choice`, `parallel_tool_calls`, `max_completion_tokens`,
//!   `logprobs`, `top_logprobs`, `reasoning_effort`
//! - `/v1/completions` only: `prompt` (a text, tokens, or a list of either), `logprobs`
//! - llama.cpp's additions: every parameter of [`Sampling`](autoplace::generate::Sampling) by its name, `grammar`
//!   (GBNF, or Lark after `%llguidance {}`), `json_schema`, `cache_prompt`, `chat_template_kwargs`,
//!   `add_generation_prompt`, `continue_final_message`
//! - vLLM's additions: `structured_outputs`, `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`,
//!   `repetition_penalty`, `min_tokens`, `stop_token_ids`, `ignore_eos`, `documents`, `disable_additional_properties`
//!
//! A parameter is refused if it would change the meaning of the request and is not supported. Examples are videos and
//! files, `suffix`, `echo`, `best_of`. Such parameters of vLLM and llama-server are listed in docs/chat-completions.md.
//! A name that none of these APIs knows is ignored, because clients send new names every year.

#![forbid(unsafe_code)]

mod adapters;
mod api;
mod called;
mod chat;
mod choice;
#[cfg(feature = "client")]
pub mod client;
mod completion;
#[cfg(feature = "media")]
mod decoding;
mod embeddings;
mod error;
mod form;
mod infill;
mod lines;
mod logprobs;
mod media;
#[cfg(feature = "media")]
mod media_hosts;
mod message;
mod messages;
mod options;
mod parameters;
mod reading;
mod rerank;
mod responses;
#[cfg(feature = "server")]
pub mod server;
mod shape;
mod text;
mod timings;
mod translation;
mod vocabulary;

pub use api::Api;
#[cfg(feature = "client")]
pub use client::Endpoint;
pub use completion::Completion;
pub use embeddings::EmbeddingRequest;
pub use error::ApiError;
#[cfg(feature = "media")]
pub use media_hosts::MediaHosts;
pub use rerank::RerankRequest;
#[cfg(feature = "server")]
pub use server::Server;

// The example of the README must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
