//! The methods of a loaded model for requests, tokens, and the sampling parameters of the model's file.

use llama_sys::Token;

use super::error::Error;
use super::media::Layout;
use super::prompt::{Prompt, detokenize};
use super::request::{GenerateRequest, Spec};
use super::sampling::Sampling;
use crate::load::Model;

impl Model {
    /// Describes a generation that continues `prompt`.
    ///
    /// A `&str` or `String` is plain text: control tokens that are written in it are not read as control tokens.
    /// [`Prompt`] has methods for the other kinds of prompts.
    pub fn generate(&self, prompt: impl Into<Prompt>) -> GenerateRequest {
        GenerateRequest { model: self.clone(), spec: Spec::new(prompt.into(), self.sampling()) }
    }

    /// The tokens of a prompt, including the special tokens that the vocabulary adds before a text. Each row of a
    /// picture or a sound is a negative number.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] for a model that is not loaded; [`Error::EmptyPrompt`]; [`Error::NoProjector`].
    #[doc(alias = "llama_tokenize")]
    #[doc(alias = "str_to_token")]
    pub fn tokenize(&self, prompt: impl Into<Prompt>) -> Result<Vec<Token>, Error> {
        let prompt = prompt.into();
        Ok(self.lay_out(&prompt)?.tokens)
    }

    /// The tokens of a prompt with the places of its pictures and sounds.
    pub(crate) fn lay_out(&self, prompt: &Prompt) -> Result<Layout, Error> {
        self.with_vocab(|vocab| prompt.lay_out(vocab, &|media| self.prepare_media(media)))?
    }

    /// The text of these tokens, without the control tokens among them. Bytes that are not a whole character become
    /// U+FFFD.
    ///
    /// If a whole text was turned into tokens by [`tokenize`](Self::tokenize), the result is the same text again: the
    /// space that some vocabularies put before a text is left out.
    ///
    /// ```no_run
    /// let model = autoplace::Model::load("model.gguf")?;
    /// let tokens = model.tokenize("Once upon a time")?;
    /// assert_eq!(model.detokenize(&tokens)?, "Once upon a time");
    /// # Ok::<(), autoplace::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Load`] for a model that is not loaded; [`Error::Native`] for a number that is not a token of the
    /// vocabulary.
    #[doc(alias = "llama_detokenize")]
    #[doc(alias = "token_to_piece")]
    #[doc(alias = "decode")]
    pub fn detokenize(&self, tokens: &[Token]) -> Result<String, Error> {
        self.with_vocab(|vocab| detokenize(vocab, tokens))?
    }

    /// The number of tokens of a prompt: see [`tokenize`](Self::tokenize).
    ///
    /// # Errors
    ///
    /// The errors of [`tokenize`](Self::tokenize).
    pub fn count_tokens(&self, prompt: impl Into<Prompt>) -> Result<usize, Error> {
        Ok(self.tokenize(prompt)?.len())
    }

    /// The sampling parameters with which a generation starts: the parameters in the model file, and llama.cpp's
    /// defaults for the others.
    pub fn sampling(&self) -> Sampling {
        match self.header() {
            Ok(header) => Sampling::shipped_with(header),
            Err(error) => {
                tracing::warn!(target: "autoplace::generate", "using llama.cpp's default sampling: {error}");
                Sampling::default()
            }
        }
    }
}
