//! Turns the result of the search into a choice with its reasons.

use crate::machine::{Bytes, Gpu};
use crate::plan::fit::Chosen;
use crate::plan::reasons::counted;
use crate::plan::{Confidence, Error, HostParts, Policy, Probe};

use super::path::Path;
use super::{Found, Placements, Probed, SearchConstraints, SearchedCache};

impl<'a> Placements<'a> {
    /// The best placement, confirmed by the probe if there is one.
    pub(in crate::plan) fn choose(&self) -> Result<Chosen<'a>, Error> {
        self.probe.map_or_else(|| self.choose_estimated(), |probe| self.choose_probed(probe))
    }

    fn choose_estimated(&self) -> Result<Chosen<'a>, Error> {
        let constraints = SearchConstraints::default();
        let Some(found) = self.search(&constraints)? else {
            let least = match self.policy {
                Policy::Fastest => None,
                Policy::MostLayers => self.least_lacking(&constraints)?,
            };
            return Err(self.does_not_fit(least));
        };
        let nearest = self.nearest(&found.path, &constraints)?;
        let estimate = self.setting_costs[found.path.setting].estimate(self, &self.orders[found.path.order])?;
        let confidence = if estimate.compute_is_fitted() { Confidence::Estimated } else { Confidence::Modelled };
        let why = self.why(&found, nearest.as_ref(), false);
        Ok(self.chosen(found, why, confidence))
    }

    fn choose_probed(&self, probe: &dyn Probe) -> Result<Chosen<'a>, Error> {
        let mut probed = Probed::new(self, probe);
        match (probed.search()?, probed.refusal) {
            (Some((found, nearest)), refusal) if refusal.is_none() || !found.path.runs.is_empty() => {
                let refused = self.better(&found.path).iter().any(|path| probed.constraints.refused.contains(path));
                let why = self.why(&found, nearest.as_ref(), refused);
                let mut chosen = self.chosen(found, why, Confidence::Probed);
                chosen.notes.extend(probed.kv_refusal);
                chosen.notes.extend(refusal.map(|(gpus, error)| format!("{gpus} was left out: {error}")));
                Ok(chosen)
            }
            // An error is returned rather than a plan on the host alone, because such a plan would hide why the model
            // is slow.
            (_, Some((_, error))) => Err(error),
            _ => match (self.policy, probed.least_lacking, probed.no_room) {
                (Policy::MostLayers, None, Some(no_room)) => Err(self.does_not_fit_by_estimate().unwrap_or(no_room)),
                (_, least, _) => Err(self.does_not_fit(least)),
            },
        }
    }

    /// The error for a model that already does not fit by the estimate, so that llama.cpp need not be asked.
    fn does_not_fit_by_estimate(&self) -> Option<Error> {
        let least = self.least_lacking(&SearchConstraints::default()).ok()??;
        (least.levels.missing() > 0).then(|| self.does_not_fit(Some(least)))
    }

    /// The error for a model that does not fit. `least` is the candidate with the fewest missing bytes.
    fn does_not_fit(&self, least: Option<Found>) -> Error {
        let layers = self.profile.full_offload();
        let (model, n_ctx) = (self.profile.name.clone(), self.wanted().map_or(0, |params| params.n_ctx));
        let devices = least.iter().flat_map(|least| self.room(&least.path).shortfalls(&least.levels)).collect();
        let n_gpu_layers = layers - least.map_or(0, |least| least.path.first);
        Error::DoesNotFit { model, n_gpu_layers, layers, n_ctx, devices, advice: None }
    }

    fn chosen(&self, found: Found, why: (String, Option<char>), confidence: Confidence) -> Chosen<'a> {
        let path = &found.path;
        Chosen {
            room: self.room(path),
            params: self.context(path),
            cache: None,
            split: self.split(path),
            assignment: self.assignment(path),
            counts: path.counts(),
            split_blocks: self.split_blocks(path),
            confidence,
            why,
            notes: self.notes(path),
            levels: found.levels,
        }
    }

    /// The reason for the choice, in the form of [`Chosen::why`]. `refused` is true if llama.cpp refused a better
    /// placement.
    fn why(&self, found: &Found, nearest: Option<&Found>, refused: bool) -> (String, Option<char>) {
        let path = &found.path;
        let layers = self.profile.full_offload();
        let n: u32 = path.counts().iter().sum();
        let split = self.split_blocks(path);
        let lacks = |nearest: &Found| {
            let shortfalls = self.room(&nearest.path).shortfalls(&nearest.levels);
            let missing: Vec<String> = shortfalls
                .into_iter()
                .filter(|shortfall| shortfall.missing > 0)
                .map(|lack| format!("{} more on {}", Bytes(lack.missing), lack.device))
                .collect();
            missing.join(" and ")
        };
        let exactly = self.request.gpu_layers.is_exact();
        if path.runs.is_empty() {
            let why = match nearest {
                _ if exactly => "no layer on a GPU, as requested".to_owned(),
                _ if self.gpus.is_empty() && self.slow.is_empty() => {
                    format!("no layer on a GPU: {}", self.machine.why_no_gpu())
                }
                _ if self.gpus.is_empty() => "no layer on a GPU: none is faster than the host".to_owned(),
                Some(nearest) => format!("no layer on a GPU: even the output layer alone needs {}", lacks(nearest)),
                None => "no layer on a GPU: the host alone is faster".to_owned(),
            };
            return (why, None);
        }
        let all = if n == layers {
            format!("all {layers} layers on {}", self.room(path).names())
        } else {
            format!("{n} of {layers} layers")
        };
        let kept = if split == 0 {
            all
        } else {
            let what = match self.parts.wanted {
                HostParts::FeedForward => "feed-forward matrices",
                _ => "experts",
            };
            format!("{all}, {what} of {} on the host", counted(split, "block"))
        };
        match nearest {
            _ if exactly && n < layers => (format!("{kept}, as requested"), Some(';')),
            _ if refused => (format!("{kept}: llama.cpp refuses one more"), Some(';')),
            // A search with a cache fills the card with experts whose weights are on the host, so no block is left out
            // for lack of memory.
            _ if self.cache != SearchedCache::None => (kept, Some(',')),
            Some(nearest) if nearest.path.kept() < path.kept() => {
                (format!("{kept}: one block fewer would need {}", lacks(nearest)), None)
            }
            Some(nearest) if nearest.path.first < path.first => {
                (format!("{kept}: layer {} needs {}", n + 1, lacks(nearest)), None)
            }
            _ => (kept, Some(',')),
        }
    }

    /// Notes on unused GPUs and on settings that differ from the preferred settings.
    fn notes(&self, path: &Path) -> Vec<String> {
        let mut notes = Vec::new();
        let used = self.room(path).gpus;
        let list = |gpus: &[&Gpu]| gpus.iter().map(|gpu| gpu.name.as_str()).collect::<Vec<_>>().join(", ");
        let mut unused = self.gpus.clone();
        unused.retain(|gpu| !used.iter().any(|used| std::ptr::eq(*used, *gpu)));
        if !used.is_empty() && !unused.is_empty() {
            let why = match self.policy {
                Policy::Fastest => "the plan would not be faster",
                Policy::MostLayers => "it would take no more layers",
            };
            notes.push(format!("not used, as {why}: {}", list(&unused)));
        }
        if !self.gpus.is_empty() && !self.slow.is_empty() {
            notes.push(format!("not used, as the host is faster: {}", list(&self.slow)));
        }
        let params = self.params(path);
        let wanted = self.wanted().unwrap_or(params);
        let (computed, preferred) = (params.computed(), wanted.computed());
        if computed != preferred {
            notes.push(format!("{computed} tokens are computed at once instead of {preferred}"));
        }
        if params.offload_kqv != wanted.offload_kqv {
            let note = "keys and values are on the host, which leaves room for more of the model on GPUs: long prompts are slow there";
            notes.push(note.to_owned());
        }
        if path.single_copy {
            notes.push("a single copy of the graph: prompts do not flow through several GPUs at once".to_owned());
        }
        notes
    }
}
