//! The format of a model's answers, from its template or from the user.

use super::family::{self, Family, ToolCallFormat};

/// The format of a model's answers: the marks around its reasoning, and the syntax of its tool calls.
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
    /// Whether a constraint forces the answer to be a call. The beginning of the answer is then the beginning of the
    /// call.
    pub(super) forced_call: bool,
}

impl ReplyFormat {
    /// Plain text without any marks.
    pub fn plain() -> Self {
        Self::default()
    }

    /// An answer that a constraint forces to be exactly one call, `{"name": .., "arguments": {..}}`. If a limit cuts it
    /// short, the incomplete call is returned: see [`ToolCall::arguments`](crate::ToolCall::arguments).
    pub fn forced_call() -> Self {
        Self { forced_call: true, ..Self::plain().with_tool_calls(ToolCallFormat::Llama3) }
    }

    /// The format whose marks a chat template contains; the plain format if the template contains none.
    ///
    /// A model may write marks that its template lacks. Add them with the methods below.
    pub fn of_template(source: &str) -> Self {
        let tool_calls = ToolCallFormat::of_template(source);
        let frames = FRAMES.iter().filter(|(text, _)| source.contains(text));
        let mut format = Self {
            reasoning: ReasoningMarks::of_template(source),
            tool_calls,
            frames: frames.flat_map(|(_, marks)| *marks).copied().collect(),
            forced_call: false,
        };
        // With channels, headers separate reasoning from content, so other marks in such a template mean something
        // else.
        if format.family().channels.is_some() {
            format.reasoning = None;
        }
        format
    }

    /// Sets the marks around the reasoning. Formats with channels keep their own marks too.
    #[must_use]
    pub fn with_reasoning(mut self, marks: ReasoningMarks) -> Self {
        self.reasoning = Some(marks);
        self
    }

    /// Sets the format of tool calls.
    #[must_use]
    pub fn with_tool_calls(mut self, format: ToolCallFormat) -> Self {
        self.tool_calls = Some(format);
        self
    }

    /// The marks around the reasoning; `None` if there is no reasoning, or if channels mark it.
    pub fn reasoning(&self) -> Option<ReasoningMarks> {
        self.reasoning
    }

    /// The format of tool calls; `None` if there are none.
    pub fn tool_calls(&self) -> Option<ToolCallFormat> {
        self.tool_calls
    }

    /// Whether an answer to this prompt begins inside a message's header, in formats with headers.
    pub fn begins_in_header(&self, prompt: &str) -> bool {
        self.family().channels.is_some_and(|channels| channels.under_way(prompt).is_none())
    }

    pub(super) fn family(&self) -> &'static Family {
        self.tool_calls.map_or(&family::NONE, ToolCallFormat::family)
    }
}

/// The marks around a model's reasoning.
///
/// Reasoning can begin only at the start of an answer, after a tool call, or after other reasoning. Elsewhere a mark is
/// content, because the model may be writing about it. Marks with a `|` are control tokens and count anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningMarks {
    open: &'static str,
    pub(super) close: &'static str,
}

impl ReasoningMarks {
    /// `<think>` and `</think>`, the marks of most models.
    pub const THINK: Self = Self::new("<think>", "</think>");

    /// Custom marks, without the whitespace around them. Use an empty opening mark for a model that always begins with
    /// reasoning and writes only the closing mark.
    pub const fn new(open: &'static str, close: &'static str) -> Self {
        Self { open, close }
    }

    /// The opening mark; empty if every answer begins with reasoning.
    pub fn open(&self) -> &'static str {
        self.open
    }

    /// The closing mark.
    pub fn close(&self) -> &'static str {
        self.close
    }

    /// The marks that a template contains.
    fn of_template(source: &str) -> Option<Self> {
        let mut marks = TEMPLATES.iter().filter(|(text, ..)| source.contains(text));
        marks.next().map(|(_, open, close)| Self::new(open, close))
    }
}

/// A text that identifies a template, and the marks of its model. Rare texts come first, because some templates also
/// mention `<think>`.
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

/// A text that identifies a template, and the marks that its model writes around the answer after the reasoning.
const FRAMES: &[(&str, &[&str])] = &[
    ("<response></response>", &["<response>", "</response>"]),
    ("think_mode=True", &["<response>", "</response>"]), // ERNIE 4.5 Thinking
    ("[BEGIN FINAL RESPONSE]", &["[END FINAL RESPONSE]"]),
];
