//! Simulated GPUs are registered and removed, and leave nothing behind.

use crate::support::refused;
use crate::support::sim::{MIB, card, context, greedy, load};
use llama_sys::sim::{MAX_CARDS, SimGpu};
use llama_sys::{Backend, DeviceKind};
use static_assertions::assert_impl_all;

assert_impl_all!(SimGpu: Send, Sync);

/// Bytes of physical memory that this process has.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn listed() -> Vec<String> {
    let devices = Backend::init().unwrap().devices();
    devices.iter().map(llama_sys::Device::name).collect()
}

#[test]
fn a_card_is_listed_as_a_gpu_until_it_is_dropped() {
    own_process!();
    let before = listed();
    let gpu =
        SimGpu::builder("SIM RTX 4090").total(24 << 30).pci_id("0000:01:00.0").backend("CUDA").register().unwrap();
    let device = gpu.device();
    assert_eq!(listed().last(), Some(&device.name()));
    assert_eq!(device.description(), "SIM RTX 4090");
    assert_eq!(device.backend(), "CUDA");
    assert_eq!(device.kind(), DeviceKind::Gpu);
    assert_eq!(device.pci_id().as_deref(), Some("0000:01:00.0"));
    drop(gpu);
    assert_eq!(listed(), before);
    // A handle of the device still works.
    assert_eq!(device.description(), "SIM RTX 4090");
    assert_eq!(device.memory().unwrap().total, 24 << 30);
}

#[test]
fn a_loaded_model_outlives_its_card() {
    own_process!();
    let gpu = card(256 * MIB);
    let name = gpu.device().name();
    let model = load(&[&gpu], -1);
    drop(gpu);
    // Meanwhile, the slot is not used again.
    let other = card(256 * MIB);
    assert_ne!(other.device().name(), name);
    let mut context = context(&model);
    greedy(&mut context, 3);
    assert_eq!(other.used(), 0);
    drop((context, model));
    let next = card(256 * MIB);
    assert_eq!(next.device().name(), name);
    assert_eq!(next.used(), 0);
}

#[test]
fn fifteen_cards_hold_a_model_and_the_sixteenth_is_an_error() {
    own_process!();
    let gpus: Vec<SimGpu> = (0..MAX_CARDS).map(|_| card(64 * MIB)).collect();
    let sixteenth = SimGpu::builder("one too many").register();
    assert_eq!(refused(sixteenth), "simulated GPUs");
    let all: Vec<&SimGpu> = gpus.iter().collect();
    let model = load(&all, -1);
    greedy(&mut context(&model), 3);
    drop(model);
    assert!(gpus.iter().all(|gpu| gpu.used() == 0));
    drop(gpus);
    card(MIB);
}

#[test]
fn ten_thousand_registrations_take_no_memory() {
    own_process!();
    let before = listed();
    let mut names = std::collections::BTreeSet::new();
    let mut turn = || {
        let gpu = SimGpu::builder("SIM card").pci_id("0000:02:00.0");
        let gpu = gpu.register().unwrap();
        names.insert(gpu.device().name());
    };
    (0..100).for_each(|_| turn());
    let before_all = resident();
    (0..10_000).for_each(|_| turn());
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(listed(), before);
    let grown = resident().saturating_sub(before_all);
    // Linux counts the pages of a process in steps of 64, separately for each core. So a difference of some hundred KiB
    // does not mean that memory has grown.
    assert!(grown < 1 << 20, "{grown} bytes");
}

#[test]
fn texts_with_nul_and_foreign_backends_are_refused() {
    own_process!();
    for builder in
        [SimGpu::builder("a\0b"), SimGpu::builder("card").pci_id("\0"), SimGpu::builder("card").backend("RPC")]
    {
        refused(builder.register());
    }
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_that_names_it() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no such folder").join("card");
    let error = SimGpu::builder("SIM card").shared(&file).register();
    let text = error.unwrap_err().to_string();
    assert!(text.contains("no such folder"), "{text}");
}
