//! Entry points of a loaded model: generation, tokens, chats and sessions.

use llama_sys::Token;

use super::chat::Chat;
#[cfg(feature = "schemars")]
use super::constraint::Constraint;
use super::error::Error;
use super::prompt::{Prompt, detokenize};
use super::request::{GenerateRequest, Spec};
use super::sampling::Sampling;
use super::session::Session;
use crate::chat::ChatTemplate;
use crate::load::{self, Model};

impl Model {
    /// Describes a generation that continues `prompt`.
    ///
    /// A `&str` or `String` is plain text: control tokens written in it are not read as such. [`Prompt`] has the other
    /// kinds.
    pub fn generate(&self, prompt: impl Into<Prompt>) -> GenerateRequest {
        GenerateRequest { model: self.clone(), spec: Spec::new(prompt.into(), self.sampling()) }
    }

    /// Generates a value of a type with the default settings: see [`GenerateRequest::parse`].
    ///
    /// ```no_run
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct City {
    ///     name: String,
    ///     inhabitants: u32,
    /// }
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// let city: City = model.generate_as("The largest city of France, as JSON: ")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`GenerateRequest::parse`].
    #[cfg(feature = "schemars")]
    pub fn generate_as<T>(&self, prompt: impl Into<Prompt>) -> Result<T, Error>
    where
        T: serde::de::DeserializeOwned + schemars::JsonSchema,
    {
        self.generate(prompt).parse()
    }

    /// The tokens of a prompt, including the special tokens that the vocabulary adds before a text.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] for a model that is not loaded; [`Error::EmptyPrompt`].
    #[doc(alias = "llama_tokenize")]
    #[doc(alias = "str_to_token")]
    pub fn tokenize(&self, prompt: impl Into<Prompt>) -> Result<Vec<Token>, Error> {
        let prompt = prompt.into();
        self.with_vocab(|vocab| prompt.tokenize(vocab))?
    }

    /// The text of these tokens, without the control tokens among them. Bytes that are no whole character become
    /// U+FFFD.
    ///
    /// The tokens of a whole text, as [`tokenize`](Self::tokenize) gives them, are that text again: the space that some
    /// vocabularies put before a text is left out.
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
    /// [`Error::Load`] for a model that is not loaded; [`Error::Native`] for a number that is no token of the
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
    /// As [`tokenize`](Self::tokenize).
    pub fn count_tokens(&self, prompt: impl Into<Prompt>) -> Result<usize, Error> {
        Ok(self.tokenize(prompt)?.len())
    }

    /// The sampling parameters that a generation starts with: those in the model file, and llama.cpp's defaults for the
    /// rest.
    pub fn sampling(&self) -> Sampling {
        match self.header() {
            Ok(header) => Sampling::shipped_with(header),
            Err(error) => {
                tracing::warn!("using llama.cpp's default sampling: {error}");
                Sampling::default()
            }
        }
    }

    /// Begins a conversation with the chat template of the model.
    ///
    /// # Errors
    ///
    /// [`Error::Template`] for a model without a template or with an invalid one ([`chat_with`](Self::chat_with) takes
    /// another); [`Error::Load`] when the file cannot be read.
    pub fn chat(&self) -> Result<Chat, Error> {
        Ok(self.chat_with(ChatTemplate::from_header(self.header().map_err(load::Error::from)?)?))
    }

    /// Begins a conversation with another template.
    pub fn chat_with(&self, template: ChatTemplate) -> Chat {
        Chat::new(self.generate(""), template)
    }

    /// Takes the model's one context to generate several texts at once. [`generate`](Self::generate) is enough for a
    /// single text.
    ///
    /// # Errors
    ///
    /// [`Error::NotGenerative`]; [`Error::Busy`] while a stream or another session of this model lives; [`Error::Load`]
    /// for a model that is not loaded; [`Error::Worker`] when the model's worker process has died or cannot be started
    /// again.
    pub fn session(&self) -> Result<Session, Error> {
        Session::open(self)
    }
}

#[cfg(feature = "schemars")]
impl GenerateRequest {
    /// Generates a value of a type under the JSON schema of the type. The model does not see the schema, so the prompt
    /// must describe the value.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text). [`Error::Constraint`], before the generation starts, for a type whose schema has a
    /// keyword that cannot be enforced (a `HashSet`: `uniqueItems`). [`Error::Incomplete`] when a limit cuts the text
    /// short. [`Error::NotOfType`] for a text that the schema allows and the type's `Deserialize` refuses.
    pub fn parse<T>(self) -> Result<T, Error>
    where
        T: serde::de::DeserializeOwned + schemars::JsonSchema,
    {
        Constraint::value(self.constraint(Constraint::of_type::<T>()).text()?)
    }
}
