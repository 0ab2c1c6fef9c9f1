//! What adapters take: the estimate's bytes against llama.cpp's own, device by device, in any placement of
//! any architecture.

use std::path::{Path, PathBuf};

use autoplace::gguf::{Header, TensorType};
use autoplace::load::NativeProbe;
use autoplace::memory::{Estimate, Split};
use autoplace::profile::{Lora, ModelProfile};

use crate::lora_support::Adapter;
use crate::replace_support::Dice;
use crate::rig::grid::{rolled_layers, rolled_overrides, rolled_params};
use crate::rig::tally::pairs;
use crate::rig::{Card, Kind, gpus, none_failed};
use crate::synthetic::Sketch;

/// An adapter of some of the model's matrices.
fn adapter(dice: &mut Dice, model: &Header, folder: &Path, name: &str) -> PathBuf {
    let ty = dice.one_of(&[TensorType::F32, TensorType::F16, TensorType::Q8_0]);
    let part = dice.one_of(&["attn_q.", "attn_", "ffn_", "."]);
    let (every, rank) = (1 + dice.below(3), dice.one_of(&[1, 8, 32, 64]));
    let mut number = 0;
    let weights = ModelProfile::from_header(model).unwrap().weights;
    // Blocks that only predict further tokens are not loaded.
    let loaded = |name: &str| {
        let mut all = weights.blocks.iter().flat_map(|block| &block.weights).chain(&weights.output);
        all.any(|weight| &*weight.name == name)
    };
    let tied = model.tensor("output.weight").is_none();
    let takes = |name: &str| {
        let is_matrix = model.tensor(name).unwrap().shape()[1] > 1 && name.ends_with(".weight");
        let is_input = name.contains("token_embd");
        // What a graph uses, and not for a plain product.
        let mut other = "conv ssm_ shexp_gate rope_ attn_k_b attn_v_b kv_b".split(' ');
        let plain = !other.any(|other| name.contains(other));
        number += 1;
        let is_taken = loaded(name) && name.contains(part) && is_matrix && !is_input && plain;
        is_taken && number % every == 0
    };
    let architecture = model.architecture().unwrap();
    let lora = Adapter::of(architecture).alpha(16.0).of_weights(model, rank, ty, takes);
    let query = model
        .tensors()
        .find(|tensor| tensor.shape()[1] > 1 && tensor.name().starts_with("blk.0.") && tensor.shape()[2] == 1);
    // Never empty.
    let is_empty = lora.header().tensors().len() == 0;
    let lora = match query {
        Some(tensor) if dice.coin() || part == "attn_q." || is_empty => {
            let half = format!("{}.lora_a", tensor.name());
            match lora.header().tensor(&half) {
                None => lora.pair(tensor.name(), tensor.shape(), rank, TensorType::F32),
                Some(_) => lora,
            }
        }
        _ => lora,
    };
    embedded(lora, model, tied, rank, dice).write(folder, name)
}

/// Sometimes with the token embedding, whose factors change places.
fn embedded(lora: Adapter, model: &Header, tied: bool, rank: u64, dice: &mut Dice) -> Adapter {
    let embedding = model.tensor("token_embd.weight").unwrap().shape();
    if tied || dice.below(3) > 0 {
        return lora;
    }
    let factor = |name: &str, n| (format!("token_embd.weight.{name}"), [rank, n]);
    let factors = [factor("lora_a", embedding[1]), factor("lora_b", embedding[0])];
    factors.iter().fold(lora, |lora, (name, shape)| lora.tensor(name, TensorType::F32, shape))
}

fn compare(sketch: &Sketch, folder: &Path, families: &[[Card; 3]; 3], failures: &mut Vec<String>) -> usize {
    let path = sketch.write(folder);
    let header = Header::open(&path).unwrap();
    let mut dice = Dice::new(sketch.title().len() as u64);
    let mut compared = 0;
    for turn in 0..12 {
        let mut profile = ModelProfile::from_header(&header).unwrap();
        let mut probe = NativeProbe::new(&header).unwrap();
        for number in 0..=dice.below(2) {
            let file = adapter(&mut dice, &header, folder, &format!("adapter {number}"));
            let lora = Lora::from_header(&Header::open(&file).unwrap()).unwrap();
            profile = profile.with_lora(&lora).unwrap();
            probe = probe.lora(&file);
        }
        let family = &families[dice.below(3)];
        let cards: Vec<&Card> = family[..dice.below(4)].iter().collect();
        let layers = rolled_layers(&mut dice, profile.full_offload());
        let mut params = rolled_params(&mut dice, &profile, Kind::Probe);
        (params.mmap, params.repack) = (dice.coin(), dice.coin());
        let overrides = rolled_overrides(&mut dice, cards.len());
        let split = Split::layers(layers).overrides(overrides);
        let names: Vec<&str> = cards.iter().map(|card| card.gpu.backend.as_str()).collect();
        let case = format!("{} turn {turn}, {names:?}, {split:?}, {params:?}", sketch.title());
        let probed = match probe.breakdown(&gpus(&cards), &params, &split) {
            Ok(probed) => probed,
            // A card whose blocks keep no cache.
            Err(error) if error.to_string().contains("keep none") => continue,
            Err(error) => {
                failures.push(format!("{case}: {error}"));
                continue;
            }
        };
        let estimate = Estimate::new(&profile, &gpus(&cards), &params).unwrap();
        let estimate = estimate.overrides(&split.overrides).unwrap();
        // Of a probe the buffer of logits is in the sums.
        let mut theirs = probed.footprints;
        theirs.host.compute -= theirs.output;
        for mut pair in pairs(&estimate, layers, &theirs) {
            // Of pinned memory Vulkan takes 32 bytes more for each buffer.
            pair.slack = if estimate.is_exact() { 4 * 32 } else { u64::MAX };
            failures.extend(pair.fault().map(|fault| format!("{case}: {fault}")));
        }
        compared += 1;
    }
    compared
}

#[test]
fn the_estimate_counts_the_bytes_of_adapters_and_covers_what_they_compute_with() {
    own_process!();
    let families = Card::families();
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    let sketches = crate::synthetic::all();
    let compared: usize = sketches.iter().map(|sketch| compare(sketch, folder.path(), &families, &mut failures)).sum();
    none_failed(&failures, compared);
    assert!(compared > 300, "{compared}");
}
