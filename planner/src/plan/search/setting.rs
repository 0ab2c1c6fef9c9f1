//! The settings that the planner chooses beside the placement: the cache type and the ubatch.

use crate::memory::ContextParams;
use crate::plan::{Request, kv_cache};
use crate::profile::ModelProfile;

/// Parameters of a plan, and their distance from the preferred ones.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) params: ContextParams,
    /// How often the ubatch was doubled.
    pub(super) doubled: u32,
    /// Number of wider cache types; 0 is the requested type.
    pub(super) smaller_kv: u32,
    /// The share added to the seconds: the [price](kv_cache::price) of the cache type.
    pub(super) surcharge: f64,
}

/// All settings that a request allows: each cache type with each ubatch, the preferred one first. `params` are the
/// request's, resolved.
pub(super) fn settings(request: &Request, profile: &ModelProfile, params: &ContextParams) -> Vec<Setting> {
    let most = request.max_ubatch.map_or(0, |most| most.min(params.n_batch).min(params.n_ctx));
    // A context that embeds keeps no cache between batches.
    let choices = if request.embeds() { vec![params.clone()] } else { request.kv_cache.choices(profile, params) };
    let mut all = Vec::new();
    for (smaller_kv, params) in (0..).zip(choices) {
        let surcharge = if smaller_kv == 0 { 0.0 } else { kv_cache::price(params.type_k) };
        for (doubled, n_ubatch) in (0..).zip(ubatches(params.n_ubatch, most)) {
            let params = ContextParams { n_ubatch, ..params.clone() };
            all.push(Setting { params, doubled, smaller_kv, surcharge });
        }
    }
    all
}

/// The requested ubatch and its doubles up to `most`. 0 means a whole batch.
fn ubatches(wanted: u32, most: u32) -> Vec<u32> {
    let double = |&n: &u32| n.checked_mul(2).filter(|double| (1..=most).contains(double));
    std::iter::successors(Some(wanted), double).collect()
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
