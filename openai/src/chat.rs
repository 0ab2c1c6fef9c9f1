//! A request for an answer in a conversation.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::choice::Reading;
use super::error::{ApiError, check_length};
use super::message::{messages, tools};
use super::options::{Options, sampling};
use super::reading;
use autoplace::chat::{self, ChatTemplate, Conversation, ReplyFormat, ReplyParser};
use autoplace::generate::{Generate, Prompt};
use autoplace::load::Model;

/// The parameters of the endpoint that are its own, but for messages, tools and what becomes a tree.
#[derive(Debug, Deserialize)]
struct ChatBody {
    parallel_tool_calls: Option<bool>,
    #[serde(default)]
    logprobs: bool,
    #[serde(default)]
    top_logprobs: usize,
    reasoning_effort: Option<String>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
}

/// What an answer is generated and read by.
pub(super) struct ChatRequest {
    pub(super) options: Options,
    pub(super) generate: Generate,
    format: ReplyFormat,
    rendered: String,
    tools: Vec<chat::Tool>,
    one_call: bool,
}

impl ChatRequest {
    pub(super) fn read(
        body: &[u8],
        model: &Model,
        template: Result<&ChatTemplate, &chat::Error>,
    ) -> Result<Self, ApiError> {
        let body = reading::object(body)?;
        const REFUSED: [&str; 5] = ["audio", "functions", "function_call", "prediction", "web_search_options"];
        body.refuse(&REFUSED.map(|name| (name, "false")))?;
        let mut options = Options::read(&body)?;
        let chat: ChatBody = body.part()?;
        let template = template.map_err(|error| ApiError::of_template(error, "messages"))?;
        let (shown, tools, choice) = tools(&body)?;
        let source = template.source_for(!tools.is_empty()).unwrap_or_default();
        let (messages, parts) = messages(&body, source.contains("developer"))?;
        let context = model.placement().context.n_ctx_seq();
        // Rendering takes several times their size.
        check_length(messages.iter().map(|it| it.content.len()).sum(), context as usize, "messages")?;

        let mut conversation = Conversation::new(&messages);
        for (index, parts) in parts {
            conversation = conversation.parts(index, parts);
        }
        if !shown.is_empty() {
            conversation = conversation.tools_json(shown);
        }
        if chat.continue_final_message {
            conversation = conversation.continue_final_message();
        }
        if let Some(add) = chat.add_generation_prompt {
            conversation = conversation.add_generation_prompt(add);
        }
        let constraint = options.constraint.take();
        // A text that is held to a form from its beginning has no marks to read, but for a call.
        let forced = choice
            .forced(&tools, constraint.as_ref())
            .map_err(|error| ApiError::invalid("tool_choice", error.to_string()))?;
        let (constraint, format) = match (forced, constraint) {
            (Some((constraint, format)), _) => (Some(constraint), format),
            (None, Some(_)) if !tools.is_empty() => {
                let message =
                    "an answer that is held to a form cannot call `tools`: `tool_choice` \"none\" leaves them out";
                return Err(ApiError::unsupported("response_format", message));
            }
            (None, Some(constraint)) => (Some(constraint), ReplyFormat::plain()),
            (None, None) => (None, template.reply_format(!tools.is_empty())),
        };
        // A form has no room for a thought: a model that would begin with one is told so.
        if constraint.is_some() || chat.reasoning_effort.as_deref() == Some("none") {
            conversation = conversation.variable("enable_thinking", false);
        }
        if let Some(effort) = chat.reasoning_effort {
            conversation = conversation.variable("reasoning_effort", effort);
        }
        let variables: Option<Map<String, Value>> = body.tree("chat_template_kwargs")?;
        for (name, value) in variables.unwrap_or_default() {
            conversation = conversation.variable(name, value);
        }
        let rendered = template.render(&conversation).map_err(|error| ApiError::of_template(&error, "messages"))?;
        let prompt = Prompt::from(&rendered);
        let rendered = rendered.into_string();
        check_length(rendered.len(), context as usize, "messages")?;
        let sampling = sampling(&model.sampling(), &body, context)?;
        let mut generate = model.generate(prompt).special(constraint.is_none()).sampling(sampling);
        options.constraint = constraint;
        if chat.logprobs {
            generate = generate.logprobs(chat.top_logprobs);
        }
        Ok(Self { options, generate, format, rendered, tools, one_call: chat.parallel_tool_calls == Some(false) })
    }

    /// How an answer is read.
    pub(super) fn reading(&self) -> Reading {
        let parser = ReplyParser::new(&self.format).after_prompt(&self.rendered).with_tools(&self.tools);
        Reading::Chat { parser: Box::new(parser), one_call: self.one_call }
    }
}
