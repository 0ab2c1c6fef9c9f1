//! One choice of everything that is chosen beside the placement itself: types and place of the cache, tokens
//! computed at once.

use crate::machine::Gpu;
use crate::memory::{ContextParams, KvType};
use crate::plan::{KvCache, KvPlace, Request};
use crate::profile::{Block, ModelProfile};

/// Parameters to plan with, and how little they are wanted.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) params: ContextParams,
    /// Steps from what is wanted most.
    pub(super) steps: u32,
}

/// From the largest to the smallest.
const TYPES: [KvType; 6] = [KvType::F16, KvType::Q8_0, KvType::Q5_1, KvType::Q5_0, KvType::Q4_1, KvType::Q4_0];

/// A smaller type of cache costs quality: twice a step.
const STEPS_PER_TYPE: u32 = 2;

impl Setting {
    /// All that a request allows, the wanted ones first. `params` are the request's, resolved.
    pub(super) fn all(request: &Request, profile: &ModelProfile, params: &ContextParams, gpus: &[&Gpu]) -> Vec<Self> {
        let most = request.max_ubatch.filter(|_| leaves_something(profile, gpus));
        let most = most.map(|most| most.min(params.n_batch).min(params.n_ctx));
        let ubatches = ubatches(params.n_ubatch, request.min_ubatch, most);
        let types: Vec<(KvType, KvType)> = match request.kv_cache {
            KvCache::Given => vec![(params.type_k, params.type_v)],
            KvCache::Auto => types_down_to(KvType::Q8_0),
            KvCache::DownTo(least) => types_down_to(least),
        };
        let places: &[bool] = match (request.kv_place, params.offload_kqv) {
            (KvPlace::Auto, _) => &[true, false],
            (KvPlace::Given, true) => &[true],
            (KvPlace::Given, false) => &[false],
        };
        let mut all = Vec::new();
        for (smaller, &(type_k, type_v)) in (0..).zip(&types) {
            for (elsewhere, &offload_kqv) in (0..).zip(places) {
                for &(changed, n_ubatch) in &ubatches {
                    let params = ContextParams { type_k, type_v, offload_kqv, n_ubatch, ..params.clone() };
                    // What llama.cpp would refuse (a width that is no multiple of the type's block) is no choice,
                    // unless it is the only one: then its error is the answer.
                    let refused = smaller > 0 && params.check_kv_types(&profile.hparams).is_err();
                    if !refused {
                        let steps = STEPS_PER_TYPE * smaller + elsewhere + changed;
                        all.push(Self { params, steps });
                    }
                }
            }
        }
        all
    }
}

fn types_down_to(least: KvType) -> Vec<(KvType, KvType)> {
    let bytes = |ty: KvType| ty.tensor_type().row_bytes(256);
    let mut types: Vec<KvType> = TYPES.into_iter().filter(|&ty| bytes(ty) >= bytes(least)).collect();
    if types.is_empty() {
        types.push(least);
    }
    types.into_iter().map(|ty| (ty, ty)).collect()
}

/// The wanted one, its halves and its doubles, with the steps to each. 0 is a whole batch.
fn ubatches(wanted: u32, least: Option<u32>, most: Option<u32>) -> Vec<(u32, u32)> {
    let least = least.unwrap_or(wanted).max(1);
    let most = most.unwrap_or(wanted);
    let halves = std::iter::successors(Some(wanted), |&n| Some(n / 2));
    let halves = (1..).zip(halves.skip(1).take_while(|&n| n >= least));
    let doubles = std::iter::successors(Some(wanted), |&n| n.checked_mul(2));
    let doubles = (1..).zip(doubles.skip(1).take_while(|&n| n > 0 && n <= most));
    [(0, wanted)].into_iter().chain(halves).chain(doubles).collect()
}

/// Whether GPUs are there and some of the model stays on the host: then prompts carry its weights over once for each
/// computation, and fewer computations of more tokens are faster.
fn leaves_something(profile: &ModelProfile, gpus: &[&Gpu]) -> bool {
    /// Of what is free on a GPU; the rest goes to headroom, caches and compute buffers.
    const FOR_WEIGHTS: f64 = 0.85;
    let free = gpus.iter().map(|gpu| gpu.free);
    let free = free.fold(0, u64::saturating_add);
    let blocks = profile.weights.blocks.iter().map(Block::bytes);
    let bytes = blocks.fold(0, u64::saturating_add);
    let leaves = bytes as f64 > free as f64 * FOR_WEIGHTS;
    free > 0 && leaves
}

#[cfg(test)]
mod tests {
    use super::{types_down_to, ubatches};
    use crate::memory::KvType;

    #[test]
    fn types_go_down_to_the_one_that_is_allowed() {
        let names = |least| {
            let types = types_down_to(least);
            types.iter().map(|(k, _)| k.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(KvType::F16), ["F16"]);
        assert_eq!(names(KvType::Q8_0), ["F16", "Q8_0"]);
        assert_eq!(names(KvType::Q5_0), ["F16", "Q8_0", "Q5_1", "Q5_0"]);
        assert_eq!(names(KvType::F32), ["F32"]);
    }

    #[test]
    fn ubatches_are_halved_and_doubled_as_far_as_is_allowed() {
        assert_eq!(ubatches(512, None, None), [(0, 512)]);
        assert_eq!(ubatches(512, Some(128), None), [(0, 512), (1, 256), (2, 128)]);
        assert_eq!(ubatches(512, Some(1024), None), [(0, 512)]);
        assert_eq!(ubatches(0, Some(128), Some(2048)), [(0, 0)]);
        assert_eq!(ubatches(512, None, Some(2048)), [(0, 512), (1, 1024), (2, 2048)]);
    }
}
