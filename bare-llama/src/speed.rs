//! Speeds by the protocol of llama.cpp's llama-bench (tools/llama-bench/llama-bench.cpp, `test_prompt` and `test_gen`).
//! The packaged source does not include llama-bench. The protocol is this: tokens are random, and the memory is empty
//! at the start. A prompt is computed in batches. Tokens are generated one at a time, without reading logits. At the
//! end, the devices are synchronized.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use llama_sys::raw;

use crate::bare::Bare;

impl Bare {
    /// The speed of a prompt with this many tokens in an empty memory, in tokens per second.
    ///
    /// # Errors
    ///
    /// `llama_decode` fails.
    pub fn prompt(&mut self, tokens: usize) -> Result<f64> {
        self.clear();
        let begin = Instant::now();
        for done in (0..tokens).step_by(self.n_batch) {
            self.compute(self.n_batch.min(tokens - done))?;
        }
        self.wait();
        Ok(tokens as f64 / begin.elapsed().as_secs_f64())
    }

    /// The speed of generating this many tokens in an empty memory, in tokens per second.
    ///
    /// # Errors
    ///
    /// `llama_decode` fails.
    pub fn generation(&mut self, tokens: usize) -> Result<f64> {
        self.clear();
        let begin = Instant::now();
        for _ in 0..tokens {
            self.compute(1)?;
            self.wait();
        }
        Ok(tokens as f64 / begin.elapsed().as_secs_f64())
    }

    /// Computes a prompt to the last position of the context. Returns its tokens.
    ///
    /// # Errors
    ///
    /// `llama_decode` fails.
    pub fn fill(&mut self) -> Result<usize> {
        self.prompt(self.n_ctx)?;
        Ok(self.n_ctx)
    }

    /// Sets the depth: removes later tokens, and computes missing tokens.
    ///
    /// # Errors
    ///
    /// `llama_decode` fails, or the memory cannot be cut at this depth.
    pub fn go_to(&mut self, depth: usize) -> Result<()> {
        if depth < self.depth {
            let from = i32::try_from(depth)?;
            // SAFETY: the context lives.
            let cut = unsafe { raw::llama_memory_seq_rm(raw::llama_get_memory(self.context()), 0, from, -1) };
            ensure!(cut, "the memory cannot be cut after {depth} of {} tokens", self.depth);
            self.depth = depth;
        }
        while self.depth < depth {
            self.compute(self.n_batch.min(depth - self.depth))?;
        }
        self.wait();
        Ok(())
    }

    /// Computes this many further tokens at once. Returns the time that they took.
    ///
    /// # Errors
    ///
    /// `llama_decode` fails.
    pub fn step(&mut self, tokens: usize) -> Result<Duration> {
        let begin = Instant::now();
        self.compute(tokens)?;
        self.wait();
        Ok(begin.elapsed())
    }

    fn compute(&mut self, tokens: usize) -> Result<()> {
        let begins = self.depth == 0;
        let mut batch: Vec<_> = (0..tokens).map(|n| self.dice.roll(begins && n == 0)).collect();
        let count = i32::try_from(tokens)?;
        // SAFETY: the context lives; the batch points to `count` tokens of the vocabulary, and a batch may have that
        // many.
        let status = unsafe {
            let batch = raw::llama_batch_get_one(batch.as_mut_ptr(), count);
            raw::llama_decode(self.context(), batch)
        };
        ensure!(status == 0, "llama_decode returned {status} for {count} tokens");
        self.depth += tokens;
        Ok(())
    }

    fn wait(&mut self) {
        // SAFETY: the context lives.
        unsafe { raw::llama_synchronize(self.context()) };
    }
}
