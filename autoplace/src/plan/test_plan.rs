//! Plans for tests of what is done with plans: written down, not searched for.

use std::path::PathBuf;

use crate::machine::{gib, mib};
use crate::memory::{ContextParams, Footprint, HeadroomParts};

use super::speed::{Basis, GenerationSpeed, PromptSpeed};
use super::{Confidence, ModelSummary, Placement, PlacementKind, Plan, Speed, Workload};

/// 20 of 33 layers on a card, the others on the host.
pub(crate) fn plan() -> Plan {
    Plan {
        model: ModelSummary {
            sliding_window: false,
            path: Some(PathBuf::from("/models/llama 8b.gguf")),
            name: "Llama 8B".to_owned(),
            architecture: "llama".to_owned(),
            file_type: Some("Q4_K_M".to_owned()),
            file_bytes: gib(5),
            blocks: 32,
            n_ctx_train: 131_072,
        },
        n_gpu_layers: 20,
        tensor_split: Vec::new(),
        overrides: Vec::new(),
        full_offload: false,
        parted_blocks: 0,
        placements: vec![gpu("RTX 3050", "CUDA0", 20), host(13)],
        context: ContextParams {
            n_ctx: 8192,
            ..ContextParams::default()
        },
        confidence: Confidence::Probed,
        companions: Vec::new(),
        paging: None,
        speed: Some(speed()),
        notes: vec!["20 of 33 layers: layer 21 needs 40 MiB more on RTX 3050".to_owned()],
    }
}

/// 12 layers on the second card, then 8 on the first.
pub(crate) fn two_gpus() -> Plan {
    Plan {
        tensor_split: vec![12.0, 8.0],
        placements: vec![
            gpu("RTX 4060", "CUDA1", 12),
            gpu("RTX 3050", "CUDA0", 8),
            host(13),
        ],
        ..plan()
    }
}

/// No layer on a GPU.
pub(crate) fn host_plan() -> Plan {
    Plan {
        n_gpu_layers: 0,
        placements: vec![host(33)],
        speed: None,
        ..plan()
    }
}

fn speed() -> Speed {
    let at = |n: u32| 500.0 / (100.0 - 2.5 * f64::from(n));
    let workload = Workload::new(0, 256).after(3968);
    Speed {
        basis: Basis::DataSheet,
        prompt: PromptSpeed {
            tokens: 0,
            tokens_per_second: 0.0,
        },
        generation: vec![GenerationSpeed {
            depth: 4096,
            tokens_per_second: at(20),
        }],
        workload,
        tokens_per_second: at(20),
        depth: workload.depth(),
        all_on_host: at(0),
        all_on_gpus: Some(at(33)),
        curve: (0..=33).map(at).collect(),
        gpu_rates: vec![200e9],
        host_rate: 40e9,
    }
}

fn gpu(name: &str, device: &str, layers: u32) -> Placement {
    let headroom = HeadroomParts {
        driver: mib(300),
        growth: mib(100),
        margin: mib(112),
    };
    let free = mib(5632);
    Placement {
        name: name.to_owned(),
        device: Some(device.to_owned()),
        backend: "CUDA".to_owned(),
        kind: PlacementKind::Gpu,
        total: gib(6),
        free,
        layers,
        footprint: Footprint::new(mib(3000), mib(640), mib(300)),
        of_host: 0,
        headroom,
        companions: 0,
        budget: free - headroom.total(),
    }
}

fn host(layers: u32) -> Placement {
    let headroom = HeadroomParts {
        driver: 0,
        growth: 0,
        margin: mib(512),
    };
    Placement {
        name: "host".to_owned(),
        device: None,
        backend: "CPU".to_owned(),
        kind: PlacementKind::Host,
        total: gib(32),
        free: gib(24),
        layers,
        footprint: Footprint::new(gib(2), mib(416), mib(20)),
        of_host: 0,
        headroom,
        companions: 0,
        budget: gib(24) - headroom.total(),
    }
}
