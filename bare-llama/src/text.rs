//! Texts by llama.cpp's own loops: greedy tokens, the loop of `examples/simple`, and that of `examples/batched`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use llama_sys::raw;

use crate::bare::Bare;
use crate::chain::chain;

/// The maximum number of bytes in a token's piece.
const PIECE: usize = 256;

impl Bare {
    /// Computes more tokens after those of the context. Returns the logits that follow the last of them.
    ///
    /// # Errors
    ///
    /// `llama_decode` fails.
    pub fn decode(&mut self, tokens: &[raw::llama_token]) -> Result<Vec<f32>> {
        let mut tokens = tokens.to_vec();
        let count = i32::try_from(tokens.len())?;
        // SAFETY: the context and its vocabulary live; the list lives as long as the batch. The batch requests the
        // logits of the last token. These are `n_vocab` numbers, and they live until the next call.
        unsafe {
            let batch = raw::llama_batch_get_one(tokens.as_mut_ptr(), count);
            let status = raw::llama_decode(self.context(), batch);
            ensure!(status == 0, "llama_decode answers {status} to {count} tokens");
            let n_vocab = usize::try_from(raw::llama_vocab_n_tokens(self.vocab()))?;
            self.depth += tokens.len();
            Ok(std::slice::from_raw_parts(raw::llama_get_logits_ith(self.context(), -1), n_vocab).to_vec())
        }
    }

    /// The tokens that follow a prompt in an empty memory if the likeliest is always chosen: at most `n`, up to the end
    /// of the text.
    ///
    /// # Errors
    ///
    /// `llama_decode` fails.
    pub fn greedy(&mut self, prompt: &[raw::llama_token], n: usize) -> Result<Vec<raw::llama_token>> {
        self.clear();
        let mut logits = self.decode(prompt)?;
        let mut tokens = Vec::new();
        while tokens.len() < n {
            let token = likeliest(&logits);
            // SAFETY: the vocabulary lives, and has the token.
            if unsafe { raw::llama_vocab_is_eog(self.vocab(), token) } {
                break;
            }
            tokens.push(token);
            logits = self.decode(&[token])?;
        }
        Ok(tokens)
    }

    /// Generates at most `n` tokens with the loop of llama.cpp's `examples/simple`, in an empty memory. Returns the
    /// time of all tokens but the first, and the number of these tokens.
    ///
    /// # Panics
    ///
    /// `llama_decode` fails.
    pub fn text(&mut self, prompt: &str, seed: u32, n: usize) -> (Duration, usize) {
        self.clear();
        // SAFETY: model and context live; every buffer is as long as the length passed with it; the batch holds at most
        // n_batch tokens; the chain ends in a sampler that selects.
        unsafe {
            let (vocab, context, mut tokens) = (self.vocab(), self.context(), self.tokenize(prompt, true, false));
            let count = tokens.len() as i32;
            let chain = chain(seed);
            let mut buffer = [0u8; PIECE];
            let mut bytes = 0;
            let mut generated = 0;
            let mut started = Instant::now();
            let mut token;
            let mut batch = raw::llama_batch_get_one(tokens.as_mut_ptr(), count);
            loop {
                assert_eq!(raw::llama_decode(context, batch), 0);
                token = raw::llama_sampler_sample(chain, context, -1);
                if raw::llama_vocab_is_eog(vocab, token) {
                    break;
                }
                bytes += raw::llama_token_to_piece(vocab, token, buffer.as_mut_ptr().cast(), PIECE as i32, 0, false);
                if generated == 0 {
                    started = Instant::now();
                }
                generated += 1;
                if generated == n {
                    break;
                }
                batch = raw::llama_batch_get_one(&raw mut token, 1);
            }
            let elapsed = started.elapsed();
            std::hint::black_box(bytes);
            raw::llama_sampler_free(chain);
            (elapsed, generated.saturating_sub(1))
        }
    }

    /// Generates several texts after one prompt with the loop of llama.cpp's `examples/batched`: a batch has one token
    /// of each text. Each text has at most `n` tokens and its own seed, from `seed` on. Returns the time of everything,
    /// the prompts included, and the number of generated tokens.
    ///
    /// # Panics
    ///
    /// `llama_decode` fails, or the context has fewer sequences than texts.
    pub fn texts(&mut self, prompt: &str, seed: u32, texts: u32, n: usize) -> (Duration, usize) {
        // SAFETY: model and context live; every buffer is as long as the length passed with it; the batch has room for
        // the prompts of all sequences, and no more is put into it; the chains end in a sampler that selects.
        unsafe {
            let started = Instant::now();
            self.clear();
            let (vocab, context, tokens) = (self.vocab(), self.context(), self.tokenize(prompt, true, false));
            let count = tokens.len() as i32;
            let mut batch = raw::llama_batch_init(count * texts as i32, 0, 1);
            let mut running: Vec<Text> = (0..texts)
                .map(|sequence| {
                    let seq = sequence as raw::llama_seq_id;
                    for (position, token) in (0..).zip(&tokens) {
                        add(&mut batch, *token, position, seq, position + 1 == count);
                    }
                    let (chain, output) = (chain(seed + sequence), batch.n_tokens - 1);
                    Text { seq, chain, position: count, generated: 0, output }
                })
                .collect();
            let mut buffer = [0u8; PIECE];
            let mut bytes = Vec::new();
            let mut generated = 0;
            while !running.is_empty() {
                assert_eq!(raw::llama_decode(context, batch), 0);
                batch.n_tokens = 0;
                running.retain_mut(|text| {
                    let token = raw::llama_sampler_sample(text.chain, context, text.output);
                    let mut goes_on = !raw::llama_vocab_is_eog(vocab, token);
                    if goes_on {
                        let into = buffer.as_mut_ptr().cast();
                        let length = raw::llama_token_to_piece(vocab, token, into, PIECE as i32, 0, false) as usize;
                        bytes.extend_from_slice(&buffer[..length]);
                        text.generated += 1;
                        generated += 1;
                        goes_on = text.generated < n;
                    }
                    if goes_on {
                        text.output = batch.n_tokens;
                        add(&mut batch, token, text.position, text.seq, true);
                        text.position += 1;
                    } else {
                        raw::llama_sampler_free(text.chain);
                    }
                    goes_on
                });
            }
            raw::llama_batch_free(batch);
            std::hint::black_box(bytes);
            (started.elapsed(), generated)
        }
    }
}

/// One of several texts.
struct Text {
    seq: raw::llama_seq_id,
    chain: *mut raw::llama_sampler,
    position: i32,
    generated: usize,
    /// The index of the text's last token in the batch.
    output: i32,
}

/// Adds a token to a batch, as `common_batch_add` does.
///
/// # Safety
///
/// The batch has memory for another token, and for one sequence per token.
unsafe fn add(
    batch: &mut raw::llama_batch,
    token: raw::llama_token,
    position: i32,
    seq: raw::llama_seq_id,
    output: bool,
) {
    let at = batch.n_tokens as usize;
    // SAFETY: as above.
    unsafe {
        *batch.token.add(at) = token;
        *batch.pos.add(at) = position;
        *batch.n_seq_id.add(at) = 1;
        **batch.seq_id.add(at) = seq;
        *batch.logits.add(at) = output.into();
    }
    batch.n_tokens += 1;
}

/// The likeliest token. If several tokens are equally likely, the first of them, as in llama.cpp's greedy sampler.
fn likeliest(logits: &[f32]) -> raw::llama_token {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as raw::llama_token
}

#[cfg(test)]
mod tests {
    use super::likeliest;

    #[test]
    fn the_first_of_the_likeliest_tokens_is_chosen() {
        assert_eq!(likeliest(&[0.5, 2.0, -1.0, 2.0]), 1);
    }
}
