//! A machine is written down and read again.

use autoplace_planner::machine::{
    Bandwidth, BandwidthSource, Gpu, GpuKind, GpuProcess, Host, HostLimit, LearnedHeadroom, Machine, Note, PciId,
    PcieLink, PcieRate, Reading, gib,
};
use serde_json::Value;

/// A machine of which everything is known that can be: its GPUs and their bandwidths of every kind.
fn complete(limit: usize) -> Machine {
    let bytes = 5;
    let file = "memory.max".to_owned();
    let limits = [
        HostLimit::Stated,
        HostLimit::System,
        HostLimit::Cgroup { file, bytes },
        HostLimit::AddressSpace { bytes },
        HostLimit::DataSegment { bytes },
        HostLimit::Unknown,
    ];
    let mut host = Host::new(gib(64)).available(gib(48)).bandwidth(7);
    host.limit = limits[limit].clone();
    host.cpu = Some("Xeon".to_owned());
    (host.physical_cores, host.usable_cores) = (Some(8), Some(6));
    let rate = |generation| PcieRate::new(generation, 16).unwrap();
    let named = GpuProcess::new(7).name("ollama").bytes(gib(5));
    let kinds = [GpuKind::Discrete, GpuKind::Integrated, GpuKind::Remote];
    let sources = [BandwidthSource::Nvml, BandwidthSource::Catalogue, BandwidthSource::Stated];
    let mut machine = Machine::new(host);
    for (kind, source) in kinds.into_iter().zip(sources) {
        let mut gpu = Gpu::new("card").kind(kind).backend("CUDA").total(gib(24));
        gpu = gpu.free(gib(20)).device("CUDA0").alignment(32);
        gpu = gpu.pci_id(PciId::new(0, 1, 2, 3));
        gpu.bandwidth = Some(Bandwidth::new(9, source));
        gpu.pcie = Some(PcieLink::new(rate(4)).current(rate(1)));
        gpu.processes = Some(vec![GpuProcess::new(6), named.clone()]);
        gpu.ggml = Some(Reading::new(gib(23), gib(21)));
        gpu.nvml = Some(Reading::new(gib(24), gib(22)).reserved(5));
        gpu.resident_threads = Some(1536);
        gpu.driver = Some("550.54.14".to_owned());
        gpu.learned = Some(LearnedHeadroom::new(1, 2).work(3, 4));
        machine = machine.with_gpu(gpu);
    }
    let unused = serde_json::json!({
        "gpu": Gpu::new("card").total(gib(8)), "reason": { "why": "same_as", "device": "CUDA0" }
    });
    machine.unused_gpus.push(serde_json::from_value(unused).unwrap());
    machine.wsl = true;
    machine.notes = vec![Note::new("test", "a note")];
    machine
}

#[test]
fn a_machine_of_which_everything_is_known_is_read_as_it_was_written() {
    for limit in 0..6 {
        let machine = complete(limit);
        let json = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), machine);
        assert_eq!(machine.check(), Ok(()));
    }
}

#[test]
fn what_is_not_known_is_not_written() {
    let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("X").total(gib(8)));
    let json = serde_json::to_value(&machine).unwrap();
    let keys = |value: &Value| {
        let mut keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        keys.sort();
        keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(&json), "gpus host");
    assert_eq!(keys(&json["gpus"][0]), "backend description device free kind name pci_id total");
    assert_eq!(keys(&json["host"]), "available limit system_available total");
}
