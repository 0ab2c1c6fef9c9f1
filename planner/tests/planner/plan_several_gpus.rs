//! Several GPUs: how many layers each of them takes where the most are wanted.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::estimate::Assignment;
use autoplace_planner::memory::{ContextParams, Estimate, Headroom, Place, TensorOverride, Workload};
use autoplace_planner::plan::{Error, GpuLayers, Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{Strategy, prop_assert_eq, proptest};

use crate::shapes::any::{gpus, request, shape};
use crate::shapes::{LLAMA_8B, LLAMA_70B, Shape};

fn most_layers(profile: &ModelProfile, host: &Host, gpus: &[Gpu], request: &Request) -> Result<Plan, Error> {
    let machine = Machine::new(host.clone());
    let machine = gpus.iter().cloned().fold(machine, Machine::with_gpu);
    Planner::new(profile, &machine).request(request.clone().policy(Policy::MostLayers)).plan()
}

fn cards(free: &[u64]) -> Vec<Gpu> {
    let card = |(index, &free)| Gpu::new(format!("card {index}")).total(gib(24)).free(free).backend("CUDA");
    free.iter().enumerate().map(card).collect()
}

fn plan(profile: &ModelProfile, gpus: &[Gpu], request: &Request) -> Result<Plan, Error> {
    most_layers(profile, &Host::new(gib(64)), gpus, request)
}

/// A model of at most eight blocks.
fn small() -> impl Strategy<Value = Shape> {
    shape().prop_map(|shape| Shape { n_layer: shape.n_layer.min(8), ..shape })
}

/// Whether so many layers on each of these GPUs fit, put together anew from the parts. Where several hold all of them,
/// a single copy of the graph will do.
fn fits(profile: &ModelProfile, host: &Host, gpus: &[&Gpu], request: &Request, counts: &[u32]) -> bool {
    let mut params: ContextParams = request.params.clone();
    params.n_ctx = request.context.tokens(profile);
    let estimate = Estimate::new(profile, gpus, &params).unwrap();
    let workload = Workload::of(profile, estimate.sizes());
    let assignment = Assignment::by_counts(profile.n_layer(), counts);
    let fits = |estimate: &Estimate| {
        let footprints = estimate.footprints_of(&assignment);
        let unsure = estimate.uncertainty(&assignment);
        let host_headroom = Headroom::of_host(host, &workload, true, unsure.host);
        let mut host_needed = footprints.host.total() + host_headroom.total();
        let mut devices = gpus.iter().zip(&footprints.gpus).zip(&unsure.gpus);
        let gpus_fit = devices.all(|((gpu, footprint), &unsure)| {
            let headroom = request.headroom.of_gpu(gpu, &workload, unsure, false);
            host_needed += gpu.bytes_of_host(footprint.total(), headroom.total());
            footprint.total() + headroom.total() <= gpu.free
        });
        gpus_fit && host_needed <= host.available
    };
    let all = counts.iter().sum::<u32>() == profile.full_offload();
    fits(&estimate) || {
        let single_copy = [TensorOverride::new("^$", Place::Host)];
        all && counts.len() > 1 && fits(&estimate.overrides(&single_copy).unwrap())
    }
}

/// Every way to put `n` layers on `gpus` GPUs, at least one on each.
fn ways(n: u32, gpus: usize) -> Vec<Vec<u32>> {
    match gpus {
        0 => Vec::new(),
        1 => (n > 0).then(|| vec![n]).into_iter().collect(),
        _ => {
            let first = |count: u32| {
                let rest = ways(n - count, gpus - 1);
                rest.into_iter().map(move |rest| [&[count], &rest[..]].concat())
            };
            (1..n).flat_map(first).collect()
        }
    }
}

/// The most layers over every set of GPUs and every way to share them out.
fn brute_force(profile: &ModelProfile, host: &Host, gpus: &[Gpu], request: &Request) -> u32 {
    let mut most = 0;
    for chosen in 1_u32..1 << gpus.len() {
        let chosen: Vec<&Gpu> =
            (0..gpus.len()).filter(|&index| chosen & (1 << index) != 0).map(|index| &gpus[index]).collect();
        for n in most + 1..=profile.full_offload() {
            let mut ways = ways(n, chosen.len()).into_iter();
            if ways.any(|counts| fits(profile, host, &chosen, request, &counts)) {
                most = n;
            }
        }
    }
    most
}

proptest! {
    #[test]
    fn no_other_set_of_gpus_and_no_other_way_to_share_takes_more_layers(
        shape in small(),
        gpus in gpus(),
        request in request(),
        host in mib(300)..gib(4),
    ) {
        let (profile, host) = (shape.profile(), Host::new(host));
        let found = most_layers(&profile, &host, &gpus, &request);
        let found = found.map_or(0, |plan| plan.n_gpu_layers);
        prop_assert_eq!(found, brute_force(&profile, &host, &gpus, &request));
    }
}

#[test]
fn a_share_that_no_step_leads_to_is_found() {
    let shape = Shape {
        n_layer: 3,
        n_embd: 768,
        n_ff: 1536,
        n_head: 12,
        n_head_kv: 3,
        head_dim: 64,
        n_vocab: 88_832,
        ..LLAMA_8B
    };
    let gpus = cards(&[827_568_360, 901_984_960, 827_568_361].map(|free| free + mib(64)));
    let request = Request::new().n_ctx(183).n_ubatch(183).n_outputs_max(183);
    let profile = shape.profile();
    let found = plan(&profile, &gpus, &request).unwrap();
    assert_eq!(found.n_gpu_layers, 4);
}

#[test]
fn two_cards_take_what_one_cannot() {
    let profile = LLAMA_8B.profile();
    let gpus = cards(&[gib(4), gib(5)]);
    let plan = plan(&profile, &gpus, &Request::new()).unwrap();
    assert!(plan.full_offload, "{plan}");
    assert_eq!(plan.gpus().count(), 2);
    assert!(plan.to_string().contains("all 33 layers on card 0 and card 1"), "{plan}");
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
