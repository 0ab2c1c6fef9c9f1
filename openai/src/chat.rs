//! Requests for an answer in a conversation.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::called::{self, CallCheck, Plan};
use super::choice::Reading;
use super::error::{ApiError, check_length};
use super::form;
#[cfg(feature = "media")]
use super::media::Reserved;
use super::media::Seen;
use super::message::{messages, tools};
use super::options::{Options, sampling};
use super::parameters;
use super::reading::{self, Body};
use autoplace::chat::{self, ChatTemplate, Conversation, ReplyFormat, ReplyParser};
use autoplace::generate::{Constraint, GenerateRequest, Prompt, Sampling};
use autoplace::load::Model;

/// The endpoint's own parameters, but not messages, tools, and parameters that are parsed to trees of JSON values.
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

/// A parsed request: how to generate and parse the answer.
pub(super) struct ChatRequest {
    pub(super) options: Options,
    pub(super) generate: GenerateRequest,
    format: ReplyFormat,
    is_either: bool,
    rendered: String,
    pub(super) prompt: Prompt,
    /// The tools that may be called.
    tools: Vec<chat::Tool>,
    check: CallCheck,
    one_call: bool,
    /// Keywords of tool schemas that are not enforced in calls.
    pub(super) unenforced: Vec<String>,
    /// The places of the request's pictures and sounds, in order.
    pub(super) media: Vec<String>,
    /// The memory that is reserved for the request's pictures and sounds.
    #[cfg(feature = "media")]
    pub(super) reserved: Reserved,
}

impl ChatRequest {
    pub(super) fn read(
        body: &[u8],
        (model, own): (&Model, &Sampling),
        template: Result<&ChatTemplate, &chat::Error>,
        seen: Seen<'_>,
    ) -> Result<Self, ApiError> {
        let body = reading::with_integers(body);
        let body = reading::object(&body)?;
        Self::new(&body, (model, own), template, seen).map_err(|error| reading::in_its_words(error, body.aliases()))
    }

    fn new(
        body: &Body<'_>,
        (model, own): (&Model, &Sampling),
        template: Result<&ChatTemplate, &chat::Error>,
        seen: Seen<'_>,
    ) -> Result<Self, ApiError> {
        parameters::check(body, true)?;
        let mut options = Options::read(body)?;
        let chat: ChatBody = body.part()?;
        let template = template.map_err(|error| ApiError::of_template(error, "messages"))?;
        let tools = tools(body)?;
        let source = template.source_for(!tools.typed.is_empty()).unwrap_or_default();
        let (messages, parts) = messages(body, source.contains("developer"), &seen)?;
        let context = model.placement().context.n_ctx_seq();
        // Rendering needs several times as much memory as the messages.
        check_length(messages.iter().map(|message| message.content.len()).sum(), context as usize, "messages")?;

        let mut conversation = Conversation::new(&messages);
        for (index, parts) in parts {
            conversation = conversation.parts(index, parts);
        }
        // If the template cannot show tools, that is an error only if a tool may be called.
        if !tools.shown.is_empty() && (template.presents_tools() || tools.callable().next().is_some()) {
            conversation = conversation.tools_json(tools.shown.clone());
        }
        if chat.continue_final_message {
            conversation = conversation.continue_final_message();
        }
        if let Some(add) = chat.add_generation_prompt {
            conversation = conversation.add_generation_prompt(add);
        }
        let format = template.reply_format(!tools.typed.is_empty());
        let Plan { constraint, format, is_either, may_think, unenforced } =
            called::plan(&tools, options.constraint.take(), format, form::is_open(body)?)?;
        // With a constrained form the model cannot reason first, so the template must suppress reasoning.
        if !may_think || chat.reasoning_effort.as_deref() == Some("none") {
            conversation = conversation.variable("enable_thinking", false);
        }
        if let Some(effort) = chat.reasoning_effort {
            conversation = conversation.variable("reasoning_effort", effort);
        }
        if let Some(documents) = body.tree("documents")? {
            conversation = conversation.documents(documents);
        }
        let variables: Option<Map<String, Value>> = body.tree("chat_template_kwargs")?;
        for (name, value) in variables.unwrap_or_default() {
            conversation = conversation.variable(name, value);
        }
        let rendered = template.render(&conversation).map_err(|error| ApiError::of_template(&error, "messages"))?;
        let prompt = Prompt::rendered(&rendered, &messages);
        let rendered = rendered.into_string();
        check_length(rendered.len(), context as usize, "messages")?;
        let sampling = sampling(own, body, context)?;
        let has_marks = constraint.as_ref().is_none_or(Constraint::has_marks);
        let mut generate = model.generate(prompt.clone()).special(has_marks).sampling(sampling);
        options.constraint = constraint.map(|constraint| constraint.in_header(format.begins_in_header(&rendered)));
        if chat.logprobs {
            generate = generate.logprobs(chat.top_logprobs);
        }
        let check = CallCheck::new(&tools);
        let one_call = chat.parallel_tool_calls == Some(false);
        // Without callable tools, the parser reads no calls. If a limit cuts the name of a call short, the parser
        // completes it to the name of one of these tools.
        let tools = tools.callable().map(|(_, tool, _)| tool.clone()).collect();
        Ok(Self {
            options,
            generate,
            format,
            is_either,
            rendered,
            prompt,
            tools,
            check,
            one_call,
            unenforced,
            media: seen.places(),
            #[cfg(feature = "media")]
            reserved: seen.into_reserved(),
        })
    }

    /// The prompt as text, with its control tokens written out.
    pub(super) fn into_prompt(self) -> String {
        self.rendered
    }

    /// How to parse an answer.
    pub(super) fn reading(&self) -> Reading {
        let parser = ReplyParser::new(&self.format).after_prompt(&self.rendered).with_tools(&self.tools);
        Reading::Chat {
            parser: Box::new(parser),
            one_call: self.one_call,
            is_open: self.is_either,
            is_calls: false,
            check: self.check.clone(),
        }
    }
}
