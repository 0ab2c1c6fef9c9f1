//! Carries out a plan. In: a plan. Out: a loaded model with a warmed-up context, or the reason for a failure.
//!
//! Another process may have taken memory that the plan counted on. llama.cpp would then fail on its last buffer, after
//! minutes of reading. So free memory is checked first, and again after a failure: [`Error::OutOfMemory`] names the
//! device, the plan's bytes on it, and the bytes left. The headroom does not count as needed bytes, because a load may
//! use it.

use llama_sys::{Context, Device, FailureCause, ModelParams};

use super::devices;
use super::error::Stage;
use super::headroom::Reading;
use super::loaded::{Drafts, Failure, Heads, Loaded, Native};
use super::moves::LoadClock;
use super::options::{LoadOptions, OnDifference};
use super::placed::{Placed, Prepared};
use super::progress::Progress;
use super::threads::Threads;
use super::warm_up::warm_up;
use super::{Error, native};
use crate::gguf::Header;
use crate::plan::Plan;

impl LoadOptions {
    /// Checks that a plan still fits, loads the model, creates the context, and warms it up. The caller then judges the
    /// memory that the load took.
    pub(super) fn carry_out(
        &self,
        prepared: &Prepared,
        header: &Header,
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let plan = &prepared.plan;
        let devices = devices::of_plan(plan).map_err(Failure::at(Stage::Check))?;
        if let Some(error) = lacking(plan, &devices, None) {
            return Err(Failure::at(Stage::Check)(error));
        }
        self.make(prepared, header, &devices, progress).map_err(|failure| failure.freed(plan, &devices))
    }

    fn make(
        &self,
        prepared: &Prepared,
        header: &Header,
        devices: &[Device],
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let Prepared { plan, machine, .. } = prepared;
        let verify = self.verify;
        let before = Reading::now(devices);
        let mut clock = LoadClock::begin(header);
        let params = ModelParams {
            n_gpu_layers: plan.n_gpu_layers.try_into().unwrap_or(i32::MAX),
            devices: Some(devices.to_owned()),
            tensor_split: shares(plan),
            overrides: native::overrides(&plan.split(), header, devices).map_err(Failure::at(Stage::Weights))?,
            load_mode: native::load_mode(&plan.context, header, plan.gpus().map(|gpu| gpu.backend.as_str())),
            use_extra_bufts: plan.context.repack,
            progress: progress.of_weights(Stage::Weights),
            load_mtp: plan.context.mtp,
            ..ModelParams::default()
        };
        let model = native::load(header, params).map_err(Failure::at(Stage::Weights))?;
        clock.weights_loaded();
        // Adapters come before the context, because the context's graphs reserve nodes for all of them.
        let attached = self.adapters.load(&model, header).map_err(Failure::at(Stage::Weights))?;
        let threads = Threads::new((self.threads, self.threads_batch), &machine.host, plan);
        let params = llama_sys::ContextParams {
            n_threads: Some(threads.generation),
            n_threads_batch: Some(threads.prompt),
            rows: self.mmproj.is_some(),
            ..native::context(&plan.context)
        };
        let mut context = Context::new(&model, params.clone())
            .and_then(|mut context| attached.attach(&mut context).map(|()| context))
            .map_err(Failure::at(Stage::Context))?;
        let mut heads = Heads::planned(&model, &plan.context, threads.prompt).map_err(Failure::at(Stage::Context))?;
        let run = warm_up(&mut context, heads.as_mut().map(|heads| &mut heads.context), devices, verify, progress)
            .map_err(Failure::at(Stage::WarmUp))?;
        let placed = Placed::new(prepared, &before, &run, threads, &self.learn);
        Ok(Loaded {
            native: Native { model, params, attached, media: None, verify, said: None },
            context,
            drafts: Drafts { model: None, heads },
            placed,
            meter: None,
            experts: None,
            times: clock.end(),
        })
    }
}

/// The proportions in which llama.cpp divides a cache of experts among the GPUs. Without proportions, llama.cpp divides
/// it in proportion to the free bytes. With a single GPU, both ways give the GPU the whole cache, but the division by
/// free bytes may lose a slot by rounding (llama-moe-cache.cpp, the constructor).
fn shares(plan: &Plan) -> Vec<f32> {
    let is_single = plan.gpus().count() == 1 && plan.tensor_split.is_empty();
    if plan.context.moe_cache_size > 0 && is_single { vec![1.0] } else { plan.tensor_split.clone() }
}

impl Failure {
    /// Adds the name of the GPU that lacks memory for the plan, if there is one. When this is called, the load has
    /// released its memory. If llama.cpp names a refused buffer, only its GPU is considered.
    pub(super) fn freed(mut self: Box<Self>, plan: &Plan, devices: &[Device]) -> Box<Self> {
        if let Error::Native(error) = &self.error
            && lacks_memory(self.stage, error, plan)
        {
            let named = error.out_of_memory().map(|failed| failed.buffer_type.as_str());
            if let Some(lacking) = lacking(plan, devices, named) {
                self.error = lacking;
            }
        }
        self
    }

    /// Whether memory ran short, so that a smaller plan may fit.
    pub(super) fn lacks_memory(&self, plan: &Plan, on_difference: OnDifference) -> bool {
        match &self.error {
            Error::OutOfMemory { .. } => true,
            Error::Difference { .. } => on_difference == OnDifference::BackOff,
            Error::Native(error) => lacks_memory(self.stage, error, plan),
            _ => false,
        }
    }
}

/// Whether memory ran short. A failed computation reports only that a device failed. In a warm-up on GPUs, whose
/// drivers and pools allocate during the first computations, such a failure counts as a lack of memory.
fn lacks_memory(stage: Stage, error: &llama_sys::Error, plan: &Plan) -> bool {
    error.failure().is_some_and(|failure| {
        failure.out_of_memory.is_some()
            || failure.cause == FailureCause::HostMemory
            || (stage == Stage::WarmUp && plan.gpus().next().is_some())
    })
}

/// The error for the first GPU (or for the GPU `named`) that has less free memory than its part of the plan. `devices`
/// are in the order of the plan. A device that does not report its free memory is not checked here.
fn lacking(plan: &Plan, devices: &[Device], named: Option<&str>) -> Option<Error> {
    let mut gpus = plan.gpus().zip(devices).filter(|(_, device)| named.is_none_or(|name| device.name() == name));
    gpus.find_map(|(gpu, device)| {
        let free = devices::memory(device)?.free;
        let needed = gpu.footprint.total().saturating_add(gpu.companions);
        (needed > free).then(|| Error::OutOfMemory { device: device.name(), name: gpu.name.clone(), needed, free })
    })
}
