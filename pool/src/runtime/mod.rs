//! The pool at work: a thread that decides, loads, moves and unloads, and the handles of those who use the models.

mod builder;
mod execute;
mod handle;
mod manager;
mod place;
mod settings;
mod state;
mod status;
mod ticket;
mod wanted;

use std::sync::Arc;
use std::thread::JoinHandle;

pub use builder::PoolBuilder;
pub use handle::ModelHandle;
pub use status::{ModelStatus, Residence};
pub use wanted::Wanted;

use crate::error::Error;
use crate::plan::PoolPlan;
use crate::spec::{ModelSpec, check};
use state::Shared;

/// Models of one machine that are loaded when they are wanted. Clones are handles of the same pool; the last one ends
/// the pool and unloads its models.
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
            // A panic of the manager has been reported on its thread.
            let _ = manager.join();
        }
    }
}

impl Pool {
    /// Configures a pool: its models and its bounds.
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

    /// Asks for the model with this name or alias. The result is a future; [`Wanted::wait`] blocks instead. The handle
    /// keeps the model loaded.
    ///
    /// # Errors
    ///
    /// The future fails with [`Error::Unknown`] for another name, [`Error::NoRoom`] or [`Error::Plan`] if the model
    /// does not fit, [`Error::Load`] if it cannot be loaded, [`Error::Waited`] after the pool's patience, and
    /// [`Error::Closed`] when the pool ends.
    pub fn get(&self, name: &str) -> Wanted {
        Wanted::ask(&self.inner.shared, name)
    }

    /// The models with their state, in the order of their specifications.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.inner.shared.status()
    }

    /// The last decision of the pool, if there was one.
    pub fn last_plan(&self) -> Option<Arc<PoolPlan>> {
        self.inner.shared.last_plan()
    }

    /// Unloads a model as soon as nobody has a handle of it. Returns whether it was loaded.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn unload(&self, name: &str) -> Result<bool, Error> {
        self.inner.shared.ask_to_unload(name)
    }

    /// Replaces the specifications. A model whose specification is the same stays as it is; one that has changed or is
    /// gone is unloaded as soon as nobody has a handle of it.
    ///
    /// # Errors
    ///
    /// [`Error::Specification`]; the pool then stays as it was.
    pub fn set_models(&self, models: Vec<ModelSpec>) -> Result<(), Error> {
        check(&models)?;
        self.inner.shared.set_models(models);
        Ok(())
    }
}
