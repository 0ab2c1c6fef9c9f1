//! What is added to a model when it is loaded: LoRA adapters, from their files to the context that computes with them.

use std::path::PathBuf;

use llama_sys::LoraAdapter;
use serde::{Deserialize, Serialize};

use super::{Error, NativeProbe};
use crate::gguf::Header;
use crate::profile::{AdapterError, Lora, ModelProfile};

/// A LoRA adapter of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Adapter {
    /// Its file.
    pub path: PathBuf,
    /// What it is multiplied by.
    pub scale: f32,
}

/// The profile of the model with all of them beside it. Reads every header, and touches nothing of llama.cpp's.
pub(super) fn beside(adapters: &[Adapter], mut profile: ModelProfile) -> Result<ModelProfile, AdapterError> {
    for Adapter { path, scale } in adapters {
        if !scale.is_finite() {
            return Err(AdapterError::Scale { file: path.display().to_string(), scale: *scale });
        }
        profile = profile.with_lora(&Lora::from_header(&Header::open(path)?)?)?;
    }
    Ok(profile)
}

/// A probe of the model with all of them beside it.
pub(super) fn probe(adapters: &[Adapter], header: &Header) -> Result<NativeProbe, Error> {
    let probe = NativeProbe::new(header)?;
    Ok(adapters.iter().fold(probe, |probe, adapter| probe.lora(&adapter.path)))
}

/// Loads the adapters beside the model, for [`Context::set_lora`](llama_sys::Context::set_lora).
pub(super) fn load(
    adapters: &[Adapter],
    native: &llama_sys::Model,
) -> Result<Vec<(LoraAdapter, f32)>, llama_sys::Error> {
    adapters.iter().map(|one| Ok((LoraAdapter::load(native, &one.path)?, one.scale))).collect()
}
