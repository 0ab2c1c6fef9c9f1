//! The predicted speed, compared with a published sweep, and properties of every prediction.

use autoplace_planner::machine::{Gpu, Host, Machine, MeasuredRates, RateConditions, WeightRate, gib};
use autoplace_planner::memory::estimate::Assignment;
use autoplace_planner::memory::{ContextParams, Place, TensorOverride};
use autoplace_planner::plan::speed::{Basis, InUse, Rate, Rates, SpeedModel};
use autoplace_planner::plan::{Planner, Workload};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{prop_assert, proptest};

use crate::any::shape;
use test_support::dims::Experts;
use test_support::shapes::{LLAMA_8B, QWEN_14B, QWEN3_30B_A3B, Shape};

/// Bytes that a token reads, which equal the token's seconds on a host that reads one byte per second.
fn token_bytes(profile: &ModelProfile, depth: u32) -> u64 {
    let model = SpeedModel::new(profile, &ContextParams::default(), Rates::new(Vec::new(), Rate::new(1.0)));
    model.token_seconds(&Assignment::by_counts(profile.n_layer(), &[]), depth) as u64
}

fn model(profile: &ModelProfile, gpu: Rate, host: Rate) -> SpeedModel {
    SpeedModel::new(profile, &ContextParams::default(), Rates::new(vec![gpu], host))
}

/// `n` layers on one GPU.
fn one_gpu(profile: &ModelProfile, n: u32) -> Assignment {
    Assignment::by_counts(profile.n_layer(), &[n.min(profile.full_offload())])
}

/// A published sweep: Qwen2.5-Coder-14B Q4_K_M with 256 generated tokens, llama.cpp with CUDA on an RTX 5060 Ti (PCIe
/// 3.0 x8), i7-8700 with DDR4-2400 in two channels. The columns are `n_gpu_layers` and tokens per second (InventiveHQ,
/// `local-llm-benchmarks`, vram-offload-cliff; CC BY 4.0).
const SWEEP: [(u32, f64); 7] = [(0, 2.89), (8, 3.58), (16, 4.24), (24, 5.61), (32, 7.26), (40, 12.5), (99, 43.18)];

#[test]
fn two_measured_ends_predict_the_cliff_between_them_within_eight_percent() {
    let profile = QWEN_14B.profile();
    // The depth of the middle of 256 tokens that are generated after a short prompt.
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
fn a_token_reads_the_experts_that_it_uses_and_no_embedding() {
    let profile = QWEN3_30B_A3B.profile();
    let read = token_bytes(&profile, 0);
    let bytes = |of: &str| -> u64 {
        profile.weights.loaded().filter(|weight| weight.name.contains(of)).map(|weight| weight.bytes).sum()
    };
    let (all, experts, embedding) = (bytes(""), bytes("_exps"), bytes("token_embd"));
    // A token uses 8 of the 128 experts.
    assert_eq!(read, all - embedding - experts + experts / 16);
}

#[test]
fn a_token_in_a_deep_context_reads_all_of_its_keys_and_values() {
    let profile = LLAMA_8B.profile();
    let none = token_bytes(&profile, 0);
    // There are 32 blocks, each with 1024 keys and 1024 values of 16 bits per token.
    assert_eq!(token_bytes(&profile, 1000) - none, 32 * 2 * 1024 * 2 * 1000);
}

#[test]
fn larger_batches_speed_up_a_prompt_if_weights_cross_the_link() {
    let profile = LLAMA_8B.profile();
    let seconds = |gpus: Vec<Rate>, assignment: &Assignment, n_ubatch| {
        let mut params = ContextParams::default();
        params.n_ubatch = n_ubatch;
        let model = SpeedModel::new(&profile, &params, Rates::new(gpus, Rate::new(40e9)));
        model.prompt_seconds(assignment, &Workload::new(2048, 0))
    };
    // The weights of 23 blocks cross the link once instead of four times. The arithmetic is the same.
    let split = |n_ubatch| seconds(vec![Rate::new(800e9)], &one_gpu(&profile, 10), n_ubatch);
    assert!(split(512) > 1.5 * split(2048));
    let alone = |n_ubatch| seconds(Vec::new(), &Assignment::by_counts(32, &[]), n_ubatch);
    assert!((alone(512) / alone(2048) - 1.0).abs() < 0.2);
}

#[test]
fn parts_of_blocks_on_the_host_wake_its_threads_once_for_each_block() {
    let profile = LLAMA_8B.profile();
    let seconds = |wake_up: f64| {
        let mut host = Rate::new(40e9);
        host.wake_up = wake_up;
        let on_host = TensorOverride::new(r"^blk\.[0-9]\.ffn_(gate|up|down)\.weight", Place::Host);
        let model = model(&profile, Rate::new(800e9), host).overrides(&profile, &[on_host]).unwrap();
        model.token_seconds(&one_gpu(&profile, profile.full_offload()), 0)
    };
    assert!((seconds(1e-3) - seconds(0.0) - 10e-3).abs() < 1e-9);
}

#[test]
fn an_expert_computes_a_prompt_with_the_tokens_that_chose_it() {
    // A token needs the same number of multiplications in one matrix and in one of eight experts.
    let seconds = |experts| {
        let shape = Shape { experts, ..LLAMA_8B };
        let profile = shape.profile();
        let mut gpu = Rate::new(1e15);
        (gpu.flops, gpu.half_speed) = (100e12, 64.0);
        let model = SpeedModel::new(&profile, &ContextParams::default(), Rates::new(vec![gpu], Rate::new(40e9)));
        model.prompt_seconds(&one_gpu(&profile, profile.full_offload()), &Workload::new(512, 0))
    };
    let experts = |count| Some(Experts { n: count, used: 1, ff: LLAMA_8B.n_ff });
    assert!(seconds(experts(8)) > 1.4 * seconds(experts(1)));
}

proptest! {
    #[test]
    fn every_further_layer_on_a_faster_gpu_gains_speed(shape in shape(), depth in 0u32..5000) {
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

/// A host with measured rates: bytes of Q4_K per second, and operations per second for prompts.
fn measured_host(weights: u64, flops: u64, taken: &RateConditions) -> Host {
    let mut host = Host::new(gib(64));
    let text = format!(
        r#"{{"threads": 2, "weights": [{{"type": "Q4_K", "bytes_per_second": {weights}}},
            {{"type": "Q6_K", "bytes_per_second": {weights}}}],
            "attention": [{{"type": "F16", "head_size": 128, "n_gqa": 4, "bytes_per_second": 4000000000}}],
            "prompts": [{{"type": "Q4_K", "n_tokens": 512, "flops": {flops}}}], "layer_ns": 20000}}"#
    );
    let rates: MeasuredRates = serde_json::from_str(&text).unwrap();
    host.rates = Some(rates.taken_under(taken));
    host
}

fn on_host(profile: &ModelProfile, host: &Host) -> (SpeedModel, Assignment) {
    let model = SpeedModel::new(profile, &ContextParams::default(), Rates::for_devices(&[], host));
    (model, Assignment::by_counts(profile.n_layer(), &[]))
}

#[test]
fn real_use_corrects_the_rates_until_the_observed_time_is_predicted() {
    let profile = LLAMA_8B.profile();
    let quiet = RateConditions::default();
    let workload = Workload::new(512, 0);
    // Real use is three times as fast as predicted, or three quarters as fast. In a deep context, attention is the
    // larger part of the time.
    for factor in [3.0, 0.75] {
        for depth in [100, 60_000] {
            let mut host = measured_host(20_000_000_000, 60_000_000_000, &quiet);
            let (model, assignment) = on_host(&profile, &host);
            let predicted = model.token_seconds(&assignment, depth);
            let prompt = model.prompt_seconds(&assignment, &workload);
            let seen = [
                InUse::Generation { depth, seconds: predicted / factor },
                InUse::Prompt { workload, seconds: prompt / factor },
            ];
            for seen in seen {
                let correction = seen.correction(&model, &assignment).unwrap();
                correction.apply(&model, host.rates.as_mut().unwrap(), 500, 1, false);
                let (corrected, _) = on_host(&profile, &host);
                let error = seen.predicted(&corrected, &assignment) / seen.seconds() - 1.0;
                assert!(error.abs() < 0.01, "{seen:?}: {error}");
            }
            // No shallow token was observed. If attention caused the difference, the predicted time of shallow tokens
            // does not change.
            let shallow = |host: &Host| on_host(&profile, host).0.token_seconds(&assignment, 0);
            let before = shallow(&measured_host(20_000_000_000, 60_000_000_000, &quiet));
            let is_same = (shallow(&host) / before - 1.0).abs() < 0.01;
            assert_eq!(is_same, depth > 1000, "{depth}");
        }
    }
}

#[test]
fn earlier_use_is_weighted_by_its_tokens_and_dropped_if_refuted() {
    let profile = LLAMA_8B.profile();
    let mut host = measured_host(20_000_000_000, 60_000_000_000, &RateConditions::default());
    let mut see = |times_as_fast: f64, tokens, refutes| {
        let (model, assignment) = on_host(&profile, &host);
        let seconds = model.token_seconds(&assignment, 100) / times_as_fast;
        let correction = InUse::Generation { depth: 100, seconds }.correction(&model, &assignment).unwrap();
        correction.apply(&model, host.rates.as_mut().unwrap(), tokens, 1, refutes);
        let (corrected, _) = on_host(&profile, &host);
        seconds / corrected.token_seconds(&assignment, 100)
    };
    assert!((see(2.0, 1000, false) - 1.0).abs() < 0.01);
    // A few tokens that took twice as long change the rate slightly. A refutation changes it at once.
    assert!((0.45..0.6).contains(&(1.0 / see(0.5, 20, false))));
    assert!((see(0.5, 20, true) - 1.0).abs() < 0.01);
}

#[test]
fn no_rate_is_corrected_by_a_time_that_has_no_dominant_device() {
    let profile = LLAMA_8B.profile();
    let host = measured_host(20_000_000_000, 60_000_000_000, &RateConditions::default());
    let mut gpu = Gpu::new("card").total(gib(8));
    gpu.rates = serde_json::from_str(r#"{"weights": [{"type": "Q4_K", "bytes_per_second": 20000000000}]}"#).unwrap();
    let model = SpeedModel::new(&profile, &ContextParams::default(), Rates::for_devices(&[&gpu], &host));
    let half = one_gpu(&profile, 16);
    let seconds = 2.0 * model.token_seconds(&half, 100);
    assert_eq!(InUse::Generation { depth: 100, seconds }.correction(&model, &half), None);
    for seconds in [0.0, f64::NAN, f64::INFINITY] {
        assert_eq!(InUse::Generation { depth: 100, seconds }.correction(&model, &half), None);
    }
}

#[test]
fn a_plan_states_whether_its_rates_are_disturbed_or_from_real_use() {
    let profile = LLAMA_8B.profile();
    let said = |host: &Host| {
        let plan = Planner::new(&profile, &Machine::new(host.clone())).plan().unwrap();
        (plan.speed.as_ref().unwrap().basis, plan.to_string())
    };
    let mut busy = RateConditions::default();
    busy.waited = Some(45);
    let (basis, text) = said(&measured_host(1_000_000_000, 60_000_000_000, &busy));
    assert_eq!(basis, Basis::Disturbed);
    assert!(text.contains("by rates measured beside other work"), "{text}");
    let mut host = measured_host(1_000_000_000, 60_000_000_000, &RateConditions::default());
    assert_eq!(said(&host).0, Basis::Measured);
    for rate in &mut host.rates.as_mut().unwrap().weights {
        rate.used = serde_json::from_str(r#"{"per_second": 2000000000, "tokens": 9, "at": 1}"#).unwrap();
    }
    assert_eq!(said(&host).0, Basis::Used);
}

#[test]
fn small_matrices_have_separate_rates() {
    let tiny = Shape { n_layer: 8, n_embd: 512, n_ff: 1536, n_head: 8, n_head_kv: 2, head_dim: 64, ..LLAMA_8B };
    let weights = |shape: &Shape, host: &Host| {
        let (model, assignment) = on_host(&shape.profile(), host);
        model.token_seconds(&assignment, 0)
    };
    let mut host = measured_host(20_000_000_000, 60_000_000_000, &RateConditions::default());
    let before = [&LLAMA_8B, &tiny].map(|shape| weights(shape, &host));
    let small: WeightRate = serde_json::from_str(
        r#"{"type": "Q4_K", "shape": {"n_in": 576, "n_out": 1536}, "bytes_per_second": 1000000000}"#,
    )
    .unwrap();
    host.rates.as_mut().unwrap().weights.push(small);
    let after = [&LLAMA_8B, &tiny].map(|shape| weights(shape, &host));
    assert_eq!(after[0], before[0]);
    assert!(after[1] > 1.5 * before[1], "{before:?} {after:?}");
}
