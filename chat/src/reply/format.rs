//! What the answers of a model look like, as its template shows or its user says.

use super::family::{self, Family, ToolCallFormat};

/// What the answers of a model look like: the marks around its reasoning, and how it calls tools.
///
/// ```
/// use autoplace_chat::{ReasoningMarks, ReplyFormat, ToolCallFormat};
///
/// let qwen3 = ReplyFormat::plain()
///     .with_reasoning(ReasoningMarks::THINK)
///     .with_tool_calls(ToolCallFormat::Hermes);
/// let template = "{{ '<think>' }}..{{ '</think>' }}..<tool_call>{\"name\": ..}</tool_call>";
/// assert_eq!(ReplyFormat::of_template(template), qwen3);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyFormat {
    reasoning: Option<ReasoningMarks>,
    tool_calls: Option<ToolCallFormat>,
    /// Marks around the answer itself.
    pub(super) frames: Vec<&'static str>,
    /// Whether the answer is held to be a call, so that its beginning is the beginning of one.
    pub(super) forced_call: bool,
}

impl ReplyFormat {
    /// Text without any marks.
    pub fn plain() -> Self {
        Self::default()
    }

    /// An answer that is held to be one call, `{"name": .., "arguments": {..}}`, and nothing else. Where a limit cuts
    /// it, what there is of it is the call: see [`ToolCall::arguments`](crate::ToolCall::arguments).
    pub fn forced_call() -> Self {
        Self { forced_call: true, ..Self::plain().with_tool_calls(ToolCallFormat::Llama3) }
    }

    /// The format that a chat template teaches, by the marks in its source. A template that knows none
    /// gives the plain one.
    ///
    /// A model may write marks that its template does not know: add them.
    pub fn of_template(source: &str) -> Self {
        let tool_calls = ToolCallFormat::of_template(source);
        let frames = FRAMES.iter().filter(|(text, _)| source.contains(text));
        let mut format = Self {
            reasoning: ReasoningMarks::of_template(source),
            tool_calls,
            frames: frames.flat_map(|(_, marks)| *marks).copied().collect(),
            forced_call: false,
        };
        // Channels say what is reasoning; other marks in such a template are about something else.
        if format.family().channels.is_some() {
            format.reasoning = None;
        }
        format
    }

    /// With these marks around the reasoning. Formats with channels have their own besides.
    #[must_use]
    pub fn with_reasoning(mut self, marks: ReasoningMarks) -> Self {
        self.reasoning = Some(marks);
        self
    }

    /// With tool calls of this format.
    #[must_use]
    pub fn with_tool_calls(mut self, format: ToolCallFormat) -> Self {
        self.tool_calls = Some(format);
        self
    }

    /// The marks around the reasoning. `None`: there is none, or channels say what it is.
    pub fn reasoning(&self) -> Option<ReasoningMarks> {
        self.reasoning
    }

    /// How tools are called, if they are.
    pub fn tool_calls(&self) -> Option<ToolCallFormat> {
        self.tool_calls
    }

    /// Whether an answer behind this prompt begins in the header of a message, in formats that have such.
    pub fn begins_in_header(&self, prompt: &str) -> bool {
        self.family().channels.is_some_and(|channels| channels.under_way(prompt).is_none())
    }

    pub(super) fn family(&self) -> &'static Family {
        self.tool_calls.map_or(&family::NONE, ToolCallFormat::family)
    }
}

/// The marks around what a model thinks before it answers.
///
/// Reasoning begins only where the answer has not begun: at its start, and behind a call of a tool or other reasoning.
/// A mark that the model only talks about is content, but for marks with a `|`: those are control tokens, and count
/// anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningMarks {
    open: &'static str,
    pub(super) close: &'static str,
}

impl ReasoningMarks {
    /// `<think>` and `</think>`: most models'.
    pub const THINK: Self = Self::new("<think>", "</think>");

    /// Marks of other names, without the whitespace around them. A model that always begins with its reasoning, and
    /// writes the closing mark alone, has an empty opening one.
    pub const fn new(open: &'static str, close: &'static str) -> Self {
        Self { open, close }
    }

    /// The opening mark. Empty, if every answer begins with reasoning.
    pub fn open(&self) -> &'static str {
        self.open
    }

    /// The closing mark.
    pub fn close(&self) -> &'static str {
        self.close
    }

    /// The marks that a template knows, if any.
    fn of_template(source: &str) -> Option<Self> {
        let mut marks = TEMPLATES.iter().filter(|(text, ..)| source.contains(text));
        marks.next().map(|(_, open, close)| Self::new(open, close))
    }
}

/// What stands in a template, and the marks of its model: the rarer first, since some templates mention `<think>`
/// besides.
const TEMPLATES: &[(&str, &str, &str)] = &[
    ("<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"), // Command R7B, Command A
    ("[/THINK]", "[THINK]", "[/THINK]"),                            // Magistral, Ministral
    ("<channel|>", "<|channel>thought", "<channel|>"),              // Gemma 4: a channel of this name
    ("<seed:think>", "<seed:think>", "</seed:think>"), // Seed-OSS: its template puts the marks together from variables
    ("</mm:think>", "<mm:think>", "</mm:think>"),      // MiniMax M3
    ("':opensource'", "<think:opensource>", "</think:opensource>"), // Hunyuan 3
    ("<|inner_prefix|>", "<|inner_prefix|>", "<|inner_suffix|>"), // Apertus
    ("<|begin|>assistant<|think|>", "<|think|>", "<|end|>"), // Solar Open: a message of its own
    // Apriel 1.5 and 1.6
    ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ("</think>", "<think>", "</think>"),
    ("</thinking>", "<thinking>", "</thinking>"),
    ("</reasoning>", "<reasoning>", "</reasoning>"),
    ("</thought>", "<thought>", "</thought>"),
];

/// What stands in a template, and the marks around the answer itself that its model writes behind its reasoning.
const FRAMES: &[(&str, &[&str])] = &[
    ("<response></response>", &["<response>", "</response>"]),
    ("think_mode=True", &["<response>", "</response>"]), // ERNIE 4.5 Thinking
    ("[BEGIN FINAL RESPONSE]", &["[END FINAL RESPONSE]"]),
];
