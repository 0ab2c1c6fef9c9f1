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

/// A vocabulary of pairs of `normal`, which begins with a line's end and the texts of "a", "aa", "." and "..". It
/// divides a text into words by the rule `pre`.
fn pairs(pre: &str, normal: &[&str]) -> Builder {
    let n = TINY_VOCABULARY as usize;
    let controls = (normal.len()..n).map(|id| format!("<control{id}>"));
    let kinds: Vec<i32> = (0..n).map(|id| if id < normal.len() { 1 } else { 3 }).collect();
    tiny_llama_without_vocabulary()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", pre)
        .array_str("tokenizer.ggml.tokens", normal.iter().map(|text| (*text).to_owned()).chain(controls))
        .array_i32("tokenizer.ggml.token_type", &kinds)
        .array_str("tokenizer.ggml.merges", ["a a", ". ."])
        .u32("tokenizer.ggml.bos_token_id", normal.len() as u32)
        .u32("tokenizer.ggml.eos_token_id", normal.len() as u32 + 1)
        .bool("tokenizer.ggml.add_bos_token", false)
}

/// One name for each rule by which llama.cpp divides a text into words (llama-vocab.cpp, `llm_tokenizer_bpe`). Further
/// names have the same expressions as one of these.
const PRES: &str = "gpt-2 llama-bpe qwen2 qwen35 gpt-4o tekken tekken-num3 deepseek-llm deepseek-coder deepseek-v3 \
    spark2_5 youtu falcon starcoder jais-2 bloom viking chameleon granite-embed-multi-97m default flint k2-horizon \
    laguna ufakzeka tiny_aya kimi-k2 superbpe bailingmoe seed-coder afmoe exaone-moe minicpm5";

/// Rules for vocabularies whose tokens are texts as they are, and not GPT-2's characters for bytes.
const PLAIN_PRES: &str = "gemma4 mmbert sarvam-moe domyn-small soprano whitespace";

/// Texts that are one word by most rules.
fn words() -> [String; 3] {
    ["a", "日", "."].map(|of| of.repeat((MEGABYTE >> 4) / of.len()))
}

/// The test runs on a thread with Rust's default stack. `std::regex` recurses once for each character of a word, and
/// might overflow this stack.
#[test]
fn a_word_of_any_length_is_cut_by_the_rules_of_every_family() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bpe.gguf");
    for pre in PRES.split(' ') {
        // GPT-2 writes each byte as a character. The last three characters are the bytes of 日.
        pairs(pre, &["Ċ", "a", "aa", ".", "..", "æ", "Ĺ", "¥"]).write_sparse(&path).unwrap();
        let vocab = native(&path).unwrap().vocab();
        for text in words() {
            let tokens = vocab.tokenize(&text, false, false).unwrap();
            let bytes: Vec<u8> = tokens.into_iter().flat_map(|token| vocab.piece(token, false).unwrap()).collect();
            assert!(bytes == text.as_bytes(), "{pre}: {:?}", text.chars().next());
        }
    }
    for pre in PLAIN_PRES.split(' ') {
        let normal = ["\n", "a", "aa", ".", "..", "日", "▁"];
        pairs(pre, &normal).write_sparse(&path).unwrap();
        let vocab = native(&path).unwrap().vocab();
        for text in words() {
            let tokens = vocab.tokenize(&text, false, false).unwrap();
            let read: String = tokens.into_iter().map(|token| normal[token as usize]).collect();
            // A space is put before mmBERT's texts.
            let read = if pre == "mmbert" { read.strip_prefix('▁').unwrap() } else { &read };
            assert!(read == text, "{pre}: {:?}", text.chars().next());
        }
    }
}
