//! What is added to a model when it is loaded: LoRA adapters, from their files to the context that computes with them.

use std::path::PathBuf;

use llama_sys::{Context, LoraAdapter};
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AdapterFiles {
    pub(super) lora: Vec<Adapter>,
}

impl AdapterFiles {
    /// The profile of the model with all of them beside it. Reads every header, and touches nothing of llama.cpp's.
    pub(super) fn beside(&self, mut profile: ModelProfile) -> Result<ModelProfile, AdapterError> {
        for Adapter { path, scale } in &self.lora {
            if !scale.is_finite() {
                return Err(AdapterError::Scale { file: path.display().to_string(), scale: *scale });
            }
            let lora = Lora::from_header(&Header::open(path)?)?;
            profile = profile.with_lora(&lora)?;
        }
        Ok(profile)
    }

    /// A probe of the model with all of them beside it.
    pub(super) fn probe(&self, header: &Header) -> Result<NativeProbe, Error> {
        let probe = NativeProbe::new(header)?;
        Ok(self.lora.iter().fold(probe, |probe, adapter| probe.lora(&adapter.path)))
    }

    /// Loads the adapters beside the model.
    pub(super) fn load(&self, native: &llama_sys::Model) -> Result<Attached, Error> {
        let lora = self.lora.iter().map(|one| Ok((LoraAdapter::load(native, &one.path)?, one.scale)));
        Ok(Attached { lora: lora.collect::<Result<_, llama_sys::Error>>()? })
    }
}

/// What was added to a loaded model.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    /// With what each is multiplied by.
    lora: Vec<(LoraAdapter, f32)>,
}

impl Attached {
    /// How many adapters hold the model.
    pub(super) const fn holders(&self) -> usize {
        self.lora.len()
    }

    /// Makes a fresh context compute with all of them.
    pub(super) fn attach(&self, context: &mut Context) -> Result<(), llama_sys::Error> {
        context.set_lora(&self.lora)
    }
}
