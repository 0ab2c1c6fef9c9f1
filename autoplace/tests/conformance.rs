//! The estimate against llama.cpp itself, over every synthetic model, a grid of settings, and simulated GPUs.
//!
//! Weights and cache are equal to the byte wherever the estimate claims to know their law; the compute buffers are within the
//! bounds that it promises. `docs/conformance.md` holds the table that this prints:
//! `cargo test -p autoplace --test conformance -- --nocapture`.

#![cfg(feature = "llama")]

mod conformance_support;
mod synthetic;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use autoplace::gguf::Header;
use autoplace::llama_sys::sim::Rules;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::memory::{self, ContextParams, Estimate, Footprints, KvType, Split};
use autoplace::plan::{self, Confidence, Planner, Probe};
use autoplace::profile::{ModelProfile, StateLaw};

use conformance_support::tally::{Pair, Tally};
use conformance_support::{Card, Probed, settings};
use synthetic::Sketch;

/// Registered cards are GPUs of the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn profile(path: &Path) -> ModelProfile {
    ModelProfile::from_header(&Header::open(path).unwrap()).unwrap()
}

#[test]
fn estimates_are_what_llama_cpp_allocates() {
    let _alone = alone();
    let cards = [
        Card::new(Rules::Cuda, "CUDA"),
        Card::new(Rules::Plain, "MTL"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let mut suite = Suite::default();
    for sketch in synthetic::all() {
        suite.model(&sketch, &sketch.write(folder.path()), &cards);
    }
    println!("{}", suite.tally);
    let failures = &suite.failures;
    let shown = failures.iter().take(20).cloned().collect::<Vec<_>>();
    assert!(
        failures.is_empty(),
        "{} estimates are wrong:\n{}",
        failures.len(),
        shown.join("\n")
    );
}

/// What was seen, and what should not have been.
#[derive(Default)]
struct Suite {
    tally: Tally,
    failures: Vec<String>,
}

impl Suite {
    /// One model at five splits of each card, and without any.
    fn model(&mut self, sketch: &Sketch, path: &Path, cards: &[Card]) {
        let profile = profile(path);
        let known = matches!(profile.state, StateLaw::Known { .. });
        let seen = self.tally.0.entry(sketch.arch.to_owned()).or_default();
        seen.model(known);
        let all = profile.full_offload();
        let mut splits = vec![(None, 0)];
        for card in cards {
            splits.extend([0, 1, all / 2, all - 1, all].map(|n| (Some(card), n)));
        }
        for (card, n_gpu_layers) in splits {
            let place = card.map_or("the host", |card| card.gpu.backend.as_str());
            let case = format!("{}, {n_gpu_layers} layers on {place}", sketch.title());
            let probed = Probed::load(path, card, n_gpu_layers)
                .unwrap_or_else(|error| panic!("{case}: {error}"));
            for params in settings() {
                let params = adapted(params, &profile);
                let theirs = probed
                    .footprints(&params)
                    .unwrap_or_else(|error| panic!("{case}: {params:?}: {error}"));
                let gpus: Vec<&Gpu> = card.iter().map(|card| &card.gpu).collect();
                let estimate = Estimate::new(&profile, &gpus, &params).unwrap();
                let borrows = card.is_some() && n_gpu_layers < all;
                for pair in pairs(&estimate, n_gpu_layers, &theirs, borrows) {
                    self.tally.0.get_mut(sketch.arch).unwrap().add(&pair);
                    if let Some(fault) = pair.fault(&estimate, n_gpu_layers) {
                        let Pair { ours, theirs, .. } = pair;
                        self.failures.push(format!(
                            "{case}: {fault}: {ours:?}, llama.cpp: {theirs:?}, {params:?}"
                        ));
                    }
                }
            }
        }
    }
}

/// Device by device, the host last; the buffer of logits is in no breakdown of llama.cpp.
fn pairs(estimate: &Estimate, n_gpu_layers: u32, theirs: &Footprints, borrows: bool) -> Vec<Pair> {
    let mut ours = estimate.footprints(n_gpu_layers);
    ours.host.compute -= ours.output;
    let gpus = ours.gpus.iter().zip(&theirs.gpus);
    gpus.chain([(&ours.host, &theirs.host)])
        .map(|(&ours, &theirs)| Pair {
            ours,
            theirs,
            borrows,
            // Where a GPU borrows, the estimate claims no more than an upper bound.
            claimed: estimate.compute_is_fitted() && !borrows,
        })
        .collect()
}

/// Compressed keys and values are of one type.
fn adapted(mut params: ContextParams, profile: &ModelProfile) -> ContextParams {
    if profile.architecture == "deepseek2" && params.type_k != params.type_v {
        params.type_k = KvType::F16;
    }
    params
}

#[test]
fn compressed_keys_of_another_type_than_values_are_refused_as_llama_cpp_does() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = written("deepseek2", "mla", folder.path());
    let mut params = ContextParams::default();
    (params.type_k, params.type_v) = (KvType::Q8_0, KvType::F16);
    let error = Estimate::new(&profile(&path), &[], &params).unwrap_err();
    assert!(
        matches!(error, memory::Error::KvTypesDiffer { .. }),
        "{error}"
    );
    let probed = Probed::load(&path, None, 0).unwrap();
    assert!(probed.footprints(&params).is_err());
}

#[test]
fn a_model_of_unknown_law_is_planned_by_a_probe_only() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(Rules::Cuda, "CUDA");
    let machine = Machine::new(Host::new(gib(64))).with_gpu(card.gpu.clone());
    let unknown = synthetic::unknown();
    assert!(!unknown.is_empty());
    for sketch in unknown {
        let path = sketch.write(folder.path());
        let profile = profile(&path);
        let planner = Planner::new(&profile, &machine);
        let error = planner.plan().unwrap_err();
        assert!(matches!(error, plan::Error::Unknown { .. }), "{error}");
        let plan = planner.plan_probed(&Native { path, card: &card }).unwrap();
        assert_eq!(plan.confidence, Confidence::Probed, "{}", sketch.title());
        assert!(plan.full_offload, "{}", sketch.title());
    }
}

fn written(arch: &str, name: &str, folder: &Path) -> PathBuf {
    let all = synthetic::all();
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
        let card = gpus.first().map(|_| self.card);
        let probed = Probed::load(&self.path, card, split.n_gpu_layers)?;
        Ok(probed.footprints(params)?)
    }
}
