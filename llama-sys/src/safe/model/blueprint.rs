//! Models that are made from hyper-parameters alone, without a file of weights. They have the tensors that their
//! architecture in llama.cpp needs.
//!
//! They are for tests and planners that need a model of an architecture, but have no file of such a model. A model that
//! is made in this way has every tensor whose size follows from the hyper-parameters, optional tensors included. All
//! weights are zeros.

use std::path::Path;
use std::ptr::NonNull;

use super::params::{ModelParams, Storage};
use super::{Model, no_progress, readable};
use crate::raw;
use crate::safe::call::text::{owned, path_to_c};
use crate::safe::call::{self, Error};
use crate::safe::device::{Backend, registry};

/// The architectures that this llama.cpp knows, by their names in `general.architecture`. llama.cpp knows some of them
/// only by name and cannot load them.
pub fn architectures() -> Vec<String> {
    // SAFETY: the shim writes at most as many names as there is room for; the list is a constant of llama.cpp.
    let names = unsafe { call::list(|names, room| raw::shim_architectures(names, room)) };
    names
        .into_iter()
        // SAFETY: NUL-terminated constants (`LLM_ARCH_NAMES`, llama-arch.cpp).
        .map(|name| unsafe { owned(name) })
        .collect()
}

impl Model {
    /// Makes a model from metadata alone (`llama_model_init_from_user`): the GGUF file at `path` needs no tensors. Each
    /// tensor of the model has the type of the file's tensor with the same name, or `F32` if the file has no such
    /// tensor.
    ///
    /// All weights are zeros, and lie on the host.
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Self::load).
    pub fn from_metadata(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let backend = Backend::init()?;
        let _unchanged = registry::reading();
        let params = ModelParams {
            devices: Some(Vec::new()),
            // The model is to have its prediction blocks too.
            load_mtp: true,
            ..ModelParams::default()
        };
        params.check(backend)?;
        readable(path)?;
        let text = path_to_c(path)?;
        let storage = Storage::new(&params)?;
        let mut native = storage.native(&params);
        // Without a callback, llama.cpp prints dots as its progress.
        native.progress_callback = Some(no_progress);
        let made = call::accepted(
            // SAFETY: the path is NUL-terminated; `native` points into `storage`, which outlives the call.
            |error| unsafe { raw::shim_model_from_metadata(text.as_ptr(), &raw const native, error) },
            |model| !model.is_null(),
        );
        let model = made.map_err(|failure| Error::ModelLoad { path: path.to_owned(), failure })?;
        let raw = NonNull::new(model).expect("accepted above");
        Ok(Self::adopt(raw, path, &params, storage))
    }

    /// Writes the model to a GGUF file, with llama.cpp's own writer (`llama_model_save_to_file`) and its limits.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] for architectures that the writer does not support (llama-model-saver.cpp,
    /// `llama_arch_supports_save`) or whose tensors it confuses, and for weights that were rearranged for the CPU
    /// (`use_extra_bufts`); [`Error::InvalidParameter`] for a model without data or without an embedding.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        if self.is_no_alloc() {
            return Err(Error::parameter("no_alloc", true, "a model without data cannot be written"));
        }
        if !self.tensors().iter().any(|t| t.name == "token_embd.weight") {
            return Err(Error::parameter(
                "token_embd.weight",
                "missing",
                "llama.cpp's writer needs this tensor (llama-model-saver.cpp, `add_tensors_from_model`)",
            ));
        }
        let path = path_to_c(path.as_ref())?;
        let saved = call::accepted(
            // SAFETY: the model is loaded; the path is NUL-terminated.
            |error| unsafe { raw::shim_model_save(self.as_ptr(), path.as_ptr(), error) },
            |&saved| saved,
        );
        saved.map(drop).map_err(|failure| Error::Call { what: "writing the model", failure })
    }
}
