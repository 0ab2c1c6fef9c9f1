//! The verb `template`: prints a conversation in the form that a model's chat template gives it.

use std::error::Error;
use std::path::{Path, PathBuf};

use autoplace::chat::{self, ChatTemplate, Conversation, FAMILIES};
use autoplace::gguf::{self, Header};
use autoplace::load;
use autoplace::plan::Request;
use serde_json::{Value, json};

use crate::files;
use crate::talk::here;
use crate::terminal::line_to_stderr;

/// The arguments of `template`.
#[derive(Debug, clap::Args)]
pub(crate) struct TemplateArgs {
    /// GGUF file, or a text file with a template's source
    pub(crate) model: PathBuf,
    /// Messages as JSON, in the form of OpenAI's and Hugging Face's interfaces [default: a short conversation]
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: Option<PathBuf>,
    /// Tools as JSON, in the same form
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// The variant of the template, if the model ships several [default: tool_use with tools, else default]
    #[arg(long, value_name = "VARIANT")]
    pub(crate) name: Option<String>,
    /// Sets a variable of the template, as JSON or otherwise text: `enable_thinking=false`; repeat for several
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) set: Vec<(String, Value)>,
    /// Leaves out the beginning of the answer
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,
    /// Refuses tools that the template does not show, instead of describing them in the system message
    #[arg(long)]
    pub(crate) no_tool_descriptions: bool,
}

/// The ends of the errors for files that are not messages or tools.
const MESSAGES: &str = r#"--messages takes a JSON list such as [{"role": "user", "content": "Hi"}]"#;
const TOOLS: &str = r#"--tools takes a JSON list such as [{"type": "function", "function": {"name": "f"}}]"#;

/// Renders the prompt.
pub(crate) fn run(args: &TemplateArgs) -> Result<String, Box<dyn Error>> {
    let mut template = open(&here(&args.model, &Request::new(), || Ok(load::detect()?))?)?;
    if let Some(name) = &args.name {
        template = template.variant(name)?;
    }
    template = template.describe_tools(!args.no_tool_descriptions);
    let messages = match &args.messages {
        Some(file) => files::json(file, MESSAGES)?,
        None => vec![
            json!({"role": "system", "content": "You are a helpful assistant."}),
            json!({"role": "user", "content": "Why is the sky blue?"}),
            json!({"role": "assistant", "content": "Air scatters blue light most."}),
            json!({"role": "user", "content": "And at sunset?"}),
        ],
    };
    let mut conversation = Conversation::from_json(messages).add_generation_prompt(!args.no_generation_prompt);
    if let Some(tools) = &args.tools {
        conversation = conversation.tools_json(files::json(tools, TOOLS)?);
        if !args.no_tool_descriptions && !template.supports_tools() {
            line_to_stderr("the template shows no tools: they are described in the system message");
        }
    }
    for (name, value) in &args.set {
        conversation = conversation.variable(name, value.clone());
    }
    Ok(template.render(&conversation)?.into_string())
}

/// Parses a name and a value. The value is read as JSON. If it is not valid JSON, it is a text.
fn variable(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = value.parse().unwrap_or_else(|_| value.into());
            Ok((name.to_owned(), value))
        }
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

/// The number of bytes of the magic `GGUF`, with which a file begins.
const GGUF_MAGIC_BYTES: u64 = 4;

/// The template that a model contains, or the template in a text file.
fn open(path: &Path) -> Result<ChatTemplate, Box<dyn Error>> {
    let source = match Header::open(path) {
        Err(gguf::Error::NotGguf { .. }) => files::read(path)?,
        // A file that is shorter than the magic cannot be a GGUF file, but it can be a template.
        Err(_) if std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() < GGUF_MAGIC_BYTES) => {
            files::read(path)?
        }
        header => {
            return ChatTemplate::from_header(&header?).map_err(|error| match error {
                chat::Error::NoTemplate { file } => format!("{file} ships no chat template").into(),
                error => error.into(),
            });
        }
    };
    // A text file has no vocabulary. So the special tokens that most models have are used.
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let special = special.map(|(name, token)| (name.to_owned(), token.to_owned()));
    Ok(ChatTemplate::new(&source, special.into())?)
}

/// A template for the model with this header. `name` is the name of a family, a file, or the source of a template.
///
/// # Errors
///
/// An error if `name` is none of these; it lists the families.
pub(crate) fn named(name: &str, header: &Header) -> Result<ChatTemplate, Box<dyn Error>> {
    if FAMILIES.contains(&name) {
        return Ok(ChatTemplate::family(name)?);
    }
    let file = Path::new(name);
    // llama.cpp's --chat-template also accepts the source of a template.
    if !file.exists() && (name.contains("{{") || name.contains("{%")) {
        return Ok(ChatTemplate::from_source(name, header)?);
    }
    let source = files::read(file).map_err(|problem| {
        format!("--template {problem}; there is no family `{name}` either: use {}, or a file", FAMILIES.join(", "))
    })?;
    Ok(ChatTemplate::from_source(&source, header)?)
}
