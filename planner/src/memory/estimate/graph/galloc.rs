//! The places of a graph's tensors: ggml's `ggml_gallocr` (ggml-alloc.c:600-800). A tensor takes its place when it is first
//! needed and gives it up with its last use; some operations overwrite an operand instead.

use super::devices::Devices;
use super::ops::Graph;
use super::tallocr::{Address, Allocator};
use super::tensor::{Backend, Home, Id, Op};

/// What is known of a tensor while the graph is gone through (`hash_node`).
#[derive(Debug, Clone, Copy, Default)]
struct State {
    children: u32,
    views: u32,
    /// The backend whose buffer it lies in.
    buffer: usize,
    address: Address,
    /// Whether it takes a place.
    allocated: bool,
}

/// A graph as the scheduler hands it over: tensors, each with the backend whose buffer it goes to.
#[derive(Debug, Clone, Default)]
pub(super) struct Listing {
    pub(super) nodes: Vec<(Id, Backend)>,
    pub(super) leafs: Vec<(Id, Backend)>,
}

/// A place between two blocks of a graph.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    /// The first node behind it.
    pub(super) node: Id,
    /// The tensors that were made for the block before: from the first to behind the last.
    pub(super) made: (usize, usize),
}

/// The allocators of all backends; keeps its memory between graphs.
#[derive(Debug, Clone, Default)]
pub(super) struct GraphAllocator {
    states: Vec<State>,
    buffers: Vec<Allocator>,
    /// What was reserved so far: bytes of each buffer of each backend.
    reserved: Vec<Vec<u64>>,
    /// The state at each mark of the last graph: gaps, and what of the block before still has its place.
    seen: Vec<Vec<u64>>,
}

impl GraphAllocator {
    /// Gives back what was reserved.
    pub(super) fn release(&mut self) {
        self.reserved.iter_mut().for_each(Vec::clear);
    }

    /// Bytes reserved in each backend's compute buffer.
    pub(super) fn sizes(&self, devices: &Devices) -> Vec<u64> {
        let backends = self.reserved[..devices.backends()].iter().enumerate();
        let sizes = backends.map(|(backend, chunks)| {
            let extra = devices.layout(Backend::new(backend)).extra;
            let taken = chunks.iter().filter(|&&bytes| bytes > 0);
            taken.fold(0, |sum: u64, &bytes| {
                sum.saturating_add(bytes).saturating_add(extra)
            })
        });
        sizes.collect()
    }

    /// Reserves what this graph needs, where that is more than what is reserved (`ggml_gallocr_reserve_n_impl`).
    ///
    /// `marks` are the places, in order, at which the state of the allocator is to be compared.
    pub(super) fn reserve(
        &mut self,
        graph: &Graph,
        listing: &Listing,
        devices: &Devices,
        marks: &[Mark],
    ) {
        self.pack(graph, listing, devices, marks);
        if self.reserved.len() < devices.backends() {
            self.reserved.resize_with(devices.backends(), Vec::new);
        }
        for (reserved, buffer) in self.reserved.iter_mut().zip(&self.buffers) {
            let before = reserved.iter().copied().chain(std::iter::repeat(0));
            if buffer.chunks().zip(before).any(|(is, was)| is > was) {
                reserved.clear();
                reserved.extend(buffer.chunks());
            }
        }
    }

    /// `ggml_gallocr_alloc_graph_impl`.
    fn pack(&mut self, graph: &Graph, listing: &Listing, devices: &Devices, marks: &[Mark]) {
        self.seen.iter_mut().for_each(Vec::clear);
        self.states.clear();
        self.states.resize(graph.len(), State::default());
        self.buffers
            .resize_with(devices.backends(), Allocator::default);
        for (index, buffer) in self.buffers.iter_mut().enumerate() {
            let layout = devices.layout(Backend::new(index));
            buffer.reset(layout.alignment, layout.max_chunk);
        }
        for &(leaf, backend) in &listing.leafs {
            self.allocate(graph, devices, leaf, backend);
        }
        self.count(graph, listing, devices);
        let mut n_seen = 0;
        for &(node, backend) in &listing.nodes {
            if let Some(mark) = marks.get(n_seen).filter(|mark| mark.node == node) {
                self.see(mark, n_seen);
                n_seen += 1;
            }
            for source in graph[node].sources() {
                self.allocate(graph, devices, source, backend);
            }
            self.allocate(graph, devices, node, backend);
            for source in graph[node].sources() {
                self.done_with(graph, devices, source);
            }
        }
    }

    /// Whether the allocator was in the same state at two marks.
    pub(super) fn saw_the_same(&self, a: usize, b: usize) -> bool {
        let seen = |at: usize| self.seen.get(at).filter(|state| !state.is_empty());
        seen(a).is_some() && seen(a) == seen(b)
    }

    fn see(&mut self, mark: &Mark, index: usize) {
        if self.seen.len() <= index {
            self.seen.push(Vec::new());
        }
        let state = &mut self.seen[index];
        state.clear();
        for buffer in &self.buffers {
            buffer.describe(state);
        }
        let (first, behind) = mark.made;
        for (i, tensor) in self.states[first..behind].iter().enumerate() {
            if tensor.allocated {
                let (chunk, offset) = tensor.address.parts();
                state.extend([i as u64, tensor.buffer as u64, chunk, offset]);
            }
        }
    }

    /// Counts the users of every tensor; inputs take their places now, so that nothing overwrites them.
    fn count(&mut self, graph: &Graph, listing: &Listing, devices: &Devices) {
        for &(node, backend) in &listing.nodes {
            let tensor = &graph[node];
            if tensor.is_view() && tensor.op != Op::None {
                self.states[tensor.view_src.index()].views += 1;
            }
            if tensor.input {
                self.allocate(graph, devices, node, backend);
            }
            for source in tensor.sources() {
                self.states[source.index()].children += 1;
                if graph[source].input {
                    self.allocate(graph, devices, source, backend);
                }
            }
        }
    }

    /// `ggml_gallocr_allocate_node`.
    fn allocate(&mut self, graph: &Graph, devices: &Devices, id: Id, backend: Backend) {
        let tensor = &graph[id];
        let elsewhere = tensor.home != Home::Graph;
        if elsewhere || tensor.is_view() || self.states[id.index()].allocated {
            return;
        }
        if tensor.op.can_inplace() && self.overwrite(graph, devices, id) {
            return;
        }
        let size = devices.alloc_size(graph, id, backend);
        let buffer = backend.index();
        let address = self.buffers[buffer].alloc(size);
        let state = &mut self.states[id.index()];
        (state.allocated, state.buffer, state.address) = (true, buffer, address);
    }

    /// Takes the place of the first operand of the same layout that nobody else needs.
    ///
    /// ggml also means to take the place of what an operand is a view of, but views count as never allocated
    /// (`ggml_gallocr_is_own`), so that it does not.
    fn overwrite(&mut self, graph: &Graph, devices: &Devices, id: Id) -> bool {
        let tensor = &graph[id];
        for operand in tensor.sources() {
            let state = self.states[operand.index()];
            let from = &graph[operand];
            let free = state.allocated && !from.output && state.children == 1 && state.views == 0;
            if !free || from.is_view() || !tensor.same_layout(from) {
                continue;
            }
            let backend = Backend::new(state.buffer);
            let was = devices.alloc_size(graph, operand, backend);
            let is = devices.alloc_size(graph, id, backend);
            let buffer = &mut self.buffers[state.buffer];
            let (was, is) = (buffer.padded(was), buffer.padded(is));
            if was > is {
                buffer.free(state.address.beyond(is), was - is);
            }
            self.states[operand.index()].allocated = false;
            let state_of = &mut self.states[id.index()];
            (state_of.allocated, state_of.buffer) = (true, state.buffer);
            state_of.address = state.address;
            return true;
        }
        false
    }

    /// A user of `id` is done with it.
    fn done_with(&mut self, graph: &Graph, devices: &Devices, id: Id) {
        let state = &mut self.states[id.index()];
        state.children -= 1;
        if state.children > 0 || state.views > 0 {
            return;
        }
        let whole = match graph[id].view_src.get() {
            Some(source) => {
                let seen = &mut self.states[source.index()];
                seen.views = seen.views.saturating_sub(1);
                source
            }
            None => id,
        };
        let state = self.states[whole.index()];
        let unused = state.children == 0 && state.views == 0;
        if unused && state.allocated && !graph[whole].output {
            let size = devices.alloc_size(graph, whole, Backend::new(state.buffer));
            self.buffers[state.buffer].free(state.address, size);
            self.states[whole.index()].allocated = false;
        }
    }
}
