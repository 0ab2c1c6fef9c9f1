//! The predicted speed, against a published sweep and against what must hold of any.

mod shapes;

use autoplace::memory::ContextParams;
use autoplace::memory::estimate::Assignment;
use autoplace::plan::speed::{Rate, SpeedModel, Traffic};
use autoplace::profile::ModelProfile;
use proptest::prelude::{prop_assert, proptest};

use shapes::any::shape;
use shapes::{LLAMA_8B, QWEN_14B, QWEN3_30B_A3B};

fn traffic(profile: &ModelProfile, depth: u32) -> Traffic {
    Traffic::of(profile, &ContextParams::default(), depth)
}

/// So many layers on one GPU.
fn one_gpu(profile: &ModelProfile, n: u32) -> Assignment {
    Assignment::by_counts(profile.n_layer(), &[n.min(profile.full_offload())])
}

/// Qwen2.5-Coder-14B Q4_K_M with 256 tokens generated, llama.cpp with CUDA on an RTX 5060 Ti (PCIe 3.0 x8), i7-8700 with DDR4-2400 in
/// two channels: `n_gpu_layers` and tokens per second (InventiveHQ, `local-llm-benchmarks`, vram-offload-cliff; CC BY 4.0).
const SWEEP: [(u32, f64); 7] = [
    (0, 2.89),
    (8, 3.58),
    (16, 4.24),
    (24, 5.61),
    (32, 7.26),
    (40, 12.5),
    (99, 43.18),
];

#[test]
fn two_measured_ends_give_the_cliff_between_them_within_eight_percent() {
    let profile = QWEN_14B.profile();
    // The middle of 256 generated tokens, and a short prompt before them.
    let traffic = traffic(&profile, 256);
    let ends = (SWEEP[0].1, SWEEP[6].1);
    let model = SpeedModel::calibrated(traffic, ends.0, ends.1).unwrap();
    for (n, measured) in SWEEP {
        let predicted = model.tokens_per_second(&one_gpu(&profile, n));
        let error = predicted / measured - 1.0;
        println!(
            "{n:>3}  {measured:>6.2}  {predicted:>6.2}  {:>+5.1} %",
            100.0 * error
        );
        assert!(
            error.abs() < 0.08,
            "{n} layers: {predicted} against {measured}"
        );
    }
}

#[test]
fn a_token_reads_the_experts_it_uses_and_no_embedding() {
    let profile = QWEN3_30B_A3B.profile();
    let read = traffic(&profile, 0).total();
    let weights = &profile.weights;
    let all: u64 = weights.loaded().map(|weight| weight.bytes).sum();
    let experts: u64 = weights
        .loaded()
        .filter(|weight| weight.name.contains("_exps"))
        .map(|weight| weight.bytes)
        .sum();
    let embedding = weights.token_embedding().unwrap().bytes;
    // 8 of 128.
    assert_eq!(read, all - embedding - experts + experts / 16);
}

#[test]
fn a_deep_context_reads_every_key_and_value_of_it() {
    let profile = LLAMA_8B.profile();
    let none = traffic(&profile, 0).total();
    // 32 blocks of 1024 keys and 1024 values in 16 bits.
    assert_eq!(
        traffic(&profile, 1000).total() - none,
        32 * 2 * 1024 * 2 * 1000
    );
}

#[test]
fn what_is_no_speed_calibrates_nothing() {
    let of = |host, gpu| SpeedModel::calibrated(traffic(&LLAMA_8B.profile(), 0), host, gpu);
    assert!(of(0.0, 40.0).is_none());
    assert!(of(3.0, f64::NAN).is_none());
    assert!(of(3.0, 40.0).is_some());
}

proptest! {
    #[test]
    fn on_a_faster_gpu_every_layer_more_is_faster(shape in shape(), depth in 0u32..5000) {
        let profile = shape.profile();
        let rates = (Rate::new(300e9).per_layer(1e-6), Rate::new(30e9).per_layer(1e-5));
        let model = SpeedModel::new(traffic(&profile, depth), vec![rates.0], rates.1);
        let speed = |n| model.tokens_per_second(&one_gpu(&profile, n));
        for n in 1..=profile.full_offload() {
            prop_assert!(speed(n) > speed(n - 1));
        }
    }
}
