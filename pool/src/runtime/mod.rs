//! The running pool: its thread, which decides, loads, moves and unloads, and the handles of its models.

mod builder;
mod execute;
mod handle;
mod manager;
mod neighbours;
mod place;
mod settings;
mod specs;
mod state;
mod status;
mod ticket;
mod wanted;

use std::sync::Arc;
use std::thread::JoinHandle;

pub use builder::PoolBuilder;
pub use handle::ModelHandle;
pub use status::{Activity, ModelStatus, Residence};
pub use wanted::ModelRequest;

use crate::error::Error;
use crate::plan::PoolPlan;
use crate::spec::{ModelSpec, check};
use crate::state::Limits;
use state::Shared;

/// Models of one machine that are loaded on request. Clones share the same pool; dropping the last clone unloads the
/// models.
///
/// ```no_run
/// use autoplace_pool::{ModelSpec, Pool};
///
/// // The first line of `main`: by default each model runs in a process of its own, which is this program.
/// autoplace::worker_main();
/// let pool = Pool::builder()
///     .model(ModelSpec::new("chat", "qwen3-32b-q4_k_m.gguf"))
///     .model(ModelSpec::new("title", "llama-3.2-3b-q4_k_m.gguf"))
///     .start()?;
/// let chat = pool.get("chat").wait()?;
/// println!("{}", chat.generate("Why is the sky blue?").max_tokens(64).text()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    manager: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(manager) = self.manager.take() {
            // The manager's thread has already reported a panic.
            let _ = manager.join();
        }
    }
}

impl Pool {
    /// Configures a pool: its models and its limits.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::new()
    }

    fn start(shared: Shared) -> std::io::Result<Self> {
        let shared = Arc::new(shared);
        let managed = Arc::clone(&shared);
        let manager = std::thread::Builder::new().name("autoplace-pool".to_owned());
        let manager = manager.spawn(move || manager::run(&managed))?;
        Ok(Self { inner: Arc::new(Inner { shared, manager: Some(manager) }) })
    }

    /// Asks for the model with this name or alias. The result is a future; [`ModelRequest::wait`] blocks instead. The
    /// handle keeps the model loaded.
    ///
    /// # Errors
    ///
    /// The future fails with [`Error::Unknown`] if no model has the name, [`Error::NoRoom`] if the model does not fit
    /// beside the models that stay loaded, [`Error::Plan`] if it fits nowhere on this machine or its request is
    /// impossible, [`Error::Load`] if it cannot be loaded, [`Error::TimedOut`] after the pool's patience, and
    /// [`Error::Closed`] when the pool ends.
    pub fn get(&self, name: &str) -> ModelRequest {
        ModelRequest::ask(&self.inner.shared, name)
    }

    /// A handle of the model with this name or alias if it is loaded now; `None` if it is not. Nothing is loaded for
    /// it, and it counts neither as demand nor against the model's idle time: it is for those who only look.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn loaded(&self, name: &str) -> Result<Option<ModelHandle>, Error> {
        let shared = &self.inner.shared;
        let mut state = shared.lock();
        let entry = state.named(name)?;
        Ok(if entry.is_ready() { ModelHandle::to_look(shared, entry) } else { None })
    }

    /// The models with their state, in the order of their specifications.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.inner.shared.status()
    }

    /// Whether the pool has something left to do for past requests, and how often it has decided and read the memory.
    pub fn activity(&self) -> Activity {
        self.inner.shared.activity()
    }

    /// The last decision of the pool, if there was one.
    pub fn last_plan(&self) -> Option<Arc<PoolPlan>> {
        self.inner.shared.last_plan()
    }

    /// Unloads a model as soon as all its handles are dropped. A model that is still to be loaded for earlier requests
    /// is unloaded after them, unless another request comes. Returns whether there was such a model.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if no model has the name.
    pub fn unload(&self, name: &str) -> Result<bool, Error> {
        self.inner.shared.ask_to_unload(name)
    }

    /// Replaces the specifications and the limits. A model whose specification is unchanged stays loaded. A model whose
    /// specification was changed or removed is unloaded as soon as all its handles are dropped.
    ///
    /// A loaded model also stays loaded if a new specification describes the same load: the same file, whatever path
    /// leads to it, with the same request, draft model, projector, adapters and prompt store. So a specification may
    /// get another name or template, and a model whose specification was removed stays if the specification is added
    /// again before the last handle was dropped. Such a model keeps the options that
    /// [`configure`](PoolBuilder::configure) set, its engine, and its [attached](ModelHandle::attached) value.
    ///
    /// # Errors
    ///
    /// [`Error::Specification`] if the models do not agree with each other, or if the folder of a prompt store cannot
    /// be used. The pool is unchanged then.
    pub fn set_models(&self, models: Vec<ModelSpec>, limits: Limits) -> Result<(), Error> {
        check(&models)?;
        self.inner.shared.set_models(models, limits)
    }
}
