//! The estimate's compute buffers beside llama.cpp's own: never lower by more than the estimate says, and mostly close.
//! Simulated cards of three families, any number of layers on up to three of them, and settings rolled with dice that
//! always fall the same.

use std::path::Path;

use autoplace::gguf::Header;
use autoplace::machine::{Gpu, mib};
use autoplace::memory::Estimate;
use autoplace::profile::ModelProfile;

use crate::compute_buffers_support::{Card, Dice, Kind, Loaded};
use crate::synthetic::Sketch;

/// Three cards of each family.
fn all_cards() -> [[Card; 3]; 3] {
    let three = |card: fn() -> Card| [card(), card(), card()];
    [three(Card::cuda), three(Card::vulkan), three(Card::metal)]
}

/// Devices that were compared, those of which the estimate is within 3 % of all that they hold or 32 MiB, and those
/// that hold more than it says they do at most.
#[derive(Default)]
struct Score {
    devices: usize,
    close: usize,
    too_low: Vec<String>,
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
                let theirs = loaded.compute(&params).unwrap();
                let place = format!(
                    "{}, {n_gpu_layers} layers on {} x {}, {overrides:?}, {params:?}",
                    sketch.title(),
                    gpus.len(),
                    gpus.first().map_or("no GPU", |gpu| gpu.backend.as_str())
                );
                self.compare(&estimate, n_gpu_layers, &theirs, &place);
            }
        }
    }

    fn compare(&mut self, estimate: &Estimate, n_gpu_layers: u32, theirs: &[u64], place: &str) {
        let mut ours = estimate.footprints(n_gpu_layers);
        // The results' buffer is in no account of llama.cpp's.
        ours.host.compute -= ours.output;
        let unsure = estimate.uncertainty(&estimate.assignment(n_gpu_layers));
        let unsure = unsure.gpus.iter().chain([&unsure.host]);
        let ours = ours.gpus.iter().chain([&ours.host]);
        for (device, ((ours, &unsure), &theirs)) in ours.zip(unsure).zip(theirs).enumerate() {
            let total = ours.weights + ours.kv + theirs;
            self.devices += 1;
            self.close +=
                usize::from(ours.compute.abs_diff(theirs) <= mib(32).max(total * 3 / 100));
            if theirs > ours.compute + unsure {
                let ours = ours.compute;
                self.too_low.push(format!(
                    "device {device}: {ours} + {unsure}, llama.cpp: {theirs}: {place}"
                ));
            }
        }
    }

    fn check(&self) {
        println!("{} of {} devices are close", self.close, self.devices);
        let shown = &self.too_low[..self.too_low.len().min(20)];
        assert!(
            shown.is_empty(),
            "{} of {} are too low:\n{}",
            self.too_low.len(),
            self.devices,
            shown.join("\n")
        );
        assert!(self.close * 100 >= self.devices * 95);
    }
}

#[test]
fn compute_buffers_are_close_in_models_of_every_kind() {
    own_process!();
    let cards = all_cards();
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    for sketch in crate::synthetic::all() {
        let path = sketch.write(folder.path());
        score.model(&sketch, &path, &cards, (Kind::Probe, 14));
    }
    score.check();
}

#[test]
fn compute_buffers_are_close_in_models_of_true_shape_and_depth() {
    own_process!();
    let cards = all_cards();
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    for sketch in crate::synthetic::well_known() {
        score.model(
            &sketch,
            &sketch.write(folder.path()),
            &cards,
            (Kind::Probe, 30),
        );
    }
    score.check();
}

#[test]
fn compute_buffers_are_close_to_those_of_real_loads() {
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
    assert!(score.devices > 60);
}
