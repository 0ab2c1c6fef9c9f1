//! Why there is no prompt.

use autoplace_planner::gguf;

use super::jinja::Limit;

/// A chat template cannot be had, or yields no prompt. Lines are those of the template's source, from 1; 0 where it is
/// about the whole.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// The model ships no chat template. `file` is `<memory>` for a header that came from there.
    #[error(
        "{file} has no chat template (`tokenizer.chat_template`): give one as text with `ChatTemplate::new`, or name its family with \
         `ChatTemplate::family`, one of {}",
        super::FAMILIES.join(", ")
    )]
    NoTemplate { file: String },
    /// The model ships no variant of that name.
    #[error("there is no chat template `{name}`, only {known}")]
    NoVariant { name: String, known: String },
    /// No family has that name.
    #[error(
        "there is no family of chat templates `{name}`, only {}",
        super::FAMILIES.join(", ")
    )]
    UnknownFamily { name: String },
    /// The header could not be read as it claims to be.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The template's source is no template.
    #[error("the chat template is wrong in line {line}: {reason}")]
    Syntax { line: u32, reason: String },
    /// The template says that it cannot render this conversation: it called `raise_exception`.
    #[error("the chat template refuses the conversation: {reason}")]
    Refused { reason: String },
    /// The template did something that cannot be done.
    #[error("the chat template failed in line {line}: {reason}")]
    Failed { line: u32, reason: String },
    /// The template takes more than it may: see [`Limits`](super::Limits).
    #[error("the chat template was stopped at {limit} (line {line})")]
    Limit { limit: Limit, line: u32 },
    /// There are tools, the template shows the model none, and they are not to be described in a message
    /// ([`describe_tools`](super::ChatTemplate::describe_tools)): the model could not know of them.
    #[error(
        "the chat template shows no tools, so the model would not know of the {tools} given: let them be described in the system's message \
         (`describe_tools`, the default), use another template of the model's (`chat_with`, `--template FILE`) or a model whose own template \
         shows tools (Qwen 2.5 and 3, Llama 3.1 and later, Mistral Small 3, gpt-oss, Granite 3 and 4), or leave the tools out; of the built-in \
         families ({}) none shows any",
        super::FAMILIES.join(", ")
    )]
    ToolsNotShown { tools: usize },
    /// The last message is to be continued, and the template does not show it as it is.
    #[error("the last message cannot be continued: {reason}")]
    Continue { reason: &'static str },
}
