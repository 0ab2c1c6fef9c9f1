//! Reads an answer as it is generated.

mod step;

use std::vec::Drain;

use super::call::{Body, CallSyntax};
use super::family::Family;
use super::json::Follow;
use super::marks::Marks;
use super::section::{Kind, Section};
use super::{ReasoningMarks, Reply, ReplyFormat, ReplyPart};
use crate::Tool;

/// Reads an answer as it is generated: text in, [`ReplyPart`]s out as soon as they are certain.
///
/// Held back are only: what may be the beginning of a mark, whitespace that a mark may follow, and a call until it is
/// whole. How the text is cut into pieces makes no difference to what it means.
///
/// ```
/// use autoplace_chat::{ReasoningMarks, ReplyFormat, ReplyParser, ReplyPart};
///
/// let format = ReplyFormat::plain().with_reasoning(ReasoningMarks::THINK);
/// let mut parser = ReplyParser::new(&format).after_prompt("<|im_start|>assistant\n<think>\n");
/// let parts: Vec<_> = parser.push("Say hello.\n</think>\n\nHello").collect();
/// assert_eq!(parts[0], ReplyPart::Reasoning("Say hello.".into()));
/// assert_eq!(parts[1], ReplyPart::Content("Hello".into()));
/// assert_eq!(parser.finish().content, "Hello");
/// ```
#[derive(Debug)]
pub struct ReplyParser {
    reasoning: Option<ReasoningMarks>,
    family: &'static Family,
    in_content: Marks<Mark>,
    in_reasoning: Marks<Mark>,
    tools: Vec<Tool>,
    raw: String,
    /// Up to here, the text was searched.
    seen: usize,
    state: State,
    section: Section,
    /// The marks that ended the call before, while nothing else has come since.
    closed_by: &'static [&'static str],
    /// Whether the answer is held to be a call.
    is_forced: bool,
}

/// What a mark does.
#[derive(Debug, Clone, Copy)]
enum Mark {
    BeginReasoning,
    EndReasoning,
    Call(&'static CallSyntax),
    /// Frames something.
    Silent,
    /// Ends a message; a header follows.
    EndMessage,
    /// Begins a header.
    Header,
}

/// What a mark does within a call.
#[derive(Debug, Clone, Copy)]
enum Within {
    /// Ends it.
    Close,
    /// Begins something else, which ends it too.
    Other,
    /// Begins an argument, or ends its value.
    Value(bool),
}

#[derive(Debug)]
enum State {
    /// In content or reasoning.
    Text,
    /// In a header that began there.
    Header(usize),
    Call(Call),
}

/// A call under way.
#[derive(Debug)]
struct Call {
    start: usize,
    /// Where what is between the marks begins.
    inside: usize,
    syntax: &'static CallSyntax,
    ends: Marks<Within>,
    /// Whether an argument's value is open: marks in it are its text.
    in_value: bool,
    /// The tool, where a header named it.
    tool: Option<String>,
    /// What it is, once its beginning says so.
    body: Option<&'static Body>,
    follow: Option<Follow>,
    /// Where a mark that ends calls stands within a value, and ends, if the value is not closed behind it.
    unclosed: Option<(usize, usize)>,
}

impl ReplyParser {
    /// For an answer of this format. What the prompt's end says about it comes with
    /// [`after_prompt`](Self::after_prompt).
    pub fn new(format: &ReplyFormat) -> Self {
        let family = format.family();
        let (mut in_content, mut in_reasoning) = (Marks::new(), Marks::new());
        for syntax in family.calls {
            in_content.add(&[syntax.open], Mark::Call(syntax));
            if family.ends_reasoning {
                in_reasoning.add(&[syntax.open], Mark::Call(syntax));
            }
        }
        if let Some(channels) = family.channels {
            for marks in [&mut in_content, &mut in_reasoning] {
                marks.add(channels.ends, Mark::EndMessage);
                marks.add(channels.starts, Mark::Header);
            }
        }
        in_content.add(family.silent, Mark::Silent);
        in_content.add(&format.frames, Mark::Silent);
        if let Some(marks) = format.reasoning() {
            in_content.add(&[marks.open()], Mark::BeginReasoning);
            in_content.add(&[marks.close()], Mark::EndReasoning);
            in_reasoning.add(&[marks.close()], Mark::EndReasoning);
            in_reasoning.add(&[marks.open()], Mark::BeginReasoning);
        }
        let mut parser = Self {
            reasoning: format.reasoning(),
            family,
            in_content,
            in_reasoning,
            tools: Vec::new(),
            raw: String::new(),
            seen: 0,
            state: State::Text,
            section: Section::default(),
            closed_by: &[],
            is_forced: format.forced_call,
        };
        if family.channels.is_some() {
            parser.state = State::Header(0);
        } else if format.reasoning().is_some_and(|marks| marks.open().is_empty()) {
            parser.section.begin(Kind::Reasoning, 0);
        }
        parser
    }

    /// Says where the prompt (or its last characters) left the model: templates end theirs with the opening mark of the
    /// reasoning, with both of its marks where it is not wanted, or with a message's header.
    #[must_use]
    pub fn after_prompt(mut self, prompt: &str) -> Self {
        if let Some(channels) = self.family.channels {
            if let Some(message) = channels.under_way(prompt) {
                self.begin_message(message, 0, 0);
            }
        } else if let Some(marks) = &self.reasoning {
            let prompt = prompt.trim_end();
            if !marks.open().is_empty() && prompt.ends_with(marks.open()) {
                self.section.begin(Kind::Reasoning, 0);
            } else if prompt.ends_with(marks.close()) {
                self.section.begin(Kind::Content, 0);
            }
        }
        self
    }

    /// With the tools that the model was given. Their schemas say how arguments are to be read that a format writes as
    /// bare text; without them those stay strings. And text without a mark is a call only if it names one of them. If
    /// it was given none, what looks like a call is content.
    #[must_use]
    pub fn with_tools(mut self, tools: &[Tool]) -> Self {
        self.tools = tools.to_vec();
        if tools.is_empty() {
            let is_call = |mark: Mark| matches!(mark, Mark::Call(_));
            [&mut self.in_content, &mut self.in_reasoning].into_iter().for_each(|marks| marks.remove(is_call));
        }
        self
    }

    /// Takes the next piece of the answer, and gives what has become certain.
    pub fn push(&mut self, text: &str) -> Drain<'_, ReplyPart> {
        self.raw.push_str(text);
        if self.is_plain() {
            self.section.pass(&self.raw);
        } else {
            while self.step(false) {}
        }
        self.section.parts.drain(..)
    }

    /// The answer has ended: gives what was held back. [`finish`](Self::finish) does this too.
    pub fn end(&mut self) -> Drain<'_, ReplyPart> {
        self.close();
        self.section.parts.drain(..)
    }

    /// The whole answer.
    pub fn finish(mut self) -> Reply {
        self.close();
        Reply { raw: self.raw, ..self.section.reply }
    }

    /// Whether all text is content.
    fn is_plain(&self) -> bool {
        self.in_content.is_empty() && self.family.channels.is_none() && self.bare().is_none()
    }

    /// How a call without a mark is written, if there can be one: one of the tools has to be named.
    fn bare(&self) -> Option<&'static CallSyntax> {
        self.family.bare.filter(|_| !self.tools.is_empty())
    }
}
