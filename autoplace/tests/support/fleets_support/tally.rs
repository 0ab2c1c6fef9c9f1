//! How many cases were of which kind, so that 1,000 cases are not 1,000 times the same.

use std::collections::BTreeMap;
use std::fmt;

use autoplace::memory::KvType;
use autoplace::plan::PlacementKind;

use super::case::Case;
use super::checks::Outcome;
use super::models::Models;

/// What there must be of, and in how many cases of a thousand.
const LEAST: [(&str, u64); 14] = [
    ("several GPUs", 100),
    ("three or four GPUs", 15),
    ("all layers on GPUs", 100),
    ("some layers on GPUs", 100),
    ("host only", 50),
    ("host only, GPUs there", 20),
    ("experts or feed-forward matrices on the host", 30),
    ("a single copy of the graph", 10),
    ("cache on the host", 30),
    ("quantised cache", 100),
    ("fewer tokens at once", 30),
    ("grown context", 50),
    ("a GPU in the host's memory", 10),
    // Neither wanted nor unexpected.
    ("compute buffers that grew in the warm-up", 0),
];

/// The most refusals, in cases of a thousand.
const MOST_REFUSALS: u64 = 500;

/// Counts of cases.
#[derive(Default)]
pub(crate) struct Tally {
    refused: u64,
    kinds: BTreeMap<&'static str, u64>,
    models: BTreeMap<String, [u64; 2]>,
    gpus: BTreeMap<usize, u64>,
}

impl Tally {
    pub(crate) fn count(&mut self, case: &Case, models: &Models, outcome: &Outcome) {
        let title = case.model(models).title.clone();
        let of_model = self.models.entry(title).or_default();
        let (plan, grew) = match outcome {
            Outcome::Refused => {
                self.refused += 1;
                of_model[1] += 1;
                return;
            }
            Outcome::Loaded { plan, grew } => (plan, *grew),
        };
        of_model[0] += 1;
        let n = plan.gpus().count();
        *self.gpus.entry(n).or_default() += 1;
        let (params, wanted) = (&plan.context, &case.request.params);
        let n_ctx = case.request.context.tokens(&case.model(models).profile);
        let kinds = [
            n > 1,
            n > 2,
            n > 0 && plan.full_offload,
            n > 0 && !plan.full_offload,
            n == 0,
            n == 0 && case.has_gpus(),
            plan.parted_blocks > 0,
            plan.overrides.iter().any(|rule| rule.pattern == "^$"),
            n > 0 && !params.offload_kqv,
            params.type_k != KvType::F16,
            params.n_ubatch < wanted.n_ubatch,
            params.n_ctx > n_ctx,
            plan.gpus().any(|gpu| gpu.kind == PlacementKind::SharedGpu),
            grew,
        ];
        for ((name, _), holds) in LEAST.iter().zip(kinds) {
            *self.kinds.entry(name).or_default() += u64::from(holds);
        }
    }

    /// Kinds of which there were too few.
    pub(crate) fn lacking(&self, cases: u64) -> Vec<&'static str> {
        let of = |name| self.kinds.get(name).copied().unwrap_or_default();
        let mut lacking: Vec<&str> = LEAST
            .iter()
            .filter(|&&(name, least)| of(name) < least * cases / 1000)
            .map(|&(name, _)| name)
            .collect();
        if self.refused > MOST_REFUSALS * cases / 1000 {
            lacking.push("plans");
        }
        lacking
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, [loaded, refused]) in &self.models {
            writeln!(f, "{loaded:5} loaded, {refused:3} refused  {title}")?;
        }
        for (n, count) in &self.gpus {
            writeln!(f, "{count:5} plans on {n} GPUs")?;
        }
        for (name, count) in &self.kinds {
            writeln!(f, "{count:5} {name}")?;
        }
        write!(f, "{:5} refused", self.refused)
    }
}
