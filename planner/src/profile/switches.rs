//! The keys that switch steps of the computation on, each of which takes a place in the compute buffer.

use crate::gguf::Header;

use super::Error;

/// What a header says beside the tensors about how a token is computed (`load_arch_hparams` in models/*.cpp).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Switches {
    /// `expert_weights_norm`: whether the weights of a token's experts are made to sum up to one.
    pub expert_weights_norm: bool,
    /// `expert_weights_scale`: a number that they are multiplied by; 0 and 1 are none.
    pub expert_weights_scale: f32,
    /// `expert_gating_func`: 1 is softmax, 2 sigmoid, and others wire the experts in another way; 0 where the header is silent.
    pub expert_gating: u32,
    /// `expert_group_count`: groups that experts are chosen from in a first step.
    pub expert_groups: u32,
    /// `expert_group_used_count`: groups that stay.
    pub expert_groups_used: u32,
    /// `attention.temperature_scale`: whether queries are multiplied by a number per token; 0 is none.
    pub temperature_scale: f32,
    /// `final_logit_softcapping`: where logits are capped; 0 is nowhere.
    pub final_softcap: f32,
    /// `logit_scale`: a number that logits are multiplied by; 0 is none.
    pub logit_scale: f32,
    /// `rope.dimension_sections`: whether there may be several positions per token (llama-hparams.cpp, `use_mrope`).
    pub sections: bool,
    /// `rope.scaling.finetuned`: whether queries and keys are rotated by position, where the architecture has a choice.
    pub rope_finetuned: Option<bool>,
    /// `embedding_scale`: a number that embeddings are multiplied by; 0 is none.
    pub embedding_scale: Option<f32>,
    /// `residual_scale`: a number that what is added to the stream is multiplied by; 0 is none.
    pub residual_scale: Option<f32>,
    /// `n_deepstack_layers`: blocks after which a part of the embeddings is added.
    pub deepstack_layers: u32,
    /// `deepstack_mapping`: the same before blocks that the header lists.
    pub deepstack_mapping: bool,
    /// `rope.dimension_count`: elements of a head that are rotated by position; 0 where the header does not say.
    pub rotated: u32,
    /// `attention.kv_lora_rank`: elements that keys and values are compressed to.
    pub kv_rank: u32,
    /// `attention.key_length_mla`: elements of a key that compressed keys stand for.
    pub key_length_mla: u32,
    /// `attention.value_length_mla`: the same of values.
    pub value_length_mla: u32,
}

impl Switches {
    pub(super) fn read(header: &Header) -> Result<Self, Error> {
        let int = |suffix| header.arch_u32(suffix).map(Option::unwrap_or_default);
        let float = |suffix| header.arch_f32(suffix).map(Option::unwrap_or_default);
        Ok(Self {
            expert_weights_norm: header.arch_bool("expert_weights_norm")?.unwrap_or_default(),
            expert_weights_scale: float("expert_weights_scale")?,
            expert_gating: int("expert_gating_func")?,
            expert_groups: int("expert_group_count")?,
            expert_groups_used: int("expert_group_used_count")?,
            temperature_scale: float("attention.temperature_scale")?,
            final_softcap: float("final_logit_softcapping")?,
            logit_scale: float("logit_scale")?,
            sections: matches!(
                header.arch_u32_per_layer("rope.dimension_sections", 4),
                Ok(Some(sections)) if sections.iter().take(2).all(|&n| n > 0)
            ),
            rope_finetuned: header.arch_bool("rope.scaling.finetuned")?,
            embedding_scale: header.arch_f32("embedding_scale")?,
            residual_scale: header.arch_f32("residual_scale")?,
            deepstack_layers: int("n_deepstack_layers")?,
            deepstack_mapping: header.arch_get("deepstack_mapping")?.is_some(),
            rotated: int("rope.dimension_count")?,
            kv_rank: int("attention.kv_lora_rank")?,
            key_length_mla: int("attention.key_length_mla")?,
            value_length_mla: int("attention.value_length_mla")?,
        })
    }
}
