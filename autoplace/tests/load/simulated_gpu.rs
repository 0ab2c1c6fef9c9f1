//! A load on simulated GPUs leaves no memory unused, and the rates of such cards can be measured. `fleets.rs` checks
//! the bytes that the cards count, and `chaos.rs` checks that the text is the same in every placement.

use std::time::Duration;

use crate::sim_support::{card, fits_whatever_is_free};
use autoplace::Model;
use autoplace::gguf::{Header, TensorType};
use autoplace::load::{RateCase, RatesRequest, detect, measure_rates};
use autoplace::machine::{MatrixShape, MeasuredRates, RateConditions, mib};
use autoplace::memory::{Headroom, KvType};
use autoplace::plan::{HostParts, Request};
use autoplace::profile::ModelProfile;
use test_support::demo_path;
use test_support::synthetic::{Dims, Sketch};

#[test]
fn a_load_fits_any_free_memory_and_one_more_layer_would_not() {
    own_process!();
    // Only whole layers are placed here. If parts of layers may be on the host, a plan for more memory may be faster
    // although it has fewer layers on the card.
    let request = Request::new().headroom(Headroom::Bytes(0)).host_parts(HostParts::None);
    let whole = || Model::builder(demo_path()).request(request.clone()).n_threads(1);
    fits_whatever_is_free((0..16).map(|n| n * mib(1)), whole, |model, _| {
        model.generate("And it came to pass").temp(0.0).max_tokens(3).text().unwrap();
    });
}

#[test]
fn a_card_and_the_host_are_measured_except_for_known_rates() {
    own_process!();
    let card = card(mib(256));
    let mut machine = detect().unwrap();
    let measured_before = machine.host.rates.is_some();
    machine.host.rates = None;
    let name = card.device().name();
    (machine.gpus).retain(|gpu| gpu.device.as_ref() == Some(&name));
    let matrix = |experts, n_tokens| RateCase::Matrix {
        tensor_type: TensorType::Q4_K,
        experts,
        shape: MatrixShape::default(),
        n_tokens,
    };
    let attention = |n_gqa, n_tokens| RateCase::Attention {
        kv_type: TensorType::F16,
        head_size: 64,
        n_gqa,
        n_head_kv: 0,
        n_tokens,
    };
    let mut cases = vec![matrix(false, 1), matrix(true, 1), matrix(false, 32), attention(4, 1), attention(4, 32)];
    cases.extend([RateCase::Layer, RateCase::Routing, RateCase::Link]);
    let mut request = RatesRequest::new(cases.clone());
    (request.each, request.working_set) = (Duration::ZERO, Some(1 << 20));
    let mut reported = Vec::new();
    measure_rates(&mut machine, &request, Some(1), |progress| {
        assert!(!progress.device.is_empty());
        reported.push((progress.done, progress.total));
    })
    .unwrap();
    // For the host, there is one case fewer, because there is no link to it.
    let total = 2 * cases.len() - 1;
    let expected: Vec<_> = (1..=total).map(|done| (done, total)).collect();
    assert_eq!(reported, expected);
    let gpu = machine.gpus[0].rates.as_ref().unwrap();
    let host = machine.host.rates.as_ref().unwrap();
    let all = |rates: &MeasuredRates| cases.iter().filter(|case| case.is_in(rates)).count();
    assert_eq!((all(gpu), all(host)), (cases.len(), cases.len() - 1));
    assert_eq!((gpu.threads, host.threads), (None, Some(1)));
    assert_eq!((card.used(), card.buffers()), (0, 0));

    request.missing = true;
    measure_rates(&mut machine, &request, Some(1), |progress| panic!("{progress:?} was known")).unwrap();
    request.cases = vec![attention(0, 1)];
    let refused = measure_rates(&mut machine, &request, Some(1), |_| ()).unwrap_err();
    assert!(refused.to_string().contains("every size must be 1 to"), "{refused}");
    // A load on simulated cards does not measure anything.
    drop(Model::builder(demo_path()).n_threads(1).headroom(Headroom::Bytes(mib(1))).load().unwrap());
    let now = detect().unwrap();
    assert!(now.gpus.iter().all(|gpu| gpu.rates.is_none()));
    assert_eq!(now.host.rates.is_some(), measured_before);
}

#[test]
fn a_disturbed_rate_is_measured_again_if_that_is_requested_and_a_quiet_one_is_not() {
    own_process!();
    let mut machine = detect().unwrap();
    machine.gpus.clear();
    machine.host.rates = None;
    let (tensor_type, shape) = (TensorType::Q4_K, MatrixShape::default());
    let mut request = RatesRequest::new(vec![RateCase::Matrix { tensor_type, experts: false, shape, n_tokens: 1 }]);
    (request.each, request.working_set) = (Duration::ZERO, Some(1 << 20));
    measure_rates(&mut machine, &request, Some(1), |_| ()).unwrap();
    request.missing = true;
    let quiet = RateConditions::default();
    let mut busy = RateConditions::default();
    busy.others = Some(150);
    for (conditions, disturbed, expected) in [
        (Some(&quiet), false, 0),
        (Some(&quiet), true, 0),
        (Some(&busy), false, 0),
        (Some(&busy), true, 1),
        // Earlier versions stored no conditions.
        (None, false, 0),
        (None, true, 1),
    ] {
        machine.host.rates.as_mut().unwrap().weights[0].conditions = conditions.cloned();
        request.disturbed = disturbed;
        let mut measured = 0;
        measure_rates(&mut machine, &request, Some(1), |_| measured += 1).unwrap();
        assert_eq!(measured, expected, "{conditions:?}, {disturbed}");
    }
}

#[test]
fn a_narrow_model_is_measured_in_each_matrix_size_and_a_wide_one_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let cases = |name, dims: Dims| {
        let mut sketch = Sketch::new("llama", name, dims);
        sketch.ends(TensorType::Q8_0, None);
        for il in 0..dims.n_layer {
            sketch.norms(il);
            sketch.attention(il, TensorType::Q4_1);
            sketch.feed_forward(il, TensorType::Q4_1, TensorType::Q4_1);
        }
        let header = Header::open(sketch.write(folder.path())).unwrap();
        let profile = ModelProfile::from_header(&header).unwrap();
        RatesRequest::for_model(&header, &profile, &[KvType::F16]).cases
    };
    let shapes_of = |cases: &[RateCase], of: TensorType, of_tokens: u32| -> Vec<MatrixShape> {
        let shape = |case: &RateCase| match *case {
            RateCase::Matrix { tensor_type, shape, n_tokens, .. } if (tensor_type, n_tokens) == (of, of_tokens) => {
                Some(shape)
            }
            _ => None,
        };
        cases.iter().filter_map(shape).collect()
    };
    let heads = |cases: &[RateCase]| {
        cases.iter().find_map(|case| match *case {
            RateCase::Attention { head_size, n_gqa, n_head_kv, .. } => Some((head_size, n_gqa, n_head_kv)),
            _ => None,
        })
    };
    // These widths are those of SmolLM2 135M. If they are sorted by their bytes, the halves of the feed-forward step
    // come first, and keys and values come last.
    let narrow = cases("narrow", Dims::new([3, 576, 1536, 9, 3, 64, 1024]));
    let sizes = [(576, 1536), (1536, 576), (576, 576), (576, 192)].map(|(n_in, n_out)| MatrixShape::new(n_in, n_out));
    assert_eq!(shapes_of(&narrow, TensorType::Q4_1, 1), sizes);
    // For prompts, only the most common shape is measured.
    assert_eq!(shapes_of(&narrow, TensorType::Q4_1, 512), sizes[..1]);
    assert_eq!(heads(&narrow), Some((64, 3, 3)));
    let wide = cases("wide", Dims::new([2, 4096, 8192, 32, 32, 128, 1024]));
    assert_eq!(shapes_of(&wide, TensorType::Q4_1, 1), [MatrixShape::default()]);
    assert_eq!(heads(&wide), Some((128, 1, 0)));
}
