//! Reads an answer as it is generated.

mod step;

use std::vec::Drain;

use super::call::{Body, CallSyntax};
use super::channel::Channels;
use super::json::Follow;
use super::marks::Marks;
use super::section::{Kind, Section};
use super::{ReasoningMarks, Reply, ReplyFormat, ReplyPart};
use crate::Tool;

/// Reads an answer as it is generated: text in, [`ReplyPart`]s out as soon as they are certain.
///
/// Held back are only: what may be the beginning of a mark, whitespace that a mark may follow, and a call until it is
/// whole. Whitespace beside a mark belongs to the mark; whitespace at the beginning and the end of the whole answer
/// stays. Where a call stands between two sections of content, a blank line parts them. How the text is cut into pieces
/// makes no difference to what it means.
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
    channels: Option<&'static Channels>,
    syntaxes: &'static [CallSyntax],
    silent: &'static [&'static str],
    /// Whether JSON without a mark can still be a call.
    bare: bool,
    in_content: Marks<Mark>,
    in_reasoning: Marks<Mark>,
    tools: Vec<Tool>,
    raw: String,
    /// Up to here, the text was searched.
    seen: usize,
    state: State,
    section: Section,
}

/// What a mark does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    BeginReasoning,
    EndReasoning,
    /// Begins a call of this syntax.
    Call(usize),
    /// Frames something.
    Silent,
    /// Ends a message; a header follows.
    EndMessage,
    /// Begins a header.
    Header,
}

#[derive(Debug)]
enum State {
    /// In content or reasoning.
    Text,
    /// In a header that began there.
    Header(usize),
    Call(CallState),
    /// In JSON without a mark, which is a call if it is the whole answer. It is followed once it has begun as one.
    Bare {
        start: usize,
        follow: Option<Follow>,
    },
}

#[derive(Debug)]
struct CallState {
    start: usize,
    /// Where what is between the marks begins.
    inside: usize,
    syntax: &'static CallSyntax,
    /// Whether this mark ends it. `false`: it begins something else, which ends it too.
    ends: Marks<bool>,
    /// The tool, where a header named it.
    tool: Option<String>,
    body: Option<(&'static Body, Option<Follow>)>,
}

impl ReplyParser {
    /// For an answer of this format. What the prompt's end says about it comes with
    /// [`after_prompt`](Self::after_prompt).
    pub fn new(format: &ReplyFormat) -> Self {
        let family = format.family();
        let mut parser = Self {
            reasoning: format.reasoning().cloned(),
            channels: family.and_then(|family| family.channels),
            syntaxes: family.map_or(&[], |family| family.calls),
            silent: family.map_or(&[], |family| family.silent),
            bare: family.is_some_and(|family| family.bare),
            in_content: Marks::new(),
            in_reasoning: Marks::new(),
            tools: Vec::new(),
            raw: String::new(),
            seen: 0,
            state: State::Text,
            section: Section::new(),
        };
        let ends_reasoning = family.is_some_and(|family| family.ends_reasoning);
        parser.add_marks(format.frames(), ends_reasoning);
        if parser.channels.is_some() {
            parser.state = State::Header(0);
        } else if parser
            .reasoning
            .as_ref()
            .is_some_and(|marks| marks.open().is_empty())
        {
            parser.section.begin(Kind::Reasoning, 0);
        }
        parser
    }

    /// Whether all text is content.
    fn is_plain(&self) -> bool {
        self.in_content.is_empty() && self.channels.is_none() && !self.bare()
    }

    /// Whether JSON without a mark can be a call: one of the tools has to be named.
    fn bare(&self) -> bool {
        self.bare && !self.tools.is_empty()
    }

    fn add_marks(&mut self, frames: &[&str], ends_reasoning: bool) {
        for (index, syntax) in self.syntaxes.iter().enumerate() {
            for open in syntax.open {
                self.in_content.add(open, Mark::Call(index));
                if ends_reasoning {
                    self.in_reasoning.add(open, Mark::Call(index));
                }
            }
        }
        if let Some(channels) = self.channels {
            for marks in [&mut self.in_content, &mut self.in_reasoning] {
                for end in channels.ends {
                    marks.add(end, Mark::EndMessage);
                }
                for start in channels.starts {
                    marks.add(start, Mark::Header);
                }
            }
        }
        for mark in self.silent.iter().chain(frames) {
            self.in_content.add(mark, Mark::Silent);
        }
        if let Some(marks) = &self.reasoning {
            self.in_reasoning.add(marks.close(), Mark::EndReasoning);
            self.in_reasoning.add(marks.open(), Mark::BeginReasoning);
            self.in_content.add(marks.open(), Mark::BeginReasoning);
            self.in_content.add(marks.close(), Mark::EndReasoning);
        }
    }

    /// Says where the prompt left the model: `prompt`, or its last characters, is what stands before the answer.
    /// Templates end their prompts with the opening mark of the reasoning, with both of its marks where it is not
    /// wanted, or with a message's header.
    #[must_use]
    pub fn after_prompt(mut self, prompt: &str) -> Self {
        if let Some(channels) = self.channels {
            let begin = channels
                .starts
                .first()
                .and_then(|start| prompt.rfind(start));
            let tail = begin.map_or("", |at| &prompt[at..]);
            if let Some((header, _)) = tail.split_once(channels.header_end)
                && let Some(message) = (channels.message)(header)
            {
                self.begin_message(channels, message, 0, 0);
            }
            return self;
        }
        let Some(marks) = &self.reasoning else {
            return self;
        };
        let prompt = prompt.trim_end();
        if !marks.open().is_empty() && prompt.ends_with(marks.open().trim_end()) {
            self.section.begin(Kind::Reasoning, 0);
        } else if prompt.ends_with(marks.close().trim_end()) {
            self.section.begin(Kind::Content, 0);
        }
        self
    }

    /// Says whether the answer begins within reasoning, where the caller knows.
    #[must_use]
    pub fn opened(mut self, opened: bool) -> Self {
        if opened {
            self.state = State::Text;
            self.section.begin(Kind::Reasoning, 0);
        } else if self.section.kind == Kind::Reasoning {
            self.section = Section::new();
        }
        self
    }

    /// With the tools that the model was given. Their schemas say how arguments are to be read that a format writes as
    /// bare text; without them those stay strings. And text without a mark is a call only if it names one of them.
    #[must_use]
    pub fn with_tools(mut self, tools: &[Tool]) -> Self {
        self.tools = tools.to_vec();
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
        self.section.into_reply(self.raw)
    }
}
