//! What adapters take: the estimate's bytes against llama.cpp's own, device by device, in any placement of
//! any architecture.

use std::path::{Path, PathBuf};

use autoplace::gguf::{Header, TensorType};
use autoplace::load::NativeProbe;
use autoplace::machine::Gpu;
use autoplace::memory::{Estimate, Footprints, Split};
use autoplace::profile::{Lora, ModelProfile};

use crate::compute_buffers_support::{Card, Dice, Kind};
use crate::lora_support::Adapter;
use crate::synthetic::Sketch;

/// An adapter of some of the model's matrices.
fn adapter(dice: &mut Dice, model: &Header, folder: &Path, name: &str) -> PathBuf {
    const PARTS: [&str; 4] = ["attn_q.", "attn_", "ffn_", "."];
    let types = [TensorType::F32, TensorType::F16, TensorType::Q8_0];
    let ty = types[dice.roll(types.len())];
    let part = PARTS[dice.roll(PARTS.len())];
    let every = 1 + dice.roll(3);
    let rank = [1, 8, 32, 64][dice.roll(4)];
    let mut number = 0;
    let weights = ModelProfile::from_header(model).unwrap().weights;
    // Blocks that only predict further tokens are not loaded.
    let loaded = |name: &str| {
        let blocks = weights.blocks.iter().flat_map(|block| &block.weights);
        let mut all = blocks.chain(&weights.output);
        all.any(|weight| weight.name == name)
    };
    let tied = model.tensor("output.weight").is_none();
    let takes = |name: &str| {
        let tensor = model.tensor(name).unwrap();
        let is_matrix = tensor.shape()[1] > 1 && name.ends_with(".weight");
        let is_input = name.contains("token_embd");
        // What a graph uses, and not for a plain product.
        let other = [
            "conv",
            "ssm_",
            "shexp_gate",
            "rope_",
            "attn_k_b",
            "attn_v_b",
            "kv_b",
        ];
        let plain = !other.iter().any(|other| name.contains(other));
        number += 1;
        loaded(name)
            && name.contains(part)
            && is_matrix
            && !is_input
            && plain
            && number % every == 0
    };
    let architecture = model.architecture().unwrap();
    let lora = Adapter::of(architecture).alpha(16.0);
    let lora = lora.of_weights(model, rank, ty, takes);
    let query = model.tensors().find(|tensor| {
        tensor.shape()[1] > 1 && tensor.name().starts_with("blk.0.") && tensor.shape()[2] == 1
    });
    // Never empty.
    let lora = match query {
        Some(tensor) if dice.coin() || part == "attn_q." => {
            let is_known = std::fs::metadata(lora.write(folder, "trial")).is_ok();
            assert!(is_known);
            let header = Header::open(folder.join("trial.gguf")).unwrap();
            let half = format!("{}.lora_a", tensor.name());
            match header.tensor(&half) {
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
    if tied || dice.roll(3) > 0 {
        return lora;
    }
    lora.tensor(
        "token_embd.weight.lora_a",
        TensorType::F32,
        &[rank, embedding[1]],
    )
    .tensor(
        "token_embd.weight.lora_b",
        TensorType::F32,
        &[rank, embedding[0]],
    )
}

/// What was compared, and what differed.
#[derive(Default)]
struct Score {
    compared: usize,
    faults: Vec<String>,
}

impl Score {
    fn check(&self) {
        let shown = &self.faults[..self.faults.len().min(12)];
        assert!(
            shown.is_empty(),
            "{} faults:\n{}",
            self.faults.len(),
            shown.join("\n")
        );
    }

    /// Holds the estimate against what llama.cpp says: weights to the byte, and compute buffers never more too low than
    /// the estimate itself allows for.
    fn compare(&mut self, estimate: &Estimate, layers: u32, theirs: &Footprints, case: &str) {
        let ours = estimate.footprints(layers);
        let unsure = estimate.uncertainty(&estimate.assignment(layers));
        let unsure = unsure.gpus.iter().chain([&unsure.host]);
        let all = ours.gpus.iter().zip(&theirs.gpus);
        let all = all.chain([(&ours.host, &theirs.host)]).zip(unsure);
        for (place, ((ours, theirs), &unsure)) in all.enumerate() {
            let most = ours.compute.saturating_add(unsure);
            let known = estimate.is_exact();
            // Of pinned memory Vulkan takes 32 bytes more for each buffer.
            let weighs = !known || ours.weights.abs_diff(theirs.weights) <= 4 * 32;
            if !weighs || most < theirs.compute {
                self.faults.push(format!(
                    "{case}, device {place}: {ours:?}, llama.cpp: {theirs:?}"
                ));
            }
        }
        self.compared += 1;
    }

    fn model(&mut self, sketch: &Sketch, folder: &Path, families: &[[Card; 3]; 3], turns: usize) {
        let path = sketch.write(folder);
        let header = Header::open(&path).unwrap();
        let mut dice = Dice::new(sketch.title().len() as u64);
        for turn in 0..turns {
            let files: Vec<PathBuf> = (0..=dice.roll(2))
                .map(|number| adapter(&mut dice, &header, folder, &format!("adapter {number}")))
                .collect();
            let mut profile = ModelProfile::from_header(&header).unwrap();
            let mut probe = NativeProbe::new(&header).unwrap();
            for file in &files {
                let Ok(lora) = Lora::from_header(&Header::open(file).unwrap()) else {
                    continue;
                };
                profile = profile.with_lora(&lora).unwrap();
                probe = probe.lora(file);
            }
            // In a graph that we do not know it may be computed elsewhere.
            if dice.coin() {
                profile = profile.with_control_vector();
                probe = probe.control_vector();
            }
            let family = &families[dice.roll(3)];
            let gpus: Vec<&Gpu> = family[..dice.roll(4)]
                .iter()
                .map(|card| &card.gpu)
                .collect();
            let all = profile.full_offload();
            let layers = match dice.roll(3) {
                0 => all,
                _ => u32::try_from(dice.roll(all as usize + 1)).unwrap(),
            };
            let mut params = dice.params(&profile, Kind::Probe);
            params.mmap = dice.coin();
            params.repack = dice.coin();
            let overrides = dice.overrides(gpus.len());
            let split = Split::layers(layers).overrides(overrides.clone());
            let case = format!(
                "{} turn {turn}, {layers} layers on {} x {}, {overrides:?}, {params:?}",
                sketch.title(),
                gpus.len(),
                gpus.first().map_or("no GPU", |gpu| gpu.backend.as_str()),
            );
            let probed = match probe.breakdown(&gpus, &params, &split) {
                Ok(probed) => probed,
                // A card whose blocks keep no cache.
                Err(error) if error.to_string().contains("keep none") => continue,
                Err(error) => {
                    self.faults.push(format!("{case}: {error}"));
                    continue;
                }
            };
            let estimate = Estimate::new(&profile, &gpus, &params).unwrap();
            let estimate = estimate.overrides(&overrides).unwrap();
            self.compare(&estimate, layers, &probed.footprints, &case);
        }
    }
}

fn families() -> [[Card; 3]; 3] {
    let three = |card: fn() -> Card| [card(), card(), card()];
    [three(Card::cuda), three(Card::vulkan), three(Card::metal)]
}

#[test]
fn the_estimate_counts_the_bytes_of_adapters_and_covers_what_they_compute_with() {
    own_process!();
    let families = families();
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    for sketch in crate::synthetic::all() {
        score.model(&sketch, folder.path(), &families, 12);
    }
    score.check();
    assert!(score.compared > 300, "{}", score.compared);
}
