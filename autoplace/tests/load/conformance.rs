//! The estimate is compared with llama.cpp itself: for every synthetic model, with a grid of settings, on up to three
//! simulated GPUs.
//!
//! If the estimate knows the layout of weights and cache, it states exactly llama.cpp's bytes for them. Compute buffers
//! never have more bytes than the maximum that the estimate states. On 95 of 100 devices, the difference is below 3 %
//! or below 32 MiB. The table that is printed is in `docs/conformance.md`. `cargo xtask conformance` also runs a larger
//! grid.

use std::path::{Path, PathBuf};

use autoplace::gguf::Header;
use autoplace::llama_sys::sim::Rules;
use autoplace::machine::gib;
use autoplace::memory::estimate::Assignment;
use autoplace::memory::{self, ContextParams, Estimate, KvType, Place, Split, TensorOverride};
use autoplace::profile::ModelProfile;

use crate::rig::grid::{settings, splits};
use crate::rig::tally::Tally;
use crate::rig::{Card, Kind, Loaded, estimate, gpus, vulkan};
use test_support::random_weights::Dice;

fn profile(path: &Path) -> ModelProfile {
    ModelProfile::from_header(&Header::open(path).unwrap()).unwrap()
}

/// Loads a model without its data, and repacks its weights or not. Contexts are created later.
fn probed(path: &Path, cards: &[&Card], split: &Split, repack: bool) -> Loaded {
    let mut params = ContextParams::default();
    params.repack = repack;
    Loaded::new(path, cards, split, &params, Kind::Probe)
        .unwrap_or_else(|error| panic!("{}: {split:?}: {error}", path.display()))
}

#[test]
fn estimates_are_what_llama_cpp_allocates() {
    grid(false);
}

#[test]
#[ignore = "minutes: every way to split with many settings; `cargo xtask conformance` runs it"]
fn estimates_are_what_llama_cpp_allocates_over_the_large_grid() {
    grid(true);
}

fn grid(thorough: bool) {
    own_process!();
    let card = |rules, asynchronous, size| Card::with_memory((rules, asynchronous), gib(size));
    let [large, small] = [400, 150].map(|size| card(Rules::Cuda, true, size));
    let slow = card(Rules::Cuda, false, 230);
    let [wide, fine] = [(256, 270), (64, 90)].map(|(align, size)| card(vulkan(align, gib(4)), true, size));
    let metal = card(Rules::Metal, true, 200);
    let machines = [
        &[][..],
        &[&large],
        &[&fine],
        &[&metal],
        &[&small, &large],
        &[&large, &slow],
        &[&metal, &large],
        &[&wide, &metal, &small],
    ];
    let folder = tempfile::tempdir().unwrap();
    let (mut tally, mut turn) = (Tally::default(), 0);
    for (number, sketch) in test_support::synthetic::all().iter().enumerate() {
        let path = sketch.write(folder.path());
        tally.model(sketch.arch);
        for (at, cards) in machines.into_iter().enumerate() {
            // In the small grid, each model uses a third of the machines. The next two models use the other two thirds.
            if thorough || (number + at).is_multiple_of(3) {
                model(&mut tally, &mut turn, &path, cards, thorough);
            }
        }
    }
    tally.check();
}

/// Compares a model on these cards, with each of the splits. In the large grid, there are several contexts for each
/// load.
fn model(tally: &mut Tally, turn: &mut usize, path: &Path, cards: &[&Card], thorough: bool) {
    let profile = profile(path);
    let settings = settings();
    // Models with many blocks are slow.
    let contexts = match (profile.n_layer() <= 8, thorough) {
        (true, true) => 8,
        (false, true) => 3,
        (_, false) => 1,
    };
    for split in splits(profile.n_layer(), cards.len(), thorough) {
        // The number of settings is a multiple of 3. So each round of settings begins one step later; otherwise a
        // setting would have the same choice in every round.
        let repack = !(*turn + *turn / settings.len()).is_multiple_of(3);
        let probed = probed(path, cards, &split, repack);
        for _ in 0..contexts {
            // 7 and 24 have no common divisor, so every setting is used.
            let mut params = settings[(*turn * 7) % settings.len()].clone();
            *turn += 1;
            params.repack = repack;
            if profile.architecture == "deepseek2" && params.type_k != params.type_v {
                // If keys and values are compressed together, they have the same type.
                (params.type_k, params.type_v) = (KvType::F16, KvType::F16);
            }
            let names: Vec<&str> = cards.iter().map(|card| card.gpu.backend.as_str()).collect();
            let case = format!("{} on {names:?}, {split:?}, {params:?}", path.display());
            let theirs = match probed.footprints(&params) {
                Ok(theirs) => theirs,
                // If no block on a device keeps a cache, a real load fails too (llama-kv-cache.cpp, the constructor).
                Err(error) if error.to_string().contains("keep none") => continue,
                Err(error) => panic!("{case}: {error}"),
            };
            let ours = estimate(&profile, cards, &split, &params).unwrap_or_else(|error| panic!("{case}: {error}"));
            tally.hold(&profile.architecture, &case, &ours, split.n_gpu_layers, &theirs, 0);
        }
    }
}

#[test]
fn compressed_keys_of_another_type_than_values_are_refused_as_llama_cpp_does() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = written("deepseek2", "mla", folder.path());
    let mut params = ContextParams::default();
    (params.type_k, params.type_v) = (KvType::Q8_0, KvType::F16);
    let error = Estimate::new(&profile(&path), &[], &params).unwrap_err();
    assert_matches!(error, memory::Error::KvTypesDiffer { .. });
    assert!(probed(&path, &[], &Split::layers(0), true).footprints(&params).is_err());
}

#[test]
fn counts_per_gpu_are_what_llama_cpp_splits_by() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    // 64 blocks are divided among as many GPUs as llama.cpp can schedule.
    let path = written("exaone4", "64 blocks", folder.path());
    let profile = profile(&path);
    let cards = [(); 15].map(|()| Card::with_memory((Rules::Metal, true), gib(24)));
    let params = &settings()[0];
    let mut dice = Dice::new(7);
    for n_gpus in [1, 2, 3, 7, 15] {
        let cards: Vec<&Card> = cards[..n_gpus].iter().collect();
        let estimate = Estimate::new(&profile, &gpus(&cards), params).unwrap();
        for _ in 0..4 {
            let mut left = profile.full_offload();
            let most = 3 * left / n_gpus as u32;
            let count = |_| {
                // A third of the GPUs have no layer.
                let count = if dice.percent(33) { 0 } else { left.min(dice.below(most)) };
                left -= count;
                count
            };
            let counts: Vec<u32> = (0..n_gpus).map(count).collect();
            let theirs = probed(&path, &cards, &Split::by_counts(&counts), true).footprints(params).unwrap();
            let (ours, _) = estimate.with_uncertainty(&Assignment::by_counts(profile.n_layer(), &counts));
            for (ours, theirs) in ours.gpus.iter().zip(&theirs.gpus) {
                assert_eq!((ours.weights, ours.kv), (theirs.weights, theirs.kv), "{counts:?}");
            }
        }
    }
}

#[test]
fn patterns_mean_to_us_what_they_mean_to_llama_cpp() {
    // One of these patterns is empty.
    const PATTERNS: &str = r"ffn \.ffn_(up|down)\. ^blk\.0\. weight$ ^output blk\.[0-2]\.attn_[qk]\.weight blk\.[^0]\.
        blk\.(?:1|3)\.ffn_.* \d \D\d\D \bffn_up\b \battn\b \Bnorm f{2}n f{1,}n_u t{1,2}n_(k|v)
        k\.[13]\.attn_\w+\.weight [.]attn_output[.] [a-]ttn_q [-a]ttn_v [\w.]+_down [\d]\.ffn_gate
        (attn|ffn)_norm (|token_)embd x|y|_up a.*?q n??orm (ffn_)+up (k\.2.*|k\.3.*)exps t\st|\S_k
        blk\.(0|[1-9][0-9]*)\.attn_v\.weight$";
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = written("llama", "gqa q4_k", folder.path());
    let profile = profile(&path);
    let card = Card::with_memory((Rules::Metal, true), gib(24));
    let params = &settings()[0];
    let mut seen = std::collections::BTreeSet::new();
    for pattern in PATTERNS.split_whitespace().chain([""]) {
        let split = Split::layers(profile.full_offload()).overrides([TensorOverride::new(pattern, Place::Host)]);
        let theirs = probed(&path, &[&card], &split, params.repack).footprints(params).unwrap();
        let ours = estimate(&profile, &[&card], &split, params).unwrap().footprints(split.n_gpu_layers);
        assert_eq!(ours.host.weights, theirs.host.weights, "{pattern}");
        assert_eq!(ours.gpus[0].weights, theirs.gpus[0].weights, "{pattern}");
        seen.insert(ours.host.weights);
    }
    assert!(seen.len() > 16, "the patterns should differ: {seen:?}");
}

fn written(arch: &str, name: &str, folder: &Path) -> PathBuf {
    test_support::synthetic::all().iter().find(|s| (s.arch, s.name) == (arch, name)).unwrap().write(folder)
}
