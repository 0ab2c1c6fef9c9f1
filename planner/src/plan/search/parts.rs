//! The parts of blocks that may stay on the host while the block is on a GPU.

use std::collections::{BTreeMap, HashSet};

use crate::memory::{Estimate, Place, TensorOverride};
use crate::plan::HostParts;
use crate::plan::speed::{Matrices, matrices};
use crate::profile::{ModelProfile, Weight, WeightRole};

/// Weights of a block that move together: `ffn_down_exps.weight` and its bias.
#[derive(Debug, Clone)]
pub(super) struct Part<'a> {
    pub(super) block: u32,
    /// The stems of the weights' names: `ffn_down_exps`.
    stems: Vec<&'a str>,
    pub(super) weights: Vec<&'a Weight>,
    /// The same weights, grouped by type.
    pub(super) matrices: Vec<Matrices>,
    /// Bytes of the weights in the file.
    pub(super) bytes: u64,
    /// Bytes of the largest weights that begin a feed-forward step, and of the largest weights that end one.
    steps: [u64; 2],
}

impl<'a> Part<'a> {
    fn new(profile: &ModelProfile, block: u32, stems: Vec<(&'a str, Vec<&'a Weight>)>) -> Self {
        let mut steps = [0_u64; 2];
        for (stem, weights) in &stems {
            let step = &mut steps[usize::from(stem.contains("_down"))];
            *step = Weight::sum(weights.iter().copied()).max(*step);
        }
        let (stems, weights): (Vec<&str>, Vec<Vec<&Weight>>) = stems.into_iter().unzip();
        let weights = weights.concat();
        Self {
            block,
            stems,
            matrices: matrices(profile, weights.iter().copied()),
            bytes: Weight::sum(weights.iter().copied()),
            steps,
            weights,
        }
    }
}

/// The estimate with these parts of blocks on the host. Overrides make llama.cpp keep a single copy of the graph.
pub(super) fn with_parts_on_host<'p>(estimate: &Estimate, parts: impl Iterator<Item = &'p Part<'p>>) -> Estimate {
    let weights = parts.flat_map(|part| &part.weights);
    let names: HashSet<&str> = weights.map(|weight| &*weight.name).collect();
    estimate.clone().placing(&|name| names.contains(name).then_some(Place::Host))
}

/// All parts that may stay on the host, in the order of the blocks.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts<'a> {
    /// The kind of parts that may stay on the host; never [`HostParts::Auto`].
    pub(super) wanted: HostParts,
    pub(super) all: Vec<Part<'a>>,
    /// Index of the first part of each block, and the number of parts as the last entry.
    begins: Vec<usize>,
}

impl<'a> Parts<'a> {
    /// Makes one part of all experts of a block, because a cache on a GPU serves only blocks that have no experts on
    /// the GPU.
    pub(super) fn whole_experts(profile: &'a ModelProfile) -> Self {
        Self::with(profile, HostParts::Experts, |stems| if stems.is_empty() { Vec::new() } else { vec![stems] })
    }

    pub(super) fn new(profile: &'a ModelProfile, wanted: HostParts) -> Self {
        let wanted = match (wanted, &profile.hparams.experts) {
            (HostParts::Auto, Some(_)) => HostParts::Experts,
            (HostParts::Auto, None) => HostParts::FeedForward,
            (wanted, _) => wanted,
        };
        Self::with(profile, wanted, |stems| stems.into_iter().map(|stem| vec![stem]).collect())
    }

    /// The parts of the wanted kind. `grouped` groups the stems of a block, each with its weights, into parts.
    fn with(
        profile: &'a ModelProfile,
        wanted: HostParts,
        grouped: impl Fn(Vec<(&'a str, Vec<&'a Weight>)>) -> Vec<Vec<(&'a str, Vec<&'a Weight>)>>,
    ) -> Self {
        let mut parts = Self { wanted, ..Self::default() };
        for (block, weights) in profile.weights.blocks.iter().enumerate() {
            parts.begins.push(parts.all.len());
            let block = u32::try_from(block).unwrap_or(u32::MAX);
            // In the reverse order of their names, the matrices are up, gate, down. The last part of a block is the
            // first to stay on the host, as in llama.cpp's own fit.
            let mut stems: BTreeMap<&str, Vec<&Weight>> = BTreeMap::new();
            for weight in weights {
                if let Some(stem) = stem(weight, wanted) {
                    stems.entry(stem).or_default().push(weight);
                }
            }
            let stems = stems.into_iter().rev().collect();
            parts.all.extend(grouped(stems).into_iter().map(|stems| Part::new(profile, block, stems)));
        }
        parts.begins.push(parts.all.len());
        parts
    }

    /// For each part, whether it is the last of its block.
    pub(super) fn are_last(&self) -> impl Iterator<Item = bool> {
        let next = self.all.iter().skip(1).map(|part| Some(part.block)).chain([None]);
        self.all.iter().zip(next).map(|(part, next)| next != Some(part.block))
    }

    /// Index of the first part of `block`; for a number after the last block, the number of all parts.
    pub(super) fn begin(&self, block: u32) -> usize {
        let last = self.begins.len() - 1;
        self.begins[(block as usize).min(last)]
    }

    /// The number of parts in the blocks from `begin` on and before `end`.
    pub(super) fn count(&self, begin: u32, end: u32) -> u32 {
        u32::try_from(self.begin(end) - self.begin(begin)).unwrap_or(u32::MAX)
    }

    /// The overrides that keep parts on the host: for each `(end, count)`, the last `count` parts before block `end`.
    /// Blocks with the same parts share a pattern, because llama.cpp compiles each pattern again for every tensor.
    pub(super) fn overrides(&self, kept: &[(u32, u32)]) -> Vec<TensorOverride> {
        let kept: Vec<&Part<'_>> = self.kept(kept).collect();
        let mut blocks_of: BTreeMap<Vec<&str>, Vec<String>> = BTreeMap::new();
        for parts in kept.chunk_by(|a, b| a.block == b.block) {
            let mut stems: Vec<&str> = parts.iter().flat_map(|part| part.stems.iter().copied()).collect();
            stems.sort_unstable();
            blocks_of.entry(stems).or_default().push(parts[0].block.to_string());
        }
        let patterns = blocks_of.into_iter().map(|(stems, blocks)| {
            let [blocks, stems] = [blocks.join("|"), stems.join("|")].map(|list| match list.contains('|') {
                true => format!("({list})"),
                false => list,
            });
            TensorOverride::new(format!(r"^blk\.{blocks}\.{stems}\."), Place::Host)
        });
        patterns.collect()
    }

    /// Bytes of the largest of these parts: of the largest part that begins a feed-forward step, and of the largest
    /// part that ends one.
    pub(super) fn largest(&self, kept: &[(u32, u32)]) -> [u64; 2] {
        self.kept(kept).fold([0; 2], |[begins, ends], part| [part.steps[0].max(begins), part.steps[1].max(ends)])
    }

    /// The parts on the host: for each `(end, count)`, the last `count` parts before block `end`.
    pub(super) fn kept(&self, kept: &[(u32, u32)]) -> impl Iterator<Item = &Part<'a>> {
        kept.iter().flat_map(|&(end, count)| {
            let end = self.begin(end);
            &self.all[end.saturating_sub(count as usize)..end]
        })
    }
}

/// The stem of the part to which a weight belongs, if the part may stay on the host.
fn stem(weight: &Weight, wanted: HostParts) -> Option<&str> {
    let may = match (weight.role, wanted) {
        (_, HostParts::None) => false,
        (WeightRole::Experts, _) => true,
        (WeightRole::FeedForward | WeightRole::SharedExperts, HostParts::FeedForward) => weight.is_matrix(),
        _ => false,
    };
    let (_, rest) = weight.name.strip_prefix("blk.")?.split_once('.')?;
    let (stem, _) = rest.split_once('.')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (may && stem.chars().all(plain)).then_some(stem)
}
