//! The current section of an answer, and the rules for its whitespace.
//!
//! Whitespace next to a mark belongs to the mark. Whitespace at the beginning and end of the whole answer stays. A
//! blank line separates two sections of the same kind if something else was between them, such as a call between two
//! paragraphs.

use super::{CallError, MalformedCall, Reply, ReplyPart, ToolCall};

/// The kind of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Content,
    Reasoning,
}

const BETWEEN_SECTIONS: &str = "\n\n";

/// The current section and the results so far.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) kind: Kind,
    /// End of the text that was returned.
    given: usize,
    /// End of the text that belongs to this section.
    said: usize,
    /// Whether text of this section was returned.
    pub(super) started: bool,
    /// Whether the section begins next to a mark.
    after_mark: bool,
    /// The results so far, without the raw text.
    pub(super) reply: Reply,
    /// The parts to return next.
    pub(super) parts: Vec<ReplyPart>,
}

impl Section {
    /// Ends the section at a mark and begins the next one behind it.
    pub(super) fn begin(&mut self, kind: Kind, at: usize) {
        (self.kind, self.given, self.said) = (kind, at, at);
        (self.started, self.after_mark) = (false, true);
    }

    /// Whether this section has text, or the answer has content.
    pub(super) fn has_begun(&self) -> bool {
        self.started || !self.reply.content.is_empty()
    }

    /// Adds the text up to `end` to the section and returns it, except for trailing whitespace.
    pub(super) fn say(&mut self, raw: &str, end: usize) {
        let new = raw[self.said..end].trim_end();
        if !new.is_empty() {
            self.give(raw, self.said + new.len());
        }
        self.said = end;
    }

    /// Returns all text, for sections that no mark can end.
    pub(super) fn pass(&mut self, raw: &str) {
        if self.given < raw.len() {
            self.give(raw, raw.len());
        }
        self.said = raw.len();
    }

    /// Ends the answer, and returns the text that was held back.
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

    /// Adds an unreadable call.
    pub(super) fn malformed(&mut self, text: &str, reason: CallError) {
        let text = text.to_owned();
        self.reply.malformed.push(MalformedCall { text, reason });
    }
}
