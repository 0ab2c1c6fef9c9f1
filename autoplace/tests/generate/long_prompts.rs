//! Prompts of a megabyte with any content, without a chat, in a chat, and in an engine. If a prompt is too long, it is
//! refused, and the error contains its number of tokens. Any other prompt is computed. The process survives.

use crate::native_support::native;
use crate::text_support::demo;
use autoplace::chat::ChatTemplate;
use autoplace::generate::{Engine, Error};
use autoplace::gguf::Builder;
use test_support::tiny::{TINY_VOCABULARY, tiny_llama_without_vocabulary};

const MEGABYTE: usize = 1 << 20;

/// The text `of`, again and again, up to about a megabyte.
fn megabyte(of: &str) -> String {
    of.repeat(MEGABYTE / of.len())
}

/// One text of words, and texts without words: with no space to divide them, with nothing but spaces, with characters
/// of several bytes, and with control characters.
const KINDS: [&str; 6] = ["And the king said unto his servants, ", "a", " ", "日", "<s></s><unk>", "\0"];

fn too_long(outcome: Result<(), Error>) -> usize {
    match outcome {
        Err(Error::PromptTooLong { tokens, context }) => {
            assert!(context <= 512, "{context}");
            tokens
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_megabyte_of_anything_is_refused_with_its_length_and_the_next_prompt_is_not() {
    let model = demo(512, 1, false);
    let short = || model.generate("And").temp(0.0).max_tokens(4);
    let expected = short().text().unwrap();
    for kind in KINDS {
        let long = megabyte(kind);
        let tokens = model.native().unwrap().vocab().tokenize(&long, true, false).unwrap().len();
        assert!(tokens > 2000, "{kind:?}");
        let plain = model.generate(&long).stream().map(drop);
        assert_eq!(too_long(plain), tokens, "{kind:?}");
        {
            let engine = Engine::new(&model).unwrap();
            let submitted = engine.submit(model.generate(&long)).map(drop);
            assert_eq!(too_long(submitted), tokens, "{kind:?}");
            assert_eq!(engine.submit(short()).unwrap().into_text().unwrap().0, expected);
        }
        let template = ChatTemplate::family("chatml").unwrap();
        let template = template.with_control_tokens(["<s>", "</s>"]);
        let mut chat = model.chat_with(template);
        assert!(too_long(chat.say(&long).map(drop)) > 2000, "{kind:?}");
        assert_eq!(chat.messages(), [], "what was refused is taken back");
        let chat = chat.with(|generate| generate.temp(0.0).max_tokens(4));
        { chat }.say("And").unwrap().finish().unwrap();
        assert_eq!(short().text().unwrap(), expected, "{kind:?}");
    }
}

/// A vocabulary of byte pairs. It divides a text into words by the rule `pre`.
fn byte_pairs(pre: &str) -> Builder {
    // GPT-2 writes each byte as a character. The last three characters are the bytes of 日.
    let normal = ["Ċ", "a", "aa", ".", "..", "æ", "Ĺ", "¥"];
    let n = TINY_VOCABULARY as usize;
    let controls = (normal.len()..n).map(|id| format!("<control{id}>"));
    let kinds: Vec<i32> = (0..n).map(|id| if id < normal.len() { 1 } else { 3 }).collect();
    tiny_llama_without_vocabulary()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", pre)
        .array_str("tokenizer.ggml.tokens", normal.map(str::to_owned).into_iter().chain(controls))
        .array_i32("tokenizer.ggml.token_type", &kinds)
        .array_str("tokenizer.ggml.merges", ["a a", ". ."])
        .u32("tokenizer.ggml.bos_token_id", normal.len() as u32)
        .u32("tokenizer.ggml.eos_token_id", normal.len() as u32 + 1)
        .bool("tokenizer.ggml.add_bos_token", false)
}

/// Rules by which llama.cpp divides a text into words (llama-vocab.cpp, `llm_tokenizer_bpe`).
const PRES: &str = "gpt-2 llama-bpe qwen2 qwen35 gpt-4o tekken deepseek-llm deepseek-coder deepseek-v3 \
    spark2_5 youtu falcon starcoder jais-2 bloom viking chameleon granite-embed-multi-97m \
    tiny_aya kimi-k2 superbpe bailingmoe seed-coder afmoe exaone-moe minicpm5";

/// The test runs on a thread with Rust's default stack. `std::regex` recurses once for each character of a word, and
/// might overflow this stack.
#[test]
fn a_word_of_any_length_is_cut_by_the_rules_of_every_family() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bpe.gguf");
    for pre in PRES.split(' ') {
        byte_pairs(pre).write_sparse(&path).unwrap();
        let vocab = native(&path).unwrap().vocab();
        for of in ["a", "日", "."] {
            let text = of.repeat((MEGABYTE >> 4) / of.len());
            let tokens = vocab.tokenize(&text, false, false).unwrap();
            let bytes: Vec<u8> = tokens.into_iter().flat_map(|token| vocab.piece(token, false).unwrap()).collect();
            assert!(bytes == text.as_bytes(), "{pre}: {of:?}");
        }
    }
}
