//! The handle that keeps a model of a pool loaded.

use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use autoplace::Model;
use autoplace::generate::{self, Engine};

use super::state::{Entry, Id, Loaded, Shared};
use crate::spec::ModelSpec;

/// A loaded model of a pool. The pool may re-place the model, but does not unload it before the last handle is dropped.
///
/// It derefs to the [`Model`]. A clone of that [`Model`] is not a handle: the pool may count the model as unloaded
/// while the clone still takes its memory.
#[derive(Debug, Clone)]
pub struct ModelHandle {
    spec: Arc<ModelSpec>,
    // Fields are dropped in their order. Once the pool no longer counts the handle, it takes the model's memory for
    // free.
    model: Model,
    counted: Counted,
}

/// One of the handles of a model that the pool counts.
#[derive(Debug)]
struct Counted {
    shared: Arc<Shared>,
    id: Id,
    /// Whether it counts as a use of the model, which begins the idle time anew.
    is_use: bool,
}

impl ModelHandle {
    /// Gives a handle of a loaded model.
    pub(super) fn give(shared: &Arc<Shared>, entry: &mut Entry, now: std::time::Duration) -> Option<Self> {
        let model = entry.loaded.as_ref()?.model.clone();
        entry.handles += 1;
        entry.used = now;
        let counted = Counted { shared: Arc::clone(shared), id: entry.id, is_use: true };
        Some(Self { spec: Arc::clone(&entry.spec), model, counted })
    }

    /// Gives a handle of a loaded model to somebody who only asks about it. It does not count as a use.
    pub(super) fn to_look(shared: &Arc<Shared>, entry: &mut Entry) -> Option<Self> {
        let model = entry.loaded.as_ref()?.model.clone();
        entry.handles += 1;
        let counted = Counted { shared: Arc::clone(shared), id: entry.id, is_use: false };
        Some(Self { spec: Arc::clone(&entry.spec), model, counted })
    }

    /// The name that the model had in the pool when this handle was given.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The specification that the model had when this handle was given. Handles of one loaded model may have different
    /// specifications, because [`Pool::set_models`](super::Pool::set_models) may give a loaded model another name or
    /// template.
    pub fn specification(&self) -> &ModelSpec {
        &self.spec
    }

    /// The model's engine, which all handles share. The first call starts it. Drop the engine before the handle,
    /// because it holds the model's context.
    ///
    /// # Errors
    ///
    /// The errors of [`EngineBuilder::start`](generate::EngineBuilder::start).
    pub fn engine(&self) -> Result<Engine, generate::Error> {
        self.made_once(
            |loaded| loaded.engine.clone(),
            |loaded| &loaded.starting,
            || Engine::new(&self.model),
            |loaded, started| loaded.engine = Some(started),
        )
    }

    /// A value that an application keeps with the loaded model; all handles share it, and all must ask for the same
    /// type. The first call makes it. The pool drops it before the model is unloaded, or before a model in a worker is
    /// re-placed. It stays if the model gets another [specification](Self::specification) while it is loaded.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn attached<T: Any + Send + Sync, E>(&self, make: impl FnOnce(&Self) -> Result<T, E>) -> Result<Arc<T>, E> {
        self.made_once(
            |loaded| loaded.attached.clone()?.downcast::<T>().ok(),
            |loaded| &loaded.making,
            || Ok(Arc::new(make(self)?)),
            |loaded, made| loaded.attached = Some(made),
        )
    }

    /// What `known` finds at the loaded model. If it finds nothing, `make` makes the value, and `keep` puts it there.
    /// The lock is held meanwhile, so that only one of several handles makes the value.
    fn made_once<V: Clone, E>(
        &self,
        known: impl Fn(&Loaded) -> Option<V>,
        lock: impl Fn(&Loaded) -> &Arc<Mutex<()>>,
        make: impl FnOnce() -> Result<V, E>,
        keep: impl FnOnce(&mut Loaded, V),
    ) -> Result<V, E> {
        let Counted { shared, id, .. } = &self.counted;
        let look = || shared.lock().entry(*id).and_then(|entry| known(entry.loaded.as_ref()?));
        if let Some(value) = look() {
            return Ok(value);
        }
        let of = |entry: &mut Entry| Some(Arc::clone(lock(entry.loaded.as_ref()?)));
        let making = shared.lock().entry(*id).and_then(of);
        let _making = making.as_ref().map(|making| making.lock().unwrap_or_else(PoisonError::into_inner));
        // Meanwhile, the value may have been made through another handle.
        if let Some(value) = look() {
            return Ok(value);
        }
        let value = make()?;
        if let Some(loaded) = shared.lock().entry(*id).and_then(|entry| entry.loaded.as_mut()) {
            keep(loaded, value.clone());
        }
        Ok(value)
    }

    /// Reports a text that has ended, for the pool's predictions: its computed prompt tokens, and its generated tokens.
    pub fn ended(&self, prompt: u32, reply: u32) {
        if let Some(entry) = self.counted.shared.lock().entry(self.counted.id) {
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

impl Clone for Counted {
    fn clone(&self) -> Self {
        let now = self.shared.now();
        if let Some(entry) = self.shared.lock().entry(self.id) {
            entry.handles += 1;
            entry.used = if self.is_use { now } else { entry.used };
        }
        Self { shared: Arc::clone(&self.shared), id: self.id, is_use: self.is_use }
    }
}

impl Drop for Counted {
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
