//! How a model is to be loaded, and the load itself: read, ask, plan, probe, load.

use std::fmt;
use std::path::{Path, PathBuf};

use super::lease::{Lease, Leases};
use super::recipe::{Prepared, Progress, Recipe};
use super::replay::{self, Source};
use super::{Error, Model};
use crate::gguf::Header;
use crate::machine::Machine;
use crate::memory::{Headroom, KvType};
use crate::plan::{self, GpuLayers, Plan, Replay, Request, SavedPlan};
use crate::profile::ModelProfile;

/// A load being described: finish it with [`load`](Self::load), or look first with [`plan`](Self::plan).
#[must_use = "nothing is loaded until `load` is called"]
pub struct ModelBuilder {
    recipe: Recipe,
    saved: Option<Source>,
    replay: Replay,
    progress: Option<Progress>,
}

impl ModelBuilder {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            recipe: Recipe {
                path: path.to_owned(),
                request: Request::new(),
                machine: None,
                threads: None,
                leases: Leases::user(),
            },
            saved: None,
            replay: Replay::Refuse,
            progress: None,
        }
    }

    /// Everything that a plan can be asked for, at once.
    pub fn request(mut self, request: Request) -> Self {
        self.recipe.request = request;
        self
    }

    /// Tokens of context. Default: 4096, or what the model was trained on if that is less.
    pub fn context(mut self, context: plan::Context) -> Self {
        self.recipe.request.context = context;
        self
    }

    /// Types of the K and V cache. Default: F16 both.
    pub fn kv_types(mut self, keys: KvType, values: KvType) -> Self {
        self.recipe.request = self.recipe.request.kv_types(keys, values);
        self
    }

    /// Tokens that are computed at once: `n_ubatch`, with `n_batch` at least as large. Default: 512.
    pub fn batch(mut self, n_ubatch: u32) -> Self {
        let n_batch = self.recipe.request.params.n_batch.max(n_ubatch);
        self.recipe.request = self.recipe.request.n_ubatch(n_ubatch).n_batch(n_batch);
        self
    }

    /// What stays free on a GPU.
    pub fn headroom(mut self, headroom: Headroom) -> Self {
        self.recipe.request.headroom = headroom;
        self
    }

    /// Layers on the GPU, instead of as many as are safe. A number that does not fit is an error.
    pub fn gpu_layers(mut self, layers: GpuLayers) -> Self {
        self.recipe.request.gpu_layers = layers;
        self
    }

    /// Threads for what the CPU computes. Default: one per physical core that this process may use.
    pub fn threads(mut self, threads: u32) -> Self {
        self.recipe.threads = Some(threads);
        self
    }

    /// Called with the progress of the load from 0.0 to 1.0; returning `false` cancels it.
    pub fn progress(mut self, callback: impl FnMut(f32) -> bool + Send + 'static) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }

    /// Where this load and others of the user tell each other what they are about to take of the GPUs, and how long this
    /// one waits for those that began before it. Default: [`Leases::user`].
    pub fn leases(mut self, leases: Leases) -> Self {
        self.recipe.leases = leases;
        self
    }

    /// Places the model on this machine instead of the one that is detected: GPUs left out are not used, free bytes are
    /// believed. Its GPUs must be devices of this process.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.recipe.machine = Some(machine);
        self
    }

    /// Follows a saved plan exactly, instead of making one: what was asked for otherwise (context, layers, headroom) does not count.
    ///
    /// Before the load it is held against the model, against the machine as it is, and against what llama.cpp says that it takes.
    pub fn follow(mut self, saved: SavedPlan) -> Self {
        self.saved = Some(Source::Here(Box::new(saved)));
        self
    }

    /// Follows the plan in a file that [`SavedPlan::write`] or `autoplace plan --save` wrote: see [`follow`](Self::follow).
    pub fn plan_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.saved = Some(Source::File(file.into()));
        self
    }

    /// What to do with a saved plan where the machine has changed since. Default: refuse it.
    pub fn replay(mut self, replay: Replay) -> Self {
        self.replay = replay;
        self
    }

    /// The plan that [`load`](Self::load) would follow, confirmed by llama.cpp's own arithmetic. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Gguf`] and [`Error::Profile`] for a file that is no model, [`Error::Plan`] when it fits nowhere or was asked for
    /// what cannot be; [`Error::SavedPlan`] for a saved plan that cannot be read, is of another model, or whose machine has changed.
    pub fn plan(&self) -> Result<Plan, Error> {
        // Nothing is to be taken, so nobody has to be waited for.
        let (prepared, _lease) = self.prepare(&Leases::none())?;
        Ok(prepared.plan)
    }

    fn prepare(&self, leases: &Leases) -> Result<(Prepared, Lease), Error> {
        let header = Header::open(&self.recipe.path)?;
        let profile = ModelProfile::from_header(&header)?;
        let (plan, machine, lease) = match &self.saved {
            Some(saved) => {
                let machine = self.recipe.machine.as_ref();
                replay::prepare(
                    &saved.read()?,
                    self.replay,
                    &header,
                    &profile,
                    machine,
                    leases,
                )?
            }
            None => self.recipe.plan(&header, &profile, leases)?,
        };
        Ok((Prepared::new(plan, machine, &profile), lease))
    }

    /// Plans and loads.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan); [`Error::OutOfMemory`] when a GPU's memory was taken since the plan was made; [`Error::Native`]
    /// when llama.cpp fails all the same: the file's data is damaged, or the progress callback cancelled.
    pub fn load(mut self) -> Result<Model, Error> {
        // Held until all that the plan takes is taken.
        let (prepared, _lease) = self.prepare(&self.recipe.leases)?;
        let loaded = self.recipe.load(prepared, self.progress.take())?;
        Ok(Model::new(self.recipe, loaded))
    }
}

impl fmt::Debug for ModelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelBuilder")
            .field("path", &self.recipe.path)
            .field("request", &self.recipe.request)
            .finish_non_exhaustive()
    }
}
