//! The cases to measure: all common cases, or the cases that one model needs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RateCase;
use super::case::Heads;
use crate::gguf::{Header, TensorType, TensorType as T};
use crate::machine::MatrixShape;
use crate::memory::KvType;
use crate::profile::ModelProfile;

/// The measurements that each device gets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RatesRequest {
    /// The cases, in order. Operations that a device does not support are skipped.
    pub cases: Vec<RateCase>,
    /// Duration of each case; each case runs at least once.
    pub each: Duration,
    /// No further case of a device begins after this time. The first case always runs.
    pub within: Option<Duration>,
    /// Whether to skip rates that are known already.
    pub missing: bool,
    /// Whether a rate counts as missing if its measurement was disturbed.
    pub disturbed: bool,
    /// Maximum bytes that a case reads; `None` means more bytes than the caches hold. A smaller number saves time but
    /// may distort the rates.
    pub working_set: Option<u64>,
}

/// Common weight types.
const WEIGHTS: [T; 10] = [T::F16, T::BF16, T::Q8_0, T::Q6_K, T::Q5_K, T::Q4_K, T::Q4_0, T::IQ4_XS, T::MXFP4, T::Q3_K];

/// Common weight types of experts.
const EXPERTS: [T; 5] = [T::Q8_0, T::Q6_K, T::Q4_K, T::IQ4_XS, T::MXFP4];

const KV_TYPES: [T; 3] = [T::F16, T::Q8_0, T::Q4_0];

impl RatesRequest {
    /// A request for these cases. Each case is measured for 60 milliseconds.
    pub const fn new(cases: Vec<RateCase>) -> Self {
        Self {
            cases,
            each: Duration::from_millis(60),
            within: None,
            missing: false,
            disturbed: false,
            working_set: None,
        }
    }

    /// All cases that plans commonly need, with the cases of generation first. They take about ten seconds per device.
    pub fn full() -> Self {
        let dense = WEIGHTS.map(|tensor_type| (tensor_type, false));
        let experts = EXPERTS.map(|tensor_type| (tensor_type, true));
        let weights: Vec<_> = dense.into_iter().chain(experts).collect();
        let mut cases = vec![RateCase::Layer, RateCase::Routing, RateCase::Link, RateCase::Activations];
        cases.extend(weights.iter().map(|&weights| RateCase::matrix(weights, 1)));
        for kv_type in KV_TYPES {
            for head_size in [64, 128, 256] {
                let wide = |n_gqa| Heads { head_size, n_gqa, n_head_kv: 0 };
                cases.extend([1, 4, 8].map(|n_gqa| RateCase::attention(kv_type, wide(n_gqa), 1)));
            }
        }
        for n_tokens in [512, 2048, 32] {
            cases.extend(weights.iter().map(|&weights| RateCase::matrix(weights, n_tokens)));
        }
        for kv_type in KV_TYPES {
            let wide = |head_size| Heads { head_size, n_gqa: 4, n_head_kv: 0 };
            cases.extend([64, 128, 256].map(|head_size| RateCase::attention(kv_type, wide(head_size), 512)));
        }
        Self::new(cases)
    }

    /// The cases that a plan for this model with these cache types needs, the most important first. They cover the
    /// weight types with at least a twentieth of the bytes, the largest first.
    pub fn for_model(header: &Header, profile: &ModelProfile, kv: &[KvType]) -> Self {
        let weights = weight_types(header);
        let case = |kind: &WeightKind, shape, n_tokens| {
            let (tensor_type, experts) = (kind.tensor_type, kind.experts);
            RateCase::Matrix { tensor_type, experts, shape, n_tokens }
        };
        let mut cases: Vec<RateCase> = weights.iter().map(|kind| case(kind, kind.shape, 1)).collect();
        for kind in &weights {
            cases.extend(kind.other_shapes.iter().map(|&shape| case(kind, shape, 1)));
        }
        cases.extend([RateCase::Layer, RateCase::Link]);
        if weights.iter().any(|kind| kind.experts) {
            cases.push(RateCase::Routing);
        }
        let heads = heads(profile);
        let mut kv_types: Vec<TensorType> = kv.iter().map(|kv| kv.tensor_type()).collect();
        kv_types.dedup();
        for &kv_type in &kv_types {
            cases.extend(heads.map(|heads| RateCase::attention(kv_type, heads, 1)));
        }
        let n_tokens = 512;
        // Only the last token of a prompt passes the output matrix.
        cases.extend(weights.iter().filter(|kind| kind.of_blocks).map(|kind| case(kind, kind.shape, n_tokens)));
        cases.push(RateCase::Activations);
        for &kv_type in &kv_types {
            cases.extend(heads.map(|heads| RateCase::attention(kv_type, heads, n_tokens)));
        }
        Self::new(cases)
    }
}

/// The weights of one type.
struct WeightKind {
    tensor_type: TensorType,
    experts: bool,
    /// The shape of most matrices of this type. All large matrices count as having one shape.
    shape: MatrixShape,
    /// Other shapes with at least a twentieth of the bytes, the most common first.
    other_shapes: Vec<MatrixShape>,
    /// Whether at least a twentieth of the blocks' weights has this type.
    of_blocks: bool,
}

/// The types with at least a twentieth of the matrix bytes, the largest first. The embedding counts if it is also the
/// output matrix, because the output matrix is read completely for each token.
fn weight_types(header: &Header) -> Vec<WeightKind> {
    #[derive(Default)]
    struct Sum {
        bytes: u64,
        in_blocks: u64,
        by_shape: BTreeMap<MatrixShape, u64>,
    }
    let mut types: BTreeMap<(TensorType, bool), Sum> = BTreeMap::new();
    let is_tied = header.tensor("output.weight").is_none();
    for tensor in header.tensors() {
        let (shape, name) = (tensor.shape(), tensor.name());
        let is_embedding = name.starts_with("token_embd");
        // Skips tensors that are looked up instead of multiplied.
        if shape[1] <= 1 || is_embedding && !(is_tied && name == "token_embd.weight") {
            continue;
        }
        let rows: u64 = shape[1..].iter().product();
        let size = tensor.ty().row_bytes(shape[0]).saturating_mul(rows);
        let sum = types.entry((tensor.ty(), name.contains("_exps."))).or_default();
        sum.bytes = sum.bytes.saturating_add(size);
        if name.starts_with("blk.") {
            sum.in_blocks = sum.in_blocks.saturating_add(size);
        }
        let side = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
        // Experts are measured in one shape.
        let shape = match name.contains("_exps.") {
            true => MatrixShape::default(),
            false => MatrixShape::new(side(shape[0]), side(shape[1])),
        };
        let of_shape = sum.by_shape.entry(shape).or_default();
        *of_shape = of_shape.saturating_add(size);
    }
    let all = types.values().fold(0, |all: u64, sum| all.saturating_add(sum.bytes));
    let in_blocks = types.values().fold(0, |all: u64, sum| all.saturating_add(sum.in_blocks));
    let mut types: Vec<_> = types.into_iter().filter(|(_, sum)| sum.bytes >= all / 20).collect();
    types.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let kinds = types.into_iter().filter_map(|((tensor_type, experts), sum)| {
        let mut by_shape: Vec<(MatrixShape, u64)> = sum.by_shape.into_iter().collect();
        by_shape.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let mut by_shape = by_shape.into_iter();
        let (shape, _) = by_shape.next()?;
        let others = by_shape.filter(|(_, bytes)| *bytes >= sum.bytes / 20);
        let other_shapes = others.map(|(shape, _)| shape).collect();
        let of_blocks = sum.in_blocks > 0 && sum.in_blocks >= in_blocks / 20;
        Some(WeightKind { tensor_type, experts, shape, other_shapes, of_blocks })
    });
    kinds.collect()
}

/// The heads of that block in which the fewest queries share a key; `None` if no block has a cache.
fn heads(profile: &ModelProfile) -> Option<Heads> {
    let hparams = &profile.hparams;
    let n_gqa = hparams.n_head.iter().zip(&hparams.n_head_kv).filter_map(|(&heads, &kv)| heads.checked_div(kv));
    let n_gqa = n_gqa.filter(|&n_gqa| n_gqa > 0).min()?;
    let most_heads = hparams.n_head.iter().max().copied().unwrap_or(0);
    // Compressed keys have a width that no measurement covers.
    let head_size = hparams.head_dim_k;
    let is_measured = head_size > 0 && head_size <= 256 && head_size == hparams.head_dim_v;
    let is_narrow = most_heads.saturating_mul(head_size) < MatrixShape::LARGE;
    let n_head_kv = if is_narrow { hparams.n_head_kv.iter().max().copied().unwrap_or(0) } else { 0 };
    is_measured.then_some(Heads { head_size, n_gqa, n_head_kv })
}
