//! The parts of blocks that may stay on the host while the block is on a GPU.

use std::collections::BTreeMap;

use crate::memory::{Place, TensorOverride};
use crate::plan::HostParts;
use crate::plan::speed::{Matrices, matrices};
use crate::profile::{ModelProfile, Role, Weight};

/// Weights of a block that belong together: `ffn_down_exps.weight` and its bias.
#[derive(Debug, Clone)]
pub(super) struct Part<'a> {
    pub(super) block: u32,
    /// What its names have in common: `ffn_down_exps`.
    stem: &'a str,
    pub(super) weights: Vec<&'a Weight>,
    /// The same by type.
    pub(super) matrices: Vec<Matrices>,
    /// Bytes of its weights in the file.
    pub(super) bytes: u64,
    /// Whether it ends a feed-forward step; else it begins one.
    ends: bool,
}

/// All parts that may stay on the host, block after block.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts<'a> {
    /// Which may; never [`HostParts::Auto`].
    pub(super) wanted: HostParts,
    pub(super) all: Vec<Part<'a>>,
    /// Where those of each block begin, and the end.
    begins: Vec<usize>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(profile: &'a ModelProfile, wanted: HostParts) -> Self {
        let wanted = match (wanted, &profile.hparams.experts) {
            (HostParts::Auto, Some(_)) => HostParts::Experts,
            (HostParts::Auto, None) => HostParts::FeedForward,
            (wanted, _) => wanted,
        };
        let mut parts = Self { wanted, ..Self::default() };
        for (block, weights) in profile.weights.blocks.iter().enumerate() {
            parts.begins.push(parts.all.len());
            let block = u32::try_from(block).unwrap_or(u32::MAX);
            // Against the order of their names: up, gate, down. The last ones are the first to stay on the host, as
            // with llama.cpp's own fit.
            let mut stems: BTreeMap<&str, Vec<&Weight>> = BTreeMap::new();
            for weight in weights {
                if let Some(stem) = stem(weight, wanted) {
                    stems.entry(stem).or_default().push(weight);
                }
            }
            parts.all.extend(stems.into_iter().rev().map(|(stem, weights)| Part {
                block,
                stem,
                matrices: matrices(profile, weights.iter().copied()),
                bytes: Weight::sum(weights.iter().copied()),
                ends: stem.contains("_down"),
                weights,
            }));
        }
        parts.begins.push(parts.all.len());
        parts
    }

    /// Whether each is the last of its block.
    pub(super) fn are_last(&self) -> impl Iterator<Item = bool> {
        let next = self.all.iter().skip(1).map(|part| Some(part.block)).chain([None]);
        self.all.iter().zip(next).map(|(part, next)| next != Some(part.block))
    }

    /// Where the parts of this block begin, or, past the last block, where they end.
    pub(super) fn begin(&self, block: u32) -> usize {
        let last = self.begins.len() - 1;
        self.begins[(block as usize).min(last)]
    }

    /// Parts in these blocks.
    pub(super) fn count(&self, begin: u32, end: u32) -> u32 {
        u32::try_from(self.begin(end) - self.begin(begin)).unwrap_or(u32::MAX)
    }

    /// The overrides that keep the last parts of some blocks on the host: for each `(end, count)` so many parts
    /// before this block. One pattern for all blocks with the same parts: llama.cpp compiles each pattern again
    /// for every tensor.
    pub(super) fn overrides(&self, kept: &[(u32, u32)]) -> Vec<TensorOverride> {
        let kept: Vec<&Part<'_>> = self.kept(kept).collect();
        let mut blocks_of: BTreeMap<Vec<&str>, Vec<String>> = BTreeMap::new();
        for parts in kept.chunk_by(|a, b| a.block == b.block) {
            let mut stems: Vec<&str> = parts.iter().map(|part| part.stem).collect();
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

    /// The largest of these parts: of those that begin a feed-forward step, and of those that end one.
    pub(super) fn largest(&self, kept: &[(u32, u32)]) -> [u64; 2] {
        self.kept(kept).fold([0; 2], |mut largest, part| {
            let largest_of = &mut largest[usize::from(part.ends)];
            *largest_of = part.bytes.max(*largest_of);
            largest
        })
    }

    /// These parts.
    pub(super) fn kept(&self, kept: &[(u32, u32)]) -> impl Iterator<Item = &Part<'a>> {
        kept.iter().flat_map(|&(end, count)| {
            let end = self.begin(end);
            &self.all[end.saturating_sub(count as usize)..end]
        })
    }
}

/// The part that a weight belongs to, if it may stay on the host.
fn stem(weight: &Weight, wanted: HostParts) -> Option<&str> {
    let may = match (weight.role, wanted) {
        (_, HostParts::None) => false,
        (Role::Experts, _) => true,
        (Role::FeedForward | Role::SharedExperts, HostParts::FeedForward) => weight.is_matrix(),
        _ => false,
    };
    let (_, rest) = weight.name.strip_prefix("blk.")?.split_once('.')?;
    let (stem, _) = rest.split_once('.')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (may && stem.chars().all(plain)).then_some(stem)
}
