//! The handle that keeps a model of a pool loaded.

use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, PoisonError};

use autoplace::Model;
use autoplace::generate::{self, Engine};

use super::state::{Entry, Id, Shared};

/// A loaded model of a pool. The pool may re-place the model, but does not unload it before the last handle is dropped.
///
/// It derefs to the [`Model`]. A clone of that [`Model`] is not a handle: the pool may count the model as unloaded
/// while the clone still takes its memory.
#[derive(Debug)]
pub struct ModelHandle {
    shared: Arc<Shared>,
    id: Id,
    name: String,
    model: Model,
    /// Whether it counts as a use of the model, which begins the idle time anew.
    is_use: bool,
}

impl ModelHandle {
    /// Gives a handle of a loaded model.
    pub(super) fn give(shared: &Arc<Shared>, entry: &mut Entry, now: std::time::Duration) -> Option<Self> {
        let model = entry.loaded.as_ref()?.model.clone();
        entry.handles += 1;
        entry.used = now;
        let name = entry.spec.name.clone();
        Some(Self { shared: Arc::clone(shared), id: entry.id, name, model, is_use: true })
    }

    /// Gives a handle of a loaded model to somebody who only asks about it. It does not count as a use.
    pub(super) fn to_look(shared: &Arc<Shared>, entry: &mut Entry) -> Option<Self> {
        let model = entry.loaded.as_ref()?.model.clone();
        entry.handles += 1;
        let name = entry.spec.name.clone();
        Some(Self { shared: Arc::clone(shared), id: entry.id, name, model, is_use: false })
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
    /// The errors of [`EngineBuilder::start`](generate::EngineBuilder::start).
    pub fn engine(&self) -> Result<Engine, generate::Error> {
        let known = |shared: &Shared| {
            let mut state = shared.lock();
            state.entry(self.id).and_then(|entry| entry.loaded.as_ref()?.engine.clone())
        };
        if let Some(engine) = known(&self.shared) {
            return Ok(engine);
        }
        let starting = {
            let mut state = self.shared.lock();
            state.entry(self.id).and_then(|entry| Some(Arc::clone(&entry.loaded.as_ref()?.starting)))
        };
        let _starting = starting.as_ref().map(|starting| starting.lock().unwrap_or_else(PoisonError::into_inner));
        // Meanwhile, the engine was started through another handle.
        if let Some(engine) = known(&self.shared) {
            return Ok(engine);
        }
        let started = Engine::new(&self.model)?;
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
        let making = {
            let mut state = self.shared.lock();
            state.entry(self.id).and_then(|entry| Some(Arc::clone(&entry.loaded.as_ref()?.making)))
        };
        let _making = making.as_ref().map(|making| making.lock().unwrap_or_else(PoisonError::into_inner));
        // Meanwhile, the value was made through another handle.
        if let Some(known) = known(&self.shared) {
            return Ok(known);
        }
        let made = Arc::new(make(self)?);
        let mut state = self.shared.lock();
        if let Some(loaded) = state.entry(self.id).and_then(|entry| entry.loaded.as_mut()) {
            loaded.attached = Some(Arc::clone(&made) as Arc<dyn Any + Send + Sync>);
        }
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
            entry.used = if self.is_use { now } else { entry.used };
        }
        Self {
            shared: Arc::clone(&self.shared),
            id: self.id,
            name: self.name.clone(),
            model: self.model.clone(),
            is_use: self.is_use,
        }
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.change(|state| {
            state.may_anticipate |= self.is_use;
            if let Some(entry) = state.entry(self.id) {
                entry.handles = entry.handles.saturating_sub(1);
                entry.used = if self.is_use { now } else { entry.used };
            }
        });
    }
}
