//! The short form of a measurement, at the first load on a device: what a plan for this model needs and nobody
//! has measured yet.

use std::time::Duration;

use llama_sys::Backend;

use super::{RatesRequest, measure_rates, repacks};
use crate::gguf::Header;
use crate::load::devices::{bounded_by_now, build_name, is_simulated};
use crate::load::recipe::Recipe;
use crate::machine::Machine;
use crate::memory::KvType;
use crate::plan::KvCache;
use crate::profile::ModelProfile;

/// Of a smaller model every placement is fast.
const LEAST_MODEL: u64 = 64 << 20;

/// No further case of a device is begun after this time: what is left out is measured by a later load.
const WITHIN: Duration = Duration::from_millis(250);

/// On machines with larger caches some of it is read from them, rather than that a load waits.
const WORKING_SET: u64 = 256 << 20;

/// Each case; a computation under way is waited for.
const EACH: Duration = Duration::from_millis(15);

impl Recipe {
    /// This machine with what was measured of its devices with as many threads as this load takes. What is missing for
    /// this model is measured now and kept, unless nothing is to be learned, the model is small, the machine was
    /// described by somebody, or it has simulated GPUs.
    pub(crate) fn measured(
        &self,
        mut machine: Machine,
        header: &Header,
        profile: &ModelProfile,
    ) -> Machine {
        let mut devices = machine.gpus.iter().filter_map(|gpu| gpu.device.as_deref());
        let is_real = self.machine.is_none() && !devices.any(is_simulated);
        let Some(cache) = self.terms.learn.rates().filter(|_| is_real) else {
            return machine;
        };
        if profile.file_bytes < LEAST_MODEL {
            return machine;
        }
        let (build, threads) = (build_name(), self.threads_on(&machine));
        for gpu in &mut machine.gpus {
            gpu.rates = cache.gpu(gpu, &build);
        }
        let devices = Backend::init().map(Backend::devices);
        let way = (
            Some(threads),
            repacks(&machine, &devices.unwrap_or_default()),
        );
        machine.host.rates = cache.host(&machine.host, &build, |rates| {
            (rates.threads, rates.repacked) == way
        });
        let params = &self.request.params;
        let kv = match self.request.kv_cache {
            KvCache::Given => [params.type_k, params.type_v],
            KvCache::Auto | KvCache::DownTo(_) => [KvType::F16, KvType::Q8_0],
        };
        let request = RatesRequest {
            each: EACH,
            within: Some(WITHIN),
            working_set: Some(WORKING_SET),
            missing: true,
            ..RatesRequest::of_model(header, profile, &kv)
        };
        let before = machine.clone();
        if let Err(error) = measure_rates(&mut machine, &request, Some(threads), |_| ()) {
            tracing::warn!(%error, "the devices could not be measured: their speed is taken from elsewhere");
        }
        if machine == before {
            return machine;
        }
        cache.put(&machine, &build);
        // A driver may keep some of what it took for its kernels.
        bounded_by_now(machine).unwrap_or(before)
    }
}
