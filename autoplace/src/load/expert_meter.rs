//! Learns from a loaded model how soon its texts use experts again.
//!
//! In: hits and misses of the model's cache of experts, batch by batch. Out: the locality of
//! [`ExpertHits`](crate::plan::speed::ExpertHits). Later plans of this model use this locality, and later programs find
//! it in the user's cache.

use std::path::PathBuf;

use super::ExpertUses;
use super::devices::is_simulated;
use super::options::LoadOptions;
use super::rates::MIN_MODEL_BYTES;
use crate::machine::{ExpertUse, Machine, MeasurementCache};
use crate::plan::speed::ExpertHits;
use crate::plan::{Plan, PlannedMoeCache};

/// The number of uses after a load that are ignored, per slot of the cache. An empty cache misses each expert once, and
/// a larger cache takes longer to fill. A 30B model with room for 40 % of its 48 x 128 experts reached its steady share
/// of misses within 64 tokens, which are 24,576 uses (kekzl/imp 1359).
const WARM_UP_USES_PER_SLOT: u64 = 10;
/// The minimum number of uses for a result. This is 50 tokens of a model with 48 layers that uses 8 experts per layer
/// and token.
const MIN_USES: u64 = 50 * 48 * 8;

/// Counts the uses of one placement's cache. When it is dropped, it stores the learned locality.
#[derive(Debug)]
pub(super) struct ExpertMeter {
    /// The number of experts in the cache, as a share of the experts on the host.
    share: f64,
    /// The cache on disk for the locality, and the path and size of the model's file.
    kept: Option<(MeasurementCache, PathBuf, u64)>,
    /// The number of further uses that are still ignored.
    warm_up: u64,
    uses: ExpertUses,
}

impl ExpertMeter {
    /// A meter for a load by this plan; `None` without a cache of experts.
    pub(super) fn for_load(options: &LoadOptions, plan: &Plan, machine: &Machine) -> Option<Self> {
        let PlannedMoeCache { share, slots, .. } = plan.moe_cache?;
        let bytes = plan.model.file_bytes;
        let cache = options.expert_cache(machine, bytes);
        let kept = cache.map(|cache| (cache, options.path.clone(), bytes));
        Some(Self::new(share, slots, kept))
    }

    /// A meter for a cache of `slots` experts, which are this share of the experts on the host.
    fn new(share: f64, slots: u64, kept: Option<(MeasurementCache, PathBuf, u64)>) -> Self {
        Self { share, kept, warm_up: slots.saturating_mul(WARM_UP_USES_PER_SLOT), uses: ExpertUses::default() }
    }

    /// Adds the uses of a batch.
    pub(super) const fn add(&mut self, uses: ExpertUses) {
        if self.warm_up > 0 {
            self.warm_up = self.warm_up.saturating_sub(uses.total());
            return;
        }
        self.uses.hits += uses.hits;
        self.uses.misses += uses.misses;
    }

    /// How soon experts are used again; `None` before there were enough uses.
    pub(super) fn locality(&self) -> Option<f64> {
        let ExpertUses { hits, misses } = self.uses;
        if self.uses.total() < MIN_USES {
            return None;
        }
        ExpertHits::observed(self.share, hits, misses).map(|hits| hits.locality)
    }
}

impl Drop for ExpertMeter {
    fn drop(&mut self) {
        if let (Some((cache, file, bytes)), Some(locality)) = (&self.kept, self.locality()) {
            cache.put_expert_use((file, *bytes), ExpertUse::new(locality, self.uses.total()));
        }
    }
}

impl LoadOptions {
    /// The cache on disk for uses of experts; `None` if no measurements are kept.
    fn expert_cache(&self, machine: &Machine, file_bytes: u64) -> Option<MeasurementCache> {
        let has_simulated = machine.gpus.iter().filter_map(|gpu| gpu.device.as_deref()).any(is_simulated);
        let is_worth = self.learn.is_stated() || file_bytes >= MIN_MODEL_BYTES;
        self.learn.cache(has_simulated).filter(|_| is_worth)
    }

    /// The hit rates of a cache of experts, measured with this model's own texts, or else with texts of earlier
    /// programs; `None` if no texts were measured.
    pub(super) fn expert_hits(&self, machine: &Machine, file_bytes: u64) -> Option<ExpertHits> {
        let known = || self.expert_cache(machine, file_bytes)?.expert_use((&self.path, file_bytes));
        let locality = self.expert_locality.or_else(|| Some(known()?.locality()));
        locality.map(ExpertHits::new)
    }
}

#[cfg(test)]
mod tests {
    use super::{ExpertMeter, ExpertUses, MIN_USES, WARM_UP_USES_PER_SLOT};
    use crate::load::GenerationCounters;
    use crate::machine::MeasurementCache;

    #[test]
    fn a_meter_ignores_the_first_uses_and_stores_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        let cache = MeasurementCache::at(folder.path());
        let kept = Some((cache.clone(), file.clone(), 7));
        let mut meter = ExpertMeter::new(0.25, 100, kept);
        for _ in 0..100 {
            meter.add(ExpertUses { hits: 0, misses: WARM_UP_USES_PER_SLOT });
        }
        assert_eq!(meter.locality(), None);
        // The cache has a quarter of the experts and serves three of four uses: (0.75 / 0.25 - 1) / 0.25.
        meter.add(ExpertUses { hits: 3 * MIN_USES, misses: MIN_USES });
        assert!((meter.locality().unwrap() - 8.0).abs() < 1e-9);
        drop(meter);
        assert_eq!(cache.expert_use((&file, 7)).unwrap().locality(), 8.0);
        assert_eq!(cache.expert_use((&file, 8)), None);
    }

    #[test]
    fn more_first_misses_are_ignored_for_a_larger_cache() {
        // While a cache fills, it has one miss for each of its slots; after that, nine of ten uses hit.
        let learned = |slots: u64| {
            let mut meter = ExpertMeter::new(0.25, slots, None);
            for _ in 0..WARM_UP_USES_PER_SLOT {
                meter.add(ExpertUses { hits: 0, misses: slots });
            }
            meter.add(ExpertUses { hits: 9 * MIN_USES, misses: MIN_USES });
            meter.locality().unwrap()
        };
        assert_eq!([learned(400), learned(40_000)], [learned(0); 2]);
    }

    #[test]
    fn a_learned_locality_outlives_a_placement_without_a_cache() {
        let counters = GenerationCounters::default();
        let mut meter = ExpertMeter::new(0.25, 0, None);
        meter.add(ExpertUses { hits: 3 * MIN_USES, misses: MIN_USES });
        let learned = meter.locality();
        assert!(learned.is_some());
        counters.experts_metered_by(Some(meter));
        assert_eq!(counters.expert_locality(), learned);
        counters.experts_metered_by(None);
        assert_eq!(counters.expert_locality(), learned);
        // Until a new cache has seen enough uses, the locality of the last cache applies.
        let empty = ExpertMeter::new(0.5, 0, None);
        counters.experts_metered_by(Some(empty));
        assert_eq!(counters.expert_locality(), learned);
    }
}
