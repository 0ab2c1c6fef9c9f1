//! The perplexity of a text, computed like llama-perplexity and compared with it.

use autoplace::generate::Prompt;
use autoplace::llama_sys::{Candidates, Vocab};

use crate::rows::{Outcome, Row};
use crate::setting::{Setting, THREADS};
use crate::tools::output;

/// The text: our own documentation.
const TEXT: &str = concat!(include_str!("../../../docs/using.md"), include_str!("../../../docs/cli.md"));

/// Number of tokens in a chunk. Only the tokens in a chunk's second half count (llama.cpp,
/// tools/perplexity/perplexity.cpp).
const CHUNK: usize = 512;

/// How much the results may differ, as a share. libllama computes the same tokens in the same order here.
/// llama-perplexity computes each chunk at once, and then llama.cpp's matrix products are rounded in another way: a
/// difference of 0.8 % was measured on SmolLM2 in Q4_1.
const SAME_ORDER: f64 = 1e-4;
const AT_ONCE: f64 = 0.02;

pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    let chunks = if setting.is_whole() { 4 } else { 2 };
    let (ours, tokens) = ours(setting, chunks)?;
    let (theirs, peer, tolerance) = match by_llama_perplexity(setting, chunks)? {
        Some(theirs) => (theirs, "llama-perplexity", AT_ONCE),
        None => (by_libllama(setting, &tokens)?, "libllama", SAME_ORDER),
    };
    let off = ours / theirs - 1.0;
    let row = Row::new(format!("our docs in {chunks} chunks of {CHUNK} tokens, beside {peer}"));
    let row = row.result(format!("{ours:.4} here, {theirs:.4} there ({:+.2} %)", off * 100.0));
    let is_near = off.abs() <= tolerance;
    Ok(vec![if is_near { row } else { row.fails(format!("{ours} here, {theirs} there")) }])
}

/// The perplexity that our generation reports. The generation is forced to choose each token of the text, and reports
/// the token's probability. Also returns the chunks that were computed.
fn ours(setting: &Setting, chunks: usize) -> Outcome<(f64, Vec<Vec<i32>>)> {
    let model = setting.load(2 * CHUNK as u32)?;
    let vocab = model.native()?.vocab();
    let tokens = model.tokenize(Prompt::text(TEXT))?;
    let chunked = chunks_of(&tokens, chunks, &vocab)?;
    let mut losses = Vec::new();
    for chunk in &chunked {
        let (before, rest) = chunk.split_at(CHUNK / 2 + 1);
        let known = chunk.clone();
        let follow = move |_: &mut Candidates, so_far: &[i32]| known.get(so_far.len()).copied().unwrap_or(0);
        let generate = model.generate(before).samplers([]).sampler(follow).logprobs(0).ignore_eos();
        let mut stream = generate.max_tokens(rest.len()).stream()?;
        let mut followed = Vec::new();
        for piece in stream.pieces() {
            if let Some(logprobs) = piece?.logprobs {
                followed.push(logprobs.token);
                losses.push(-f64::from(logprobs.logprob));
            }
        }
        if followed != rest {
            return Err("the text was not followed".into());
        }
    }
    Ok((perplexity(&losses), chunked))
}

fn chunks_of(tokens: &[i32], chunks: usize, vocab: &Vocab) -> Outcome<Vec<Vec<i32>>> {
    if tokens.len() < chunks * CHUNK {
        return Err(format!("the text has {} tokens, {} are needed", tokens.len(), chunks * CHUNK).into());
    }
    let begins_with_bos = vocab.bos().filter(|bos| tokens.first() == Some(bos));
    Ok(tokens
        .chunks(CHUNK)
        .take(chunks)
        .map(|chunk| {
            let mut chunk = chunk.to_vec();
            // If the vocabulary puts BOS before a text, BOS replaces the first token of each chunk.
            chunk[0] = begins_with_bos.unwrap_or(chunk[0]);
            chunk
        })
        .collect())
}

fn by_llama_perplexity(setting: &Setting, chunks: usize) -> Outcome<Option<f64>> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(&file, TEXT)?;
    let path = file.path().to_str().ok_or("the temporary folder's name is not valid text")?;
    let (chunks, chunk, threads) = (chunks.to_string(), CHUNK.to_string(), THREADS.to_string());
    let arguments = ["-f", path, "-c", &chunk, "-b", &chunk, "--chunks", &chunks, "-t", &threads, "--no-escape"];
    let Some((stdout, stderr)) = output(setting, "llama-perplexity", &arguments)? else { return Ok(None) };
    let said = stdout + &stderr;
    let estimate = said.split("Final estimate: PPL = ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let estimate = estimate.ok_or_else(|| format!("llama-perplexity says no estimate: {said}"))?;
    Ok(Some(estimate.parse()?))
}

/// The perplexity with libllama's API. Half of each chunk is computed at once, and the rest token by token.
fn by_libllama(setting: &Setting, chunks: &[Vec<i32>]) -> Outcome<f64> {
    let mut bare = setting.bare(2 * CHUNK as u32)?;
    let mut losses = Vec::new();
    for chunk in chunks {
        bare.clear();
        let (before, rest) = chunk.split_at(CHUNK / 2 + 1);
        let mut logits = bare.decode(before)?;
        for &token in rest {
            losses.push(loss(&logits, token));
            logits = bare.decode(&[token])?;
        }
    }
    Ok(perplexity(&losses))
}

/// Minus the logarithm of a token's probability.
fn loss(logits: &[f32], token: i32) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    most + sum.ln() - f64::from(logits[token as usize])
}

fn perplexity(losses: &[f64]) -> f64 {
    (losses.iter().sum::<f64>() / losses.len() as f64).exp()
}
