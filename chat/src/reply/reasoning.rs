//! The marks around what a model thinks before it answers.

use std::borrow::Cow;

/// The marks around what a model thinks before it answers.
///
/// Reasoning begins only where the answer has not begun: at its start, and behind a call of a tool or other reasoning.
/// A mark that the model only talks about is content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningMarks {
    open: Cow<'static, str>,
    close: Cow<'static, str>,
}

impl ReasoningMarks {
    /// `<think>` and `</think>`: most models'.
    pub const THINK: Self = Self::of("<think>", "</think>");

    /// Marks of other names. Whitespace around them is none of theirs, and left away.
    pub fn new(open: &str, close: &str) -> Self {
        Self {
            open: Cow::Owned(open.trim().to_owned()),
            close: Cow::Owned(close.trim().to_owned()),
        }
    }

    /// A model that always begins with its reasoning, and writes the closing mark alone.
    pub fn closing(close: &str) -> Self {
        Self::new("", close)
    }

    const fn of(open: &'static str, close: &'static str) -> Self {
        Self {
            open: Cow::Borrowed(open),
            close: Cow::Borrowed(close),
        }
    }

    /// The opening mark. Empty, if every answer begins with reasoning.
    pub fn open(&self) -> &str {
        &self.open
    }

    /// The closing mark.
    pub fn close(&self) -> &str {
        &self.close
    }

    /// The marks that a template knows, if any.
    pub(super) fn of_template(source: &str) -> Option<Self> {
        TEMPLATES
            .iter()
            .find(|(needle, _)| source.contains(needle))
            .map(|(_, marks)| marks.clone())
    }
}

/// What stands in a template whose model has these marks: the rarer first, since some templates mention
/// `<think>` besides.
const TEMPLATES: &[(&str, ReasoningMarks)] = &[
    // Command R7B, Command A
    (
        "<|END_THINKING|>",
        ReasoningMarks::of("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    // Magistral, Ministral
    ("[/THINK]", ReasoningMarks::of("[THINK]", "[/THINK]")),
    // Gemma 4: a channel of this name
    (
        "<channel|>",
        ReasoningMarks::of("<|channel>thought", "<channel|>"),
    ),
    // Seed-OSS: its template puts the marks together from variables
    (
        "<seed:think>",
        ReasoningMarks::of("<seed:think>", "</seed:think>"),
    ),
    // MiniMax M3
    (
        "</mm:think>",
        ReasoningMarks::of("<mm:think>", "</mm:think>"),
    ),
    // Hunyuan 3
    (
        "':opensource'",
        ReasoningMarks::of("<think:opensource>", "</think:opensource>"),
    ),
    // Apertus
    (
        "<|inner_prefix|>",
        ReasoningMarks::of("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    // Solar Open: a message of its own
    (
        "<|begin|>assistant<|think|>",
        ReasoningMarks::of("<|think|>", "<|end|>"),
    ),
    // Apriel 1.5 and 1.6
    (
        "[BEGIN FINAL RESPONSE]",
        ReasoningMarks::of("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    ("</think>", ReasoningMarks::THINK),
    (
        "</thinking>",
        ReasoningMarks::of("<thinking>", "</thinking>"),
    ),
    (
        "</reasoning>",
        ReasoningMarks::of("<reasoning>", "</reasoning>"),
    ),
    ("</thought>", ReasoningMarks::of("<thought>", "</thought>")),
];
