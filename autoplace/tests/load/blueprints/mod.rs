//! Models of every architecture of llama.cpp. In: hyper-parameters. Out: GGUF files.
//!
//! llama.cpp itself lists the tensors of an architecture. For this, llama.cpp creates a model from our metadata
//! ([`Model::from_metadata`]). The file gets the metadata, and the names and shapes of that model's tensors. The sizes
//! are tiny. But everything occurs that decides how much memory is needed: patterns of windows, blocks without
//! attention, experts, prediction blocks, tied tensors.
mod header;
mod variants;

use std::path::{Path, PathBuf};

use autoplace::gguf::{Builder, TensorType};
use autoplace::llama_sys::{self, Model};

pub(crate) use variants::all;

/// A model that can be created.
pub(crate) struct Blueprint {
    pub(crate) arch: String,
    /// A name for the model among the models of its architecture.
    pub(crate) name: &'static str,
    keys: Builder,
    /// If set, the model is created from these metadata instead of `keys`, with which llama.cpp would leave out the
    /// tensors of prediction blocks.
    made_of: Option<Builder>,
    /// Tensors that llama.cpp would not create, but that the file needs.
    also: Vec<(String, Vec<u64>)>,
    /// Tensors that llama.cpp would create, but that do not occur in files of this kind.
    without: Vec<String>,
    /// Endings of tensors' names. llama.cpp would create these tensors, but most files do not contain them.
    lacks: &'static [&'static str],
    /// The index of the first prediction block. If llama.cpp does not load a block, it does not read the scales of the
    /// block either.
    predicts_from: u32,
    /// The type that the matrices have.
    matrices: TensorType,
}

impl Blueprint {
    /// A model of this architecture with these keys. Its matrices have the type F16.
    fn new(arch: &str, keys: Builder) -> Self {
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

    /// Vectors stay floats. So do tensors whose rows cannot be divided into whole blocks of the type.
    fn ty(&self, shape: &[u64]) -> TensorType {
        if shape.len() > 1 && shape[0].is_multiple_of(self.matrices.block_size()) {
            self.matrices
        } else {
            TensorType::F32
        }
    }

    /// Lets llama.cpp write the model; `None` if it cannot.
    pub(crate) fn save(&self, model: &Model, folder: &Path) -> Option<PathBuf> {
        if !(self.without.is_empty() && self.also.is_empty() && self.made_of.is_none()) {
            return None;
        }
        let path = self.path(folder, "-saved");
        model.save(&path).ok().map(|()| path)
    }
}

/// The number of the block in the name of a tensor.
fn block_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}
