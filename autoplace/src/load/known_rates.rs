//! The rates of a load's devices: the stored rates, and new measurements of missing rates that the model needs.

use std::path::Path;

use llama_sys::Backend;

use super::devices::{bounded_by_now, build_name, is_simulated};
use super::options::LoadOptions;
use super::rates::{EACH, MIN_MODEL_BYTES, RatesRequest, WITHIN, WORKING_SET, measure_rates_under, repacks};
use crate::gguf::Header;
use crate::machine::{GpuKind, Machine, looks_quiet_under};
use crate::profile::ModelProfile;

impl LoadOptions {
    /// This machine with the known rates of its devices, for the threads of this load. Missing rates that this model
    /// needs are measured now and stored with their conditions. Nothing is measured if measurements are not stored, if
    /// the model is small, if the caller described the machine, or if it has simulated GPUs. Rates whose measurement
    /// was disturbed are measured again if the machine is quiet now.
    pub(super) fn measured(&self, machine: Machine, header: &Header, profile: &ModelProfile) -> Machine {
        self.measured_under(Path::new("/"), machine, header, profile)
    }

    /// As [`measured`](Self::measured), on a computer whose other work `{root}/proc` and `{root}/sys` describe.
    fn measured_under(&self, root: &Path, mut machine: Machine, header: &Header, profile: &ModelProfile) -> Machine {
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
            disturbed: looks_quiet_under(root),
            ..RatesRequest::for_model(header, profile, &kv)
        };
        let before = machine.clone();
        if let Err(error) = measure_rates_under(root, &mut machine, &request, Some(threads), |_| ()) {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use test_support::synthetic::{SMALL, Sketch};

    use super::{LoadOptions, RatesRequest, build_name};
    use crate::gguf::{Header, TensorType};
    use crate::load::leases::Folder;
    use crate::machine::{Host, Machine, MeasurementCache, RateConditions, WeightRate, gib};
    use crate::profile::ModelProfile;

    /// Writes the files of a computer on which this number of threads runs or waits for a core. Some thread waited for
    /// this percentage of the last ten seconds.
    fn write(root: &Path, running: u32, pressure: u32) {
        fs::create_dir_all(root.join("proc/pressure")).unwrap();
        fs::write(root.join("proc/loadavg"), format!("3.86 2.99 2.11 {running}/6000 12764\n")).unwrap();
        let pressure = format!("some avg10={pressure}.00 avg60=0.00 avg300=0.00 total=0\n");
        fs::write(root.join("proc/pressure/cpu"), pressure).unwrap();
    }

    /// Some 90 MiB of weights in 8 bits.
    fn model(folder: &Path) -> (Header, ModelProfile) {
        let mut sketch = Sketch::new("llama", "small", SMALL);
        sketch.ends(TensorType::Q8_0, None);
        for il in 0..SMALL.n_layer {
            sketch.norms(il);
            sketch.attention(il, TensorType::Q8_0);
            sketch.feed_forward(il, TensorType::Q8_0, TensorType::Q8_0);
        }
        let header = Header::open(sketch.write(folder)).unwrap();
        let profile = ModelProfile::from_header(&header).unwrap();
        (header, profile)
    }

    #[test]
    fn a_disturbed_rate_is_measured_again_at_the_next_load_on_a_quiet_computer() {
        let [of_model, cached, root] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let (header, profile) = model(of_model.path());
        let mut options = LoadOptions::new(Path::new("small.gguf"));
        (options.threads, options.learn) = (Some(1), Folder::At(cached.path().to_owned()));
        let machine = Machine::new(Host::new(gib(4)));
        let kv = options.request.kv_types_of(&profile);
        // The first case is measured however slow the others are.
        let first = RatesRequest::for_model(&header, &profile, &kv).cases[0];
        let load = |running, pressure| {
            write(root.path(), running, pressure);
            let machine = options.measured_under(root.path(), machine.clone(), &header, &profile);
            let kept = MeasurementCache::at(cached.path()).host_rates(&machine.host, &build_name());
            let kept = kept.expect("the rates of the first load are kept");
            assert!(first.is_in(&kept) && machine.host.rates.is_some());
            (first.is_quiet_in(&kept), kept)
        };
        let (is_quiet, _) = load(5000, 90);
        assert!(!is_quiet, "the first measurement was disturbed");
        // A measurement would be undisturbed by now. But other threads run, so it would probably not stay so.
        let (is_quiet, _) = load(5000, 0);
        assert!(!is_quiet, "nothing is measured while other work runs");
        let (is_quiet, quiet) = load(1, 0);
        assert!(is_quiet, "the quiet figure is kept");
        // No undisturbed figure is measured once more.
        let (_, later) = load(1, 0);
        let is_undisturbed = |rate: &&WeightRate| rate.conditions.as_ref().is_some_and(RateConditions::is_quiet);
        assert!(quiet.weights.iter().filter(is_undisturbed).all(|rate| later.weights.contains(rate)));
    }
}
