//! Several GPUs: how many layers each of them takes where the most are wanted.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::Headroom;
use autoplace_planner::plan::{Error, GpuLayers, Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;

use crate::shapes::{LLAMA_8B, LLAMA_70B, Shape};

fn cards(free: &[u64]) -> Vec<Gpu> {
    let card = |(index, &free)| Gpu::new(format!("card {index}")).total(gib(24)).free(free).backend("CUDA");
    free.iter().enumerate().map(card).collect()
}

fn plan(profile: &ModelProfile, gpus: &[Gpu], request: &Request) -> Result<Plan, Error> {
    let machine = gpus.iter().cloned().fold(Machine::new(Host::new(gib(64))), Machine::with_gpu);
    Planner::new(profile, &machine).request(request.clone().policy(Policy::MostLayers)).plan()
}

#[test]
fn a_share_that_no_step_leads_to_is_found() {
    let (n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim) = (3, 768, 1536, 12, 3, 64);
    let shape = Shape { n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab: 88_832, ..LLAMA_8B };
    let gpus = cards(&[827_568_360, 901_984_960, 827_568_361].map(|free| free + mib(64)));
    let request = Request::new().n_ctx(183).n_ubatch(183).n_outputs_max(183);
    assert_eq!(plan(&shape.profile(), &gpus, &request).unwrap().n_gpu_layers, 4);
}

#[test]
fn unequal_cards_are_filled_to_the_same_share() {
    let profile = LLAMA_70B.profile();
    let gpus = cards(&[gib(12), gib(24), gib(18)]);
    let request = Request::new().headroom(Headroom::Bytes(gib(1)));
    let plan = plan(&profile, &gpus, &request).unwrap();
    assert!(plan.full_offload, "{plan}");
    let shares: Vec<f64> = plan.gpus().map(|gpu| gpu.footprint.total() as f64 / gpu.budget as f64).collect();
    let (least, most) =
        shares.iter().fold((1.0_f64, 0.0_f64), |(least, most), &share| (least.min(share), most.max(share)));
    // One layer is 5 % of the smallest of them, and what each needs beside its layers differs.
    assert!(most - least < 0.08, "{shares:?}");
}

#[test]
fn a_named_number_of_layers_goes_on_as_few_gpus_as_hold_it() {
    let profile = LLAMA_8B.profile();
    let gpus = cards(&[gib(3), gib(4), gib(5)]);
    let exactly = |n| Request::new().n_gpu_layers(GpuLayers::Exactly(n));
    let used = |n| plan(&profile, &gpus, &exactly(n)).unwrap().gpus().count();
    assert_eq!((used(0), used(5), used(33)), (0, 1, 2));
    let less = cards(&[gib(2), gib(3)]);
    let error = plan(&profile, &less, &exactly(33)).unwrap_err();
    let Error::DoesNotFit { devices, .. } = &error else { panic!("{error}") };
    assert_eq!(devices.len(), 3, "both cards and the host: {error}");
}

#[test]
fn a_gpu_that_uses_the_hosts_memory_is_no_help_to_another() {
    let profile = LLAMA_8B.profile();
    let mut gpus = cards(&[gib(4), gib(5)]);
    gpus[0].kind = autoplace_planner::machine::GpuKind::Integrated;
    let plan = plan(&profile, &gpus, &Request::new()).unwrap();
    assert_eq!(plan.gpus().count(), 1, "{plan}");
}
