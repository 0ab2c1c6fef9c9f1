//! The section of the answer that is being read, and the rule of its whitespace.
//!
//! Whitespace beside a mark belongs to the mark, and at the beginning and the end of the whole answer stays. Where
//! something else stands between two sections of one kind (a call between two paragraphs), a blank line parts them.

use super::{CallError, MalformedCall, Reply, ReplyPart, ToolCall};

/// What text is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Content,
    Reasoning,
}

const BETWEEN_SECTIONS: &str = "\n\n";

/// A section under way, and all that has been given out.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) kind: Kind,
    /// Up to here, text was given out.
    given: usize,
    /// Up to here, text was said to be of this section.
    said: usize,
    /// Whether something was given out of this section.
    pub(super) started: bool,
    /// Whether it begins beside a mark.
    after_mark: bool,
    /// All that has been given out; without its raw text.
    pub(super) reply: Reply,
    /// What is to be given out next.
    pub(super) parts: Vec<ReplyPart>,
}

impl Section {
    /// Ends the section at a mark, and begins the next behind it.
    pub(super) fn begin(&mut self, kind: Kind, at: usize) {
        (self.kind, self.given, self.said) = (kind, at, at);
        (self.started, self.after_mark) = (false, true);
    }

    /// Whether the answer has content so far, or this section anything.
    pub(super) fn has_begun(&self) -> bool {
        self.started || !self.reply.content.is_empty()
    }

    /// The text up to `end` is of this section: gives it out, but for whitespace at its end.
    pub(super) fn say(&mut self, raw: &str, end: usize) {
        let new = raw[self.said..end].trim_end();
        if !new.is_empty() {
            self.give(raw, self.said + new.len());
        }
        self.said = end;
    }

    /// All of the text is of this section, and no mark can follow.
    pub(super) fn pass(&mut self, raw: &str) {
        if self.given < raw.len() {
            self.give(raw, raw.len());
        }
        self.said = raw.len();
    }

    /// The answer ends: what was held back is of this section.
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

    /// A call was read.
    pub(super) fn call(&mut self, call: ToolCall) {
        self.reply.tool_calls.push(call.clone());
        self.parts.push(ReplyPart::ToolCall(call));
    }

    /// A call could not be read.
    pub(super) fn malformed(&mut self, text: &str, reason: CallError) {
        let text = text.to_owned();
        self.reply.malformed.push(MalformedCall { text, reason });
    }
}
