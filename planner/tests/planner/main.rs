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
#[path = "../support/nvml/mod.rs"]
mod scripted;
#[path = "../support/shapes/mod.rs"]
mod shapes;
#[path = "../support/table/mod.rs"]
mod table;

use shapes::synthetic;

mod ballast;
mod companion_mmproj;
mod estimate_allocations;
mod gguf_hostile;
mod gguf_memory;
mod gguf_roundtrip;
mod gguf_split;
mod headroom_presets;
mod lora_files;
mod machine_caches;
mod machine_cores;
#[cfg(target_os = "linux")]
mod machine_detect;
mod machine_host;
#[cfg(unix)]
mod machine_links;
#[cfg(target_os = "linux")]
mod machine_nvidia;
#[cfg(target_os = "linux")]
mod machine_nvidia_driver;
mod machine_serialised;
mod memory_estimate;
mod plan_advice;
mod plan_choices;
mod plan_companions;
mod plan_probed;
mod plan_properties;
mod plan_report;
mod plan_several_gpus;
mod plan_speed;
mod profile_quantised;
