//! A plan carried out: from the first byte to the warmed-up context; and what it lacked where it failed.
//!
//! Time passes between plan and load, and a GPU is shared: another process may have taken what the plan counted on.
//! llama.cpp would then fail on whichever buffer comes last, after minutes of reading, and name that buffer alone. So
//! what is free is looked at first, and again after a failure: [`Error::OutOfMemory`] names the device, all that the
//! plan takes of it, and what is left. Headroom is not counted: it is there to be used.

use llama_sys::{Cause, Context, Device, ModelParams};

use super::devices::{self, free};
use super::draft::{Drafts, Heads};
use super::error::Stage;
use super::headroom::LoadReadings;
use super::placed::{Placed, Prepared};
use super::progress::Progress;
use super::recipe::{OnDifference, Recipe};
use super::slot::Native;
use super::threads::Threads;
use super::trial::try_out;
use super::warm_up::warm_up;
use super::{Error, native};
use crate::gguf::Header;
use crate::plan::{Placement, Plan};
use crate::profile::ModelProfile;

/// A model with its one context, and where it went.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) native: Native,
    pub(super) context: Context,
    pub(super) drafts: Drafts,
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

/// An error in the middle of a load. Once its load is freed, it is a [`Failure`].
pub(super) struct Unmade {
    stage: Stage,
    error: Box<Error>,
    /// Free on each GPU of the plan at that moment.
    free: Vec<Option<u64>>,
}

impl Recipe {
    /// Carries a plan out: looks whether it still fits, loads, makes the context, warms up. What was taken is
    /// yet to be judged.
    pub(super) fn carry_out(
        &self,
        prepared: &Prepared,
        model: (&Header, &ModelProfile),
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let plan = &prepared.plan;
        let devices = devices::of_plan(plan).map_err(|error| Failure::other(Stage::Check, error))?;
        check(plan, &devices).map_err(|error| Failure::lacking(Stage::Check, error))?;
        let made = self.make(prepared, model, &devices, progress);
        made.map_err(|unmade| unmade.freed(plan, &devices))
    }

    /// The failure of a load that took more than its plan left for it, and is freed.
    pub(super) fn differs(&self, error: Error) -> Box<Failure> {
        match self.terms.on_difference {
            OnDifference::BackOff => Failure::lacking(Stage::Verify, error),
            _ => Failure::other(Stage::Verify, error),
        }
    }

    fn make(
        &self,
        prepared: &Prepared,
        (header, profile): (&Header, &ModelProfile),
        devices: &[Device],
        progress: &Progress,
    ) -> Result<Loaded, Unmade> {
        let Prepared { plan, machine, .. } = prepared;
        let verify = self.terms.verify;
        let readings = LoadReadings::before(devices, prepared.work);
        let params = ModelParams {
            n_gpu_layers: plan.n_gpu_layers.try_into().unwrap_or(i32::MAX),
            devices: Some(devices.to_owned()),
            tensor_split: plan.tensor_split.clone(),
            overrides: native::overrides(&plan.split(), header, devices)
                .map_err(Unmade::at(Stage::Weights, devices))?,
            load_mode: native::load_mode(&plan.context, plan.gpus().map(|gpu| gpu.backend.as_str())),
            use_extra_bufts: plan.context.repack,
            progress: progress.callback(),
            load_mtp: plan.context.mtp,
            ..ModelParams::default()
        };
        let model = native::load(header, params).map_err(Unmade::at(Stage::Weights, devices))?;
        // Before the context, whose graphs leave room for the nodes of all adapters.
        let attached = (self.adapters.load(&model, profile)).map_err(Unmade::at(Stage::Weights, devices))?;
        let threads = Threads::before((self.threads, self.threads_batch), &machine.host, plan, verify);
        let mut params = llama_sys::ContextParams {
            n_threads: Some(threads.generation),
            n_threads_batch: Some(threads.prompt),
            ..native::context(&plan.context)
        };
        let mut context = Context::new(&model, params.clone())
            .and_then(|mut context| attached.attach(&mut context).map(|()| context))
            .map_err(Unmade::at(Stage::Context, devices))?;
        let mut heads =
            Heads::new(&model, &plan.context, threads.prompt).map_err(Unmade::at(Stage::Context, devices))?;
        let run = warm_up(&mut context, heads.as_mut().map(|heads| &mut heads.context), devices, verify, progress)
            .map_err(Unmade::at(Stage::WarmUp, devices))?;
        let threads = try_out(&mut context, threads).map_err(Unmade::at(Stage::WarmUp, devices))?;
        params.n_threads = Some(threads.generation);
        let placed = Placed::new(prepared, &readings, &run, threads, &self.terms);
        Ok(Loaded {
            native: Native { model, params, attached, verify },
            context,
            drafts: Drafts { model: None, heads },
            placed,
        })
    }
}

impl Unmade {
    /// An error at this stage, with what is free on these devices at the moment.
    pub(super) fn at<E: Into<Error>>(stage: Stage, devices: &[Device]) -> impl FnOnce(E) -> Self {
        move |error| Self { stage, error: Box::new(error.into()), free: free(devices) }
    }

    /// The failure, once all of the load has been freed.
    pub(super) fn freed(self, plan: &Plan, devices: &[Device]) -> Box<Failure> {
        match *self.error {
            Error::Native(error) => Failure::of(self.stage, error, self.free, plan, devices),
            error => Failure::other(self.stage, error),
        }
    }
}

impl Failure {
    /// One that has nothing to do with memory.
    pub(super) fn other(stage: Stage, error: Error) -> Box<Self> {
        Box::new(Self { stage, error, lacks_memory: false, refused: None, free: Vec::new() })
    }

    /// One of a lack of memory that llama.cpp did not say.
    pub(super) fn lacking(stage: Stage, error: Error) -> Box<Self> {
        let other = Self::other(stage, error);
        Box::new(Self { lacks_memory: true, ..*other })
    }

    /// One of llama.cpp's, all of whose load has been freed. `free` was before that.
    fn of(stage: Stage, error: llama_sys::Error, free: Vec<Option<u64>>, plan: &Plan, devices: &[Device]) -> Box<Self> {
        let refused = error.out_of_memory().map(|failed| (failed.buffer_type.clone(), failed.bytes));
        if !lacks_memory(stage, &error, devices) {
            return Self::other(stage, error.into());
        }
        Box::new(Self { stage, error: explain(error, plan, devices), lacks_memory: true, refused, free })
    }
}

/// Whether this error says that memory was lacking. A computation says no more than that a device failed; in a warm-up
/// on GPUs, whose first computations make their drivers and pools take memory, that is taken for a lack of it.
fn lacks_memory(stage: Stage, error: &llama_sys::Error, devices: &[Device]) -> bool {
    error.failure().is_some_and(|failure| {
        failure.out_of_memory.is_some()
            || failure.cause == Cause::HostMemory
            || (stage == Stage::WarmUp && !devices.is_empty())
    })
}

/// Refuses a plan that no longer fits the GPUs as they are now. `devices` are those of the plan, in its order.
///
/// A device that does not tell its memory is left to the load.
fn check(plan: &Plan, devices: &[Device]) -> Result<(), Error> {
    let mut lacking = plan.gpus().zip(devices).filter_map(|(gpu, device)| lack(gpu, device));
    lacking.next().map_or(Ok(()), Err)
}

/// Why a load, a context or a computation failed for lack of memory. Where llama.cpp names a GPU of the plan that had
/// no room for a buffer, and there still is too little for the plan, that is the answer; where it names none, the first
/// GPU that has too little is. Any other failure stays as it is.
///
/// To be called once all of the failed load has been freed, so that what is free is what was free for it.
fn explain(error: llama_sys::Error, plan: &Plan, devices: &[Device]) -> Error {
    let named = error.out_of_memory().map(|failed| &failed.buffer_type);
    let lacking = plan
        .gpus()
        .zip(devices)
        .filter(|(_, device)| named.is_none_or(|name| device.name() == *name))
        .find_map(|(gpu, device)| lack(gpu, device));
    lacking.unwrap_or_else(|| error.into())
}

/// The error, if this device has too little for what the plan takes of it.
fn lack(gpu: &Placement, device: &Device) -> Option<Error> {
    let free = devices::memory(device)?.free;
    let needed = gpu.footprint.total().saturating_add(gpu.companions);
    (needed > free).then(|| Error::OutOfMemory { device: device.name(), name: gpu.name.clone(), needed, free })
}
