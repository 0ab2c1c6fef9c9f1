//! Models without weights: made from hyper-parameters, with the tensors that llama.cpp's architecture asks for.
//!
//! For tests and planners that want a model of an architecture without a file of it. The model has every tensor,
//! optional ones included, whose size follows from the hyper-parameters; all of them are zeros.

use std::path::Path;
use std::ptr::NonNull;

use crate::backend::{Backend, path_to_c};
use crate::device::owned;
use crate::error::Error;
use crate::model::{Model, no_progress, readable};
use crate::model_params::{ModelParams, Storage};
use crate::{raw, shim};

/// A tensor of a model, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelTensor {
    /// Its name: `blk.0.attn_q.weight`.
    pub name: String,
    /// The number of its type in ggml, as a GGUF file states it.
    pub ty: u32,
    /// Its elements along each dimension, innermost first; unused dimensions are 1.
    pub shape: [u64; 4],
}

/// The architectures that this llama.cpp knows, by their names in `general.architecture`. Some of them it knows by name
/// only and cannot load.
pub fn architectures() -> Vec<String> {
    // SAFETY: the shim writes at most as many names as there is room for; the list is a constant of llama.cpp.
    let names = unsafe { shim::list(|names, room| raw::shim_architectures(names, room)) };
    names
        .into_iter()
        // SAFETY: NUL-terminated constants (`LLM_ARCH_NAMES`, llama-arch.cpp).
        .map(|name| unsafe { owned(name) })
        .collect()
}

impl Model {
    /// Makes a model from metadata alone (`llama_model_init_from_user`): the GGUF file at `path` need not hold any
    /// tensor. A tensor that it does hold gives its type to the model's tensor of that name; all others are `F32`.
    ///
    /// The weights are zeros on the host.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn from_metadata(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let backend = Backend::init()?;
        let _unchanged = crate::sim::registry::reading();
        let params = ModelParams {
            devices: Some(Vec::new()),
            // Prediction blocks are wanted too.
            load_mtp: true,
            ..ModelParams::default()
        };
        params.check(backend)?;
        readable(path)?;
        let text = path_to_c(path)?;
        let storage = Storage::new(&params)?;
        let mut native = storage.native(&params);
        // Without a callback llama.cpp prints dots.
        native.progress_callback = Some(no_progress);
        let made = shim::accepted(
            // SAFETY: the path is NUL-terminated; `native` points into `storage`, which outlives the call.
            |error| unsafe { raw::shim_model_from_metadata(text.as_ptr(), &raw const native, error) },
            |model| !model.is_null(),
        );
        let model = made.map_err(|failure| Error::ModelLoad { path: path.to_owned(), failure })?;
        let raw = NonNull::new(model).expect("accepted above");
        Ok(Self::adopt(raw, path, &params, storage))
    }

    /// Writes the model to a GGUF file, within the limits of llama.cpp's own writer (`llama_model_save_to_file`).
    ///
    /// # Errors
    ///
    /// [`Error::Call`] for architectures that the writer cannot write (llama-model-saver.cpp,
    /// `llama_model_saver_supports_arch`), for architectures whose tensors it confuses, and for weights that were
    /// rearranged for the CPU (`use_extra_bufts`); [`Error::InvalidParameter`] for a model without data or without an
    /// embedding.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        if self.is_no_alloc() {
            return Err(Error::parameter("no_alloc", true, "a model without data cannot be written"));
        }
        if !self.tensors().iter().any(|t| t.name == "token_embd.weight") {
            return Err(Error::parameter(
                "token_embd.weight",
                "missing",
                "llama.cpp's writer reads its name (llama-model-saver.cpp, `add_tensors_from_model`)",
            ));
        }
        let path = path_to_c(path.as_ref())?;
        let saved = shim::accepted(
            // SAFETY: the model is loaded; the path is NUL-terminated.
            |error| unsafe { raw::shim_model_save(self.as_ptr(), path.as_ptr(), error) },
            |&saved| saved,
        );
        saved.map(drop).map_err(|failure| Error::Call { what: "writing the model", failure })
    }

    /// The tensors of the model, in no particular order. A tensor that several devices hold appears once.
    pub fn tensors(&self) -> Vec<ModelTensor> {
        let mut all: Vec<ModelTensor> = self
            .list_tensors()
            .iter()
            .map(|tensor| ModelTensor {
                // SAFETY: the shim has set a NUL-terminated name that lives as long as the model.
                name: unsafe { owned(tensor.name) },
                #[allow(clippy::unnecessary_cast, reason = "ggml's enum is signed for MSVC")]
                ty: tensor.type_ as u32,
                shape: tensor.ne.map(|n| u64::try_from(n).unwrap_or(0)),
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
        all
    }

    /// llama.cpp's own list, in which a tensor that several devices hold appears once for each of them.
    pub(crate) fn list_tensors(&self) -> Vec<raw::shim_tensor> {
        // SAFETY: the model is loaded, and its list never changes; the shim writes at most as many entries as there is
        // room for.
        unsafe { shim::list(|tensors, room| raw::shim_model_tensors(self.as_ptr(), tensors, room)) }
    }
}
