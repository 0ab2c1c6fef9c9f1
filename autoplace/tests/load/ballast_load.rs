//! Memory that somebody else takes between plan and load, on simulated GPUs, of a load that is tried once: it fails
//! before it begins, and says of what. `load_contract.rs` has those that are tried again.

use std::sync::Arc;

use crate::native_support::demo_path;
use crate::sim_support::card;
use autoplace::machine::{Machine, mib};
use autoplace::memory::Headroom;
use autoplace::{Model, ModelBuilder, load};

/// The demo model, planned for the machine as it was. It takes the GPU to the last byte if it must.
fn builder(before: &Machine) -> ModelBuilder {
    Model::builder(demo_path())
        .headroom(Headroom::Bytes(0))
        .machine(before.clone())
        .attempts(1)
        .threads(1)
}

/// The device, the bytes needed and those free, of a load that ran out of memory.
fn out_of_memory(error: load::Error) -> (String, u64, u64) {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.contains("SIM card"), "{text}");
    match error {
        load::Error::OutOfMemory {
            device,
            needed,
            free,
            ..
        } => (device, needed, free),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ballast_raised_between_plan_and_load_fails_the_load_and_names_device_needed_and_free() {
    own_process!();
    let gpu = card(mib(64));
    let before = load::detect().unwrap();
    let planned = builder(&before).plan().unwrap();
    let needed = planned.gpus().next().unwrap().footprint.total();
    gpu.set_taken(mib(64) - needed + 1);

    let error = builder(&before).load().unwrap_err();
    let expected = (gpu.device().name(), needed, needed - 1);
    assert_eq!(out_of_memory(error), expected);
    assert_eq!(gpu.allocations(), 0, "nothing was tried");
}

#[test]
fn ballast_that_leaves_the_last_byte_free_does_not_fail_the_load() {
    own_process!();
    let gpu = card(mib(64));
    let before = load::detect().unwrap();
    let planned = builder(&before).plan().unwrap();
    gpu.set_taken(mib(64) - planned.gpus().next().unwrap().footprint.total());
    let model = builder(&before).load().unwrap();
    assert_eq!(gpu.free(), 0);
    assert_eq!(*model.placement(), planned);
}

#[test]
fn ballast_raised_during_the_load_is_the_same_error_and_nothing_of_the_load_stays() {
    own_process!();
    let gpu = Arc::new(card(mib(64)));
    let before = load::detect().unwrap();
    let planned = builder(&before).plan().unwrap();
    let needed = planned.gpus().next().unwrap().footprint.total();
    // Progress is reported once the weights have their memory: what is left is needed for the cache and for computing.
    let other = Arc::clone(&gpu);
    let error = builder(&before)
        .progress(move |_| {
            other.set_taken(mib(64) - other.used());
            true
        })
        .load()
        .unwrap_err();
    let (device, said, free) = out_of_memory(error);
    assert_eq!((device, said), (gpu.device().name(), needed));
    assert!(free < needed, "{free} of {needed}");
    assert_eq!(gpu.used(), 0);
}

#[test]
fn a_buffer_that_fails_although_there_is_room_keeps_what_llama_cpp_said() {
    own_process!();
    let gpu = card(mib(64));
    let before = load::detect().unwrap();
    gpu.fail_allocation(1);
    let error = builder(&before).load().unwrap_err();
    let load::Error::Native(native) = &error else {
        panic!("{error:?}")
    };
    let failed = native.out_of_memory().unwrap();
    assert_eq!(failed.buffer_type, gpu.device().name());
}
