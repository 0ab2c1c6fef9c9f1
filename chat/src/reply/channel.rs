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
    /// How a message that is a call ends and is read.
    pub(super) call: &'static CallSyntax,
}

/// What a message is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    Content,
    Reasoning,
    /// Arguments for this tool.
    Call(String),
}

/// No header is longer, in bytes: from there on, text is what the model says.
pub(super) const LONGEST_HEADER: usize = 256;

/// gpt-oss: `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>commentary to=functions.f
/// ..<|message|>{..}<|call|>`
pub(super) const HARMONY: Channels = Channels {
    starts: &["<|start|>", "<|channel|>"],
    header_end: "<|message|>",
    ends: &["<|end|>", "<|call|>", "<|return|>"],
    message: harmony,
    call: &CallSyntax {
        open: &[],
        close: &["<|call|>", "<|end|>", "<|return|>"],
        end: End::Mark,
        bodies: &[Body::Arguments],
    },
};

fn harmony(header: &str) -> Option<Message> {
    let header = header.trim();
    if let Some((_, behind)) = header.split_once("to=") {
        let tool = word(behind);
        let tool = tool.strip_prefix("functions.").unwrap_or(tool);
        return Some(Message::Call(tool.to_owned()));
    }
    match header.split_once("<|channel|>") {
        Some((_, channel)) if word(channel.trim_start()) == "analysis" => Some(Message::Reasoning),
        Some(_) => Some(Message::Content),
        None => header.starts_with("<|start|>").then_some(Message::Content),
    }
}

/// ATEM: `to=self<|message|>..<|eom|><|start|>assistant to=f<|message|>` and a call that has its own marks.
pub(super) const ATEM: Channels = Channels {
    starts: &["<|start|>"],
    header_end: "<|message|>",
    ends: &["<|eom|>", "<|eot|>"],
    message: atem,
    call: HARMONY.call,
};

fn atem(header: &str) -> Option<Message> {
    let header = header.trim();
    match header.split_once("to=") {
        Some((_, behind)) if word(behind) == "self" => Some(Message::Reasoning),
        Some(_) => Some(Message::Content),
        None => header.starts_with("<|start|>").then_some(Message::Content),
    }
}

/// Functionary v3.2: `all` and a line end before content, a tool's name before its arguments, `>>>` between them.
pub(super) const FUNCTIONARY: Channels = Channels {
    starts: &[">>>"],
    header_end: "\n",
    ends: &[],
    message: functionary,
    call: &CallSyntax {
        open: &[],
        close: &[],
        end: End::Mark,
        bodies: &[Body::Arguments],
    },
};

fn functionary(header: &str) -> Option<Message> {
    let name = header.strip_prefix(">>>").unwrap_or(header);
    if name == "all" {
        return Some(Message::Content);
    }
    let is_name = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || "_-.".contains(c));
    is_name.then(|| Message::Call(name.to_owned()))
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace() || c == '<');
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::{Message, atem, functionary, harmony};

    #[test]
    fn a_header_says_what_its_message_is() {
        let call = |name: &str| Some(Message::Call(name.to_owned()));
        assert_eq!(harmony("<|channel|>analysis"), Some(Message::Reasoning));
        assert_eq!(
            harmony("<|start|>assistant<|channel|>final"),
            Some(Message::Content)
        );
        assert_eq!(harmony("<|channel|>commentary"), Some(Message::Content));
        assert_eq!(
            harmony("<|channel|>commentary to=functions.f <|constrain|>json"),
            call("f")
        );
        assert_eq!(
            harmony(" to=functions.f<|channel|>commentary json"),
            call("f")
        );
        assert_eq!(
            harmony("<|channel|>analysis to=python code"),
            call("python")
        );
        assert_eq!(harmony("Once upon a time"), None);
        assert_eq!(atem(" to=self"), Some(Message::Reasoning));
        assert_eq!(atem("<|start|>assistant to=f"), Some(Message::Content));
        assert_eq!(functionary("all"), Some(Message::Content));
        assert_eq!(functionary(">>>f"), call("f"));
        assert_eq!(functionary(">>> print(1)"), None);
    }
}
