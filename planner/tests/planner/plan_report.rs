//! A plan's report for people. `cargo insta review` shows how a change affects it, and INSTA_UPDATE=always writes it.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::plan::Request;
use insta::assert_snapshot;
use serde_json::json;

use crate::plan;
use test_support::shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape};

/// A host with this many bytes, which reads 61 GB/s.
fn host(bytes: u64) -> Machine {
    Machine::new(Host::new(bytes).bandwidth(61_000_000_000))
}

fn rtx_4090(free: u64) -> Gpu {
    Gpu::named("RTX 4090").unwrap().free(free)
}

fn report(shape: &Shape, machine: &Machine, request: &Request) -> String {
    plan(&shape.profile(), machine, request).map_or_else(|error| error.to_string(), |plan| plan.to_string())
}

#[test]
fn each_kind_of_plan_has_its_report_and_a_partial_one_names_the_missing_bytes() {
    let of_12_gib = || Gpu::named("RTX 3060 12GB").unwrap().free(gib(11));
    let (small, large) = (Request::new(), Request::new().n_ctx(8192));
    for (name, shape, machine, request) in [
        ("a_full_offload", LLAMA_8B, host(gib(32)).with_gpu(rtx_4090(gib(22))), &small),
        (
            "a_partial_offload_says_what_the_next_layer_lacks",
            LLAMA_70B,
            host(gib(64)).with_gpu(rtx_4090(gib(22) + mib(600))),
            &large,
        ),
        ("the_host_alone", LLAMA_1B, host(gib(16)), &small),
        ("two_unequal_gpus", LLAMA_70B, host(gib(64)).with_gpu(of_12_gib()).with_gpu(rtx_4090(gib(22))), &small),
        ("experts_that_stay_on_the_host", QWEN3_30B_A3B, host(gib(32)).with_gpu(of_12_gib()), &small),
        ("nothing_fits", LLAMA_70B, host(gib(16)).with_gpu(rtx_4090(gib(20))), &small),
        ("a_gpu_without_room_for_the_output_layer", LLAMA_8B, host(gib(32)).with_gpu(rtx_4090(gib(1))), &small),
    ] {
        assert_snapshot!(name, report(&shape, &machine, request));
    }
}

#[test]
fn without_figures_a_speed_is_marked_as_a_guess() {
    let card = Gpu::new("card").total(gib(24));
    let machine = Machine::new(Host::new(gib(32))).with_gpu(card);
    let text = report(&LLAMA_8B, &machine, &Request::new());
    assert!(text.contains(" tok/s ") && text.contains("by a guess"), "{text}");
}

#[test]
fn a_card_that_the_build_cannot_drive_is_named() {
    let card = Gpu::new("NVIDIA GeForce RTX 4090").total(gib(24));
    let mut machine = Machine::new(Host::new(gib(16)));
    for reason in [json!({ "why": "no_backend" }), json!({ "why": "same_as", "device": "CUDA0" })] {
        let unused = json!({ "gpu": card, "reason": reason });
        machine.unused_gpus.push(serde_json::from_value(unused).unwrap());
    }
    let text = report(&LLAMA_1B, &machine, &Request::new());
    assert!(text.contains("RTX 4090 is not used: this build has no backend for it"), "{text}");
    assert!(!text.contains("same hardware"), "{text}");
}

#[test]
fn a_plan_states_why_a_file_is_read_and_not_mapped() {
    let machine = host(gib(32)).with_gpu(rtx_4090(gib(22)));
    let mut profile = LLAMA_8B.profile();
    let mapped = plan(&profile, &machine, &Request::new()).unwrap();
    assert!(mapped.context.mmap && !mapped.to_string().contains("not mapped"), "{mapped}");
    profile.alignment = 16;
    let read = plan(&profile, &machine, &Request::new()).unwrap();
    let said = "the file is read, not mapped: its data is aligned to 16 bytes, and ggml needs 32";
    assert!(!read.context.mmap && read.to_string().contains(said), "{read}");
    // A request that turns off the memory map gets no note about the map.
    let mut asked = Request::new();
    asked.params.mmap = false;
    let asked = plan(&profile, &machine, &asked).unwrap();
    assert!(!asked.context.mmap && !asked.to_string().contains("not mapped"), "{asked}");
}
