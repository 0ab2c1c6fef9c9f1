//! The estimate beside llama.cpp on simulated cards of three families, any number of layers on up to three of them, and
//! settings rolled with dice that always fall the same: what `conformance.rs` asks over a grid.

use crate::conformance::Suite;
use crate::replace_support::Dice;
use crate::rig::grid::{rolled_layers, rolled_overrides, rolled_params};
use crate::rig::{Card, Kind, Loaded};
use crate::synthetic::{Sketch, all};
use autoplace::gguf::Header;
use autoplace::memory::{ContextParams, Split};
use autoplace::profile::ModelProfile;

/// Each of these models in so many placements, with three settings each.
fn suite(sketches: Vec<Sketch>, kind: Kind, placements: usize) -> Suite {
    let families = Card::families();
    let folder = tempfile::tempdir().unwrap();
    let mut suite = Suite::default();
    for sketch in sketches {
        let path = sketch.write(folder.path());
        let profile = ModelProfile::from_header(&Header::open(&path).unwrap()).unwrap();
        let mut dice = Dice::new(sketch.title().len() as u64);
        suite.tally.model(sketch.arch);
        for _ in 0..placements {
            let family = &families[dice.below(3)];
            let cards: Vec<&Card> = family[..dice.below(4)].iter().collect();
            let split = Split::layers(rolled_layers(&mut dice, profile.full_offload()));
            let mut of_load = ContextParams::default();
            (of_load.mmap, of_load.repack) = (false, dice.coin());
            let split = split.overrides(rolled_overrides(&mut dice, cards.len()));
            let loaded = Loaded::new(&path, &cards, &split, &of_load, kind).unwrap();
            for _ in 0..3 {
                let mut params = rolled_params(&mut dice, &profile, kind);
                (params.mmap, params.repack) = (false, of_load.repack);
                suite.context(&sketch, &profile, &cards, &split, &params, &loaded);
            }
        }
    }
    suite.check();
    suite
}

#[test]
fn compute_buffers_are_close_in_models_of_every_kind() {
    own_process!();
    suite(all(), Kind::Probe, 14);
}

#[test]
fn compute_buffers_are_close_to_those_of_real_loads() {
    own_process!();
    let mut sketches = all();
    // Small enough to be loaded over and over.
    sketches.retain(|sketch| {
        let small = sketch.dims.n_embd <= 1280 && sketch.dims.n_vocab <= 50_000;
        small || sketch.name == "mixtral"
    });
    assert!(suite(sketches, Kind::Real, 8).tally.devices() > 60);
}
