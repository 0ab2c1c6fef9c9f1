//! Conversations that become longer than the context, through the public API, on the demo model.

use crate::text_support::{self, demo};
use autoplace::chat::Message;
use autoplace::generate::{Chat, ChatFull, Error};

fn chat(tokens: u32) -> Chat {
    text_support::chat(&demo(tokens, 1, false), "chatml").with(|generate| generate.max_tokens(8))
}

#[test]
fn two_hundred_turns_end_no_chat_of_512_tokens() {
    let mut chat = chat(512).system("Speak as the king spake unto his servants.");
    let mut computed = 0;
    for turn in 0..200 {
        let (_, statistics) = chat.say(format!("And {turn}?")).unwrap().finish().unwrap();
        computed += statistics.prompt_tokens - statistics.cached_tokens;
        assert!(statistics.prompt_tokens < 512);
        assert_eq!(chat.messages().len(), 2 * turn + 3, "all that was said is kept");
    }
    let forgotten = chat.forgotten();
    assert!(forgotten.len() > 300, "{}", forgotten.len());
    assert_eq!(forgotten[0].content, "And 0?");
    let prompt = chat.rendered().unwrap().into_string();
    assert!(prompt.starts_with("<|im_start|>system\nSpeak as the king"), "{prompt}");
    assert!(prompt.contains("And 199?") && !prompt.contains("And 0?"), "{prompt}");
    // If only one old turn were dropped in each turn, the whole prompt of about 400 tokens would be computed each time.
    assert!(computed < 200 * 100, "{computed}");
    chat.push(Message::user("Who art thou?"));
    let counted = chat.prompt_tokens().unwrap();
    assert_eq!(chat.answer().unwrap().finish().unwrap().1.prompt_tokens, counted);
}

#[test]
fn a_message_that_has_no_room_by_itself_is_taken_back() {
    let long = "And it came to pass. ".repeat(200);
    for when_full in [ChatFull::Error, ChatFull::default()] {
        let mut chat = chat(256).when_full(when_full);
        chat.say("Who art thou?").unwrap().finish().unwrap();
        let before = chat.messages().to_vec();
        assert_matches!(chat.say(&long).map(drop), Err(Error::PromptTooLong { .. }));
        assert_eq!(chat.messages(), before, "{when_full:?}");
        assert!(chat.forgotten().is_empty(), "{when_full:?}");
        chat.say("And thy father?").unwrap().finish().unwrap();
    }
}

#[cfg(feature = "schemars")]
#[test]
fn an_answer_can_be_a_value() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Verdict {
        guilty: bool,
    }
    let mut chat = chat(512).with(|generate| generate.max_tokens(60));
    let verdict: Verdict = chat.say_as("Did he slay him?").unwrap();
    let said = format!("{{\"guilty\": {}}}", verdict.guilty).replace(' ', "");
    assert_eq!(chat.messages()[1].content.replace(char::is_whitespace, ""), said);
    assert_eq!(chat.messages()[1].role, autoplace::chat::Role::ASSISTANT);
    // If an answer is cut short, that is an error, and the question is removed.
    let mut short = chat.clone().with(|generate| generate.max_tokens(2));
    assert!(short.say_as::<Verdict>("And she?").is_err());
    assert_eq!(short.messages(), chat.messages());
}
