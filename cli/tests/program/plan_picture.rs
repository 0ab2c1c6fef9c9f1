//! The picture of a plan, as it is.

use crate::shapes::LLAMA_70B;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::plan::{Context, HostParts, Planner, Request};

/// Speeds of 81 layers over two bandwidths, whatever the planner thinks of these devices.
fn speed(chosen: usize) -> serde_json::Value {
    let seconds = |n: u32| f64::from(81 - n) * 0.0078 + f64::from(n) * 0.0006;
    let curve: Vec<f64> = (0..=81).map(|n| 1.0 / seconds(n)).collect();
    serde_json::json!({
        "basis": "data_sheet",
        "prompt": { "tokens": 1024, "tokens_per_second": 200.0 },
        "generation": [],
        "workload": { "before": 2944, "prompt": 1024, "reply": 256 },
        "tokens_per_second": curve[chosen],
        "depth": 4096,
        "all_on_host": curve[0],
        "all_on_gpus": curve[81],
        "curve": curve,
        "gpu_rates": [1008e9],
        "host_rate": 61e9,
    })
}

#[test]
fn a_partial_offload_with_its_cliff() {
    let card = Gpu::new("RTX 4090").total(gib(24)).free(gib(22));
    let machine = Machine::new(Host::new(gib(64)).available(gib(58))).with_gpu(card);
    let profile = LLAMA_70B.profile();
    let request = Request::new().context(Context::Tokens(8192));
    let request = request.host_parts(HostParts::None);
    let mut plan = Planner::new(&profile, &machine)
        .request(request)
        .plan()
        .unwrap();
    assert_eq!(plan.n_gpu_layers, 40);
    plan.speed = serde_json::from_value(speed(40)).unwrap();
    insta::assert_snapshot!(plan.to_svg().unwrap());
}
