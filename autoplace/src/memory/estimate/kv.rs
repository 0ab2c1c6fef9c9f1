//! Bytes of keys and values per device: exact for a plain cache (llama-kv-cache.cpp:60-280).

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::{LayerState, ModelProfile};

use super::{Assignment, Place};

/// The bytes of one block's cache on each device.
#[derive(Debug, Clone, Default)]
struct Cache {
    gpus: Vec<u64>,
    host: u64,
    /// Elements of keys and of values.
    elements: (u64, u64),
}

/// The bytes of caches of one assignment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KvCost {
    /// On each GPU.
    pub(super) gpus: Vec<u64>,
    /// On the host.
    pub(super) host: u64,
    /// Elements of keys and of values of the largest block.
    pub(super) largest_elements: (u64, u64),
    /// Bytes of the largest cache on the host.
    pub(super) largest_host: u64,
}

/// A model's caches, one per block, for the GPUs at hand.
#[derive(Debug, Clone)]
pub(super) struct KvTable {
    blocks: Vec<Cache>,
    offload: bool,
    n_gpus: usize,
}

impl KvTable {
    pub(super) fn new(
        profile: &ModelProfile,
        rules: &[BackendRules],
        params: &ContextParams,
        sizes: &ContextSizes,
    ) -> Self {
        let layers = layers(profile);
        // Without flash attention values are stored transposed, as wide as the widest block's (llama-kv-cache.cpp:210).
        // AUTO counts as with: the cache is made before llama.cpp finds out (llama-context.cpp:232, :399, :560).
        let widest_v = layers.iter().flatten().map(|layer| layer.v).max();
        let transposed = params.flash_attn == FlashAttention::Off;
        let blocks = layers
            .iter()
            .map(|layer| {
                let Some(layer) = layer else {
                    return Cache {
                        gpus: vec![0; rules.len()],
                        ..Cache::default()
                    };
                };
                let v = widest_v.filter(|_| transposed).unwrap_or(layer.v);
                let (k, v) = (u64::from(layer.k), u64::from(v));
                let rows = sizes.cells.saturating_mul(sizes.streams);
                let bytes = |rules: &BackendRules| {
                    let one = |ty: TensorType, ne0: u64| {
                        rules.alloc(ty, ne0, ty.row_bytes(ne0).saturating_mul(rows))
                    };
                    one(params.type_k.tensor_type(), k)
                        .saturating_add(one(params.type_v.tensor_type(), v))
                };
                Cache {
                    gpus: rules.iter().map(bytes).collect(),
                    host: bytes(&BackendRules::HOST),
                    elements: (k.saturating_mul(rows), v.saturating_mul(rows)),
                }
            })
            .collect();
        Self {
            blocks,
            offload: params.offload_kqv,
            n_gpus: rules.len(),
        }
    }

    /// Bytes of the caches under this assignment: each where its block is, or all on the host.
    pub(super) fn cost(&self, assignment: &Assignment) -> KvCost {
        let mut cost = KvCost {
            gpus: vec![0; self.n_gpus],
            ..KvCost::default()
        };
        for (cache, &place) in self.blocks.iter().zip(&assignment.blocks) {
            match place {
                Place::Gpu(gpu) if self.offload => {
                    cost.gpus[gpu] = cost.gpus[gpu].saturating_add(cache.gpus[gpu]);
                }
                _ => {
                    cost.host = cost.host.saturating_add(cache.host);
                    cost.largest_host = cost.largest_host.max(cache.host);
                }
            }
            let (k, v) = cost.largest_elements;
            cost.largest_elements = (k.max(cache.elements.0), v.max(cache.elements.1));
        }
        cost
    }
}

/// What each block keeps of a token. Where the law is unknown: as if every block kept everything, which is more than sliding
/// windows, compressed keys and reused layers take, but says nothing about recurrent states.
fn layers(profile: &ModelProfile) -> Vec<Option<LayerState>> {
    match profile.state.layers() {
        Some(layers) => layers.to_vec(),
        None => profile.hparams.every_layer_in_full(),
    }
}
