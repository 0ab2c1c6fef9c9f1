//! Measures the rates of given weight types, so that quantisations can be compared. In: a machine and weight types.
//! Out: the machine with the rates of these types.

use std::time::Duration;

use super::{EACH, MIN_MODEL_BYTES, RateCase, RatesRequest, WORKING_SET, build_name, is_simulated, measure_rates};
use crate::gguf::TensorType;
use crate::machine::{Machine, MeasurementCache};
use crate::plan::{Planner, Request};
use crate::profile::ModelProfile;

/// After this time, no further type is measured. The types that remain then get no rate.
const WITHIN: Duration = Duration::from_secs(1);

/// This machine with the rates of these matrix types; the flag marks expert matrices. Missing rates are measured now,
/// in some hundredths of a second per type and device, and stored with their conditions in the user's cache. If the
/// machine has simulated GPUs, or devices that cannot be measured, it is returned unchanged.
///
/// The machine must be the one on which this program runs, as [`detect`](crate::load::detect) describes it.
pub fn with_rates_of(machine: Machine, types: &[(TensorType, bool)]) -> Machine {
    let mut devices = machine.gpus.iter().filter_map(|gpu| gpu.device.as_deref());
    if types.is_empty() || devices.any(is_simulated) {
        return machine;
    }
    let request = RatesRequest {
        each: EACH,
        within: Some(WITHIN),
        working_set: Some(WORKING_SET),
        missing: true,
        ..RatesRequest::new(types.iter().map(|&kind| RateCase::matrix(kind, 1)).collect())
    };
    let mut measured = machine.clone();
    if let Err(error) = measure_rates(&mut measured, &request, None, |_| ()) {
        tracing::warn!(%error, "the devices could not be measured: types of weights are not compared");
        return machine;
    }
    if measured != machine {
        MeasurementCache::user().put_rates(&measured, &build_name());
    }
    measured
}

/// Rates for [advice](crate::plan::Advice) about other quantisations of a model. Nothing is measured if the model is
/// small or fits entirely on GPUs.
pub fn with_rates_for_advice(machine: Machine, profile: &ModelProfile, request: &Request) -> Machine {
    if profile.file_bytes < MIN_MODEL_BYTES {
        return machine;
    }
    let planner = Planner::new(profile, &machine).request(request.clone());
    let is_on_gpus = planner.plan().is_ok_and(|plan| plan.full_offload);
    let types = if is_on_gpus { Vec::new() } else { planner.unmeasured() };
    with_rates_of(machine, &types)
}
