//! Tokens of single bytes: whatever they come to, text is whole characters, and what is none is U+FFFD, as
//! `String::from_utf8_lossy` has it. On a small model whose tokens are chosen by the tests.

use crate::native_support::tiny_llama;
use crate::text_support::{self, complete};
use autoplace::Model;
use autoplace::generate::{FinishReason, Generate};
use autoplace::llama_sys::Token;
use autoplace::plan::Request;

/// The end of a text, in the vocabulary.
const END: Token = 2;

/// The token of a byte.
fn byte(byte: u8) -> Token {
    3 + Token::from(byte)
}

fn bytes(text: &[u8]) -> Vec<Token> {
    text.iter().copied().map(byte).collect()
}

fn load(n_ctx: u32) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny_llama().write_sparse(&path).unwrap();
    text_support::load(&path, Request::new().n_ctx(n_ctx))
}

/// A text of these tokens, and of the end after them.
fn forced(model: &Model, tokens: Vec<Token>) -> Generate {
    forcing(model.generate("word1"), tokens)
}

fn forcing(generate: Generate, tokens: Vec<Token>) -> Generate {
    let mut at = 0;
    generate.samplers([]).sampler(move |_, _| {
        let token = tokens.get(at).copied().unwrap_or(END);
        at += 1;
        token
    })
}

#[test]
fn a_character_comes_with_its_last_byte() {
    let model = load(256);
    let text = "aé日😀\u{10FFFF}\0\n";
    let stream = || forced(&model, bytes(text.as_bytes())).stream().unwrap();
    let pieces: Vec<String> = stream().pieces().map(|piece| piece.unwrap().text).collect();
    let mut expected = Vec::new();
    for character in text.chars() {
        expected.extend(vec![String::new(); character.len_utf8() - 1]);
        expected.push(character.to_string());
    }
    // The end of the text.
    expected.push(String::new());
    assert_eq!(pieces, expected);
    // Without those of nothing; the end is not counted.
    let mut stream = stream();
    assert!(stream.by_ref().map(Result::unwrap).eq(text.chars().map(String::from)));
    assert_eq!(stream.statistics().generated_tokens, text.len());
}

#[test]
fn a_text_that_is_cut_within_a_character_ends_with_the_mark_of_one() {
    let text = "é日😀".as_bytes();
    let is_cut = |model: &Model, generate: Generate, reason| {
        let completion = complete(generate, model);
        let generated = completion.statistics().generated_tokens;
        assert_eq!(completion.end.unwrap().reason, reason);
        assert_eq!(completion.text, String::from_utf8_lossy(&text.repeat(4)[..generated]));
        generated
    };
    let model = load(256);
    for most in 1..=text.len() {
        let cut = forced(&model, bytes(text)).max_tokens(most);
        assert_eq!(is_cut(&model, cut, FinishReason::MaxTokens), most);
        let ended = forced(&model, bytes(&text[..most]));
        assert_eq!(is_cut(&model, ended, FinishReason::EndOfGeneration), most);
    }
    // By the end of the context, wherever that falls.
    for n_ctx in 16..24 {
        let model = load(n_ctx);
        is_cut(&model, forced(&model, bytes(&text.repeat(4))), FinishReason::ContextFull);
    }
}

#[test]
fn a_character_that_was_begun_is_no_stop_string_and_breaks_none() {
    let model = load(256);
    for (said, stop, expected) in [
        (&b"ab\xE6\x97STOPc"[..], "STOP", "ab\u{FFFD}"),
        (b"ab\xE6\x97\xA5c", "\u{65E5}", "ab"),
        (b"ab\xE6\x97", "\u{FFFD}", "ab"),
        (b"ab\xE6\x97\xA5", "\u{FFFD}", "ab\u{65E5}"),
        (b"S\xFFTOP", "STOP", "S\u{FFFD}TOP"),
    ] {
        let text = forced(&model, bytes(said)).stop(stop).text().unwrap();
        assert_eq!(text, expected, "{said:?} until {stop:?}");
    }
}

#[test]
fn an_answer_of_broken_bytes_is_a_message_and_the_next_one_is_asked_for() {
    let model = load(512);
    let said = b"ab\xE6\x97";
    let mut chat = text_support::chat(&model, "chatml").with(|it| forcing(it, bytes(said)).max_tokens(said.len()));
    let mut before = 0;
    for turn in 0..3 {
        let (reply, statistics) = chat.say("word1").unwrap().finish().unwrap();
        assert_eq!([&*reply.raw, &*reply.content], ["ab\u{FFFD}"; 2]);
        assert_eq!(statistics.cached_tokens > 0, turn > 0);
        // What was said is in the next prompt as it is written, which begins with two of the bytes that were generated.
        assert!(statistics.cached_tokens <= before + 2, "{statistics:?}");
        before = statistics.prompt_tokens;
        assert_eq!(chat.messages().last().unwrap().content, "ab\u{FFFD}");
    }
    assert_eq!(chat.rendered().unwrap().as_str().matches("ab\u{FFFD}").count(), 3);
}
