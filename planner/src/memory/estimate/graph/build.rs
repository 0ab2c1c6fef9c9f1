//! A model's graph: what llama.cpp's `build_arch_graph` makes, block after block (models/*.cpp, llama-graph.cpp).

use super::attention::Inputs;
use super::network::Network;
use super::ops::Graph;
use super::style::{Embedding, Logits, Norm, PostNorms, Residual};
use super::tensor::{Backend, Home, Id, Memory};
use super::weights::{Pair, Part, Stored};
use crate::gguf::TensorType;
use crate::memory::estimate::Place;

/// The shape of a computation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    /// Tokens computed at once.
    pub(super) tokens: u64,
    /// Rows of logits.
    pub(super) outputs: u64,
}

/// What the context's parameters make of the caches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caches {
    pub(super) type_k: TensorType,
    pub(super) type_v: TensorType,
    /// Cells of a stream, of caches that keep everything.
    pub(super) cells: u64,
    /// The same of those that keep a window.
    pub(super) window_cells: u64,
    pub(super) streams: u64,
    /// Whether values are stored transposed: without fused attention.
    pub(super) transposed: bool,
    /// Whether a cache lives where its block does.
    pub(super) offloaded: bool,
}

/// Where everything is.
pub(super) trait Homes {
    /// Where a block is computed if nothing speaks against it.
    fn block(&self, block: usize) -> Place;
    /// Where a weight of a block lies, by its index among them.
    fn weight(&self, block: usize, index: usize) -> Memory;
    /// Where the factors of positions lie that a block uses.
    fn rope(&self, block: usize) -> Memory;
    /// Where the embedding, the output matrix and the norm before it lie.
    fn embedding(&self) -> Memory;
    fn output(&self) -> Memory;
    fn output_norm(&self) -> Memory;
}

/// Where a graph stands before a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    pub(super) nodes: usize,
    pub(super) tensors: usize,
}

/// What is left of a build beside its graph.
#[derive(Debug, Default)]
pub(super) struct Built {
    /// For each block that was built.
    pub(super) before: Vec<Before>,
    /// Which weights of each block of the model were computed with, a bit for each.
    pub(super) asked: Vec<u64>,
    /// Fused attention, with the backend that its block is on.
    pub(super) fused_nodes: Vec<(Id, Backend)>,
}

/// From so many tokens on norms may be computed on the device of the block before (llama-context.cpp:2608).
const PIN_NORMS_BELOW: u64 = 32;

/// A graph in the making.
pub(super) struct Build<'a, H> {
    pub(super) graph: &'a mut Graph,
    pub(super) network: &'a Network,
    pub(super) homes: &'a H,
    pub(super) batch: Batch,
    pub(super) caches: Caches,
    /// Whether attention is fused.
    pub(super) fused: bool,
    /// Whether norms are computed where their block is: with few tokens, or everything on GPUs
    /// (llama-context.cpp:2608, `graph_get_cb`).
    pin_norms: bool,
    pub(super) cpu: Backend,
    /// The block at hand.
    pub(super) block: usize,
    /// `rope_freqs`, in each memory where it is needed.
    pub(super) factors: Vec<(Memory, Id)>,
    pub(super) built: Built,
}

impl<'a, H: Homes> Build<'a, H> {
    pub(super) fn new(
        graph: &'a mut Graph,
        network: &'a Network,
        homes: &'a H,
        batch: Batch,
        caches: Caches,
    ) -> Self {
        Self {
            graph,
            network,
            homes,
            batch,
            caches,
            fused: false,
            pin_norms: false,
            cpu: Backend::NONE,
            block: 0,
            factors: Vec::new(),
            built: Built {
                asked: vec![0; network.trunk],
                ..Built::default()
            },
        }
    }

    /// The whole graph of these blocks, in order.
    pub(super) fn model(
        mut self,
        blocks: &[usize],
        fused: bool,
        offloaded: bool,
        cpu: Backend,
    ) -> Built {
        self.fused = fused;
        self.pin_norms = offloaded || self.batch.tokens < PIN_NORMS_BELOW;
        self.cpu = cpu;
        let (embedded, mut stream) = self.embeddings();
        let inputs = self.attention_inputs();
        let outputs = self
            .graph
            .input(TensorType::I32, [self.batch.outputs, 1, 1, 1]);
        let late = self.network.style.late_outputs;
        for (i, &block) in blocks.iter().enumerate() {
            self.block = block;
            self.built.before.push(Before {
                nodes: self.graph.nodes.len(),
                tensors: self.graph.len(),
            });
            let last = i + 1 == blocks.len() && !late;
            stream = self.one_block(stream, &inputs, last.then_some(outputs));
            stream = self.directed(stream);
            if self.network.adds_embeddings(block) {
                let row = self.graph[embedded].nb[1];
                let ne = [self.network.n_embd, self.batch.tokens];
                let part = self.graph.view_2d(embedded, ne, row);
                stream = self.graph.binary(stream, part);
            }
        }
        if late {
            self.graph.set_output(stream);
            stream = self.graph.get_rows(stream, outputs);
        }
        let logits = self.logits(stream);
        self.graph.expand(logits);
        self.built
    }

    /// `build_inp_embd`: rows of the embedding, embeddings that somebody computed, or a mixture. All three are in the graph,
    /// whichever is used.
    ///
    /// Returns what is looked up, and what the first block sees of it.
    fn embeddings(&mut self) -> (Id, Id) {
        let tokens = self.batch.tokens;
        let n_embd = self.network.n_embd;
        let home = Home::Weights(self.homes.embedding());
        let stored = self.network.weights.embedding;
        let rows = stored.map_or((TensorType::F32, [n_embd, 1, 1, 1]), |w| (w.ty, w.ne));
        let g = &mut *self.graph;
        let table = g.stored(rows.0, rows.1, home);
        let ids = g.input(TensorType::I32, [tokens, 1, 1, 1]);
        let width = n_embd.saturating_mul(1 + u64::from(self.network.switches.deepstack_layers));
        let padded = |g: &mut Graph, rows: Id| {
            if width == n_embd {
                rows
            } else {
                g.reshaped(rows, [width, tokens, 1, 1])
            }
        };
        let given = g.input(TensorType::F32, [width, tokens, 1, 1]);
        let pairs = &self.network.weights.adapted_embedding;
        let memory = self.homes.embedding();
        let rows = g.get_rows(table, ids);
        let rows = adapted_rows(g, pairs, memory, rows, ids);
        let by_token = padded(g, rows);
        let mixed_ids = g.input(TensorType::I32, [tokens, 1, 1, 1]);
        let mixed_places = g.input(TensorType::I64, [tokens, 1, 1, 1]);
        let mixed_given = g.input(TensorType::F32, [width, tokens, 1, 1]);
        let copied = g.copied(mixed_given);
        let mixed_rows = g.get_rows(table, mixed_ids);
        let mixed_rows = adapted_rows(g, pairs, memory, mixed_rows, mixed_ids);
        let mixed_rows = padded(g, mixed_rows);
        let mixed = g.set_rows(copied, mixed_rows, mixed_places);
        for choice in [by_token, given, mixed] {
            g.expand(choice);
        }
        if width != n_embd {
            let row = g[by_token].nb[1];
            return (by_token, g.view_2d(by_token, [n_embd, tokens], row));
        }
        let stated = self.network.switches.embedding_scale.unwrap_or_default() != 0.0;
        let stream = match self.network.style.embedding {
            Embedding::Plain => by_token,
            Embedding::ScaledIfStated if !stated => by_token,
            Embedding::Scaled | Embedding::ScaledIfStated => g.unary(by_token),
            Embedding::ScaledByRow => {
                let scale = g.input(TensorType::F32, [1, tokens, 1, 1]);
                let scaled = g.binary(by_token, scale);
                g.expand(scaled);
                scaled
            }
        };
        (by_token, stream)
    }

    /// `outputs`: which rows the last block goes on with.
    fn one_block(&mut self, input: Id, inputs: &Inputs, outputs: Option<Id>) -> Id {
        let style = self.network.style;
        let heads = self.network.heads[self.block];
        let normed = match self.norm(input, Part::AttnNorm, Some(Part::AttnNormBias), true) {
            Some(normed) => normed,
            None => input,
        };
        let mut attended = match heads {
            // A block without attention, and one with a single matrix in its place (models/deci.cpp).
            (0, _) => input,
            (_, 0) => self.product(Part::Out, normed).unwrap_or(normed),
            _ => self.attention(normed, inputs),
        };
        let (mut residual, mut shared) = (input, normed);
        if let Some(rows) = outputs {
            attended = self.graph.get_rows(attended, rows);
            residual = self.graph.get_rows(residual, rows);
            if style.residual != Residual::Sequential {
                shared = self.graph.get_rows(shared, rows);
            }
        }
        if style.residual != Residual::Sequential {
            let forward = self.feed_forward(shared);
            let [first, second, third] = match style.residual {
                Residual::ParallelSteps {
                    attention_first: true,
                } => [attended, forward, residual],
                Residual::ParallelSteps { .. } => [forward, attended, residual],
                _ => [forward, residual, attended],
            };
            let sum = self.graph.binary(first, second);
            return self.graph.binary(sum, third);
        }
        if style.post_norms != PostNorms::None {
            attended = self
                .norm(attended, Part::AttnPostNorm, None, true)
                .unwrap_or(attended);
        }
        let scales = self.network.scales_residual();
        if scales {
            attended = self.graph.unary(attended);
        }
        let [first, second] = style.residual_first;
        let residual = match (heads.0, first) {
            (0, _) => attended,
            (_, true) => self.graph.binary(residual, attended),
            (_, false) => self.graph.binary(attended, residual),
        };
        let normed = style
            .ffn_norm
            .and_then(|part| self.norm(residual, part, Some(Part::FfnNormBias), true));
        let mut forward = self.feed_forward(normed.unwrap_or(residual));
        if style.post_norms != PostNorms::None {
            let named = style.post_norms == PostNorms::Named;
            forward = self
                .norm(forward, Part::FfnPostNorm, None, named)
                .unwrap_or(forward);
        }
        if scales {
            forward = self.graph.unary(forward);
        }
        if second {
            return self.graph.binary(residual, forward);
        }
        self.graph.binary(forward, residual)
    }

    /// The norm of the result, and the logits.
    fn logits(&mut self, stream: Id) -> Id {
        let weights = &self.network.weights;
        let home = Home::Weights(self.homes.output_norm());
        let mut normed = self.bare_norm(stream);
        if let Some(weight) = weights.output_norm {
            let weight = self.graph.stored(weight.ty, weight.ne, home);
            normed = self.graph.binary(normed, weight);
        }
        if let Some(bias) = weights.output_norm_bias {
            let bias = self.graph.stored(bias.ty, bias.ne, home);
            normed = self.graph.binary(normed, bias);
        }
        self.graph.set_output(normed);
        let matrix = weights.output.unwrap_or(Stored {
            ty: TensorType::F32,
            ne: [self.network.n_embd, 1, 1, 1],
        });
        let output = Home::Weights(self.homes.output());
        let matrix = self.graph.stored(matrix.ty, matrix.ne, output);
        let mut logits = self.graph.mul_mat(matrix, normed);
        for pair in weights.adapted_output.iter().rev() {
            logits = add_product(self.graph, *pair, self.homes.output(), logits, normed, None);
        }
        if let Some(bias) = weights.output_bias {
            let bias = self.graph.stored(bias.ty, bias.ne, home);
            logits = self.graph.binary(logits, bias);
        }
        let switches = &self.network.switches;
        let steps = match self.network.style.logits {
            Logits::Plain => 0,
            Logits::Scaled => 1,
            Logits::ScaledIfStated => u8::from(switches.logit_scale != 0.0),
            Logits::Capped => 3,
            Logits::CappedIfStated if switches.final_softcap != 0.0 => 3,
            Logits::CappedIfStated => 0,
        };
        for _ in 0..steps {
            logits = self.graph.unary(logits);
        }
        self.graph.set_output(logits);
        logits
    }

    // ---- steps that all parts share ----

    /// A weight of the block at hand.
    pub(super) fn weight(&mut self, part: Part) -> Option<Id> {
        let weights = &self.network.weights.blocks[self.block];
        let index = weights.find(part)?;
        let Stored { ty, ne } = weights.weights[index];
        self.built.asked[self.block] |= 1 << (index % 64);
        let memory = self.homes.weight(self.block, index);
        Some(self.graph.stored(ty, ne, Home::Weights(memory)))
    }

    /// Whether the block at hand has this part.
    pub(super) fn has(&self, part: Part) -> bool {
        self.network.weights.blocks[self.block].find(part).is_some()
    }

    /// A product with a weight, if there is one (`build_lora_mm`).
    pub(super) fn product(&mut self, part: Part, of: Id) -> Option<Id> {
        let weight = self.weight(part)?;
        let product = self.graph.mul_mat(weight, of);
        Some(self.adapted(part, product, of, None))
    }

    /// A product with the experts `chosen`, if there is such a weight (`build_lora_mm_id`).
    pub(super) fn product_of_chosen(&mut self, part: Part, of: Id, chosen: Id) -> Option<Id> {
        let weight = self.weight(part)?;
        let product = self.graph.mul_mat_id(weight, of, chosen);
        Some(self.adapted(part, product, of, Some(chosen)))
    }

    /// The product with a weight, and what adapters add to it.
    fn adapted(&mut self, part: Part, mut product: Id, of: Id, chosen: Option<Id>) -> Id {
        let weights = &self.network.weights.blocks[self.block];
        if weights.adapted.is_empty() {
            return product;
        }
        let Some(index) = weights.find(part) else {
            return product;
        };
        let memory = self.homes.weight(self.block, index);
        for (_, pair) in weights.adapted.iter().rev().filter(|(of, _)| *of == index) {
            product = add_product(self.graph, *pair, memory, product, of, chosen);
        }
        product
    }

    /// `build_cvec`: what leaves a block, and the control vector's part for it.
    fn directed(&mut self, stream: Id) -> Id {
        if !self.network.adds_direction(self.block) {
            return stream;
        }
        let memory = match self.homes.block(self.block) {
            Place::Gpu(gpu) => Memory::gpu(gpu),
            Place::Host => Memory::Host,
        };
        let width = [self.network.n_embd, 1, 1, 1];
        let home = Home::Cache(memory);
        let direction = self.graph.stored(TensorType::F32, width, home);
        self.graph.binary(stream, direction)
    }

    /// A sum with a bias, if there is one.
    pub(super) fn biased(&mut self, of: Id, part: Part) -> Id {
        match self.weight(part) {
            Some(bias) => self.graph.binary(of, bias),
            None => of,
        }
    }

    pub(super) fn bare_norm(&mut self, of: Id) -> Id {
        match self.network.style.norm {
            Norm::Rms => self.graph.unary(of),
            Norm::Mean => self.graph.copied(of),
        }
    }

    /// `build_norm`, if there is a weight for it. `named`: whether llama.cpp names it as this block's, by which it may be pinned
    /// to the block's device.
    pub(super) fn norm(
        &mut self,
        of: Id,
        part: Part,
        bias: Option<Part>,
        named: bool,
    ) -> Option<Id> {
        let weight = self.weight(part)?;
        let normed = self.bare_norm(of);
        if named && self.pin_norms {
            let backend = self.backend_of_block();
            self.graph.pin(normed, backend);
        }
        let weighted = self.graph.binary(normed, weight);
        Some(match bias {
            Some(bias) => self.biased(weighted, bias),
            None => weighted,
        })
    }

    /// The device of the block at hand (`llama_model::dev_layer`).
    pub(super) fn backend_of_block(&self) -> Backend {
        match self.homes.block(self.block) {
            Place::Gpu(gpu) => Backend::new(gpu),
            Place::Host => self.cpu,
        }
    }
}

/// Where an adapter's factors lie: beside their weight, but never rearranged. Their buffers are not marked as weights', so that to the
/// scheduler they are like caches.
const fn beside(memory: Memory) -> Home {
    Home::Cache(match memory {
        Memory::Repacked => Memory::Host,
        memory => memory,
    })
}

/// `product + scale * b * (a * of)`.
fn add_product(
    g: &mut Graph,
    pair: Pair,
    memory: Memory,
    product: Id,
    of: Id,
    chosen: Option<Id>,
) -> Id {
    let b = g.stored(pair.b.ty, pair.b.ne, beside(memory));
    let a = g.stored(pair.a.ty, pair.a.ne, beside(memory));
    let added = match chosen {
        None => {
            let inner = g.mul_mat(a, of);
            g.mul_mat(b, inner)
        }
        Some(chosen) => {
            let inner = g.mul_mat_id(a, of, chosen);
            g.mul_mat_id(b, inner, chosen)
        }
    };
    let scaled = g.unary(added);
    g.binary(product, scaled)
}

/// Rows of the token embedding, and what adapters add to them (`build_inp_embd`).
fn adapted_rows(g: &mut Graph, pairs: &[Pair], memory: Memory, mut rows: Id, ids: Id) -> Id {
    for pair in pairs.iter().rev() {
        let b = g.stored(pair.b.ty, pair.b.ne, beside(memory));
        let a = g.stored(pair.a.ty, pair.a.ne, beside(memory));
        let looked_up = g.get_rows(a, ids);
        let added = g.mul_mat(b, looked_up);
        let scaled = g.unary(added);
        rows = g.binary(rows, scaled);
    }
    rows
}
