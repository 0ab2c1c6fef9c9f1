//! Whether a draft has the main model's vocabulary, by llama.cpp's own rules.

use crate::gguf::Header;

use super::{Error, file};

/// `SPEC_VOCAB_MAX_SIZE_DIFFERENCE` (common/speculative.cpp).
const MOST_DIFFERENCE: u64 = 128;

/// `SPEC_VOCAB_CHECK_START_TOKEN_ID` (common/speculative.cpp): tokens before it may differ.
const FIRST_COMPARED: u64 = 5;

/// Ways to split text into words, by `tokenizer.ggml.pre`, of which the first token is added by default
/// (llama-vocab.cpp, `llama_vocab::impl::load`).
const ADD_BOS: &str = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon";

/// What llama.cpp makes of a tokenizer's keys, as far as drafting is concerned (llama-vocab.cpp,
/// `llama_vocab::impl::load`).
struct Vocabulary {
    kind: String,
    tokens: u64,
    /// What is put before a text and after it, if anything is: a token, or none that is known.
    bos: Option<Option<u64>>,
    eos: Option<Option<u64>>,
}

/// What is used where the header does not say: the type; the first token and the last, each with whether it is added
/// (llama-vocab.cpp, `llama_vocab::impl::load`).
fn defaults<'a>(model: &'a str, pre: &str) -> (&'a str, [(bool, Option<u64>); 2]) {
    match model {
        "llama" => ("spm", [(true, Some(1)), (false, Some(2))]),
        "bert" => ("wpm", [(true, Some(101)), (false, None)]),
        "gpt2" | "hybriddna" | "whitespace" => {
            let is_added = ADD_BOS.split(' ').any(|name| name == pre);
            let id = (!matches!(pre, "chatglm-bpe" | "glm4" | "glm5")).then_some(11);
            ("bpe", [(is_added, id), (false, Some(11))])
        }
        "gemma4" => ("bpe", [(true, None), (false, None)]),
        "t5" => ("ugm", [(false, None), (true, Some(1))]),
        "plamo2" => ("plamo2", [(false, Some(1)), (false, Some(2))]),
        "no_vocab" | "none" => ("none", [(false, None); 2]),
        other => (other, [(false, None); 2]),
    }
}

impl Vocabulary {
    fn read(header: &Header) -> Result<Self, Error> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let model = header.str(&key("model"))?.unwrap_or("none");
        let pre = header.str(&key("pre"))?.unwrap_or_default();
        let (kind, ends) = defaults(model, pre);
        if kind == "none" {
            return Ok(Self {
                kind: kind.to_owned(),
                // Only counted.
                tokens: header.arch_u32("vocab_size")?.map_or(0, u64::from),
                bos: None,
                eos: None,
            });
        }
        let tokens = header.array(&key("tokens"))?.map_or(0, |all| all.len());
        let end = |name: &str, (is_added, id): (bool, Option<u64>)| {
            // A default outside of the vocabulary is none, and a stated one is not heard.
            let stated = header.u32(&key(&format!("{name}_token_id")))?.map(u64::from);
            let id = stated.filter(|&id| id < tokens).or(id.filter(|&id| id < tokens));
            let stated = header.bool(&key(&format!("add_{name}_token")))?;
            // A text for Gemma 4 has its first token whatever the file says.
            let always = model == "gemma4" && name == "bos";
            let is_added = stated.map_or(is_added, |stated| stated || always);
            Ok::<_, Error>(is_added.then_some(id))
        };
        Ok(Self { kind: kind.to_owned(), tokens, bos: end("bos", ends[0])?, eos: end("eos", ends[1])? })
    }
}

/// Checks what `common_speculative_are_compatible` does (common/speculative.cpp).
pub(super) fn compatible(draft: &Header, main: &Header) -> Result<(), Error> {
    let (ours, theirs) = (Vocabulary::read(draft)?, Vocabulary::read(main)?);
    let differs = |what: &str, of_draft: String, of_main: String| {
        Err(Error::Vocabulary { draft: file(draft), main: file(main), what: what.to_owned(), of_draft, of_main })
    };
    if ours.kind != theirs.kind {
        let [ours, theirs] = [ours, theirs].map(|one| one.kind.escape_debug().to_string());
        return differs("the type of the vocabulary", ours, theirs);
    }
    for (what, ours, theirs) in
        [("the token before a text", ours.bos, theirs.bos), ("the token after a text", ours.eos, theirs.eos)]
    {
        if ours != theirs {
            let describe = |added: Option<Option<u64>>| match added {
                None => "not added".to_owned(),
                Some(id) => id.map_or("none".to_owned(), |id| format!("token {id}")),
            };
            return differs(what, describe(ours), describe(theirs));
        }
    }
    let (ours, theirs) = (ours.tokens, theirs.tokens);
    if ours.abs_diff(theirs) > MOST_DIFFERENCE {
        let of_main = format!("{theirs}, more than {MOST_DIFFERENCE} tokens apart");
        return differs("the size of the vocabulary", ours.to_string(), of_main);
    }
    match first_difference(draft, main)? {
        None => Ok(()),
        Some((id, ours, theirs)) => differs(&format!("token {id}"), ours, theirs),
    }
}

/// The first token whose texts differ, up to the end of the shorter list, and both texts.
fn first_difference(draft: &Header, main: &Header) -> Result<Option<(u64, String, String)>, Error> {
    let key = "tokenizer.ggml.tokens";
    let (Some(ours), Some(theirs)) = (draft.array(key)?, main.array(key)?) else {
        return Ok(None);
    };
    for (id, (a, b)) in (0..).zip(ours.strings()?.zip(theirs.strings()?)) {
        let (a, b) = (a?, b?);
        // Compared as C strings are.
        let (a, b) = (before_nul(&a), before_nul(&b));
        if id >= FIRST_COMPARED && a != b {
            let shown = |text: &[u8]| format!("`{}`", String::from_utf8_lossy(text).escape_debug());
            return Ok(Some((id, shown(a), shown(b))));
        }
    }
    Ok(None)
}

fn before_nul(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Error, compatible};
    use crate::gguf::Builder;

    fn tokens(n: usize) -> Vec<String> {
        (0..n).map(|id| format!("t{id}")).collect()
    }

    fn vocabulary(model: &str, pre: &str, tokens: &[String]) -> Builder {
        Builder::new("llama")
            .str("tokenizer.ggml.model", model)
            .str("tokenizer.ggml.pre", pre)
            .array_str("tokenizer.ggml.tokens", tokens)
    }

    /// What differs, if anything does.
    fn difference(draft: &Builder, main: &Builder) -> Option<String> {
        match compatible(&draft.header().unwrap(), &main.header().unwrap()) {
            Ok(()) => None,
            Err(Error::Vocabulary { what, .. }) => Some(what),
            Err(other) => panic!("{other}"),
        }
    }

    fn bpe(n: usize) -> Builder {
        vocabulary("gpt2", "qwen2", &tokens(n))
    }

    fn spm() -> Builder {
        vocabulary("llama", "default", &tokens(1000))
    }

    /// A first token that is stated, and whether it is added.
    fn first(builder: Builder, id: u32, is_added: bool) -> Builder {
        let builder = builder.u32("tokenizer.ggml.bos_token_id", id);
        builder.bool("tokenizer.ggml.add_bos_token", is_added)
    }

    #[test]
    fn vocabularies_go_together_by_llama_cpps_rules() {
        let (size, before) = ("the size of the vocabulary", "the token before a text");
        let changed = |id: usize| {
            let mut tokens = tokens(1000);
            "other".clone_into(&mut tokens[id]);
            vocabulary("gpt2", "qwen2", &tokens)
        };
        let llama3 = vocabulary("gpt2", "llama-bpe", &tokens(1000));
        let after = spm().bool("tokenizer.ggml.add_eos_token", true);
        let bpe_first = |id, is_added| first(bpe(1000), id, is_added);
        for (draft, main, what) in [
            // One may be up to 128 tokens longer.
            (bpe(1000), bpe(1000), None),
            (bpe(1000), bpe(1128), None),
            (bpe(1128), bpe(1000), None),
            (bpe(1000), bpe(1129), Some(size)),
            (bpe(1129), bpe(1000), Some(size)),
            (spm(), bpe(1000), Some("the type of the vocabulary")),
            // Texts may differ in the first five tokens only.
            (changed(4), bpe(1000), None),
            (changed(5), bpe(1000), Some("token 5")),
            (changed(999), bpe(1000), Some("token 999")),
            // Which first token it is matters only where one is added.
            (bpe_first(7, false), bpe_first(8, false), None),
            (bpe_first(7, true), bpe_first(7, true), None),
            (bpe_first(7, true), bpe_first(8, true), Some(before)),
            (bpe_first(7, true), bpe_first(7, false), Some(before)),
            // What a header does not say is llama.cpp's default: not added, or for Llama 3 token 11.
            (bpe_first(7, false), bpe(1000), None),
            (llama3, bpe_first(11, true), None),
            (spm(), first(spm(), 1, true), None),
            // A token outside of the vocabulary is not heard.
            (spm(), first(spm(), 5000, true), None),
            (spm(), first(spm(), 2, true), Some(before)),
            (after, spm(), Some("the token after a text")),
        ] {
            assert_eq!(difference(&draft, &main).as_deref(), what);
        }
    }

    #[test]
    fn the_error_names_both_files_and_both_values() {
        let (draft, main) = (bpe(1000).header().unwrap(), bpe(2000).header().unwrap());
        assert_eq!(
            compatible(&draft, &main).unwrap_err().to_string(),
            "<builder> cannot draft for <builder>: the size of the vocabulary is 1000 and 2000, more than 128 tokens apart"
        );
    }
}
