//! Answers that consist of several messages. The header of a message says what the message is: reasoning, a call, or
//! content.

use super::call::{Body, CallSyntax, End};

/// The marks around messages and headers.
#[derive(Debug)]
pub(super) struct Channels {
    /// The marks with which a header begins. Such a mark is a part of the header.
    pub(super) starts: &'static [&'static str],
    /// The text with which a header ends.
    pub(super) header_end: &'static str,
    /// The marks with which a message ends. A message also ends where the next header begins.
    pub(super) ends: &'static [&'static str],
    /// Which kind of message a header announces; `None` if the text is no header.
    pub(super) message: fn(&str) -> Option<Message>,
}

/// The kind of a message.
#[derive(Debug)]
pub(super) enum Message {
    Content,
    Reasoning,
    /// The arguments for the tool with this name.
    Call(String),
}

impl Channels {
    /// If the prompt ends inside a message, the kind of that message, according to its header.
    pub(super) fn under_way(&self, prompt: &str) -> Option<Message> {
        let begin = self.starts.first().and_then(|start| prompt.rfind(start))?;
        let (header, _) = prompt[begin..].split_once(self.header_end)?;
        (self.message)(header)
    }
}

/// The syntax of a call that is a whole message.
pub(super) const CALL: CallSyntax = CallSyntax { open: "", end: End::Mark(&[]), bodies: &[Body::Arguments] };

/// Maximum bytes of a header. If the text is longer, it is content.
pub(super) const MAX_HEADER: usize = 256;

/// `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>commentary to=functions.f ..<|message|>{..}
/// <|call|>`
pub(super) const HARMONY: Channels = Channels {
    starts: &["<|start|>", "<|channel|>"],
    header_end: "<|message|>",
    ends: &["<|end|>", "<|call|>", "<|return|>"],
    message: |header| {
        // The smaller model sometimes begins with `<|channel|>commentary to=assistant`, and then writes another header.
        let to = header.rsplit_once("to=").map(|(_, behind)| word(behind));
        if let Some(tool) = to.filter(|to| *to != "assistant") {
            let tool = tool.strip_prefix("functions.").unwrap_or(tool);
            return Some(Message::Call(tool.to_owned()));
        }
        match header.rsplit_once("<|channel|>") {
            Some((_, name)) if word(name.trim_start()) == "analysis" => Some(Message::Reasoning),
            Some(_) => Some(Message::Content),
            None => begins_as_message(header),
        }
    },
};

/// `to=self<|message|>..<|eom|><|start|>assistant to=f<|message|>`, followed by a call that has its own marks.
pub(super) const ATEM: Channels = Channels {
    starts: &["<|start|>"],
    header_end: "<|message|>",
    ends: &["<|eom|>", "<|eot|>"],
    message: |header| match header.split_once("to=") {
        Some((_, behind)) if word(behind) == "self" => Some(Message::Reasoning),
        Some(_) => Some(Message::Content),
        None => begins_as_message(header),
    },
};

/// Before content, `all` and the end of a line; before arguments, the name of a tool; between messages, `>>>`.
pub(super) const FUNCTIONARY: Channels = Channels {
    starts: &[">>>"],
    header_end: "\n",
    ends: &[],
    message: |header| {
        let name = header.strip_prefix(">>>").unwrap_or(header);
        let is_name = name.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c));
        match name {
            "all" => Some(Message::Content),
            _ => (is_name && !name.is_empty()).then(|| Message::Call(name.to_owned())),
        }
    },
};

fn begins_as_message(header: &str) -> Option<Message> {
    let header = header.trim_start();
    header.starts_with("<|start|>").then_some(Message::Content)
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace() || c == '<');
    &text[..end.unwrap_or(text.len())]
}
