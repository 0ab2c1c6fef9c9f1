//! The computations made with each placement.

use autoplace::generate::Prompt;
use autoplace::llama_sys::Token;
use autoplace::load::Model;
use serde::{Deserialize, Serialize};

use super::Error;

/// The default texts, one per line.
const PROMPTS: &str = include_str!("prompts.txt");

/// The computations with each placement. At each depth and for each text, a prompt is computed, and tokens are
/// generated greedily after the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Protocol {
    /// Tokens of each prompt. A text is repeated or cut to this length. With 0, each text keeps its own length.
    pub n_prompt: u32,
    /// Tokens generated after each prompt, even beyond the end of the text.
    pub n_gen: u32,
    /// Tokens in the context before the prompt.
    pub depths: Vec<u32>,
    /// Rounds over all placements. Each round loads every placement again and computes its share of the prompts.
    pub rounds: u32,
    /// The texts; the default texts are not stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<String>,
}

impl Protocol {
    /// Twelve prompts of 512 tokens, each followed by 256 generated tokens, in an empty context and in a half-full
    /// context, in three rounds. In a short context, prompt and generation each take a quarter of the context.
    pub fn new(n_ctx: u32) -> Self {
        let (n_prompt, n_gen) = ((n_ctx / 4).clamp(1, 512), (n_ctx / 4).clamp(1, 256));
        let deepest = n_ctx.saturating_sub(n_prompt + n_gen + 1);
        let mut depths = vec![0, deepest.min(n_ctx / 2)];
        depths.dedup();
        Self { n_prompt, n_gen, depths, rounds: 3, prompts: Vec::new() }
    }

    /// Sets the tokens of each prompt.
    pub fn n_prompt(mut self, tokens: u32) -> Self {
        self.n_prompt = tokens;
        self
    }

    /// Sets the tokens generated after each prompt.
    pub fn n_gen(mut self, tokens: u32) -> Self {
        self.n_gen = tokens;
        self
    }

    /// Sets the tokens in the context before the prompt.
    pub fn depths(mut self, depths: impl Into<Vec<u32>>) -> Self {
        self.depths = depths.into();
        self
    }

    /// Sets the rounds over all placements.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// Replaces the default texts.
    pub fn prompts(mut self, texts: impl Into<Vec<String>>) -> Self {
        self.prompts = texts.into();
        self
    }

    /// Keeps only the first `n` texts.
    pub(super) fn only(mut self, n: usize) -> Self {
        self.prompts = self.texts().into_iter().take(n).map(str::to_owned).collect();
        self
    }

    fn texts(&self) -> Vec<&str> {
        match self.prompts.as_slice() {
            [] => PROMPTS.lines().collect(),
            given => given.iter().map(String::as_str).collect(),
        }
    }

    /// The number of texts.
    pub(super) fn n_texts(&self) -> usize {
        self.texts().len()
    }

    /// Rejects a protocol that measures nothing.
    pub(super) fn check(&self) -> Result<(), Error> {
        let (texts, rounds) = (self.n_texts(), self.rounds);
        let wrong = if self.n_gen == 0 {
            "n_gen is 0, so nothing would be generated".to_owned()
        } else if self.depths.is_empty() {
            "there is no depth to measure at".to_owned()
        } else if rounds == 0 || rounds as usize > texts {
            format!("rounds is {rounds}, but must be 1 to {texts}, the number of prompts")
        } else {
            return Ok(());
        };
        Err(Error::Protocol(wrong))
    }

    /// Rejects the protocol if its longest prompt does not fit in this context at the greatest depth.
    pub(super) fn fits(&self, longest: usize, n_ctx: u32) -> Result<(), Error> {
        let deepest = self.depths.iter().copied().max().unwrap_or_default();
        let needed = longest as u64 + u64::from(deepest) + u64::from(self.n_gen) + 1;
        if needed <= u64::from(n_ctx) {
            return Ok(());
        }
        Err(Error::Protocol(format!(
            "a depth of {deepest}, a prompt of {longest} and {} tokens after it need a context of {needed} tokens, but it has {n_ctx}",
            self.n_gen
        )))
    }

    /// The tokens of each prompt, and the tokens that fill the context before it.
    pub(super) fn tokens(&self, model: &Model, n_ctx: u32) -> Result<Tokens, Error> {
        // The texts get no BOS token. With it, all prompts would begin with the same token, which the context would
        // then already contain.
        let texts = self.texts().into_iter().map(|text| Prompt::text(text).add_special(false));
        let own: Vec<Vec<Token>> = texts.map(|text| model.tokenize(text)).collect::<Result<_, _>>()?;
        let before = own.concat();
        let prompts: Vec<Vec<Token>> = match self.n_prompt as usize {
            0 => own,
            n => own.iter().map(|text| text.iter().copied().cycle().take(n).collect()).collect(),
        };
        self.fits(prompts.iter().map(Vec::len).max().unwrap_or_default(), n_ctx)?;
        Ok(Tokens { before, prompts })
    }
}

#[derive(Debug)]
pub(super) struct Tokens {
    before: Vec<Token>,
    pub(super) prompts: Vec<Vec<Token>>,
}

impl Tokens {
    /// Tokens of the longest prompt.
    pub(super) fn longest(&self) -> usize {
        self.prompts.iter().map(Vec::len).max().unwrap_or_default()
    }

    pub(super) fn before(&self, depth: u32) -> Vec<Token> {
        self.before.iter().copied().cycle().take(depth as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Protocol;

    #[test]
    fn the_default_protocol_has_twelve_prompts_and_fits_its_context() {
        let usual = Protocol::new(4096);
        assert_eq!((usual.n_prompt, usual.n_gen, usual.depths.as_slice()), (512, 256, &[0, 2048][..]));
        assert_eq!(usual.n_texts(), 12);
        for n_ctx in [8, 100, 512, 1000, 4096, 131_072] {
            let Protocol { n_prompt, n_gen, depths, .. } = Protocol::new(n_ctx);
            assert!(depths[depths.len() - 1] + n_prompt + n_gen < n_ctx, "{n_ctx}");
        }
    }

    #[test]
    fn a_protocol_that_measures_nothing_is_refused_with_the_reason() {
        let usual = || Protocol::new(4096);
        for (wrong, word) in [
            (usual().n_gen(0), "n_gen"),
            (usual().depths([]), "depth"),
            (usual().rounds(0), "rounds"),
            (usual().rounds(3).prompts(["one".to_owned()]), "must be 1 to 1, the number of prompts"),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(usual().check().is_ok());
    }
}
