//! The estimate's compute buffers against llama.cpp's own, to the byte: simulated cards of three families, any number of layers
//! on up to three of them, and settings rolled with dice that always fall the same.

use std::path::Path;

use autoplace::gguf::Header;
use autoplace::machine::Gpu;
use autoplace::memory::{Estimate, Footprints};
use autoplace::profile::ModelProfile;

use crate::compute_buffers_support::{Card, Compute, Dice, Kind, Loaded};
use crate::synthetic::{Sketch, well_known};

/// Three cards of each family.
fn all_cards() -> [[Card; 3]; 3] {
    let three = |card: fn() -> Card| [card(), card(), card()];
    [three(Card::cuda), three(Card::vulkan), three(Card::metal)]
}

/// What was compared, and what differed.
#[derive(Default)]
struct Score {
    compared: usize,
    unclaimed: usize,
    different: Vec<String>,
}

impl Score {
    /// One model in so many placements, with three settings each.
    fn model(
        &mut self,
        sketch: &Sketch,
        path: &Path,
        cards: &[[Card; 3]; 3],
        (kind, placements): (Kind, usize),
    ) {
        let profile = ModelProfile::from_header(&Header::open(path).unwrap()).unwrap();
        let mut dice = Dice::new(sketch.title().len() as u64);
        for _ in 0..placements {
            let family = &cards[dice.roll(3)];
            let cards: Vec<&Card> = family[..dice.roll(4)].iter().collect();
            let layers = profile.full_offload();
            let n_gpu_layers = match dice.roll(3) {
                0 => layers,
                _ => u32::try_from(dice.roll(layers as usize + 1)).unwrap(),
            };
            let repack = dice.coin();
            let overrides = dice.overrides(cards.len());
            let loaded = Loaded::new(path, &cards, n_gpu_layers, repack, &overrides, kind).unwrap();
            for _ in 0..3 {
                let mut params = dice.params(&profile, kind);
                params.repack = repack;
                let gpus: Vec<&Gpu> = cards.iter().map(|card| &card.gpu).collect();
                let estimate = Estimate::new(&profile, &gpus, &params).unwrap();
                let estimate = estimate.overrides(&overrides).unwrap();
                if !estimate.compute_is_exact(n_gpu_layers) {
                    self.unclaimed += 1;
                    continue;
                }
                let ours = compute(&estimate.footprints(n_gpu_layers));
                let theirs = loaded.compute(&params).unwrap();
                self.compared += 1;
                if !ours.is(&theirs) {
                    let family = gpus.first().map_or("no GPU", |gpu| gpu.backend.as_str());
                    self.different.push(format!(
                        "{}, {n_gpu_layers} layers on {} x {family}: {ours:?}, llama.cpp: {theirs:?}, {overrides:?}, {params:?}",
                        sketch.title(),
                        gpus.len(),
                    ));
                }
            }
        }
    }

    fn check(&self) {
        println!("{} compared, {} not claimed", self.compared, self.unclaimed);
        let shown = &self.different[..self.different.len().min(20)];
        assert!(
            shown.is_empty(),
            "{} of {} differ:\n{}",
            self.different.len(),
            self.compared,
            shown.join("\n")
        );
    }
}

/// The compute buffers alone: the results' buffer is none of them.
fn compute(footprints: &Footprints) -> Compute {
    Compute {
        gpus: footprints.gpus.iter().map(|gpu| gpu.compute).collect(),
        host: footprints.host.compute - footprints.output,
    }
}

#[test]
fn compute_buffers_are_llama_cpps_in_every_architecture_whose_graph_we_know() {
    own_process!();
    let cards = all_cards();
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    let mut known = Vec::new();
    for sketch in crate::synthetic::all() {
        let before = score.compared;
        score.model(
            &sketch,
            &sketch.write(folder.path()),
            &cards,
            (Kind::Probe, 14),
        );
        if score.compared > before {
            known.push(sketch.arch);
        }
    }
    known.dedup();
    score.check();
    println!("{}", known.join(" "));
    // Nothing that was known is lost.
    for arch in [
        "llama",
        "qwen2",
        "qwen2moe",
        "qwen3",
        "qwen3moe",
        "phi3",
        "openelm",
        "deci",
        "glm4moe",
        "deepseek2",
        "gemma2",
        "gemma3",
        "gpt-oss",
        "cohere2",
        "olmo2",
        "exaone4",
    ] {
        assert!(known.contains(&arch), "{arch}");
    }
}

#[test]
fn compute_buffers_are_llama_cpps_in_models_of_true_shape_and_depth() {
    own_process!();
    let cards = all_cards();
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    for sketch in well_known::all() {
        score.model(
            &sketch,
            &sketch.write(folder.path()),
            &cards,
            (Kind::Probe, 30),
        );
    }
    score.check();
    assert!(score.compared > 4 * score.unclaimed);
}

#[test]
fn compute_buffers_are_those_of_real_loads() {
    own_process!();
    let cards = all_cards();
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    for sketch in crate::synthetic::all() {
        // Small enough to be loaded over and over.
        let small = sketch.dims.n_embd <= 1280 && sketch.dims.n_vocab <= 50_000;
        if small || sketch.name == "mixtral" {
            score.model(
                &sketch,
                &sketch.write(folder.path()),
                &cards,
                (Kind::Real, 8),
            );
        }
    }
    score.check();
    assert!(score.compared > 60);
}
