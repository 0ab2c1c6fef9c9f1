//! How each format writes calls, as data from which grammars can be built.
//!
//! The parser accepts more than this: mistakes that models make, and rare spellings.

use serde_json::Value;

use super::ToolCallFormat;
use super::arguments::Schema;
use super::call::{Body, CallSyntax, End, Head};
use super::channel::{FUNCTIONARY, HARMONY};
use super::literal::GEMMA_CALL;
use super::tags::{OPEN, Tags};

/// One of the ways in which a format writes calls between two marks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WrittenCall {
    /// The opening mark; empty if the call is the whole answer.
    pub open: &'static str,
    /// The closing mark; empty if there is none.
    pub close: &'static str,
    /// The texts that may stand between the marks. Empty if a grammar cannot express these texts.
    pub bodies: Vec<WrittenBody>,
}

/// The text that stands between the marks of a call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WrittenBody {
    /// A JSON object with two keys, or a list of such objects.
    Json {
        /// The key for the tool's name.
        name: &'static str,
        /// The key for the arguments.
        arguments: &'static str,
        /// The key for an id, which is a text. It comes first, and may be missing.
        id: Option<&'static str>,
        /// Whether the objects are in a list.
        is_list: bool,
    },
    /// A list of objects `{"f": {..}}`.
    JsonByName,
    /// The tool's name, and its arguments as JSON.
    Named {
        /// The text before the name.
        before: Vec<Piece>,
        /// The text between the name and the arguments.
        between: Vec<Piece>,
        /// The text after the arguments.
        behind: &'static str,
    },
    /// The tool's name, and a tag for each argument.
    Tags(WrittenTags),
    /// `[f(a='x', n=1)]`
    Python {
        /// Whether the calls are in square brackets.
        is_list: bool,
    },
    /// `call:f{a:<|"|>x<|"|>,n:1}`
    Gemma {
        /// The text before the name.
        begin: &'static str,
        /// The quotation mark around texts.
        quote: &'static str,
    },
    /// A program. It becomes the argument `code` of the tool `python`.
    Program,
}

/// A piece of the text before or after the name of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// This text.
    Text(&'static str),
    /// The number of the call, such as 0.
    Number,
    /// An id that consists of letters and digits.
    Id,
}

/// The tags around a call and around its arguments.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WrittenTags {
    /// The texts before the tool's name, after the name, and after the last argument.
    pub call: [&'static str; 3],
    /// The texts before and after the name of an argument.
    pub key: [&'static str; 2],
    /// The texts before and after a value. In them, `{}` stands for the name of the argument.
    pub value: [&'static str; 2],
    /// Whether names are in quotes: names of tools (first), and names of arguments (second).
    pub quotes: [bool; 2],
    /// Whether each value has lines of its own.
    pub lines: bool,
    /// Whether an attribute after the name says that a value is a text: `string="true"`.
    pub says_type: bool,
    /// Whether there may be several calls between two marks.
    pub is_list: bool,
}

/// The headers of calls, in a format with channels.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WrittenChannels {
    /// The texts with which a header may begin.
    pub starts: &'static [&'static str],
    /// The text with which a header ends.
    pub header_end: &'static str,
    /// The texts with which a message may end. It also ends where the next header begins.
    pub ends: &'static [&'static str],
    /// The text before the tool's name in a header; empty if the header is only the name.
    pub to: &'static str,
    /// A text that may stand between `to` and the name.
    pub prefix: &'static str,
    /// The header for content; empty if content has any header that names no tool.
    pub content: &'static str,
}

impl ToolCallFormat {
    /// The ways in which this format writes calls between two marks.
    pub fn written(self) -> Vec<WrittenCall> {
        let family = self.family();
        family.calls.iter().chain(family.bare).map(|syntax| syntax.written(self)).collect()
    }

    /// The headers of calls in this format; `None` if it has no channels.
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

    /// Two facts about formats with bare values: whether they always read this argument as a text, and whether they
    /// read `null` in it as something other than a text.
    pub fn reads_text(parameters: &Value, argument: &str) -> (bool, bool) {
        let types = Schema::of_parameters(parameters).property(argument).map(Schema::types).unwrap_or_default();
        let is_text = types.is_empty() || types.contains(&"string");
        (is_text, is_text && types.contains(&"null"))
    }
}

impl CallSyntax {
    fn written(&self, format: ToolCallFormat) -> WrittenCall {
        // If the opening mark is the beginning of the first tag, the end of the last tag is the closing mark too.
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
            // The tool is named in a header.
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

/// How MiniMax M3 writes calls. Values that are not texts are written as JSON.
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
