//! What a loaded model does with texts: the way in.

use llama_sys::Token;

use super::chat::Chat;
#[cfg(feature = "schemars")]
use super::constraint::Constraint;
use super::error::Error;
use super::prompt::Prompt;
use super::request::{Generate, Spec};
use super::sampling::Sampling;
use super::session::Session;
use crate::chat::ChatTemplate;
use crate::load::{self, Model};

impl Model {
    /// Describes a generation that continues `prompt`.
    ///
    /// A text is plain: control tokens written in it are not read as such. [`Prompt`] has the other kinds.
    pub fn generate(&self, prompt: impl Into<Prompt>) -> Generate {
        Generate { model: self.clone(), spec: Spec::new(prompt.into(), self.sampling()) }
    }

    /// Generates a value of a type: [`Generate::parse`] with all else left as it is by default.
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
    /// As [`Generate::parse`].
    #[cfg(feature = "schemars")]
    pub fn generate_as<T>(&self, prompt: impl Into<Prompt>) -> Result<T, Error>
    where
        T: serde::de::DeserializeOwned + schemars::JsonSchema,
    {
        self.generate(prompt).parse()
    }

    /// The tokens that a prompt is computed as, what the vocabulary puts before a text included.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] for a model that is not loaded; [`Error::EmptyPrompt`].
    #[doc(alias = "llama_tokenize")]
    pub fn tokenize(&self, prompt: impl Into<Prompt>) -> Result<Vec<Token>, Error> {
        let prompt = prompt.into();
        self.with_vocab(|vocab| prompt.tokenize(vocab))?
    }

    /// How many tokens a prompt is computed as: see [`tokenize`](Self::tokenize).
    ///
    /// # Errors
    ///
    /// As [`tokenize`](Self::tokenize).
    pub fn count_tokens(&self, prompt: impl Into<Prompt>) -> Result<usize, Error> {
        Ok(self.tokenize(prompt)?.len())
    }

    /// The sampling parameters that the model's makers put into the file, those of llama.cpp where there are none: what
    /// a generation starts with.
    pub fn sampling(&self) -> Sampling {
        match self.header() {
            Ok(header) => Sampling::shipped_with(header),
            Err(error) => {
                tracing::warn!("sampling as llama.cpp does by default: {error}");
                Sampling::default()
            }
        }
    }

    /// Begins a conversation by the chat template that the model ships.
    ///
    /// # Errors
    ///
    /// [`Error::Template`] for a model that ships none ([`chat_with`](Self::chat_with) takes another), or one that is
    /// no template; [`Error::Load`] where the file cannot be read.
    pub fn chat(&self) -> Result<Chat, Error> {
        Ok(self.chat_with(ChatTemplate::from_header(self.header().map_err(load::Error::from)?)?))
    }

    /// Begins a conversation by another template than the model's own.
    pub fn chat_with(&self, template: ChatTemplate) -> Chat {
        Chat::new(self.generate(""), template)
    }

    /// Takes the model's one context, to generate several texts at once. For a single text,
    /// [`generate`](Self::generate) does it.
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
impl Generate {
    /// Generates a value of a type, held to the type's own JSON schema. The prompt has to say what is wanted: the
    /// schema is not shown to the model.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text): [`Error::Constraint`], before anything is generated, for a type whose schema has a
    /// keyword that cannot be enforced (a `HashSet`: `uniqueItems`), and [`Error::Incomplete`] where a limit cuts the
    /// text short. [`Error::NotOfType`] for what the schema of the type allows and its `Deserialize` does not.
    pub fn parse<T>(self) -> Result<T, Error>
    where
        T: serde::de::DeserializeOwned + schemars::JsonSchema,
    {
        Constraint::value(self.constraint(Constraint::of_type::<T>()).text()?)
    }
}
