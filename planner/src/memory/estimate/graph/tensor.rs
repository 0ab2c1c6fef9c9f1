//! The tensors of a graph, as far as memory is concerned: `ggml_tensor` without its data.

use crate::gguf::TensorType;

/// A tensor of one [`Graph`](super::ops::Graph).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(u32);

impl Id {
    /// No tensor: `NULL`.
    pub(super) const NONE: Self = Self(u32::MAX);

    pub(super) fn new(index: usize) -> Self {
        // A graph has some thousands of tensors.
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The tensor made so many after this one.
    pub(super) fn after(self, n: usize) -> Self {
        Self::new(self.index() + n)
    }

    pub(super) fn get(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// `GGML_MAX_SRC` is 10; the operations that occur here take up to seven.
pub(super) const MAX_SRC: usize = 7;

/// The operations that decisions depend on; all others are [`Other`](Op::Other).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// `GGML_OP_NONE`: weights, caches, inputs, and copies between devices.
    None,
    /// `VIEW`, `RESHAPE`, `PERMUTE`, `TRANSPOSE`: no computation (ggml-backend.cpp, `ggml_is_view_op`).
    View,
    GetRows,
    SetRows,
    MulMat,
    MulMatId,
    Rope,
    FlashAttn,
    Argsort,
    /// What may overwrite an operand (ggml-alloc.c, `ggml_op_can_inplace`), `ROPE` aside.
    InPlace,
    Other,
}

impl Op {
    pub(super) const fn can_inplace(self) -> bool {
        matches!(self, Self::InPlace | Self::Rope)
    }
}

/// Memory that exists before the graph does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// A GPU's own.
    Gpu(u8),
    /// The host's, pinned or not.
    Host,
    /// The host's, in an order that only the CPU reads (`CPU_REPACK`): no host buffer to ggml.
    Repacked,
}

/// A backend of the scheduler: the GPUs in order, then the CPU, whose number is that of the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backend(u8);

impl Backend {
    /// Not chosen yet: -1.
    pub(super) const NONE: Self = Self(u8::MAX);

    /// llama.cpp takes 15 GPUs at most (`GGML_SCHED_MAX_BACKENDS`).
    pub(super) fn new(index: usize) -> Self {
        Self(u8::try_from(index).unwrap_or(u8::MAX))
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn is_chosen(self) -> bool {
        self != Self::NONE
    }
}

impl Memory {
    pub(super) fn gpu(index: usize) -> Self {
        Self::Gpu(u8::try_from(index).unwrap_or(u8::MAX))
    }
}

/// Where a tensor's data lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// In a compute buffer, or nowhere of its own (a view).
    Graph,
    /// Among the weights (`GGML_BACKEND_BUFFER_USAGE_WEIGHTS`).
    Weights(Memory),
    /// In a cache.
    Cache(Memory),
}

impl Home {
    pub(super) const fn memory(self) -> Option<Memory> {
        match self {
            Self::Graph => None,
            Self::Weights(memory) | Self::Cache(memory) => Some(memory),
        }
    }
}

/// `ggml_tensor`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor {
    pub(super) op: Op,
    pub(super) ty: TensorType,
    /// Elements along each dimension, innermost first.
    pub(super) ne: [u64; 4],
    /// Bytes from one element, row, ... to the next.
    pub(super) nb: [u64; 4],
    /// The tensor whose data this one looks at: never itself a view.
    pub(super) view_src: Id,
    pub(super) src: [Id; MAX_SRC],
    pub(super) home: Home,
    /// `GGML_TENSOR_FLAG_INPUT`.
    pub(super) input: bool,
    /// `GGML_TENSOR_FLAG_OUTPUT`.
    pub(super) output: bool,
    /// Whether the graph holds it.
    pub(super) visited: bool,
    /// The backend that computes it, once one is chosen.
    pub(super) backend: Backend,
}

impl Tensor {
    /// A tensor whose elements lie side by side.
    pub(super) fn new(op: Op, ty: TensorType, ne: [u64; 4]) -> Self {
        let row = ty.row_bytes(ne[0]);
        let plane = row.saturating_mul(ne[1]);
        Self {
            op,
            ty,
            ne,
            nb: [ty.type_size(), row, plane, plane.saturating_mul(ne[2])],
            view_src: Id::NONE,
            src: [Id::NONE; MAX_SRC],
            home: Home::Graph,
            input: false,
            output: false,
            visited: false,
            backend: Backend::NONE,
        }
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = Id> + use<> {
        self.src.into_iter().filter_map(Id::get)
    }

    pub(super) fn is_view(&self) -> bool {
        self.view_src != Id::NONE
    }

    pub(super) fn elements(&self) -> u64 {
        self.ne.iter().fold(1, |all, &n| all.saturating_mul(n))
    }

    /// `ggml_nbytes`: from the first byte to the last, gaps included.
    pub(super) fn bytes(&self) -> u64 {
        if self.ne.contains(&0) {
            return 0;
        }
        let block = self.ty.block_size();
        let (first, from) = if block == 1 {
            (self.ty.type_size(), 0)
        } else {
            (self.ne[0].saturating_mul(self.nb[0]) / block, 1)
        };
        (from..4).fold(first, |bytes, i| {
            bytes.saturating_add((self.ne[i] - 1).saturating_mul(self.nb[i]))
        })
    }

    /// `ggml_is_contiguous`.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut next = self.ty.type_size();
        if self.ne[0] != self.ty.block_size() && self.nb[0] != next {
            return false;
        }
        next = next.saturating_mul(self.ne[0] / self.ty.block_size());
        for i in 1..4 {
            if self.ne[i] != 1 {
                if self.nb[i] != next {
                    return false;
                }
                next = next.saturating_mul(self.ne[i]);
            }
        }
        true
    }

    /// `ggml_are_same_layout`.
    pub(super) fn same_layout(&self, other: &Self) -> bool {
        self.ty == other.ty && self.ne == other.ne && self.nb == other.nb
    }

    /// Tokens that the operation works on, by which GPUs decide whether to borrow weights for it
    /// (ggml-cuda.cu:5739, `get_op_batch_size`).
    pub(super) fn batch(&self) -> u64 {
        match self.op {
            Op::GetRows => 0,
            Op::MulMat => self.ne[1],
            Op::MulMatId | Op::Rope => self.ne[2],
            _ => self.ne[1..]
                .iter()
                .fold(1, |all: u64, &n| all.saturating_mul(n)),
        }
    }
}
