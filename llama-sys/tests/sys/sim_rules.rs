//! With the rules of a backend, the weights in a file need another amount of memory.

use crate::support::sim::{MIB, card_by, context, demo_path, load, params, vulkan};
use llama_sys::sim::{Rules, SimGpu};
use llama_sys::{LoadMode, Model};

fn register(rules: Rules) -> SimGpu {
    card_by(rules, 256 * MIB)
}

#[test]
fn metal_maps_the_file_from_the_first_to_the_last_tensor_of_its_own() {
    own_process!();
    let sum = {
        let plain = register(Rules::Plain);
        let _model = load(&[&plain], -1);
        plain.used()
    };
    let gpu = register(Rules::Metal);
    let model = load(&[&gpu], -1);
    let breakdown = context(&model).memory_breakdown().unwrap();
    let name = format!("{}_Mapped", gpu.device().name());
    let mapped = breakdown.rows.iter().find(|row| row.buffer_type == name);
    let mapped = mapped.expect("a mapped buffer");
    assert_eq!(mapped.model, gpu.used());
    // The range that is mapped contains tensors of other devices, if they lie between those of the card.
    let file = std::fs::metadata(demo_path()).unwrap().len();
    assert!((sum..file).contains(&mapped.model), "{mapped:?} {sum}");
    // If nothing is mapped, the memory is the sum of the tensors.
    let mut read = params(&[gpu.device()], -1);
    drop((breakdown, model));
    read.load_mode = LoadMode::None;
    let _model = Model::load(demo_path(), read).unwrap();
    assert_eq!(gpu.used(), sum);
}

#[test]
fn cuda_and_vulkan_keep_what_stays_on_the_host_in_pinned_memory() {
    own_process!();
    for (rules, pinned) in
        [(Rules::Plain, false), (Rules::Cuda, true), (vulkan(64, 64 * MIB), true), (Rules::Metal, false)]
    {
        let gpu = register(rules);
        let mut read = params(&[gpu.device()], 3);
        read.load_mode = LoadMode::None;
        let model = Model::load(demo_path(), read).unwrap();
        let breakdown = context(&model).memory_breakdown().unwrap();
        let name = format!("{}_Host", gpu.device().name());
        let row = breakdown.rows.iter().find(|row| row.buffer_type == name);
        assert_eq!(row.is_some_and(|row| row.model > 0), pinned, "{rules:?}");
        assert!(row.is_none_or(|row| row.on_host));
    }
}
