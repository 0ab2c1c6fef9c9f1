//! The vocabulary: tokens and their texts. `tokenize` converts texts to tokens.

use super::{Model, WeakModel};
use crate::raw;
use crate::safe::call::{self, Error};

/// A token: an index into the vocabulary.
pub type Token = raw::llama_token;

/// The tokens with which a vocabulary supports fill-in-the-middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FimTokens {
    /// The token before the prefix, which is the text before the gap.
    pub pre: Option<Token>,
    /// The token before the suffix, which is the text after the gap.
    pub suf: Option<Token>,
    /// The token before the text that fills the gap.
    pub mid: Option<Token>,
    /// The token that pads sequences in training.
    pub pad: Option<Token>,
    /// The token before the name of a repository.
    pub rep: Option<Token>,
    /// The token before the name of a file.
    pub sep: Option<Token>,
}

/// A handle to a model's vocabulary. It does not keep the model loaded.
#[derive(Debug, Clone)]
pub struct WeakVocab {
    model: WeakModel,
}

impl WeakVocab {
    /// The vocabulary, if its model is still loaded.
    pub fn upgrade(&self) -> Option<Vocab> {
        self.model.upgrade().map(Vocab::new)
    }
}

/// The vocabulary of a model. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Vocab {
    model: Model,
    raw: *const raw::llama_vocab,
    n_tokens: i32,
    kind: raw::llama_vocab_type,
}

// SAFETY: `raw` points into the model, which this handle keeps loaded and llama.cpp only reads. The working state of
// tokenising is on the stack (llama-vocab.cpp, `llama_vocab::impl::tokenize` is const).
unsafe impl Send for Vocab {}
// SAFETY: as above.
unsafe impl Sync for Vocab {}

impl Model {
    /// The vocabulary.
    pub fn vocab(&self) -> Vocab {
        Vocab::new(self.clone())
    }
}

/// The tokens that a vocabulary puts around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AddedTokens {
    /// The token before the text, such as BERT's `[CLS]`.
    pub bos: Option<Token>,
    /// The token after the text. If the model requires one and the vocabulary has none, this is the separator, as in
    /// llama.cpp's server.
    pub eos: Option<Token>,
    /// The token after the text and between two texts, such as BERT's `[SEP]`.
    pub sep: Option<Token>,
}

impl Vocab {
    fn new(model: Model) -> Self {
        // SAFETY: the model is loaded, and its vocabulary lives as long.
        unsafe {
            let raw = raw::llama_model_get_vocab(model.as_ptr());
            Self { raw, n_tokens: raw::llama_vocab_n_tokens(raw), kind: raw::llama_vocab_type(raw), model }
        }
    }

    /// `llama_vocab_type`.
    pub(super) fn kind(&self) -> raw::llama_vocab_type {
        self.kind
    }

    pub(crate) fn as_ptr(&self) -> *const raw::llama_vocab {
        self.raw
    }

    pub(crate) fn has_tokenizer(&self) -> bool {
        self.kind != raw::LLAMA_VOCAB_TYPE_NONE
    }

    /// The model of this vocabulary.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A handle that does not keep the model loaded, and is not counted as one of its [holders](Model::holders).
    pub fn downgrade(&self) -> WeakVocab {
        WeakVocab { model: self.model.downgrade() }
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> u32 {
        self.n_tokens.try_into().unwrap_or(0)
    }

    /// Whether `token` is an index into the vocabulary.
    pub fn contains(&self, token: Token) -> bool {
        (0..self.n_tokens).contains(&token)
    }

    /// Appends the bytes that `token` stands for. They may be only a part of a character. With `special`, control
    /// tokens are written out as text; otherwise they add nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a token outside the vocabulary; [`Error::NoVocabulary`]; [`Error::Call`].
    pub fn append_piece(&self, token: Token, special: bool, bytes: &mut Vec<u8>) -> Result<(), Error> {
        if !self.has_tokenizer() {
            return Err(Error::NoVocabulary);
        }
        self.check(token)?;
        let start = bytes.len();
        let mut room = 32;
        loop {
            bytes.resize(start + room, 0);
            let written = call::quick(|error| {
                // SAFETY: `room` bytes from `start` are initialised and ours; the token is in the vocabulary.
                unsafe {
                    let target = bytes.as_mut_ptr().add(start).cast();
                    raw::shim_token_to_piece(self.raw, token, target, room as i32, 0, special, error)
                }
            })
            .map_err(|failure| {
                bytes.truncate(start);
                Error::Call { what: "reading a token's text", failure }
            })?;
            if let Ok(written) = usize::try_from(written) {
                bytes.truncate(start + written);
                return Ok(());
            }
            room = written.unsigned_abs() as usize;
        }
    }

    /// The bytes that `token` stands for: see [`Vocab::append_piece`].
    ///
    /// # Errors
    ///
    /// The errors of [`Vocab::append_piece`].
    pub fn piece(&self, token: Token, special: bool) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.append_piece(token, special, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether a token ends a generation: as the end of a text, of a turn, or of a message. False for numbers outside
    /// the vocabulary.
    pub fn is_eog(&self, token: Token) -> bool {
        // SAFETY: the token is in the vocabulary, which exists.
        self.has_tokenizer() && self.contains(token) && unsafe { raw::llama_vocab_is_eog(self.raw, token) }
    }

    /// Whether a token is a control token, which has no text. False for numbers outside the vocabulary.
    pub fn is_control(&self, token: Token) -> bool {
        // SAFETY: as in `is_eog`.
        self.has_tokenizer() && self.contains(token) && unsafe { raw::llama_vocab_is_control(self.raw, token) }
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<Token> {
        // SAFETY: the vocabulary lives. For a token that the model lacks, llama.cpp returns -1.
        Some(unsafe { raw::llama_vocab_bos(self.raw) }).filter(|token| self.contains(*token))
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<Token> {
        // SAFETY: as in `bos`.
        Some(unsafe { raw::llama_vocab_eos(self.raw) }).filter(|token| self.contains(*token))
    }

    /// The tokens for fill-in-the-middle. llama.cpp takes them from the header, or finds them by their texts
    /// (llama-vocab.cpp, `llama_vocab::impl::load`).
    #[doc(alias = "llama_vocab_fim_pre")]
    pub fn fim(&self) -> FimTokens {
        let token = |of: unsafe extern "C" fn(*const raw::llama_vocab) -> Token| {
            // SAFETY: the vocabulary lives. For a token that the model lacks, llama.cpp returns -1.
            Some(unsafe { of(self.raw) }).filter(|token| self.contains(*token))
        };
        FimTokens {
            pre: token(raw::llama_vocab_fim_pre),
            suf: token(raw::llama_vocab_fim_suf),
            mid: token(raw::llama_vocab_fim_mid),
            pad: token(raw::llama_vocab_fim_pad),
            rep: token(raw::llama_vocab_fim_rep),
            sep: token(raw::llama_vocab_fim_sep),
        }
    }

    /// Tokens that must never be chosen, according to the model's header (`tokenizer.ggml.suppress_tokens`).
    #[doc(alias = "llama_vocab_get_suppress_tokens")]
    pub fn suppressed(&self) -> &[Token] {
        let mut count = 0;
        // SAFETY: `model` keeps the vocabulary loaded, and the list lives as long as the vocabulary.
        let list = unsafe { raw::llama_vocab_get_suppress_tokens(self.raw, &raw mut count) };
        match usize::try_from(count) {
            // SAFETY: llama.cpp states that the list has `count` entries.
            Ok(count) if !list.is_null() => unsafe { std::slice::from_raw_parts(list, count) },
            _ => &[],
        }
    }

    /// The tokens that [`tokenize`](Self::tokenize) puts around a text with `add_special`.
    pub fn added_tokens(&self) -> AddedTokens {
        if !self.has_tokenizer() {
            return AddedTokens::default();
        }
        // SAFETY: the vocabulary lives. For a token that the model lacks, llama.cpp returns -1.
        let (bos, eos, sep) = unsafe {
            (
                raw::llama_vocab_get_add_bos(self.as_ptr()),
                raw::llama_vocab_get_add_eos(self.as_ptr()),
                raw::llama_vocab_get_add_sep(self.as_ptr()),
            )
        };
        // SAFETY: as above.
        let separator = Some(unsafe { raw::llama_vocab_sep(self.as_ptr()) }).filter(|token| self.contains(*token));
        AddedTokens {
            bos: self.bos().filter(|_| bos),
            eos: self.eos().or(separator).filter(|_| eos),
            sep: separator.filter(|_| sep),
        }
    }

    pub(crate) fn check(&self, token: Token) -> Result<(), Error> {
        check_token(token, self.n_tokens())
    }
}

/// Refuses a number that is not a token: the vocabulary has `n_tokens` tokens.
pub(crate) fn check_token(token: Token, n_tokens: u32) -> Result<(), Error> {
    match u32::try_from(token) {
        Ok(token) if token < n_tokens => Ok(()),
        _ => Err(Error::parameter("token", token, format!("the vocabulary has {n_tokens} tokens"))),
    }
}
