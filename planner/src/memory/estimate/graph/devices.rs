//! What the scheduler and the allocator ask the backends: which operations they run, whose memory they reach, and how many bytes a
//! tensor takes there.

mod metal;

use super::ops::Graph;
use super::tensor::{Backend, Home, Id, Memory, Op, Tensor};
use crate::gguf::TensorType;
use crate::machine::Gpu;
use crate::memory::backend::{BackendRules, Family};
use crate::memory::pad;

/// ggml-vulkan.cpp:4219: a buffer of Vulkan has at most so many bytes, unless a single tensor needs more.
const VULKAN_BLOCK: u64 = 1 << 30;

/// From so many tokens on a GPU computes with weights that the host keeps (ggml-cuda.cu:5757, :5928; `GGML_OP_OFFLOAD_MIN_BATCH` changes it).
const BORROW_FROM: u64 = 32;

/// How a backend lays out its compute buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) alignment: u64,
    /// The largest buffer that is asked of it at once.
    pub(super) max_chunk: u64,
    /// Bytes that a buffer is larger than asked for.
    pub(super) extra: u64,
}

/// Attention as far as it decides whether a GPU can fuse it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionShape {
    /// Elements of a key and of a value.
    pub(super) head_k: u64,
    pub(super) head_v: u64,
    /// The fewest queries that share a key, over all blocks.
    pub(super) shared: u64,
    pub(super) type_k: TensorType,
    pub(super) type_v: TensorType,
}

impl AttentionShape {
    /// Whether all GPUs of this family are known to fuse it; some may although this says no.
    pub(super) fn is_fused_by(&self, family: Family) -> bool {
        let Self { head_k, head_v, .. } = *self;
        let common = head_k == head_v && matches!(head_k, 64 | 80 | 96 | 112 | 128 | 256);
        match family {
            // ggml-cuda/fattn.cu:505-700; cells come in multiples of 256.
            Family::Cuda => {
                let heads = match (head_k, head_v) {
                    (40 | 72, _) => head_k == head_v,
                    (192, 128) => self.shared.is_multiple_of(8),
                    (320, 256) => self.shared.is_multiple_of(32),
                    (512, 512) | (576, 512) => self.shared >= 2,
                    _ => common,
                };
                heads && self.types_are(&CUDA_KV)
            }
            // ggml-vulkan.cpp:15475-15521: heads of any multiple of 8.
            Family::Vulkan => {
                let half = TensorType::BF16;
                let heads = head_k.is_multiple_of(8) && head_v.is_multiple_of(8);
                heads && (self.type_k == half) == (self.type_v == half)
            }
            // ggml-metal-device.m:1726-1770; not every chip has bfloat.
            Family::Metal => {
                let heads = common || matches!((head_k, head_v), (192, 128 | 192) | (576, 512));
                heads && self.type_k == self.type_v && self.types_are(&METAL_KV)
            }
            Family::Other => common && self.types_are(&[TensorType::F16]),
        }
    }

    fn types_are(&self, of: &[TensorType]) -> bool {
        of.contains(&self.type_k) && of.contains(&self.type_v)
    }
}

const CUDA_KV: [TensorType; 8] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q5_1,
    TensorType::Q5_0,
    TensorType::Q4_1,
    TensorType::Q4_0,
];

const METAL_KV: [TensorType; 7] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Q8_0,
    TensorType::Q5_1,
    TensorType::Q5_0,
    TensorType::Q4_1,
    TensorType::Q4_0,
];

/// One GPU.
#[derive(Debug, Clone, Copy)]
struct Device {
    rules: BackendRules,
    family: Family,
    /// Whether it runs fused attention.
    fuses: bool,
}

/// The backends of a context: the GPUs and, last, the CPU.
#[derive(Debug, Clone)]
pub(super) struct Devices {
    gpus: Vec<Device>,
}

impl Devices {
    /// GPUs that fuse attention.
    pub(super) fn new(gpus: &[&Gpu]) -> Self {
        let device = |gpu: &&Gpu| Device {
            rules: BackendRules::of_gpu(gpu),
            family: Family::of(&gpu.backend),
            fuses: true,
        };
        Self {
            gpus: gpus.iter().map(device).collect(),
        }
    }

    /// Without fused attention on any GPU.
    pub(super) fn without_fused_attention(mut self) -> Self {
        for gpu in &mut self.gpus {
            gpu.fuses = false;
        }
        self
    }

    /// Whether all of them are known to fuse attention of this shape.
    pub(super) fn fuse(&self, shape: &AttentionShape) -> bool {
        self.gpus.iter().all(|gpu| shape.is_fused_by(gpu.family))
    }

    pub(super) const fn gpus(&self) -> usize {
        self.gpus.len()
    }

    pub(super) const fn backends(&self) -> usize {
        self.gpus.len() + 1
    }

    /// The CPU: the last backend.
    pub(super) fn cpu(&self) -> Backend {
        Backend::new(self.gpus.len())
    }

    /// Whether all of them compute asynchronously and have events, as copies of a graph in flight need
    /// (llama-context.cpp:441-460; ggml-cuda.cu:5226, ggml-vulkan.cpp:15309, ggml-metal.cpp:701).
    pub(super) fn are_asynchronous(&self) -> bool {
        self.gpus.iter().all(|gpu| gpu.family != Family::Other)
    }

    /// `ggml_backend_supports_buft`: a GPU reaches its own memory, the CPU the host's.
    pub(super) fn reaches(&self, backend: Backend, memory: Memory) -> bool {
        match memory {
            Memory::Gpu(gpu) => usize::from(gpu) == backend.index() && backend != self.cpu(),
            Memory::Host | Memory::Repacked => backend == self.cpu(),
        }
    }

    /// `ggml_backend_sched_buffer_supported`: whether a backend reaches a tensor's memory, or that of the backend which computes it.
    pub(super) fn reaches_tensor(&self, backend: Backend, graph: &Graph, id: Id) -> bool {
        let tensor = &graph[id];
        let whole = tensor.view_src.get().map(|whole| &graph[whole]);
        if let Some(memory) = whole.unwrap_or(tensor).home.memory() {
            return self.reaches(backend, memory);
        }
        let computed_by = match whole {
            Some(whole) if !tensor.backend.is_chosen() => whole.backend,
            _ => tensor.backend,
        };
        computed_by == backend
    }

    /// `ggml_backend_supports_op`: the CPU runs everything that occurs here; a GPU what has no operand in another GPU's memory.
    pub(super) fn runs(&self, backend: Backend, graph: &Graph, tensor: &Tensor) -> bool {
        let Some(gpu) = self.gpus.get(backend.index()) else {
            return true;
        };
        if tensor.op == Op::FlashAttn && !gpu.fuses {
            return false;
        }
        tensor
            .sources()
            .all(|source| match graph[source].home.memory() {
                Some(Memory::Gpu(other)) => usize::from(other) == backend.index(),
                _ => true,
            })
    }

    /// `ggml_backend_offload_op`: whether a GPU wants to compute this with a weight of the host
    /// (ggml-cuda.cu:5754, ggml-vulkan.cpp:15997, ggml-metal.cpp:780).
    pub(super) fn borrows(&self, backend: Backend, tensor: &Tensor) -> bool {
        let Some(gpu) = self.gpus.get(backend.index()) else {
            return false;
        };
        let product = matches!(tensor.op, Op::MulMat | Op::MulMatId);
        (product || gpu.family != Family::Metal) && tensor.batch() >= BORROW_FROM
    }

    /// The layout of a backend's compute buffer. The CPU's lies in memory that the first GPU has pinned, if that one pins any
    /// (llama-context.cpp:409-418).
    pub(super) fn layout(&self, backend: Backend) -> Layout {
        let chunk = |family| match family {
            Some(Family::Vulkan) => VULKAN_BLOCK,
            _ => u64::MAX,
        };
        match self.gpus.get(backend.index()) {
            Some(gpu) => Layout {
                alignment: gpu.rules.alignment,
                max_chunk: chunk(Some(gpu.family)),
                extra: 0,
            },
            None => {
                let first = self.gpus.first().map(|gpu| gpu.family);
                Layout {
                    alignment: BackendRules::HOST.alignment,
                    max_chunk: chunk(first),
                    // ggml-vulkan.cpp:13096.
                    extra: if first == Some(Family::Vulkan) { 32 } else { 0 },
                }
            }
        }
    }

    /// `ggml_backend_buft_get_alloc_size`: bytes that a tensor takes in a backend's compute buffer, before alignment.
    pub(super) fn alloc_size(&self, graph: &Graph, id: Id, backend: Backend) -> u64 {
        let tensor = &graph[id];
        let bytes = tensor.bytes();
        let Some(gpu) = self.gpus.get(backend.index()) else {
            return bytes;
        };
        if gpu.family == Family::Metal {
            return metal::alloc_size(graph, tensor, bytes);
        }
        let size = if gpu.rules.converts_kv && tensor.op == Op::FlashAttn {
            converting(graph, tensor, bytes)
        } else {
            bytes
        };
        size.saturating_add(gpu.rules.row_rest(tensor.ty, tensor.ne[0]))
    }

    /// Whether the tensor is a weight in memory that this backend does not reach.
    pub(super) fn is_foreign_weight(&self, backend: Backend, tensor: &Tensor) -> bool {
        match tensor.home {
            Home::Weights(memory) => !self.reaches(backend, memory),
            _ => false,
        }
    }
}

/// CUDA converts keys and values that are not F16 behind the result of fused attention
/// (ggml-cuda/fattn.cu:722-756, fattn-common.cuh:55-85).
fn converting(graph: &Graph, tensor: &Tensor, bytes: u64) -> u64 {
    let [queries, keys, values] = [0, 1, 2].map(|i| &graph[tensor.src[i]]);
    // One token at a time runs on the vector kernel, which reads the cache as it is (but converts F32).
    let width = queries.ne[0];
    let vector = queries.ne[1] == 1 && width <= 256 && width.is_multiple_of(64) && width != 192;
    let converts =
        |source: &Tensor| source.ty != TensorType::F16 && (!vector || source.ty == TensorType::F32);
    let append = |end: u64, source: &Tensor| {
        pad(end, 128).saturating_add(source.elements().saturating_mul(2))
    };
    let mut end = bytes;
    if converts(keys) {
        end = append(end, keys);
    }
    if converts(values) && !shares_memory(graph, tensor) {
        end = append(end, values);
    }
    end
}

/// Whether the values of this attention are a part of the keys, as with MLA: fattn-common.cuh:63, ggml-metal-ops.cpp:3213. Both
/// begin where the cache does.
fn shares_memory(graph: &Graph, tensor: &Tensor) -> bool {
    let [_, keys, values, ..] = tensor.src;
    match graph[values].view_src.get() {
        Some(source) => source == keys || source == graph[keys].view_src,
        None => false,
    }
}
