//! A machine is written down and read again, by this version and by others.

use autoplace_planner::machine::{
    Bandwidth, BandwidthSource, Date, Gpu, GpuKind, GpuProcess, Host, HostLimit, LearnedHeadroom,
    Machine, MigSlice, Note, PciId, PcieLink, PcieRate, Reading, UnusedReason, gib,
};
use proptest::option;
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

fn day() -> impl Strategy<Value = Date> {
    (1u16..=9999, 1u8..=12, 1u8..=28).prop_map(|(y, m, d)| Date::new(y, m, d).unwrap())
}

/// What may have been learned of a card of so many bytes: shares of them.
fn learned(total: u64, shares: (u64, u64), day: Date) -> LearnedHeadroom {
    let (driver, growth) = shares;
    LearnedHeadroom::new(total / 2 / driver, total / 2 / growth, day).work(driver, growth)
}

fn bandwidth() -> impl Strategy<Value = Bandwidth> {
    let source = prop_oneof![
        Just(BandwidthSource::Nvml),
        Just(BandwidthSource::Catalogue),
        Just(BandwidthSource::Stated),
    ];
    prop_oneof![
        (1u64.., source).prop_map(|(bytes, source)| Bandwidth::new(bytes, source)),
        (1u64.., day()).prop_map(|(bytes, day)| Bandwidth::measured(bytes, day)),
    ]
}

fn link() -> impl Strategy<Value = PcieLink> {
    let rate = || {
        (1u8..=6, 1u8..=32)
            .prop_map(|(generation, lanes)| PcieRate::new(generation, lanes).unwrap())
    };
    (rate(), option::of(rate())).prop_map(|(max, now)| {
        let link = PcieLink::new(max);
        now.map_or(link, |now| link.current(now))
    })
}

fn process() -> impl Strategy<Value = GpuProcess> {
    (any::<u32>(), any::<String>(), any::<Option<u64>>()).prop_map(|(pid, name, bytes)| {
        let mut process = GpuProcess::new(pid).name(&name);
        process.bytes = bytes;
        process
    })
}

fn reading() -> impl Strategy<Value = Reading> {
    (any::<u64>(), any::<u64>(), any::<Option<u64>>()).prop_map(|(total, free, reserved)| {
        let mut reading = Reading::new(total, free);
        reading.reserved = reserved;
        reading
    })
}

fn slice() -> impl Strategy<Value = MigSlice> {
    (
        any::<String>(),
        any::<Option<String>>(),
        option::of(reading()),
    )
        .prop_map(|(name, uuid, memory)| {
            let mut slice = MigSlice::new(&name);
            (slice.uuid, slice.memory) = (uuid, memory);
            slice
        })
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let kind = prop_oneof![
        Just(GpuKind::Discrete),
        Just(GpuKind::Integrated),
        Just(GpuKind::Remote)
    ];
    let base = (any::<String>(), kind, any::<String>(), 1u64.., any::<u64>());
    let known = (
        option::of(bandwidth()),
        option::of(link()),
        option::of(slice()),
        option::of(prop::collection::vec(process(), 0..4)),
        any::<Option<[u8; 3]>>(),
        option::of(0u32..64),
    );
    let readings = (
        option::of(reading()),
        option::of(reading()),
        any::<Option<String>>(),
    );
    let headroom = (
        any::<Option<u32>>(),
        any::<Option<String>>(),
        option::of(((1u64.., 1u64..), day())),
    );
    (base, known, readings, headroom).prop_map(
        |((name, kind, backend, total, free), known, (ggml, nvml, device), headroom)| {
            let mut gpu = Gpu::new(name)
                .kind(kind)
                .backend(backend)
                .total(total)
                .free(free);
            let (bandwidth, pcie, mig, processes, pci, alignment) = known;
            gpu.alignment = alignment.map(|bits| 1 << bits);
            (gpu.bandwidth, gpu.pcie, gpu.mig, gpu.processes) = (bandwidth, pcie, mig, processes);
            (gpu.ggml, gpu.nvml, gpu.device) = (ggml, nvml, device);
            (gpu.resident_threads, gpu.driver) = (headroom.0, headroom.1);
            gpu.learned = headroom.2.map(|(shares, day)| learned(total, shares, day));
            gpu.pci_id = pci.map(|[bus, device, function]| PciId::new(0, bus, device, function));
            gpu
        },
    )
}

fn host() -> impl Strategy<Value = Host> {
    let limit = prop_oneof![
        Just(HostLimit::Stated),
        Just(HostLimit::System),
        (any::<String>(), any::<u64>()).prop_map(|(file, bytes)| HostLimit::Cgroup { file, bytes }),
        any::<u64>().prop_map(|bytes| HostLimit::AddressSpace { bytes }),
        Just(HostLimit::Unknown),
    ];
    let counts = (any::<Option<u32>>(), any::<Option<u32>>());
    (
        any::<u64>(),
        any::<u64>(),
        limit,
        counts,
        option::of(bandwidth()),
        any::<Option<String>>(),
    )
        .prop_map(
            |(total, available, limit, (cores, usable), bandwidth, cpu)| {
                let mut host = Host::new(total).available(available);
                (host.limit, host.bandwidth, host.cpu) = (limit, bandwidth, cpu);
                (host.physical_cores, host.usable_cores) = (cores, usable);
                host
            },
        )
}

fn machine() -> impl Strategy<Value = Machine> {
    let gpus = prop::collection::vec(gpu(), 0..4);
    (host(), gpus, any::<bool>(), any::<Option<String>>()).prop_map(|(host, gpus, wsl, note)| {
        let mut machine = Machine::new(host);
        (machine.gpus, machine.wsl) = (gpus, wsl);
        machine.notes = note
            .map(|text| Note::new("test", text))
            .into_iter()
            .collect();
        machine
    })
}

proptest! {
    #[test]
    fn every_machine_is_the_same_after_a_trip_through_json(machine in machine()) {
        let json = serde_json::to_string(&machine).unwrap();
        let read: Machine = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(&read, &machine);
        prop_assert_eq!(read.check(), Ok(()));
    }

    #[test]
    fn a_key_of_another_version_is_no_obstacle_wherever_it_is(machine in machine(), value in any::<i32>()) {
        let mut json = serde_json::to_value(&machine).unwrap();
        json["later"] = value.into();
        json["host"]["later"] = value.into();
        for gpu in json["gpus"].as_array_mut().unwrap() {
            gpu["later"] = value.into();
        }
        prop_assert_eq!(serde_json::from_value::<Machine>(json).unwrap(), machine);
    }

    #[test]
    fn more_free_than_there_is_does_not_pass(machine in machine(), more in 1u64..) {
        let mut machine = machine;
        if let Some(gpu) = machine.gpus.first_mut() {
            gpu.free = gpu.total.saturating_add(more);
            let wrong = gpu.free > gpu.total;
            prop_assert_eq!(machine.check().is_err(), wrong);
        }
        let host = &mut machine.host;
        host.available = host.total.saturating_add(more);
        let wrong = host.available > host.total;
        prop_assert!(!wrong || machine.check().is_err());
    }
}

/// What version 0.1 wrote before machines knew of speed, links and programs.
#[test]
fn a_file_of_an_earlier_version_is_read() {
    let json = r#"{
        "gpus": [{
            "name": "RTX 4090", "description": "NVIDIA GeForce RTX 4090", "kind": "discrete", "backend": "CUDA",
            "device": "CUDA0", "pci_id": "0000:01:00.0", "total": 25769803776, "free": 24266565222,
            "ggml": {"total": 25769803776, "free": 24266565222}
        }],
        "host": {
            "total": 68719476736, "available": 51539607552, "system_available": 51539607552,
            "limit": {"bound": "system"}, "physical_cores": 16
        },
        "unused_gpus": [{
            "gpu": {
                "name": "RTX 3060", "description": "NVIDIA GeForce RTX 3060", "kind": "discrete", "backend": "CUDA",
                "device": null, "pci_id": null, "total": 0, "free": 0
            },
            "reason": {"why": "no_backend"}
        }]
    }"#;
    let machine: Machine = serde_json::from_str(json).unwrap();
    assert_eq!(machine.check(), Ok(()));
    let gpu = &machine.gpus[0];
    assert_eq!((gpu.total, gpu.free), (gib(24), 24_266_565_222));
    assert_eq!(
        (gpu.bandwidth, gpu.pcie, &gpu.processes),
        (None, None, &None)
    );
    assert_eq!((machine.wsl, machine.host.bandwidth), (false, None));
    assert_eq!(machine.unused_gpus[0].reason, UnusedReason::NoBackend);
}

#[test]
fn what_is_not_known_is_not_written() {
    let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("X").total(gib(8)));
    let json = serde_json::to_value(&machine).unwrap();
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        keys.sort();
        keys.iter()
            .map(|key| key.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(keys(&json), "gpus host");
    assert_eq!(
        keys(&json["gpus"][0]),
        "backend description device free kind name pci_id total"
    );
    assert_eq!(
        keys(&json["host"]),
        "available limit system_available total"
    );
}
