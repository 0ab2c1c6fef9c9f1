//! The kinds of constraints in a request. Creating a constraint is cheap, because nothing is compiled.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::limits::on_large_stack;
use super::unenforced::Unenforced;
use super::{gbnf, schema};
use crate::chat::ToolCallFormat;
use crate::decode::error::Error;

/// A constraint on a text, for [`GenerateRequest::constraint`](crate::generate::GenerateRequest::constraint).
///
/// Creating a constraint is cheap. If a constraint cannot be enforced, the generation fails when it begins. Constraints
/// may come from untrusted sources: a constraint that would need too much time or memory is refused with an error. Only
/// [`text_or_calls`](Self::text_or_calls) allows control tokens.
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
pub struct Constraint(pub(super) Kind);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    JsonSchema {
        /// The schema as JSON text, because messages to workers cannot contain JSON trees.
        schema: String,
        /// Whether objects may by default have properties that the schema does not name.
        is_open: bool,
        /// Prefixes of places in the schema, and the names by which errors replace them. The first prefix that matches
        /// is used.
        places: Vec<(String, String)>,
    },
    Regex(String),
    Choices(Vec<String>),
    Lark(String),
    Gbnf(String),
    /// Tool calls, or a text that meets another constraint.
    CallsOr {
        calls: Box<Constraint>,
        form: Box<Constraint>,
    },
    /// Any text, with tool calls in it.
    TextOrCalls(Box<TextOrCalls>),
}

/// Any text, with tool calls in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TextOrCalls {
    pub(super) format: ToolCallFormat,
    pub(super) tools: Vec<CalledTool>,
    /// Whether the answer begins in the header of a message.
    pub(super) in_header: bool,
    pub(super) is_open: bool,
}

/// A tool. The schema is JSON text, because messages to workers cannot contain JSON trees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CalledTool {
    pub(super) name: String,
    pub(super) parameters: String,
    pub(super) is_strict: bool,
}

impl Constraint {
    /// A JSON value that the schema allows (draft 4 to 2020-12).
    ///
    /// A keyword that cannot be enforced (`uniqueItems`, `not`, `if`, and others) causes
    /// [`Error::Constraint`](crate::generate::Error::Constraint), which names the keyword and its place.
    /// [`enforceable`](Self::enforceable) removes such keywords and reports them. Properties come in the order of the
    /// schema. Whitespace between two parts of the value is limited, because a model may otherwise write spaces without
    /// end. As in llama.cpp, it is at most one space, or one or two line ends with up to 20 spaces or tabs
    /// (common/json-schema-to-grammar.cpp, `SPACE_RULE`).
    ///
    /// An object with `properties` has no other properties unless the schema allows them, as in llama.cpp. With
    /// [`open_objects`](Self::open_objects), objects follow JSON Schema to the letter.
    ///
    /// Numbers stay within ±9007199254740991, the range in which a double represents every integer. Strings have no
    /// `\u` escapes: each character except control characters stands for itself. Only `#...` references are followed;
    /// nothing is fetched.
    pub fn json_schema(schema: impl Into<Value>) -> Self {
        Self(Kind::JsonSchema { schema: schema.into().to_string(), is_open: false, places: Vec::new() })
    }

    /// Lets objects of a JSON schema have properties that the schema does not name, unless `additionalProperties`
    /// forbids them. This is the rule of JSON Schema itself. Constraints without a schema ignore this setting.
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

    /// Sets the name of the schema in errors, such as `response_format.json_schema.schema`.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        self.at_places(vec![(String::new(), place.into())])
    }

    pub(super) fn at_places(mut self, named: Vec<(String, String)>) -> Self {
        if let Kind::JsonSchema { places, .. } = &mut self.0 {
            *places = named;
        }
        self
    }

    /// Returns the enforceable part of a schema, and the removed keywords with their places.
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
        let followed = on_large_stack(|| Ok::<_, Unenforced>(schema::enforceable(schema)));
        followed.unwrap_or_else(|unenforced| (json!({"type": "object"}), vec![unenforced]))
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(json!({"type": "object"}))
    }

    /// A text that matches the regular expression from beginning to end, in the syntax of the crate `regex`. The
    /// expression always applies to the whole text, so it must not contain anchors. It must not contain look-around
    /// either.
    pub fn regex(regex: impl Into<String>) -> Self {
        Self(Kind::Regex(regex.into()))
    }

    /// One of these texts.
    pub fn choices<T: Into<String>>(choices: impl IntoIterator<Item = T>) -> Self {
        Self(Kind::Choices(choices.into_iter().map(Into::into).collect()))
    }

    /// A text that a context-free grammar derives from its rule `start`. The syntax is llguidance's variant of Lark.
    /// Terminals match the longest possible text. Parameters (`name::parameter`), `capture` and `%lark` are errors.
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self(Kind::Lark(grammar.into()))
    }

    /// A text that a grammar in GBNF, llama.cpp's notation, derives from its rule `root`:
    ///
    /// ```
    /// use autoplace::generate::Constraint;
    /// let list = Constraint::gbnf(r#"root ::= ("- " [^\n]+ "\n"){2,5}"#);
    /// assert!(list.check().is_ok());
    /// let refused = Constraint::gbnf("root ::= item\nitem ::= item \"x\" | \"x\"").check().unwrap_err().to_string();
    /// assert!(refused.contains("line 2, column 1") && refused.contains("left recursion"));
    /// ```
    ///
    /// The grammar allows the same texts as in llama.cpp, in any tokenization. `<[7]>` and `<think>` match one token of
    /// the vocabulary, and `!<think>` matches any other token. No control token is allowed.
    pub fn gbnf(grammar: impl Into<String>) -> Self {
        Self(Kind::Gbnf(grammar.into()))
    }

    /// A text that a grammar derives, in llama.cpp's notation ([`gbnf`](Self::gbnf)) or in llguidance's notation
    /// ([`lark`](Self::lark)). The notation is detected: definitions use `::=` in GBNF, and `:` in Lark.
    pub fn grammar(grammar: impl Into<String>) -> Self {
        let grammar = grammar.into();
        if gbnf::is_gbnf(&grammar) { Self::gbnf(grammar) } else { Self::lark(grammar) }
    }

    /// The error for a part of this constraint that cannot be enforced.
    pub(super) fn refused(&self, unenforced: Unenforced) -> Error {
        let Unenforced { place, reason } = unenforced;
        Error::Constraint { constraint: self.name().to_owned(), place, reason }
    }

    /// Replaces the place by the name that the place has in the request.
    pub(super) fn named(&self, unenforced: Unenforced) -> Unenforced {
        match &self.0 {
            Kind::JsonSchema { places, .. } => Unenforced { place: named(places, unenforced.place), ..unenforced },
            _ => unenforced,
        }
    }

    /// Whether a JSON schema is a part of the constraint.
    pub(super) fn has_schema(&self) -> bool {
        matches!(self.0, Kind::JsonSchema { .. } | Kind::CallsOr { .. } | Kind::TextOrCalls(_))
    }

    /// The name of the constraint's kind in messages.
    pub(crate) fn name(&self) -> &'static str {
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

/// The name of a place in the schema, from the first prefix that matches.
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
