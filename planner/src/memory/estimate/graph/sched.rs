//! The parts of a graph: ggml's `ggml_backend_sched_split_graph` from pass 5 on (ggml-backend.cpp:1430-1740). A run of nodes on one
//! backend is a split, at whose begin what it needs from elsewhere is copied over.

use super::devices::Devices;
use super::galloc::Listing;
use super::ops::Graph;
use super::tensor::{Backend, Id, Op, Tensor};

/// `GGML_SCHED_MAX_COPIES`: graphs in flight with pipeline parallelism.
const PIPELINE_COPIES: usize = 4;

/// A run of nodes on one backend, and its part of `Scheduler::inputs`.
#[derive(Debug, Clone, Copy)]
struct Range {
    backend: Backend,
    nodes: (usize, usize),
    inputs: (usize, usize),
}

/// The scheduler; keeps its memory between graphs.
#[derive(Debug, Clone, Default)]
pub(super) struct Scheduler {
    /// Graphs in flight.
    n_copies: usize,
    n_backends: usize,
    /// The first copy of each tensor for each backend; the others follow it.
    copies: Vec<Id>,
    ranges: Vec<Range>,
    /// What is copied, split by split.
    inputs: Vec<Id>,
}

impl Scheduler {
    /// Cuts a graph whose nodes have backends, and lists its tensors in the order in which the allocator goes through them.
    pub(super) fn split(
        &mut self,
        graph: &mut Graph,
        devices: &Devices,
        pipeline: bool,
        listing: &mut Listing,
    ) {
        self.n_copies = if pipeline { PIPELINE_COPIES } else { 1 };
        self.n_backends = devices.backends();
        self.ranges.clear();
        self.inputs.clear();
        self.copies.clear();
        self.copies.resize(graph.len() * self.n_backends, Id::NONE);
        self.cut(graph, devices);
        listing.nodes.clear();
        self.list_nodes(graph, listing);
        listing.leafs.clear();
        self.list_leafs(graph, listing);
    }

    /// Parts that the last graph was cut into.
    pub(super) fn n_splits(&self) -> usize {
        self.ranges.len()
    }

    fn cut(&mut self, graph: &mut Graph, devices: &Devices) {
        let computes = |graph: &Graph, i: usize| graph[graph.nodes[i]].op != Op::View;
        let n = graph.nodes.len();
        let Some(first) = (0..n).find(|&i| computes(graph, i)) else {
            return;
        };
        let mut range = Range {
            backend: graph[graph.nodes[first]].backend,
            nodes: (0, n),
            inputs: (0, 0),
        };
        for i in first..n {
            if !computes(graph, i) {
                continue;
            }
            let node = graph.nodes[i];
            let tensor = graph[node];
            if tensor.backend != range.backend || self.borrows_next(graph, devices, &range, &tensor)
            {
                range.nodes.1 = i;
                range.inputs.1 = self.inputs.len();
                self.ranges.push(range);
                range = Range {
                    backend: tensor.backend,
                    nodes: (i, n),
                    inputs: (self.inputs.len(), 0),
                };
            }
            for (j, source) in tensor.src.into_iter().enumerate() {
                if source == Id::NONE
                    || graph[source].backend == range.backend
                    || devices.reaches_tensor(range.backend, graph, source)
                {
                    continue;
                }
                let copy = self.copy(graph, source, range.backend);
                graph[node].src[j] = copy;
            }
        }
        range.inputs.1 = self.inputs.len();
        self.ranges.push(range);
    }

    /// Whether a node needs one more foreign weight in a split that has copied something: then a new split begins, so that the
    /// weight can take the place of the one before.
    fn borrows_next(
        &self,
        graph: &Graph,
        devices: &Devices,
        range: &Range,
        tensor: &Tensor,
    ) -> bool {
        self.inputs.len() > range.inputs.0
            && tensor.sources().any(|source| {
                let source = &graph[source];
                source.backend != range.backend && devices.is_foreign_weight(range.backend, source)
            })
    }

    /// The copy of a tensor for a backend, made where there is none yet.
    fn copy(&mut self, graph: &mut Graph, of: Id, backend: Backend) -> Id {
        let slot = of.index() * self.n_backends + backend.index();
        if self.copies[slot] == Id::NONE {
            self.copies[slot] = self.duplicate(graph, of, self.n_copies);
            self.inputs.push(of);
        }
        self.copies[slot]
    }

    /// Tensors of the same layout, one after the other; the first of them. With several graphs in flight nothing may take their
    /// places.
    fn duplicate(&self, graph: &mut Graph, of: Id, n: usize) -> Id {
        let original = graph[of];
        let mut tensor = Tensor::new(Op::None, original.ty, original.ne);
        tensor.nb = original.nb;
        tensor.input = self.n_copies > 1;
        tensor.output = self.n_copies > 1;
        let first = graph.add_tensor(tensor);
        for _ in 1..n {
            graph.add_tensor(tensor);
        }
        first
    }

    /// Each split: what it copies, then what it computes.
    fn list_nodes(&self, graph: &mut Graph, listing: &mut Listing) {
        for range in &self.ranges {
            for &input in &self.inputs[range.inputs.0..range.inputs.1] {
                // A user of the original, so that it stays until it is copied.
                let original = graph[input];
                let mut user = Tensor::new(Op::None, original.ty, original.ne);
                user.view_src = original.view_src.get().unwrap_or(input);
                user.src[0] = input;
                let user = graph.add_tensor(user);
                listing.nodes.push((user, original.backend));
                let slot = input.index() * self.n_backends + range.backend.index();
                listing.nodes.push((self.copies[slot], range.backend));
            }
            for i in range.nodes.0..range.nodes.1 {
                let node = graph.nodes[i];
                listing.nodes.push((node, graph[node].backend));
            }
        }
    }

    /// With several graphs in flight their inputs and copies come first; then the leafs of the graph.
    fn list_leafs(&self, graph: &mut Graph, listing: &mut Listing) {
        if self.n_copies > 1 {
            for i in 0..graph.leafs.len() {
                let leaf = graph.leafs[i];
                if !graph[leaf].input {
                    continue;
                }
                graph[leaf].output = true;
                let backend = graph[leaf].backend;
                listing.leafs.push((leaf, backend));
                let first = self.duplicate(graph, leaf, self.n_copies - 1);
                for copy in 0..self.n_copies - 1 {
                    listing.leafs.push((first.after(copy), backend));
                }
            }
            for range in &self.ranges {
                for &input in &self.inputs[range.inputs.0..range.inputs.1] {
                    let slot = input.index() * self.n_backends + range.backend.index();
                    for copy in 0..self.n_copies {
                        let copy = self.copies[slot].after(copy);
                        listing.leafs.push((copy, range.backend));
                    }
                }
            }
        }
        let leafs = graph.leafs.iter();
        listing
            .leafs
            .extend(leafs.map(|&leaf| (leaf, graph[leaf].backend)));
    }
}
