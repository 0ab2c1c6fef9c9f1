//! LoRA adapters and control vectors: additions to a model's computation that leave its weights unchanged.
//!
//! An adapter lies beside the weights that it changes, and belongs to one model. A context computes all of its
//! sequences with one set of adapters at a time. The cache keeps what was computed with an earlier set: llama.cpp
//! neither tracks nor clears it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::backend::path_to_c;
use crate::context::Context;
use crate::error::Error;
use crate::model::{Model, readable};
use crate::{raw, shim};

/// A LoRA adapter of one model. Cloning is cheap. It is freed when its last clone and the last context that uses it are
/// dropped, and keeps its model loaded until then.
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
        // SAFETY: shim_lora_load made it, and it is freed once, before the model in the last field. Contexts that use
        // it hold an Arc of this.
        unsafe { raw::llama_adapter_lora_free(self.raw.as_ptr()) };
    }
}

impl LoraAdapter {
    /// Loads the adapter in a GGUF file, each of its tensors beside the weight that it changes. For a model without
    /// data ([`Model::is_no_alloc`]) it loads only the sizes.
    ///
    /// Waits while contexts of this model compute. Contexts may be made before or after.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] for a path without a readable file; [`Error::AdapterLoad`] for a file that is no LoRA
    /// adapter or belongs to another model; [`Error::out_of_memory`] says which allocation failed.
    pub fn load(model: &Model, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        readable(path)?;
        let text = path_to_c(path)?;
        // llama.cpp looks for the CPU's buffer types in ggml's registry.
        let _unchanged = crate::sim::registry::reading();
        let _alone = model.change_adapters();
        let adapter = shim::accepted(
            // SAFETY: the model is loaded, and nobody else reads its list of adapters; the path is NUL-terminated.
            |error| unsafe { raw::shim_lora_load(model.as_ptr(), text.as_ptr(), error) },
            |adapter| !adapter.is_null(),
        );
        let adapter =
            adapter.map_err(|failure| Error::AdapterLoad { path: path.to_owned(), failure: Box::new(failure) })?;
        let raw = NonNull::new(adapter).expect("accepted above");
        Ok(Self { inner: Arc::new(Inner { raw, path: path.to_owned(), model: model.clone() }) })
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The model that it changes.
    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    fn as_ptr(&self) -> *mut raw::llama_adapter_lora {
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

impl Context {
    /// Computes with exactly these adapters from now on, each at its scale. An adapter at scale 0 is left out.
    ///
    /// The cache stays as it was computed. If the set or a scale changes, llama.cpp frees its compute buffers and
    /// reserves new ones, for a prompt of [`n_ubatch`](Self::n_ubatch) tokens and for one token of each sequence
    /// (llama-context.cpp, `sched_reserve`). The growth by [`reserve`](Self::reserve) is lost then.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an adapter of another model, a repeated adapter, and a scale that is not finite;
    /// nothing has changed then. [`Error::Call`] if the graph cannot be built with the adapters or a buffer does not
    /// fit ([`Error::out_of_memory`] says which); the context is unusable from then on.
    pub fn set_lora(&mut self, adapters: &[(LoraAdapter, f32)]) -> Result<(), Error> {
        self.check_usable()?;
        for (index, (adapter, scale)) in adapters.iter().enumerate() {
            let file = adapter.path().display();
            if !adapter.model().is(self.model()) {
                return Err(Error::parameter("adapters", file, "it is of another model"));
            }
            if adapters[..index].iter().any(|(other, _)| other == adapter) {
                return Err(Error::parameter("adapters", file, "once per set"));
            }
            if !scale.is_finite() {
                return Err(Error::parameter("scales", scale, "a finite number"));
            }
        }
        let mut handles: Vec<_> = adapters.iter().map(|(one, _)| one.as_ptr()).collect();
        let mut scales: Vec<f32> = adapters.iter().map(|&(_, scale)| scale).collect();
        let model = self.model().clone();
        let _unchanged = crate::sim::registry::reading();
        let listed = model.adapters();
        let set = shim::accepted(
            // SAFETY: the context lives and is borrowed mutably; the adapters belong to its model and are kept below;
            // both lists have the same length, and llama.cpp copies them.
            |error| unsafe {
                raw::shim_context_set_lora(
                    self.as_ptr(),
                    handles.as_mut_ptr(),
                    scales.as_mut_ptr(),
                    handles.len(),
                    error,
                )
            },
            |set| *set,
        );
        // The former adapters are released once llama.cpp no longer uses them. After a failure it may still use them,
        // so they are kept.
        let before = std::mem::replace(&mut self.lora, adapters.to_vec());
        match set {
            Ok(_) => {
                // Freeing an adapter changes the list.
                drop(listed);
                drop(before);
                Ok(())
            }
            Err(failure) => {
                self.lora.extend(before);
                self.poison(&failure);
                Err(Error::Call { what: "setting LoRA adapters", failure })
            }
        }
    }

    /// The adapters in use, and their scales.
    pub fn lora(&self) -> &[(LoraAdapter, f32)] {
        &self.lora
    }

    /// Adds a control vector to the outputs of these layers, from now on and for all sequences. Empty `data` ends that.
    ///
    /// `data` has [`n_embd`](Model::n_embd) numbers for each layer, from layer 1 on; layer 0 never has any. Layers
    /// beyond the data and outside of `layers` are not changed. The cache stays as it was computed. The first call
    /// allocates `n_embd` floats for every layer but the first, on the layer's device. Compute buffers are reserved
    /// anew as by [`set_lora`](Self::set_lora).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for data that ends within a layer or has more layers than the model, for a number
    /// that is not finite, and for a range without layers; nothing has changed then. [`Error::Call`] if a buffer does
    /// not fit; the context is unusable from then on.
    pub fn set_control_vector(&mut self, data: &[f32], layers: std::ops::RangeInclusive<u32>) -> Result<(), Error> {
        self.check_usable()?;
        if data.is_empty() && !self.control_vector {
            return Ok(());
        }
        let model = self.model().clone();
        let n_embd = model.n_embd().max(1) as usize;
        let most = model.n_layer().saturating_sub(1) as usize;
        if !data.len().is_multiple_of(n_embd) || data.len() / n_embd > most {
            return Err(Error::parameter(
                "len",
                data.len(),
                format!("{n_embd} numbers for each of at most {most} layers"),
            ));
        }
        if let Some(number) = data.iter().find(|number| !number.is_finite()) {
            return Err(Error::parameter("data", number, "finite numbers"));
        }
        let (first, last) = (*layers.start(), *layers.end());
        if !data.is_empty() && (first == 0 || first > last) {
            return Err(Error::parameter(
                "layers",
                format!("{first} to {last}"),
                "from layer 1 on, the first not after the last",
            ));
        }
        // Layers without data would keep the numbers of an earlier vector (llama-adapter.cpp, `apply`).
        let mut whole = Vec::new();
        if !data.is_empty() {
            whole = data.to_vec();
            whole.resize(most.saturating_mul(n_embd), 0.0);
        }
        let native = if whole.is_empty() { ptr::null() } else { whole.as_ptr() };
        let signed = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let _unchanged = crate::sim::registry::reading();
        let _listed = model.adapters();
        let set = shim::accepted(
            // SAFETY: the context lives and is borrowed mutably; `whole` has `n_embd` numbers for each layer but the
            // first, which llama.cpp copies; NULL ends the vector.
            |error| unsafe {
                raw::shim_context_set_control_vector(
                    self.as_ptr(),
                    native,
                    whole.len(),
                    signed(model.n_embd()),
                    signed(first),
                    signed(last),
                    error,
                )
            },
            |set| *set,
        );
        self.control_vector |= !data.is_empty();
        set.map(drop).map_err(|failure| {
            // After an allocation that failed halfway, a second call would fail an assertion (llama-adapter.cpp,
            // `llama_adapter_cvec::init`).
            self.poison(&failure);
            Error::Call { what: "setting a control vector", failure }
        })
    }

    /// The bytes of the model's adapters and of the control vector: a row for each buffer type.
    pub(crate) fn adapter_rows(&self) -> Result<Vec<raw::shim_buffer_bytes>, Error> {
        let _listed = self.model().adapters();
        shim::checked(|error| {
            // SAFETY: the model is loaded, and its list of adapters does not change meanwhile. The shim writes at most
            // as many rows as there is room for, and returns 0 if it fails.
            unsafe {
                shim::list(|rows, room| {
                    raw::shim_adapter_bytes(self.model().as_ptr(), self.control_vector, rows, room, error)
                })
            }
        })
        .map_err(|failure| Error::Call { what: "reading the memory of adapters", failure })
    }
}
