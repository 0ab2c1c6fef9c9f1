//! How a model is to be loaded, and the load itself: read, ask, plan, probe, load.

use std::fmt;
use std::path::{Path, PathBuf};

use llama_sys::{Context, ModelParams};

use super::devices::{by_name, detect};
use super::headroom::{LoadReadings, Work};
use super::replay::{self, Source};
use super::slot::ContextSlot;
use super::{Error, Model, NativeProbe, room};
use crate::gguf::Header;
use crate::machine::{Host, Machine};
use crate::memory::{Headroom, KvType};
use crate::plan::{self, GpuLayers, Plan, Planner, Replay, Request, SavedPlan};
use crate::profile::ModelProfile;

/// A load being described: finish it with [`load`](Self::load), or look first with [`plan`](Self::plan).
#[must_use = "nothing is loaded until `load` is called"]
pub struct ModelBuilder {
    path: PathBuf,
    request: Request,
    machine: Option<Machine>,
    saved: Option<Source>,
    replay: Replay,
    threads: Option<u32>,
    progress: Option<Box<dyn FnMut(f32) -> bool + Send>>,
}

impl ModelBuilder {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            request: Request::new(),
            machine: None,
            saved: None,
            replay: Replay::Refuse,
            threads: None,
            progress: None,
        }
    }

    /// Everything that a plan can be asked for, at once.
    pub fn request(mut self, request: Request) -> Self {
        self.request = request;
        self
    }

    /// Tokens of context. Default: 4096, or what the model was trained on if that is less.
    pub fn context(mut self, context: plan::Context) -> Self {
        self.request.context = context;
        self
    }

    /// Types of the K and V cache. Default: F16 both.
    pub fn kv_types(mut self, keys: KvType, values: KvType) -> Self {
        self.request = self.request.kv_types(keys, values);
        self
    }

    /// Tokens that are computed at once: `n_ubatch`, with `n_batch` at least as large. Default: 512.
    pub fn batch(mut self, n_ubatch: u32) -> Self {
        let n_batch = self.request.params.n_batch.max(n_ubatch);
        self.request = self.request.n_ubatch(n_ubatch).n_batch(n_batch);
        self
    }

    /// What stays free on a GPU.
    pub fn headroom(mut self, headroom: Headroom) -> Self {
        self.request.headroom = headroom;
        self
    }

    /// Layers on the GPU, instead of as many as are safe. A number that does not fit is an error.
    pub fn gpu_layers(mut self, layers: GpuLayers) -> Self {
        self.request.gpu_layers = layers;
        self
    }

    /// Threads for what the CPU computes. Default: one per physical core that this process may use.
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Called with the progress of the load from 0.0 to 1.0; returning `false` cancels it.
    pub fn progress(mut self, callback: impl FnMut(f32) -> bool + Send + 'static) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }

    /// Places the model on this machine instead of the one that is detected: GPUs left out are not used, free bytes are
    /// believed. Its GPUs must be devices of this process.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = Some(machine);
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
        self.prepare().map(|prepared| prepared.plan)
    }

    fn prepare(&self) -> Result<Prepared, Error> {
        let header = Header::open(&self.path)?;
        let profile = ModelProfile::from_header(&header)?;
        let (plan, machine) = match &self.saved {
            Some(saved) => {
                let machine = self.machine.as_ref();
                replay::prepare(&saved.read()?, self.replay, &header, &profile, machine)?
            }
            None => self.make(&header, &profile)?,
        };
        // A plan has sizes that llama.cpp takes.
        let sizes = plan.context.sizes().ok();
        let work = sizes.map(|sizes| Work::of(&profile, &sizes));
        Ok(Prepared {
            plan,
            machine,
            work: work.unwrap_or_default(),
        })
    }

    /// A new plan, and the machine that it is for.
    fn make(&self, header: &Header, profile: &ModelProfile) -> Result<(Plan, Machine), Error> {
        let machine = match (&self.machine, self.request.gpu_layers) {
            (Some(machine), _) => machine.clone(),
            // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
            (None, GpuLayers::Exactly(0)) => Machine::new(Host::detect().0),
            (None, _) => detect()?,
        };
        let plan = Planner::new(profile, &machine)
            .request(self.request.clone())
            .plan_probed(&NativeProbe::new(header)?)?;
        Ok((plan, machine))
    }

    /// Plans and loads.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan); [`Error::OutOfMemory`] when a GPU's memory was taken since the plan was made; [`Error::Native`]
    /// when llama.cpp fails all the same: the file's data is damaged, or the progress callback cancelled.
    pub fn load(mut self) -> Result<Model, Error> {
        let Prepared {
            plan,
            machine,
            work,
        } = self.prepare()?;
        let devices = by_name(
            plan.gpus()
                .map(|gpu| (gpu.device.as_deref(), gpu.name.as_str())),
        )?;
        room::check(&plan, &devices)?;
        let before = LoadReadings::before(&devices, work);
        let native = llama_sys::Model::load(
            &self.path,
            ModelParams {
                n_gpu_layers: plan.n_gpu_layers.try_into().unwrap_or(i32::MAX),
                devices: Some(devices.clone()),
                tensor_split: plan.tensor_split.clone(),
                overrides: plan.split().to_native(&devices)?,
                load_mode: plan
                    .context
                    .load_mode(plan.gpus().map(|gpu| gpu.backend.as_str())),
                use_extra_bufts: plan.context.repack,
                progress: self.progress.take(),
                ..ModelParams::default()
            },
        )
        .map_err(|error| room::explain(error, &plan, &devices))?;
        let threads = self.threads.unwrap_or_else(|| default_threads(&machine));
        let params = llama_sys::ContextParams {
            n_threads: Some(threads),
            n_threads_batch: Some(threads),
            ..plan.context.to_native()
        };
        let context = match Context::new(&native, params.clone()) {
            Ok(context) => context,
            Err(error) => {
                drop(native);
                return Err(room::explain(error, &plan, &devices));
            }
        };
        let slot = ContextSlot::new(context, params);
        Ok(Model::new(native, slot, plan, machine, &devices, before))
    }
}

/// All that is known before the load.
struct Prepared {
    plan: Plan,
    machine: Machine,
    work: Work,
}

impl fmt::Debug for ModelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelBuilder")
            .field("path", &self.path)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// One thread per physical core: a second one on the same core only waits for the same memory.
fn default_threads(machine: &Machine) -> u32 {
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    machine
        .host
        .physical_cores
        .map_or(allowed, |cores| cores.min(allowed))
        .max(1)
}
