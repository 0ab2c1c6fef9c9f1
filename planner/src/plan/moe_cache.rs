//! The cache of experts on GPUs: whether a plan has one, and how large. In: a placement without a cache. Out: a
//! placement with a cache if it is better, otherwise the same placement.
//!
//! Experts that stay on the host are computed there. With a cache, the GPU of the layer computes with all experts of
//! the layer, and the experts that are not in the cache are uploaded (llama-moe-cache.cpp). This is faster if texts
//! soon use the same experts again and the link is fast; otherwise it is much slower.

use serde::{Deserialize, Serialize};

use crate::machine::{Bytes, Gpu};
use crate::memory::estimate::Assignment;
use crate::memory::{self, ContextParams, Estimate, Place, TensorOverride};

use super::fit::{CacheGain, Chosen};
use super::search::Placements;
use super::speed::{ExpertHits, MAX_CACHED_TOKENS, SpeedModel};
use super::{Error, HostParts, MoeCache, Planner, Policy, Probe};

/// A cache must make the workload faster by this factor, because its gain depends on texts that use the same experts
/// again.
const MIN_SPEEDUP: f64 = 1.1;
/// The factor by which a cache may lengthen the time of a prompt: prompts keep nine tenths of their speed.
const MAX_SLOWER_PROMPT: f64 = 1.0 / 0.9;
/// Maximum number of searches for a cache with which prompts are fast enough. Each search tries caches of at most
/// `NEXT_SHARE` of the previous cache's size.
const MAX_SEARCHES: usize = 3;
const NEXT_SHARE: f64 = 0.85;

/// The cache of experts of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlannedMoeCache {
    /// Bytes over all GPUs, for `llama_context_params.moe_cache_size`. The footprints contain the bytes of each GPU.
    pub bytes: u64,
    /// The share of the experts on the host that the cache holds at once, 0 to 1.
    pub share: f64,
    /// The number of experts that the cache holds at once over all GPUs. An expert belongs to one layer.
    #[serde(default)]
    pub slots: u64,
    /// The share of the uses of these experts that the cache is expected to serve, 0 to 1.
    pub hits: f64,
    /// If the cache serves a smaller share of the uses than this, generation would be faster without the cache. `None`
    /// if generation would never be faster without the cache.
    pub break_even: Option<f64>,
    /// The predicted speed-up of the workload, as a factor, over the best placement without a cache.
    pub speedup: f64,
}

/// Predicted seconds of a placement.
struct Seconds {
    workload: f64,
    prompt: f64,
    token: f64,
}

impl Planner<'_> {
    /// The placement with the cache of experts that the request wants, or `chosen` if the cache would not be better.
    ///
    /// # Errors
    ///
    /// [`memory::Error::Context`] if no placement has room for the stated size, or if this size is too small.
    pub(super) fn with_moe_cache<'s>(
        &'s self,
        mut chosen: Chosen<'s>,
        policy: Policy,
        model: &SpeedModel,
        probe: Option<&'s dyn Probe>,
    ) -> Result<Chosen<'s>, Error> {
        match self.request.asked_moe_cache() {
            MoeCache::Off => Ok(chosen),
            MoeCache::Auto => {
                // If weights are read from the disk for every token, the disk decides the speed.
                let is_paged = chosen.levels.host.paged > 0;
                if self.is_stated()
                    || is_paged
                    || self.tokens_at_once() > MAX_CACHED_TOKENS
                    || self.why_no_cache(&chosen, policy).is_some()
                {
                    return Ok(chosen);
                }
                Ok(self.best_with_cache(&chosen, model, probe)?.unwrap_or(chosen))
            }
            MoeCache::Bytes(0) => Ok(chosen),
            MoeCache::Bytes(bytes) => {
                if let Some(why) = self.why_no_cache(&chosen, policy) {
                    chosen
                        .notes
                        .push(format!("no cache of {} for experts, although one was requested: {why}", Bytes(bytes)));
                    return Ok(chosen);
                }
                self.with_stated_cache(chosen, bytes, model, probe)
            }
        }
    }

    /// Maximum number of tokens that are generated at once: one token of each sequence, and its drafts.
    fn tokens_at_once(&self) -> u32 {
        self.request.params.n_seq_max.saturating_mul(self.request.draft_max.saturating_add(1))
    }

    /// The reason why a cache of experts would not help this placement, if there is one.
    fn why_no_cache(&self, chosen: &Chosen<'_>, policy: Policy) -> Option<&'static str> {
        let is_whole = policy == Policy::MostLayers || self.request.host_parts == HostParts::None;
        let on_host = || chosen.assignment.blocks.contains(&Place::Host) || chosen.split_blocks > 0;
        if self.profile.hparams.experts.is_none() {
            Some("the model has no experts")
        } else if self.request.embeds() {
            Some("the cache serves up to 32 tokens at once, but a context for embeddings computes whole texts")
        } else if self.machine.gpus.is_empty() {
            Some("there is no GPU that could hold the cache")
        } else if !on_host() {
            Some("all experts are on GPUs")
        } else if is_whole && !self.is_stated() {
            Some("layers stay whole, but the cache holds only experts of layers on GPUs")
        } else {
            None
        }
    }

    /// Seconds of a placement, by the speed model.
    fn seconds(&self, chosen: &Chosen<'_>, model: &SpeedModel) -> Result<Seconds, Error> {
        let (model, work) = (self.timed(chosen, model)?, self.request.work(&self.profile));
        Ok(Seconds {
            workload: model.seconds(&chosen.assignment, &work),
            prompt: model.prompt_seconds(&chosen.assignment, &work),
            token: model.mean_token_seconds(&chosen.assignment, work.depths()),
        })
    }

    /// The fastest placement with a cache of experts, among the placements that do not slow prompts down much. `None`
    /// if no placement is sufficiently faster than `without`.
    fn best_with_cache<'s>(
        &'s self,
        without: &Chosen<'_>,
        model: &SpeedModel,
        probe: Option<&'s dyn Probe>,
    ) -> Result<Option<Chosen<'s>>, Error> {
        // With several GPUs, the search keeps the settings of the placement without a cache.
        let params = if self.machine.gpus.len() > 1 { without.params.clone() } else { self.params() };
        let (profile, machine) = (&*self.profile, &*self.machine);
        let then = self.seconds(without, model)?;
        let mut most = 1.0;
        for _ in 0..MAX_SEARCHES {
            let context = (&params, model);
            let placements = Placements::with_cache(profile, machine, &self.request, context, most, probe)?;
            let found = match placements.choose() {
                Err(Error::DoesNotFit { .. } | Error::Probe { .. }) => return Ok(None),
                found => found?,
            };
            let Some((mut found, share)) = self.holding_experts(found)? else { return Ok(None) };
            let now = self.seconds(&found, model)?;
            let speedup = then.workload / now.workload;
            if speedup < MIN_SPEEDUP {
                return Ok(None);
            }
            if now.prompt <= MAX_SLOWER_PROMPT * then.prompt {
                found.cache = Some(CacheGain { speedup, token_without: then.token });
                return Ok(Some(found));
            }
            // During prompts, the experts in the cache are copied within the GPU's memory, so a smaller cache makes
            // prompts faster.
            most = share * NEXT_SHARE;
        }
        Ok(None)
    }

    /// The placement, and the share of the host's experts that its cache holds. `None` if the share is 0, because the
    /// CPU rearranges the experts or because no experts are on the host.
    fn holding_experts<'s>(&self, chosen: Chosen<'s>) -> Result<Option<(Chosen<'s>, f64)>, Error> {
        let share = self.share_held(&chosen)?;
        Ok((share > 0.0).then_some((chosen, share)))
    }

    /// Whether the cache of a placement holds any experts.
    pub(super) fn holds_experts(&self, chosen: &Chosen<'_>) -> Result<bool, Error> {
        Ok(self.share_held(chosen)? > 0.0)
    }

    fn share_held(&self, chosen: &Chosen<'_>) -> Result<f64, Error> {
        let estimate = Estimate::new(&self.profile, &chosen.room.gpus, &chosen.params)?;
        Ok(estimate.overrides(&chosen.split.overrides)?.expert_cache(&chosen.assignment).share)
    }

    /// A placement with a cache of this many bytes.
    fn with_stated_cache<'s>(
        &'s self,
        without: Chosen<'s>,
        bytes: u64,
        model: &SpeedModel,
        probe: Option<&'s dyn Probe>,
    ) -> Result<Chosen<'s>, Error> {
        let mut params = self.params();
        params.moe_cache_size = bytes;
        self.check_holds_a_token(&params)?;
        let then = self.seconds(&without, model)?;
        let with = match self.is_stated() {
            true => self.stated(&params, probe),
            false => {
                let placements = Placements::with_stated_cache(
                    &self.profile,
                    &self.machine,
                    &self.request,
                    (&params, model),
                    probe,
                )?;
                placements.choose()
            }
        };
        let with = match with {
            Err(Error::DoesNotFit { .. }) => return Err(self.no_room_for_cache(&without, bytes)),
            with => with?,
        };
        let Some((mut with, _)) = self.holding_experts(with)? else {
            let mut without = without;
            let why = "with the cache, no layer on a GPU would have all of its experts in the host's ordinary memory";
            without.notes.push(format!("no cache of {} for experts, although one was requested: {why}", Bytes(bytes)));
            return Ok(without);
        };
        let now = self.seconds(&with, model)?;
        let gain = CacheGain { speedup: then.workload / now.workload, token_without: then.token };
        if gain.speedup < 1.0 {
            let slower = 1.0 / gain.speedup;
            with.notes.push(format!(
                "without the requested cache of experts, the workload would be {slower:.1} times as fast: too many experts pass the link"
            ));
        }
        with.cache = Some(gain);
        Ok(with)
    }

    /// Rejects a size with which no layer can cache the experts of one token: llama.cpp would not create the context.
    fn check_holds_a_token(&self, params: &ContextParams) -> Result<(), Error> {
        let gpus: Vec<&Gpu> = self.machine.gpus.iter().collect();
        let all = [TensorOverride::new("_exps", Place::Host)];
        let overrides = if self.is_stated() { &self.request.overrides[..] } else { &all };
        let on_first = Assignment::by_counts(self.profile.n_layer(), &[self.profile.full_offload()]);
        let cache = Estimate::new(&self.profile, &gpus, params)?.overrides(overrides)?.expert_cache(&on_first);
        if cache.experts > 0 && cache.share == 0.0 {
            let least = cache.least;
            let limit = format!("the experts of one token, and one more, take {} ({least} bytes)", Bytes(least));
            return Err(refused(params.moe_cache_size, limit));
        }
        Ok(())
    }

    /// The error for a cache that does not fit on the GPUs together with the rest of the model.
    fn no_room_for_cache(&self, without: &Chosen<'_>, bytes: u64) -> Error {
        let most: u64 = without.levels.gpus.iter().map(|level| level.budget).fold(0, u64::saturating_add);
        let on = without.room.names();
        let limit =
            format!("{on} can use {} ({most} bytes) for layers, keys and values, and the cache together", Bytes(most));
        refused(bytes, limit)
    }
}

fn refused(bytes: u64, limit: String) -> Error {
    Error::Memory(memory::Error::Context { parameter: "moe_cache", value: bytes, limit })
}

impl Planner<'_> {
    /// The description of a placement's cache, for the plan. `model` is the speed model for its devices and parameters.
    pub(super) fn planned_moe_cache(
        &self,
        chosen: &Chosen<'_>,
        gain: CacheGain,
        model: &SpeedModel,
    ) -> Result<PlannedMoeCache, Error> {
        let estimate = Estimate::new(&self.profile, &chosen.room.gpus, &chosen.params)?;
        let cache = estimate.overrides(&chosen.split.overrides)?.expert_cache(&chosen.assignment);
        let model = model.clone().overrides(&self.profile, &chosen.split.overrides)?;
        let hits = model.expected_hits(&chosen.assignment).unwrap_or(0.0);
        let depths = self.request.work(&self.profile).depths();
        let token = |model: &SpeedModel| model.mean_token_seconds(&chosen.assignment, depths);
        // The time of a token is linear in the share of uses that miss the cache.
        let always_hit = token(&model.clone().expert_hits(ExpertHits::new(f64::INFINITY)));
        let missed = (token(&model) - always_hit) / (1.0 - hits);
        let break_even = 1.0 - (gain.token_without - always_hit) / missed;
        let break_even = if break_even.is_finite() { break_even.min(1.0) } else { 0.0 };
        Ok(PlannedMoeCache {
            bytes: chosen.params.moe_cache_size,
            share: rounded(cache.share),
            slots: cache.slots,
            hits: rounded(hits),
            break_even: (break_even > 0.0).then(|| rounded(break_even)),
            speedup: rounded(gain.speedup),
        })
    }
}

impl PlannedMoeCache {
    /// The reason for the cache, for people.
    pub(super) fn reason(&self) -> String {
        let Self { bytes, share, hits, speedup, .. } = *self;
        let [share, hits] = [share, hits].map(|part| 100.0 * part);
        format!(
            "a cache of {} holds {share:.0} % of the host's experts, and {hits:.0} % of their uses should hit it; {speedup:.2} times as fast as without",
            Bytes(bytes)
        )
    }
}

/// Rounds to four decimals, so that a plan that is read back is the same plan.
fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}
