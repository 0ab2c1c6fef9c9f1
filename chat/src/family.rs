//! Templates by the name of their family, for models that ship none.
//!
//! They are our own wording of formats that their publishers describe; a model's own template, where there is one,
//! knows more (tools, reasoning).

use super::error::Error;
use super::special::SpecialTokens;

struct Family {
    name: &'static str,
    source: &'static str,
    bos: Option<&'static str>,
    eos: &'static str,
    /// Further control tokens.
    control: &'static [&'static str],
}

macro_rules! families {
    ($($name:literal: $bos:expr, $eos:literal, [$($control:literal),*];)*) => {
        /// The families that [`ChatTemplate::family`](super::ChatTemplate::family) knows.
        pub const FAMILIES: &[&str] = &[$($name),*];

        const ALL: &[Family] = &[$(Family {
            name: $name,
            source: include_str!(concat!("families/", $name, ".jinja")),
            bos: $bos,
            eos: $eos,
            control: &[$($control),*],
        }),*];
    };
}

families! {
    "alpaca": Some("<s>"), "</s>", [];
    "chatml": None, "<|im_end|>", ["<|im_start|>"];
    "command-r": Some("<BOS_TOKEN>"), "<|END_OF_TURN_TOKEN|>", [
        "<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"
    ];
    "deepseek": Some("<｜begin▁of▁sentence｜>"), "<｜end▁of▁sentence｜>", ["<｜User｜>", "<｜Assistant｜>"];
    "gemma": Some("<bos>"), "<eos>", ["<start_of_turn>", "<end_of_turn>"];
    "llama-2": Some("<s>"), "</s>", [];
    "llama-3": Some("<|begin_of_text|>"), "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>"];
    "mistral": Some("<s>"), "</s>", ["[INST]", "[/INST]"];
    "phi-3": Some("<s>"), "<|endoftext|>", ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];
    "vicuna": Some("<s>"), "</s>", [];
    "zephyr": None, "</s>", ["<|system|>", "<|user|>", "<|assistant|>"];
}

/// The names, for messages.
pub(super) fn names() -> String {
    FAMILIES.join(", ")
}

/// The source of a family's template, its special tokens and its control tokens.
pub(super) fn get(name: &str) -> Result<(&'static str, SpecialTokens, Vec<&'static str>), Error> {
    let Some(family) = ALL.iter().find(|family| family.name == name) else {
        return Err(Error::UnknownFamily {
            name: name.to_owned(),
        });
    };
    let mut special = SpecialTokens::new();
    for (name, token) in [("bos_token", family.bos), ("eos_token", Some(family.eos))] {
        special.extend(token.map(|token| (name.to_owned(), token.to_owned())));
    }
    let control = family.control.iter().copied();
    Ok((
        family.source,
        special,
        control.chain(family.bos).chain([family.eos]).collect(),
    ))
}
