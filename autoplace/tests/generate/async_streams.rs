//! Generations as `Stream`s, with `futures` and in tokio, on the demo model. The behaviour that all front ends share is
//! tested in `front_ends.rs`.

use std::future::poll_fn;
use std::pin::pin;

use crate::text_support::{PROMPTS, chat, demo, greedy};
use autoplace::Model;
use autoplace::chat::{ChatTemplate, Message, ReplyPart};
use autoplace::generate::{AsyncStream, Chat, ChatStream, Engine, Error, FinishReason, GenerateRequest, TokenStream};
use futures::stream::{StreamExt, TryStreamExt};
use test_support::wait;
use tokio::runtime::Builder;

/// The output of a future, and how often it was polled.
pub(crate) fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let (mut future, mut polls) = (pin!(future), 0);
    let counted = poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context)
    });
    (Builder::new_current_thread().build().unwrap().block_on(counted), polls)
}

async fn read(stream: &mut AsyncStream<TokenStream>) -> Result<String, Error> {
    stream.try_collect().await
}

fn awaited(generate: GenerateRequest) -> AsyncStream<TokenStream> {
    generate.stream().unwrap().into_async().unwrap()
}

#[test]
fn a_task_is_polled_only_when_there_is_a_piece() {
    let model = demo(512, 1, false);
    let mut stream = awaited(greedy(&model, PROMPTS[0]).max_tokens(80));
    let (text, polls) = block_on(read(&mut stream));
    text.unwrap();
    // There is at most one poll for each piece, and one for the end.
    assert!(polls <= 80 + 2, "{polls}");
}

#[test]
fn a_stream_that_is_aborted_or_dropped_gives_the_context_back() {
    let model = demo(4096, 1, false);
    let endless = || {
        let mut stream = awaited(greedy(&model, PROMPTS[0]).max_tokens(usize::MAX));
        block_on(stream.next()).0.unwrap().unwrap();
        stream
    };
    // The stream is aborted in the middle of a text.
    let mut stream = endless();
    stream.abort_handle().abort();
    assert!(block_on(read(&mut stream)).0.is_ok());
    assert_eq!(stream.finish_reason(), Some(FinishReason::Aborted));
    drop(model.session().unwrap());
    // The stream is aborted in the middle of a prompt.
    let mut stream = awaited(greedy(&model, PROMPTS.concat().repeat(20)));
    stream.abort_handle().abort();
    assert!(block_on(read(&mut stream)).0.is_ok_and(|text| text.is_empty()));
    assert_eq!(stream.finish_reason(), Some(FinishReason::Aborted));
    drop(model.session().unwrap());
    // Soon after the stream is dropped, the context is free.
    drop(endless());
    wait("ends", || is_free(&model));
}

/// Whether the context is free. Panics if the session fails for any other reason than that the context is in use.
fn is_free(model: &Model) -> bool {
    let session = model.session().map(drop);
    assert_matches!(session, Ok(()) | Err(Error::Busy));
    session.is_ok()
}

#[test]
fn a_chats_answer_is_a_stream_too() {
    let model = demo(2048, 1, false);
    let (expected, _) = chat(&model, "chatml").say("Hear me.").unwrap().finish().unwrap();
    let mut chat = chat(&model, "chatml");
    let mut answer = chat.say("Hear me.").unwrap().into_async().unwrap();
    while let Some(part) = block_on(answer.next()).0 {
        part.unwrap();
    }
    assert_eq!(answer.reply(), Some(&expected));
    assert_eq!(answer.finish_reason(), Some(FinishReason::MaxTokens));
}

#[test]
fn an_owned_answer_outlives_its_caller_and_gives_its_chat_back() {
    /// A function like the handler of a web server. The handler owns the chat. So the result must not borrow the chat.
    fn handler(engine: &Engine, question: &str) -> Result<AsyncStream<ChatStream<Box<Chat>>>, Error> {
        let template = ChatTemplate::family("chatml").unwrap();
        engine.chat_with(template).temp(0.0).max_tokens(12).say_async(question)
    }
    fn is_static<T: Send + 'static>(value: T) -> T {
        value
    }
    let model = demo(2048, 1, false);
    let expected = chat(&model, "chatml").say("Hear me.").unwrap().text().unwrap();
    let engine = Engine::new(&model).unwrap();
    let mut answer = is_static(handler(&engine, "Hear me.").unwrap());
    let mut text = String::new();
    while let Some(part) = block_on(answer.next()).0 {
        if let ReplyPart::Content(part) = part.unwrap() {
            text.push_str(&part);
        }
    }
    assert_eq!(text, expected);
    let chat = *answer.into_chat();
    assert_eq!(
        chat.messages().iter().map(|message| message.content.as_str()).collect::<Vec<_>>(),
        ["Hear me.", &expected]
    );
    // If an answer is ended in the middle, the chat's history gets the answer so far.
    let mut answer = chat.max_tokens(500).say_async("And then?").unwrap();
    block_on(answer.next()).0.unwrap().unwrap();
    let mut chat = *answer.into_chat();
    assert_eq!(chat.messages().len(), 4);
    chat.push(Message::user("Go on."));
    let mut answer = chat.max_tokens(4).answer_async().unwrap();
    while block_on(answer.next()).0.is_some() {}
    assert_eq!(answer.reply().unwrap().finish_reason, Some(FinishReason::MaxTokens));
}

#[test]
fn a_stream_that_is_over_stops_no_other_when_it_is_dropped() {
    let model = demo(512, 1, false);
    let unread = greedy(&model, PROMPTS[0]).max_tokens(4).stream().unwrap();
    let late = unread.abort_handle();
    let unread = unread.into_async().unwrap();
    // The text ends by itself, even if nobody reads it.
    wait("ends", || is_free(&model));
    let next = greedy(&model, PROMPTS[1]).stream().unwrap();
    drop(unread);
    late.abort();
    assert_eq!(next.into_text().unwrap().1.generated_tokens, 24);
}
