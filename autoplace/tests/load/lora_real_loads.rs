//! The probe with adapters against real loads of models with random weights, on simulated GPUs that count for
//! themselves: equal to the byte, and never less than what is taken while adapters come and go.

use std::path::Path;

use crate::lora_support::Adapter;
use crate::real_loads_support::{Placement, decode, nothing_left, probed, settings};
use crate::rig::{Kind, Loaded, none_failed};
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::LoraAdapter;
use autoplace::load::NativeProbe;
use autoplace::memory::{ContextParams, Footprint};

#[test]
fn a_probe_with_adapters_is_the_real_load_to_the_byte() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    let mut cases = 0;
    for (number, sketch) in crate::random_weights::all().iter().enumerate() {
        let path = crate::random_weights::write(sketch, folder.path());
        let header = Header::open(&path).unwrap();
        let takes = |name: &str| {
            let matrix = header.tensor(name).unwrap().shape()[1] > 1;
            let mut parts = "attn_q. attn_output. ffn_up ffn_down output.weight".split(' ');
            matrix && name.ends_with(".weight") && parts.any(|part| name.contains(part))
        };
        let adapter = Adapter::of(sketch.arch).of_weights(&header, 8, TensorType::F32, takes);
        let adapter = adapter.write_random(folder.path(), "adapter", 1, 0.02);
        if Header::open(&adapter).unwrap().tensors().len() == 0 {
            // Mamba has none of these.
            continue;
        }
        let probe = NativeProbe::new(&header).unwrap();
        let probe = probe.lora(&adapter).control_vector();
        let all = u32::try_from(sketch.dims.n_layer).unwrap() + 1;
        for (place, placement) in Placement::of(all).iter().enumerate() {
            let settings = settings();
            let params = &settings[(number + place) % settings.len()];
            cases += 1;
            if let Err(fault) = compare(&path, &adapter, &probe, placement, params) {
                let case = format!("{}: {placement:?}, {params:?}", sketch.title());
                failures.push(format!("{case}\n    {fault}"));
            }
        }
    }
    none_failed(&failures, cases);
    assert!(cases > 100);
}

/// One model on new cards, probed, loaded and computed with: with the adapter, without, and with it again.
fn compare(
    path: &Path,
    adapter: &Path,
    probe: &NativeProbe,
    placement: &Placement,
    params: &ContextParams,
) -> Result<(), String> {
    let (cards, probed, _) = probed(probe, placement, params)?;
    let planned: Vec<u64> = probed.footprints.gpus.iter().map(Footprint::total).collect();
    let used = || -> Vec<u64> { cards.iter().map(|card| card.sim.used()).collect() };
    let loaded = Loaded::new(path, &cards.iter().collect::<Vec<_>>(), &placement.split, params, Kind::Real);
    let loaded = loaded.map_err(|error| format!("load: {error}"))?;
    let model = &loaded.model;
    let adapter = LoraAdapter::load(model, adapter).map_err(|error| error.to_string())?;
    let context = loaded.context(params);
    let mut context = context.map_err(|error| format!("context: {error}"))?;
    let layers = model.n_layer().saturating_sub(1);
    let direction = vec![0.01; (layers * model.n_embd()) as usize];
    let set = context.set_control_vector(&direction, 1..=layers.max(1));
    set.map_err(|error| format!("control vector: {error}"))?;
    let mut most = vec![0; cards.len()];
    let [half, whole] = [0.5, 1.0].map(|scale| [(adapter.clone(), scale)]);
    for adapters in [&[][..], &half, &[], &whole] {
        context.set_lora(adapters).map_err(|error| format!("set: {error}"))?;
        context.kv_clear().unwrap();
        let before = used();
        decode(&mut context).map_err(|error| format!("decode: {error}"))?;
        let after = used();
        if after != before {
            return Err(format!("{before:?} bytes before computing, {after:?} after"));
        }
        for (most, used) in most.iter_mut().zip(before) {
            *most = used.max(*most);
        }
    }
    drop((half, whole, adapter, context, loaded));
    nothing_left("everything is dropped", &cards)?;
    if most != planned {
        return Err(format!("{most:?} bytes at the most, probed {planned:?}"));
    }
    Ok(())
}
