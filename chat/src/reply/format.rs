//! The format of a model's answers. It comes from the model's template or from the user.

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
    /// Marks that stand around the answer itself.
    pub(super) frames: Vec<&'static str>,
    /// Whether a constraint forces the model to answer with a call. If so, the answer begins with the call.
    pub(super) forced_call: bool,
}

impl ReplyFormat {
    /// Plain text, in which nothing is a mark.
    pub fn plain() -> Self {
        Self::default()
    }

    /// An answer that consists of exactly one call, `{"name": .., "arguments": {..}}`, because a constraint forces the
    /// model to write one. If a limit cuts the call short, the result is the incomplete call: see
    /// [`ToolCall::arguments`](crate::ToolCall::arguments).
    pub fn forced_call() -> Self {
        Self { forced_call: true, ..Self::plain().with_tool_calls(ToolCallFormat::Llama3) }
    }

    /// The format whose marks occur in a chat template. If none occurs, the plain format.
    ///
    /// A model may write marks that do not occur in its template. Add them with the methods below.
    pub fn of_template(source: &str) -> Self {
        let tool_calls = ToolCallFormat::of_template(source);
        let frames = FRAMES.iter().filter(|(text, _)| source.contains(text));
        let mut format = Self {
            reasoning: ReasoningMarks::of_template(source),
            tool_calls,
            frames: frames.flat_map(|(_, marks)| *marks).copied().collect(),
            forced_call: false,
        };
        // In a template with channels, headers separate reasoning from content. Other marks in it have another meaning.
        if format.family().channels.is_some() {
            format.reasoning = None;
        }
        format
    }

    /// Sets the marks around the reasoning. If the format has channels, their marks count too.
    #[must_use]
    pub fn with_reasoning(mut self, marks: ReasoningMarks) -> Self {
        self.reasoning = Some(marks);
        self
    }

    /// Sets the format in which the model calls tools.
    #[must_use]
    pub fn with_tool_calls(mut self, format: ToolCallFormat) -> Self {
        self.tool_calls = Some(format);
        self
    }

    /// The marks around the reasoning. `None` if there is no reasoning, or if channels mark it.
    pub fn reasoning(&self) -> Option<ReasoningMarks> {
        self.reasoning
    }

    /// The format in which the model calls tools; `None` if it calls none.
    pub fn tool_calls(&self) -> Option<ToolCallFormat> {
        self.tool_calls
    }

    /// Whether an answer to this prompt begins inside the header of a message. This is possible only in formats with
    /// headers.
    pub fn begins_in_header(&self, prompt: &str) -> bool {
        self.family().channels.is_some_and(|channels| channels.under_way(prompt).is_none())
    }

    pub(super) fn family(&self) -> &'static Family {
        self.tool_calls.map_or(&family::NONE, ToolCallFormat::family)
    }
}

/// The marks around a model's reasoning.
///
/// Reasoning can begin only at the start of an answer, after a tool call, or after a previous piece of reasoning. At
/// other places, a mark is content, because the model may be writing about the mark. If a mark contains a `|`, it is a
/// control token, and it counts at every place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningMarks {
    open: &'static str,
    pub(super) close: &'static str,
}

impl ReasoningMarks {
    /// `<think>` and `</think>`, the marks of most models.
    pub const THINK: Self = Self::new("<think>", "</think>");

    /// Marks that the caller chooses, without white space around them. If a model always begins with reasoning and
    /// writes only the closing mark, the opening mark is empty.
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

    /// The marks that occur in a template.
    fn of_template(source: &str) -> Option<Self> {
        let mut marks = TEMPLATES.iter().filter(|(text, ..)| source.contains(text));
        marks.next().map(|(_, open, close)| Self::new(open, close))
    }
}

/// For each entry: a text that identifies a template, and the two marks that its model writes. Rare texts come first,
/// because `<think>` occurs in some other templates too.
const TEMPLATES: &[(&str, &str, &str)] = &[
    ("<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"), // Command R7B, Command A
    ("[/THINK]", "[THINK]", "[/THINK]"),                            // Magistral, Ministral
    ("<channel|>", "<|channel>thought", "<channel|>"),              // Gemma 4: a channel of this name
    ("<seed:think>", "<seed:think>", "</seed:think>"), // Seed-OSS: its template builds the marks from variables
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

/// For each entry: a text that identifies a template, and the marks that its model writes around the answer that
/// follows the reasoning.
const FRAMES: &[(&str, &[&str])] = &[
    ("<response></response>", &["<response>", "</response>"]),
    ("think_mode=True", &["<response>", "</response>"]), // ERNIE 4.5 Thinking
    ("[BEGIN FINAL RESPONSE]", &["[END FINAL RESPONSE]"]),
];
