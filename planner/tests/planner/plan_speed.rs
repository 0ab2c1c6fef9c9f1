//! The predicted speed, against a published sweep and against what must hold of any.

use autoplace_planner::memory::ContextParams;
use autoplace_planner::memory::estimate::Assignment;
use autoplace_planner::plan::Workload;
use autoplace_planner::plan::speed::{Rate, Rates, SpeedModel};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{prop_assert, proptest};

use crate::shapes::any::shape;
use crate::shapes::{LLAMA_8B, QWEN_14B, QWEN3_30B_A3B};

/// Bytes that a token reads: its seconds on a host that reads one in a second.
fn token_bytes(profile: &ModelProfile, depth: u32) -> u64 {
    let model = SpeedModel::new(profile, &ContextParams::default(), Rates::new(Vec::new(), Rate::new(1.0)));
    model.token_seconds(&Assignment::by_counts(profile.n_layer(), &[]), depth) as u64
}

fn model(profile: &ModelProfile, gpu: Rate, host: Rate) -> SpeedModel {
    SpeedModel::new(profile, &ContextParams::default(), Rates::new(vec![gpu], host))
}

/// So many layers on one GPU.
fn one_gpu(profile: &ModelProfile, n: u32) -> Assignment {
    Assignment::by_counts(profile.n_layer(), &[n.min(profile.full_offload())])
}

/// Qwen2.5-Coder-14B Q4_K_M with 256 tokens generated, llama.cpp with CUDA on an RTX 5060 Ti (PCIe 3.0 x8), i7-8700
/// with DDR4-2400 in two channels: `n_gpu_layers` and tokens per second (InventiveHQ, `local-llm-benchmarks`,
/// vram-offload-cliff; CC BY 4.0).
const SWEEP: [(u32, f64); 7] = [(0, 2.89), (8, 3.58), (16, 4.24), (24, 5.61), (32, 7.26), (40, 12.5), (99, 43.18)];

#[test]
fn two_measured_ends_give_the_cliff_between_them_within_eight_percent() {
    let profile = QWEN_14B.profile();
    // The middle of 256 generated tokens, and a short prompt before them.
    const DEPTH: u32 = 256;
    let bytes = token_bytes(&profile, DEPTH) as f64;
    let [host, gpu] = [SWEEP[0].1, SWEEP[6].1].map(|speed| Rate::new(bytes * speed));
    let model = model(&profile, gpu, host);
    for (n, measured) in SWEEP {
        let predicted = model.tokens_per_second(&one_gpu(&profile, n), DEPTH);
        let error = predicted / measured - 1.0;
        println!("{n:>3}  {measured:>6.2}  {predicted:>6.2}  {:>+5.1} %", 100.0 * error);
        assert!(error.abs() < 0.08, "{n} layers: {predicted} against {measured}");
    }
}

#[test]
fn a_token_reads_the_experts_it_uses_and_no_embedding() {
    let profile = QWEN3_30B_A3B.profile();
    let read = token_bytes(&profile, 0);
    let bytes = |of: &str| -> u64 {
        profile.weights.loaded().filter(|weight| weight.name.contains(of)).map(|weight| weight.bytes).sum()
    };
    let (all, experts, embedding) = (bytes(""), bytes("_exps"), bytes("token_embd"));
    // 8 of 128.
    assert_eq!(read, all - embedding - experts + experts / 16);
}

#[test]
fn a_deep_context_reads_every_key_and_value_of_it() {
    let profile = LLAMA_8B.profile();
    let none = token_bytes(&profile, 0);
    // 32 blocks of 1024 keys and 1024 values in 16 bits.
    assert_eq!(token_bytes(&profile, 1000) - none, 32 * 2 * 1024 * 2 * 1000);
}

#[test]
fn a_prompt_is_faster_the_more_of_it_is_computed_at_once_where_weights_are_carried_over() {
    let profile = LLAMA_8B.profile();
    let seconds = |gpus: Vec<Rate>, assignment: &Assignment, n_ubatch| {
        let mut params = ContextParams::default();
        params.n_ubatch = n_ubatch;
        let model = SpeedModel::new(&profile, &params, Rates::new(gpus, Rate::new(40e9)));
        model.prompt_seconds(assignment, &Workload::new(2048, 0))
    };
    // 23 blocks' weights go over the link once instead of four times; the arithmetic stays.
    let split = |n_ubatch| seconds(vec![Rate::new(800e9)], &one_gpu(&profile, 10), n_ubatch);
    assert!(split(512) > 1.5 * split(2048));
    let alone = |n_ubatch| seconds(Vec::new(), &Assignment::by_counts(32, &[]), n_ubatch);
    assert!((alone(512) / alone(2048) - 1.0).abs() < 0.2);
}

proptest! {
    #[test]
    fn on_a_faster_gpu_every_layer_more_is_faster(shape in shape(), depth in 0u32..5000) {
        let profile = shape.profile();
        let (mut gpu, mut host) = (Rate::new(300e9), Rate::new(30e9));
        (gpu.seconds_per_layer, host.seconds_per_layer) = (1e-6, 1e-5);
        let model = model(&profile, gpu, host);
        let speed = |n| model.tokens_per_second(&one_gpu(&profile, n), depth);
        for n in 1..=profile.full_offload() {
            prop_assert!(speed(n) > speed(n - 1));
        }
    }
}
