//! A conversation with a model: its history, and the prompts that the chat template renders from it.

use llama_sys::{Token, Vocab};
use serde_json::{Map, Value};

use super::tool_choice::ToolChoice;
use super::window::{ChatFull, Window};
use crate::chat::{
    ChatTemplate, Content, Conversation, Media, Message, PromptPart, Rendered, ReplyFormat, ReplyParser, Role, Tool,
    ToolCall,
};
use crate::decode::constraint::Constraint;
use crate::decode::context::Room;
use crate::decode::error::Error;
use crate::decode::media::Layout;
use crate::decode::prompt::Prompt;
use crate::decode::request::GenerateRequest;
use crate::load::{self, Model};
use crate::run::engine::Engine;
use crate::run::token_stream::TokenStream;

/// A conversation with a model: the messages so far, and the settings for the answers.
///
/// For each answer, the history is rendered with the model's own template. Tokens that the context still holds are not
/// computed again. The tokens of an answer stay as they were generated, even if the text of the answer would be
/// tokenized differently.
///
/// ```no_run
/// use autoplace::{Model, ReplyPart};
/// let mut chat = Model::load("model.gguf")?.chat()?.system("Be brief.").temp(0.2);
/// let text = chat.say("Why is the sky blue?")?.text()?; // the whole answer
/// for part in chat.say("And at night?")? {
///     // ... or piece by piece
///     if let ReplyPart::Content(text) = part? {
///         print!("{text}");
///     }
/// }
/// # Ok::<(), autoplace::Error>(())
/// ```
///
/// A clone is an independent conversation. The two conversations share the cells of their common history.
#[derive(Debug, Clone)]
#[must_use]
pub struct Chat {
    /// A request with the settings of the answers. For each answer, a copy of it gets the prompt.
    pub(super) generate: GenerateRequest,
    /// The engine that generates the answers. `None` if the chat generates each answer with a stream of its own.
    engine: Option<Engine>,
    template: ChatTemplate,
    /// Overrides the reply format of the template.
    pub(super) format: Option<ReplyFormat>,
    pub(crate) messages: Vec<Message>,
    pub(super) window: Window,
    tools: Vec<Tool>,
    pub(super) tool_choice: ToolChoice,
    variables: Map<String, Value>,
    pub(super) known: Option<Known>,
}

/// A text and the tokens that were computed for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    text: String,
    layout: Layout,
}

impl Known {
    /// Whether the rendering begins with the known text and with its pictures and sounds. `media` are the pictures and
    /// sounds of the messages that are shown to the model. The pictures are compared because the same text may contain
    /// another picture after the oldest turns were left out.
    fn begins(&self, rendered: &Rendered, media: &[&Media]) -> bool {
        if !rendered.as_str().starts_with(&self.text) {
            return false;
        }
        let mut end = 0;
        let parts = rendered.parts().take_while(|part| {
            end += part.as_str().len();
            end <= self.text.len()
        });
        let shown = parts.filter_map(|part| match part {
            PromptPart::Media(index, _) => Some(media.get(index).map(|media| media.hash())),
            _ => None,
        });
        shown.eq(self.layout.spans.hashes().map(Some))
    }
}

impl Model {
    /// Begins a conversation with the chat template of the model.
    ///
    /// # Errors
    ///
    /// [`Error::Template`] if the model has no template or an invalid one ([`chat_with`](Self::chat_with) accepts
    /// another template); [`Error::Load`] if the model's file cannot be read.
    pub fn chat(&self) -> Result<Chat, Error> {
        Ok(self.chat_with(ChatTemplate::from_header(self.header().map_err(load::Error::from)?)?))
    }

    /// Begins a conversation with another template.
    pub fn chat_with(&self, template: ChatTemplate) -> Chat {
        Chat::new(self.generate(""), template)
    }
}

impl Engine {
    /// Begins a conversation with the chat template of the model. Many conversations can run at once, because this
    /// engine generates the answers of all of them. A request for an answer waits while the engine's queue is full.
    ///
    /// ```no_run
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// let engine = autoplace::generate::Engine::new(&model)?;
    /// let (mut one, mut other) = (engine.chat()?, engine.chat()?);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || one.say("Why is the sky blue?")?.finish());
    ///     scope.spawn(move || other.say("Why is grass green?")?.finish());
    /// });
    /// # Ok::<(), autoplace::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Model::chat`].
    pub fn chat(&self) -> Result<Chat, Error> {
        Ok(self.model().chat()?.on(self.clone()))
    }

    /// Begins a conversation with another template.
    pub fn chat_with(&self, template: ChatTemplate) -> Chat {
        self.model().chat_with(template).on(self.clone())
    }
}

impl Chat {
    pub(crate) fn new(generate: GenerateRequest, template: ChatTemplate) -> Self {
        Self {
            // The marks of reasoning and of calls are control tokens in many vocabularies.
            generate: generate.special(true).cache_prompt(true),
            engine: None,
            template,
            format: None,
            messages: Vec::new(),
            window: Window::default(),
            tools: Vec::new(),
            tool_choice: ToolChoice::default(),
            variables: Map::new(),
            known: None,
        }
    }

    pub(crate) fn on(self, engine: Engine) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// Sets the system message at the beginning of the history.
    pub fn system(mut self, content: impl Into<String>) -> Self {
        let message = Message::system(content);
        match self.messages.first_mut() {
            Some(first) if first.role == message.role => *first = message,
            _ => self.messages_mut().insert(0, message),
        }
        self
    }

    /// Changes how answers are generated, with any method of [`GenerateRequest`].
    ///
    /// ```no_run
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// let chat = model.chat()?.with(|generate| generate.repeat_penalty(1.1).logprobs(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// An answer under a constraint consists only of content, so the chat turns reasoning off (`enable_thinking`). A
    /// [`variable`](Self::variable) or a [`reply_format`](Self::reply_format) overrides this.
    pub fn with(mut self, settings: impl FnOnce(GenerateRequest) -> GenerateRequest) -> Self {
        self.generate = settings(self.generate);
        self
    }

    /// The temperature of the answers: see [`GenerateRequest::temp`].
    #[doc(alias = "temperature")]
    pub fn temp(self, temp: f32) -> Self {
        self.with(|generate| generate.temp(temp))
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`: see [`GenerateRequest::top_p`].
    pub fn top_p(self, p: f32) -> Self {
        self.with(|generate| generate.top_p(p))
    }

    /// Keeps the `k` likeliest tokens: see [`GenerateRequest::top_k`].
    pub fn top_k(self, k: u32) -> Self {
        self.with(|generate| generate.top_k(k))
    }

    /// Keeps tokens at least `p` times as likely as the likeliest: see [`GenerateRequest::min_p`].
    pub fn min_p(self, p: f32) -> Self {
        self.with(|generate| generate.min_p(p))
    }

    /// The seed of the random choices: see [`GenerateRequest::seed`].
    pub fn seed(self, seed: u32) -> Self {
        self.with(|generate| generate.seed(seed))
    }

    /// Ends each answer after `n` tokens: see [`GenerateRequest::max_tokens`].
    #[doc(alias = "n_predict")]
    #[doc(alias = "num_predict")]
    #[doc(alias = "max_new_tokens")]
    pub fn max_tokens(self, n: usize) -> Self {
        self.with(|generate| generate.max_tokens(n))
    }

    /// Ends each answer just before the point where `text` would appear: see [`GenerateRequest::stop`].
    #[doc(alias = "stop_sequence")]
    #[doc(alias = "antiprompt")]
    #[doc(alias = "reverse_prompt")]
    pub fn stop(self, text: impl Into<String>) -> Self {
        self.with(|generate| generate.stop(text))
    }

    /// Sets the tools that the model may call. A call arrives as
    /// [`ReplyPart::ToolCall`](crate::chat::ReplyPart::ToolCall); [`tool_result`](Self::tool_result) adds its result.
    pub fn tools(mut self, tools: impl Into<Vec<Tool>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// Decides whether the model answers a user message with a tool call. After the result of a call, the model chooses
    /// freely again. Default: the model chooses.
    ///
    /// A forced call is generated as JSON of the tool's schema, without reasoning (`enable_thinking`), and is
    /// parsed as a call.
    #[cfg(feature = "constraints")]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Sets a variable of the template, such as `enable_thinking`, `reasoning_effort` or `documents`.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Parses answers by this format instead of the template's format.
    pub fn reply_format(mut self, format: ReplyFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Decides which messages the model gets when the context has no room for all of them. Default: the oldest turns
    /// are left out, and the system message stays.
    pub fn when_full(mut self, when_full: ChatFull) -> Self {
        self.window.when_full = when_full;
        self
    }

    /// Messages that are no longer shown to the model, because the context has no room for them.
    pub fn forgotten(&self) -> &[Message] {
        self.window.forgotten(&self.messages)
    }

    /// Number of tokens in the prompt of the next answer, including the tokens of its pictures and sounds.
    ///
    /// # Errors
    ///
    /// [`Error::Template`], [`Error::Load`] for a model that is not loaded, and [`Error::NoProjector`].
    pub fn prompt_tokens(&self) -> Result<usize, Error> {
        let prompt = self.prompt(&self.rendered()?);
        self.generate.model.count_tokens(prompt)
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages so far, for editing. After an edit, the chat decides again which messages the model gets if the
    /// context is full. The context keeps the tokens before the first edit. But if the text of the last answer before
    /// this edit would be tokenized differently, the tokens of that answer are not kept.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        self.window.from = 0;
        &mut self.messages
    }

    /// Adds a message without requesting an answer.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Adds the result of a tool call without requesting an answer, because one answer may contain several calls.
    pub fn tool_result(&mut self, call: &ToolCall, content: impl Into<Content>) {
        self.push(Message::tool(call, content));
    }

    pub(crate) fn begin(&mut self) -> Result<(TokenStream, Asked), Error> {
        let before = self.window;
        self.begin_within().inspect_err(|_| self.window = before)
    }

    /// Leaves out the oldest turns until the prompt fits, and requests the answer.
    fn begin_within(&mut self) -> Result<(TokenStream, Asked), Error> {
        let drops = self.window.when_full == ChatFull::DropOldest;
        let all = self.forgotten().len();
        let n_ctx = Room::new(&self.generate.model.placement().context).each;
        // Reserves `max_tokens` for the answer, but at most a quarter of the context.
        let mut most = n_ctx - self.generate.spec.limits.max_tokens.min(n_ctx / 4);
        let (asked, text) = loop {
            let asked = self.ask()?;
            let is_long = drops && asked.known.layout.tokens.len() > most;
            let text = (!is_long).then(|| asked.text(self));
            let is_too_long = matches!(text, None | Some(Err(Error::PromptTooLong { .. })));
            if !(drops && is_too_long && self.window.narrow(&self.messages)) {
                let text = text.unwrap_or_else(|| asked.text(self));
                break (asked, text);
            }
            most = n_ctx / 2;
        };
        let forgotten = self.forgotten().len();
        if text.is_ok() && forgotten > all {
            tracing::warn!(
                target: "autoplace::generate",
                forgotten,
                messages = self.messages.len(),
                n_ctx,
                "the context is full: the model is no longer shown the oldest messages of the chat"
            );
        }
        Ok((text?, asked))
    }

    fn ask(&self) -> Result<Asked, Error> {
        if !self.tools.is_empty() && !self.template.supports_tools() {
            tracing::info!(
                target: "autoplace::generate",
                "the chat template shows no tools: the system message describes them"
            );
        }
        let rendered = self.rendered()?;
        let (constraint, format) = match (self.forced()?, &self.format) {
            (Some((constraint, format)), _) => (Some(constraint), format),
            (None, Some(format)) => (None, format.clone()),
            (None, None) if self.generate.spec.constraint.is_some() => (None, ReplyFormat::plain()),
            (None, None) => (None, self.template.reply_format(!self.tools.is_empty())),
        };
        let callable: &[Tool] = if self.tool_choice.forbids_calls() { &[] } else { &self.tools };
        let parser = ReplyParser::new(&format).after_prompt(rendered.as_str()).with_tools(callable);
        let prompt = self.prompt(&rendered);
        if self.generate.model.is_in_worker() && prompt.has_media() {
            // Only the worker knows the tokens of pictures. The worker finds out by itself which tokens its context
            // holds already.
            return Ok(Asked { known: Known::default(), prompt: Some(prompt), parser, constraint });
        }
        let layout = self.generate.model.lay_out(&prompt)?;
        let known = Known { text: rendered.into_string(), layout };
        Ok(Asked { known, prompt: None, parser, constraint })
    }

    /// The constraint and the reply format that force a tool call, if the next answer must be a call.
    fn forced(&self) -> Result<Option<(Constraint, ReplyFormat)>, Error> {
        match self.messages.last() {
            Some(last) if last.role == Role::TOOL => Ok(None),
            _ => self.tool_choice.forced(&self.tools, self.generate.spec.constraint.as_ref()),
        }
    }

    /// Renders the prompt of the next answer with the template.
    ///
    /// # Errors
    ///
    /// [`Error::Template`]; [`Error::Constraint`] when the tool choice names an unknown tool.
    pub fn rendered(&self) -> Result<Rendered, Error> {
        let shown = self.window.shown(&self.messages);
        let mut conversation = Conversation::new(&shown).tools(&self.tools);
        if self.forced()?.is_some() || self.generate.spec.constraint.is_some() {
            conversation = conversation.variable("enable_thinking", false);
        }
        for (name, value) in &self.variables {
            conversation = conversation.variable(name, value.clone());
        }
        Ok(self.template.render(&conversation)?)
    }

    /// The prompt for a rendered history: the known tokens of its beginning, and the rest as text.
    fn prompt(&self, rendered: &Rendered) -> Prompt {
        let shown = self.window.shown(&self.messages);
        let media: Vec<&Media> =
            shown.iter().flat_map(|message| &message.media).map(|attached| &attached.media).collect();
        let known = self.known.as_ref().filter(|known| known.begins(rendered, &media));
        match known {
            Some(Known { text, layout }) => {
                let begin = Prompt::from_layout(&layout.tokens, &layout.spans);
                begin.then_rendered(rendered, text.len(), &media)
            }
            None => Prompt::rendered(rendered, &shown),
        }
    }

    /// Keeps the tokens of the prompt and of the answer for the next prompt. If the tokens of the answer do not spell
    /// the answer's text, for example because a stop string was cut off, only the tokens of the prompt are kept.
    pub(crate) fn remember(&mut self, mut said: Known, text: &str, tokens: &[Token]) {
        let mut bytes = Vec::with_capacity(text.len());
        let mut spell = |vocab: &Vocab| tokens.iter().all(|token| vocab.append_piece(*token, true, &mut bytes).is_ok());
        if said.layout.tokens.is_empty() {
            self.known = None;
            return;
        }
        if matches!(self.generate.model.with_vocab(&mut spell), Ok(true)) && bytes == text.as_bytes() {
            said.text.push_str(text);
            said.layout.tokens.extend_from_slice(tokens);
        }
        self.known = Some(said);
    }
}

/// A prompt for an answer.
pub(crate) struct Asked {
    pub(crate) known: Known,
    /// The prompt, if its tokens are not known in this process.
    prompt: Option<Prompt>,
    pub(crate) parser: ReplyParser,
    constraint: Option<Constraint>,
}

impl Asked {
    fn text(&self, chat: &Chat) -> Result<TokenStream, Error> {
        let Layout { tokens, spans } = &self.known.layout;
        let prompt = self.prompt.clone().unwrap_or_else(|| Prompt::from_layout(tokens, spans));
        let mut generate = chat.generate.clone().prompt(prompt);
        if self.constraint.is_some() {
            generate = generate.special(false);
            generate.spec.constraint.clone_from(&self.constraint);
        }
        match &chat.engine {
            Some(engine) => engine.submit(generate),
            None => generate.stream(),
        }
    }
}
