//! What each placement computes, and how often.

use autoplace::generate::Prompt;
use autoplace::llama_sys::Token;
use autoplace::load::Model;
use serde::{Deserialize, Serialize};

use super::Error;

/// Ours, a line each.
const PROMPTS: &str = include_str!("prompts.txt");

/// What each placement computes: a prompt and a greedy generation after it, at each depth, once for each prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Protocol {
    /// Tokens of each prompt: a text is repeated or cut to have as many. 0 takes each text as it is.
    pub n_prompt: u32,
    /// Tokens that are generated after each, whether or not the text ends before.
    pub n_gen: u32,
    /// Tokens that the context holds before the prompt.
    pub depths: Vec<u32>,
    /// Rounds over all placements, each of which loads every placement again. The prompts are shared out over them.
    pub rounds: u32,
    /// The texts; only given ones are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<String>,
}

impl Protocol {
    /// Twelve prompts of 512 tokens and 256 tokens after each, in an empty context and in one that is half full, in
    /// three rounds; of a short context a quarter each.
    pub fn new(n_ctx: u32) -> Self {
        let (n_prompt, n_gen) = ((n_ctx / 4).clamp(1, 512), (n_ctx / 4).clamp(1, 256));
        let deepest = n_ctx.saturating_sub(n_prompt + n_gen + 1);
        let mut depths = vec![0, deepest.min(n_ctx / 2)];
        depths.dedup();
        Self { n_prompt, n_gen, depths, rounds: 3, prompts: Vec::new() }
    }

    setters! {
        /// Tokens of each prompt.
        n_prompt(tokens: u32) n_prompt = tokens;
        /// Tokens that are generated after each.
        n_gen(tokens: u32) n_gen = tokens;
        /// Tokens that the context holds before the prompt.
        depths(depths: impl Into<Vec<u32>>) depths = depths.into();
        /// Rounds over all placements.
        rounds(rounds: u32) rounds = rounds;
        /// Other texts than ours.
        prompts(texts: impl Into<Vec<String>>) prompts = texts.into();
    }

    /// The first texts only.
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

    /// How many texts there are.
    pub(super) fn n_texts(&self) -> usize {
        self.texts().len()
    }

    /// Refuses a protocol that measures nothing.
    pub(super) fn check(&self) -> Result<(), Error> {
        let (texts, rounds) = (self.n_texts(), self.rounds);
        let wrong = if self.n_gen == 0 {
            "n_gen is 0, and nothing would be generated".to_owned()
        } else if self.depths.is_empty() {
            "there is no depth to measure at".to_owned()
        } else if rounds == 0 || rounds as usize > texts {
            format!("rounds are 1 to the number of prompts, {texts}, and not {rounds}")
        } else {
            return Ok(());
        };
        Err(Error::Protocol(wrong))
    }

    /// Refuses a prompt of so many tokens, at the greatest depth, that has no room in this context.
    pub(super) fn fits(&self, longest: usize, n_ctx: u32) -> Result<(), Error> {
        let deepest = self.depths.iter().copied().max().unwrap_or_default();
        let needed = longest as u64 + u64::from(deepest) + u64::from(self.n_gen) + 1;
        if needed <= u64::from(n_ctx) {
            return Ok(());
        }
        Err(Error::Protocol(format!(
            "a depth of {deepest}, a prompt of {longest} and {} tokens after it need a context of {needed} tokens, and it has {n_ctx}",
            self.n_gen
        )))
    }

    /// The tokens of each prompt, and those that fill the context before it.
    pub(super) fn tokens(&self, model: &Model, n_ctx: u32) -> Result<Tokens, Error> {
        // Without BOS, with which all would begin: the context would hold it already.
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
    fn the_usual_protocol_is_twelve_prompts_and_fits_its_context() {
        let usual = Protocol::new(4096);
        assert_eq!((usual.n_prompt, usual.n_gen, usual.depths.as_slice()), (512, 256, &[0, 2048][..]));
        assert_eq!(usual.n_texts(), 12);
        for n_ctx in [8, 100, 512, 1000, 4096, 131_072] {
            let Protocol { n_prompt, n_gen, depths, .. } = Protocol::new(n_ctx);
            assert!(depths[depths.len() - 1] + n_prompt + n_gen < n_ctx, "{n_ctx}");
        }
    }

    #[test]
    fn what_measures_nothing_is_refused_with_its_reason() {
        let usual = || Protocol::new(4096);
        for (wrong, word) in [
            (usual().n_gen(0), "n_gen"),
            (usual().depths([]), "depth"),
            (usual().rounds(0), "rounds"),
            (usual().rounds(3).prompts(["one".to_owned()]), "rounds are 1 to the number of prompts, 1"),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(usual().check().is_ok());
    }
}
