//! How a call of a tool is written: its marks, where it ends, and what is between.

use super::json::{self, Follow, Shape};
use super::named::{self, ReadHead};
use super::tagged::{self, Tagged};
use super::{CallError, arguments, literal, nested};
use crate::{Tool, ToolCall};

/// How a format marks a call, or several.
#[derive(Debug)]
pub(super) struct CallSyntax {
    pub(super) open: &'static [&'static str],
    pub(super) close: &'static [&'static str],
    pub(super) end: End,
    /// What may be between: the first that the text begins as.
    pub(super) bodies: &'static [Body],
}

/// Where a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// At its closing mark, or where the next call begins.
    Mark,
    /// With its JSON.
    Value,
    /// With the answer.
    Answer,
}

/// What is between the marks.
#[derive(Debug)]
pub(super) enum Body {
    /// Objects, in a list or not.
    Json(Shape),
    /// The arguments alone; the tool was named before.
    Arguments,
    /// A name and then JSON.
    Named(ReadHead),
    /// A name and tags.
    Tagged(&'static Tagged),
    /// MiniMax M3's tags within tags.
    Nested,
    /// Python's calls.
    Python,
    /// Gemma's.
    Gemma,
    /// A call in JSON, a method of a tool that the model was trained with, or else a program for the tool `python`.
    Code,
}

/// More whitespace before a call, or a longer name, is none: in bytes.
const LONGEST_NAME: usize = 256;

impl Body {
    /// The beginning of a JSON value, where one is in it: marks in its strings are no marks.
    pub(super) fn follow(&self) -> Option<Follow> {
        match self {
            Self::Json(_) | Self::Arguments => Some(Follow::new(true)),
            Self::Named(_) => Some(Follow::new(false)),
            _ => None,
        }
    }

    /// Whether `text` begins as this does. `None`: it is too short to say.
    pub(super) fn begins(&self, text: &str) -> Option<bool> {
        match self {
            Self::Json(_) => begins(text, |c| "[{".contains(c)),
            Self::Arguments | Self::Code => Some(true),
            Self::Named(_) => begins_with_name(text, "<[{>"),
            Self::Tagged(tags) if tags.call.is_empty() => begins_with_name(text, "<>"),
            Self::Tagged(tags) => begins_with(text, tags.call),
            Self::Nested => begins_with(text, "]<]minimax[>[<invoke"),
            Self::Python => begins(text, |c| c == '[' || arguments::in_a_name(c)),
            Self::Gemma => begins_with(text, "call:"),
        }
    }

    /// Whether a text without its closing mark, for the answer ended first, can be whole.
    fn can_be_whole(&self, text: &str) -> bool {
        match self {
            Self::Json(_) | Self::Arguments | Self::Python | Self::Code => true,
            Self::Named(_) => text.contains('{'),
            Self::Tagged(tags) => !tags.call.is_empty() && text.trim_end().ends_with(tags.call_end),
            Self::Nested => nested::complete(text),
            Self::Gemma => text.trim_end().ends_with('}'),
        }
    }

    /// The calls in `text`. `tool` is who is called, where a header said so; `cut_off` says that the answer ended
    /// before the call did.
    pub(super) fn read(
        &self,
        text: &str,
        tool: Option<&str>,
        tools: &[Tool],
        cut_off: bool,
    ) -> Result<Vec<ToolCall>, CallError> {
        if !cut_off {
            return self.parse(text, tool, tools);
        }
        if !self.can_be_whole(text) {
            return Err(CallError::CutOff);
        }
        self.parse(text, tool, tools).map_err(|_| CallError::CutOff)
    }

    fn parse(
        &self,
        text: &str,
        tool: Option<&str>,
        tools: &[Tool],
    ) -> Result<Vec<ToolCall>, CallError> {
        match self {
            Self::Json(shape) => json::calls(text, *shape),
            Self::Arguments => {
                let name = tool
                    .filter(|name| !name.is_empty())
                    .ok_or(CallError::NoName)?;
                with_arguments(name, text)
            }
            Self::Named(head) => named::call(text, *head).map(|call| vec![call]),
            Self::Tagged(tags) => tagged::calls(text, tags, tools),
            Self::Nested => nested::calls(text, tools),
            // LFM2 can be told to write JSON there.
            Self::Python
                if begins(text.trim_start_matches(['[', ' ']), |c| c == '{') == Some(true) =>
            {
                json::calls(text, Shape::NameAndArguments)
            }
            Self::Python => literal::python(text),
            Self::Gemma => literal::gemma(text).map(|call| vec![call]),
            Self::Code => program(text),
        }
    }
}

/// The tool that runs what a model writes as a program, as models and templates call it.
const PYTHON: &str = "python";

fn program(text: &str) -> Result<Vec<ToolCall>, CallError> {
    let calls = if text.trim_start().starts_with('{') {
        json::calls(text, Shape::NameAndArguments)
    } else if text.contains(".call(") {
        literal::python(text)
    } else {
        Err(CallError::NotACall)
    };
    calls.or_else(|_| with_arguments(PYTHON, text))
}

fn with_arguments(name: &str, text: &str) -> Result<Vec<ToolCall>, CallError> {
    let arguments = match named::only_json(text) {
        Err(_) if name == PYTHON => serde_json::json!({ "code": text.trim() }),
        arguments => arguments?,
    };
    Ok(vec![ToolCall {
        id: None,
        name: name.to_owned(),
        arguments,
    }])
}

/// Whether the first character behind whitespace is such a one.
fn begins(text: &str, is: impl Fn(char) -> bool) -> Option<bool> {
    match first(text) {
        Some(place) => text[place..].chars().next().map(is),
        None => too_long(text),
    }
}

fn begins_with(text: &str, mark: &str) -> Option<bool> {
    let Some(place) = first(text) else {
        return too_long(text);
    };
    let text = &text[place..];
    if text.len() >= mark.len() {
        Some(text.starts_with(mark))
    } else if mark.starts_with(text) {
        None
    } else {
        Some(false)
    }
}

/// Whether a name is first, and one of `behind` is next.
fn begins_with_name(text: &str, behind: &str) -> Option<bool> {
    let Some(place) = first(text) else {
        return too_long(text);
    };
    let mut name_ended = false;
    for (at, c) in text[place..].char_indices() {
        if at > LONGEST_NAME {
            return Some(false);
        }
        if c.is_whitespace() {
            name_ended = true;
        } else if behind.contains(c) {
            return Some(at > 0);
        } else if name_ended || !arguments::in_a_name(c) {
            return Some(false);
        }
    }
    None
}

/// Where text begins behind whitespace, if soon.
fn first(text: &str) -> Option<usize> {
    let mut chars = text
        .char_indices()
        .take_while(|(at, _)| *at <= LONGEST_NAME);
    chars.find(|(_, c)| !c.is_whitespace()).map(|(at, _)| at)
}

fn too_long(text: &str) -> Option<bool> {
    (text.len() > LONGEST_NAME + 4).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::{Body, named, tagged};

    #[test]
    fn a_body_is_known_by_its_beginning() {
        let glm = Body::Tagged(&tagged::GLM);
        assert_eq!(glm.begins("get_we"), None);
        assert_eq!(glm.begins("get_weather\n"), None);
        assert_eq!(glm.begins("get_weather\n<"), Some(true));
        assert_eq!(glm.begins(" tags are"), Some(false));
        let coder = Body::Tagged(&tagged::QWEN3_CODER);
        assert_eq!(coder.begins("\n<func"), None);
        assert_eq!(coder.begins("\n<function=f"), Some(true));
        assert_eq!(coder.begins("\n{"), Some(false));
        let mistral = Body::Named(named::mistral);
        assert_eq!(mistral.begins("f[ARGS]"), Some(true));
        assert_eq!(mistral.begins("[{"), Some(false));
        assert_eq!(mistral.begins(&" ".repeat(1000)), Some(false));
        assert_eq!(mistral.begins(&"a".repeat(1000)), Some(false));
    }
}
