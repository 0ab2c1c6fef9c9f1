//! A load measures what its GPUs took beside llama.cpp's buffers, and the next plan leaves that free. On simulated GPUs
//! whose drivers and pools take memory like real ones.

use std::path::Path;
use std::sync::Arc;

use crate::native_support::demo_path;
use autoplace::llama_sys::sim::{Rules, SimGpu, SimGpuBuilder};
use autoplace::load::{self, Doubt, GpuReport, Leases};
use autoplace::machine::{Detector, GgmlDevice, GgmlKind, LearnedHeadroom, Machine, gib, mib};
use autoplace::memory::Headroom;
use autoplace::{Model, ModelBuilder};

/// What the driver takes during a load, and the pools at the first batch.
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

/// The machine with this card and a cache in this folder.
fn machine(gpu: &SimGpu, folder: &Path) -> Machine {
    let device = gpu.device();
    let memory = device.memory().unwrap();
    let described = GgmlDevice::new(device.name(), device.backend(), GgmlKind::Gpu)
        .description(device.description())
        .device_id(device.pci_id().unwrap())
        .memory(memory.total, memory.free);
    let detector = Detector::new().without_nvml().cache_folder(folder);
    detector
        .for_build(load::build_name())
        .detect_with(&[described])
}

fn builder(machine: Machine, folder: &Path) -> ModelBuilder {
    Model::builder(demo_path())
        .headroom(Headroom::Tight)
        .headroom_folder(folder)
        .machine(machine)
        // The card has an address, by which other loads of this user would know it.
        .leases(Leases::none())
        .batch(64)
        .threads(1)
}

/// A load during which the driver takes [`DRIVER`] for itself.
fn load(gpu: &Arc<SimGpu>, folder: &Path) -> Model {
    let card = Arc::clone(gpu);
    let driver = move |_| {
        card.set_taken(DRIVER);
        true
    };
    let builder = builder(machine(gpu, folder), folder);
    builder.progress(driver).load().unwrap()
}

/// What the load says of its only GPU.
fn measured(model: &Model) -> GpuReport {
    let report = model.report();
    assert_eq!(report.gpus.len(), 1, "{report}");
    report.gpus[0].clone()
}

fn parts(learned: &LearnedHeadroom) -> (u64, u64) {
    (learned.driver, learned.growth)
}

#[test]
fn what_driver_and_pools_took_is_measured_to_the_byte_and_found_by_the_next_plan() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let gpu = Arc::new(card().register().unwrap());
    assert_eq!(machine(&gpu, folder).gpus[0].learned, None);

    let model = load(&gpu, folder);
    assert!(model.placement().full_offload);
    let measured = measured(&model);
    assert_eq!(measured.device, gpu.device().name());
    assert_eq!(
        measured.allocated.map(|bytes| bytes.total()),
        Some(gpu.used())
    );
    assert_eq!(parts(&measured.learned.unwrap()), (DRIVER, POOLS));
    assert_eq!(measured.beyond(), Some(DRIVER + POOLS));
    drop(model);
    gpu.set_taken(0);

    let mut again = machine(&gpu, folder);
    assert_eq!(again.gpus[0].learned, Some(measured.learned.unwrap()));
    // As on a card whose driver tells its version: what was measured counts instead of the table.
    again.gpus[0].driver = Some("550.54.14".to_owned());
    let plan = builder(again.clone(), folder).plan().unwrap();
    let headroom = plan.gpus().next().unwrap().headroom;
    assert_eq!((headroom.driver, headroom.growth), (DRIVER, POOLS));
    // For a larger batch than it was learned with, the table's growth.
    let larger = builder(again, folder).batch(512).plan().unwrap();
    assert!(larger.gpus().next().unwrap().headroom.growth > mib(32));
}

#[test]
fn what_was_learned_is_enough_to_the_last_byte_and_without_it_the_load_backs_off() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (needed, kept) = {
        let gpu = Arc::new(card().register().unwrap());
        drop(load(&gpu, folder));
        gpu.set_taken(0);
        let mut again = machine(&gpu, folder);
        again.gpus[0].driver = Some("550.54.14".to_owned());
        let plan = builder(again, folder).plan().unwrap();
        let planned = plan.gpus().next().unwrap().clone();
        (planned.footprint.total(), planned.headroom.total())
    };
    // A card with so much free: the same name, so that the same was learned.
    let small = |total| Arc::new(card().total(total).register().unwrap());
    let plan = |gpu: &SimGpu, headroom| {
        let mut machine = machine(gpu, folder);
        machine.gpus[0].driver = Some("550.54.14".to_owned());
        builder(machine, folder).headroom(headroom)
    };
    let generate = |model: &Model| model.generate("And").max_tokens(4).text();

    let gpu = small(needed + kept - 1);
    let less = plan(&gpu, Headroom::Tight).plan().unwrap();
    assert!(!less.full_offload, "{less}");
    drop(gpu);

    let gpu = small(needed + kept);
    let driver = Arc::clone(&gpu);
    let model = plan(&gpu, Headroom::Tight).progress(move |_| {
        driver.set_taken(DRIVER);
        true
    });
    let model = model.load().unwrap();
    assert!(model.placement().full_offload);
    assert_eq!(model.report().tries(), 1);
    generate(&model).unwrap();
    assert_eq!(gpu.free(), kept - DRIVER - POOLS);
    drop(model);
    drop(gpu);

    let gpu = small(needed + POOLS - 1);
    let model = plan(&gpu, Headroom::Bytes(0)).load().unwrap();
    assert!(model.report().tries() > 1, "{}", model.report());
    assert!(!model.placement().full_offload);
    generate(&model).unwrap();
}

#[test]
fn a_context_that_one_batch_fills_is_measured_too() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = Arc::new(card().register().unwrap());
    let model = builder(machine(&gpu, folder.path()), folder.path())
        .context(autoplace::plan::Context::Tokens(256))
        .batch(512)
        .load()
        .unwrap();
    assert_eq!(parts(&measured(&model).learned.unwrap()), (0, POOLS));
}

#[test]
fn from_memory_that_another_program_takes_meanwhile_nothing_is_learned() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = Arc::new(card().register().unwrap());
    let other = Arc::clone(&gpu);
    let model = builder(machine(&gpu, folder.path()), folder.path())
        .progress(move |_| {
            other.set_taken(gib(4));
            true
        })
        .load()
        .unwrap();
    assert_eq!(measured(&model).learned, Err(Doubt::Disturbed));
    assert_eq!(machine(&gpu, folder.path()).gpus[0].learned, None);
    // There is room enough, so that nothing has to be done about it.
    assert_eq!(model.report().tries(), 1);
    assert_eq!(model.report().notes.len(), 1, "{}", model.report());
}

#[test]
fn of_a_gpu_with_the_output_layer_alone_nothing_is_learned() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = Arc::new(card().register().unwrap());
    let model = builder(machine(&gpu, folder.path()), folder.path())
        .gpu_layers(autoplace::plan::GpuLayers::Exactly(1))
        .load()
        .unwrap();
    assert_eq!(measured(&model).learned, Err(Doubt::OneLayer));
    assert_eq!(machine(&gpu, folder.path()).gpus[0].learned, None);
}

#[test]
fn without_a_warm_up_nothing_is_learned() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = Arc::new(card().register().unwrap());
    let model = builder(machine(&gpu, folder.path()), folder.path())
        .verify(load::Verify::Off)
        .load()
        .unwrap();
    assert_eq!(measured(&model).learned, Err(Doubt::NotComputed));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_most_of_several_loads_is_kept() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    for (pools, most) in [(mib(3), mib(3)), (mib(7), mib(7)), (mib(2), mib(7))] {
        let gpu = Arc::new(card().growth(pools).register().unwrap());
        let model = load(&gpu, folder.path());
        let learned = measured(&model).learned.unwrap();
        assert_eq!(parts(&learned), (DRIVER, pools));
        drop(model);
        gpu.set_taken(0);
        let kept = machine(&gpu, folder.path()).gpus[0].learned.unwrap();
        assert_eq!(parts(&kept), (DRIVER, most));
    }
}

#[test]
fn a_model_on_the_host_alone_has_nothing_to_measure() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::builder(demo_path())
        .gpu_layers(autoplace::plan::GpuLayers::Exactly(0))
        .headroom_folder(folder.path())
        .threads(1)
        .load()
        .unwrap();
    assert_eq!(model.report().gpus, []);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
