//! What is measured: everything that is common, or what one model needs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RateCase;
use crate::gguf::{Header, TensorType, TensorType as T};
use crate::memory::KvType;
use crate::profile::ModelProfile;

/// What is measured of each device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RatesRequest {
    /// What is measured, in this order. What a device has no operation for is left out.
    pub cases: Vec<RateCase>,
    /// How long each case computes; at least once.
    pub each: Duration,
    /// After this time no further case of a device is begun; one is in any case.
    pub within: Option<Duration>,
    /// Whether only what was not measured before is measured.
    pub missing: bool,
    /// At most so many bytes are read by a case, instead of more than the caches hold: less time, and figures
    /// that may be wrong.
    pub working_set: Option<u64>,
}

/// Types of common files.
const WEIGHTS: [T; 10] = [T::F16, T::BF16, T::Q8_0, T::Q6_K, T::Q5_K, T::Q4_K, T::Q4_0, T::IQ4_XS, T::MXFP4, T::Q3_K];

/// Types of common mixtures of experts.
const EXPERTS: [T; 5] = [T::Q8_0, T::Q6_K, T::Q4_K, T::IQ4_XS, T::MXFP4];

const KV_TYPES: [T; 3] = [T::F16, T::Q8_0, T::Q4_0];

impl RatesRequest {
    /// These cases, measured for 60 milliseconds each.
    pub const fn new(cases: Vec<RateCase>) -> Self {
        Self { cases, each: Duration::from_millis(60), within: None, missing: false, working_set: None }
    }

    /// All that plans commonly need, what a token needs first: some ten seconds per device.
    pub fn full() -> Self {
        let dense = WEIGHTS.map(|tensor_type| (tensor_type, false));
        let experts = EXPERTS.map(|tensor_type| (tensor_type, true));
        let weights: Vec<_> = dense.into_iter().chain(experts).collect();
        let mut cases = vec![RateCase::Layer, RateCase::Routing, RateCase::Link, RateCase::Activations];
        cases.extend(weights.iter().map(|&weights| RateCase::matrix(weights, 1)));
        for kv_type in KV_TYPES {
            for head_size in [64, 128, 256] {
                cases.extend([1, 4, 8].map(|n_gqa| RateCase::attention(kv_type, (head_size, n_gqa), 1)));
            }
        }
        for n_tokens in [512, 2048, 32] {
            cases.extend(weights.iter().map(|&weights| RateCase::matrix(weights, n_tokens)));
        }
        for kv_type in KV_TYPES {
            cases.extend([64, 128, 256].map(|size| RateCase::attention(kv_type, (size, 4), 512)));
        }
        Self::new(cases)
    }

    /// What a plan for this model needs, with its cache in these types: types of weights that are a twentieth of it or
    /// more, the largest first. What matters most comes first.
    pub fn of_model(header: &Header, profile: &ModelProfile, kv: &[KvType]) -> Self {
        let weights = weight_types(header);
        let mut cases: Vec<RateCase> = weights.iter().map(|&kind| RateCase::matrix(kind, 1)).collect();
        cases.extend([RateCase::Layer, RateCase::Link]);
        if weights.iter().any(|&(_, experts)| experts) {
            cases.push(RateCase::Routing);
        }
        let heads = heads(profile);
        let mut kv_types: Vec<TensorType> = kv.iter().map(|kv| kv.tensor_type()).collect();
        kv_types.dedup();
        for &kv_type in &kv_types {
            cases.extend(heads.map(|heads| RateCase::attention(kv_type, heads, 1)));
        }
        let n_tokens = 512;
        cases.extend(weights.iter().map(|&kind| RateCase::matrix(kind, n_tokens)));
        cases.push(RateCase::Activations);
        for &kv_type in &kv_types {
            cases.extend(heads.map(|heads| RateCase::attention(kv_type, heads, n_tokens)));
        }
        Self::new(cases)
    }
}

/// The types of a twentieth of the matrices or more, and whether they are experts; the largest first.
fn weight_types(header: &Header) -> Vec<(TensorType, bool)> {
    let mut types: BTreeMap<(TensorType, bool), u64> = BTreeMap::new();
    for tensor in header.tensors() {
        let shape = tensor.shape();
        if shape[1] > 1 && !tensor.name().starts_with("token_embd") {
            let rows: u64 = shape[1..].iter().product();
            let size = tensor.ty().row_bytes(shape[0]).saturating_mul(rows);
            let sum = types.entry((tensor.ty(), tensor.name().contains("_exps."))).or_default();
            *sum = sum.saturating_add(size);
        }
    }
    let all = types.values().fold(0, |all: u64, bytes| all.saturating_add(*bytes));
    let mut types: Vec<_> = types.into_iter().filter(|(_, bytes)| *bytes >= all / 20).collect();
    types.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    types.into_iter().map(|(kind, _)| kind).collect()
}

/// Elements of a head of keys, and query heads that share one, of the block that shares the least; `None` where no
/// block has a cache.
fn heads(profile: &ModelProfile) -> Option<(u32, u32)> {
    let hparams = &profile.hparams;
    let n_gqa = hparams.n_head.iter().zip(&hparams.n_head_kv).filter_map(|(&heads, &kv)| heads.checked_div(kv));
    let n_gqa = n_gqa.filter(|&n_gqa| n_gqa > 0).min()?;
    // Compressed keys are as wide as nothing that is measured.
    let head_size = hparams.head_dim_k;
    let is_measured = head_size > 0 && head_size <= 256 && head_size == hparams.head_dim_v;
    is_measured.then_some((head_size, n_gqa))
}
