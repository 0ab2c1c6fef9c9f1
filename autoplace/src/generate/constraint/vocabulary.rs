//! A model's vocabulary as llguidance walks through it: the bytes of every token, as a tree.
//!
//! It is made once per model, some tens of milliseconds for a large vocabulary, and holds nothing of the loaded model,
//! which can be placed anew meanwhile.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use llama_sys::{Token, Vocab, WeakVocab};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{INVALID_TOKEN, InferenceCapabilities, TokRxInfo, TokTrie, TokenId};
use toktrie::{TokEnv, TokenizerEnv};

use super::compile;
use crate::generate::Error;

/// Longer tokens are never allowed: the tree holds none beyond 1024 bytes, and no text needs one.
const MAX_TOKEN_BYTES: usize = 512;

/// What constraints need to know of a model's tokens. Cloning is cheap.
#[derive(Clone)]
pub(in crate::generate) struct Vocabulary {
    tokens: Arc<Tokens>,
    factory: Arc<ParserFactory>,
}

/// The tokens, for llguidance.
struct Tokens {
    tree: TokTrie,
    /// Of the model as it is loaded now.
    tokenizer: RwLock<WeakVocab>,
    /// Whether the tokenizer gives back each text that it is given.
    is_canonical: bool,
    /// Tokens that are text or end it: bit t of word t/32.
    allowed: Vec<u32>,
    /// Tokens that end a text.
    ends: Vec<u32>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("n_tokens", &self.tokens.tree.vocab_size()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Reads all tokens of a loaded model.
    ///
    /// # Errors
    ///
    /// [`Error::Native`] for a model without a vocabulary.
    pub(in crate::generate) fn new(vocab: &Vocab) -> Result<Self, Error> {
        let words = words(vocab)?;
        let tokens = compile::guarded("vocabulary", || Ok(Tokens::new(vocab, &words)))?;
        let tokens = Arc::new(tokens);
        let env: TokEnv = tokens.clone();
        let factory = compile::guarded("vocabulary", || {
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|error| error.to_string())
        })?;
        Ok(Self { tokens, factory: Arc::new(factory) })
    }

    /// Has texts tokenised by the model as it is loaded now.
    pub(in crate::generate) fn tokenize_by(&self, vocab: &Vocab) {
        let mut tokenizer = self.tokens.tokenizer.write();
        **tokenizer.as_mut().unwrap_or_else(PoisonError::get_mut) = vocab.downgrade();
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// Takes control tokens out of a mask.
    pub(super) fn keep_text(&self, mask: &mut [u32]) {
        for (word, allowed) in mask.iter_mut().zip(&self.tokens.allowed) {
            *word &= allowed;
        }
    }

    /// Takes the tokens that end a text out of a mask.
    pub(super) fn drop_ends(&self, mask: &mut [u32]) {
        for (word, ends) in mask.iter_mut().zip(&self.tokens.ends) {
            *word &= !ends;
        }
    }

    /// The mask of the tokens that end a text.
    pub(super) fn ends(&self) -> &[u32] {
        &self.tokens.ends
    }

    pub(super) fn is_end(&self, token: Token) -> bool {
        has(&self.tokens.ends, token)
    }

    /// Number of tokens.
    pub(super) fn n_tokens(&self) -> usize {
        self.tokens.tree.vocab_size()
    }
}

/// Whether a mask has a token.
fn has(mask: &[u32], token: Token) -> bool {
    usize::try_from(token).is_ok_and(|token| mask.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
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

impl Tokens {
    fn new(vocab: &Vocab, words: &[Vec<u8>]) -> Self {
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
        let tokens = Self {
            allowed: mask(&|token| is_end(token) || !words[token as usize].is_empty()),
            ends: mask(&is_end),
            tree,
            tokenizer: RwLock::new(vocab.downgrade()),
            is_canonical: true,
        };
        let is_canonical =
            ["{\"name\": ", "true", " a\n\tb", "é日🦙"].iter().all(|text| tokens.tokens_of(text).is_some());
        Self { is_canonical, ..tokens }
    }

    /// The tokens that the model's tokenizer makes of a text, if those are the text again.
    fn tokens_of(&self, text: &str) -> Option<Vec<TokenId>> {
        /// A byte that tokens of words have not: before it go the spaces that some tokenizers put at the beginning.
        const LEAD: &str = "\u{2}";
        let vocab = self.tokenizer.read().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        let is_text = |tokens: &[Token]| {
            let bytes = tokens.iter().map(|token| self.bytes(*token));
            bytes.flatten().eq(text.as_bytes())
        };
        let plain = vocab.tokenize(text, false, false).ok()?;
        if is_text(&plain) {
            return Some(ids(&plain));
        }
        let led = vocab.tokenize(&format!("{LEAD}{text}"), false, false).ok()?;
        let after = led.iter().position(|token| self.bytes(*token) == LEAD.as_bytes())?;
        let rest = led.get(after + 1..)?;
        is_text(rest).then(|| ids(rest))
    }

    fn bytes(&self, token: Token) -> &[u8] {
        match u32::try_from(token) {
            Ok(token) if (token as usize) < self.tree.vocab_size() => self.tree.token(token),
            _ => &[],
        }
    }
}

fn ids(tokens: &[Token]) -> Vec<TokenId> {
    tokens.iter().map(|token| *token as TokenId).collect()
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.tree
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let tokens = std::str::from_utf8(bytes).ok().and_then(|text| self.tokens_of(text));
        tokens.unwrap_or_else(|| self.tree.greedy_tokenize(bytes))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_canonical
    }
}
