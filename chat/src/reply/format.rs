//! What the answers of a model look like, as its template shows or its user says.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::ReasoningMarks;
use super::family::{FAMILIES, FRAMES, Family};

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
    frames: Vec<&'static str>,
}

impl ReplyFormat {
    /// Text without any marks.
    pub fn plain() -> Self {
        Self::default()
    }

    /// The format that a chat template teaches, by the marks in its source. A template that knows none
    /// gives the plain one.
    ///
    /// A model may write marks that its template does not know: add them.
    pub fn of_template(source: &str) -> Self {
        let tool_calls = Family::of_template(source);
        // Channels say what is reasoning; other marks in such a template are about something else.
        let reasoning = match tool_calls {
            Some(family) if family.channels.is_some() => None,
            _ => ReasoningMarks::of_template(source),
        };
        let frames = FRAMES.iter().filter(|(text, _)| source.contains(text));
        Self {
            reasoning,
            tool_calls: tool_calls.map(|family| family.format),
            frames: frames
                .flat_map(|(_, marks)| marks.iter().copied())
                .collect(),
        }
    }

    /// With these marks around the reasoning. Formats with channels have their own besides.
    #[must_use]
    pub fn with_reasoning(mut self, marks: ReasoningMarks) -> Self {
        self.reasoning = Some(marks);
        self
    }

    /// With reasoning and its marks left in the content.
    #[must_use]
    pub fn without_reasoning(mut self) -> Self {
        self.reasoning = None;
        self
    }

    /// With tool calls of this format.
    #[must_use]
    pub fn with_tool_calls(mut self, format: ToolCallFormat) -> Self {
        self.tool_calls = Some(format);
        self
    }

    /// With tool calls left in the content: for a conversation without tools. Formats with channels keep them, and
    /// marks that frame the content go as before.
    #[must_use]
    pub fn without_tool_calls(mut self) -> Self {
        if let Some(family) = self.family()
            && family.channels.is_none()
        {
            self.frames.extend(family.silent);
            self.tool_calls = None;
        }
        self
    }

    /// The marks around the reasoning. `None`: there is none, or channels say what it is.
    pub fn reasoning(&self) -> Option<&ReasoningMarks> {
        self.reasoning.as_ref()
    }

    /// How tools are called, if they are.
    pub fn tool_calls(&self) -> Option<ToolCallFormat> {
        self.tool_calls
    }

    /// Marks around the answer itself.
    pub(super) fn frames(&self) -> &[&'static str] {
        &self.frames
    }

    pub(super) fn family(&self) -> Option<&'static Family> {
        self.tool_calls.and_then(Family::of)
    }
}

/// How a model writes calls of tools. Formats are named after the models that made them known; many
/// others write the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolCallFormat {
    /// `<|tools_prefix|>[{"f": {..}}]<|tools_suffix|>`
    Apertus,
    /// `<atem:function_calls><atem:invoke name="f"><atem:parameter name="a">1</atem:parameter>..`, in channels:
    /// `to=self`, `to=f`
    Atem,
    /// `<|START_ACTION|>[{"tool_name": "f", "parameters": {..}}]<|END_ACTION|>`: Command R7B and A
    CommandR,
    /// `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{..}<｜tool▁call▁end｜>`: DeepSeek V3.1, and with a code fence V3 and R1
    DeepSeek,
    /// `<｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>..`: DeepSeek V3.2 and V4
    DeepSeekV32,
    /// `<function=f>{..}</function>`, `<|python_tag|>` before a program
    FunctionaryV31,
    /// `>>>f` and `{..}` on the next line, `>>>all` before content
    FunctionaryV32,
    /// `<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`
    Gemma4,
    /// `<|function_call|>{"name": "f", "arguments": {..}}`
    GigaChat,
    /// `<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`: GLM 4.5 and later, Ling, Laguna
    Glm,
    /// `<|tool_call|>[{"name": "f", "arguments": {..}}]`: Granite 3, Phi 4 mini
    Granite,
    /// `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{..}<|call|>`: gpt-oss
    Harmony,
    /// `<tool_call>{"name": "f", "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4
    Hermes,
    /// `<tool_call:opensource>f<tool_sep:opensource>..`: Hunyuan 3
    Hunyuan,
    /// `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{..}<|tool_call_end|>`
    KimiK2,
    /// `<|tool_call_start|>[f(a='x')]<|tool_call_end|>`
    Lfm2,
    /// `{"name": "f", "parameters": {..}}` as the whole answer, `<|python_tag|>tool.call(query="x")` for tools that it
    /// was trained with
    Llama3,
    /// `<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke></minimax:tool_call>`
    MiniMaxM2,
    /// `<invoke name="f"><a>1</a></invoke>` with a token before every tag
    MiniMaxM3,
    /// `[TOOL_CALLS][{"name": "f", "arguments": {..}}]`, since 2025 `[TOOL_CALLS]f[ARGS]{..}`
    Mistral,
    /// `<TOOLCALL>[{"name": "f", "arguments": {..}}]</TOOLCALL>`
    Nemotron,
    /// `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5, Nemotron 3
    Qwen3Coder,
    /// The same within `<seed:tool_call>`
    SeedOss,
    /// `<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{..}<|tool_call:end|>`
    Solar,
    /// `<tool_calls>[{"name": "f", "arguments": {..}}]</tool_calls>`: Apriel, MiniMax M1
    ToolCallsTag,
}

impl ToolCallFormat {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(|family| family.format)
    }
}

/// Its name: `hermes`, `qwen3-coder`.
impl fmt::Display for ToolCallFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Family::of(*self).map_or("", |family| family.name))
    }
}

impl FromStr for ToolCallFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        FAMILIES
            .iter()
            .find(|family| family.name == name)
            .map(|family| family.format)
            .ok_or_else(|| UnknownFormat {
                name: name.to_owned(),
            })
    }
}

/// There is no format of tool calls of this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no format of tool calls is called {name:?}; there are {}", names())]
#[non_exhaustive]
pub struct UnknownFormat {
    /// The name.
    pub name: String,
}

fn names() -> String {
    FAMILIES
        .iter()
        .map(|family| family.name)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::{Family, ReplyFormat, ToolCallFormat};

    #[test]
    fn every_format_has_a_name_that_is_read_back() {
        for format in ToolCallFormat::all() {
            assert_eq!(format.to_string().parse(), Ok(format));
            assert_eq!(Family::of(format).unwrap().format, format);
        }
        let error = "herms".parse::<ToolCallFormat>().unwrap_err();
        assert!(error.to_string().contains("hermes"), "{error}");
    }

    #[test]
    fn a_conversation_without_tools_keeps_channels() {
        let hermes = ReplyFormat::plain().with_tool_calls(ToolCallFormat::Hermes);
        assert_eq!(hermes.without_tool_calls(), ReplyFormat::plain());
        let harmony = ReplyFormat::plain().with_tool_calls(ToolCallFormat::Harmony);
        assert_eq!(harmony.clone().without_tool_calls(), harmony);
    }
}
