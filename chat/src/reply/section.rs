//! The section of the answer that is being read, and the rule of its whitespace.
//!
//! Whitespace beside a mark belongs to the mark: content and reasoning neither begin nor end with it. Whitespace at the
//! beginning and the end of the whole answer stays. Where something else stands between two sections of one kind (a
//! call between two paragraphs), a blank line parts them.

use super::{CallError, MalformedCall, Reply, ReplyPart, ToolCall};

/// What text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Content,
    Reasoning,
}

const BETWEEN_SECTIONS: &str = "\n\n";

/// A section under way, and all that has been given out.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) kind: Kind,
    /// Up to here, text was given out.
    given: usize,
    /// Up to here, text was said to be of this section.
    said: usize,
    /// Whether something was given out of this section.
    started: bool,
    /// Whether it begins beside a mark.
    after_mark: bool,
    reply: Reply,
    pub(super) parts: Vec<ReplyPart>,
}

impl Section {
    pub(super) fn new() -> Self {
        Self {
            kind: Kind::Content,
            given: 0,
            said: 0,
            started: false,
            after_mark: false,
            reply: Reply::default(),
            parts: Vec::new(),
        }
    }

    /// Ends the section at a mark, and begins the next behind it.
    pub(super) fn begin(&mut self, kind: Kind, at: usize) {
        self.kind = kind;
        self.given = at;
        self.said = at;
        self.started = false;
        self.after_mark = true;
    }

    /// Whether something was given out of this section.
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// Whether the answer has content so far.
    pub(super) fn has_content(&self) -> bool {
        !self.reply.content.is_empty()
    }

    /// The text up to `end` is of this section: gives it out, but for whitespace at its end.
    pub(super) fn say(&mut self, raw: &str, end: usize) {
        let new = raw[self.said..end].trim_end();
        if !new.is_empty() {
            let solid = self.said + new.len();
            self.give(raw, solid);
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
        if self.given < raw.len() && (self.started || !self.after_mark) {
            self.give(raw, raw.len());
        }
        self.given = raw.len();
    }

    fn give(&mut self, raw: &str, end: usize) {
        let mut text = &raw[self.given..end];
        if !self.started && self.after_mark {
            text = text.trim_start();
        }
        let before = match self.kind {
            Kind::Content => &mut self.reply.content,
            Kind::Reasoning => self.reply.reasoning.get_or_insert_default(),
        };
        let text = if self.started || before.is_empty() {
            text.to_owned()
        } else {
            [BETWEEN_SECTIONS, text].concat()
        };
        before.push_str(&text);
        self.parts.push(match self.kind {
            Kind::Content => ReplyPart::Content(text),
            Kind::Reasoning => ReplyPart::Reasoning(text),
        });
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
        self.reply.malformed.push(MalformedCall {
            text: text.to_owned(),
            reason,
        });
    }

    /// All that was given out, as the meaning of `raw`.
    pub(super) fn into_reply(self, raw: String) -> Reply {
        Reply { raw, ..self.reply }
    }
}
