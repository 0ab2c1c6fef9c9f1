//! The cache of experts on GPUs (`moe_cache_size`): which experts it can cache, how many of them at once, and how many
//! bytes it needs. The arithmetic is that of the constructor in llama-moe-cache.cpp.
//!
//! Layers on the same GPU whose experts have the same types and shapes share their slots. A slot holds one expert of
//! one layer: a part of each of the layer's expert tensors.

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::profile::Weight;

use super::assignment::{Assignment, Place};
use super::weights::WeightTable;

/// The expert tensors of a block, in llama.cpp's order (`llama_moe_cache_layer_experts`).
const TENSORS: [&str; 4] = ["ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// Alignment of the host's buffer of slots (`ggml_backend_cpu_buffer_type_get_alignment`).
const HOST_ALIGNMENT: u64 = 32;

/// One expert tensor: its type and shape, and the bytes of each expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExpertTensor {
    ty: TensorType,
    shape: [u64; 4],
    each: u64,
}

/// The expert tensors of a block, if all of them are in plain memory of the host; otherwise empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostExperts {
    tensors: [Option<ExpertTensor>; TENSORS.len()],
    bytes: u64,
    is_elsewhere: bool,
}

impl HostExperts {
    /// Adds a weight of the block, if it is an expert tensor.
    pub(super) fn add(&mut self, weight: &Weight, is_on_host: bool) {
        let stem = weight.name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
        let Some(index) = stem.and_then(|stem| TENSORS.iter().position(|tensor| *tensor == stem)) else { return };
        self.is_elsewhere |= !is_on_host;
        let count = weight.shape[2].max(1);
        self.tensors[index] = Some(ExpertTensor { ty: weight.ty, shape: weight.shape, each: weight.bytes / count });
        self.bytes = self.bytes.saturating_add(weight.bytes);
    }

    /// Empties a block if some of its experts are elsewhere.
    pub(super) fn finish(&mut self) {
        if self.is_elsewhere {
            *self = Self::default();
        }
    }

    const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The number of experts in the block.
    fn count(&self) -> u64 {
        self.tensors.iter().flatten().next().map_or(0, |tensor| tensor.shape[2])
    }

    /// Bytes of this many slots by the rules of a backend, which may pad the last row of a tensor. llama.cpp ignores
    /// the padding when it chooses the number of slots, and also in a load without data.
    fn allocated(&self, slots: u64, rules: &BackendRules) -> u64 {
        let tensor = |tensor: &ExpertTensor| {
            let bytes = tensor.each.saturating_mul(slots.saturating_add(1));
            rules.alloc(tensor.ty, tensor.shape[0], bytes)
        };
        self.tensors.iter().flatten().map(tensor).fold(0, u64::saturating_add)
    }

    /// Bytes of this many slots and one more, because kernels may read past the last expert.
    fn slots(&self, slots: u64, alignment: u64) -> u64 {
        let tensor = |tensor: &ExpertTensor| {
            let bytes = tensor.each.saturating_mul(slots.saturating_add(1));
            bytes.checked_next_multiple_of(alignment.max(1)).unwrap_or(u64::MAX)
        };
        self.tensors.iter().flatten().map(tensor).fold(0, u64::saturating_add)
    }
}

/// Layers that share their slots.
struct Group<'t> {
    gpu: usize,
    experts: &'t HostExperts,
    layers: u64,
    bytes: u64,
}

/// A cache of experts: its bytes and its contents.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ExpertCache {
    /// Bytes on each GPU.
    pub gpus: Vec<u64>,
    /// The part of each GPU's bytes that a load without data ignores: the padding of the last rows.
    pub padding: Vec<u64>,
    /// Bytes on the host: the slot numbers of each layer's experts.
    pub host: u64,
    /// Bytes of the experts on the host that the cache could hold.
    pub experts: u64,
    /// The share of these experts that the cache holds at once, 0 to 1.
    pub share: f64,
    /// The number of experts that the cache holds at once over all GPUs. An expert belongs to one layer.
    pub slots: u64,
    /// The smallest cache, in bytes over all GPUs, with which llama.cpp serves every layer that has such experts; 0 if
    /// no layer has any.
    pub least: u64,
}

impl ExpertCache {
    /// The cache of `size` bytes for layers in these places. A token uses up to `n_used` experts of a layer.
    pub(super) fn new(table: &WeightTable, n_used: u32, size: u64, assignment: &Assignment, n_gpus: usize) -> Self {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (experts, &place) in table.experts_on_host().iter().zip(&assignment.blocks) {
            let Place::Gpu(gpu) = place else { continue };
            if experts.is_empty() || gpu >= n_gpus {
                continue;
            }
            match groups.iter_mut().find(|group| group.gpu == gpu && group.experts.tensors == experts.tensors) {
                Some(group) => {
                    group.layers += 1;
                    group.bytes = group.bytes.saturating_add(experts.bytes);
                }
                None => groups.push(Group { gpu, experts, layers: 1, bytes: experts.bytes }),
            }
        }
        let mut cache = Self { gpus: vec![0; n_gpus], padding: vec![0; n_gpus], ..Self::default() };
        let bytes_of =
            |gpu: usize| groups.iter().filter(|group| group.gpu == gpu).map(|group| group.bytes).sum::<u64>();
        // The proportions in a plan are the numbers of layers on each GPU.
        let layers_on = |gpu: usize| assignment.layers().filter(|place| *place == Place::Gpu(gpu)).count() as f64;
        let split = |gpu: usize| if n_gpus == 1 { 1.0 } else { layers_on(gpu) };
        let all: f64 = (0..n_gpus).filter(|&gpu| bytes_of(gpu) > 0).map(split).sum();
        let mut held = 0.0;
        for group in &groups {
            let of_gpu = bytes_of(group.gpu) as f64;
            let alignment = table.rules(group.gpu).map_or(1, |rules| rules.alignment);
            let needed = group.experts.slots(n_used.into(), alignment);
            // The part of the whole cache that this group gets.
            let part = split(group.gpu) / all * group.bytes as f64 / of_gpu;
            cache.least = cache.least.max((needed as f64 / part).ceil() as u64);
            cache.experts = cache.experts.saturating_add(group.bytes);
            // The order of the operations is llama.cpp's, so that rounding gives the same result.
            let budget = (size as f64 * split(group.gpu) / all * group.bytes as f64 / of_gpu) as u64;
            let most = group.layers.saturating_mul(group.experts.count());
            let slots = most_slots(group.experts, most, budget, alignment);
            if size == 0 || slots < n_used.into() {
                continue;
            }
            let counted = group.experts.slots(slots, alignment);
            let bytes = table.rules(group.gpu).map_or(counted, |rules| group.experts.allocated(slots, rules));
            cache.gpus[group.gpu] = cache.gpus[group.gpu].saturating_add(bytes);
            cache.padding[group.gpu] = cache.padding[group.gpu].saturating_add(bytes.saturating_sub(counted));
            let of_layer = (group.experts.count() * 4).next_multiple_of(HOST_ALIGNMENT);
            cache.host = cache.host.saturating_add(of_layer * group.layers);
            cache.slots = cache.slots.saturating_add(slots);
            held += group.bytes as f64 * (slots as f64 / most.max(1) as f64);
        }
        cache.share = if cache.experts > 0 { held / cache.experts as f64 } else { 0.0 };
        cache
    }
}

/// The largest number of slots, at most `most`, that fits in `budget` bytes.
fn most_slots(experts: &HostExperts, most: u64, budget: u64, alignment: u64) -> u64 {
    let (mut fits, mut fails) = (0, most.saturating_add(1));
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        match experts.slots(middle, alignment) <= budget {
            true => fits = middle,
            false => fails = middle,
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::{HostExperts, most_slots};
    use crate::gguf::TensorType;
    use crate::profile::{Weight, WeightRole};

    fn weight(name: &str, each: u64, count: u64) -> Weight {
        let (shape, bytes) = ([each / 4, 1, count, 1], each * count);
        Weight { name: name.into(), ty: TensorType::F32, shape, bytes, role: WeightRole::Experts }
    }

    #[test]
    fn slots_are_counted_with_one_more_and_each_tensor_is_aligned() {
        let mut experts = HostExperts::default();
        experts.add(&weight("blk.0.ffn_up_exps.weight", 100, 8), true);
        experts.add(&weight("blk.0.ffn_down_exps.weight", 60, 8), true);
        // Biases and weights of other kinds are not expert tensors.
        experts.add(&weight("blk.0.ffn_up_exps.bias", 4, 8), true);
        experts.add(&weight("blk.0.ffn_up_shexp.weight", 4, 1), true);
        experts.finish();
        assert_eq!((experts.bytes, experts.count()), (1280, 8));
        assert_eq!(experts.slots(1, 32), 224 + 128);
        assert_eq!([0, 351, 352, 10_000].map(|budget| most_slots(&experts, 8, budget, 32)), [0, 0, 1, 8]);
    }

    #[test]
    fn a_block_with_an_expert_tensor_elsewhere_is_not_cached() {
        let mut experts = HostExperts::default();
        experts.add(&weight("blk.0.ffn_up_exps.weight", 100, 8), true);
        experts.add(&weight("blk.0.ffn_down_exps.weight", 60, 8), false);
        experts.finish();
        assert!(experts.is_empty());
    }
}
