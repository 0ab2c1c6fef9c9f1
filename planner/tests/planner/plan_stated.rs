//! A placement that the request states. Overrides and proportions have the meaning of llama.cpp's `--override-tensor`,
//! `--n-cpu-moe` and `--tensor-split`.

use autoplace_planner::machine::gib;
use autoplace_planner::memory::{Error as MemoryError, Place, TensorOverride};
use autoplace_planner::plan::{Error, GpuLayers, Request};
use autoplace_planner::profile::ModelProfile;

use crate::{machine, plan};
use test_support::shapes::{LLAMA_8B, QWEN3_30B_A3B};

/// The override that `--cpu-moe` adds.
fn experts_on_the_host() -> TensorOverride {
    TensorOverride::new(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", Place::Host)
}

#[test]
fn stated_overrides_are_kept_and_free_the_moved_bytes_on_the_gpu() {
    let (profile, machine) = (QWEN3_30B_A3B.profile(), machine(gib(64), &[gib(8)]));
    let request = Request::new().n_gpu_layers(GpuLayers::All).n_ctx(4096);
    let without = plan(&profile, &machine, &request);
    assert!(matches!(without, Err(Error::DoesNotFit { .. })), "{without:?}");
    let stated = plan(&profile, &machine, &request.clone().overrides([experts_on_the_host()])).unwrap();
    assert_eq!(stated.overrides, [experts_on_the_host()]);
    assert_eq!((stated.n_gpu_layers, stated.split_blocks), (stated.layers(), stated.model.blocks));
    assert!(!stated.full_offload);
    assert!(stated.notes[0].contains("by the requested overrides"), "{stated}");
    let experts: u64 = profile
        .weights
        .blocks
        .iter()
        .flatten()
        .filter(|weight| weight.name.contains("_exps"))
        .map(|weight| weight.bytes)
        .sum();
    assert!(stated.host().unwrap().footprint.weights >= experts, "{stated}");
    assert!(stated.gpus().next().unwrap().footprint.weights < gib(3), "{stated}");
}

#[test]
fn an_override_that_matches_no_weight_is_noted() {
    let machine = machine(gib(64), &[gib(8)]);
    let noted = |profile: &ModelProfile, overrides: &[TensorOverride]| {
        let request = Request::new().n_ctx(4096).n_gpu_layers(1).overrides(overrides.to_vec());
        let notes = plan(profile, &machine, &request).unwrap().notes;
        notes.into_iter().filter(|note| note.contains("matches no weight")).collect::<Vec<_>>()
    };
    let typo = TensorOverride::new("ffn_up_exp[^s]", Place::Host);
    let mixture = QWEN3_30B_A3B.profile();
    let expected = "the override `ffn_up_exp[^s]` matches no weight of the model";
    assert_eq!(noted(&mixture, &[experts_on_the_host(), typo]), [expected]);
    let dense = noted(&LLAMA_8B.profile(), &[experts_on_the_host()]);
    assert_eq!(dense, [format!("the override `{}` matches no weight of the model", experts_on_the_host().pattern)]);
    let embedding = TensorOverride::new("token_embd", Place::Host);
    assert_eq!(noted(&mixture, &[embedding]), [""; 0]);
}

#[test]
fn overrides_of_the_first_blocks_may_leave_the_number_of_layers_open() {
    let (profile, machine) = (QWEN3_30B_A3B.profile(), machine(gib(64), &[gib(12)]));
    let first = TensorOverride::new(r"blk\.(0|1|2)\.ffn_(up|down|gate|gate_up)_(ch|)exps", Place::Host);
    let stated = plan(&profile, &machine, &Request::new().n_ctx(4096).overrides([first])).unwrap();
    assert!(stated.n_gpu_layers > 0 && stated.n_gpu_layers < stated.layers(), "{stated}");
    // With one layer more, the plan does not fit.
    let more = GpuLayers::Exactly(stated.n_gpu_layers + 1);
    let more = Request::new().n_ctx(4096).overrides(stated.overrides.clone()).n_gpu_layers(more);
    let more = plan(&profile, &machine, &more);
    assert!(matches!(more, Err(Error::DoesNotFit { .. })), "{more:?}");
}

#[test]
fn stated_proportions_share_the_layers_as_llama_cpp_does() {
    let (profile, machine) = (LLAMA_8B.profile(), machine(gib(64), &[gib(20), gib(20)]));
    let split = |shares: &[f32]| plan(&profile, &machine, &Request::new().n_ctx(4096).tensor_split(shares));
    let layers = |shares: &[f32]| split(shares).unwrap().gpus().map(|gpu| gpu.layers).collect::<Vec<_>>();
    assert_eq!(layers(&[3.0, 1.0]), [25, 8]);
    assert_eq!(layers(&[1.0, 1.0]), [17, 16]);
    // A GPU with a share of 0 gets no layer and is not in the plan.
    assert_eq!(layers(&[0.0, 1.0]), [33]);
    let many = split(&[1.0, 1.0, 1.0]);
    assert!(matches!(many, Err(Error::Memory(MemoryError::TensorSplit { index: 2, .. }))), "{many:?}");
    let experts = TensorOverride::new("ffn_up", Place::Gpu(0));
    let elsewhere = plan(&profile, &machine, &Request::new().tensor_split([0.0, 1.0]).overrides([experts]));
    assert!(matches!(elsewhere, Err(Error::Memory(MemoryError::Override { .. }))), "{elsewhere:?}");
}

#[test]
fn without_a_gpu_stated_layers_are_an_error_and_stated_overrides_change_nothing() {
    let (profile, machine) = (LLAMA_8B.profile(), machine(gib(64), &[]));
    let overrides = Request::new().overrides([experts_on_the_host()]);
    assert_eq!(plan(&profile, &machine, &overrides).unwrap().n_gpu_layers, 0);
    let layers = plan(&profile, &machine, &overrides.n_gpu_layers(GpuLayers::Exactly(3)));
    assert!(matches!(layers, Err(Error::NoGpu { n_gpu_layers: 3, .. })), "{layers:?}");
}
