//! The syntax of tool calls: marks, ends and bodies.

use super::json::{self, Follow};
use super::tags::{self, Tags};
use super::{CallError, arguments, literal};
use crate::{Tool, ToolCall};

/// The syntax of one call. If several calls may follow one mark, the syntax of these calls.
#[derive(Debug)]
pub(super) struct CallSyntax {
    /// The opening mark; empty if there is none.
    pub(super) open: &'static str,
    pub(super) end: End,
    /// The bodies that may follow the mark. The first that matches the beginning of the text is used.
    pub(super) bodies: &'static [Body],
}

/// How a call ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// With one of these marks, or where the next call begins.
    Mark(&'static [&'static str]),
    /// With the end of its JSON value.
    Value,
    /// With the end of the answer.
    Answer,
    /// With the end of the answer. The call must be the whole answer. If it is not, the text is content.
    WholeAnswer,
}

/// What stands between the marks.
#[derive(Debug)]
pub(super) enum Body {
    /// `{"name": "f", "arguments": {..}}`. The keys may have any of the known names. There may be several objects, or a
    /// list of them.
    Json,
    /// [`Json`](Self::Json) without a mark before it.
    BareJson,
    /// `[{"f": {..}}]`
    JsonByName,
    /// Only the arguments, as JSON. A header before them has named the tool.
    Arguments,
    /// The tool's name, followed by the arguments as JSON.
    Named(Head),
    /// The tool's name, followed by tags.
    Tags(&'static Tags),
    /// Nested tags, as MiniMax M3 writes them.
    NestedTags,
    /// `[f(a='x', n=1)]`
    Python,
    /// `call:f{a:<|"|>x<|"|>,n:1}`
    Gemma,
    /// A call as JSON, a call of a method of a tool that the model knows from its training, or a program for the tool
    /// `python`.
    Code,
}

/// Maximum bytes of a call's name, together with the white space before it.
const MAX_NAME: usize = 256;

/// The keys with which a call without a mark may begin.
const FIRST_KEYS: &[&str] = &["\"name\"", "\"type\"", "\"function\"", "\"parameters\""];

impl Body {
    /// If the body is a JSON value, a tracker for it. Marks that occur in the strings of the value do not count.
    pub(super) fn follow(&self) -> Option<Follow> {
        match self {
            Self::Json | Self::JsonByName | Self::Arguments => Some(Follow::new(true)),
            Self::BareJson | Self::Named(_) => Some(Follow::new(false)),
            _ => None,
        }
    }

    /// Whether `text` begins as this body would. `None` if the text is too short to decide.
    pub(super) fn begins(&self, text: &str) -> Option<bool> {
        if let Self::Arguments | Self::Code = self {
            return Some(true);
        }
        let start = text.trim_start();
        if text.len() - start.len() > MAX_NAME {
            return Some(false);
        }
        let first = start.chars().next();
        match self {
            Self::BareJson => begins_as_bare(start),
            Self::Named(_) => begins_with_name(start, "<[{>"),
            Self::Tags(tags) if tags.call[0].is_empty() => {
                begins_with_name(start, tags.call[1].get(..1).unwrap_or("<"))
            }
            Self::Tags(tags) => begins_with(start, tags.call[0]),
            Self::NestedTags => begins_with(start, tags::INVOKE),
            Self::Python => first.map(|c| c == '[' || arguments::in_a_name(c)),
            Self::Gemma => begins_with(start, literal::GEMMA_CALL),
            _ => first.map(|c| "[{".contains(c)),
        }
    }

    /// Parses the calls in `text`. `tool` is the name in the header, if there was a header. `cut_off` says that the
    /// answer ended before the call was complete.
    pub(super) fn read(
        &self,
        text: &str,
        tool: Option<&str>,
        tools: &[Tool],
        cut_off: bool,
    ) -> Result<Vec<ToolCall>, CallError> {
        let can_be_whole = match self {
            Self::Named(_) => text.contains('{'),
            Self::Tags(Tags { call: [open, _, end], .. }) => !open.is_empty() && text.trim_end().ends_with(end),
            _ => true,
        };
        match self.parse(text, tool, tools) {
            Ok(calls) if !cut_off || can_be_whole => Ok(calls),
            Err(reason) if !cut_off => Err(reason),
            _ => Err(CallError::CutOff),
        }
    }

    fn parse(&self, text: &str, tool: Option<&str>, tools: &[Tool]) -> Result<Vec<ToolCall>, CallError> {
        match self {
            Self::Json | Self::BareJson => json::calls(text),
            Self::JsonByName => json::calls_by_name(text),
            Self::Arguments => with_arguments(tool.unwrap_or_default(), text),
            Self::Named(head) => head.call(text, tools).map(|call| vec![call]),
            Self::Tags(tags) => tags::calls(text, tags, tools),
            Self::NestedTags => tags::nested_calls(text, tools),
            // LFM2 writes JSON at this place if a prompt asks for JSON.
            Self::Python if text.trim_start_matches(['[', ' ']).trim_start().starts_with('{') => json::calls(text),
            Self::Python => literal::python(text),
            Self::Gemma => literal::gemma(text).map(|call| vec![call]),
            Self::Code => program(text),
        }
    }
}

/// What stands before the arguments of a call, if these are JSON.
#[derive(Debug, Clone, Copy)]
pub(super) enum Head {
    /// `name[CALL_ID]id[ARGS]`, `name[ARGS]`
    Mistral,
    /// `function<｜tool▁sep｜>name` and the beginning of a code fence, or since V3.1 `name<｜tool▁sep｜>`
    DeepSeek,
    /// `functions.name:0<|tool_call_argument_begin|>`. The text before the mark is the id of the call.
    KimiK2,
    /// `id<|tool_call:name|>name<|tool_call:args|>`
    Solar,
    /// `name>`, the rest of `<function=name>`
    Functionary,
}

impl Head {
    /// Parses one call.
    fn call(self, text: &str, tools: &[Tool]) -> Result<ToolCall, CallError> {
        let (head, json) = text.split_at(text.find('{').unwrap_or(text.len()));
        let (id, name) = self.id_and_name(head.trim());
        let name = match (self, id) {
            (Self::KimiK2, Some(id)) => named_in(id, tools).unwrap_or(name),
            _ => name,
        };
        Ok(ToolCall { id: id.map(str::to_owned), name: arguments::tool_name(name)?, arguments: json::arguments(json)? })
    }

    fn id_and_name(self, head: &str) -> (Option<&str>, &str) {
        let end = match self {
            Self::Mistral => "[ARGS]",
            Self::DeepSeek => "```json",
            Self::KimiK2 => "<|tool_call_argument_begin|>",
            Self::Solar => "<|tool_call:args|>",
            Self::Functionary => ">",
        };
        let head = head.strip_suffix(end).unwrap_or(head);
        match self {
            Self::Mistral => match head.split_once("[CALL_ID]") {
                Some((name, id)) => (Some(id), name),
                None => (None, head),
            },
            Self::DeepSeek => match head.split_once("<｜tool▁sep｜>") {
                Some((name, behind)) if behind.trim().is_empty() => (None, name),
                Some((_kind, name)) => (None, name),
                None => (None, head),
            },
            Self::KimiK2 => {
                let name = head.strip_prefix("functions.").unwrap_or(head);
                let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
                let numbered = name.rsplit_once(':').filter(|(_, text)| is_number(text));
                (Some(head), numbered.map_or(name, |(name, _)| name))
            }
            Self::Solar => match head.split_once("<|tool_call:name|>") {
                Some((id, name)) => (Some(id), name),
                None => (None, head),
            },
            Self::Functionary => (None, head),
        }
    }
}

/// The tool whose name occurs in an id as a word. The longest name is preferred. First the case must be the same, then
/// any case is accepted. Kimi's `functions.NAME:N` also occurs with another prefix, another separator, or without
/// these.
fn named_in<'a>(id: &str, tools: &'a [Tool]) -> Option<&'a str> {
    let is_word = |text: &str, at: usize, length: usize| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let before = &text[..at];
        let prefix = before.trim_end_matches('_');
        let begins = !before.ends_with(is_name) || prefix.ends_with("function") || prefix.ends_with("functions");
        // A number may follow the name directly.
        let behind = text[at + length..].trim_start_matches('_').chars().next();
        begins && behind.is_none_or(|c| !is_name(c) || c.is_ascii_digit())
    };
    let stands_in = |text: &str, name: &str| {
        !name.is_empty() && text.match_indices(name).any(|(at, _)| is_word(text, at, name.len()))
    };
    let exact = tools.iter().map(|tool| tool.name.as_str()).filter(|name| stands_in(id, name));
    let folded = id.to_lowercase();
    let any_case = tools.iter().map(|tool| tool.name.as_str()).filter(|name| stands_in(&folded, &name.to_lowercase()));
    exact.max_by_key(|name| name.len()).or_else(|| any_case.max_by_key(|name| name.len()))
}

/// The name of the tool that runs programs, in models and templates.
const PYTHON: &str = "python";

fn program(text: &str) -> Result<Vec<ToolCall>, CallError> {
    let calls = if text.trim_start().starts_with('{') {
        json::calls(text)
    } else if text.contains(".call(") {
        literal::python(text)
    } else {
        Err(CallError::NotACall)
    };
    calls.or_else(|_| with_arguments(PYTHON, text))
}

fn with_arguments(name: &str, text: &str) -> Result<Vec<ToolCall>, CallError> {
    let arguments = match json::arguments(text) {
        _ if name.is_empty() => return Err(CallError::NoName),
        // If a text begins like JSON but is not valid, it is not a program: it should have been JSON, and may have been
        // cut short.
        Err(_) if name == PYTHON && !text.trim_start().starts_with('{') => serde_json::json!({ "code": text.trim() }),
        arguments => arguments?,
    };
    Ok(vec![ToolCall::new(name, arguments)])
}

fn begins_with(text: &str, mark: &str) -> Option<bool> {
    let is_cut_off = text.len() < mark.len() && mark.starts_with(text);
    (!is_cut_off).then(|| text.starts_with(mark))
}

/// Whether the text begins with a name that is followed by one of `next`.
fn begins_with_name(text: &str, next: &str) -> Option<bool> {
    let name = text.find(|c| !arguments::in_a_name(c)).unwrap_or(text.len());
    let behind = text[name..].trim_start();
    if text.len() - behind.len() > MAX_NAME {
        return Some(false);
    }
    let behind = behind.chars().next()?;
    Some(name > 0 && next.contains(behind))
}

/// Whether an object begins as a call would.
fn begins_as_bare(text: &str) -> Option<bool> {
    const MAX_WHITESPACE: usize = 64;
    let inside = text.strip_prefix('{')?;
    let key = inside.trim_start();
    if inside.len() - key.len() > MAX_WHITESPACE {
        return Some(false);
    }
    let mut begins = FIRST_KEYS.iter().map(|first| begins_with(key, first));
    begins.find(|begins| *begins != Some(false)).unwrap_or(Some(false))
}
