//! The operations of ggml that llama.cpp's graphs are made of: each yields the tensor that ggml.c makes of it, with the same shape,
//! operands and views.

use super::tensor::{Backend, Home, Id, MAX_SRC, Op, Tensor};
use crate::gguf::TensorType;

/// A graph: `ggml_cgraph` and the tensors made for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Graph {
    tensors: Vec<Tensor>,
    /// What is computed, in order.
    pub(super) nodes: Vec<Id>,
    /// Weights, caches and inputs, in the order in which they were first met.
    pub(super) leafs: Vec<Id>,
}

impl std::ops::Index<Id> for Graph {
    type Output = Tensor;

    fn index(&self, id: Id) -> &Tensor {
        &self.tensors[id.index()]
    }
}

impl std::ops::IndexMut<Id> for Graph {
    fn index_mut(&mut self, id: Id) -> &mut Tensor {
        &mut self.tensors[id.index()]
    }
}

impl Graph {
    /// Forgets everything but the memory it took.
    pub(super) fn clear(&mut self) {
        self.tensors.clear();
        self.nodes.clear();
        self.leafs.clear();
    }

    /// Tensors made so far.
    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }

    pub(super) fn add_tensor(&mut self, tensor: Tensor) -> Id {
        self.tensors.push(tensor);
        Id::new(self.tensors.len() - 1)
    }

    fn op(&mut self, op: Op, ty: TensorType, ne: [u64; 4], sources: &[Id]) -> Id {
        let mut tensor = Tensor::new(op, ty, ne);
        tensor.src[..sources.len()].copy_from_slice(sources);
        self.add_tensor(tensor)
    }

    /// An operation whose result has the type and shape of its first operand: `ggml_dup_tensor`.
    fn same(&mut self, op: Op, sources: &[Id]) -> Id {
        let Tensor { ty, ne, .. } = self[sources[0]];
        self.op(op, ty, ne, sources)
    }

    /// A tensor that something outside of the graph fills: `ggml_new_tensor` and `ggml_set_input`.
    pub(super) fn input(&mut self, ty: TensorType, ne: [u64; 4]) -> Id {
        let mut tensor = Tensor::new(Op::None, ty, ne);
        tensor.input = true;
        self.add_tensor(tensor)
    }

    /// A weight or a cache.
    pub(super) fn stored(&mut self, ty: TensorType, ne: [u64; 4], home: Home) -> Id {
        let mut tensor = Tensor::new(Op::None, ty, ne);
        tensor.home = home;
        self.add_tensor(tensor)
    }

    /// `ggml_set_output`.
    pub(super) fn set_output(&mut self, id: Id) {
        self[id].output = true;
    }

    /// `ggml_backend_sched_set_tensor_backend`.
    pub(super) fn pin(&mut self, id: Id, backend: Backend) {
        self[id].backend = backend;
    }

    // ---- products ----

    /// `ggml_mul_mat`.
    pub(super) fn mul_mat(&mut self, a: Id, b: Id) -> Id {
        let rows = self[a].ne[1];
        let [_, b1, b2, b3] = self[b].ne;
        self.op(Op::MulMat, TensorType::F32, [rows, b1, b2, b3], &[a, b])
    }

    /// `ggml_mul_mat_id`: a product with the experts `ids` of `experts`.
    pub(super) fn mul_mat_id(&mut self, experts: Id, b: Id, ids: Id) -> Id {
        let ne = [self[experts].ne[1], self[ids].ne[0], self[b].ne[2], 1];
        self.op(Op::MulMatId, TensorType::F32, ne, &[experts, b, ids])
    }

    /// `ggml_flash_attn_ext`, its sinks included.
    pub(super) fn flash_attn(&mut self, [q, k, v]: [Id; 3], mask: Id, sinks: Id) -> Id {
        let [_, q1, q2, q3] = self[q].ne;
        let ne = [self[v].ne[0], q2, q1, q3];
        self.op(Op::FlashAttn, TensorType::F32, ne, &[q, k, v, mask, sinks])
    }

    // ---- element by element ----

    /// `ADD`, `MUL`, `DIV`: two operands, of which the result may overwrite one.
    pub(super) fn binary(&mut self, a: Id, b: Id) -> Id {
        self.same(Op::InPlace, &[a, b])
    }

    /// `ggml_add_id`: a bias per expert.
    pub(super) fn add_id(&mut self, a: Id, bias: Id, ids: Id) -> Id {
        self.same(Op::InPlace, &[a, bias, ids])
    }

    /// `SCALE`, `SQR`, `CLAMP`, `RMS_NORM`, `UNARY` (tanh, sigmoid, silu, ...): one operand, which the result may overwrite.
    pub(super) fn unary(&mut self, a: Id) -> Id {
        self.same(Op::InPlace, &[a])
    }

    /// `ggml_norm`, `ggml_dup`: one operand, which stays.
    pub(super) fn copied(&mut self, a: Id) -> Id {
        self.same(Op::Other, &[a])
    }

    /// `ggml_soft_max_ext`, its sinks included.
    pub(super) fn soft_max(&mut self, a: Id, mask: Id, sinks: Id) -> Id {
        self.same(Op::InPlace, &[a, mask, sinks])
    }

    /// `ggml_rope_ext`.
    pub(super) fn rope(&mut self, a: Id, positions: Id, factors: Id) -> Id {
        self.same(Op::Rope, &[a, positions, factors])
    }

    /// `ggml_swiglu_split` and its kin.
    pub(super) fn glu_split(&mut self, gate: Id, up: Id) -> Id {
        self.same(Op::Other, &[gate, up])
    }

    /// `ggml_swiglu` and its kin: gate and up are the halves of one tensor.
    pub(super) fn glu(&mut self, a: Id) -> Id {
        let Tensor { ty, mut ne, .. } = self[a];
        ne[0] /= 2;
        self.op(Op::Other, ty, ne, &[a])
    }

    // ---- rows ----

    /// `ggml_get_rows`.
    pub(super) fn get_rows(&mut self, a: Id, ids: Id) -> Id {
        let width = self[a].ne[0];
        let ty = match self[a].ty {
            TensorType::I32 => TensorType::I32,
            _ => TensorType::F32,
        };
        let [n0, n1, n2, _] = self[ids].ne;
        self.op(Op::GetRows, ty, [width, n0, n1, n2], &[a, ids])
    }

    /// `ggml_set_rows`: a view of `a`.
    pub(super) fn set_rows(&mut self, a: Id, rows: Id, ids: Id) -> Id {
        let mut tensor = self[a];
        tensor.src = [Id::NONE; MAX_SRC];
        tensor.src[..3].copy_from_slice(&[rows, ids, a]);
        tensor.op = Op::SetRows;
        self.add_view(a, tensor)
    }

    /// `ggml_sum_rows`.
    pub(super) fn sum_rows(&mut self, a: Id) -> Id {
        let Tensor { ty, mut ne, .. } = self[a];
        ne[0] = 1;
        self.op(Op::Other, ty, ne, &[a])
    }

    /// `ggml_argsort_top_k`: a view of the sorted places.
    pub(super) fn top_k(&mut self, a: Id, k: u64) -> Id {
        let ne = self[a].ne;
        let sorted = self.op(Op::Argsort, TensorType::I32, ne, &[a]);
        let nb = self[sorted].nb;
        self.view(sorted, [k, ne[1], ne[2], ne[3]], [nb[1], nb[2], nb[3]])
    }

    // ---- other shapes ----

    fn add_view(&mut self, of: Id, mut tensor: Tensor) -> Id {
        let source = self[of].view_src;
        tensor.view_src = source.get().unwrap_or(of);
        tensor.home = Home::Graph;
        tensor.input = false;
        tensor.output = false;
        tensor.visited = false;
        tensor.backend = Backend::NONE;
        self.add_tensor(tensor)
    }

    fn looking(&mut self, a: Id, ne: [u64; 4], nb: [u64; 4]) -> Id {
        let mut tensor = Tensor::new(Op::View, self[a].ty, ne);
        tensor.nb = nb;
        tensor.src[0] = a;
        self.add_view(a, tensor)
    }

    /// `ggml_view_4d`: `nb` are the bytes from one row, plane, ... to the next. Where it begins makes no difference to memory.
    pub(super) fn view(&mut self, a: Id, ne: [u64; 4], nb: [u64; 3]) -> Id {
        let first = self[a].ty.type_size();
        self.looking(a, ne, [first, nb[0], nb[1], nb[2]])
    }

    /// `ggml_view_3d`.
    pub(super) fn view_3d(&mut self, a: Id, ne: [u64; 3], nb: [u64; 2]) -> Id {
        let last = nb[1].saturating_mul(ne[2]);
        self.view(a, [ne[0], ne[1], ne[2], 1], [nb[0], nb[1], last])
    }

    /// `ggml_view_2d`.
    pub(super) fn view_2d(&mut self, a: Id, ne: [u64; 2], nb: u64) -> Id {
        let plane = nb.saturating_mul(ne[1]);
        self.view(a, [ne[0], ne[1], 1, 1], [nb, plane, plane])
    }

    /// `ggml_reshape`.
    pub(super) fn reshape(&mut self, a: Id, ne: [u64; 4]) -> Id {
        let nb = Tensor::new(Op::View, self[a].ty, ne).nb;
        self.looking(a, ne, nb)
    }

    /// `ggml_permute`: dimension `i` of `a` becomes dimension `axes[i]`.
    pub(super) fn permute(&mut self, a: Id, axes: [usize; 4]) -> Id {
        let Tensor { ne, nb, .. } = self[a];
        let (mut to_ne, mut to_nb) = ([1; 4], [0; 4]);
        for (i, &axis) in axes.iter().enumerate() {
            to_ne[axis] = ne[i];
            to_nb[axis] = nb[i];
        }
        self.looking(a, to_ne, to_nb)
    }

    /// `ggml_transpose`.
    pub(super) fn transpose(&mut self, a: Id) -> Id {
        self.permute(a, [1, 0, 2, 3])
    }

    /// `ggml_cont`: the same elements, side by side.
    pub(super) fn cont(&mut self, a: Id) -> Id {
        self.same(Op::Other, &[a])
    }

    /// `ggml_cont_2d` and its kin, `ggml_pad`, `ggml_repeat_4d`: the operand in another shape.
    pub(super) fn reshaped(&mut self, a: Id, ne: [u64; 4]) -> Id {
        let ty = self[a].ty;
        self.op(Op::Other, ty, ne, &[a])
    }

    /// `ggml_cast`.
    pub(super) fn cast(&mut self, a: Id, ty: TensorType) -> Id {
        let ne = self[a].ne;
        let result = self.op(Op::Other, ty, ne, &[a]);
        // It names itself as the place of its result (ggml.c, `ggml_cast`).
        self[result].src[1] = result;
        result
    }

    /// `ggml_concat` along the innermost dimension.
    pub(super) fn concat(&mut self, a: Id, b: Id) -> Id {
        let Tensor { ty, mut ne, .. } = self[a];
        ne[0] = ne[0].saturating_add(self[b].ne[0]);
        self.op(Op::Other, ty, ne, &[a, b])
    }

    // ---- order ----

    /// `ggml_build_forward_expand`: appends what `id` needs and the graph does not hold yet, depth first
    /// (ggml.c:7245, `ggml_visit_parents_graph`).
    pub(super) fn expand(&mut self, id: Id) {
        if self[id].visited {
            return;
        }
        self[id].visited = true;
        for source in self[id].sources() {
            self.expand(source);
        }
        if self[id].op == Op::None {
            self.leafs.push(id);
        } else {
            self.nodes.push(id);
        }
    }
}
