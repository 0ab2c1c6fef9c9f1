//! Generates values of Rust types.

use crate::decode::constraint::Constraint;
use crate::decode::error::Error;
use crate::decode::prompt::Prompt;
use crate::decode::request::GenerateRequest;
use crate::load::Model;

impl Model {
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
    /// The errors of [`GenerateRequest::parse`].
    pub fn generate_as<T>(&self, prompt: impl Into<Prompt>) -> Result<T, Error>
    where
        T: serde::de::DeserializeOwned + schemars::JsonSchema,
    {
        self.generate(prompt).parse()
    }
}

impl GenerateRequest {
    /// Generates a value of a type under the JSON schema of the type. The model does not see the schema, so the prompt
    /// must describe the value.
    ///
    /// # Errors
    /// The errors of [`text`](Self::text). [`Error::Constraint`], before the generation starts, if the schema of the
    /// type has a keyword that cannot be enforced, such as `uniqueItems` for a `HashSet`. [`Error::Incomplete`] if a
    /// limit cuts the text off. [`Error::NotOfType`] if the schema allows the text, but the type's `Deserialize`
    /// refuses it.
    pub fn parse<T>(self) -> Result<T, Error>
    where
        T: serde::de::DeserializeOwned + schemars::JsonSchema,
    {
        Constraint::value(self.constraint(Constraint::of_type::<T>()).text()?)
    }
}
