//! The settings that the planner chooses in addition to the placement: the type and the place of the cache, and the
//! ubatch.

use crate::memory::ContextParams;
use crate::plan::{KvPlace, Request, kv_cache};
use crate::profile::ModelProfile;

/// The parameters of a plan, and how far they are from the preferred parameters.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) params: ContextParams,
    /// How many times the ubatch was doubled.
    pub(super) doubled: u32,
    /// How many times the ubatch was halved.
    pub(super) halved: u32,
    /// Whether the cache is on the host although the request keeps it with the layers.
    pub(super) kv_moved: bool,
    /// The number of allowed types that are wider than the type of this cache; 0 for the requested type.
    pub(super) smaller_kv: u32,
    /// The share that is added to the seconds: the [price](kv_cache::price) of the cache type.
    pub(super) surcharge: f64,
}

impl Setting {
    /// The setting with these parameters.
    pub(super) fn given(params: &ContextParams) -> Self {
        Self { params: params.clone(), doubled: 0, halved: 0, kv_moved: false, smaller_kv: 0, surcharge: 0.0 }
    }
}

/// All settings that a request allows: each type and place of the cache with each ubatch. The preferred setting comes
/// first. `params` are the request's parameters, with every default resolved.
pub(super) fn settings(request: &Request, profile: &ModelProfile, params: &ContextParams) -> Vec<Setting> {
    let most = request.max_ubatch.map_or(0, |most| most.min(params.n_batch).min(params.n_ctx));
    // A context for embeddings keeps no cache between batches.
    let choices = if request.embeds() { vec![params.clone()] } else { request.kv_cache.choices(profile, params) };
    // A context for embeddings computes whole texts.
    let least = request.min_ubatch.filter(|_| !request.embeds());
    let may_move = request.kv_place == KvPlace::Auto && params.offload_kqv && !request.embeds();
    let mut all = Vec::new();
    for (smaller_kv, params) in (0..).zip(choices) {
        let surcharge = if smaller_kv == 0 { 0.0 } else { kv_cache::price(params.type_k) };
        for kv_moved in [false, true].into_iter().take(1 + usize::from(may_move)) {
            for (n_ubatch, doubled, halved) in ubatches(params.n_ubatch, least, most) {
                let offload_kqv = params.offload_kqv && !kv_moved;
                let params = ContextParams { n_ubatch, offload_kqv, ..params.clone() };
                all.push(Setting { params, doubled, halved, kv_moved, smaller_kv, surcharge });
            }
        }
    }
    all
}

/// The requested ubatch, doubled up to `most` and halved down to `least`. Each comes with the number of doublings and
/// the number of halvings. A requested ubatch of 0 means a whole batch.
fn ubatches(wanted: u32, least: Option<u32>, most: u32) -> Vec<(u32, u32, u32)> {
    let double = |&n: &u32| n.checked_mul(2).filter(|double| (1..=most).contains(double));
    let doubles = std::iter::successors(Some(wanted), double);
    let halves = std::iter::successors(Some(wanted / 2), |n| Some(n / 2));
    let halves = halves.take_while(|&n| least.is_some_and(|least| n >= least.max(1)));
    let doubles = (0..).zip(doubles).map(|(times, n)| (n, times, 0));
    doubles.chain((1..).zip(halves).map(|(times, n)| (n, 0, times))).collect()
}

#[cfg(test)]
mod tests {
    use super::ubatches;

    #[test]
    fn ubatches_are_doubled_and_halved_within_the_limits() {
        assert_eq!(ubatches(512, None, 0), [(512, 0, 0)]);
        assert_eq!(ubatches(512, None, 1024), [(512, 0, 0), (1024, 1, 0)]);
        assert_eq!(ubatches(512, None, 2048), [(512, 0, 0), (1024, 1, 0), (2048, 2, 0)]);
        assert_eq!(ubatches(512, Some(128), 1024), [(512, 0, 0), (1024, 1, 0), (256, 0, 1), (128, 0, 2)]);
        assert_eq!(ubatches(6, Some(0), 0), [(6, 0, 0), (3, 0, 1), (1, 0, 2)]);
        assert_eq!(ubatches(512, Some(1024), 0), [(512, 0, 0)]);
        assert_eq!(ubatches(0, Some(64), 2048), [(0, 0, 0)]);
    }
}
