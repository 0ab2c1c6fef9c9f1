//! A model's vocabulary in llguidance's form: the bytes of every token, as a tree.
//!
//! The tree is built once per model, which takes tens of milliseconds for a large vocabulary. The tree does not refer
//! to the loaded model.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use llama_sys::{Token, Vocab};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{INVALID_TOKEN, InferenceCapabilities, TokRxInfo, TokTrie, TokenId};
use toktrie::{ApproximateTokEnv, TokEnv};

/// Tokens with more bytes than this are never allowed. The tree cannot contain tokens of more than 1024 bytes, and no
/// text needs them.
const MAX_TOKEN_BYTES: usize = 512;

/// Precedes the text of a control token. JSON never contains this character.
pub(crate) const CONTROL: char = '\u{1}';

/// The tokens of a model in the form for constraints.
pub(crate) struct Vocabulary {
    pub(crate) factory: ParserFactory,
    /// Tokens that are text or end it: bit t % 32 of word t / 32 stands for token t.
    pub(crate) allowed: Vec<u32>,
    /// Tokens that end a text.
    pub(crate) ends: Vec<u32>,
    /// Texts of the control tokens, if they mark tool calls in this vocabulary.
    pub(crate) control: Vec<String>,
    /// Texts of the tokens that no constraint allows.
    disallowed: HashSet<Vec<u8>>,
    /// The same vocabulary with control tokens as marks, built on first use.
    with_marks: OnceLock<Arc<Self>>,
}

/// The reason why a vocabulary cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Native(llama_sys::Error),
    /// llguidance refuses the tokens, for this reason.
    Refused(String),
}

impl From<llama_sys::Error> for Unreadable {
    fn from(error: llama_sys::Error) -> Self {
        Self::Native(error)
    }
}

impl From<String> for Unreadable {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

debug_with!(Vocabulary: control);

/// The bytes of every token; empty for tokens that are not text. With `are_marks`, a control token becomes its text
/// after [`CONTROL`]. Also returns the texts of those control tokens.
pub(crate) fn words(vocab: &Vocab, are_marks: bool) -> Result<(Vec<Vec<u8>>, Vec<String>), llama_sys::Error> {
    let mut words = Vec::with_capacity(vocab.n_tokens() as usize);
    let mut control = Vec::new();
    for token in 0..vocab.n_tokens() as Token {
        let mut word = Vec::new();
        if !vocab.is_eog(token) && !vocab.is_control(token) {
            vocab.append_piece(token, false, &mut word)?;
            if are_marks && word.contains(&(CONTROL as u8)) {
                word.clear();
            }
        } else if are_marks && !vocab.is_eog(token) {
            vocab.append_piece(token, true, &mut word)?;
            match String::from_utf8(word) {
                Ok(text) if !text.is_empty() => {
                    word = format!("{CONTROL}{text}").into_bytes();
                    control.push(text);
                }
                _ => word = Vec::new(),
            }
        }
        // llguidance marks control tokens with 0xFF, which never occurs in UTF-8.
        if word.len() > MAX_TOKEN_BYTES || word.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
            word.clear();
        }
        words.push(word);
    }
    Ok((words, control))
}

/// The texts of control tokens and end tokens.
fn disallowed(vocab: &Vocab) -> Result<HashSet<Vec<u8>>, llama_sys::Error> {
    let mut disallowed = HashSet::new();
    for token in (0..vocab.n_tokens() as Token).filter(|id| vocab.is_eog(*id) || vocab.is_control(*id)) {
        let mut text = Vec::new();
        vocab.append_piece(token, true, &mut text)?;
        disallowed.insert(text);
    }
    Ok(disallowed)
}

impl Vocabulary {
    /// Reads all tokens of a vocabulary. The tree is built by recursion, so the caller provides a large stack.
    pub(crate) fn new(vocab: &Vocab) -> Result<Arc<Self>, Unreadable> {
        Self::read(vocab, false)
    }

    /// The same vocabulary with control tokens as marks of tool calls. It is read on first use, in the same way as in
    /// [`new`](Self::new).
    pub(crate) fn with_marks(&self, vocab: &Vocab) -> Result<Arc<Self>, Unreadable> {
        if let Some(made) = self.with_marks.get() {
            return Ok(Arc::clone(made));
        }
        let made = Self::read(vocab, true)?;
        // Another thread may have built it first.
        Ok(Arc::clone(self.with_marks.get_or_init(|| made)))
    }

    fn read(vocab: &Vocab, are_marks: bool) -> Result<Arc<Self>, Unreadable> {
        let (words, control) = words(vocab, are_marks)?;
        Ok(Arc::new(Self::from_words(vocab, &words, control, disallowed(vocab)?)?))
    }

    pub(crate) fn from_words(
        vocab: &Vocab,
        words: &[Vec<u8>],
        control: Vec<String>,
        disallowed: HashSet<Vec<u8>>,
    ) -> Result<Self, String> {
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
        // If the constraint forces a text, the model still chooses its tokenization, as in llama.cpp. So no tokenizer
        // is needed.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        Ok(Self {
            factory: factory.map_err(|error| error.to_string())?,
            allowed: mask(&|token| is_end(token) || !words[token as usize].is_empty()),
            ends: mask(&is_end),
            control,
            disallowed,
            with_marks: OnceLock::new(),
        })
    }

    /// The token that spells exactly this text.
    pub(crate) fn token(&self, text: &str) -> Result<u32, String> {
        let tree = self.factory.tok_env().tok_trie();
        match tree.token_id(text.as_bytes()) {
            Some(token) => Ok(token),
            None if self.disallowed.contains(text.as_bytes()) => {
                Err(format!("`{text}` is a control token, which no constraint allows"))
            }
            None => Err(format!("`{text}` is not a token of the model's vocabulary")),
        }
    }
}
