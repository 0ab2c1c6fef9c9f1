//! The special tokens of a vocabulary: those that templates know by name, and those that control the model.

use std::collections::BTreeMap;

use autoplace_planner::gguf::{Array, Error, Header};

use super::control::ControlTokens;

/// What transformers calls a special token, and the key of its number.
const NAMED: [(&str, &str); 7] = [
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    // So it is spelt in the format.
    ("sep_token", "seperator"),
    ("pad_token", "padding"),
    ("cls_token", "cls"),
    ("mask_token", "mask"),
];

/// Further tokens that control generation, by their keys.
const MORE: [&str; 8] = [
    "eot", "eom", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep",
];

/// Types of tokens that a user's text never becomes (`llama.h`, `LLAMA_TOKEN_TYPE_UNKNOWN` and `_CONTROL`).
const CONTROL_TYPES: [u32; 2] = [2, 3];

/// The special tokens that templates see, by transformers' names: `bos_token`, `eos_token`.
pub type SpecialTokens = BTreeMap<String, String>;

/// What a header's vocabulary says of its special tokens.
pub(super) fn of_header(header: &Header) -> Result<(SpecialTokens, ControlTokens), Error> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let Some(tokens) = header.array(&key("tokens"))? else {
        return Ok(<_>::default());
    };
    let is_spm = header.str(&key("model"))? == Some("llama");
    let id = |name: &str| -> Result<Option<u64>, Error> {
        let stated = header.uint(&key(&format!("{name}_token_id")))?;
        // What llama.cpp takes where the file does not say (llama-vocab.cpp, `llama_vocab::impl::load`).
        let default = match name {
            "unknown" => Some(0),
            "bos" => Some(1),
            "eos" => Some(2),
            _ => None,
        };
        Ok(stated.or(default.filter(|_| is_spm)))
    };
    let types = header.array(&key("token_type"))?;
    let types = types.map(|types| types.to_u32s()).transpose()?;
    let mut wanted: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (name, key) in NAMED {
        if let Some(id) = id(key)? {
            wanted.entry(id).or_default().push(name);
        }
    }
    for key in MORE {
        if let Some(id) = id(key)? {
            wanted.entry(id).or_default();
        }
    }
    collect(tokens, types.as_deref().unwrap_or_default(), &wanted)
}

fn collect(
    tokens: Array<'_>,
    types: &[u32],
    wanted: &BTreeMap<u64, Vec<&str>>,
) -> Result<(SpecialTokens, ControlTokens), Error> {
    let mut special = SpecialTokens::new();
    let mut control = Vec::new();
    let mut strings = tokens.strings()?;
    let mut types = types.iter();
    let mut id = 0;
    while let Some(text) = strings.read_next() {
        let text = text?;
        let is_control = types.next().is_some_and(|ty| CONTROL_TYPES.contains(ty));
        let names = wanted.get(&id);
        if is_control || names.is_some() {
            let text = String::from_utf8_lossy(text).into_owned();
            for name in names.into_iter().flatten() {
                special.insert((*name).to_owned(), text.clone());
            }
            control.push(text);
        }
        id += 1;
    }
    Ok((special, control.into_iter().collect()))
}
