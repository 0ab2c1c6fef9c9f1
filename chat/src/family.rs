//! Built-in templates with family names, for models that have no template of their own.
//!
//! We wrote them according to the publishers' descriptions of the formats. A model's own template supports more (tools,
//! reasoning).

use super::error::Error;
use super::special::SpecialTokens;

/// A family: its name, the template's source, the tokens before and after a conversation, and other control tokens.
type Family = (&'static str, &'static str, Option<&'static str>, &'static str, &'static [&'static str]);

macro_rules! families {
    ($($name:literal: $bos:expr, $eos:literal, [$($control:literal),*];)*) => {
        /// The family names that [`ChatTemplate::family`](super::ChatTemplate::family) accepts.
        pub const FAMILIES: &[&str] = &[$($name),*];

        const ALL: &[Family] =
            &[$(($name, include_str!(concat!("families/", $name, ".jinja")), $bos, $eos, &[$($control),*])),*];
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

/// The source, the special tokens and the control tokens of a family.
pub(super) fn get(name: &str) -> Result<(&'static str, SpecialTokens, Vec<&'static str>), Error> {
    let family = ALL.iter().find(|(known, ..)| *known == name);
    let (_, source, bos, eos, control) = family.ok_or_else(|| Error::UnknownFamily { name: name.to_owned() })?;
    let special = [("bos_token", *bos), ("eos_token", Some(*eos))];
    let special = special.into_iter().filter_map(|(name, token)| Some((name.to_owned(), token?.to_owned())));
    let control = control.iter().chain(bos).chain([eos]).copied();
    Ok((source, special.collect(), control.collect()))
}
