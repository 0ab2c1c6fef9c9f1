//! A grammar for answers that may call tools: any text, in which every marked call is a call of one of the tools, with
//! arguments that the tool's schema allows.
//!
//! In: a format, as `chat::written` describes it, and tools. Out: a grammar in Lark, with a JSON schema for each JSON
//! part. Control tokens are written with [`CONTROL`](crate::load::vocabulary::CONTROL) before their texts, so that they
//! can be marks but never part of a value.

mod bare;
#[cfg(test)]
mod tests;
mod tool;
mod values;

use serde_json::{Value, json};

use self::tool::CallableTool;
use self::values::{Arguments, properties};
use super::call_schema::{call_schema, move_references};
use super::kind::{CalledTool, Constraint, Kind, TextOrCalls};
use super::unenforced::Unenforced;
use crate::chat::written::{Piece, WrittenBody, WrittenCall, WrittenChannels, WrittenTags};
use crate::chat::{Tool, ToolCallFormat};

/// A grammar in Lark with its parts.
pub(super) struct Grammar {
    pub(super) lark: String,
    /// The constraints that `@name` refers to.
    pub(super) parts: Vec<(String, Constraint)>,
}

impl TextOrCalls {
    pub(super) fn new(format: ToolCallFormat, tools: &[(&Tool, bool)]) -> Self {
        let tools = tools.iter().map(|(tool, is_strict)| CalledTool {
            name: tool.name.clone(),
            parameters: tool.parameters.to_string(),
            is_strict: *is_strict,
        });
        Self { format, tools: tools.collect(), in_header: true, is_open: false }
    }

    /// The grammar for a vocabulary with these control tokens.
    pub(super) fn grammar(&self, control: &[String]) -> Result<Grammar, Unenforced> {
        let mut writer = Writer { control, is_open: self.is_open, rules: String::new(), parts: Vec::new(), count: 0 };
        let tools: Vec<CallableTool> =
            self.tools.iter().enumerate().map(|(number, tool)| CallableTool::new(tool, number)).collect();
        match self.format.written_channels() {
            Some(channels) => writer.channels(channels, &tools, self.in_header)?,
            None => writer.marks(&self.format.written(), &tools)?,
        }
        Ok(Grammar { lark: writer.rules, parts: writer.parts })
    }
}

/// Optional whitespace between the parts of a call.
const SPACE: &str = r"/[ \t\n]{1,24}/?";

struct Writer<'a> {
    control: &'a [String],
    is_open: bool,
    rules: String,
    parts: Vec<(String, Constraint)>,
    count: usize,
}

impl Writer<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        self.rules.push_str(&format!("{name}: {body}\n"));
    }

    fn number(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    /// Adds a constraint as a part and returns its name.
    fn part(&mut self, constraint: Constraint) -> String {
        let name = format!("json_{}", self.number());
        let constraint = if self.is_open { constraint.open_objects() } else { constraint };
        self.parts.push((name.clone(), constraint));
        format!("@{name}")
    }

    /// A regular expression for a text. In this expression, each control token in the text matches both as the token
    /// and as plain characters.
    fn expression(&self, text: &str) -> String {
        let mut written = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let begins = self.control.iter().filter(|token| rest.starts_with(token.as_str()));
            let length = match begins.max_by_key(|token| token.len()) {
                Some(token) => {
                    written.push_str(r"\x01?");
                    token.len()
                }
                None => rest.chars().next().map_or(0, char::len_utf8),
            };
            let (piece, behind) = rest.split_at(length);
            written.push_str(&escaped(piece));
            rest = behind;
        }
        written
    }

    /// The terminal for a text; empty for an empty text.
    fn text(&self, text: &str) -> String {
        match text {
            "" => String::new(),
            text => format!("/{}/", self.expression(text)),
        }
    }

    /// A suffix for a terminal that restricts the terminal to texts that contain none of `texts`. Empty if `texts` is
    /// empty.
    fn without(&self, texts: &[&str]) -> String {
        let held: Vec<String> = texts.iter().map(|text| self.expression(text)).collect();
        match held.is_empty() {
            true => String::new(),
            false => format!(" & ~/(?s:.*)(?:{})(?s:.*)/", held.join("|")),
        }
    }

    /// The grammar of an answer in a format that marks its calls.
    fn marks(&mut self, written: &[WrittenCall], tools: &[CallableTool]) -> Result<(), Unenforced> {
        let opens: Vec<&str> = written.iter().map(|call| call.open).filter(|open| !open.is_empty()).collect();
        let (mut segments, mut whole, mut refused) = (Vec::new(), Vec::new(), None);
        // A lexeme matches as many characters as it can, so the first character must tell which lexeme begins.
        let first = match opens.len() == written.len() {
            true => "",
            false => r" & /[^ \t\r\n{](?s:.*)/",
        };
        for (index, call) in written.iter().enumerate() {
            let body = match self.bodies(call, tools) {
                Ok(Some(body)) => body,
                Ok(None) => continue,
                // No body after this mark is enforceable, so the grammar does not allow the mark. If nothing else is
                // enforceable either, this error is returned below.
                Err(error) => {
                    refused.get_or_insert(error);
                    continue;
                }
            };
            if call.open.is_empty() {
                whole.push(format!("{body} ({SPACE} \";\" {SPACE} {body})* {SPACE}"));
                continue;
            }
            let others: Vec<&str> = opens.iter().copied().filter(|open| *open != call.open).collect();
            let until = format!("/(?s:.*){}/{}{first}", self.expression(call.open), self.without(&others));
            self.rules.push_str(&format!("until_{index}[lazy]: {until}\n"));
            segments.push(format!("until_{index} {SPACE} {body} {SPACE} {}", self.text(call.close)));
        }
        if let (true, true, Some(refused)) = (segments.is_empty(), whole.is_empty(), refused) {
            return Err(refused);
        }
        let tail = format!("/(?s:.)+/{}{first}", self.without(&opens));
        self.rule("TAIL", &tail);
        let calls = if segments.is_empty() { String::new() } else { format!("({})*", segments.join(" | ")) };
        let text = format!("{calls} TAIL?");
        let start = match whole.is_empty() {
            true => text,
            // If calls have no mark, a call is the whole answer.
            false => format!("{SPACE} ({} | {text})", whole.join(" | ")),
        };
        self.rule("start", &start);
        Ok(())
    }

    /// The enforceable bodies that may follow a mark; `None` if there is none.
    fn bodies(&mut self, call: &WrittenCall, tools: &[CallableTool]) -> Result<Option<String>, Unenforced> {
        let (mut options, mut refused) = (Vec::new(), None);
        for body in &call.bodies {
            let parts = self.parts.len();
            match self.body(body, tools) {
                Ok(body) => options.extend(body),
                Err(error) => {
                    self.parts.truncate(parts);
                    refused.get_or_insert(error);
                }
            }
        }
        match (options.is_empty(), refused) {
            (true, Some(refused)) => Err(refused),
            (true, None) => Ok(None),
            (false, _) => Ok(Some(format!("({})", options.join(" | ")))),
        }
    }

    fn body(&mut self, body: &WrittenBody, tools: &[CallableTool]) -> Result<Option<String>, Unenforced> {
        let any = |rules: Vec<String>| (!rules.is_empty()).then(|| format!("({})", rules.join(" | ")));
        Ok(match body {
            WrittenBody::Json { name, arguments, id, is_list } => {
                let schema = |tool: &CallableTool| {
                    let mut call = call_schema(&tool.name, name, arguments);
                    if let (Some(id), Some(properties)) = (id, call["properties"].as_object_mut()) {
                        properties.shift_insert(0, (*id).to_owned(), json!({"type": "string", "maxLength": 64}));
                    }
                    call
                };
                Some(self.json_calls(tools, *is_list, &schema))
            }
            WrittenBody::JsonByName => Some(self.json_calls(tools, true, &|tool| {
                json!({"type": "object", "properties": {tool.name.as_str(): null}, "required": [tool.name.as_str()],
                    "additionalProperties": false})
            })),
            WrittenBody::Named { before, between, behind } => any(tools
                .iter()
                .map(|tool| {
                    let (before, between) = (self.pieces(before), self.pieces(between));
                    let (arguments, behind) = (self.part(tool.json()), self.text(behind));
                    format!("{before} {} {between} {SPACE} {arguments} {behind}", self.text(&tool.name))
                })
                .collect()),
            WrittenBody::Tags(tags) => {
                let calls: Result<Vec<_>, _> = tools.iter().map(|tool| self.tags(tags, tool)).collect();
                let call = any(calls?);
                match tags.is_list {
                    true => call.map(|call| format!("{call} ({SPACE} {call})*")),
                    false => call,
                }
            }
            WrittenBody::Python { is_list } => {
                let calls: Result<Vec<_>, _> = tools.iter().map(|tool| self.python(tool)).collect();
                any(calls?).map(|call| match is_list {
                    true => format!(r#""[" {SPACE} {call} ("," {SPACE} {call})* {SPACE} "]""#),
                    false => format!("{call} ({SPACE} {call})*"),
                })
            }
            WrittenBody::Gemma { begin, quote } => {
                let calls: Result<Vec<_>, _> = tools.iter().map(|tool| self.gemma(begin, quote, tool)).collect();
                any(calls?)
            }
            // The body is a program. It is the argument of a tool that accepts any text.
            WrittenBody::Program => {
                let takes_any = |tool: &&CallableTool| tool.name == "python" && !tool.is_strict;
                tools.iter().find(takes_any).map(|_| r"/[^{\s](?s:.)*/".to_owned())
            }
            _ => None,
        })
    }

    /// The grammar of calls as JSON. `schema` creates the schema of one call, whose last property contains the
    /// arguments.
    fn json_calls(&mut self, tools: &[CallableTool], is_list: bool, schema: &dyn Fn(&CallableTool) -> Value) -> String {
        let within = if is_list { "items.anyOf" } else { "anyOf" };
        let (mut options, mut places) = (Vec::new(), Vec::new());
        for (index, tool) in tools.iter().enumerate() {
            let mut call = schema(tool);
            let Some((key, arguments)) =
                call["properties"].as_object_mut().and_then(|properties| properties.iter_mut().next_back())
            else {
                continue;
            };
            places.push((format!("{within}[{index}].properties.{key}"), tool.place.clone()));
            let mut own = tool.parameters.clone();
            let pointer = format!("#/{}/{index}/properties/{key}", within.replace('.', "/"));
            move_references(&mut own, &pointer);
            *arguments = own;
            options.push(call);
        }
        let call = json!({"anyOf": options});
        let whole = if is_list { json!({"type": "array", "items": call, "minItems": 1}) } else { call };
        self.part(Constraint::json_schema(whole).at_places(places))
    }

    fn pieces(&self, pieces: &[Piece]) -> String {
        let written = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => self.text(text),
            Piece::Number => "/[0-9]{1,4}/".to_owned(),
            Piece::Id => "/[a-zA-Z0-9_-]{1,64}/".to_owned(),
        });
        written.collect::<Vec<_>>().join(" ")
    }

    /// The grammar of a call in the form `[f(a="x", n=1)]`, with JSON values.
    fn python(&mut self, tool: &CallableTool) -> Result<String, Unenforced> {
        let arguments = properties(tool)?;
        let list = self.list(&arguments, |writer, argument| {
            let value = writer.part(argument.json());
            Ok(format!("{} \"=\" {value}", writer.text(&argument.name)))
        })?;
        Ok(format!(r#"{} "(" {list} ")""#, self.text(&tool.name)))
    }

    /// The grammar of a call in the form `call:f{a:<|"|>x<|"|>,n:1}`.
    fn gemma(&mut self, begin: &str, quote: &str, tool: &CallableTool) -> Result<String, Unenforced> {
        let arguments = properties(tool)?;
        let list = self.list(&arguments, |writer, argument| {
            let is_text = argument.is_only_text();
            let value = match is_text {
                true => format!("{} {}", writer.text(quote), writer.bare(argument, quote, &[quote])?),
                false => writer.part(argument.json()),
            };
            Ok(format!("{} \":\" {value}", writer.text(&argument.name)))
        })?;
        Ok(format!(r#"{} {} "{{" {list} "}}""#, self.text(begin), self.text(&tool.name)))
    }

    /// The grammar of arguments in the order of the schema, separated by commas. Optional arguments may be missing.
    fn list(
        &mut self,
        arguments: &Arguments,
        mut write: impl FnMut(&mut Self, &values::Argument) -> Result<String, Unenforced>,
    ) -> Result<String, Unenforced> {
        let prefix = format!("list_{}", self.number());
        let comma = format!("\",\" {SPACE}");
        // Rule `first_N` stands for the arguments from number N on, if no argument came before them. Rule `next_N`
        // stands for the same arguments, if an argument came before them.
        for (index, argument) in arguments.all.iter().enumerate() {
            let written = write(self, argument)?;
            self.rule(&format!("{prefix}_{index}"), &written);
            let rest = format!("{prefix}_next_{}", index + 1);
            let skip = |kind: &str| match argument.is_required {
                true => String::new(),
                false => format!(" | {prefix}_{kind}_{}", index + 1),
            };
            let (first, next) = (skip("first"), skip("next"));
            self.rule(&format!("{prefix}_first_{index}"), &format!("{prefix}_{index} {rest}{first}"));
            self.rule(&format!("{prefix}_next_{index}"), &format!("{comma} {prefix}_{index} {rest}{next}"));
        }
        let end = arguments.all.len();
        self.rule(&format!("{prefix}_first_{end}"), "\"\"");
        self.rule(&format!("{prefix}_next_{end}"), "\"\"");
        Ok(format!("{prefix}_first_0"))
    }

    /// The grammar of a call in the form `<function=f><parameter=a>1</parameter></function>`.
    fn tags(&mut self, tags: &WrittenTags, tool: &CallableTool) -> Result<String, Unenforced> {
        let quoted = |name: &str, is_quoted: bool| if is_quoted { format!("\"{name}\"") } else { name.to_owned() };
        let [open, name_end, close] = tags.call;
        let name = quoted(&tool.name, tags.quotes[0]);
        let mut written = format!("{} {SPACE}", self.text(&format!("{open}{name}{name_end}")));
        let line = if tags.lines { "\n" } else { "" };
        for argument in &properties(tool)?.all {
            let name = quoted(&argument.name, tags.quotes[1]);
            let end = format!("{line}{}", tags.value[1].replace("{}", &argument.name));
            let text = |writer: &mut Self, kind: &str| {
                let tag = format!("{}{name}{kind}{}", tags.key[0], tags.key[1]);
                let begin = writer.text(&tag);
                // Whitespace after the tag belongs to the value, unless another tag opens the value.
                match tags.value[0] {
                    "" => format!("{begin} {}", writer.text(line)),
                    open => format!("{begin} {SPACE} {} {}", writer.text(open), writer.text(line)),
                }
            };
            let is_text = argument.reads_as_text();
            let kind = match (tags.says_type, is_text) {
                (false, _) => "",
                (true, true) => " string=\"true\"",
                (true, false) => " string=\"false\"",
            };
            let value = match is_text {
                true => {
                    let begin = text(self, kind);
                    let value = self.bare(argument, &end, &[tags.value[1], tags.key[0]])?;
                    format!("{begin} {value}")
                }
                false => format!("{} {} {}", text(self, kind), self.part(argument.json()), self.text(&end)),
            };
            let mark = if argument.is_required { "" } else { "?" };
            written.push_str(&format!(" ({value} {SPACE}){mark}"));
        }
        Ok(format!("({written} {})", self.text(close)))
    }

    /// The grammar of an answer in a format whose headers name the tool.
    fn channels(
        &mut self,
        channels: WrittenChannels,
        tools: &[CallableTool],
        in_header: bool,
    ) -> Result<(), Unenforced> {
        let end = self.expression(channels.header_end);
        let mut heads = Vec::new();
        for tool in tools {
            let name = self.expression(&tool.name);
            let head = match channels.to {
                "" => format!("/{name}{end}/"),
                to => {
                    let prefix = self.expression(channels.prefix);
                    // The channel and the type of the content follow the name.
                    format!("/[^\\n]*{to}(?:{prefix})?{name}(?:[ <\\x01][^\\n]*)?{end}/")
                }
            };
            let head = format!("{head}{}", self.without_more(channels.header_end));
            let number = self.number();
            self.rule(&format!("HEAD_{number}"), &head);
            heads.push(format!("HEAD_{number} {SPACE} {}", self.part(tool.json())));
        }
        let content = match channels.content {
            "" => {
                let no_name = self.without(&[channels.to]);
                format!("/[^\\n]*{end}/{}{no_name}", self.without_more(channels.header_end))
            }
            content => format!("/{}{end}/", self.expression(content)),
        };
        self.rule("CONTENT", &content);
        let starts: Vec<&str> = channels.ends.iter().chain(channels.starts).copied().collect();
        let begins: Vec<String> = starts.iter().map(|text| self.expression(text)).collect();
        self.rules.push_str(&format!("body[lazy]: /(?s:.*)(?:{})/\n", begins.join("|")));
        self.rule("TAIL", &format!("/(?s:.)+/{}", self.without(&starts)));
        self.rule("head", &format!("CONTENT | {}", heads.join(" | ")));
        let first = if in_header { "head " } else { "" };
        self.rule("start", &format!("({first}(body head)* (body | TAIL)?) | \"\""));
        Ok(())
    }

    /// A suffix for a terminal that restricts the terminal to texts in which `end` occurs only at the end.
    fn without_more(&self, end: &str) -> String {
        format!(" & ~/(?s:.*){}(?s:.+)/", self.expression(end))
    }
}

/// Escapes a text for a regular expression in Lark.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str(r"\n"),
            '\t' => escaped.push_str(r"\t"),
            '/' => escaped.push_str(r"\/"),
            c => escaped.push_str(&regex_lite::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    escaped
}

impl Constraint {
    /// Any text. But every call that this format marks in the text is a call of one of these tools. The flag after each
    /// tool tells whether the tool is `strict`.
    ///
    /// Control tokens are allowed in the text, and as marks. Arguments come in the order of the schema. If a tool is
    /// not `strict`, its arguments meet the enforceable part of its schema. If a `strict` schema cannot be enforced,
    /// the generation fails with [`Error::Constraint`](crate::generate::Error::Constraint) when it begins.
    pub fn text_or_calls(format: ToolCallFormat, tools: &[(&Tool, bool)]) -> Self {
        Self(Kind::TextOrCalls(Box::new(TextOrCalls::new(format, tools))))
    }

    /// Sets whether an answer begins in the header of a message
    /// ([`ReplyFormat::begins_in_header`](crate::chat::ReplyFormat::begins_in_header)). Default: true.
    #[must_use]
    pub fn in_header(mut self, is_in_header: bool) -> Self {
        if let Kind::TextOrCalls(calls) = &mut self.0 {
            calls.in_header = is_in_header;
        }
        self
    }

    /// Whether the text may contain control tokens as marks.
    pub fn has_marks(&self) -> bool {
        matches!(self.0, Kind::TextOrCalls(_))
    }
}
