//! Every architecture that llama.cpp knows: weights and cache are equal to llama.cpp's own to the byte, and compute
//! buffers within what the estimate states, or the estimate says that it does not know them, and why.
//!
//! The list of architectures is llama.cpp's, and so are their tensors (`blueprints`): whatever it adds fails here until
//! somebody has read how it keeps its context. `cargo test -p autoplace --test load architectures:: -- --nocapture`
//! prints the table; with `AUTOPLACE_KEEP_MODELS` naming a folder the models stay there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use autoplace::gguf::Header;
use autoplace::llama_sys::{self, sim::Rules};
use autoplace::memory::{ContextParams, Estimate, Split};
use autoplace::profile::{ModelProfile, StateLaw};

use crate::blueprints::Blueprint;
use crate::rig::grid::few_settings;
use crate::rig::tally::pairs;
use crate::rig::{Card, Kind, Loaded, gpus, none_failed};

/// The models whose law is unknown, and a part of the reason that is given for each.
const UNKNOWN: &[(&str, &str)] = &[
    ("dflash hyper-connected", "with hyper-connections"),
    ("eagle3 deep", "drafts for another model"),
    ("eagle3 dense", "drafts for another model"),
    ("eagle3 tied", "drafts for another model"),
];

/// The architectures that llama.cpp names, and of which it makes no model by itself: it does not load the first two,
/// and makes the third only beside the model that it drafts for.
const NOT_MADE: &[&str] = &["clip", "gptj", "gemma4-assistant"];

#[test]
fn every_architecture_is_exact_or_unknown() {
    own_process!();
    let card = Card::new((Rules::Cuda, false));
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("AUTOPLACE_KEEP_MODELS").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(temporary.path());
    let mut survey = Survey {
        card: &card,
        settings: few_settings(),
        unknown: BTreeMap::new(),
        exact: BTreeMap::new(),
        faults: Vec::new(),
    };
    let architectures: BTreeSet<String> = llama_sys::architectures().into_iter().collect();
    for arch in &architectures {
        for blueprint in crate::blueprints::all(arch) {
            survey.model(&blueprint, folder);
        }
    }
    println!("{survey}");
    survey.check(&architectures);
}

/// What was seen.
struct Survey<'a> {
    card: &'a Card,
    settings: Vec<ContextParams>,
    /// The reason for which the law of a model is unknown.
    unknown: BTreeMap<String, String>,
    /// Architectures of which at least one model is known: models and comparisons, all of them equal unless
    /// there is a fault.
    exact: BTreeMap<String, (usize, usize)>,
    faults: Vec<String>,
}

impl Survey<'_> {
    /// One model as we write it, and where it is small as llama.cpp writes it.
    fn model(&mut self, blueprint: &Blueprint, folder: &Path) {
        let model = match blueprint.make(folder) {
            Ok(model) => model,
            Err(_) if NOT_MADE.contains(&blueprint.arch.as_str()) => return,
            Err(error) => panic!("{}: {error}", blueprint.title()),
        };
        let written = blueprint.write(&model, folder);
        let plain = matches!(blueprint.name, "dense" | "experts");
        let saved = plain.then(|| blueprint.save(&model, folder)).flatten();
        drop(model);
        let case = blueprint.title();
        if let Err(error) = self.file(blueprint, &case, &written) {
            // Not every architecture can do without an output.
            let tied = blueprint.name == "tied" && error.contains("tensor 'output.weight' not found");
            let bare = blueprint.may_be_refused() && error.contains("not found");
            if !tied && !bare {
                self.faults.push(format!("{case}: {error}"));
            }
        }
        if let Some(saved) = saved {
            // What llama.cpp writes lacks here and there what it wants to read.
            let _refused = self.file(blueprint, &format!("{case}, saved"), &saved);
        }
    }

    /// One file at every split, or why llama.cpp does not load it.
    fn file(&mut self, blueprint: &Blueprint, case: &str, path: &Path) -> Result<(), String> {
        let header = Header::open(path).unwrap();
        let load = |cards: &[&Card], n_gpu_layers| {
            // So that nothing is uncertain of what the CPU computes with.
            let mut params = ContextParams::default();
            params.repack = false;
            let split = Split::layers(n_gpu_layers);
            Loaded::new(path, cards, &split, &params, Kind::Probe)
        };
        let profile = match ModelProfile::from_header(&header) {
            Ok(profile) => profile,
            Err(refused) => {
                if load(&[], 0).is_ok() {
                    self.faults.push(format!("{case}: {refused}, but llama.cpp loads it"));
                }
                return Err(refused.to_string());
            }
        };
        let (on_host, on_card) = (&[][..], &[self.card][..]);
        let all = profile.full_offload();
        let splits = [(on_host, 0)].into_iter().chain((0..=all).map(|n| (on_card, n)));
        let mut compared = 0;
        for (split, (cards, n_gpu_layers)) in splits.enumerate() {
            let probed = load(cards, n_gpu_layers).map_err(|error| error.to_string())?;
            if let StateLaw::Unknown { reason } = &profile.state {
                self.unknown.insert(blueprint.title(), reason.clone());
                return Ok(());
            }
            for (row, params) in self.settings.clone().into_iter().enumerate() {
                // Each split has some of the settings, and each setting some of the splits: of deep models fewer.
                if (row + split) % (if all > 4 { 8 } else { 4 }) != 0 {
                    continue;
                }
                let on = cards.len();
                let at = format!("{case}, {n_gpu_layers} layers on {on} GPUs, {params:?}");
                compared += self.compare(&at, &profile, &probed, cards, n_gpu_layers, params);
            }
        }
        if compared == 0 {
            self.faults.push(format!("{case}: llama.cpp makes no context of it"));
        }
        let exact = self.exact.entry(blueprint.arch.clone()).or_default();
        *exact = (exact.0 + 1, exact.1 + compared);
        Ok(())
    }

    /// One setting: 1 if both answered.
    fn compare(
        &mut self,
        at: &str,
        profile: &ModelProfile,
        probed: &Loaded,
        cards: &[&Card],
        n_gpu_layers: u32,
        mut params: ContextParams,
    ) -> usize {
        if profile.state.is_compressed() {
            // Compressed keys and values are of one type.
            params.type_k = params.type_v;
        }
        let ours = Estimate::new(profile, &gpus(cards), &params);
        match (ours, probed.footprints(&params)) {
            (Ok(estimate), Ok(theirs)) => {
                if !estimate.is_known() {
                    self.faults.push(format!("{at}: weights of no known place"));
                }
                for mut pair in pairs(&estimate, n_gpu_layers, &theirs) {
                    pair.slack = 0;
                    let fault = pair.fault().map(|fault| format!("{at}: {fault}"));
                    self.faults.extend(fault);
                }
                1
            }
            (Err(refused), Ok(_)) => {
                self.faults.push(format!("{at}: {refused}, but llama.cpp makes that context"));
                0
            }
            // Not every graph can be made of every setting.
            (_, Err(_)) => 0,
        }
    }

    fn check(&self, architectures: &BTreeSet<String>) {
        none_failed(&self.faults, self.exact.values().map(|(_, n)| n).sum());
        let unknown: Vec<&str> = self.unknown.keys().map(String::as_str).collect();
        let listed: Vec<&str> = UNKNOWN.iter().map(|(model, _)| *model).collect();
        assert_eq!(unknown, listed, "the models of unknown law");
        for (model, part) in UNKNOWN {
            let reason = &self.unknown[*model];
            assert!(reason.contains(part), "{model}: {reason}");
        }
        for arch in architectures {
            let mut unknown = unknown.iter().map(|model| model.split(' ').next().unwrap());
            let is_known = self.exact.contains_key(arch) || NOT_MADE.contains(&arch.as_str());
            let seen = is_known || unknown.any(|it| it == arch);
            assert!(seen, "{arch}: no model of it was seen");
        }
    }
}

impl std::fmt::Display for Survey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "| architecture | files | comparisons |")?;
        writeln!(f, "|---|--:|--:|")?;
        for (arch, (files, comparisons)) in &self.exact {
            writeln!(f, "| {arch} | {files} | {comparisons} |")?;
        }
        let comparisons: usize = self.exact.values().map(|(_, n)| n).sum();
        let files: usize = self.exact.values().map(|(n, _)| n).sum();
        writeln!(f, "\n{} architectures, {files} files, {comparisons} comparisons", self.exact.len())?;
        for (model, reason) in &self.unknown {
            writeln!(f, "unknown: {model}: {reason}")?;
        }
        Ok(())
    }
}
