//! The current section of an answer, and the rules for white space in it.
//!
//! White space next to a mark belongs to the mark. White space at the beginning and at the end of the whole answer is
//! kept. If there is something between two sections of the same kind, such as a call between two paragraphs, the
//! sections are separated by a blank line.

use super::{CallError, MalformedCall, Reply, ReplyPart, ToolCall};

/// The kind of a section's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Content,
    Reasoning,
}

const BETWEEN_SECTIONS: &str = "\n\n";

/// The current section, and the results so far.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) kind: Kind,
    /// The end of the text that was already returned.
    given: usize,
    /// The end of the text that belongs to this section.
    said: usize,
    /// Whether any text of this section was returned.
    pub(super) started: bool,
    /// Whether there is a mark directly before the section.
    after_mark: bool,
    /// The results so far, but without the raw text.
    pub(super) reply: Reply,
    /// The parts that are returned next.
    pub(super) parts: Vec<ReplyPart>,
}

impl Section {
    /// Ends the section at a mark, and begins the next section after it.
    pub(super) fn begin(&mut self, kind: Kind, at: usize) {
        (self.kind, self.given, self.said) = (kind, at, at);
        (self.started, self.after_mark) = (false, true);
    }

    /// Whether this section has any text, or the answer has any content.
    pub(super) fn has_begun(&self) -> bool {
        self.started || !self.reply.content.is_empty()
    }

    /// Adds the text before `end` to the section, and returns it without white space at its end.
    pub(super) fn say(&mut self, raw: &str, end: usize) {
        let new = raw[self.said..end].trim_end();
        if !new.is_empty() {
            self.give(raw, self.said + new.len());
        }
        self.said = end;
    }

    /// Returns all of the text. This is for sections that no mark can end.
    pub(super) fn pass(&mut self, raw: &str) {
        if self.given < raw.len() {
            self.give(raw, raw.len());
        }
        self.said = raw.len();
    }

    /// Ends the answer, and returns the text that was kept back.
    pub(super) fn end(&mut self, raw: &str) {
        self.say(raw, raw.len());
        if self.started || !self.after_mark {
            self.pass(raw);
        }
        self.given = raw.len();
    }

    fn give(&mut self, raw: &str, end: usize) {
        let mut text = &raw[self.given..end];
        if !self.started && self.after_mark {
            text = text.trim_start();
        }
        let (before, part): (_, fn(String) -> ReplyPart) = match self.kind {
            Kind::Content => (&mut self.reply.content, ReplyPart::Content),
            Kind::Reasoning => {
                let reasoning = self.reply.reasoning.get_or_insert_default();
                (reasoning, ReplyPart::Reasoning)
            }
        };
        let parted = !self.started && !before.is_empty();
        let text = [if parted { BETWEEN_SECTIONS } else { "" }, text].concat();
        before.push_str(&text);
        self.parts.push(part(text));
        self.given = end;
        self.started = true;
    }

    /// Adds a call.
    pub(super) fn call(&mut self, call: ToolCall) {
        self.reply.tool_calls.push(call.clone());
        self.parts.push(ReplyPart::ToolCall(call));
    }

    /// Adds a call that cannot be read.
    pub(super) fn malformed(&mut self, text: &str, reason: CallError) {
        let text = text.to_owned();
        self.reply.malformed.push(MalformedCall { text, reason });
    }
}
