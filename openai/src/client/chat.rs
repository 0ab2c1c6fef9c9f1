//! A conversation with a model behind an endpoint.

use autoplace::AbortHandle;
use autoplace::chat::{Message, Reply, ReplyPart, Role, Tool, ToolCall};
use autoplace::generate::{Constraint, FinishReason, Statistics, ToolChoice};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::answer::Answer;
use super::generate::value;
use super::{Error, Generate, wire};

/// A conversation, as [`autoplace::generate::Chat`]: what was said so far, and how the model is asked for more. A clone
/// goes its own way from here.
///
/// Messages of a local conversation can be given to [`messages_mut`](Self::messages_mut): it goes on here. A
/// conversation that is longer than the server's context is an error ([`Error::is_too_long`]).
#[derive(Debug, Clone)]
#[must_use]
pub struct Chat {
    generate: Generate,
    messages: Vec<Message>,
    tools: Vec<Tool>,
    tool_choice: ToolChoice,
    variables: Map<String, Value>,
}

impl Chat {
    pub(super) fn new(generate: Generate) -> Self {
        Self { generate, messages: Vec::new(), tools: Vec::new(), tool_choice: ToolChoice::Auto, variables: Map::new() }
    }

    /// Puts a system message at the beginning, in place of one that is there.
    pub fn system(mut self, content: impl Into<String>) -> Self {
        let message = Message::system(content);
        match self.messages.first_mut() {
            Some(first) if first.role == message.role => *first = message,
            _ => self.messages.insert(0, message),
        }
        self
    }

    /// Says how answers are generated.
    pub fn with(mut self, settings: impl FnOnce(Generate) -> Generate) -> Self {
        self.generate = settings(self.generate);
        self
    }

    /// Tools that the model may call. Their results are said with [`tool_result`](Self::tool_result).
    pub fn tools(mut self, tools: impl Into<Vec<Tool>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// Whether what a person says is answered with a call of a tool. After the result of a call the model is free
    /// again. Default: as the model likes.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Another variable of the chat template, such as `enable_thinking` (`chat_template_kwargs`: llama.cpp's and vLLM's
    /// addition to the API).
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// What was said so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The same, to be changed.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// Adds a message, and asks for no answer.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Adds what a tool gave for a call, and asks for no answer: there may be several calls.
    pub fn tool_result(&mut self, call: &ToolCall, content: impl Into<String>) {
        self.push(Message::tool(call, content));
    }

    /// Forgets all but the first messages.
    pub fn truncate(&mut self, messages: usize) {
        self.messages.truncate(messages);
    }

    /// Adds what the person says, and asks for an answer.
    ///
    /// # Errors
    ///
    /// As [`answer`](Self::answer). What was said is taken back then, and where the first thing that comes is an error.
    pub fn say(&mut self, content: impl Into<String>) -> Result<ChatStream<'_>, Error> {
        self.push(Message::user(content));
        match self.begin() {
            Ok(answer) => Ok(ChatStream::new(self, answer, true)),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Adds what the person says, and asks for an answer that is a value of a type, whose schema is sent to the server.
    /// It is in the history as JSON. Tools are left out: such an answer cannot call one.
    ///
    /// # Errors
    ///
    /// As [`say`](Self::say), and the first error of the answer; [`Error::Incomplete`] and [`Error::NotOfType`]. What
    /// was said is taken back then.
    pub fn say_as<T: DeserializeOwned + JsonSchema>(&mut self, content: impl Into<String>) -> Result<T, Error> {
        let before = self.messages.len();
        let mut asked = Self { tools: Vec::new(), ..self.clone() };
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

    /// Asks for an answer to what was said. It is added to the history when it ends; when it is dropped before, as far
    /// as it came.
    ///
    /// # Errors
    ///
    /// [`Error::Inexpressible`] and [`Error::Thread`]. What the server says against the request comes with the first
    /// part of the answer.
    pub fn answer(&mut self) -> Result<ChatStream<'_>, Error> {
        let answer = self.begin()?;
        Ok(ChatStream::new(self, answer, false))
    }

    fn begin(&self) -> Result<Answer, Error> {
        let mut body = self.generate.body()?;
        body.insert("messages".into(), wire::messages(&self.messages));
        if !self.tools.is_empty() {
            body.insert("tools".into(), wire::tools(&self.tools));
            let answers_a_call = self.messages.last().is_some_and(|last| last.role == Role::TOOL);
            let choice = if answers_a_call { &ToolChoice::Auto } else { &self.tool_choice };
            body.insert("tool_choice".into(), wire::tool_choice(choice));
        }
        if !self.variables.is_empty() {
            body.insert("chat_template_kwargs".into(), self.variables.clone().into());
        }
        Answer::start(&self.generate.endpoint, "/chat/completions", body.into())
    }
}

/// An answer as it comes: an iterator of its parts. Dropping it ends the answer; the history keeps it as far as it
/// came.
#[derive(Debug)]
pub struct ChatStream<'a> {
    chat: &'a mut Chat,
    answer: Answer,
    reply: Reply,
    /// Whether the last message is what was said for this answer.
    is_said: bool,
    is_over: bool,
}

impl<'a> ChatStream<'a> {
    fn new(chat: &'a mut Chat, answer: Answer, is_said: bool) -> Self {
        Self { chat, answer, reply: Reply::default(), is_said, is_over: false }
    }

    /// Runs to the end and returns the whole answer, which is in the history then.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn finish(mut self) -> Result<(Reply, Statistics), Error> {
        for part in &mut self {
            part?;
        }
        Ok((self.reply.clone(), self.statistics()))
    }

    /// The whole answer, once the iterator has ended. [`Reply::raw`] is its content: the server has read the marks
    /// around it.
    pub fn reply(&self) -> Option<&Reply> {
        self.is_over.then_some(&self.reply)
    }

    /// Counts of the server, which come at the end, and times as they are seen here.
    pub fn statistics(&self) -> Statistics {
        self.answer.statistics()
    }

    /// Why the answer ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.answer.finish_reason()
    }

    /// Ends the answer that another thread is waiting for. The history keeps it as far as it came.
    pub fn abort_handle(&self) -> AbortHandle {
        self.answer.abort_handle()
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if self.reply != Reply::default() {
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
