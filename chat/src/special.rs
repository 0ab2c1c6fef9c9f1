//! The special tokens of a vocabulary: those that have names in templates, and those that control the model.

use std::collections::BTreeMap;

use autoplace_planner::gguf::{Error, Header};

use super::control::ControlTokens;

/// The tokens that control generation. For each: the metadata key with its id, the id that llama.cpp assumes in an SPM
/// vocabulary (llama-vocab.cpp, `llama_vocab::impl::load`), and its name in transformers if templates get it.
const TOKENS: [(&str, Option<u64>, Option<&str>); 15] = [
    ("bos", Some(1), Some("bos_token")),
    ("eos", Some(2), Some("eos_token")),
    ("unknown", Some(0), Some("unk_token")),
    // The key is spelled like this in GGUF.
    ("seperator", None, Some("sep_token")),
    ("padding", None, Some("pad_token")),
    ("cls", None, Some("cls_token")),
    ("mask", None, Some("mask_token")),
    ("eot", None, None),
    ("eom", None, None),
    ("fim_pre", None, None),
    ("fim_suf", None, None),
    ("fim_mid", None, None),
    ("fim_pad", None, None),
    ("fim_rep", None, None),
    ("fim_sep", None, None),
];

/// The types of tokens that must never be made from a user's text (`llama.h`, `LLAMA_TOKEN_TYPE_UNKNOWN` and
/// `_CONTROL`).
const CONTROL_TYPES: [u32; 2] = [2, 3];

/// The special tokens that templates get, by their names in transformers, such as `bos_token` and `eos_token`.
pub type SpecialTokens = BTreeMap<String, String>;

/// Reads the special tokens from a header's vocabulary.
pub(super) fn of_header(header: &Header) -> Result<(SpecialTokens, ControlTokens), Error> {
    let Some(tokens) = header.array("tokenizer.ggml.tokens")? else {
        return Ok(<_>::default());
    };
    let is_spm = header.str("tokenizer.ggml.model")? == Some("llama");
    let mut wanted = Vec::new();
    for (key, default, name) in TOKENS {
        let id = header.uint(&format!("tokenizer.ggml.{key}_token_id"))?;
        if let Some(id) = id.or(default.filter(|_| is_spm)) {
            wanted.push((id, name));
        }
    }
    let types = header.array("tokenizer.ggml.token_type")?;
    let types = types.map(|types| types.to_u32s()).transpose()?;
    let mut types = types.unwrap_or_default().into_iter();
    let mut special = SpecialTokens::new();
    let mut control = Vec::new();
    for (id, text) in (0..).zip(tokens.strings()?) {
        let text = text?;
        let is_control = types.next().is_some_and(|ty| CONTROL_TYPES.contains(&ty));
        let mut names = wanted.iter().filter(|(of, _)| *of == id).peekable();
        if is_control || names.peek().is_some() {
            let text = String::from_utf8_lossy(&text).into_owned();
            special.extend(names.filter_map(|(_, name)| Some(((*name)?.to_owned(), text.clone()))));
            control.push(text);
        }
    }
    Ok((special, control.into_iter().collect()))
}
