//! The estimate against llama.cpp itself, over every synthetic model, a grid of settings, and none to
//! three simulated GPUs.
//!
//! Weights and cache are equal to the byte wherever the estimate claims to know their law; compute buffers are never
//! larger than it says that they are at most, and 95 of 100 devices are within 3 % or 32 MiB. `docs/conformance.md`
//! holds the table that this prints; `cargo xtask conformance` runs the larger grid too.

use std::path::{Path, PathBuf};

use autoplace::gguf::Header;
use autoplace::llama_sys::sim::Rules;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::memory::estimate::Assignment;
use autoplace::memory::{self, ContextParams, Estimate, Footprints, KvType, Place, Split, TensorOverride};
use autoplace::plan::{self, Confidence, Planner, Probe};
use autoplace::profile::ModelProfile;

use crate::replace_support::Dice;
use crate::rig::grid::{settings, splits};
use crate::rig::tally::{Tally, pairs};
use crate::rig::{Card, Kind, Loaded, gpus, none_failed, vulkan};
use crate::synthetic::Sketch;

fn profile(path: &Path) -> ModelProfile {
    ModelProfile::from_header(&Header::open(path).unwrap()).unwrap()
}

/// A probe of a model with this choice of kernels; contexts are asked about later.
fn probed(path: &Path, cards: &[&Card], split: &Split, repack: bool) -> Loaded {
    let mut params = ContextParams::default();
    params.repack = repack;
    Loaded::new(path, cards, split, &params, Kind::Probe)
        .unwrap_or_else(|error| panic!("{}: {split:?}: {error}", path.display()))
}

#[test]
fn estimates_are_what_llama_cpp_allocates() {
    Suite::default().run(false);
}

#[test]
#[ignore = "minutes: every way to split with many settings; `cargo xtask conformance` runs it"]
fn estimates_are_what_llama_cpp_allocates_over_the_large_grid() {
    Suite::default().run(true);
}

/// What was seen, and what should not have been.
#[derive(Default)]
pub(super) struct Suite {
    pub(super) tally: Tally,
    failures: Vec<String>,
    /// Contexts so far: which settings are next.
    turn: usize,
}

impl Suite {
    fn run(mut self, thorough: bool) {
        own_process!();
        let card = |rules, asynchronous, size| Card::of((rules, asynchronous), gib(size));
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
        for sketch in crate::synthetic::all() {
            let path = sketch.write(folder.path());
            self.tally.model(sketch.arch);
            for cards in machines {
                self.model(&sketch, &path, cards, thorough);
            }
        }
        self.check();
    }

    pub(super) fn check(&self) {
        println!("{}", self.tally);
        none_failed(&self.failures, self.turn);
        self.tally.check();
    }

    /// One model on these cards, split in each way. In the large grid a load is asked about several contexts.
    fn model(&mut self, sketch: &Sketch, path: &Path, cards: &[&Card], thorough: bool) {
        let profile = profile(path);
        let settings = settings();
        // Deep models take their time.
        let contexts = match (profile.n_layer() <= 8, thorough) {
            (true, true) => 8,
            (false, true) => 3,
            (_, false) => 1,
        };
        for split in splits(profile.n_layer(), cards.len(), thorough) {
            // Each round of the settings, whose number is a multiple of 3, begins one further.
            let repack = !(self.turn + self.turn / settings.len()).is_multiple_of(3);
            let probed = probed(path, cards, &split, repack);
            for _ in 0..contexts {
                // 7 and 24 have no divisor in common: all settings take their turn.
                let mut params = settings[(self.turn * 7) % settings.len()].clone();
                params.repack = repack;
                if profile.architecture == "deepseek2" && params.type_k != params.type_v {
                    // Compressed keys and values are of one type.
                    (params.type_k, params.type_v) = (KvType::F16, KvType::F16);
                }
                self.context(sketch, &profile, cards, &split, &params, &probed);
            }
        }
    }

    /// One question, to llama.cpp and to us.
    pub(super) fn context(
        &mut self,
        sketch: &Sketch,
        profile: &ModelProfile,
        cards: &[&Card],
        split: &Split,
        params: &ContextParams,
        loaded: &Loaded,
    ) {
        self.turn += 1;
        let names: Vec<&str> = cards.iter().map(|card| card.gpu.backend.as_str()).collect();
        let case = || format!("{} on {names:?}, {split:?}, {params:?}", sketch.title());
        let theirs = match loaded.footprints(params) {
            Ok(theirs) => theirs,
            // A device whose only blocks keep no cache fails a real load too (llama-kv-cache.cpp, the constructor).
            Err(error) if error.to_string().contains("keep none") => return,
            Err(error) => panic!("{}: {error}", case()),
        };
        let estimate = Estimate::new(profile, &gpus(cards), params)
            .and_then(|estimate| estimate.tensor_split(&split.tensor_split))
            .and_then(|estimate| estimate.overrides(&split.overrides))
            .unwrap_or_else(|error| panic!("{}: {error}", case()));
        for pair in pairs(&estimate, split.n_gpu_layers, &theirs) {
            self.tally.add(sketch.arch, &pair);
            if let Some(fault) = pair.fault().filter(|_| estimate.is_known()) {
                self.failures.push(format!("{}: {fault}", case()));
            }
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
fn a_model_of_unknown_law_is_planned_by_a_probe_only() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new((Rules::Cuda, true));
    let computer = Machine::new(Host::new(gib(64))).with_gpu(card.gpu.clone());
    let unknown = crate::synthetic::unknown();
    assert!(!unknown.is_empty());
    for sketch in unknown {
        let path = sketch.write(folder.path());
        let profile = profile(&path);
        let planner = Planner::new(&profile, &computer);
        let error = planner.plan().unwrap_err();
        assert_matches!(error, plan::Error::Unknown { .. });
        let plan = planner.plan_probed(&Native { path, card: &card }).unwrap();
        assert_eq!(plan.confidence, Confidence::Probed, "{}", sketch.title());
        assert!(plan.full_offload, "{}", sketch.title());
    }
}

#[test]
fn counts_per_gpu_are_what_llama_cpp_splits_by() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    // 64 blocks over as many GPUs as llama.cpp schedules.
    let path = written("exaone4", "64 blocks", folder.path());
    let profile = profile(&path);
    let all = profile.full_offload();
    let cards = [(); 15].map(|()| Card::of((Rules::Metal, true), gib(24)));
    let params = &settings()[0];
    let mut dice = Dice::new(7);
    for n_gpus in [1, 2, 3, 7, 15] {
        let cards: Vec<&Card> = cards[..n_gpus].iter().collect();
        let estimate = Estimate::new(&profile, &gpus(&cards), params).unwrap();
        for _ in 0..4 {
            let mut left = all;
            let counts: Vec<u32> = (0..n_gpus)
                .map(|_| {
                    let most = 3 * all as usize / n_gpus;
                    // A third of the GPUs has none.
                    let count = if dice.below(3) == 0 { 0 } else { dice.below(most) };
                    let count = left.min(u32::try_from(count).unwrap());
                    left -= count;
                    count
                })
                .collect();
            let theirs = probed(&path, &cards, &Split::by_counts(&counts), true).footprints(params).unwrap();
            let ours = estimate.footprints_of(&Assignment::by_counts(profile.n_layer(), &counts));
            for (ours, theirs) in ours.gpus.iter().zip(&theirs.gpus) {
                let of = |it: &memory::Footprint| (it.weights, it.kv);
                assert_eq!(of(ours), of(theirs), "{counts:?}");
            }
        }
    }
}

#[test]
fn patterns_mean_to_us_what_they_mean_to_llama_cpp() {
    // And the empty one.
    const PATTERNS: &str = r"ffn \.ffn_(up|down)\. ^blk\.0\. weight$ ^output blk\.[0-2]\.attn_[qk]\.weight blk\.[^0]\.
        blk\.(?:1|3)\.ffn_.* \d \D\d\D \bffn_up\b \battn\b \Bnorm f{2}n f{1,}n_u t{1,2}n_(k|v)
        k\.[13]\.attn_\w+\.weight [.]attn_output[.] [a-]ttn_q [-a]ttn_v [\w.]+_down [\d]\.ffn_gate
        (attn|ffn)_norm (|token_)embd x|y|_up a.*?q n??orm (ffn_)+up (k\.2.*|k\.3.*)exps t\st|\S_k
        blk\.(0|[1-9][0-9]*)\.attn_v\.weight$";
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = written("llama", "gqa q4_k", folder.path());
    let profile = profile(&path);
    let card = Card::of((Rules::Metal, true), gib(24));
    let params = &settings()[0];
    let plain = Estimate::new(&profile, &[&card.gpu], params).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for pattern in PATTERNS.split_whitespace().chain([""]) {
        let split = Split::layers(profile.full_offload()).overrides([TensorOverride::new(pattern, Place::Host)]);
        let theirs = probed(&path, &[&card], &split, params.repack).footprints(params).unwrap();
        let ours = plain.clone().overrides(&split.overrides).unwrap().footprints(split.n_gpu_layers);
        assert_eq!(ours.host.weights, theirs.host.weights, "{pattern}");
        assert_eq!(ours.gpus[0].weights, theirs.gpus[0].weights, "{pattern}");
        seen.insert(ours.host.weights);
    }
    assert!(seen.len() > 16, "the patterns should differ: {seen:?}");
}

fn written(arch: &str, name: &str, folder: &Path) -> PathBuf {
    crate::synthetic::all().iter().find(|s| (s.arch, s.name) == (arch, name)).unwrap().write(folder)
}

/// llama.cpp itself, as the planner asks it.
struct Native<'a> {
    path: PathBuf,
    card: &'a Card,
}

impl Probe for Native<'_> {
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>> {
        let cards: Vec<&Card> = gpus.iter().map(|_| self.card).collect();
        Ok(probed(&self.path, &cards, split, params.repack).footprints(params)?)
    }
}
