//! The handle that keeps a model of a pool loaded.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use autoplace::Model;
use autoplace::generate::{self, Engine};

use super::state::{Entry, Id, Shared};

/// A loaded model of a pool. The pool may re-place the model, but does not unload it before the last handle is dropped.
///
/// It derefs to the [`Model`]. A clone of that [`Model`] is no handle: the pool may count the model as unloaded while
/// the clone still takes its memory.
#[derive(Debug)]
pub struct ModelHandle {
    shared: Arc<Shared>,
    id: Id,
    name: String,
    model: Model,
}

impl ModelHandle {
    /// Gives a handle of a loaded model.
    pub(super) fn give(shared: &Arc<Shared>, entry: &mut Entry, now: std::time::Duration) -> Option<Self> {
        let model = entry.loaded.as_ref()?.model.clone();
        entry.handles += 1;
        entry.used = now;
        Some(Self { shared: Arc::clone(shared), id: entry.id, name: entry.spec.name.clone(), model })
    }

    /// The model's name in the pool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's engine, which all handles share. The first call starts it. Drop the engine before the handle,
    /// because it holds the model's context.
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::start`](generate::EngineBuilder::start).
    pub fn engine(&self) -> Result<Engine, generate::Error> {
        let known = |shared: &Shared| {
            let mut state = shared.lock();
            state.entry(self.id).and_then(|entry| entry.loaded.as_ref()?.engine.clone())
        };
        if let Some(engine) = known(&self.shared) {
            return Ok(engine);
        }
        let started = match Engine::new(&self.model) {
            Err(generate::Error::Busy) => match known(&self.shared) {
                // Another handle has started it meanwhile.
                Some(engine) => return Ok(engine),
                None => return Err(generate::Error::Busy),
            },
            started => started?,
        };
        let mut state = self.shared.lock();
        let loaded = state.entry(self.id).and_then(|entry| entry.loaded.as_mut());
        if let Some(loaded) = loaded {
            loaded.engine = Some(started.clone());
        }
        Ok(started)
    }

    /// A value that an application keeps with the loaded model; all handles share it, and all must ask for the same
    /// type. The first call makes it. The pool drops it before the model is unloaded, or before a model in a worker is
    /// re-placed.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn attached<T: Any + Send + Sync, E>(&self, make: impl FnOnce(&Self) -> Result<T, E>) -> Result<Arc<T>, E> {
        let known = |shared: &Shared| {
            let mut state = shared.lock();
            let attached = state.entry(self.id).and_then(|entry| entry.loaded.as_ref()?.attached.clone())?;
            attached.downcast::<T>().ok()
        };
        if let Some(known) = known(&self.shared) {
            return Ok(known);
        }
        let made = Arc::new(make(self)?);
        let mut state = self.shared.lock();
        let loaded = state.entry(self.id).and_then(|entry| entry.loaded.as_mut());
        let replaced =
            loaded.and_then(|loaded| loaded.attached.replace(Arc::clone(&made) as Arc<dyn Any + Send + Sync>));
        drop(state);
        // The replaced value is dropped without the lock.
        drop(replaced);
        Ok(made)
    }

    /// Reports a text that has ended, for the pool's predictions: its computed prompt tokens, and its generated tokens.
    pub fn ended(&self, prompt: u32, reply: u32) {
        if let Some(entry) = self.shared.lock().entry(self.id) {
            entry.demand.ended(prompt, reply);
        }
    }
}

impl Deref for ModelHandle {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Clone for ModelHandle {
    fn clone(&self) -> Self {
        let now = self.shared.now();
        if let Some(entry) = self.shared.lock().entry(self.id) {
            entry.handles += 1;
            entry.used = now;
        }
        Self { shared: Arc::clone(&self.shared), id: self.id, name: self.name.clone(), model: self.model.clone() }
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.change(|state| {
            if let Some(entry) = state.entry(self.id) {
                entry.handles = entry.handles.saturating_sub(1);
                entry.used = now;
            }
        });
    }
}
