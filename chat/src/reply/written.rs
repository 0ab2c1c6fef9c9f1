//! The written form of each call format as data, for building grammars.
//!
//! The parser also accepts models' mistakes and rare spellings.

use serde_json::Value;

use super::ToolCallFormat;
use super::arguments::Schema;
use super::call::{Body, CallSyntax, End, Head};
use super::channel::{FUNCTIONARY, HARMONY};
use super::literal::GEMMA_CALL;
use super::tags::{OPEN, Tags};

/// One way in which a format writes calls between two marks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WrittenCall {
    /// The opening mark; empty if the call is the whole answer.
    pub open: &'static str,
    /// The closing mark; empty if there is none.
    pub close: &'static str,
    /// The possible texts between the marks. Empty if a grammar cannot express them.
    pub bodies: Vec<WrittenBody>,
}

/// The text between the marks of a call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WrittenBody {
    /// A JSON object with two keys, or a list of such objects.
    Json {
        /// The key of the tool's name.
        name: &'static str,
        /// The key of the arguments.
        arguments: &'static str,
        /// An optional first key with an id, a text.
        id: Option<&'static str>,
        /// Whether the objects are in a list.
        is_list: bool,
    },
    /// A list of `{"f": {..}}`.
    JsonByName,
    /// The tool's name and its arguments as JSON.
    Named {
        /// The text before the name.
        before: Vec<Piece>,
        /// The text between the name and the arguments.
        between: Vec<Piece>,
        /// The text behind the arguments.
        behind: &'static str,
    },
    /// The tool's name and a tag for each argument.
    Tags(WrittenTags),
    /// `[f(a='x', n=1)]`
    Python {
        /// Whether brackets surround the calls.
        is_list: bool,
    },
    /// `call:f{a:<|"|>x<|"|>,n:1}`
    Gemma {
        /// The text before the name.
        begin: &'static str,
        /// The quotation mark of texts.
        quote: &'static str,
    },
    /// A program, which becomes the argument `code` of the tool `python`.
    Program,
}

/// A piece of text next to a tool's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// This text.
    Text(&'static str),
    /// The number of a call.
    Number,
    /// An id of letters and digits.
    Id,
}

/// Tags around a call and its arguments.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WrittenTags {
    /// The texts before the tool's name, behind it, and behind the last argument.
    pub call: [&'static str; 3],
    /// The texts before and behind an argument's name.
    pub key: [&'static str; 2],
    /// The texts before and behind a value. `{}` stands for the argument's name.
    pub value: [&'static str; 2],
    /// Whether the names of tools (first) and arguments (second) are in quotes.
    pub quotes: [bool; 2],
    /// Whether values are on their own lines.
    pub lines: bool,
    /// Whether an attribute behind the name says that a value is a text: `string="true"`.
    pub says_type: bool,
    /// Whether several calls may appear between two marks.
    pub is_list: bool,
}

/// The headers with which a format with channels marks calls.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WrittenChannels {
    /// The beginnings of a header.
    pub starts: &'static [&'static str],
    /// The end of a header.
    pub header_end: &'static str,
    /// The ends of a message, besides the next header.
    pub ends: &'static [&'static str],
    /// The text before a tool's name in a header; empty if the header is the name.
    pub to: &'static str,
    /// An optional text between `to` and the name.
    pub prefix: &'static str,
    /// The header of content; empty for any header that names no tool.
    pub content: &'static str,
}

impl ToolCallFormat {
    /// The ways in which this format writes calls between marks.
    pub fn written(self) -> Vec<WrittenCall> {
        let family = self.family();
        family.calls.iter().chain(family.bare).map(|syntax| syntax.written(self)).collect()
    }

    /// The headers with which this format marks calls; `None` if it has no channels.
    pub fn written_channels(self) -> Option<WrittenChannels> {
        Some(match self {
            Self::Harmony => WrittenChannels {
                starts: HARMONY.starts,
                header_end: HARMONY.header_end,
                ends: HARMONY.ends,
                to: "to=",
                prefix: "functions.",
                content: "",
            },
            Self::FunctionaryV32 => WrittenChannels {
                starts: FUNCTIONARY.starts,
                header_end: FUNCTIONARY.header_end,
                ends: FUNCTIONARY.ends,
                to: "",
                prefix: "",
                content: "all",
            },
            _ => return None,
        })
    }

    /// Whether formats with bare values always read this argument as a text, and whether they read `null` in it as a
    /// value other than a text.
    pub fn reads_text(parameters: &Value, argument: &str) -> (bool, bool) {
        let types = Schema::of_parameters(parameters).property(argument).map(Schema::types).unwrap_or_default();
        let is_text = types.is_empty() || types.contains(&"string");
        (is_text, is_text && types.contains(&"null"))
    }
}

impl CallSyntax {
    fn written(&self, format: ToolCallFormat) -> WrittenCall {
        // If the opening mark begins the first tag, the last tag's end is also the closing mark.
        let is_tag =
            |body: &Body| matches!(body, Body::Tags(tags) if tags.call[0].is_empty() && !tags.call[2].is_empty());
        let close = match self.end {
            End::Mark(_) if self.bodies.iter().any(is_tag) => "",
            End::Mark(marks) => marks.first().copied().unwrap_or_default(),
            End::Value | End::Answer | End::WholeAnswer => "",
        };
        let of = |body: &Body| body.written(self, format);
        WrittenCall { open: self.open, close, bodies: self.bodies.iter().flat_map(of).collect() }
    }
}

impl Body {
    fn written(&self, syntax: &CallSyntax, format: ToolCallFormat) -> Vec<WrittenBody> {
        let json = |is_list| {
            let (name, arguments) = match format {
                ToolCallFormat::CommandR => ("tool_name", "parameters"),
                ToolCallFormat::Llama3 | ToolCallFormat::FunctionaryV31 => ("name", "parameters"),
                _ => ("name", "arguments"),
            };
            let id = (format == ToolCallFormat::CommandR).then_some("tool_call_id");
            WrittenBody::Json { name, arguments, id, is_list }
        };
        match self {
            Self::Json => {
                let are_lists = [
                    ToolCallFormat::Mistral,
                    ToolCallFormat::CommandR,
                    ToolCallFormat::Nemotron,
                    ToolCallFormat::ToolCallsTag,
                    ToolCallFormat::Granite,
                ];
                vec![json(are_lists.contains(&format))]
            }
            Self::BareJson => vec![json(false)],
            Self::JsonByName => vec![WrittenBody::JsonByName],
            Self::Named(head) => head.written(),
            Self::Tags(tags) => vec![WrittenBody::Tags(tags.written())],
            Self::NestedTags => vec![WrittenBody::Tags(nested_written())],
            Self::Python => vec![WrittenBody::Python { is_list: !syntax.open.starts_with("<function_calls") }],
            Self::Gemma => {
                let quote = if syntax.open == "<start_function_call>" { "<escape>" } else { "<|\"|>" };
                vec![WrittenBody::Gemma { begin: GEMMA_CALL, quote }]
            }
            Self::Code => vec![json(false), WrittenBody::Program],
            // A header names the tool.
            Self::Arguments => Vec::new(),
        }
    }
}

impl Head {
    fn written(self) -> Vec<WrittenBody> {
        use Piece::{Id, Number, Text};
        let named = |before: &[Piece], between: &[Piece], behind| WrittenBody::Named {
            before: before.to_vec(),
            between: between.to_vec(),
            behind,
        };
        match self {
            Self::Mistral => {
                vec![named(&[], &[Text("[ARGS]")], ""), named(&[], &[Text("[CALL_ID]"), Id, Text("[ARGS]")], "")]
            }
            Self::DeepSeek => vec![
                named(&[], &[Text("<｜tool▁sep｜>")], ""),
                named(&[Text("function<｜tool▁sep｜>")], &[Text("\n```json\n")], "\n```"),
            ],
            Self::KimiK2 => {
                vec![named(&[Text("functions.")], &[Text(":"), Number, Text("<|tool_call_argument_begin|>")], "")]
            }
            Self::Solar => vec![named(&[Id, Text("<|tool_call:name|>")], &[Text("<|tool_call:args|>")], "")],
            Self::Functionary => vec![named(&[], &[Text(">")], "")],
        }
    }
}

/// The written form of MiniMax M3's calls. Values other than texts are JSON.
fn nested_written() -> WrittenTags {
    WrittenTags {
        call: ["]<]minimax[>[<invoke name=", ">", "]<]minimax[>[</invoke>"],
        key: [OPEN, ">"],
        value: ["", "]<]minimax[>[</{}>"],
        quotes: [true, false],
        lines: false,
        says_type: false,
        is_list: true,
    }
}

impl Tags {
    fn written(&self) -> WrittenTags {
        WrittenTags {
            call: self.call,
            key: self.key,
            value: self.value,
            quotes: [self.call[0].ends_with("name="), self.key[0].ends_with("name=")],
            lines: self.lines,
            says_type: self.key[0].contains("｜DSML｜"),
            is_list: self.call[0].ends_with("name="),
        }
    }
}
