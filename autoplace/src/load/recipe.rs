//! How a model is loaded, kept so that it can be loaded again; and a plan carried out: from the first byte to the
//! warmed-up context.

use std::collections::BTreeMap;
use std::path::PathBuf;

use llama_sys::{Backend, Cause, Context, Device, ModelParams};
use serde::{Deserialize, Serialize};

use super::adapters::{AdapterFiles, Attached};
use super::attempt::Stage;
use super::devices::{by_name, detect};
use super::drafts::Drafts;
use super::headroom::{LoadReadings, Work, free};
use super::heads::Heads;
use super::lease::Leases;
use super::model::Placed;
use super::progress::Progress;
use super::terms::Terms;
use super::threads::{self, Threads};
use super::warm_up::warm_up;
use super::{Error, native, room};
use crate::gguf::Header;
use crate::machine::{Host, Machine};
use crate::memory::Footprints;
use crate::plan::{GpuLayers, Plan, Planner, Request};
use crate::profile::ModelProfile;

/// Tokens that a draft may draft at once, where nobody says how many.
const DRAFT_MAX: u32 = 8;

/// Bytes that checkpoints of a model may take, where nobody says how many: two of gemma-3-27b's, and dozens or hundreds
/// of models with smaller windows or states.
pub(super) const CHECKPOINTS: u64 = 1 << 30;

/// How a model is loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub(super) path: PathBuf,
    /// A model that drafts for it.
    #[serde(default)]
    pub(super) draft: Option<PathBuf>,
    /// Whether the blocks that predict further tokens are loaded.
    #[serde(default)]
    pub(super) mtp: bool,
    pub(super) request: Request,
    /// What is added to the model.
    pub(super) adapters: AdapterFiles,
    /// The machine to believe in, instead of what is detected.
    pub(super) machine: Option<Machine>,
    pub(super) threads: Option<u32>,
    /// Bytes of the host that checkpoints may take.
    pub(super) checkpoints: u64,
    /// Where loads tell each other what they are about to take.
    pub(super) leases: Leases,
    pub(super) terms: Terms,
}

/// All that is known before the load.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) machine: Machine,
    /// What llama.cpp says that the plan takes.
    pub(super) probed: Footprints,
    /// Bytes that are free and did not count as such, because earlier attempts taught so; by ggml's name of the device.
    pub(super) withheld: BTreeMap<String, u64>,
    pub(super) work: Work,
}

impl Prepared {
    pub(super) fn new(
        plan: Plan,
        machine: Machine,
        probed: Footprints,
        profile: &ModelProfile,
    ) -> Self {
        // A plan has sizes that llama.cpp takes.
        let sizes = plan.context.sizes().ok();
        let work = sizes.map(|sizes| Work::of(profile, &sizes));
        Self {
            plan,
            machine,
            probed,
            withheld: BTreeMap::new(),
            work: work.unwrap_or_default(),
        }
    }
}

/// A model with its one context, and where it went.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) native: llama_sys::Model,
    pub(super) context: Context,
    pub(super) drafts: Drafts,
    pub(super) params: llama_sys::ContextParams,
    pub(super) attached: Attached,
    pub(super) placed: Placed,
}

/// Why a plan could not be carried out. Nothing of it is allocated any more.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) error: Error,
    /// Whether memory was lacking, so that a smaller plan may do.
    pub(super) lacks_memory: bool,
    /// What llama.cpp had no room for: the buffer type, and bytes.
    pub(super) refused: Option<(String, u64)>,
    /// Free on each GPU of the plan when it failed, before anything was released.
    pub(super) free: Vec<Option<u64>>,
}

impl Recipe {
    /// The machine to plan for. One that the caller has described is believed at first; `again`, after time has passed,
    /// no GPU of it counts with more free bytes than it has now.
    pub(super) fn machine(&self, again: bool) -> Result<Machine, Error> {
        match (&self.machine, self.request.gpu_layers) {
            (Some(machine), _) if again => bounded_by_now(machine.clone()),
            (Some(machine), _) => Ok(machine.clone()),
            // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
            (None, GpuLayers::Exactly(0)) => Ok(Machine::new(Host::detect().0)),
            (None, _) => detect(),
        }
    }

    /// What the model is, with all that is loaded of it and beside it.
    pub(super) fn profile(&self, header: &Header) -> Result<ModelProfile, Error> {
        let mut profile = ModelProfile::from_header(header)?;
        if self.mtp {
            profile = profile.with_mtp()?;
        }
        Ok(self.adapters.beside(profile)?)
    }

    /// A plan for this machine, confirmed by llama.cpp.
    pub(super) fn plan(
        &self,
        header: &Header,
        profile: &ModelProfile,
        machine: &Machine,
    ) -> Result<Plan, Error> {
        let mut request = self.request.clone();
        let companion = self.companion(header)?;
        if companion.is_some() && request.draft_max == 0 {
            request.draft_max = DRAFT_MAX;
        }
        let mut planner = Planner::new(profile, machine).request(request);
        if let Some(companion) = companion {
            planner = planner.beside(companion);
        }
        Ok(planner.plan_probed(&self.adapters.probe(header)?)?)
    }

    /// Threads for what the CPU of this machine computes of a draft.
    pub(super) fn threads_on(&self, machine: &Machine) -> u32 {
        self.threads
            .unwrap_or_else(|| threads::cores(&machine.host))
    }

    /// Carries a plan out: looks whether it still fits, loads, makes the context, warms up. What was taken is
    /// yet to be judged.
    pub(super) fn carry_out(
        &self,
        prepared: &Prepared,
        profile: &ModelProfile,
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let Prepared { plan, machine, .. } = prepared;
        let gpus = plan.gpus();
        let devices = by_name(gpus.map(|gpu| (gpu.device.as_deref(), gpu.name.as_str())))
            .map_err(|error| Failure::other(Stage::Check, error))?;
        room::check(plan, &devices).map_err(|error| {
            let mut failure = Failure::other(Stage::Check, error);
            failure.lacks_memory = true;
            failure
        })?;
        let readings = LoadReadings::before(&devices, prepared.work);
        let overrides = native::overrides(&plan.split(), &devices)
            .map_err(|error| Failure::other(Stage::Weights, error.into()))?;
        let native = llama_sys::Model::load(
            &self.path,
            ModelParams {
                n_gpu_layers: plan.n_gpu_layers.try_into().unwrap_or(i32::MAX),
                devices: Some(devices.clone()),
                tensor_split: plan.tensor_split.clone(),
                overrides,
                load_mode: native::load_mode(
                    &plan.context,
                    plan.gpus().map(|gpu| gpu.backend.as_str()),
                ),
                use_extra_bufts: plan.context.repack,
                progress: progress.callback(),
                load_mtp: plan.context.mtp,
                ..ModelParams::default()
            },
        )
        .map_err(|error| {
            let free = free(&devices);
            Failure::of(Stage::Weights, error, free, plan, &devices)
        })?;
        // Before the context, whose graphs leave room for the nodes of all adapters.
        let attached = match self.adapters.load(&native, profile) {
            Ok(attached) => attached,
            Err(Error::Native(error)) => {
                let free = free(&devices);
                drop(native);
                return Err(Failure::of(Stage::Weights, error, free, plan, &devices));
            }
            Err(error) => return Err(Failure::other(Stage::Weights, error)),
        };
        let threads = Threads::before(self.threads, &machine.host, plan, self.terms.verify);
        let mut params = llama_sys::ContextParams {
            n_threads: Some(threads.generation),
            n_threads_batch: Some(threads.prompt),
            ..native::context(&plan.context)
        };
        let made = Context::new(&native, params.clone()).and_then(|mut context| {
            attached.attach(&mut context)?;
            Ok(context)
        });
        let mut context = match made {
            Ok(context) => context,
            Err(error) => {
                let free = free(&devices);
                drop((attached, native));
                return Err(Failure::of(Stage::Context, error, free, plan, &devices));
            }
        };
        let mut heads = match Heads::new(&native, &plan.context, threads.prompt) {
            Ok(heads) => heads,
            Err(error) => {
                let free = free(&devices);
                drop((context, attached, native));
                return Err(Failure::of(Stage::Context, error, free, plan, &devices));
            }
        };
        let (op_offload, verify) = (plan.context.op_offload, self.terms.verify);
        let predicting = heads.as_mut().map(|heads| &mut heads.context);
        let run = warm_up(
            &mut context,
            predicting,
            &devices,
            op_offload,
            verify,
            progress,
        );
        let run = run.and_then(|run| Ok((run, threads::try_out(&mut context, threads)?)));
        let (run, threads) = match run {
            Ok(run) => run,
            Err(error) => {
                let free = free(&devices);
                drop((heads, context, attached, native));
                return Err(Failure::of(Stage::WarmUp, error, free, plan, &devices));
            }
        };
        params.n_threads = Some(threads.generation);
        let placed = Placed::new(prepared, &readings, &run, threads, &self.terms);
        Ok(Loaded {
            native,
            context,
            drafts: Drafts { model: None, heads },
            params,
            attached,
            placed,
        })
    }
}

impl Failure {
    /// One that has nothing to do with memory.
    pub(super) fn other(stage: Stage, error: Error) -> Box<Self> {
        Box::new(Self {
            stage,
            error,
            lacks_memory: false,
            refused: None,
            free: Vec::new(),
        })
    }

    /// One of llama.cpp's, all of whose load has been freed. `free` was before that.
    pub(super) fn of(
        stage: Stage,
        error: llama_sys::Error,
        free: Vec<Option<u64>>,
        plan: &Plan,
        devices: &[Device],
    ) -> Box<Self> {
        let refused = error
            .out_of_memory()
            .map(|failed| (failed.buffer_type.clone(), failed.bytes));
        if !lacks_memory(stage, &error, devices) {
            return Self::other(stage, error.into());
        }
        Box::new(Self {
            stage,
            error: room::explain(error, plan, devices),
            lacks_memory: true,
            refused,
            free,
        })
    }
}

/// Whether this error says that memory was lacking. A computation says no more than that a device failed; in a warm-up
/// on GPUs, whose first computations make their drivers and pools take memory, that is taken for a lack of it.
fn lacks_memory(stage: Stage, error: &llama_sys::Error, devices: &[Device]) -> bool {
    use llama_sys::Error as Native;
    let cause = match error {
        Native::AdapterLoad { failure, .. } => failure.cause,
        Native::ModelLoad { failure, .. }
        | Native::ContextInit { failure, .. }
        | Native::Decode { failure, .. }
        | Native::Call { failure, .. } => failure.cause,
        _ => return false,
    };
    error.out_of_memory().is_some()
        || cause == Cause::HostMemory
        || (stage == Stage::WarmUp && !devices.is_empty())
}

/// The same machine, of whose GPUs no more counts as free than is free now, as far as they tell.
pub(super) fn bounded_by_now(mut machine: Machine) -> Result<Machine, Error> {
    let devices = Backend::init()?.devices();
    for gpu in &mut machine.gpus {
        let device = devices
            .iter()
            .find(|device| gpu.device.as_ref() == Some(&device.name()));
        let memory = device.and_then(|device| device.memory().ok());
        // A total of 0 is how ggml says "unknown".
        if let Some(memory) = memory.filter(|memory| memory.total > 0) {
            gpu.free = gpu.free.min(memory.free);
        }
    }
    Ok(machine)
}
