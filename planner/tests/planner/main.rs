//! The planner, without llama.cpp: headers, machines, estimates, plans.

#[macro_use]
#[path = "../support/own_process/mod.rs"]
mod own_process;
#[path = "../support/counting/mod.rs"]
mod counting;
#[path = "../support/folder/mod.rs"]
mod folder;
#[path = "../support/gguf_support/mod.rs"]
mod gguf_support;
#[path = "../support/lora_support/mod.rs"]
mod lora_support;
#[cfg(target_os = "linux")]
#[path = "../support/real_group/mod.rs"]
mod real_group;
#[path = "../support/nvml/mod.rs"]
mod scripted;
#[path = "../support/shapes/mod.rs"]
mod shapes;
#[path = "../support/table/mod.rs"]
mod table;

use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use autoplace_planner::plan::{Error, Plan, Planner, Request};
use autoplace_planner::profile::ModelProfile;
use shapes::synthetic;

mod companion_mmproj;
mod gguf_hostile;
mod gguf_memory;
mod gguf_roundtrip;
mod gguf_split;
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
mod plan_advice;
mod plan_choices;
mod plan_companions;
mod plan_kv_cache;
mod plan_probed;
mod plan_properties;
mod plan_report;
mod plan_speed;
mod plan_stated;
mod profile_quantised;

/// A host, and cards of 24 GiB with these numbers of bytes free.
fn machine(host: u64, free: &[u64]) -> Machine {
    let card = |(index, &free)| Gpu::new(format!("card {index}")).total(gib(24)).free(free);
    free.iter().enumerate().map(card).fold(Machine::new(Host::new(host)), Machine::with_gpu)
}

fn plan(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    Planner::new(profile, machine).request(request.clone()).plan()
}
