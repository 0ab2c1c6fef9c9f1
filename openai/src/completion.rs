//! A request that is being answered.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use serde_json::Value;

use super::choice::{Choice, Step};
use super::error::ApiError;
use super::infill::InfillEvents;
#[cfg(feature = "media")]
use super::media::Reserved;
use super::messages::{self, Message, MessageEvents};
use super::responses::ResponseEvents;
use super::shape::{Chunks, Frame, usage};
use super::timings;
use super::translation::Places;
use autoplace::generate::Error;
use pollster::block_on;

/// An answer of the [`Api`](super::Api), while it is being generated. Dropping it cancels the generation.
///
/// If the request asks for a [stream](Self::is_stream), this type is a `Stream` of the chunks, and
/// [`chunks`](Self::chunks) is a blocking iterator over them. Otherwise the future [`response`](Self::response) yields
/// the body, and [`wait`](Self::wait) blocks until the body is complete.
///
/// Each chunk is the data of one server-sent event. In some APIs the event `data: [DONE]` [ends a
/// stream](Self::ends_with_done). No chunk stands for that event: the caller sends it after the last chunk.
///
/// ```no_run
/// # fn answer(completion: autoplace_openai::Completion, mut client: impl std::io::Write) -> std::io::Result<()> {
/// for chunk in completion.chunks() {
///     match chunk {
///         Ok(chunk) => write!(client, "data: {chunk}\n\n")?,
///         Err(error) => write!(client, "data: {}\n\n", error.to_json())?,
///     }
/// }
/// write!(client, "data: [DONE]\n\n")
/// # }
/// ```
#[must_use = "dropping it cancels the request"]
pub struct Completion {
    frame: Frame,
    choices: Vec<Choice>,
    is_stream: bool,
    /// Whether the last chunk of a stream contains the token counts.
    include_usage: bool,
    writer: Writer,
    /// Events that are ready, but that the stream has not yielded yet.
    ready: VecDeque<Value>,
    /// The index of the answer that is polled first next time.
    turn: usize,
    has_ended: bool,
    unenforced: Vec<String>,
    left_out: Vec<String>,
    places: Places,
    /// The memory reserved for the request's pictures and sounds. It is released when the answer ends.
    #[cfg(feature = "media")]
    _reserved: Option<Reserved>,
}

/// Writes the events of a request's answers.
pub(super) enum Writer {
    /// The chunks of chat completions and of completions, with one entry for each choice.
    Chunks(Vec<Chunks>),
    /// The events of Anthropic's messages.
    Message(Box<MessageEvents>),
    /// The events of OpenAI's responses.
    Response(Box<ResponseEvents>),
    /// The events of llama-server's fill-in-the-middle.
    Infill(Box<InfillEvents>),
}

impl Completion {
    pub(super) fn new(frame: Frame, choices: Vec<Choice>, stream: Option<bool>) -> Self {
        let chunks: Vec<_> = (0..choices.len()).map(|index| Chunks::new(&frame, index)).collect();
        let writer = Writer::Chunks(chunks);
        let (is_stream, include_usage) = (stream.is_some(), stream == Some(true));
        let mut completion = Self {
            frame,
            choices,
            is_stream,
            include_usage,
            writer,
            ready: VecDeque::new(),
            turn: 0,
            has_ended: false,
            unenforced: Vec::new(),
            left_out: Vec::new(),
            places: Places::default(),
            #[cfg(feature = "media")]
            _reserved: None,
        };
        if let Writer::Chunks(chunks) = &completion.writer {
            let first: Vec<_> = chunks.iter().filter_map(Chunks::first).collect();
            completion.ready.extend(first.into_iter().map(|choice| completion.frame.chunk(choice, include_usage)));
        }
        completion
    }

    /// Keeps the memory of the request's pictures and sounds reserved until the answer ends.
    #[cfg(feature = "media")]
    pub(super) fn holding(self, reserved: Reserved) -> Self {
        Self { _reserved: Some(reserved), ..self }
    }

    /// Makes this the answer to a translated request. Errors and notes contain the places in the original request.
    pub(super) fn translated(self, mut writer: Writer, places: Places, left_out: Vec<String>) -> Self {
        let ready = match &mut writer {
            // If a response is not streamed, only its last event is used. So the first events are not written.
            Writer::Response(events) if self.is_stream => events.begin().into(),
            _ => VecDeque::new(),
        };
        let unenforced = self.unenforced.iter().map(|text| places.restore_beginning(text)).collect();
        Self { writer, places, left_out, unenforced, ready, ..self }
    }

    pub(super) fn frame(&self) -> &Frame {
        &self.frame
    }

    pub(super) fn with_unenforced(self, unenforced: Vec<String>) -> Self {
        Self { unenforced, ..self }
    }

    /// The keywords of tool schemas that are not enforced during generation, each with its place in the request:
    /// `tools[0].function.parameters.properties.tags: "uniqueItems" is not enforced`. A finished call is checked
    /// against the whole schema, and a warning contains the violation.
    pub fn unenforced(&self) -> &[String] {
        &self.unenforced
    }

    /// Optional parts of the request that were left out, each with its place: "`tools[2]`: tools of type
    /// `web_search_20250305` are not supported".
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Whether events have names. The name of an event is the `type` of its chunk. Events have names in Anthropic's
    /// messages and in OpenAI's responses.
    pub fn has_named_events(&self) -> bool {
        matches!(self.writer, Writer::Message(_) | Writer::Response(_))
    }

    /// Whether an event `data: [DONE]` ends the stream, as in chat completions and completions.
    pub fn ends_with_done(&self) -> bool {
        matches!(self.writer, Writer::Chunks(_))
    }

    /// The data of the event that ends a stream with an error.
    pub fn error_event(&self, error: &ApiError) -> Value {
        match &self.writer {
            Writer::Chunks(_) | Writer::Infill(_) => error.to_json(),
            Writer::Message(_) => messages::error_json(error),
            Writer::Response(events) => events.error(error),
        }
    }

    /// Whether the request asks for a stream of chunks.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// The whole answer, as a future that works in any async runtime.
    ///
    /// # Errors
    ///
    /// The error of a failed generation. Status 500 if a call of a `strict` tool violates the tool's schema.
    pub async fn response(mut self) -> Result<Value, ApiError> {
        match &self.writer {
            Writer::Chunks(_) => {}
            Writer::Message(_) => return self.message().await,
            Writer::Infill(_) => return self.last_event().await,
            Writer::Response(_) => return self.last_event().await.map(|mut event| event["response"].take()),
        }
        // The answers are read in turn, because the engine pauses an answer that nobody reads.
        let mut wholes: Vec<_> = self.choices.iter().map(|_| Step::default()).collect();
        while let Some((index, step)) = poll_fn(|context| self.poll_any(context)).await {
            let mut step = step.map_err(|error| self.failed(&error))?;
            if let Some(violation) = step.violation.take() {
                return Err(not_met(&violation));
            }
            wholes[index].add(step);
        }
        let choices = wholes.into_iter().enumerate();
        let choices = choices.map(|(index, whole)| whole.into_choice(&self.frame, index)).collect();
        let mut body = self.frame.body(false, choices);
        body["usage"] = self.usage();
        if let [choice] = &self.choices[..] {
            body["timings"] = timings::json(&choice.statistics);
        }
        Ok(body)
    }

    /// The whole message, which is assembled from the events of a stream.
    async fn message(mut self) -> Result<Value, ApiError> {
        let mut message = Message::default();
        while let Some(event) = poll_fn(|context| self.poll_chunk(context)).await {
            message.add(event?);
        }
        Ok(message.into_json())
    }

    /// The last event of a stream.
    async fn last_event(mut self) -> Result<Value, ApiError> {
        let mut last = Value::Null;
        while let Some(event) = poll_fn(|context| self.poll_chunk(context)).await {
            last = event?;
        }
        Ok(last)
    }

    /// Blocks until the answer is complete.
    ///
    /// # Errors
    ///
    /// The errors of [`response`](Self::response).
    pub fn wait(self) -> Result<Value, ApiError> {
        block_on(self.response())
    }

    /// The chunks, as a blocking iterator. If there is an error, it is the last item.
    pub fn chunks(mut self) -> impl Iterator<Item = Result<Value, ApiError>> {
        std::iter::from_fn(move || block_on(poll_fn(|context| self.poll_chunk(context))))
    }

    /// The next chunk; `None` after the last one. After an error the stream ends.
    pub fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Value, ApiError>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match ready!(self.poll_any(context)) {
                Some((_, Ok(Step { violation: Some(violation), .. }))) => {
                    self.choices.clear();
                    self.has_ended = true;
                    return Poll::Ready(Some(Err(not_met(&violation))));
                }
                Some((index, Ok(step))) => self.write(index, &step),
                Some((_, Err(error))) => {
                    // If one answer fails, all of them end.
                    self.choices.clear();
                    self.has_ended = true;
                    return Poll::Ready(Some(Err(self.failed(&error))));
                }
                None => {
                    self.has_ended = true;
                    self.write_end();
                }
            }
        }
    }

    /// Queues the events of a step.
    fn write(&mut self, index: usize, step: &Step) {
        match &mut self.writer {
            Writer::Chunks(chunks) => {
                let choices = chunks[index].choices(step);
                self.ready.extend(choices.into_iter().map(|choice| self.frame.chunk(choice, self.include_usage)));
                if let (Some(last), [choice], true) = (self.ready.back_mut(), &self.choices[..], step.finish.is_some())
                {
                    last["timings"] = timings::json(&choice.statistics);
                }
            }
            Writer::Message(events) => self.ready.extend(events.step(step, &self.choices[index].tokens())),
            Writer::Response(events) => self.ready.extend(events.step(step, &self.choices[index].tokens())),
            Writer::Infill(events) => self.ready.extend(events.step(step, &self.choices[index].statistics)),
        }
    }

    /// Queues the events after the last step.
    fn write_end(&mut self) {
        let tokens = self.choices.first().map(Choice::tokens).unwrap_or_default();
        match &mut self.writer {
            Writer::Chunks(_) if self.include_usage => {
                let mut body = self.frame.body(true, Vec::new());
                body["usage"] = self.usage();
                self.ready.push_back(body);
            }
            Writer::Chunks(_) => {}
            Writer::Message(events) => self.ready.extend(events.end(&tokens)),
            Writer::Response(events) => self.ready.extend(events.end(&tokens)),
            Writer::Infill(events) => {
                let statistics = self.choices.first().map(|choice| choice.statistics).unwrap_or_default();
                self.ready.extend(events.end(&statistics));
            }
        }
    }

    /// The error of a generation that failed after its request was accepted.
    fn failed(&self, error: &Error) -> ApiError {
        self.places.restore(ApiError::of_generation(error, self.frame.endpoint.prompt()))
    }

    /// The next step of any of the answers, or `None` when all have ended. The answers are polled in turn.
    fn poll_any(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Step, Error>)>> {
        let count = self.choices.len();
        for ahead in 0..count {
            let index = (self.turn + ahead) % count;
            let choice = &mut self.choices[index];
            if let Poll::Ready(Some(step)) = choice.poll(context) {
                self.turn = (index + 1) % count;
                return Poll::Ready(Some((index, step)));
            }
        }
        match self.choices.iter().all(Choice::has_ended) {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    fn usage(&self) -> Value {
        usage(self.choices.iter().map(|choice| (choice.prompt, choice.tokens())))
    }
}

/// The error for a call of a `strict` tool that violates the tool's schema. This happens if the model writes the call
/// in a form that no grammar covers.
fn not_met(violation: &str) -> ApiError {
    let message = format!(
        "the model's call is not what the schema of its `strict` tool allows: {violation}; with `tool_choice` \
         \"required\" its arguments are held to the schema"
    );
    ApiError::new(500, message).with_code("strict_not_met")
}

impl futures_core::Stream for Completion {
    type Item = Result<Value, ApiError>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_chunk(context)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.frame.id)
            .field("choices", &self.choices.len())
            .finish_non_exhaustive()
    }
}
