//! Answers that are messages, each with a header that says what it is: thoughts, a call, or what the person reads.

use super::call::{Body, CallSyntax, End};

/// How messages and their headers are marked.
#[derive(Debug)]
pub(super) struct Channels {
    /// Where a header begins; the mark is part of it.
    pub(super) starts: &'static [&'static str],
    /// Where a header ends.
    pub(super) header_end: &'static str,
    /// Where a message ends. It also ends where the next one's header begins.
    pub(super) ends: &'static [&'static str],
    /// What a header says. `None`: it is no header.
    pub(super) message: fn(&str) -> Option<Message>,
}

/// What a message is.
#[derive(Debug)]
pub(super) enum Message {
    Content,
    Reasoning,
    /// Arguments for this tool.
    Call(String),
}

impl Channels {
    /// The message that the end of a prompt has begun, behind its header.
    pub(super) fn under_way(&self, prompt: &str) -> Option<Message> {
        let begin = self.starts.first().and_then(|start| prompt.rfind(start))?;
        let (header, _) = prompt[begin..].split_once(self.header_end)?;
        (self.message)(header)
    }
}

/// The call that a message is: it ends with the message.
pub(super) const CALL: CallSyntax = CallSyntax { open: "", end: End::Mark(&[]), bodies: &[Body::Arguments] };

/// No header is longer, in bytes: from there on, text is what the model says.
pub(super) const LONGEST_HEADER: usize = 256;

/// `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>commentary to=functions.f ..<|message|>{..}
/// <|call|>`
pub(super) const HARMONY: Channels = Channels {
    starts: &["<|start|>", "<|channel|>"],
    header_end: "<|message|>",
    ends: &["<|end|>", "<|call|>", "<|return|>"],
    message: |header| {
        // The smaller model at times begins with `<|channel|>commentary to=assistant` and a header behind it.
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

/// `to=self<|message|>..<|eom|><|start|>assistant to=f<|message|>` and a call that has its own marks
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

/// `all` and a line end before content, a tool's name before its arguments, `>>>` between them
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
