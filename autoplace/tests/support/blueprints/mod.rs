//! Models of every architecture that llama.cpp knows: hyper-parameters in, GGUF files out.
//!
//! What tensors an architecture has is llama.cpp's own answer: it makes a model out of our metadata
//! ([`Model::from_metadata`]), and its tensors, as it names and shapes them, go into the file beside that metadata.
//! The sizes are tiny; what decides memory is not: patterns of windows, blocks without attention, experts,
//! prediction blocks, ties.
#![allow(dead_code, reason = "each test uses some of it")]

mod header;
mod variants;

use std::path::{Path, PathBuf};

use autoplace::gguf::{Builder, TensorType};
use autoplace::llama_sys::{self, Model};

pub(crate) use variants::all;

/// One model to be made.
pub(crate) struct Blueprint {
    pub(crate) arch: String,
    /// What distinguishes it from the other models of its architecture.
    pub(crate) name: &'static str,
    keys: Builder,
    /// The metadata to make it of, where llama.cpp does not make tensors out of its own: it leaves those of
    /// prediction blocks out.
    made_of: Option<Builder>,
    /// Tensors that llama.cpp would not make.
    also: Vec<(String, Vec<u64>)>,
    /// Tensors that llama.cpp would make, and files of this kind do not have.
    without: Vec<String>,
    /// Ends of the names of tensors that llama.cpp would make, and most files do not have.
    lacks: &'static [&'static str],
    /// The first block that predicts: llama.cpp does not look for the scales of what it does not load.
    predicts_from: u32,
    /// The type of its matrices.
    matrices: TensorType,
}

impl Blueprint {
    /// A model of this architecture that says this, its matrices of half floats.
    fn of(arch: &str, keys: Builder) -> Self {
        Self {
            arch: arch.to_owned(),
            name: "",
            keys,
            made_of: None,
            also: Vec::new(),
            without: Vec::new(),
            lacks: &[],
            predicts_from: u32::MAX,
            matrices: TensorType::F16,
        }
    }

    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.arch, self.name)
    }

    fn path(&self, folder: &Path, suffix: &str) -> PathBuf {
        folder.join(format!("{}-{}{suffix}.gguf", self.arch, self.name))
    }

    /// The model with all tensors that its architecture can have.
    pub(crate) fn make(&self, folder: &Path) -> Result<Model, llama_sys::Error> {
        let path = self.path(folder, "-keys");
        self.made_of.as_ref().unwrap_or(&self.keys).write_sparse(&path).unwrap();
        Model::from_metadata(&path)
    }

    /// Writes our metadata and the model's tensors.
    pub(crate) fn write(&self, model: &Model, folder: &Path) -> PathBuf {
        let tensors = model.tensors();
        let kept = tensors.iter().filter(|tensor| {
            let name = tensor.name.as_str();
            let scale = name.ends_with("scale") && block_of(name) >= Some(self.predicts_from);
            let lacks = self.lacks.iter().any(|end| name.ends_with(end));
            !scale && !lacks && !self.without.iter().any(|out| name == out)
        });
        let file = kept.fold(self.keys.clone(), |file, tensor| {
            let used = tensor.shape.iter().rposition(|&n| n > 1).unwrap_or(0);
            let shape = &tensor.shape[..=used];
            file.tensor(&tensor.name, self.ty(shape), shape)
        });
        let file = self.also.iter().fold(file, |file, (name, shape)| file.tensor(name, self.ty(shape), shape));
        let path = self.path(folder, "");
        file.write_sparse(&path).unwrap();
        path
    }

    /// Vectors and what does not divide into the type's blocks stay floats.
    fn ty(&self, shape: &[u64]) -> TensorType {
        if shape.len() > 1 && shape[0].is_multiple_of(self.matrices.block_size()) {
            self.matrices
        } else {
            TensorType::F32
        }
    }

    /// Writes the model as llama.cpp does, and returns `None` where it cannot.
    pub(crate) fn save(&self, model: &Model, folder: &Path) -> Option<PathBuf> {
        if !(self.without.is_empty() && self.also.is_empty() && self.made_of.is_none()) {
            return None;
        }
        let path = self.path(folder, "-saved");
        model.save(&path).ok().map(|()| path)
    }
}

/// The number of a block's tensor.
fn block_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}
