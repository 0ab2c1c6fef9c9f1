//! What a text must be: a JSON value of a schema, a match of a regular expression, a sentence of a grammar, one
//! of some choices.
//!
//! In: a [`Constraint`] and a model's vocabulary. Out: before each token, which tokens the text can go on with, so that
//! it is what was asked for when it ends, whatever the model would rather have written. A text that a limit cuts short
//! is [`Error::Incomplete`](super::Error::Incomplete), never half a text that looks whole.

mod compile;
mod lark;
mod matcher;
mod schema;
mod tool_choice;
#[cfg(feature = "schemars")]
mod typed;
mod vocabulary;

use llama_sys::Vocab;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(super) use matcher::Matcher;
pub use tool_choice::ToolChoice;
use vocabulary::Vocabulary;

use super::error::Error;
use crate::load::Model;

/// What a text must be: given to [`Generate::constraint`](super::Generate::constraint).
///
/// It is a description: making one costs little, and one that cannot be enforced is an error when the generation
/// begins. It need not be trusted: what would take too long, or too much memory, is an error. No constraint allows a
/// control token, whatever it says.
///
/// ```
/// use autoplace::generate::Constraint;
/// use serde_json::json;
/// let answer = Constraint::choices(["yes", "no"]);
/// let date = Constraint::regex("[0-9]{4}-[0-9]{2}-[0-9]{2}");
/// let person = Constraint::json_schema(json!({
///     "type": "object",
///     "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
///     "required": ["name", "age"],
///     "additionalProperties": false,
/// }));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constraint(Kind);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// As a text: messages to workers hold no trees.
    JsonSchema(String),
    Regex(String),
    Choices(Vec<String>),
    Lark(String),
}

impl Constraint {
    /// A JSON value that this schema allows (draft 4 to 2020-12).
    ///
    /// Strict: a keyword that cannot be enforced (`uniqueItems`, `not`, `if`, ...) is
    /// [`Error::Constraint`](super::Error::Constraint), which names it; it is never left out. Properties come in the
    /// order in which the schema has them. Between two parts of the value is at most one space, or one or two line ends
    /// and up to 20 spaces or tabs, as llama.cpp has it (common/json-schema-to-grammar.cpp, `SPACE_RULE`): no model
    /// writes spaces without end.
    ///
    /// Numbers stay within ±9007199254740991, where a double holds each integer, and strings have no `\u` escapes: each
    /// character but control characters stands for itself. Only `#...` references are followed: nothing is fetched.
    pub fn json_schema(schema: impl Into<Value>) -> Self {
        Self(Kind::JsonSchema(schema.into().to_string()))
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(json!({"type": "object"}))
    }

    /// A text that the regular expression matches from its beginning to its end, in the syntax of the crate `regex`. It
    /// is anchored already, and can have neither anchors nor look-around.
    pub fn regex(regex: impl Into<String>) -> Self {
        Self(Kind::Regex(regex.into()))
    }

    /// One of these texts.
    pub fn choices<T: Into<String>>(choices: impl IntoIterator<Item = T>) -> Self {
        Self(Kind::Choices(choices.into_iter().map(Into::into).collect()))
    }

    /// A sentence of a context-free grammar, in llguidance's variant of the syntax of Lark, from its rule `start`.
    /// Terminals take the longest text that they match. Parameters (`name::parameter`), `capture` and `%lark` are
    /// errors.
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self(Kind::Lark(grammar.into()))
    }

    /// Begins a text that is held to it.
    pub(super) fn begin(&self, model: &Model, vocab: &Vocab) -> Result<Matcher, Error> {
        Matcher::new(self, &model.kept(|| Vocabulary::new(vocab))?)
    }

    /// What it is called in messages.
    fn name(&self) -> &'static str {
        match self.0 {
            Kind::JsonSchema(_) => "JSON schema",
            Kind::Regex(_) => "regular expression",
            Kind::Choices(_) => "list of choices",
            Kind::Lark(_) => "Lark grammar",
        }
    }
}

#[cfg(test)]
mod tests;
