//! The settings that are chosen beside the placement itself: the tokens computed at once.

use crate::machine::Gpu;
use crate::memory::ContextParams;
use crate::plan::Request;
use crate::profile::ModelProfile;

/// The parameters of all that a request allows, the wanted one first and each the next step from it. `params` are the
/// request's, resolved.
pub(super) fn settings(
    request: &Request,
    profile: &ModelProfile,
    params: &ContextParams,
    gpus: &[&Gpu],
) -> Vec<ContextParams> {
    let most = request.max_ubatch.filter(|_| leaves_something(profile, gpus));
    let most = most.map_or(0, |most| most.min(params.n_batch).min(params.n_ctx));
    let ubatches = ubatches(params.n_ubatch, most).into_iter();
    ubatches.map(|n_ubatch| ContextParams { n_ubatch, ..params.clone() }).collect()
}

/// The wanted one, and its doubles up to the most. 0 is a whole batch.
fn ubatches(wanted: u32, most: u32) -> Vec<u32> {
    let double = |&n: &u32| n.checked_mul(2).filter(|double| (1..=most).contains(double));
    std::iter::successors(Some(wanted), double).collect()
}

/// Whether GPUs are there and some of the model stays on the host: then prompts carry its weights over once for each
/// computation, and fewer computations of more tokens are faster.
fn leaves_something(profile: &ModelProfile, gpus: &[&Gpu]) -> bool {
    /// Of what is free on a GPU; the rest goes to headroom, caches and compute buffers.
    const FOR_WEIGHTS: f64 = 0.85;
    let free = gpus.iter().map(|gpu| gpu.free).fold(0, u64::saturating_add);
    let leaves = profile.weights.blocks_bytes() as f64 > free as f64 * FOR_WEIGHTS;
    free > 0 && leaves
}

#[cfg(test)]
mod tests {
    use super::ubatches;

    #[test]
    fn ubatches_are_doubled_as_far_as_is_allowed() {
        assert_eq!(ubatches(512, 0), [512]);
        assert_eq!(ubatches(512, 1024), [512, 1024]);
        assert_eq!(ubatches(512, 2048), [512, 1024, 2048]);
        assert_eq!(ubatches(0, 2048), [0]);
    }
}
