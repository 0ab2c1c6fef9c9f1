//! The planner, without llama.cpp: headers, machines, estimates, plans.

#[macro_use]
extern crate test_support;

use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use autoplace_planner::plan::{Error, Plan, Planner, Request};
use autoplace_planner::profile::ModelProfile;

count_allocations!();

mod any;
mod companion_mmproj;
mod depth_following;
mod folder;
mod headroom_presets;
mod ledger;
mod lora_files;
mod machine_caches;
mod machine_cores;
#[cfg(target_os = "linux")]
mod machine_detect;
mod machine_host;
#[cfg(target_os = "linux")]
mod machine_limits;
#[cfg(unix)]
mod machine_links;
#[cfg(target_os = "linux")]
mod machine_nvidia;
mod machine_serialised;
mod memory_estimate;
mod moe_cache_exhaustive;
#[cfg(target_os = "linux")]
mod nvml;
mod plan_advice;
mod plan_choices;
mod plan_companions;
mod plan_kv_cache;
mod plan_moe_cache;
mod plan_probed;
mod plan_properties;
mod plan_report;
mod plan_speed;
mod plan_stated;
mod profile_quantised;
#[cfg(target_os = "linux")]
mod real_group;

/// A host, and cards of 24 GiB with these numbers of bytes free.
fn machine(host: u64, free: &[u64]) -> Machine {
    let card = |(index, &free)| Gpu::new(format!("card {index}")).total(gib(24)).free(free);
    free.iter().enumerate().map(card).fold(Machine::new(Host::new(host)), Machine::with_gpu)
}

fn plan(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    Planner::new(profile, machine).request(request.clone()).plan()
}
