//! The generation loop, as an iterator of text.

use std::time::Instant;

use llama_sys::{AbortHandle, Batch, Context, Sampler, Token, Vocab};

use super::error::Error;
use super::stats::Statistics;
use super::text::{Released, TextAssembler};
use crate::load::Model;

/// The one sequence that a stream uses.
const SEQ: llama_sys::SeqId = 0;

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a token that ends the text or turn.
    EndOfGeneration,
    /// A stop string came.
    StopString,
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// An error, which the iterator returned.
    Error,
}

/// Text as it is generated: an iterator of pieces that are always whole characters. Dropping it cancels the generation.
///
/// The first `next` computes the prompt. After the end or an error the iterator stays at `None`; [`finish_reason`](Self::finish_reason)
/// tells which end it was.
#[derive(Debug)]
pub struct TokenStream {
    /// `Some` until dropped: goes back to its slot then.
    context: Option<Context>,
    model: Model,
    vocab: Vocab,
    sampler: Sampler,
    batch: Batch,
    text: TextAssembler,
    prompt: Vec<Token>,
    max_tokens: usize,
    special: bool,
    /// Tokens in the KV cache.
    position: usize,
    /// Tokens that the context holds.
    capacity: usize,
    finished: Option<FinishReason>,
    statistics: Statistics,
}

/// What a stream is made of.
pub(super) struct Parts {
    pub(super) context: Context,
    pub(super) model: Model,
    pub(super) vocab: Vocab,
    pub(super) sampler: Sampler,
    pub(super) seed: Option<u32>,
    pub(super) prompt: Vec<Token>,
    pub(super) capacity: usize,
    pub(super) max_tokens: usize,
    pub(super) stops: Vec<String>,
    pub(super) special: bool,
}

impl TokenStream {
    pub(super) fn new(parts: Parts) -> Self {
        let n_batch = parts.context.n_batch() as usize;
        Self {
            capacity: parts.capacity,
            batch: Batch::with_capacity(n_batch.min(parts.prompt.len().max(1))),
            text: TextAssembler::new(parts.stops),
            statistics: Statistics {
                seed: parts.seed,
                ..Statistics::default()
            },
            context: Some(parts.context),
            model: parts.model,
            vocab: parts.vocab,
            sampler: parts.sampler,
            prompt: parts.prompt,
            max_tokens: parts.max_tokens,
            special: parts.special,
            position: 0,
            finished: (parts.max_tokens == 0).then_some(FinishReason::MaxTokens),
        }
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Why the stream ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Stops a prompt or token that another thread is waiting for; the iterator then returns an error.
    pub fn abort_handle(&self) -> AbortHandle {
        self.context
            .as_ref()
            .expect("held until dropped")
            .abort_handle()
    }

    /// Runs to the end and returns the whole text.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn into_text(mut self) -> Result<(String, Statistics), Error> {
        let mut text = String::new();
        for piece in &mut self {
            text.push_str(&piece?);
        }
        Ok((text, self.statistics))
    }

    /// Computes the prompt and leaves the logits of its last token.
    fn compute_prompt(&mut self, context: &mut Context) -> Result<(), Error> {
        context.kv_clear()?;
        let last = self.prompt.len() - 1;
        let n_batch = context.n_batch() as usize;
        for (chunk_index, chunk) in self.prompt.chunks(n_batch).enumerate() {
            self.batch.clear();
            for (offset, &token) in chunk.iter().enumerate() {
                let at = chunk_index * n_batch + offset;
                self.batch.add(token, at as i32, SEQ, at == last);
            }
            context.decode(&self.batch)?;
        }
        for &token in &self.prompt {
            self.sampler.accept(token)?;
        }
        self.position = self.prompt.len();
        Ok(())
    }

    /// Chooses the next token; the one before it is in the KV cache by then.
    fn next_token(&mut self, context: &mut Context) -> Result<Token, Error> {
        let started = Instant::now();
        if self.statistics.first_token_latency.is_none() {
            self.compute_prompt(context)?;
            context.synchronize()?;
            self.statistics.prompt_tokens = self.prompt.len();
            self.statistics.prompt_time = started.elapsed();
        } else {
            context.decode(&self.batch)?;
            self.position += 1;
        }
        let token = self.sampler.sample(context, -1)?;
        let elapsed = started.elapsed();
        match self.statistics.first_token_latency {
            None => self.statistics.first_token_latency = Some(elapsed),
            Some(_) => self.statistics.generation_time += elapsed,
        }
        Ok(token)
    }

    /// One turn of the loop: a piece of text, which may be empty while a character or a stop string is incomplete.
    fn step(&mut self, context: &mut Context) -> Result<String, Error> {
        let token = self.next_token(context)?;
        if self.vocab.is_eog(token) {
            return Ok(self.end(FinishReason::EndOfGeneration));
        }
        self.statistics.generated_tokens += 1;
        self.vocab
            .append_piece(token, self.special, self.text.buffer())?;
        let piece = match self.text.release() {
            Released::Text(piece) => piece,
            Released::Stopped(piece) => {
                self.finished = Some(FinishReason::StopString);
                return Ok(piece);
            }
        };
        if self.statistics.generated_tokens >= self.max_tokens {
            return Ok(piece + &self.end(FinishReason::MaxTokens));
        }
        if self.position >= self.capacity {
            return Ok(piece + &self.end(FinishReason::ContextFull));
        }
        self.batch.clear();
        self.batch.add(token, self.position as i32, SEQ, true);
        Ok(piece)
    }

    /// Ends the stream and returns the text that was held back.
    fn end(&mut self, reason: FinishReason) -> String {
        let (reason, rest) = match self.text.finish() {
            Released::Text(rest) => (reason, rest),
            Released::Stopped(rest) => (FinishReason::StopString, rest),
        };
        self.finished = Some(reason);
        rest
    }
}

impl Iterator for TokenStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut context = self.context.take()?;
        let mut item = None;
        while self.finished.is_none() && item.is_none() {
            item = match self.step(&mut context) {
                Ok(piece) if piece.is_empty() => None,
                Ok(piece) => Some(Ok(piece)),
                Err(error) => {
                    self.finished = Some(FinishReason::Error);
                    Some(Err(error))
                }
            };
        }
        self.context = Some(context);
        item
    }
}

impl std::iter::FusedIterator for TokenStream {}

impl Drop for TokenStream {
    fn drop(&mut self) {
        match self.context.take() {
            Some(context) => self.model.slot().give_back(context),
            // A panic in the loop took it along; the next generation makes another.
            None => self.model.slot().lost(),
        }
    }
}
