//! The formats of tool calls, in a table: what a template has in it, and what its model writes.

use super::ToolCallFormat;
use super::call::{Body, CallSyntax, End};
use super::channel::{self, Channels};
use super::json::Shape;
use super::{named, tagged};

/// A format of tool calls.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) format: ToolCallFormat,
    pub(super) name: &'static str,
    /// A template is of this family if it has all texts of one of these lists.
    templates: &'static [&'static [&'static str]],
    pub(super) calls: &'static [CallSyntax],
    /// Marks that frame calls or content, and say nothing.
    pub(super) silent: &'static [&'static str],
    /// Whether a call can begin within reasoning and end it: where its mark is a token that no model writes otherwise.
    pub(super) ends_reasoning: bool,
    /// Whether a call can also be the answer's whole text, without a mark.
    pub(super) bare: bool,
    pub(super) channels: Option<&'static Channels>,
}

/// What most families have.
const PLAIN: Family = Family {
    format: ToolCallFormat::Hermes,
    name: "",
    templates: &[],
    calls: &[],
    silent: &[],
    ends_reasoning: false,
    bare: false,
    channels: None,
};

const JSON: &[Body] = &[Body::Json(Shape::NameAndArguments)];

const PYTHON_TAG: CallSyntax = CallSyntax {
    open: &["<|python_tag|>"],
    close: &[],
    end: End::Answer,
    bodies: &[Body::Code],
};

/// Calls between marks.
const fn marked(
    open: &'static [&'static str],
    close: &'static [&'static str],
    bodies: &'static [Body],
) -> CallSyntax {
    CallSyntax {
        open,
        close,
        end: End::Mark,
        bodies,
    }
}

impl Family {
    pub(super) fn of(format: ToolCallFormat) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.format == format)
    }

    pub(super) fn of_template(source: &str) -> Option<&'static Self> {
        let has = |texts: &&[&str]| texts.iter().all(|text| source.contains(text));
        FAMILIES
            .iter()
            .find(|family| family.templates.iter().any(has))
    }
}

/// In the order in which templates are looked at: what has the marks of several is of the first.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        format: ToolCallFormat::Harmony,
        name: "harmony",
        templates: &[&["<|channel|>", "<|message|>"]],
        channels: Some(&channel::HARMONY),
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Atem,
        name: "atem",
        templates: &[&["<atem:function_calls>"]],
        calls: &[marked(
            &["<atem:function_calls>"],
            &["</atem:function_calls>"],
            &[Body::Tagged(&tagged::ATEM)],
        )],
        channels: Some(&channel::ATEM),
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::FunctionaryV32,
        name: "functionary-v3.2",
        templates: &[&[">>>all"]],
        channels: Some(&channel::FUNCTIONARY),
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::KimiK2,
        name: "kimi-k2",
        templates: &[&["<|tool_calls_section_begin|>"]],
        calls: &[marked(
            &["<|tool_call_begin|>"],
            &["<|tool_call_end|>"],
            &[Body::Named(named::kimi)],
        )],
        silent: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::MiniMaxM3,
        name: "minimax-m3",
        templates: &[&["]<]minimax[>["]],
        calls: &[marked(
            &["]<]minimax[>[<tool_call>"],
            &["]<]minimax[>[</tool_call>"],
            &[Body::Nested],
        )],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::MiniMaxM2,
        name: "minimax-m2",
        templates: &[&["<minimax:tool_call>"]],
        calls: &[marked(
            &["<minimax:tool_call>"],
            &["</minimax:tool_call>"],
            &[Body::Tagged(&tagged::MINIMAX)],
        )],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::DeepSeekV32,
        name: "deepseek-v3.2",
        templates: &[&["｜DSML｜"]],
        calls: &[
            marked(
                &["<｜DSML｜tool_calls>"],
                &["</｜DSML｜tool_calls>"],
                &[Body::Tagged(&tagged::DSML)],
            ),
            marked(
                &["<｜DSML｜function_calls>"],
                &["</｜DSML｜function_calls>"],
                &[Body::Tagged(&tagged::DSML)],
            ),
        ],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::DeepSeek,
        name: "deepseek",
        templates: &[&["<｜tool▁call▁begin｜>"]],
        calls: &[marked(
            &["<｜tool▁call▁begin｜>"],
            &["<｜tool▁call▁end｜>"],
            &[Body::Named(named::deepseek)],
        )],
        silent: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Gemma4,
        name: "gemma-4",
        templates: &[&["<|tool_call>call:"]],
        calls: &[marked(&["<|tool_call>"], &["<tool_call|>"], &[Body::Gemma])],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Hunyuan,
        name: "hunyuan",
        templates: &[&["':opensource'", "<arg_key{}>"]],
        calls: &[marked(
            &["<tool_call:opensource>"],
            &["</tool_call:opensource>"],
            &[Body::Tagged(&tagged::HUNYUAN)],
        )],
        silent: &["<tool_calls:opensource>", "</tool_calls:opensource>"],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Glm,
        name: "glm",
        templates: &[&["<arg_key>"]],
        calls: &[marked(
            &["<tool_call>"],
            &["</tool_call>"],
            &[Body::Tagged(&tagged::GLM)],
        )],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::SeedOss,
        name: "seed-oss",
        templates: &[&["<seed:tool_call>"]],
        calls: &[marked(
            &["<seed:tool_call>"],
            &["</seed:tool_call>"],
            &[Body::Tagged(&tagged::SEED)],
        )],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Qwen3Coder,
        name: "qwen3-coder",
        templates: &[&["<function=", "<parameter="]],
        calls: &[
            marked(
                &["<tool_call>"],
                &["</tool_call>"],
                &[
                    Body::Tagged(&tagged::QWEN3_CODER),
                    Body::Json(Shape::NameAndArguments),
                ],
            ),
            // The model at times leaves out the first mark.
            marked(
                &["<function="],
                &["</function>\n</tool_call>", "</function>"],
                &[Body::Tagged(&tagged::QWEN3_CODER_BARE)],
            ),
        ],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::FunctionaryV31,
        name: "functionary-v3.1",
        templates: &[&["<function="]],
        calls: &[
            marked(
                &["<function="],
                &["</function>"],
                &[Body::Named(named::functionary)],
            ),
            PYTHON_TAG,
        ],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Mistral,
        name: "mistral",
        templates: &[&["[TOOL_CALLS]"]],
        calls: &[CallSyntax {
            open: &["[TOOL_CALLS]"],
            close: &[],
            end: End::Value,
            bodies: &[
                Body::Json(Shape::NameAndArguments),
                Body::Named(named::mistral),
            ],
        }],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::CommandR,
        name: "command-r",
        templates: &[&["<|START_ACTION|>"]],
        calls: &[marked(&["<|START_ACTION|>"], &["<|END_ACTION|>"], JSON)],
        silent: &[
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Solar,
        name: "solar",
        templates: &[&["<|tool_call:begin|>"]],
        calls: &[marked(
            &["<|tool_call:begin|>"],
            &["<|tool_call:end|>"],
            &[Body::Named(named::solar)],
        )],
        silent: &[
            "<|begin|>assistant",
            "<|tool_calls|>",
            "<|calls|>",
            "<|content|>",
            "<|end|>",
        ],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Lfm2,
        name: "lfm2",
        templates: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"]],
        calls: &[marked(
            &["<|tool_call_start|>"],
            &["<|tool_call_end|>"],
            &[Body::Python],
        )],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Apertus,
        name: "apertus",
        templates: &[&["<|tools_prefix|>"]],
        calls: &[marked(
            &["<|tools_prefix|>"],
            &["<|tools_suffix|>"],
            &[Body::Json(Shape::NameIsKey)],
        )],
        ends_reasoning: true,
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Nemotron,
        name: "nemotron",
        templates: &[&["<TOOLCALL>"]],
        calls: &[marked(&["<TOOLCALL>"], &["</TOOLCALL>"], JSON)],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::ToolCallsTag,
        name: "tool-calls-tag",
        templates: &[&["<tool_calls>"]],
        calls: &[marked(&["<tool_calls>"], &["</tool_calls>"], JSON)],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::GigaChat,
        name: "gigachat",
        templates: &[
            &["<|function_call|>"],
            &["function call", "<|role_sep|>", "<|message_sep|>"],
        ],
        calls: &[CallSyntax {
            open: &["<|function_call|>", "function call<|role_sep|>"],
            close: &[],
            end: End::Value,
            bodies: JSON,
        }],
        silent: &["<|message_sep|>"],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Granite,
        name: "granite",
        templates: &[&["<|tool_call|>"]],
        calls: &[CallSyntax {
            open: &["<|tool_call|>"],
            close: &[],
            end: End::Value,
            bodies: JSON,
        }],
        silent: &["<|/tool_call|>"],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Hermes,
        name: "hermes",
        templates: &[&["<tool_call>"]],
        calls: &[marked(
            &["<tool_call>"],
            &["</tool_call>"],
            &[
                Body::Json(Shape::NameAndArguments),
                Body::Tagged(&tagged::QWEN3_CODER),
            ],
        )],
        ..PLAIN
    },
    Family {
        format: ToolCallFormat::Llama3,
        name: "llama-3",
        templates: &[
            &["<|python_tag|>"],
            &["<|start_header_id|>ipython", "\"parameters\""],
        ],
        calls: &[PYTHON_TAG],
        bare: true,
        ..PLAIN
    },
];

/// Marks around the answer itself, which some models write behind their reasoning, and what their
/// templates have in them.
pub(super) const FRAMES: &[(&str, &[&str])] = &[
    ("<response></response>", &["<response>", "</response>"]),
    ("[BEGIN FINAL RESPONSE]", &["[END FINAL RESPONSE]"]),
];
