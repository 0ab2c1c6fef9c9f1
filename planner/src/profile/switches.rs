//! The keys that switch steps of the computation on.

use crate::gguf::Header;

use super::Error;

/// What a header says beside the tensors about how a token is computed (`load_arch_hparams` in models/*.cpp).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Switches {
    /// `attention.temperature_scale`: whether queries are multiplied by a number per token; 0 is none.
    pub temperature_scale: f32,
    /// `n_deepstack_layers`: blocks after which a part of the embeddings is added.
    pub deepstack_layers: u32,
    /// `attention.key_length_mla`: elements of a key that compressed keys stand for.
    pub key_length_mla: u32,
    /// `attention.value_length_mla`: the same of values.
    pub value_length_mla: u32,
}

impl Switches {
    pub(super) fn read(header: &Header) -> Result<Self, Error> {
        let int = |suffix| header.arch_u32(suffix).map(Option::unwrap_or_default);
        let temperature_scale = header.arch_f32("attention.temperature_scale")?;
        Ok(Self {
            temperature_scale: temperature_scale.unwrap_or_default(),
            deepstack_layers: int("n_deepstack_layers")?,
            key_length_mla: int("attention.key_length_mla")?,
            value_length_mla: int("attention.value_length_mla")?,
        })
    }
}
