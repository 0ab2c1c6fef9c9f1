//! A model's vocabulary as llguidance walks through it: the bytes of every token, as a tree.
//!
//! It is made once per model, some tens of milliseconds for a large vocabulary, and holds nothing of the loaded model.

use std::collections::HashSet;
use std::sync::Arc;

use llama_sys::{Token, Vocab};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{INVALID_TOKEN, InferenceCapabilities, TokRxInfo, TokTrie, TokenId};
use toktrie::{ApproximateTokEnv, TokEnv};

use super::compile;
use crate::generate::Error;

/// Longer tokens are never allowed: the tree holds none beyond 1024 bytes, and no text needs one.
const MAX_TOKEN_BYTES: usize = 512;

/// What constraints need to know of a model's tokens.
pub(super) struct Vocabulary {
    pub(super) factory: ParserFactory,
    /// Tokens that are text or end it: bit t % 32 of word t / 32.
    pub(super) allowed: Vec<u32>,
    /// Tokens that end a text.
    pub(super) ends: Vec<u32>,
    /// The texts of tokens that no constraint allows.
    controls: HashSet<Vec<u8>>,
}

/// The bytes of every token; none for those that are not text.
fn words(vocab: &Vocab) -> Result<Vec<Vec<u8>>, Error> {
    let mut words = Vec::with_capacity(vocab.n_tokens() as usize);
    for token in 0..vocab.n_tokens() as Token {
        let mut word = Vec::new();
        if !vocab.is_eog(token) && !vocab.is_control(token) {
            vocab.append_piece(token, false, &mut word)?;
        }
        // 0xFF, which no UTF-8 has, is how llguidance marks control tokens.
        if word.len() > MAX_TOKEN_BYTES || word.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
            word.clear();
        }
        words.push(word);
    }
    Ok(words)
}

/// The texts of control tokens and of those that end a text.
fn controls(vocab: &Vocab) -> Result<HashSet<Vec<u8>>, Error> {
    let mut controls = HashSet::new();
    for token in (0..vocab.n_tokens() as Token).filter(|it| vocab.is_eog(*it) || vocab.is_control(*it)) {
        let mut text = Vec::new();
        vocab.append_piece(token, true, &mut text)?;
        controls.insert(text);
    }
    Ok(controls)
}

impl Vocabulary {
    /// Reads all tokens of a loaded model.
    pub(super) fn new(vocab: &Vocab) -> Result<Arc<Self>, Error> {
        let (words, controls) = (words(vocab)?, controls(vocab)?);
        let vocabulary = compile::on_large_stack(|| Self::of(vocab, &words, controls));
        vocabulary.map(Arc::new).map_err(|reason: String| Error::Constraint {
            constraint: "vocabulary".to_owned(),
            place: String::new(),
            reason,
        })
    }

    fn of(vocab: &Vocab, words: &[Vec<u8>], controls: HashSet<Vec<u8>>) -> Result<Self, String> {
        let n_tokens = words.len() as u32;
        let eog: Vec<TokenId> = (0..n_tokens).filter(|token| vocab.is_eog(*token as Token)).collect();
        let info = TokRxInfo::new(n_tokens, eog.first().copied().unwrap_or(INVALID_TOKEN));
        let mut tree = TokTrie::from(&info, words);
        if !eog.is_empty() {
            tree = tree.with_eos_tokens(&eog);
        }
        let mask = |is_in: &dyn Fn(u32) -> bool| {
            let mut mask = vec![0_u32; words.len().div_ceil(32)];
            for token in (0..n_tokens).filter(|token| is_in(*token)) {
                mask[token as usize / 32] |= 1 << (token % 32);
            }
            mask
        };
        let is_end = |token| vocab.is_eog(token as Token);
        // As in llama.cpp, the model chooses how a text that is certain is made of tokens: no tokenizer is needed.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        Ok(Self {
            factory: factory.map_err(|error| error.to_string())?,
            allowed: mask(&|token| is_end(token) || !words[token as usize].is_empty()),
            ends: mask(&is_end),
            controls,
        })
    }

    /// The token whose whole text this is.
    pub(super) fn token(&self, text: &str) -> Result<u32, String> {
        let tree = self.factory.tok_env().tok_trie();
        match tree.token_id(text.as_bytes()) {
            Some(token) => Ok(token),
            None if self.controls.contains(text.as_bytes()) => {
                Err(format!("`{text}` is a control token, which no constraint allows"))
            }
            None => Err(format!("`{text}` is no token of the model's vocabulary")),
        }
    }
}
