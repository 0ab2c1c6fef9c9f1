//! LoRA adapters: additions to a model's computation that leave its weights unchanged.
//!
//! For each weight that it changes, an adapter has tensors, which lie in the same memory as the weight. An adapter
//! belongs to one model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Model, readable};
use crate::raw;
use crate::safe::call::text::path_to_c;
use crate::safe::call::{self, Error};
use crate::safe::device::registry;

/// A LoRA adapter of one model. Cloning is cheap. The adapter is freed when its last clone, and the last context that
/// uses it, have been dropped. Until then it keeps its model loaded.
#[derive(Clone)]
pub struct LoraAdapter {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<raw::llama_adapter_lora>,
    path: PathBuf,
    model: Model,
}

// SAFETY: after loading, llama.cpp only reads an adapter (llama-graph.cpp, `build_lora_mm`). The model's list of
// adapters changes under a lock that all of its readers hold too (`Model::adapters`).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let _alone = self.model.change_adapters();
        // SAFETY: shim_lora_load made it, and it is freed once, before the model in the last field. A context that uses
        // the adapter keeps an `Arc` of this value.
        unsafe { raw::llama_adapter_lora_free(self.raw.as_ptr()) };
    }
}

impl LoraAdapter {
    /// Loads the adapter in a GGUF file. Each of its tensors is put into the same memory as the weight that it changes.
    /// For a model without data ([`Model::is_no_alloc`]) only the sizes are loaded.
    ///
    /// Waits while contexts of this model compute. It makes no difference whether a context is created before or after
    /// this call.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] for a path without a readable file; [`Error::AdapterLoad`] for a file that is not a LoRA
    /// adapter or belongs to another model; [`Error::out_of_memory`] says which allocation failed.
    pub fn load(model: &Model, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        readable(path)?;
        let text = path_to_c(path)?;
        // llama.cpp looks for the CPU's buffer types in ggml's registry.
        let _unchanged = registry::reading();
        let _alone = model.change_adapters();
        let adapter = call::accepted(
            // SAFETY: the model is loaded, and nobody else reads its list of adapters; the path is NUL-terminated.
            |error| unsafe { raw::shim_lora_load(model.as_ptr(), text.as_ptr(), error) },
            |adapter| !adapter.is_null(),
        );
        let adapter =
            adapter.map_err(|failure| Error::AdapterLoad { path: path.to_owned(), failure: Box::new(failure) })?;
        let raw = NonNull::new(adapter).expect("accepted above");
        Ok(Self { inner: Arc::new(Inner { raw, path: path.to_owned(), model: model.clone() }) })
    }

    /// The file that the adapter was loaded from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The model that the adapter changes.
    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    pub(crate) fn as_ptr(&self) -> *mut raw::llama_adapter_lora {
        self.inner.raw.as_ptr()
    }
}

impl PartialEq for LoraAdapter {
    /// Whether both are handles of the same load.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for LoraAdapter {}

impl fmt::Debug for LoraAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoraAdapter").field("path", &self.inner.path).finish_non_exhaustive()
    }
}
