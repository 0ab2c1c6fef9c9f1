//! A conversation with a model behind an endpoint.

use autoplace::AbortHandle;
use autoplace::chat::{Content, Message, Reply, ReplyPart, Role, Tool, ToolCall};
use autoplace::generate::{Constraint, FinishReason, Statistics, ToolChoice};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::answer::Answer;
use super::generate::value;
use super::{Error, GenerateRequest, Surface, responses, wire};

/// A conversation, like [`autoplace::generate::Chat`]: it consists of the messages so far and the settings for answers.
/// A clone is a separate conversation from then on.
///
/// To continue a local conversation, put its messages into [`messages_mut`](Self::messages_mut). A conversation longer
/// than the server's context is an error ([`Error::is_too_long`]).
#[derive(Debug, Clone)]
#[must_use]
pub struct Chat {
    generate: GenerateRequest,
    messages: Vec<Message>,
    tools: Vec<Tool>,
    tool_choice: ToolChoice,
    variables: Map<String, Value>,
}

impl Chat {
    pub(super) fn new(generate: GenerateRequest) -> Self {
        Self { generate, messages: Vec::new(), tools: Vec::new(), tool_choice: ToolChoice::Auto, variables: Map::new() }
    }

    /// Sets the system message at the beginning.
    pub fn system(mut self, content: impl Into<String>) -> Self {
        let message = Message::system(content);
        match self.messages.first_mut() {
            Some(first) if first.role == message.role => *first = message,
            _ => self.messages.insert(0, message),
        }
        self
    }

    /// Sets the temperature of the answers: see [`GenerateRequest::temp`].
    #[doc(alias = "temperature")]
    pub fn temp(self, temp: f32) -> Self {
        self.with(|generate| generate.temp(temp))
    }

    /// Ends each answer after `n` tokens: see [`GenerateRequest::max_tokens`].
    pub fn max_tokens(self, n: usize) -> Self {
        self.with(|generate| generate.max_tokens(n))
    }

    /// Sets how answers are generated.
    pub fn with(mut self, settings: impl FnOnce(GenerateRequest) -> GenerateRequest) -> Self {
        self.generate = settings(self.generate);
        self
    }

    /// Sets the tools that the model may call. Their results are added with [`tool_result`](Self::tool_result).
    pub fn tools(mut self, tools: impl Into<Vec<Tool>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// Sets whether the model must answer a message with a tool call. After the result of such a call, the model is
    /// free again to call a tool or not. Default: the model is always free.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Sets a variable of the chat template, such as `enable_thinking` (`chat_template_kwargs`: llama.cpp's and vLLM's
    /// addition to the API).
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages so far, which may be changed.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// Adds a message without requesting an answer.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Adds the result of a call. No answer is requested, because there may be more results to add.
    pub fn tool_result(&mut self, call: &ToolCall, content: impl Into<Content>) {
        self.push(Message::tool(call, content));
    }

    /// Keeps only the first `messages` messages.
    pub fn truncate(&mut self, messages: usize) {
        self.messages.truncate(messages);
    }

    /// Adds a user's message and requests an answer. The message is a text, or a list of
    /// [`Part`](autoplace::chat::Part)s. A picture is sent as a PNG file and a sound as a WAV file; both are lossless.
    ///
    /// # Errors
    ///
    /// The errors of [`answer`](Self::answer). On such an error, or if the stream's first item is an error, the message
    /// is removed again.
    pub fn say(&mut self, content: impl Into<Content>) -> Result<ChatStream<'_>, Error> {
        self.push(Message::user(content));
        match self.begin() {
            Ok(answer) => Ok(ChatStream::new(self, answer, true)),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Adds a user's message and requests an answer that is a value of `T`. The schema of `T` is sent to the server.
    /// The history keeps the answer as JSON. Such an answer calls no tool (`tool_choice: "none"`).
    ///
    /// # Errors
    ///
    /// The errors of [`say`](Self::say), the first error of the answer, [`Error::Incomplete`] and [`Error::NotOfType`].
    /// On an error, the message is removed again.
    pub fn say_as<T: DeserializeOwned + JsonSchema>(&mut self, content: impl Into<Content>) -> Result<T, Error> {
        let before = self.messages.len();
        // The prompt still shows the tools, so that its beginning stays the same as in the server's cache.
        let mut asked = Self { tool_choice: ToolChoice::None, ..self.clone() };
        asked.generate = asked.generate.constraint(Constraint::of_type::<T>());
        let mut stream = asked.say(content)?;
        for part in &mut stream {
            part?;
        }
        let content = stream.reply.content.clone();
        let value = value(content, stream.finish_reason())?;
        drop(stream);
        self.messages.extend(asked.messages.drain(before..));
        Ok(value)
    }

    /// Requests an answer to the messages so far. When the answer is complete, it is added to the history. If the
    /// stream is dropped before, the text so far is added.
    ///
    /// # Errors
    ///
    /// [`Error::Inexpressible`] and [`Error::Thread`]. If the server refuses the request, the first item of the stream
    /// is that error.
    pub fn answer(&mut self) -> Result<ChatStream<'_>, Error> {
        let answer = self.begin()?;
        Ok(ChatStream::new(self, answer, false))
    }

    fn begin(&self) -> Result<Answer, Error> {
        let mut body = self.generate.body()?;
        let surface = self.generate.endpoint.surface;
        let answers_a_call = self.messages.last().is_some_and(|last| last.role == Role::TOOL);
        let is_free = answers_a_call && self.tool_choice != ToolChoice::None;
        let choice = if is_free { &ToolChoice::Auto } else { &self.tool_choice };
        let (name, messages, tools, choice, path) = match surface {
            Surface::ChatCompletions => {
                let tools = wire::tools(&self.tools);
                ("messages", wire::messages(&self.messages)?, tools, wire::tool_choice(choice), "/chat/completions")
            }
            Surface::Responses => {
                let (items, tools) = (responses::items(&self.messages)?, responses::tools(&self.tools));
                ("input", items, tools, responses::tool_choice(choice), "/responses")
            }
        };
        body.insert(name.into(), messages);
        if !self.tools.is_empty() {
            body.insert("tools".into(), tools);
            body.insert("tool_choice".into(), choice);
        }
        if !self.variables.is_empty() {
            body.insert("chat_template_kwargs".into(), self.variables.clone().into());
        }
        Answer::start(&self.generate.endpoint, path, body.into())
    }
}

/// A streaming answer, which is an iterator over its parts. Dropping it ends the answer; the history keeps the text
/// that has arrived.
#[derive(Debug)]
pub struct ChatStream<'a> {
    chat: &'a mut Chat,
    answer: Answer,
    reply: Reply,
    /// Whether the conversation's last message was added for this answer.
    is_said: bool,
    is_over: bool,
}

impl<'a> ChatStream<'a> {
    fn new(chat: &'a mut Chat, answer: Answer, is_said: bool) -> Self {
        Self { chat, answer, reply: Reply::default(), is_said, is_over: false }
    }

    /// Reads the answer to its end, and returns its content without reasoning and tool calls.
    ///
    /// # Errors
    ///
    /// The first error that the iterator yields.
    pub fn text(self) -> Result<String, Error> {
        Ok(self.finish()?.0.content)
    }

    /// Reads the answer to its end, and returns all of it. The answer is then in the history. [`Reply::finish_reason`]
    /// says whether a limit cut the answer short.
    ///
    /// # Errors
    ///
    /// The first error that the iterator yields.
    pub fn finish(mut self) -> Result<(Reply, Statistics), Error> {
        for part in &mut self {
            part?;
        }
        Ok((self.reply.clone(), self.statistics()))
    }

    /// The whole answer, once the iterator has ended. [`Reply::raw`] is equal to the content, because the server has
    /// removed the marks of calls and reasoning.
    pub fn reply(&self) -> Option<&Reply> {
        self.is_over.then_some(&self.reply)
    }

    /// The server's token counts, which arrive at the end, and the times that were measured here.
    pub fn statistics(&self) -> Statistics {
        self.answer.statistics()
    }

    /// The reason why the answer ended; `None` while it is still being generated.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.answer.finish_reason()
    }

    /// A handle with which another thread can end the answer. The history keeps the text that has arrived.
    pub fn abort_handle(&self) -> AbortHandle {
        self.answer.abort_handle()
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let is_empty = self.reply == Reply::default();
        self.reply.finish_reason = Some(self.answer.finish_reason().unwrap_or(FinishReason::Aborted));
        if !is_empty {
            self.chat.messages.push(self.reply.clone().into_message());
        } else if self.is_said && self.answer.finish_reason() == Some(FinishReason::Error) {
            self.chat.messages.pop();
        }
    }
}

impl Iterator for ChatStream<'_> {
    type Item = Result<ReplyPart, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.answer.next();
        match &part {
            Some(Ok(ReplyPart::Reasoning(text))) => self.reply.reasoning.get_or_insert_default().push_str(text),
            Some(Ok(ReplyPart::Content(text))) => {
                self.reply.content.push_str(text);
                self.reply.raw.push_str(text);
            }
            Some(Ok(ReplyPart::ToolCall(call))) => self.reply.tool_calls.push(call.clone()),
            Some(Err(_)) | None => self.end(),
        }
        part
    }
}

impl Drop for ChatStream<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
