//! An engine being described.

use std::sync::{Arc, Mutex};
use std::thread;

use super::driver::Driver;
use super::queue::Shared;
use super::{Engine, Inner};
use crate::generate::error::Error;
use crate::generate::turn::PromptChunk;
use crate::load::Model;

const THREAD: &str = "autoplace-engine";

/// An [`Engine`] being described.
#[derive(Debug, Clone)]
#[must_use = "nothing runs until `start` is called"]
pub struct EngineBuilder {
    model: Model,
    queue: usize,
    ahead: usize,
    prompt_chunk: PromptChunk,
}

impl EngineBuilder {
    pub(super) fn new(model: &Model) -> Self {
        Self {
            model: model.clone(),
            queue: 64,
            ahead: 1024,
            prompt_chunk: PromptChunk::Graph,
        }
    }

    /// Requests that wait at most, beside as many as the context has sequences. Default 64.
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = requests;
        self
    }

    /// Pieces that a text runs ahead of its reader before it pauses; it goes on when half of them are read. Default
    /// 1024: long enough for most answers to be read one after the other.
    ///
    /// While others wait, a text that pauses gives its place up, and is computed again as far as the context does not
    /// hold it any more.
    pub fn ahead(mut self, pieces: usize) -> Self {
        self.ahead = pieces;
        self
    }

    /// Tokens of prompts that a step computes at most, over all texts, beside one token of each text that is being
    /// generated: fewer make long prompts stall others less, and take longer. Default: what those leave of `n_ubatch`.
    pub fn prompt_chunk(mut self, tokens: usize) -> Self {
        self.prompt_chunk = PromptChunk::Tokens(tokens.max(1));
        self
    }

    /// Takes the model's context and starts the thread.
    ///
    /// # Errors
    ///
    /// As [`Model::session`]; [`Error::Worker`] for a model in a worker process; [`Error::Thread`].
    pub fn start(self) -> Result<Engine, Error> {
        let mut session = self.model.session()?;
        session.prompt_chunk = self.prompt_chunk;
        let shared = Arc::new(Shared::new(&session, self.queue, self.ahead));
        let driver = Driver::new(Arc::clone(&shared), session, self.prompt_chunk);
        let thread = thread::Builder::new()
            .name(THREAD.into())
            .spawn(move || driver.run())
            .map_err(|error| Error::Thread {
                name: THREAD,
                reason: error.to_string(),
            })?;
        Ok(Engine {
            inner: Arc::new(Inner {
                shared,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }
}
