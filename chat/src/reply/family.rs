//! A table of formats for tool calls: the texts that identify a template, and the syntax in which its model writes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::call::{Body, CallSyntax, End, Head};
use super::channel::{self, Channels};
use super::tags;

/// The description of one format for tool calls.
#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    /// A template has this format if, for one of these lists, it contains all of the list's texts. If there are no
    /// lists, it must contain the mark with which the first of the format's calls begins.
    templates: &'static [&'static [&'static str]],
    pub(super) calls: &'static [CallSyntax],
    /// Marks around calls or content. They are dropped.
    pub(super) silent: &'static [&'static str],
    /// Whether the mark of a call ends reasoning that has not been closed. This is true if models write the mark only
    /// for calls, or if they call tools before they close their reasoning.
    pub(super) ends_reasoning: bool,
    /// The syntax of a call that has no mark and is the whole answer.
    pub(super) bare: Option<&'static CallSyntax>,
    pub(super) channels: Option<&'static Channels>,
}

/// A format that has no calls.
pub(super) const NONE: Family =
    Family { name: "", templates: &[], calls: &[], silent: &[], ends_reasoning: false, bare: None, channels: None };

impl ToolCallFormat {
    /// All formats.
    pub fn all() -> impl Iterator<Item = Self> {
        FORMATS.iter().map(|(format, _)| *format)
    }

    /// The format whose marks occur in a template.
    pub(super) fn of_template(source: &str) -> Option<Self> {
        let has = |texts: &&[&str]| texts.iter().all(|text| source.contains(text));
        let found = FORMATS.iter().find(|(_, family)| match family.templates {
            [] => source.contains(family.calls[0].open),
            lists => lists.iter().any(has),
        });
        found.map(|(format, _)| *format)
    }

    pub(super) fn family(self) -> &'static Family {
        // The table contains each format, in the same order.
        &FORMATS[self as usize].1
    }
}

/// Writes the name of the format, such as `hermes` or `qwen3-coder`.
impl fmt::Display for ToolCallFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.family().name)
    }
}

const fn call(open: &'static str, end: End, bodies: &'static [Body]) -> CallSyntax {
    CallSyntax { open, end, bodies }
}

macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident $name:literal { $($field:ident: $value:expr),* $(,)? })*) => {
        /// A format in which models write tool calls. A format is named after the model that made it known; many other
        /// models use it too.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ToolCallFormat {
            $($(#[$doc])* $format,)*
        }

        const FORMATS: &[(ToolCallFormat, Family)] =
            &[$((ToolCallFormat::$format, Family { name: $name, $($field: $value,)* ..NONE })),*];
    };
}

// A template is compared with the formats in this order. If it has the marks of several formats, the first of these is
// used.
formats! {
    /// `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{..}<|call|>`: gpt-oss
    Harmony "harmony" {
        templates: &[&["<|channel|>", "<|message|>"]],
        channels: Some(&channel::HARMONY),
    }
    /// `<atem:function_calls><atem:invoke name="f"><atem:parameter name="a">1</atem:parameter>..`, in a message whose
    /// header has `to=f`; reasoning is in a message with `to=self`
    Atem "atem" {
        calls: &[call("<atem:function_calls>", End::Mark(&["</atem:function_calls>"]), &[Body::Tags(&tags::ATEM)])],
        channels: Some(&channel::ATEM),
    }
    /// `>>>f` and `{..}` on the next line, `>>>all` before content
    FunctionaryV32 "functionary-v3.2" {
        templates: &[&[">>>all"]],
        channels: Some(&channel::FUNCTIONARY),
    }
    /// `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{..}<|tool_call_end|>`
    KimiK2 "kimi-k2" {
        templates: &[&["<|tool_calls_section_begin|>"]],
        calls: &[call("<|tool_call_begin|>", End::Mark(&["<|tool_call_end|>"]), &[Body::Named(Head::KimiK2)])],
        silent: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        ends_reasoning: true,
    }
    /// `<invoke name="f"><a>1</a></invoke>` with a token before every tag
    MiniMaxM3 "minimax-m3" {
        templates: &[&["]<]minimax[>["]],
        calls: &[call("]<]minimax[>[<tool_call>", End::Mark(&["]<]minimax[>[</tool_call>"]), &[Body::NestedTags])],
        ends_reasoning: true,
    }
    /// `<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke></minimax:tool_call>`
    MiniMaxM2 "minimax-m2" {
        calls: &[call("<minimax:tool_call>", End::Mark(&["</minimax:tool_call>"]), &[Body::Tags(&tags::MINIMAX_M2)])],
    }
    /// `<｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>..`: DeepSeek V3.2 and V4
    DeepSeekV32 "deepseek-v3.2" {
        templates: &[&["｜DSML｜"]],
        calls: &[
            call("<｜DSML｜tool_calls>", End::Mark(&["</｜DSML｜tool_calls>"]), &[Body::Tags(&tags::DEEPSEEK_V32)]),
            call("<｜DSML｜function_calls>", End::Mark(&["</｜DSML｜function_calls>"]), &[Body::Tags(&tags::DEEPSEEK_V32)]),
        ],
        ends_reasoning: true,
    }
    /// `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{..}<｜tool▁call▁end｜>`: DeepSeek V3.1; with a code fence, V3 and R1
    DeepSeek "deepseek" {
        calls: &[call("<｜tool▁call▁begin｜>", End::Mark(&["<｜tool▁call▁end｜>"]), &[Body::Named(Head::DeepSeek)])],
        silent: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        ends_reasoning: true,
    }
    /// `<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`, and FunctionGemma's
    /// `<start_function_call>call:f{a:<escape>x<escape>}<end_function_call>`
    Gemma4 "gemma-4" {
        templates: &[&["<|tool_call>call:"], &["<start_function_call>"]],
        calls: &[
            call("<|tool_call>", End::Mark(&["<tool_call|>"]), &[Body::Gemma]),
            call("<start_function_call>", End::Mark(&["<end_function_call>"]), &[Body::Gemma]),
        ],
        ends_reasoning: true,
    }
    /// `<tool_call:opensource>f<tool_sep:opensource>..`: Hunyuan 3
    Hunyuan "hunyuan" {
        templates: &[&["':opensource'", "<arg_key{}>"]],
        calls: &[
            call("<tool_call:opensource>", End::Mark(&["</tool_call:opensource>"]), &[Body::Tags(&tags::HUNYUAN)]),
        ],
        silent: &["<tool_calls:opensource>", "</tool_calls:opensource>"],
        ends_reasoning: true,
    }
    /// `<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`: GLM 4.5 and later, Ling, Laguna
    Glm "glm" {
        templates: &[&["<arg_key>"]],
        calls: &[call("<tool_call>", End::Mark(&["</tool_call>"]), &[Body::Tags(&tags::GLM)])],
        ends_reasoning: true,
    }
    /// The format of [`Qwen3Coder`](Self::Qwen3Coder), between `<seed:tool_call>` and its end
    SeedOss "seed-oss" {
        calls: &[call("<seed:tool_call>", End::Mark(&["</seed:tool_call>"]), &[Body::Tags(&tags::SEED_OSS)])],
    }
    /// `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5, Nemotron 3;
    /// and MiniCPM5's `<function name="f"><param name="a">1</param></function>`
    Qwen3Coder "qwen3-coder" {
        templates: &[&["<function=", "<parameter="], &["<function name=\"", "<param name=\""]],
        calls: &[
            call("<tool_call>", End::Mark(&["</tool_call>"]), &[Body::Tags(&tags::QWEN3_CODER), Body::Json]),
            // The model sometimes leaves out the first mark.
            call(
                "<function=",
                End::Mark(&["</function>\n</tool_call>", "</function>"]),
                &[Body::Tags(&tags::QWEN3_CODER_BARE)],
            ),
            call("<function name=\"", End::Mark(&["</function>"]), &[Body::Tags(&tags::MINICPM5)]),
        ],
        ends_reasoning: true,
    }
    /// `<function=f>{..}</function>`; `<|python_tag|>` before a program
    FunctionaryV31 "functionary-v3.1" {
        calls: &[
            call("<function=", End::Mark(&["</function>"]), &[Body::Named(Head::Functionary)]),
            call("<|python_tag|>", End::Answer, &[Body::Code]),
        ],
    }
    /// `[TOOL_CALLS][{"name": "f", "arguments": {..}}]`; since 2025, `[TOOL_CALLS]f[ARGS]{..}`
    Mistral "mistral" {
        calls: &[call("[TOOL_CALLS]", End::Value, &[Body::Json, Body::Named(Head::Mistral)])],
        ends_reasoning: true,
    }
    /// `<|START_ACTION|>[{"tool_name": "f", "parameters": {..}}]<|END_ACTION|>`: Command R7B and A
    CommandR "command-r" {
        calls: &[call("<|START_ACTION|>", End::Mark(&["<|END_ACTION|>"]), &[Body::Json])],
        silent: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ends_reasoning: true,
    }
    /// `<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{..}<|tool_call:end|>`
    Solar "solar" {
        calls: &[call("<|tool_call:begin|>", End::Mark(&["<|tool_call:end|>"]), &[Body::Named(Head::Solar)])],
        silent: &["<|begin|>assistant", "<|tool_calls|>", "<|calls|>", "<|content|>", "<|end|>"],
    }
    /// `<|tool_call_start|>[f(a='x')]<|tool_call_end|>`, and Olmo 3's `<function_calls>f(a='x')</function_calls>`
    Lfm2 "lfm2" {
        templates: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["List of tools: ["], &["<function_calls>"]],
        calls: &[
            call("<|tool_call_start|>", End::Mark(&["<|tool_call_end|>"]), &[Body::Python]),
            call("<function_calls>", End::Mark(&["</function_calls>"]), &[Body::Python]),
        ],
    }
    /// `<|tools_prefix|>[{"f": {..}}]<|tools_suffix|>`
    Apertus "apertus" {
        calls: &[call("<|tools_prefix|>", End::Mark(&["<|tools_suffix|>"]), &[Body::JsonByName])],
        ends_reasoning: true,
    }
    /// `<TOOLCALL>[{"name": "f", "arguments": {..}}]</TOOLCALL>`
    Nemotron "nemotron" {
        calls: &[call("<TOOLCALL>", End::Mark(&["</TOOLCALL>"]), &[Body::Json])],
    }
    /// `<tool_calls>[{"name": "f", "arguments": {..}}]</tool_calls>`: Apriel, MiniMax M1
    ToolCallsTag "tool-calls-tag" {
        calls: &[call("<tool_calls>", End::Mark(&["</tool_calls>"]), &[Body::Json])],
    }
    /// `<|function_call|>{"name": "f", "arguments": {..}}`
    GigaChat "gigachat" {
        templates: &[&["<|function_call|>"], &["function call", "<|role_sep|>", "<|message_sep|>"]],
        calls: &[
            call("<|function_call|>", End::Value, &[Body::Json]),
            call("function call<|role_sep|>", End::Value, &[Body::Json]),
        ],
        silent: &["<|message_sep|>"],
    }
    /// `<|tool_call|>[{"name": "f", "arguments": {..}}]`: Granite 3, Phi 4 mini
    Granite "granite" {
        calls: &[call("<|tool_call|>", End::Value, &[Body::Json])],
        silent: &["<|/tool_call|>"],
    }
    /// `<tool_call>{"name": "f", "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4
    Hermes "hermes" {
        calls: &[call("<tool_call>", End::Mark(&["</tool_call>"]), &[Body::Json, Body::Tags(&tags::QWEN3_CODER)])],
    }
    /// `{"name": "f", "parameters": {..}}`, which is the whole answer; for tools that the model knows from its
    /// training, `<|python_tag|>tool.call(query="x")`
    Llama3 "llama-3" {
        templates: &[&["<|python_tag|>"], &["|>ipython", "\"parameters\""]],
        calls: &[call("<|python_tag|>", End::Answer, &[Body::Code])],
        // Marks that Llama 4 writes.
        silent: &["<|python_start|>", "<|python_end|>"],
        bare: Some(&call("", End::WholeAnswer, &[Body::BareJson])),
    }
}
