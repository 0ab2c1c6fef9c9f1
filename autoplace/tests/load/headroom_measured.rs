//! A load measures how much memory on its GPUs was taken in addition to the buffers of llama.cpp. The next plan keeps
//! this memory free. The tests use simulated GPUs. Their drivers and pools take memory as real ones do.

use std::path::Path;
use std::sync::Arc;

use autoplace::llama_sys::sim::{Rules, SimGpu, SimGpuBuilder};
use autoplace::load::{self, GpuReport, Leases, NotLearnedReason, Stage};
use autoplace::machine::{Detector, GgmlDevice, GgmlKind, LearnedHeadroom, Machine, gib, mib};
use autoplace::memory::Headroom;
use autoplace::plan::GpuLayers;
use autoplace::{Model, ModelBuilder};
use test_support::demo_path;

/// The memory that the driver takes during a load, and the memory that the pools take at the first batch.
const DRIVER: u64 = mib(5);
const POOLS: u64 = mib(3);

fn card() -> SimGpuBuilder {
    SimGpu::builder("NVIDIA GeForce RTX 4090")
        .total(24 << 30)
        .rules(Rules::Cuda)
        .backend("CUDA")
        .pci_id("0000:01:00.0")
        .growth(POOLS)
}

/// The machine, with this card and with its cache in this folder.
fn machine(gpu: &SimGpu, folder: &Path) -> Machine {
    let device = gpu.device();
    let memory = device.memory().unwrap();
    let described = GgmlDevice::new(device.name(), device.backend(), GgmlKind::Gpu)
        .description(device.description())
        .device_id(device.pci_id().unwrap())
        .memory(memory.total, memory.free);
    Detector::new().without_nvml().cache_folder(folder).for_build(load::build_name()).detect_with(&[described])
}

fn builder(machine: Machine, folder: &Path) -> ModelBuilder {
    Model::builder(demo_path())
        .headroom(Headroom::Tight)
        .headroom_folder(folder)
        .machine(machine)
        // The card has an address, so with leases, other loads of this user would count it as the same card.
        .leases(Leases::none())
        .n_ubatch(64)
        .n_threads(1)
}

/// A load. During the load, another program takes `taken` bytes, and the driver takes [`DRIVER`].
fn load_while(gpu: &Arc<SimGpu>, folder: &Path, taken: u64) -> Model {
    let card = Arc::clone(gpu);
    let taking = builder(machine(gpu, folder), folder).progress(move |progress| {
        if progress.stage == Stage::Weights {
            card.set_taken(taken);
        }
        true
    });
    taking.load().unwrap()
}

/// The report's entry for the only GPU of the load.
fn measured(model: &Model) -> GpuReport {
    let report = model.report();
    assert_eq!(report.gpus.len(), 1, "{report}");
    report.gpus[0].clone()
}

fn parts(learned: &LearnedHeadroom) -> (u64, u64) {
    (learned.driver, learned.growth)
}

#[test]
fn bytes_of_driver_and_pools_are_measured_and_used_by_the_next_plan() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let gpu = Arc::new(card().register().unwrap());
    assert_eq!(machine(&gpu, folder).gpus[0].learned, None);

    let model = load_while(&gpu, folder, DRIVER);
    assert!(model.placement().full_offload);
    let measured = measured(&model);
    assert_eq!(measured.device, gpu.device().name());
    let allocated = measured.allocated.map(|bytes| bytes.total());
    assert_eq!(allocated, Some(gpu.used()));
    assert_eq!(parts(&measured.learned.unwrap()), (DRIVER, POOLS));
    assert_eq!(measured.beyond(), Some(DRIVER + POOLS));
    drop(model);
    gpu.set_taken(0);

    assert_eq!(machine(&gpu, folder).gpus[0].learned, Some(measured.learned.unwrap()));
    // If the card's driver reports its version, the measured values replace the table.
    let again = |gpu: &SimGpu| {
        let mut machine = machine(gpu, folder);
        machine.gpus[0].driver = Some("550.54.14".to_owned());
        builder(machine, folder)
    };
    let planned = again(&gpu).plan().unwrap().gpus().next().unwrap().clone();
    assert_eq!((planned.headroom.driver, planned.headroom.growth), (DRIVER, POOLS));
    // For a batch that is larger than the measured one, the growth in the table is used.
    assert!(again(&gpu).n_ubatch(512).plan().unwrap().gpus().next().unwrap().headroom.growth > mib(32));
    drop(gpu);

    // The measured headroom is enough: if the card has exactly the bytes that are needed, there is room for the model.
    // The card has the same name, so that the measured values are used for it.
    let (needed, kept) = (planned.footprint.total(), planned.headroom.total());
    let small = |total| Arc::new(card().total(total).register().unwrap());
    let gpu = small(needed + kept - 1);
    let less = again(&gpu).plan().unwrap();
    assert!(!less.full_offload, "{less}");
    drop(gpu);

    let gpu = small(needed + kept);
    let driver = Arc::clone(&gpu);
    let model = again(&gpu).progress(move |progress| {
        if progress.stage == Stage::Weights {
            driver.set_taken(DRIVER);
        }
        true
    });
    let model = model.load().unwrap();
    assert!(model.placement().full_offload);
    assert_eq!(model.report().tries(), 1);
    model.generate("And").max_tokens(4).text().unwrap();
    assert_eq!(gpu.free(), kept - DRIVER - POOLS);
}

#[test]
fn a_measurement_depends_on_the_work_and_on_other_programs() {
    own_process!();
    // If one batch fills the context, that is measured too. Nothing is measured if only the output layer is on the
    // card, if there is no warm-up, or while another program takes memory.
    for (case, expected) in [
        ("one batch", Ok((0, POOLS))),
        ("one layer", Err(NotLearnedReason::OneLayer)),
        ("no warm-up", Err(NotLearnedReason::NotComputed)),
        ("another program", Err(NotLearnedReason::Disturbed)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let gpu = Arc::new(card().register().unwrap());
        let builder = builder(machine(&gpu, folder.path()), folder.path());
        let model = match case {
            "one batch" => builder.n_ctx(256).n_ubatch(512).load().unwrap(),
            "one layer" => builder.n_gpu_layers(GpuLayers::Exactly(1)).load().unwrap(),
            "no warm-up" => builder.verify(load::Verify::Off).load().unwrap(),
            _ => load_while(&gpu, folder.path(), gib(4)),
        };
        let learned = measured(&model).learned;
        assert_eq!(learned.as_ref().map(parts).map_err(Clone::clone), expected, "{case}");
        let found = machine(&gpu, folder.path()).gpus[0].learned;
        assert_eq!(found, learned.ok(), "{case}");
        // There is enough room, so there is only one attempt.
        let report = model.report();
        assert_eq!(report.tries(), 1, "{case}");
        assert!(case != "another program" || report.notes.len() == 1, "{report}");
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert!(case != "no warm-up" || files == 0, "{files} files");
    }
}
