//! How a model is loaded, kept so that it can be loaded again: under another plan, or with what is free by then.

use std::path::PathBuf;

use llama_sys::{Context, Device, ModelParams};

use super::devices::{by_name, detect};
use super::headroom::{LoadReadings, Work};
use super::lease::{Lease, Leases};
use super::model::Placed;
use super::{Error, NativeProbe, room};
use crate::gguf::Header;
use crate::machine::{Host, Machine};
use crate::memory::{Footprints, probe as native_probe};
use crate::plan::{GpuLayers, Plan, Planner, Request};
use crate::profile::ModelProfile;

/// What is called with the progress of a load, and may cancel it.
pub(super) type Progress = Box<dyn FnMut(f32) -> bool + Send>;

/// How a model is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub(super) path: PathBuf,
    pub(super) request: Request,
    /// The machine to believe in, instead of what is detected.
    pub(super) machine: Option<Machine>,
    pub(super) threads: Option<u32>,
    /// Where loads tell each other what they are about to take.
    pub(super) leases: Leases,
}

/// All that is known before the load.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) machine: Machine,
    pub(super) work: Work,
}

impl Prepared {
    pub(super) fn new(plan: Plan, machine: Machine, profile: &ModelProfile) -> Self {
        // A plan has sizes that llama.cpp takes.
        let sizes = plan.context.sizes().ok();
        let work = sizes.map(|sizes| Work::of(profile, &sizes));
        Self {
            plan,
            machine,
            work: work.unwrap_or_default(),
        }
    }
}

/// A model with its one context, and where it went.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) native: llama_sys::Model,
    pub(super) context: Context,
    pub(super) params: llama_sys::ContextParams,
    pub(super) placed: Placed,
}

impl Recipe {
    /// A plan by what is free now, the machine that it is for, and the lease on what it takes there.
    pub(super) fn plan(
        &self,
        header: &Header,
        profile: &ModelProfile,
        leases: &Leases,
    ) -> Result<(Plan, Machine, Lease), Error> {
        let (machine, section) =
            leases.machine(|| match (&self.machine, self.request.gpu_layers) {
                (Some(machine), _) => Ok(machine.clone()),
                // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
                (None, GpuLayers::Exactly(0)) => Ok(Machine::new(Host::detect().0)),
                (None, _) => detect(),
            })?;
        let plan = Planner::new(profile, &machine)
            .request(self.request.clone())
            .plan_probed(&NativeProbe::new(header)?)?;
        let lease = section.hold(&plan, &machine);
        Ok((plan, machine, lease))
    }

    /// Loads by this plan for this machine, or by one that is made of what is free now.
    pub(super) fn load_again(
        &self,
        plan: Option<Plan>,
        machine: &Machine,
    ) -> Result<Loaded, Error> {
        let header = Header::open(&self.path)?;
        let profile = ModelProfile::from_header(&header)?;
        let (plan, machine, _lease) = match plan {
            Some(plan) => {
                let (machine, section) = self.leases.machine(|| Ok::<_, Error>(machine.clone()))?;
                let lease = section.hold(&plan, &machine);
                (plan, machine, lease)
            }
            None => self.plan(&header, &profile, &self.leases)?,
        };
        self.load(Prepared::new(plan, machine, &profile), None)
    }

    /// Loads by a plan.
    pub(super) fn load(
        &self,
        prepared: Prepared,
        progress: Option<Progress>,
    ) -> Result<Loaded, Error> {
        let Prepared {
            plan,
            machine,
            work,
        } = prepared;
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
                progress,
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
        let placed = Placed::new(
            plan,
            machine,
            allocated(&context, &devices),
            before.loaded(),
        );
        Ok(Loaded {
            native,
            context,
            params,
            placed,
        })
    }
}

fn allocated(context: &Context, devices: &[Device]) -> Footprints {
    context
        .memory_breakdown()
        .map(|breakdown| native_probe::footprints(&breakdown, devices))
        .unwrap_or_default()
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
