//! The estimate against llama.cpp itself, over every synthetic model, a grid of settings, and none to
//! three simulated GPUs.
//!
//! Weights and cache are equal to the byte wherever the estimate claims to know their law; compute buffers are never
//! larger than it says that they are at most, and 95 of 100 devices are within 3 % or 32 MiB. `docs/conformance.md`
//! holds the table that this prints; `cargo xtask conformance` runs the larger grid too.

use std::path::{Path, PathBuf};

use autoplace::gguf::Header;
use autoplace::llama_sys::sim::Rules;
use autoplace::machine::{Gpu, Host, Machine as Computer, gib};
use autoplace::memory::estimate::Assignment;
use autoplace::memory::{
    self, ContextParams, Estimate, Footprints, KvType, Place, Split, TensorOverride,
};
use autoplace::plan::{self, Confidence, Planner, Probe};
use autoplace::profile::ModelProfile;

use crate::conformance_support::grid::{settings, splits};
use crate::conformance_support::rig::{Card, Machine, Probed, Rig};
use crate::conformance_support::tally::{Pair, Tally};
use crate::synthetic::Sketch;

fn profile(path: &Path) -> ModelProfile {
    ModelProfile::from_header(&Header::open(path).unwrap()).unwrap()
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
struct Suite {
    tally: Tally,
    failures: Vec<String>,
    /// Contexts so far: which settings are next.
    turn: usize,
}

impl Suite {
    fn run(mut self, thorough: bool) {
        own_process!();
        let rig = Rig::new();
        let machines = rig.machines();
        let folder = tempfile::tempdir().unwrap();
        for sketch in crate::synthetic::all() {
            self.model(&sketch, &sketch.write(folder.path()), &machines, thorough);
        }
        println!("{}", self.tally);
        let failures = &self.failures;
        let shown = failures.iter().take(20).cloned().collect::<Vec<_>>();
        assert!(
            failures.is_empty(),
            "{} estimates are wrong:\n{}",
            failures.len(),
            shown.join("\n")
        );
        self.tally.check();
    }

    /// One model on each machine, split in each way. A load is asked about several contexts.
    fn model(&mut self, sketch: &Sketch, path: &Path, machines: &[Machine], thorough: bool) {
        let profile = profile(path);
        self.tally.model(sketch.arch);
        let settings = settings();
        // Deep models take their time.
        let contexts = match (profile.n_layer() <= 8, thorough) {
            (true, true) => 8,
            (false, true) => 3,
            (true, false) => 2,
            (false, false) => 1,
        };
        for machine in machines {
            let n_gpus = machine.cards.len();
            for split in splits(profile.n_layer(), n_gpus, thorough) {
                let repack = !self.turn.is_multiple_of(3);
                let probed = Probed::load(path, &machine.cards, &split, repack)
                    .unwrap_or_else(|error| panic!("{}: {split:?}: {error}", sketch.title()));
                for _ in 0..contexts {
                    // 7 and 24 have no divisor in common: all settings take their turn.
                    let mut params = settings[(self.turn * 7) % settings.len()].clone();
                    self.turn += 1;
                    params.repack = repack;
                    adapt(&mut params, &profile);
                    let case = Case {
                        sketch,
                        profile: &profile,
                        machine,
                        split: &split,
                        params: &params,
                    };
                    self.case(&case, &probed);
                }
            }
        }
    }

    fn case(&mut self, case: &Case<'_>, probed: &Probed) {
        let theirs = match probed.footprints(case.params) {
            Ok(theirs) => theirs,
            // A device whose only blocks keep no cache fails a real load too (llama-kv-cache.cpp, the constructor).
            Err(error) if error.to_string().contains("keep none") => return,
            Err(error) => panic!("{case}: {error}"),
        };
        let estimate = case.estimate();
        for pair in pairs(case, &estimate, &theirs) {
            self.tally.add(case.sketch.arch, &pair);
            let fault = pair.fault().filter(|_| estimate.is_known());
            if let Some(fault) = fault {
                let Pair { ours, theirs, .. } = pair;
                self.failures
                    .push(format!("{case}: {fault}: {ours:?}, llama.cpp: {theirs:?}"));
            }
        }
    }
}

/// One question, to llama.cpp and to us.
struct Case<'a> {
    sketch: &'a Sketch,
    profile: &'a ModelProfile,
    machine: &'a Machine<'a>,
    split: &'a Split,
    params: &'a ContextParams,
}

impl Case<'_> {
    fn estimate(&self) -> Estimate {
        let gpus = self.machine.gpus();
        Estimate::new(self.profile, &gpus, self.params)
            .and_then(|estimate| estimate.tensor_split(&self.split.tensor_split))
            .and_then(|estimate| estimate.overrides(&self.split.overrides))
            .unwrap_or_else(|error| panic!("{self}: {error}"))
    }
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            sketch,
            machine,
            split,
            params,
            ..
        } = self;
        let (title, name) = (sketch.title(), machine.name);
        write!(f, "{title} on {name}, {split:?}, {params:?}")
    }
}

/// Device by device, the host last; the buffer of logits is in no breakdown of llama.cpp.
fn pairs(case: &Case<'_>, estimate: &Estimate, theirs: &Footprints) -> Vec<Pair> {
    let n_gpu_layers = case.split.n_gpu_layers;
    let mut ours = estimate.footprints(n_gpu_layers);
    ours.host.compute -= ours.output;
    let unsure = estimate.uncertainty(&estimate.assignment(n_gpu_layers));
    let unsure = unsure.gpus.iter().chain([&unsure.host]);
    let gpus = ours.gpus.iter().zip(&theirs.gpus);
    gpus.chain([(&ours.host, &theirs.host)])
        .zip(unsure)
        .map(|((&ours, &theirs), &uncertainty)| Pair {
            uncertainty,
            // How many buffers of pinned memory there are, of a GiB each, depends on the order of the tensors.
            slack: if estimate.is_exact() {
                0
            } else {
                32 * (theirs.weights >> 30)
            },
            ours,
            theirs,
        })
        .collect()
}

/// Compressed keys and values are of one type, and blocks divide heads.
fn adapt(params: &mut ContextParams, profile: &ModelProfile) {
    if profile.architecture == "deepseek2" && params.type_k != params.type_v {
        (params.type_k, params.type_v) = (KvType::F16, KvType::F16);
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
    assert!(
        matches!(error, memory::Error::KvTypesDiffer { .. }),
        "{error}"
    );
    let probed = Probed::load(&path, &[], &Split::layers(0), true).unwrap();
    assert!(probed.footprints(&params).is_err());
}

#[test]
fn a_model_of_unknown_law_is_planned_by_a_probe_only() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(Rules::Cuda, 400);
    let computer = Computer::new(Host::new(gib(64))).with_gpu(card.gpu.clone());
    let unknown = crate::synthetic::unknown();
    assert!(!unknown.is_empty());
    for sketch in unknown {
        let path = sketch.write(folder.path());
        let profile = profile(&path);
        let planner = Planner::new(&profile, &computer);
        let error = planner.plan().unwrap_err();
        assert!(matches!(error, plan::Error::Unknown { .. }), "{error}");
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
    let cards: Vec<Card> = (0..15).map(|_| Card::new(Rules::Metal, 24)).collect();
    let params = &settings()[0];
    let mut random = 7_u64;
    for n_gpus in [1, 2, 3, 7, 15] {
        let cards: Vec<&Card> = cards[..n_gpus].iter().collect();
        let gpus: Vec<&Gpu> = cards.iter().map(|card| &card.gpu).collect();
        let estimate = Estimate::new(&profile, &gpus, params).unwrap();
        for _ in 0..4 {
            let mut left = all;
            let counts: Vec<u32> = (0..n_gpus)
                .map(|_| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let most = 3 * u64::from(all) / n_gpus as u64;
                    // A third of the GPUs has none.
                    let count = if random >> 60 < 5 {
                        0
                    } else {
                        (random >> 33) % most
                    };
                    let count = left.min(u32::try_from(count).unwrap());
                    left -= count;
                    count
                })
                .collect();
            let split = Split::by_counts(&counts);
            let probed = Probed::load(&path, &cards, &split, true).unwrap();
            let theirs = probed.footprints(params).unwrap();
            let ours = estimate.footprints_of(&Assignment::by_counts(profile.n_layer(), &counts));
            for (ours, theirs) in ours.gpus.iter().zip(&theirs.gpus) {
                assert_eq!(
                    (ours.weights, ours.kv),
                    (theirs.weights, theirs.kv),
                    "{counts:?}"
                );
            }
        }
    }
}

#[test]
fn patterns_mean_to_us_what_they_mean_to_llama_cpp() {
    const PATTERNS: [&str; 32] = [
        "",
        "ffn",
        r"\.ffn_(up|down)\.",
        r"^blk\.0\.",
        r"weight$",
        r"^output",
        r"blk\.[0-2]\.attn_[qk]\.weight",
        r"blk\.[^0]\.",
        r"blk\.(?:1|3)\.ffn_.*",
        r"\d",
        r"\D\d\D",
        r"\bffn_up\b",
        r"\battn\b",
        r"\Bnorm",
        r"f{2}n",
        r"f{1,}n_u",
        r"t{1,2}n_(k|v)",
        r"k\.[13]\.attn_\w+\.weight",
        r"[.]attn_output[.]",
        r"[a-]ttn_q",
        r"[-a]ttn_v",
        r"[\w.]+_down",
        r"[\d]\.ffn_gate",
        r"(attn|ffn)_norm",
        r"(|token_)embd",
        r"x|y|_up",
        r"a.*?q",
        r"n??orm",
        r"(ffn_)+up",
        r"(k\.2.*|k\.3.*)exps",
        r"t\st|\S_k",
        r"blk\.(0|[1-9][0-9]*)\.attn_v\.weight$",
    ];
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = written("llama", "gqa q4_k", folder.path());
    let profile = profile(&path);
    let card = Card::new(Rules::Metal, 24);
    let params = &settings()[0];
    let plain = Estimate::new(&profile, &[&card.gpu], params).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for pattern in PATTERNS {
        let split = Split::layers(profile.full_offload())
            .overrides([TensorOverride::new(pattern, Place::Host)]);
        let probed = Probed::load(&path, &[&card], &split, params.repack).unwrap();
        let theirs = probed.footprints(params).unwrap();
        let estimate = plain.clone().overrides(&split.overrides).unwrap();
        let ours = estimate.footprints(split.n_gpu_layers);
        assert_eq!(ours.host.weights, theirs.host.weights, "{pattern}");
        assert_eq!(ours.gpus[0].weights, theirs.gpus[0].weights, "{pattern}");
        seen.insert(ours.host.weights);
    }
    assert!(seen.len() > 16, "the patterns should differ: {seen:?}");
}

fn written(arch: &str, name: &str, folder: &Path) -> PathBuf {
    let all = crate::synthetic::all();
    let mut named = all.iter().filter(|s| (s.arch, s.name) == (arch, name));
    named.next().unwrap().write(folder)
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
        let probed = Probed::load(&self.path, &cards, split, params.repack)?;
        Ok(probed.footprints(params)?)
    }
}
