//! The probe, with adapters and a control vector, is compared with real loads. The models have random weights, and the
//! simulated GPUs count their own bytes. The probe and the real load have exactly the same bytes. While adapters are
//! added and removed, no more memory is in use than the probe says.

use std::path::Path;

use crate::real_loads_support::{Compared, Placement, compare_all, decode, probed, settings};
use crate::rig::{Kind, Loaded, nothing_left};
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::LoraAdapter;
use autoplace::load::NativeProbe;
use autoplace::memory::{ContextParams, Footprint};
use test_support::lora::Adapter;
use test_support::synthetic::Sketch;

/// The name of the file with the adapter, in the model's folder.
const ADAPTER: &str = "adapter";

#[test]
fn a_probe_with_adapters_is_the_real_load_to_the_byte() {
    own_process!();
    let with_adapter = |sketch: &Sketch, folder: &Path| {
        let path = test_support::random_weights::write(sketch, folder);
        let header = Header::open(&path).unwrap();
        let takes = |name: &str| {
            let matrix = header.tensor(name).unwrap().shape()[1] > 1;
            let mut parts = "attn_q. attn_output. ffn_up ffn_down output.weight".split(' ');
            matrix && name.ends_with(".weight") && parts.any(|part| name.contains(part))
        };
        let adapter = Adapter::new(sketch.arch).of_weights(&header, 8, TensorType::F32, takes);
        // Mamba does not have any of these weights.
        let is_empty = adapter.header().tensors().len() == 0;
        let adapter = adapter.write_random(folder, ADAPTER, 1, 0.02);
        (!is_empty).then(|| (path, NativeProbe::new(&header).unwrap().lora(&adapter).control_vector()))
    };
    assert!(compare_all(&test_support::random_weights::all(), &settings(), 1, with_adapter, compare) > 100);
}

/// Probes, loads and runs a model on new cards: first with the adapter, then without it, and then with it again.
fn compare(path: &Path, probe: &NativeProbe, placement: &Placement, params: &ContextParams) -> Compared {
    let (cards, probed) = probed(probe, placement, params)?;
    let planned: Vec<u64> = probed.footprints.gpus.iter().map(Footprint::total).collect();
    let used = || -> Vec<u64> { cards.iter().map(|card| card.sim.used()).collect() };
    let loaded = Loaded::new(path, &cards.iter().collect::<Vec<_>>(), &placement.split, params, Kind::Real)?;
    let adapter = LoraAdapter::load(&loaded.model, path.with_file_name(ADAPTER).with_extension("gguf"))?;
    let mut context = loaded.context(params)?;
    let layers = loaded.model.n_layer().saturating_sub(1);
    context.set_control_vector(&vec![0.01; (layers * loaded.model.n_embd()) as usize], 1..=layers.max(1))?;
    let mut most = vec![0; cards.len()];
    let [half, whole] = [0.5, 1.0].map(|scale| [(adapter.clone(), scale)]);
    for adapters in [&half[..], &[], &whole] {
        context.set_lora(adapters)?;
        context.kv_clear()?;
        let before = used();
        decode(&mut context)?;
        let after = used();
        if after != before {
            return Err(format!("{before:?} bytes before computing, {after:?} after").into());
        }
        for (most, used) in most.iter_mut().zip(before) {
            *most = used.max(*most);
        }
    }
    drop((half, whole, adapter, context, loaded));
    nothing_left("everything is dropped", cards.iter().map(|card| &card.sim))?;
    if most != planned {
        return Err(format!("{most:?} bytes at the most, probed {planned:?}").into());
    }
    Ok(())
}
