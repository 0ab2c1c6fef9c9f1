//! Attention: queries, keys and values, the caches they go to, and what comes back (llama-graph.cpp:1595-1690, :2680-3310).

use super::build::{Build, Homes};
use super::network::Latent;
use super::ops::Graph;
use super::tensor::{Home, Id, Memory, Tensor};
use super::weights::Part;
use crate::gguf::TensorType;
use crate::memory::estimate::Place;
use crate::profile::BlockState;

/// Inputs of the blocks with one kind of cache (`llm_graph_input_attn_kv`).
#[derive(Debug, Clone, Copy)]
struct CacheInputs {
    cells: u64,
    /// Where keys and values go.
    key_places: Id,
    value_places: Id,
    mask: Id,
    /// Rotations of a quantised cache.
    rotate_keys: Option<Id>,
    rotate_values: Option<Id>,
}

/// The inputs of attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs {
    positions: Id,
    temperature: Option<Id>,
    full: CacheInputs,
    windowed: CacheInputs,
}

/// Queries, keys and values, each split into heads.
#[derive(Debug, Clone, Copy)]
struct Qkv {
    q: Id,
    k: Id,
    v: Id,
}

/// What attention looks at.
#[derive(Debug, Clone, Copy)]
struct Attended {
    k: Id,
    v: Id,
    /// Whether values are stored transposed.
    transposed: bool,
    /// The matrix that takes compressed values apart, with MLA.
    decompress: Option<Id>,
}

impl<H: Homes> Build<'_, H> {
    /// Inputs that no block uses do not get into the graph.
    pub(super) fn attention_inputs(&mut self) -> Inputs {
        let tokens = self.batch.tokens;
        let of_token = self.network.positions();
        let positions = self
            .graph
            .input(TensorType::I32, [tokens.saturating_mul(of_token), 1, 1, 1]);
        let tempered =
            self.network.style.tempered_queries && self.network.switches.temperature_scale != 0.0;
        Inputs {
            positions,
            temperature: tempered.then(|| self.graph.input(TensorType::F32, [1, 1, tokens, 1])),
            full: self.cache_inputs(self.caches.cells, false),
            windowed: self.cache_inputs(self.caches.window_cells, true),
        }
    }

    fn cache_inputs(&mut self, cells: u64, windowed: bool) -> CacheInputs {
        let caches = self.caches;
        let tokens = self.batch.tokens;
        let values = if caches.transposed {
            tokens.saturating_mul(self.network.widest_v)
        } else {
            tokens
        };
        let mask = if self.fused {
            TensorType::F16
        } else {
            TensorType::F32
        };
        let (rotated_k, rotated_v) = self.rotations(windowed);
        let g = &mut *self.graph;
        let mut rotation = |n: Option<u64>| n.map(|n| g.input(TensorType::F32, [n, n, 1, 1]));
        let (rotate_keys, rotate_values) = (rotation(rotated_k), rotation(rotated_v));
        CacheInputs {
            cells,
            key_places: g.input(TensorType::I64, [tokens, 1, 1, 1]),
            value_places: g.input(TensorType::I64, [values, 1, 1, 1]),
            mask: g.input(
                mask,
                [cells, tokens / caches.streams.max(1), 1, caches.streams],
            ),
            rotate_keys,
            rotate_values,
        }
    }

    /// The width of the matrices that rotate keys and values before they are quantised (llama-kv-cache.cpp:318-360). Those of keys
    /// are as wide as a power of two divides the head, those of values 64.
    fn rotations(&self, windowed: bool) -> (Option<u64>, Option<u64>) {
        let kept = |state: &BlockState| match state {
            BlockState::Full(_) => !windowed,
            BlockState::Windowed { .. } => windowed,
            _ => false,
        };
        if !self.network.states.iter().any(kept) {
            return (None, None);
        }
        let rotates = |ty: TensorType, head: u64| ty.is_quantized() && head.is_multiple_of(64);
        let (k, v) = (self.network.head_k, self.network.head_v);
        let keys = rotates(self.caches.type_k, k).then(|| 1 << k.trailing_zeros());
        let values = rotates(self.caches.type_v, v).then_some(64);
        (keys, values)
    }

    /// Attention of the block at hand over a normed stream, its way back included.
    pub(super) fn attention(&mut self, stream: Id, inputs: &Inputs) -> Id {
        let windowed = matches!(self.network.states[self.block], BlockState::Windowed { .. });
        let cache = if windowed {
            inputs.windowed
        } else {
            inputs.full
        };
        let attended = match self.network.latent {
            Some(latent) => self.latent_attention(stream, inputs, &cache, latent),
            None => {
                let qkv = self.heads(stream, inputs);
                self.attend(qkv, &cache)
            }
        };
        let back = self.product(Part::Out, attended).unwrap_or(attended);
        self.biased(back, Part::OutBias)
    }

    /// `build_qkv`, norms, rotation by position, and scales.
    fn heads(&mut self, stream: Id, inputs: &Inputs) -> Qkv {
        let style = self.network.style;
        let (heads_q, heads_k) = self.network.heads[self.block];
        let (head_k, head_v) = (self.network.head_k, self.network.head_v);
        let tokens = self.batch.tokens;
        let shapes = [
            [head_k, heads_q, tokens],
            [head_k, heads_k, tokens],
            [head_v, heads_k, tokens],
        ];
        let mut parts = if let Some(qkv) = self.product(Part::Qkv, stream) {
            let qkv = self.biased(qkv, Part::QkvBias);
            let row = self.graph[qkv].nb[1];
            shapes.map(|ne| self.graph.view_3d(qkv, ne, [4 * ne[0], row]))
        } else {
            let parts = [
                (Part::Q, Part::QBias),
                (Part::K, Part::KBias),
                (Part::V, Part::VBias),
            ];
            parts.map(|(weight, bias)| {
                let part = self.product(weight, stream).unwrap_or(stream);
                self.biased(part, bias)
            })
        };
        let split = |this: &mut Self, parts: &mut [Id; 3]| {
            if !this.has(Part::Qkv) {
                for (part, [n, heads, tokens]) in parts.iter_mut().zip(shapes) {
                    *part = this.graph.reshape(*part, [n, heads, tokens, 1]);
                }
            }
        };
        if !style.flat_norms {
            split(self, &mut parts);
        }
        if !style.late_norms {
            self.norm_queries_and_keys(&mut parts);
        }
        if style.flat_norms {
            split(self, &mut parts);
        }
        if self.network.rotates(self.block) {
            let factors = self.rope_factors();
            for part in &mut parts[..2] {
                *part = self.graph.rope(*part, inputs.positions, factors);
            }
        }
        if style.late_norms {
            self.norm_queries_and_keys(&mut parts);
        }
        let [mut q, k, v] = parts;
        if style.scaled_queries {
            q = self.graph.unary(q);
        }
        if let Some(temperature) = inputs.temperature {
            q = self.graph.binary(q, temperature);
        }
        Qkv { q, k, v }
    }

    fn norm_queries_and_keys(&mut self, [q, k, _]: &mut [Id; 3]) {
        *q = self.norm(*q, Part::QNorm, None, true).unwrap_or(*q);
        *k = self.norm(*k, Part::KNorm, None, true).unwrap_or(*k);
    }

    /// `llama_model::get_rope_factors`: the copy in the block's own memory.
    fn rope_factors(&mut self) -> Id {
        let factors = self.network.weights.rope;
        let Some(stored) = factors.filter(|_| self.network.style.rope_factors) else {
            return Id::NONE;
        };
        let memory = self.homes.rope(self.block);
        if let Some(&(_, id)) = self.factors.iter().find(|(of, _)| *of == memory) {
            return id;
        }
        let id = self
            .graph
            .stored(stored.ty, stored.ne, Home::Weights(memory));
        self.factors.push((memory, id));
        id
    }

    /// `llama_mul_mat_hadamard`.
    fn rotated(&mut self, of: Id, by: Option<Id>) -> Id {
        let Some(by) = by else { return of };
        let ne = self.graph[of].ne;
        let n = self.graph[by].ne[0].max(1);
        let flat = [n, self.graph[of].elements() / n, 1, 1];
        let flat = if self.graph[of].is_contiguous() {
            self.graph.reshape(of, flat)
        } else {
            self.graph.reshaped(of, flat)
        };
        let rotated = self.graph.mul_mat(by, flat);
        self.graph.reshape(rotated, ne)
    }

    /// Where the cache of the block at hand lies.
    fn cache_home(&self) -> Home {
        Home::Cache(match self.homes.block(self.block) {
            Place::Gpu(gpu) if self.caches.offloaded => Memory::gpu(gpu),
            _ => Memory::Host,
        })
    }

    /// `build_attn`: keys and values go to the cache, and attention looks at all of it.
    fn attend(&mut self, qkv: Qkv, cache: &CacheInputs) -> Id {
        let q = self.rotated(qkv.q, cache.rotate_keys);
        let k = self.rotated(qkv.k, cache.rotate_keys);
        let v = self.rotated(qkv.v, cache.rotate_values);
        self.graph.expand(q);
        let [first, second] = if self.network.windowed {
            [k, v]
        } else {
            [v, k]
        };
        self.graph.expand(first);
        self.graph.expand(second);
        let attended = Attended {
            k: self.keep_keys(k, cache),
            v: self.keep_values(v, cache),
            transposed: self.caches.transposed,
            decompress: None,
        };
        let result = self.scores(q, &attended, cache);
        self.rotated(result, cache.rotate_values)
    }

    /// `cpy_k` and `get_k`.
    fn keep_keys(&mut self, k: Id, cache: &CacheInputs) -> Id {
        let [head, heads, tokens, _] = self.graph[k].ne;
        let streams = self.caches.streams;
        let width = head.saturating_mul(heads);
        let home = self.cache_home();
        let g = &mut *self.graph;
        let row = g[k].nb[2];
        let rows = g.view_2d(k, [width, tokens], row);
        let kept = g.stored(self.caches.type_k, [width, cache.cells, streams, 1], home);
        let into = if streams > 1 {
            g.reshape(kept, [width, cache.cells.saturating_mul(streams), 1, 1])
        } else {
            kept
        };
        let stored = g.set_rows(into, rows, cache.key_places);
        g.expand(stored);
        Self::all_cells(g, kept, head, heads)
    }

    /// A view of all cells of a cache, head by head.
    fn all_cells(g: &mut Graph, kept: Id, head: u64, heads: u64) -> Id {
        let [_, cells, streams, _] = g[kept].ne;
        let of_head = g[kept].ty.row_bytes(head);
        let [_, row, stream, _] = g[kept].nb;
        g.view(kept, [head, heads, cells, streams], [of_head, row, stream])
    }

    /// `cpy_v` and `get_v`.
    fn keep_values(&mut self, v: Id, cache: &CacheInputs) -> Id {
        let [head, heads, tokens, _] = self.graph[v].ne;
        let caches = self.caches;
        let streams = caches.streams;
        let width = head.saturating_mul(heads);
        let cells = cache.cells;
        let home = self.cache_home();
        let widest = self.network.widest_v;
        let g = &mut *self.graph;
        if !caches.transposed {
            let row = g[v].nb[2];
            let rows = g.view_2d(v, [width, tokens], row);
            let kept = g.stored(caches.type_v, [width, cells, streams, 1], home);
            let into = if streams > 1 {
                g.reshape(kept, [width, cells.saturating_mul(streams), 1, 1])
            } else {
                kept
            };
            let stored = g.set_rows(into, rows, cache.value_places);
            g.expand(stored);
            return Self::all_cells(g, kept, head, heads);
        }
        let kept = g.stored(caches.type_v, [widest, cells, streams, 1], home);
        let mut rows = if TensorType::F32.row_bytes(width) == g[v].nb[2] {
            g.reshape(v, [width, tokens, 1, 1])
        } else {
            g.reshaped(v, [width, tokens, 1, 1])
        };
        if width < widest {
            rows = g.reshaped(rows, [widest, tokens, 1, 1]);
        }
        let all = g[kept].elements();
        let into = g.reshape(kept, [1, all, 1, 1]);
        let all = g[rows].elements();
        let rows = g.reshape(rows, [1, all, 1, 1]);
        let stored = g.set_rows(into, rows, cache.value_places);
        g.expand(stored);
        let ty = caches.type_v;
        let nb = [
            ty.row_bytes(cells.saturating_mul(head)),
            ty.row_bytes(cells),
            ty.row_bytes(cells.saturating_mul(widest)),
        ];
        // The rows of a head lie apart, and a head's elements further apart than the heads.
        g.view(kept, [cells, heads, head, streams], nb)
    }

    /// `build_attn_mha`.
    fn scores(&mut self, q: Id, attended: &Attended, cache: &CacheInputs) -> Id {
        let streams = self.graph[attended.k].ne[3].max(1);
        let sinks = self.weight(Part::Sinks).unwrap_or(Id::NONE);
        let backend = self.backend_of_block();
        let g = &mut *self.graph;
        let [n, heads, tokens, _] = g[q].ne;
        let [_, nb1, nb2, _] = g[q].nb;
        let of_stream = tokens / streams;
        let q = g.view(
            q,
            [n, heads, of_stream, streams],
            [nb1, nb2, nb2.saturating_mul(of_stream)],
        );
        let by_head = [0, 2, 1, 3];
        let q = g.permute(q, by_head);
        let k = g.permute(attended.k, by_head);
        let mut v = g.permute(attended.v, by_head);
        let result = if self.fused {
            if attended.transposed {
                v = g.transpose(v);
            }
            let half = |g: &mut Graph, of: Id| match g[of].ty {
                TensorType::F32 => g.cast(of, TensorType::F16),
                _ => of,
            };
            let (k, v) = (half(g, k), half(g, v));
            let mut result = g.flash_attn([q, k, v], cache.mask, sinks);
            self.built.fused_nodes.push((result, backend));
            if let Some(decompress) = attended.decompress {
                let permuted = g.permute(result, by_head);
                let decompressed = g.mul_mat(decompress, permuted);
                let permuted = g.permute(decompressed, by_head);
                result = g.cont(permuted);
            }
            let [n0, n1, n2, n3] = g[result].ne;
            g.reshape(result, [n0 * n1, n2 * n3, 1, 1])
        } else {
            let mut kq = g.mul_mat(k, q);
            if self.network.style.capped_scores {
                for _ in 0..3 {
                    kq = g.unary(kq);
                }
            }
            let kq = g.soft_max(kq, cache.mask, sinks);
            if !attended.transposed {
                let transposed = g.transpose(v);
                v = g.cont(transposed);
            }
            let mut kqv = g.mul_mat(v, kq);
            if let Some(decompress) = attended.decompress {
                kqv = g.mul_mat(decompress, kqv);
            }
            let permuted = g.permute(kqv, by_head);
            let [n0, n1, n2, n3] = g[permuted].ne;
            let result = g.reshaped(permuted, [n0 * n1, n2 * n3, 1, 1]);
            if !self.caches.offloaded {
                // Everything between the cache and here is computed on the CPU.
                g.pin(result, self.cpu);
            }
            result
        };
        g.expand(result);
        result
    }

    /// models/deepseek2.cpp: queries and keys in two parts, of which one is rotated by position; keys and values compressed.
    fn latent_attention(
        &mut self,
        stream: Id,
        inputs: &Inputs,
        cache: &CacheInputs,
        latent: Latent,
    ) -> Id {
        let Latent {
            rope,
            nope,
            value,
            rank,
            kept,
        } = latent;
        let tokens = self.batch.tokens;
        let heads = self.network.heads[self.block].0;
        let width = nope.saturating_add(rope);
        let q = if let Some(q) = self.product(Part::Q, stream) {
            q
        } else {
            let q = self.product(Part::QA, stream).unwrap_or(stream);
            let q = self.norm(q, Part::QANorm, None, true).unwrap_or(q);
            self.product(Part::QB, q).unwrap_or(q)
        };
        let q = self.graph.reshape(q, [width, heads, tokens, 1]);
        let compressed = self.product(Part::KvAMqa, stream).unwrap_or(stream);
        let row = TensorType::F32.row_bytes(rank.saturating_add(rope));
        let k_nope = self.graph.view_2d(compressed, [rank, tokens], row);
        let k_rope = self
            .graph
            .view_3d(compressed, [rope, 1, tokens], [row, row]);
        let k_rope = self.graph.rope(k_rope, inputs.positions, Id::NONE);
        let k_nope = self
            .norm(k_nope, Part::KvANorm, None, true)
            .unwrap_or(k_nope);
        if kept {
            let [_, nb1, nb2, _] = self.graph[q].nb;
            let q_nope = self.graph.view_3d(q, [nope, heads, tokens], [nb1, nb2]);
            let q_rope = self.graph.view_3d(q, [rope, heads, tokens], [nb1, nb2]);
            let q_rope = self.graph.rope(q_rope, inputs.positions, Id::NONE);
            let q_nope = self.graph.permute(q_nope, [0, 2, 1, 3]);
            let absorbed = self.product(Part::KB, q_nope).unwrap_or(q_nope);
            let absorbed = self.graph.permute(absorbed, [0, 2, 1, 3]);
            let mut q = self.graph.concat(absorbed, q_rope);
            let v = self.graph.reshape(k_nope, [rank, 1, tokens, 1]);
            let k = self.graph.concat(v, k_rope);
            if let Some(temperature) = inputs.temperature {
                q = self.graph.binary(q, temperature);
            }
            let decompress = self.weight(Part::VB);
            for part in [q, v, k] {
                self.graph.expand(part);
            }
            let k = self.keep_keys(k, cache);
            let Tensor { ne, nb, .. } = self.graph[k];
            let v = self
                .graph
                .view(k, [rank, ne[1], ne[2], ne[3]], [nb[1], nb[2], nb[3]]);
            let attended = Attended {
                k,
                v,
                transposed: nb[1] > nb[2],
                decompress,
            };
            return self.scores(q, &attended, cache);
        }
        let both = self.product(Part::KvB, k_nope).unwrap_or(k_nope);
        let of_head = TensorType::F32.row_bytes(nope.saturating_add(value));
        let of_token = of_head.saturating_mul(heads);
        let k_nope = self
            .graph
            .view_3d(both, [nope, heads, tokens], [of_head, of_token]);
        let v = self
            .graph
            .view_3d(both, [value, heads, tokens], [of_head, of_token]);
        let v = self.graph.cont(v);
        let mut q = self.graph.rope(q, inputs.positions, Id::NONE);
        let k_rope = self.graph.reshaped(k_rope, [rope, heads, tokens, 1]);
        let k = self.graph.concat(k_nope, k_rope);
        if let Some(temperature) = inputs.temperature {
            q = self.graph.binary(q, temperature);
        }
        self.attend(Qkv { q, k, v }, cache)
    }
}
