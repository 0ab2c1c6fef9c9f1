//! Rates of certain types of weights, for whoever compares quantisations: a machine and types flow in; the machine with
//! those rates flows out.

use std::time::Duration;

use super::{EACH, LEAST_MODEL, RateCase, RatesRequest, WORKING_SET, build_name, is_simulated, measure_rates};
use crate::gguf::TensorType;
use crate::machine::{Machine, MeasurementCache};
use crate::plan::{Planner, Request};
use crate::profile::ModelProfile;

/// No further type is begun after this time; what is left out has no rate.
const WITHIN: Duration = Duration::from_secs(1);

/// This machine with the rates of these types of matrices, each with whether they are experts' matrices. What is
/// missing is measured now, some hundredths of a second for each type and device, and kept in the user's cache with
/// the conditions that it was measured under. A machine with simulated GPUs, and one whose devices cannot be measured,
/// stays as it is.
///
/// The machine must be this one, as [`detect`](crate::load::detect) describes it.
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

/// The same for [advice](crate::plan::Advice) about other quantisations of a model: nothing is measured where the model
/// is small, or all of it goes on GPUs.
pub fn with_rates_for_advice(machine: Machine, profile: &ModelProfile, request: &Request) -> Machine {
    if profile.file_bytes < LEAST_MODEL {
        return machine;
    }
    let planner = Planner::new(profile, &machine).request(request.clone());
    let is_on_gpus = planner.plan().is_ok_and(|plan| plan.full_offload);
    let types = if is_on_gpus { Vec::new() } else { planner.unmeasured() };
    with_rates_of(machine, &types)
}
