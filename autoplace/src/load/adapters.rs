//! LoRA adapters and control vectors, from their files to the context.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use llama_sys::{Context, LoraAdapter};
use serde::{Deserialize, Serialize};

use super::{Error, NativeProbe};
use crate::gguf::Header;
use crate::profile::{AdapterError, ControlVector, Lora, ModelProfile};

/// A LoRA adapter of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Adapter {
    /// The name that [requests](crate::generate::GenerateRequest::lora) use.
    pub name: String,
    /// The path of the adapter's file.
    pub path: PathBuf,
    /// The scale of this adapter in texts that do not choose their own adapters.
    pub scale: f32,
}

/// Files that are loaded together with a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct AdapterFiles {
    pub(super) lora: Vec<Adapter>,
    /// Control vectors with their scales. The model gets their scaled sum.
    pub(super) control_vectors: Vec<(PathBuf, f32)>,
    /// First and last layer for control vectors; `None` for all.
    pub(super) control_layers: Option<(u32, u32)>,
}

impl AdapterFiles {
    /// Adds an adapter under the name of its file: `style` for `style.gguf`, and `style-2` if that name is taken.
    pub(super) fn add(&mut self, path: PathBuf, scale: f32) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_taken = |name: &str| self.lora.iter().any(|one| one.name == name);
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let name = std::iter::once(stem.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or(stem);
        self.lora.push(Adapter { name, path, scale });
    }

    /// Adds all adapters to the profile of the model. For this, every adapter's header is read, and llama.cpp is not
    /// called.
    pub(super) fn beside(&self, mut profile: ModelProfile) -> Result<ModelProfile, AdapterError> {
        for (index, Adapter { name, path, scale }) in self.lora.iter().enumerate() {
            if self.lora[..index].iter().any(|other| other.name == *name) {
                return Err(AdapterError::Twice { name: name.clone() });
            }
            finite(path, *scale)?;
            profile = profile.with_lora(&Lora::from_header(&Header::open(path)?)?)?;
        }
        for (path, scale) in &self.control_vectors {
            finite(path, *scale)?;
            ControlVector::from_header(&Header::open(path)?, &profile)?;
            profile = profile.with_control_vector();
        }
        match self.control_layers {
            Some((first, last)) if first == 0 || first > last => Err(AdapterError::Layers { first, last }),
            _ => Ok(profile),
        }
    }

    /// A probe of the model with all adapters.
    pub(super) fn probe(&self, header: &Header) -> Result<NativeProbe, Error> {
        let probe = NativeProbe::new(header)?;
        let probe = self.lora.iter().fold(probe, |probe, adapter| probe.lora(&adapter.path));
        Ok(if self.control_vectors.is_empty() { probe } else { probe.control_vector() })
    }

    /// Loads the adapters and reads the control vectors.
    pub(super) fn load(&self, native: &llama_sys::Model, header: &Header) -> Result<Attached, Error> {
        let lora = self.lora.iter().map(|one| Ok((LoraAdapter::load(native, &one.path)?, one.scale)));
        let lora = lora.collect::<Result<_, llama_sys::Error>>()?;
        let mut direction = Vec::new();
        if !self.control_vectors.is_empty() {
            let profile = ModelProfile::from_header(header)?;
            for (path, scale) in &self.control_vectors {
                ControlVector::from_header(&Header::open(path)?, &profile)?.add_to(&mut direction, *scale)?;
            }
        }
        Ok(Attached { lora, direction, layers: self.control_layers.unwrap_or((1, u32::MAX)) })
    }

    /// The scale of each adapter in a text whose request asks for these adapters. If an adapter is named twice, the
    /// last scale counts.
    pub(super) fn scales(&self, asked: Option<&[(String, f32)]>) -> Result<Scales, AdapterError> {
        let Some(asked) = asked else { return Ok(Scales(self.lora.iter().map(|one| one.scale).collect())) };
        let mut scales = vec![0.0; self.lora.len()];
        for (name, scale) in asked {
            let Some(index) = self.lora.iter().position(|one| one.name == *name) else {
                let present = self.lora.iter().map(|one| one.name.clone()).collect();
                return Err(AdapterError::NoSuchAdapter { name: name.clone(), present });
            };
            scales[index] = finite(&self.lora[index].path, *scale)?;
        }
        Ok(Scales(scales.into()))
    }
}

fn finite(path: &Path, scale: f32) -> Result<f32, AdapterError> {
    if scale.is_finite() { Ok(scale) } else { Err(AdapterError::Scale { file: path.display().to_string(), scale }) }
}

/// A set of adapters: the scale of each adapter of a model, in the order of
/// [`Model::adapters`](super::Model::adapters). Cloning is cheap.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Scales(Arc<[f32]>);

impl Scales {
    /// The bits of each scale, for exact comparisons.
    pub(crate) fn bits(&self) -> Vec<u32> {
        self.0.iter().map(|scale| scale.to_bits()).collect()
    }
}

/// The adapters and the control vector of a loaded model.
#[derive(Debug)]
pub(super) struct Attached {
    /// The adapters, each with the scale that was set for the load.
    lora: Vec<(LoraAdapter, f32)>,
    /// The sum of the control vectors: `n_embd` numbers per layer, from layer 1 on.
    direction: Vec<f32>,
    /// First and last layer to which the sum is added.
    layers: (u32, u32),
}

impl Attached {
    /// The number of adapters. Each keeps a reference to the native model.
    pub(super) const fn holders(&self) -> usize {
        self.lora.len()
    }

    /// Applies all adapters to a new context, at the scales that were set for the load.
    pub(super) fn attach(&self, context: &mut Context) -> Result<(), llama_sys::Error> {
        if !self.direction.is_empty() {
            let (first, last) = self.layers;
            context.set_control_vector(&self.direction, first..=last)?;
        }
        context.set_lora(&self.lora)
    }

    /// Applies this set of adapters. Returns whether anything changed.
    pub(super) fn set(&self, context: &mut Context, scales: &Scales) -> Result<bool, llama_sys::Error> {
        let is_set = context.lora().iter().map(|(_, scale)| scale).eq(scales.0.iter());
        if !is_set {
            let lora = self.lora.iter().zip(&*scales.0).map(|((one, _), scale)| (one.clone(), *scale));
            context.set_lora(&lora.collect::<Vec<_>>())?;
        }
        Ok(!is_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_named_after_their_files_and_numbered_if_names_repeat() {
        let mut files = AdapterFiles::default();
        for path in ["a/style.gguf", "b/style.gguf", "b/facts.gguf", "c/style.gguf"] {
            files.add(path.into(), 0.5);
        }
        let names: Vec<_> = files.lora.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["style", "style-2", "facts", "style-3"]);
    }

    #[test]
    fn a_set_has_the_requested_scales_or_those_of_the_load() {
        let mut files = AdapterFiles::default();
        files.add("one.gguf".into(), 0.5);
        files.add("two.gguf".into(), 2.0);
        let scales = |asked: Option<&[(&str, f32)]>| {
            let asked: Option<Vec<_>> =
                asked.map(|asked| asked.iter().map(|(name, scale)| ((*name).to_owned(), *scale)).collect());
            files.scales(asked.as_deref()).map(|scales| scales.0.to_vec())
        };
        assert_eq!(scales(None).unwrap(), [0.5, 2.0]);
        assert_eq!(scales(Some(&[])).unwrap(), [0.0, 0.0]);
        assert_eq!(scales(Some(&[("two", 1.0)])).unwrap(), [0.0, 1.0]);
        assert_eq!(scales(Some(&[("one", 1.0), ("one", 0.0)])).unwrap(), [0.0, 0.0]);
        let unknown = scales(Some(&[("three", 1.0)])).unwrap_err().to_string();
        assert_eq!(unknown, "the model was loaded without an adapter called `three`: it has one, two");
        assert!(matches!(scales(Some(&[("one", f32::NAN)])), Err(AdapterError::Scale { .. })));
    }
}
