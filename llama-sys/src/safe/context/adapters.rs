//! The adapters and the control vector that take part in a context's computations.
//!
//! At any time, all sequences of a context are computed with the same set of adapters. If the set changes, earlier
//! entries of the cache stay as they were computed: llama.cpp neither tracks nor clears them.

use std::ptr;

use super::Context;
use crate::raw;
use crate::safe::call::{self, Error};
use crate::safe::device::registry;
use crate::safe::model::LoraAdapter;

impl Context {
    /// From now on, computes with exactly these adapters, each at its scale. An adapter at scale 0 is left out.
    ///
    /// The contents of the cache do not change. If the set or a scale changes, llama.cpp frees its compute buffers and
    /// reserves new ones, for a prompt of [`n_ubatch`](Self::n_ubatch) tokens and for one token of each sequence
    /// (llama-context.cpp, `sched_reserve`). If [`reserve`](Self::reserve) had made the buffers larger, that room is
    /// lost.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an adapter of another model, a repeated adapter, and a scale that is not finite.
    /// Nothing was changed then. [`Error::Call`] if the graph cannot be built with the adapters or a buffer does not
    /// fit ([`Error::out_of_memory`] says which); the context is unusable from then on.
    pub fn set_lora(&mut self, adapters: &[(LoraAdapter, f32)]) -> Result<(), Error> {
        self.check_usable()?;
        for (index, (adapter, scale)) in adapters.iter().enumerate() {
            let file = adapter.path().display();
            if !adapter.model().is(self.model()) {
                return Err(Error::parameter("adapters", file, "the adapter was loaded for another model"));
            }
            if adapters[..index].iter().any(|(other, _)| other == adapter) {
                return Err(Error::parameter("adapters", file, "the set has this adapter twice"));
            }
            if !scale.is_finite() {
                return Err(Error::parameter("scales", scale, "a scale must be a finite number"));
            }
        }
        let mut handles: Vec<_> = adapters.iter().map(|(one, _)| one.as_ptr()).collect();
        let mut scales: Vec<f32> = adapters.iter().map(|&(_, scale)| scale).collect();
        let model = self.model().clone();
        let _unchanged = registry::reading();
        let listed = model.adapters();
        let set = call::accepted(
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
        // The previous adapters are released once llama.cpp no longer uses them. After a failure llama.cpp may still
        // use them, so they are kept.
        let before = std::mem::replace(&mut self.lora, adapters.to_vec());
        match set {
            Ok(_) => {
                // Freeing an adapter changes the model's list of adapters. So this thread must first release its lock
                // on the list.
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

    /// Adds a control vector to the outputs of these layers. From now on the vector applies to all sequences. Empty
    /// `data` removes the vector.
    ///
    /// `data` contains [`n_embd`](crate::Model::n_embd) numbers for each layer, beginning with layer 1; layer 0 never
    /// has a vector. Only the layers that are in `layers` and have numbers in `data` are changed. The contents of the
    /// cache do not change. The first call allocates `n_embd` floats for every layer but the first, on the layer's
    /// device. As in [`set_lora`](Self::set_lora), compute buffers are reserved again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for data that ends within a layer or has more layers than the model, for a number
    /// that is not finite, and for a range without layers. Nothing was changed then. [`Error::Call`] if a buffer does
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
                format!("there must be {n_embd} numbers for each layer, and at most {most} layers"),
            ));
        }
        if let Some(number) = data.iter().find(|number| !number.is_finite()) {
            return Err(Error::parameter("data", number, "numbers must be finite"));
        }
        let (first, last) = (*layers.start(), *layers.end());
        if !data.is_empty() && (first == 0 || first > last) {
            return Err(Error::parameter(
                "layers",
                format!("{first} to {last}"),
                "the first layer must be at least 1, and not after the last",
            ));
        }
        // A layer without data would keep the numbers of an earlier vector (llama-adapter.cpp, `apply`).
        let mut whole = Vec::new();
        if !data.is_empty() {
            whole = data.to_vec();
            whole.resize(most.saturating_mul(n_embd), 0.0);
        }
        let native = if whole.is_empty() { ptr::null() } else { whole.as_ptr() };
        let signed = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let _unchanged = registry::reading();
        let _listed = model.adapters();
        let set = call::accepted(
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
            // If an allocation failed halfway, a second call would fail an assertion (llama-adapter.cpp,
            // `llama_adapter_cvec::init`).
            self.poison(&failure);
            Error::Call { what: "setting a control vector", failure }
        })
    }

    /// The bytes of the model's adapters and of the control vector, with one row for each buffer type.
    pub(super) fn adapter_rows(&self) -> Result<Vec<raw::shim_buffer_bytes>, Error> {
        let _listed = self.model().adapters();
        call::checked(|error| {
            // SAFETY: the model is loaded, and its list of adapters does not change meanwhile. The shim writes at most
            // as many rows as there is room for, and returns 0 if it fails.
            unsafe {
                call::list(|rows, room| {
                    raw::shim_adapter_bytes(self.model().as_ptr(), self.control_vector, rows, room, error)
                })
            }
        })
        .map_err(|failure| Error::Call { what: "reading the memory of adapters", failure })
    }
}
