//! A parser for an answer that is still being generated.

mod step;

use std::vec::Drain;

use super::call::{Body, CallSyntax};
use super::family::Family;
use super::json::Follow;
use super::marks::Marks;
use super::section::{Kind, Section};
use super::{ReasoningMarks, Reply, ReplyFormat, ReplyPart};
use crate::Tool;

/// A parser for an answer that is still being generated. It takes text, and returns each [`ReplyPart`] as soon as it is
/// certain.
///
/// It keeps back only three kinds of text: what may be the beginning of a mark, white space that a mark may follow, and
/// incomplete calls. It makes no difference how the text is divided into pieces.
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
    /// The end of the text that has been searched.
    seen: usize,
    state: State,
    section: Section,
    /// The closing marks of the call that has just ended. They are kept until other text arrives.
    closed_by: &'static [&'static str],
    /// Whether a constraint forces the model to answer with a call.
    is_forced: bool,
    /// Whether there are no tools. Then calls count as content.
    forbids_calls: bool,
}

/// What a mark does.
#[derive(Debug, Clone, Copy)]
enum Mark {
    BeginReasoning,
    EndReasoning,
    Call(&'static CallSyntax),
    /// It stands around calls or content, and is dropped.
    Silent,
    /// It ends a message, and a header follows.
    EndMessage,
    /// It begins a header.
    Header,
}

/// What a mark does inside a call.
#[derive(Debug, Clone, Copy)]
enum Within {
    /// It ends the call.
    Close,
    /// It begins something else, so the call has ended too.
    Other,
    /// It begins an argument (true), or ends an argument's value (false).
    Value(bool),
}

#[derive(Debug)]
enum State {
    /// Inside content or reasoning.
    Text,
    /// Inside a header that began at this position.
    Header(usize),
    Call(Call),
}

/// A call that is not finished.
#[derive(Debug)]
struct Call {
    start: usize,
    /// The position after the opening mark.
    inside: usize,
    syntax: &'static CallSyntax,
    ends: Marks<Within>,
    /// Whether the value of an argument has begun and not ended. Marks in a value are text.
    in_value: bool,
    /// The tool, if a header named it.
    tool: Option<String>,
    /// The kind of body, as soon as the beginning of the text decides this.
    body: Option<&'static Body>,
    follow: Option<Follow>,
    /// Where the call's closing mark begins and ends, if it came while a value was open. If no tag follows that closes
    /// the value, this mark ends the call after all.
    unclosed: Option<(usize, usize)>,
}

impl ReplyParser {
    /// A parser for an answer in this format. With [`after_prompt`](Self::after_prompt), the parser also knows how the
    /// prompt ends.
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
            forbids_calls: false,
        };
        if family.channels.is_some() {
            parser.state = State::Header(0);
        } else if format.reasoning().is_some_and(|marks| marks.open().is_empty()) {
            parser.section.begin(Kind::Reasoning, 0);
        }
        parser
    }

    /// Sets the prompt, or only its last characters. A template may end with the opening mark of the reasoning, with
    /// both marks so that there is no reasoning, or with the header of a message.
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

    /// Sets the tools of the model. If a format writes arguments as bare text, the tools' schemas decide how they are
    /// read. Without a schema, such an argument is a string. A text without a mark is a call only if it names a tool.
    /// If there are no tools, calls count as content.
    #[must_use]
    pub fn with_tools(mut self, tools: &[Tool]) -> Self {
        self.tools = tools.to_vec();
        self.forbids_calls = tools.is_empty();
        if self.forbids_calls {
            let is_call = |mark: Mark| matches!(mark, Mark::Call(_));
            [&mut self.in_content, &mut self.in_reasoning].into_iter().for_each(|marks| marks.remove(is_call));
        }
        self
    }

    /// Takes the next piece of the answer, and returns the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Drain<'_, ReplyPart> {
        self.raw.push_str(text);
        if self.is_plain() {
            self.section.pass(&self.raw);
        } else {
            while self.step(false) {}
        }
        self.section.parts.drain(..)
    }

    /// Ends the answer, and returns the parts that were kept back. [`finish`](Self::finish) does this too.
    pub fn end(&mut self) -> Drain<'_, ReplyPart> {
        self.close();
        self.section.parts.drain(..)
    }

    /// Ends the answer, and returns the whole answer.
    pub fn finish(mut self) -> Reply {
        self.close();
        Reply { raw: self.raw, ..self.section.reply }
    }

    /// Whether all text is content.
    fn is_plain(&self) -> bool {
        self.in_content.is_empty() && self.family.channels.is_none() && self.bare().is_none()
    }

    /// The syntax of calls without a mark, if there can be any. Such a call must name one of the tools.
    fn bare(&self) -> Option<&'static CallSyntax> {
        self.family.bare.filter(|_| !self.tools.is_empty())
    }
}
