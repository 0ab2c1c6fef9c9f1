//! Errors of loading and rendering chat templates.

use autoplace_planner::gguf;

use super::jinja::Limit;

/// A chat template is missing, or it made no prompt. `line` is a line of the template's source, counted from 1; 0
/// stands for the whole template.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// The model ships no chat template. If the header was parsed from memory, `file` is `<memory>`.
    #[error(
        "{file} has no chat template (`tokenizer.chat_template`): give one as text with `ChatTemplate::new`, or name its family with \
         `ChatTemplate::family`, one of {}",
        super::FAMILIES.join(", ")
    )]
    NoTemplate { file: String },
    /// The model ships no variant with that name.
    #[error("there is no chat template `{name}`, only {known}")]
    NoVariant { name: String, known: String },
    /// No family has that name.
    #[error(
        "there is no family of chat templates `{name}`, only {}",
        super::FAMILIES.join(", ")
    )]
    UnknownFamily { name: String },
    /// The header is invalid.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The template's source has a syntax error.
    #[error("the chat template is wrong in line {line}: {reason}")]
    Syntax { line: u32, reason: String },
    /// The template called `raise_exception` to refuse the conversation.
    #[error("the chat template refuses the conversation: {reason}")]
    Refused { reason: String },
    /// The template failed while rendering.
    #[error("the chat template failed in line {line}: {reason}")]
    Failed { line: u32, reason: String },
    /// The template exceeded one of its [`Limits`](super::Limits).
    #[error("the chat template was stopped at {limit} (line {line})")]
    Limit { limit: Limit, line: u32 },
    /// The conversation has tools, but the template does not show them, and
    /// [`describe_tools`](super::ChatTemplate::describe_tools) is off. So the model would not know that there are
    /// tools.
    #[error(
        "the chat template shows no tools, so the model would not know the {tools} given: describe them in the system message \
         (`describe_tools`, the default), use another template (`chat_with`, `--template FILE`) or a model whose own template shows tools \
         (Qwen 2.5 and 3, Llama 3.1 and later, Mistral Small 3, gpt-oss, Granite 3 and 4), or leave the tools out; none of the built-in \
         families ({}) shows tools",
        super::FAMILIES.join(", ")
    )]
    ToolsNotShown { tools: usize },
    /// The prompt must show each picture and each sound once, but the template leaves out some of them or shows some
    /// twice.
    #[error(
        "the chat template does not show every image and sound once: the messages have {media}, and the prompt has {shown}; use another \
         template (`chat_with`, `--template FILE`)"
    )]
    MediaNotShown { media: usize, shown: usize },
    /// The model should continue the last message, but the template shows this message in a changed form.
    #[error("the last message cannot be continued: {reason}")]
    Continue { reason: &'static str },
}
