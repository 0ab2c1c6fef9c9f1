//! Every architecture of llama.cpp. The estimate has exactly llama.cpp's bytes of weights and cache, and its error for
//! compute buffers is at most the error that it states. If the estimate does not know the bytes of a model, it must say
//! so, with the reason.
//!
//! The architectures and their tensors come from llama.cpp itself (`blueprints`). So a new architecture fails here,
//! until somebody has found out how it keeps its context. `cargo test -p autoplace --test load architectures:: --
//! --nocapture` prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use autoplace::gguf::Header;
use autoplace::llama_sys::{self, sim::Rules};
use autoplace::memory::{ContextParams, Estimate, Split};
use autoplace::profile::{KvLayout, ModelProfile};

use crate::blueprints::Blueprint;
use crate::rig::grid::settings;
use crate::rig::tally::Tally;
use crate::rig::{Card, Kind, Loaded, gpus};

/// The models whose KV layout is not known, and words from the reason that is given for each.
const UNKNOWN: &[(&str, &str)] = &[
    // The header's list of windows has fewer entries than the model has blocks. In llama.cpp, the remaining blocks have
    // full attention; our profile reports that the layout is not known.
    ("cohere2 short-list", "of another length"),
    ("dflash hyper-connected", "with hyper-connections"),
    ("eagle3 deep", "drafts for another model"),
    ("eagle3 dense", "drafts for another model"),
    ("eagle3 tied", "drafts for another model"),
];

/// Architectures that llama.cpp knows, but that it cannot create by themselves. Two of them are never loaded. The third
/// is created only together with its main model.
const NOT_MADE: &[&str] = &["clip", "gptj", "gemma4-assistant"];

#[test]
fn every_architecture_is_exact_or_unknown() {
    own_process!();
    let card = Card::new((Rules::Cuda, false));
    let folder = tempfile::tempdir().unwrap();
    let mut survey = Survey { card: &card, unknown: BTreeMap::new(), tally: Tally::default() };
    let architectures: BTreeSet<String> = llama_sys::architectures().into_iter().collect();
    let blueprints = architectures.iter().flat_map(|arch| crate::blueprints::all(arch));
    for (number, blueprint) in blueprints.enumerate() {
        survey.model(number, &blueprint, folder.path());
    }
    let Survey { unknown, tally, .. } = survey;
    tally.check();
    assert!(unknown.keys().eq(UNKNOWN.iter().map(|(model, _)| model)), "the models of unknown law: {unknown:?}");
    for (model, part) in UNKNOWN {
        assert!(unknown[*model].contains(part), "{model}: {}", unknown[*model]);
    }
    for arch in architectures {
        let is_unknown = unknown.keys().any(|model| model.split(' ').next() == Some(&arch));
        let seen = is_unknown || tally.has(&arch) || NOT_MADE.contains(&arch.as_str());
        assert!(seen, "{arch}: no model of it was seen");
    }
}

/// The results for all models.
struct Survey<'a> {
    card: &'a Card,
    /// For each model whose KV layout is not known, the reason.
    unknown: BTreeMap<String, String>,
    tally: Tally,
}

impl Survey<'_> {
    /// Compares a file of the model that we write. If the model is small, also compares a file that llama.cpp writes.
    fn model(&mut self, number: usize, blueprint: &Blueprint, folder: &Path) {
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
        if let Err(error) = self.file(blueprint, &case, &written, Some(number)) {
            // Some architectures require an output, or other tensors that the model lacks here.
            let tied = blueprint.name == "tied" && error.contains("tensor 'output.weight' not found");
            let bare = blueprint.name == "bare" && error.contains("not found");
            if !tied && !bare {
                self.tally.faults.push(format!("{case}: {error}"));
            }
        }
        if let Some(saved) = saved {
            // In files that llama.cpp writes, tensors that it requires itself are sometimes missing.
            let _refused = self.file(blueprint, &format!("{case}, saved"), &saved, None);
        }
    }

    /// Compares a file twice: on the host, and on the card. The file of every third model is also divided between the
    /// host and the card. If llama.cpp refuses the file, returns llama.cpp's error.
    fn file(&mut self, blueprint: &Blueprint, case: &str, path: &Path, turn: Option<usize>) -> Result<(), String> {
        let header = Header::open(path).unwrap();
        let load = |cards: &[&Card], n_gpu_layers| {
            // Without repacking, the sizes of the CPU's buffers are certain.
            let mut params = ContextParams::default();
            params.repack = false;
            Loaded::new(path, cards, &Split::layers(n_gpu_layers), &params, Kind::Probe)
        };
        let profile = match ModelProfile::from_header(&header) {
            Ok(profile) => profile,
            Err(refused) => {
                if load(&[], 0).is_ok() {
                    self.tally.faults.push(format!("{case}: {refused}, but llama.cpp loads it"));
                }
                return Err(refused.to_string());
            }
        };
        let (on_host, on_card) = (&[][..], &[self.card][..]);
        let all = profile.full_offload();
        let (before, settings) = (self.tally.devices(), settings());
        let splits = [(on_host, 0)].into_iter().chain((0..=all).map(|n| (on_card, n)));
        for (split, (cards, n_gpu_layers)) in splits.enumerate() {
            let is_end = split == 0 || n_gpu_layers == all;
            if !is_end && !turn.is_some_and(|turn| (split + turn).is_multiple_of(3)) {
                continue;
            }
            let probed = load(cards, n_gpu_layers).map_err(|error| error.to_string())?;
            if let KvLayout::Unknown { reason } = &profile.state {
                self.unknown.insert(blueprint.title(), reason.clone());
                return Ok(());
            }
            // For each split, the first setting with which a graph can be built is used. For the next model, another
            // setting comes first.
            for row in 0..settings.len() {
                let mut params = settings[(row + split + turn.unwrap_or(0)) % settings.len()].clone();
                params.repack = false;
                if profile.state.is_compressed() {
                    // If keys and values are compressed together, they have the same type.
                    params.type_k = params.type_v;
                }
                let at = format!("{case}, {n_gpu_layers} layers on {} GPUs, {params:?}", cards.len());
                let Ok(theirs) = probed.footprints(&params) else { continue };
                match Estimate::new(&profile, &gpus(cards), &params) {
                    Ok(ours) => self.tally.hold(&blueprint.arch, &at, &ours, n_gpu_layers, &theirs, 0),
                    Err(refused) => {
                        self.tally.faults.push(format!("{at}: {refused}, but llama.cpp makes that context"));
                    }
                }
                break;
            }
        }
        if self.tally.devices() == before {
            self.tally.faults.push(format!("{case}: llama.cpp makes no context of it"));
        }
        self.tally.model(&blueprint.arch);
        Ok(())
    }
}
