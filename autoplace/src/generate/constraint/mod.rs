//! What a text must be: a JSON value of a schema, a match of a regular expression, a sentence of a grammar, one
//! of some choices.
//!
//! In: a [`Constraint`] and a model's vocabulary. Out: before each token, which tokens the text can go on with, so that
//! it is what was asked for when it ends, whatever the model would rather have written. A text that a limit cuts short
//! is [`Error::Incomplete`](super::Error::Incomplete), never half a text that looks whole.

mod calls;
mod compile;
mod gbnf;
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

use calls::TextOrCalls;
pub(super) use matcher::Matcher;
pub use schema::Unenforced;
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
    JsonSchema {
        /// As a text: messages to workers hold no trees.
        schema: String,
        /// Whether an object may have properties that nobody names, unless it says otherwise.
        is_open: bool,
        /// What errors call places of the schema that begin so; the first that fits.
        places: Vec<(String, String)>,
    },
    Regex(String),
    Choices(Vec<String>),
    Lark(String),
    Gbnf(String),
    /// Calls of tools, or a text of another form.
    CallsOr {
        calls: Box<Constraint>,
        form: Box<Constraint>,
    },
    /// Any text, with calls of tools in it.
    TextOrCalls(Box<TextOrCalls>),
}

impl Constraint {
    /// A JSON value that this schema allows (draft 4 to 2020-12).
    ///
    /// Strict: a keyword that cannot be enforced (`uniqueItems`, `not`, `if`, ...) is
    /// [`Error::Constraint`](super::Error::Constraint), which names it and its place; it is never left out.
    /// [`enforceable`](Self::enforceable) leaves such keywords out and says so. Properties come in the
    /// order in which the schema has them. Between two parts of the value is at most one space, or one or two line ends
    /// and up to 20 spaces or tabs, as llama.cpp has it (common/json-schema-to-grammar.cpp, `SPACE_RULE`): no model
    /// writes spaces without end.
    ///
    /// An object with `properties` that says nothing of others has no others, as in llama.cpp:
    /// [`open_objects`](Self::open_objects) has JSON Schema's letter.
    ///
    /// Numbers stay within ±9007199254740991, where a double holds each integer, and strings have no `\u` escapes: each
    /// character but control characters stands for itself. Only `#...` references are followed: nothing is fetched.
    pub fn json_schema(schema: impl Into<Value>) -> Self {
        Self(Kind::JsonSchema { schema: schema.into().to_string(), is_open: false, places: Vec::new() })
    }

    /// Lets objects of a JSON schema have properties that nobody names, unless `additionalProperties` says otherwise,
    /// as JSON Schema has it. Says nothing of other constraints.
    #[must_use]
    pub fn open_objects(mut self) -> Self {
        self.open();
        self
    }

    fn open(&mut self) {
        match &mut self.0 {
            Kind::JsonSchema { is_open, .. } => *is_open = true,
            Kind::CallsOr { calls, form } => {
                calls.open();
                form.open();
            }
            Kind::TextOrCalls(calls) => calls.is_open = true,
            Kind::Regex(_) | Kind::Choices(_) | Kind::Lark(_) | Kind::Gbnf(_) => {}
        }
    }

    /// Says what errors call the place of a JSON schema, as `response_format.json_schema.schema`.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        self.at_places(vec![(String::new(), place.into())])
    }

    fn at_places(mut self, named: Vec<(String, String)>) -> Self {
        if let Kind::JsonSchema { places, .. } = &mut self.0 {
            *places = named;
        }
        self
    }

    /// Checks it without a model.
    ///
    /// # Errors
    ///
    /// [`Error::Constraint`](super::Error::Constraint) for what would be refused whatever the model's vocabulary.
    pub fn check(&self) -> Result<(), Error> {
        compile::check(self)
    }

    /// What of a schema can be enforced, as a schema, and the rest: each keyword that was left out, with its place.
    ///
    /// ```
    /// use autoplace::generate::Constraint;
    /// use serde_json::json;
    /// let tags = json!({"type": "array", "items": {"type": "string"}, "maxItems": 5, "uniqueItems": true});
    /// let (enforced, unenforced) = Constraint::enforceable(&tags);
    /// assert_eq!(unenforced[0].to_string(), "`uniqueItems` is not enforced");
    /// assert!(Constraint::json_schema(enforced).check().is_ok());
    /// ```
    pub fn enforceable(schema: &Value) -> (Value, Vec<Unenforced>) {
        let followed = compile::on_large_stack(|| Ok::<_, Unenforced>(schema::enforceable(schema)));
        followed.unwrap_or_else(|unenforced| (json!({"type": "object"}), vec![unenforced]))
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

    /// A text of a grammar in GBNF, llama.cpp's notation, from its rule `root`:
    ///
    /// ```
    /// use autoplace::generate::Constraint;
    /// let list = Constraint::gbnf(r#"root ::= ("- " [^\n]+ "\n"){2,5}"#);
    /// assert!(list.check().is_ok());
    /// let refused = Constraint::gbnf("root ::= item\nitem ::= item \"x\" | \"x\"").check().unwrap_err().to_string();
    /// assert!(refused.contains("line 2, column 1") && refused.contains("left recursion"));
    /// ```
    ///
    /// The texts are those that llama.cpp allows, whatever tokens they are made of. `<[7]>` and `<think>` are one token
    /// of the vocabulary, `!<think>` any other one. As everywhere, no control token is allowed.
    pub fn gbnf(grammar: impl Into<String>) -> Self {
        Self(Kind::Gbnf(grammar.into()))
    }

    /// A text of a grammar in llama.cpp's notation ([`gbnf`](Self::gbnf)) or in llguidance's ([`lark`](Self::lark)),
    /// whichever it is written in: a definition in GBNF has `::=`, one in Lark `:`.
    pub fn grammar(grammar: impl Into<String>) -> Self {
        let grammar = grammar.into();
        if gbnf::is_gbnf(&grammar) { Self::gbnf(grammar) } else { Self::lark(grammar) }
    }

    /// Begins a text that is held to it.
    pub(super) fn begin(&self, model: &Model, vocab: &Vocab) -> Result<Matcher, Error> {
        let vocabulary = model.kept(|| Vocabulary::new(vocab))?;
        match self.has_marks() {
            true => Matcher::new(self, &vocabulary.with_marks(vocab)?),
            false => Matcher::new(self, &vocabulary),
        }
    }

    /// The error that it is refused with.
    fn refused(&self, unenforced: Unenforced) -> Error {
        let Unenforced { place, reason } = unenforced;
        Error::Constraint { constraint: self.name().to_owned(), place, reason }
    }

    /// With the name of the place that the request has for it.
    fn named(&self, unenforced: Unenforced) -> Unenforced {
        match &self.0 {
            Kind::JsonSchema { places, .. } => Unenforced { place: named(places, unenforced.place), ..unenforced },
            _ => unenforced,
        }
    }

    /// What it is called in messages.
    fn name(&self) -> &'static str {
        match &self.0 {
            Kind::JsonSchema { .. } => "JSON schema",
            Kind::Regex(_) => "regular expression",
            Kind::Choices(_) => "list of choices",
            Kind::Lark(_) => "Lark grammar",
            Kind::Gbnf(_) => "GBNF grammar",
            Kind::CallsOr { form, .. } => form.name(),
            Kind::TextOrCalls(_) => "calls of tools",
        }
    }
}

/// A place of a schema by the names of those that have one.
fn named(places: &[(String, String)], place: String) -> String {
    let is_within = |rest: &str, within: &str| within.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']);
    let found = places.iter().find_map(|(within, name)| {
        let rest = place.strip_prefix(within.as_str()).filter(|rest| is_within(rest, within))?;
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        Some(match rest.is_empty() || rest.starts_with('[') {
            true => format!("{name}{rest}"),
            false => format!("{name}.{rest}"),
        })
    });
    found.unwrap_or(place)
}

#[cfg(test)]
mod suite;
#[cfg(test)]
mod tests;
