//! The verb `template`: what a model would see of a conversation.

use std::error::Error;
use std::io::{BufRead, BufWriter, Write, stdin, stdout};
use std::path::Path;

use autoplace::chat::{ChatTemplate, Conversation, LocalTime, SpecialTokens};
use autoplace::gguf::Header;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::args::TemplateArgs;

/// One rendering, or as many as are asked for on stdin.
pub(crate) fn run(args: &TemplateArgs) -> Result<String, Box<dyn Error>> {
    let mut template = args.model.as_deref().map(open).transpose()?;
    if let Some(name) = &args.name {
        template = template.map(|of_model| of_model.variant(name)).transpose()?;
    }
    if args.batch {
        batch(template.as_ref())?;
        return Ok(String::new());
    }
    let messages = match &args.messages {
        Some(file) => read(file)?,
        None => vec![
            json!({"role": "system", "content": "You are a helpful assistant."}),
            json!({"role": "user", "content": "Why is the sky blue?"}),
            json!({"role": "assistant", "content": "Air scatters blue light most."}),
            json!({"role": "user", "content": "And at sunset?"}),
        ],
    };
    let request = Request {
        messages,
        tools: args.tools.as_deref().map(read).transpose()?,
        add_generation_prompt: !args.no_generation_prompt,
        variables: args.set.iter().cloned().collect(),
        ..Request::default()
    };
    render(request, template.as_ref())
}

/// The template that a model ships, or that a text file is.
fn open(path: &Path) -> Result<ChatTemplate, Box<dyn Error>> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        return Ok(ChatTemplate::from_header(&Header::open(path)?)?);
    }
    let source = text(path)?;
    // Without a vocabulary, the tokens that most models have.
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let special = special.map(|(name, token)| (name.to_owned(), token.to_owned()));
    Ok(ChatTemplate::new(&source, special.into())?)
}

fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    serde_json::from_str(&text(path)?).map_err(|error| crate::in_file(path, error))
}

/// What is rendered: a line of `--batch`, or what the arguments say.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// A template's source, instead of the model's.
    template: Option<String>,
    #[serde(default)]
    special_tokens: SpecialTokens,
    /// Texts of control tokens, instead of the special tokens.
    control_tokens: Option<Vec<String>>,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    variables: Map<String, Value>,
    /// Year, month, day, hour, minute, second.
    now: Option<(i16, i8, i8, i8, i8, i8)>,
}

fn batch(of_model: Option<&ChatTemplate>) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(stdout().lock());
    for line in stdin().lock().lines() {
        let request = serde_json::from_str(&line?).map_err(Into::into);
        let answer = match request.and_then(|request| render(request, of_model)) {
            Ok(text) => json!({"text": text}),
            Err(error) => json!({"error": error.to_string()}),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn render(request: Request, of_model: Option<&ChatTemplate>) -> Result<String, Box<dyn Error>> {
    let mut template = match (request.template, of_model) {
        (Some(source), _) => ChatTemplate::new(&source, request.special_tokens)?,
        (None, Some(template)) => template.clone(),
        (None, None) => return Err("there is neither a model nor a template".into()),
    };
    if let Some(texts) = request.control_tokens {
        template = template.with_control_tokens(texts);
    }
    let mut conversation =
        Conversation::from_json(request.messages).add_generation_prompt(request.add_generation_prompt);
    if request.continue_final_message {
        conversation = conversation.continue_final_message();
    }
    if let Some(tools) = request.tools {
        conversation = conversation.tools_json(tools);
    }
    if let Some(documents) = request.documents {
        conversation = conversation.documents(documents);
    }
    for (name, value) in request.variables {
        conversation = conversation.variable(name, value);
    }
    if let Some((year, month, day, hour, minute, second)) = request.now {
        let now = LocalTime::new(year, month, day, hour, minute, second);
        conversation = conversation.at(now.ok_or("there is no such date")?);
    }
    Ok(template.render(&conversation)?.into_string())
}
