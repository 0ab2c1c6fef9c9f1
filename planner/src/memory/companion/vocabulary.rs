//! Compares the vocabularies of a draft and the main model, as far as the headers describe them.

use crate::gguf::{self, Header};

use super::error::{Error, file};

/// `SPEC_VOCAB_MAX_SIZE_DIFFERENCE` (common/speculative.cpp).
const MAX_SIZE_DIFFERENCE: u64 = 128;

/// `SPEC_VOCAB_CHECK_START_TOKEN_ID` (common/speculative.cpp): earlier tokens may differ.
const FIRST_COMPARED: usize = 5;

/// Checks that both headers have the same tokenizer, vocabularies of similar size, the same texts for the tokens, and
/// the same tokens that are added before and after a text. Facts that a header does not state are not compared.
/// llama.cpp checks the same, but uses its defaults for missing keys (common/speculative.cpp,
/// `common_speculative_are_compatible`).
pub(super) fn compatible(draft: &Header, main: &Header) -> Result<(), Error> {
    let differs = |what: &str, of_draft: String, of_main: String| {
        Err(Error::Vocabulary { draft: file(draft), main: file(main), what: what.to_owned(), of_draft, of_main })
    };
    let kind = |header: &Header| Ok::<_, gguf::Error>(header.str("tokenizer.ggml.model")?.unwrap_or("none").to_owned());
    let (ours, theirs) = (kind(draft)?, kind(main)?);
    if ours != theirs {
        return differs("the type of the vocabulary", shown(ours.as_bytes()), shown(theirs.as_bytes()));
    }
    for (name, what) in
        [("bos", "the token that is added before a text"), ("eos", "the token that is added after a text")]
    {
        if let (Some(ours), Some(theirs)) = (added(draft, name)?, added(main, name)?)
            && ours != theirs
        {
            return differs(what, ours, theirs);
        }
    }
    let (ours, theirs) = (size(draft)?, size(main)?);
    if ours.abs_diff(theirs) > MAX_SIZE_DIFFERENCE {
        let of_main = format!("{theirs} (sizes may differ by at most {MAX_SIZE_DIFFERENCE})");
        return differs("the size of the vocabulary", ours.to_string(), of_main);
    }
    let tokens = "tokenizer.ggml.tokens";
    let (Some(ours), Some(theirs)) = (draft.array(tokens)?, main.array(tokens)?) else {
        return Ok(());
    };
    for (id, (ours, theirs)) in ours.strings()?.zip(theirs.strings()?).enumerate() {
        let (ours, theirs) = (ours?, theirs?);
        if id >= FIRST_COMPARED && ours != theirs {
            return differs(&format!("token {id}"), shown(&ours), shown(&theirs));
        }
    }
    Ok(())
}

/// The number of tokens of the vocabulary; in a header without a vocabulary, the number in `vocab_size`.
fn size(header: &Header) -> Result<u64, gguf::Error> {
    match header.array("tokenizer.ggml.tokens")? {
        Some(tokens) => Ok(tokens.len()),
        None => Ok(header.u32(&header.arch_key("vocab_size")?)?.map_or(0, u64::from)),
    }
}

/// The token that is added before or after a text, or "not added"; `None` if the header does not state it.
fn added(header: &Header, name: &str) -> Result<Option<String>, gguf::Error> {
    let is_added = header.bool(&format!("tokenizer.ggml.add_{name}_token"))?;
    let id = header.u32(&format!("tokenizer.ggml.{name}_token_id"))?;
    Ok(match (is_added, id) {
        (Some(false), _) => Some("not added".to_owned()),
        (Some(true), Some(id)) => Some(format!("token {id}")),
        _ => None,
    })
}

fn shown(text: &[u8]) -> String {
    format!("`{}`", String::from_utf8_lossy(text).escape_debug())
}

#[cfg(test)]
mod tests {
    use super::{Error, compatible};
    use crate::gguf::Builder;

    /// A vocabulary of the tokens `t0`, `t1` and so on, one of which may have another text.
    fn vocabulary(model: &str, n: usize, other: Option<usize>) -> Builder {
        let token = |id| if Some(id) == other { "other".to_owned() } else { format!("t{id}") };
        let tokens: Vec<String> = (0..n).map(token).collect();
        Builder::new("llama").str("tokenizer.ggml.model", model).array_str("tokenizer.ggml.tokens", tokens)
    }

    fn bpe(n: usize) -> Builder {
        vocabulary("gpt2", n, None)
    }

    fn first(id: u32, is_added: bool) -> Builder {
        bpe(1000).u32("tokenizer.ggml.bos_token_id", id).bool("tokenizer.ggml.add_bos_token", is_added)
    }

    #[test]
    fn a_draft_has_the_main_models_vocabulary_or_the_error_says_what_differs() {
        let before = "the token that is added before a text";
        for (draft, main, expected) in [
            // One vocabulary may have up to 128 tokens more.
            (bpe(1000), bpe(1128), None),
            (bpe(1128), bpe(1000), None),
            (bpe(1000), bpe(1129), Some("the size of the vocabulary")),
            (vocabulary("llama", 1000, None), bpe(1000), Some("the type of the vocabulary")),
            // Only the first five tokens may differ.
            (vocabulary("gpt2", 1000, Some(4)), bpe(1000), None),
            (vocabulary("gpt2", 1000, Some(5)), bpe(1000), Some("token 5")),
            // The id of the token before a text matters only if both vocabularies add that token.
            (first(7, false), first(8, false), None),
            (first(7, true), bpe(1000), None),
            (first(7, true), first(8, true), Some(before)),
            (first(7, true), first(7, false), Some(before)),
        ] {
            match compatible(&draft.header().unwrap(), &main.header().unwrap()) {
                Ok(()) => assert_eq!(expected, None),
                Err(Error::Vocabulary { what, .. }) => assert_eq!(expected, Some(&*what)),
                Err(other) => panic!("{other}"),
            }
        }
    }
}
