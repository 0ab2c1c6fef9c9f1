//! The rates of a load's devices: the stored rates, and new measurements of missing rates that the model needs.

use llama_sys::Backend;

use super::devices::{bounded_by_now, build_name, is_simulated};
use super::options::LoadOptions;
use super::rates::{EACH, MIN_MODEL_BYTES, RatesRequest, WITHIN, WORKING_SET, measure_rates, repacks};
use crate::gguf::Header;
use crate::machine::{GpuKind, Machine, looks_quiet};
use crate::profile::ModelProfile;

impl LoadOptions {
    /// This machine with the known rates of its devices, for the threads of this load. Missing rates that this model
    /// needs are measured now and stored with their conditions. Nothing is measured if measurements are not stored, if
    /// the model is small, if the caller described the machine, or if it has simulated GPUs. Rates whose measurement
    /// was disturbed are measured again if the machine is quiet now.
    pub(super) fn measured(&self, mut machine: Machine, header: &Header, profile: &ModelProfile) -> Machine {
        let mut devices = machine.gpus.iter().filter_map(|gpu| gpu.device.as_deref());
        let is_real = self.machine.is_none() && !devices.any(is_simulated);
        let Some(cache) = self.learn.cache(false).filter(|_| is_real) else { return machine };
        // The rates of devices on another machine are neither read nor stored, because the link to that machine may
        // change.
        let has_remote = machine.gpus.iter().any(|gpu| gpu.kind == GpuKind::Remote);
        if profile.file_bytes < MIN_MODEL_BYTES && !has_remote {
            return machine;
        }
        let (build, threads) = (build_name(), self.threads_on(&machine));
        for gpu in &mut machine.gpus {
            gpu.rates = cache.gpu_rates(gpu, &build);
        }
        let devices = Backend::init().map(Backend::devices);
        let way = (Some(threads), repacks(&machine, &devices.unwrap_or_default()));
        let kept = cache.host_rates(&machine.host, &build);
        machine.host.rates = kept.filter(|rates| (rates.threads, rates.repacked) == way);
        let kv = self.request.kv_types_of(profile);
        let request = RatesRequest {
            each: EACH,
            within: Some(WITHIN),
            // A small model is read partly from the processor's caches. A measurement that reads no more bytes than the
            // model has is sped up by the caches in the same way.
            working_set: Some(WORKING_SET.min(profile.file_bytes)),
            missing: true,
            disturbed: looks_quiet(),
            ..RatesRequest::for_model(header, profile, &kv)
        };
        let before = machine.clone();
        if let Err(error) = measure_rates(&mut machine, &request, Some(threads), |_| ()) {
            tracing::warn!(%error, "the devices could not be measured: their speed is estimated from other sources");
        }
        if machine == before {
            return machine;
        }
        cache.put_rates(&machine, &build);
        // A driver may keep memory for its kernels.
        bounded_by_now(machine).unwrap_or(before)
    }
}
