//! Bytes of the compute buffers by going through what llama.cpp does when it reserves them, without a tensor in memory:
//!
//! 1. [`build`] makes the graph of the largest computation, block after block, as `models/*.cpp` do;
//! 2. [`assign`] gives every node a backend and [`sched`] cuts the graph where it changes, as `ggml_backend_sched_split_graph`;
//! 3. [`galloc`] packs the tensors as `ggml_gallocr_reserve`.
//!
//! The result is equal to llama.cpp's to the byte wherever [`ComputeGraph::is_exact`] says so. Equal blocks in a row are gone
//! through a few times only ([`repeat`]), so that a call takes some hundred microseconds at most, whatever the model's depth.
//!
//! Not in it: what a backend's `graph_optimize` changes beside the graph itself. CUDA keeps a few small tensors of a mixture of
//! experts longer (ggml-cuda.cu:4604), Vulkan and Metal reorder nodes.

mod assign;
mod attention;
mod build;
mod devices;
mod feed_forward;
mod galloc;
mod located;
mod memo;
mod network;
mod ops;
mod repeat;
mod sched;
mod style;
mod tallocr;
mod tensor;
mod weights;

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use crate::machine::Gpu;
use crate::memory::backend::{BackendRules, Family};
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::ModelProfile;

use self::build::{Batch, Build, Built, Caches, Homes};
use self::devices::{AttentionShape, Devices};
use self::galloc::{GraphAllocator, Listing, Mark};
use self::located::{Located, Overrides};
use self::memo::{Key, Memo};
use self::network::Network;
use self::ops::Graph;
use self::repeat::{SETTLING, Selection};
use self::sched::Scheduler;
use self::style::Residual;
use super::compute::ComputeBytes;
use super::{Assignment, Place};

/// The compute buffers of one model on given GPUs, for one set of parameters.
#[derive(Debug, Clone)]
pub(super) struct ComputeGraph {
    network: Network,
    devices: Devices,
    overrides: Option<Overrides>,
    batch: Batch,
    /// The computation by which llama.cpp finds out whether attention can be fused: a token of each sequence.
    trial: Batch,
    caches: Caches,
    flash: FlashAttention,
    /// Whether each GPU is known to fuse attention of this shape.
    fuses: bool,
    /// Whether each GPU is known to lay tensors out as we do.
    lays_out: bool,
    /// Whether each GPU takes rows out of a token embedding of this type.
    looks_up: bool,
    borrow: bool,
    /// Whether the CPU may rearrange matrices of the host, and then computes with them itself.
    repacks: bool,
    memo: Memo,
}

/// What is reused from call to call.
#[derive(Default)]
struct Workspace {
    graph: Graph,
    scheduler: Scheduler,
    listing: Listing,
    allocator: GraphAllocator,
    selection: Selection,
    marks: Vec<Mark>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// One way in which a placement may turn out, and how much of the model is gone through.
#[derive(Clone, Copy)]
struct Case<'a> {
    located: &'a Located<'a>,
    devices: &'a Devices,
    /// Whether these devices fuse attention.
    fuses: bool,
    reduced: bool,
}

impl ComputeGraph {
    /// `None` where we do not know the graph of this model. `window_cells`: cells of the caches that keep a window; `pinned`:
    /// whether the host's weights lie in memory that a GPU has pinned, in which the CPU rearranges nothing.
    pub(super) fn new(
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
        sizes: &ContextSizes,
        window_cells: u64,
        pinned: bool,
    ) -> Option<Self> {
        let network = Network::of(profile)?;
        let (head_k, head_v, shared) = network.attention_shape();
        let (type_k, type_v) = (params.type_k.tensor_type(), params.type_v.tensor_type());
        let shape = AttentionShape {
            head_k,
            head_v,
            shared,
            type_k,
            type_v,
        };
        let devices = Devices::new(gpus);
        let sequences = u64::from(params.n_seq_max);
        let graph = Self {
            fuses: devices.fuse(&shape),
            looks_up: network.weights.embedding.is_some_and(|rows| {
                let mut families = gpus.iter().map(|gpu| Family::of(&gpu.backend));
                families.all(|family| family.looks_up(rows.ty, rows.ne[0]))
            }),
            lays_out: gpus.iter().all(|gpu| BackendRules::are_exact_for(gpu)),
            devices,
            overrides: None,
            batch: Batch {
                tokens: sizes.n_tokens,
                outputs: sizes.n_outputs,
            },
            trial: Batch {
                tokens: sequences,
                outputs: sequences,
            },
            caches: Caches {
                type_k,
                type_v,
                cells: sizes.cells,
                window_cells,
                streams: sizes.streams,
                transposed: params.flash_attn == FlashAttention::Off,
                offloaded: params.offload_kqv,
            },
            flash: params.flash_attn,
            borrow: params.op_offload,
            repacks: params.repack && !pinned && !gpus.is_empty(),
            memo: Memo::default(),
            network,
        };
        graph.uses_all_weights().then_some(graph)
    }

    /// The same model with nothing added to it: adapters may be left out of a computation.
    pub(super) fn without_adapters(&self) -> Self {
        Self {
            network: self.network.clone().without_adapters(),
            memo: Memo::default(),
            ..self.clone()
        }
    }

    /// The same with weights where overrides put them. With an override list, even one that moves nothing, llama.cpp keeps no
    /// copies of a graph in flight (llama-context.cpp:437).
    pub(super) fn overridden(mut self, place: impl Fn(&str) -> Option<Place>) -> Self {
        self.overrides = Some(Overrides::of(&self.network.weights, place));
        self.memo = Memo::default();
        self
    }

    /// Bytes of the compute buffers under this assignment; the largest of what they may be where that is not
    /// [known](Self::is_exact).
    pub(super) fn bytes(&self, assignment: &Assignment) -> ComputeBytes {
        self.bytes_by(assignment, true)
    }

    /// `reduced`: whether repeated blocks are left out, which changes nothing but the time it takes.
    fn bytes_by(&self, assignment: &Assignment, reduced: bool) -> ComputeBytes {
        let without =
            (!self.fuses_surely()).then(|| self.devices.clone().without_fused_attention());
        let may_repack = self.may_repack(assignment);
        let mut most = vec![0; self.devices.backends()];
        for repacked in [false, true] {
            if repacked && !may_repack {
                continue;
            }
            let located = self.located(assignment, repacked);
            for devices in [Some(&self.devices), without.as_ref()]
                .into_iter()
                .flatten()
            {
                let sizes = self.sizes(Case {
                    located: &located,
                    devices,
                    fuses: std::ptr::eq(devices, &raw const self.devices),
                    reduced,
                });
                for (most, size) in most.iter_mut().zip(sizes) {
                    *most = size.max(*most);
                }
            }
        }
        let host = most.pop().unwrap_or_default();
        ComputeBytes { gpus: most, host }
    }

    /// Whether these are llama.cpp's own bytes: not where a GPU lays tensors out in a way that we have not read, where GPUs may or
    /// may not fuse attention for heads of this size, nor where the CPU may or may not have rearranged a matrix that a GPU would
    /// borrow, nor where a GPU is given a token embedding that it cannot look up.
    pub(super) fn is_exact(&self, assignment: &Assignment) -> bool {
        let overrides = self.overrides.as_ref();
        let looks_up = self.looks_up || !overrides.is_some_and(Overrides::move_embedding);
        self.lays_out && looks_up && self.fuses_surely() && !self.may_repack(assignment)
    }

    fn fuses_surely(&self) -> bool {
        match self.flash {
            FlashAttention::Off => true,
            FlashAttention::On => self.fuses,
            // Whether AUTO keeps attention fused depends on where it comes to be computed. Seen otherwise than here: attention beside
            // a feed-forward step, its cache on the host, and weights elsewhere than their layer.
            FlashAttention::Auto => {
                let beside = self.network.style.residual != Residual::Sequential;
                let torn = beside && !self.caches.offloaded;
                self.fuses && !(torn && self.overrides.is_some())
            }
        }
    }

    fn may_repack(&self, assignment: &Assignment) -> bool {
        let on_host = assignment.layers().any(|place| place == Place::Host);
        self.repacks && (on_host || self.overrides.is_some())
    }

    fn located<'a>(&'a self, assignment: &'a Assignment, repacked: bool) -> Located<'a> {
        Located {
            weights: &self.network.weights,
            assignment,
            overrides: self.overrides.as_ref(),
            repacked,
        }
    }

    /// Bytes per backend.
    fn sizes(&self, case: Case<'_>) -> Vec<u64> {
        WORKSPACE.with_borrow_mut(|space| {
            let trunk = self.network.trunk;
            let settling: &[usize] = if case.reduced { &SETTLING } else { &[] };
            for &periods in settling {
                let same = |a, b| self.alike(case.located, a, b);
                space.selection.representative(trunk, periods, same);
                let key = self.key(case, &space.selection.blocks);
                let found = match key.as_ref().and_then(|key| self.memo.get(key)) {
                    Some(found) => found,
                    None => {
                        let whole = self.reserve_all(space, case);
                        let found = whole.then(|| space.allocator.sizes(case.devices));
                        if let Some(key) = key {
                            self.memo.put(key, found.clone());
                        }
                        found
                    }
                };
                if let Some(sizes) = found {
                    return sizes;
                }
            }
            space.selection.all(trunk);
            self.reserve_all(space, case);
            space.allocator.sizes(case.devices)
        })
    }

    /// What the sizes depend on; `None` with overrides, by which blocks differ in more than their kind.
    fn key(&self, case: Case<'_>, blocks: &[usize]) -> Option<Key> {
        if self.overrides.is_some() {
            return None;
        }
        let located = case.located;
        let mut key = Key::with_capacity(blocks.len() + 1);
        let variant = usize::from(located.repacked) * 2 + usize::from(case.fuses);
        key.push((variant, located.assignment.output));
        key.extend(blocks.iter().map(|&block| {
            let place = located.block(block);
            (self.class(place, block), place)
        }));
        Some(key)
    }

    /// The kind of a block at a place. Types matter only where a weight may be copied.
    fn class(&self, place: Place, block: usize) -> usize {
        match place {
            Place::Gpu(_) => self.network.shape_class[block],
            Place::Host => self.network.type_class[block],
        }
    }

    /// Reserves what llama.cpp does, for the selected blocks. `false` where they do not stand for all.
    ///
    /// That is the graph of a prompt, that of a token of each sequence, and that of a prompt again (llama-context.cpp:668-720): in
    /// the end the buffers are those of the second if these are nowhere smaller, else those of the first. So the second is
    /// enough to begin with, the more so as it is the one by which AUTO finds out whether attention can be fused.
    fn reserve_all(&self, space: &mut Workspace, case: Case<'_>) -> bool {
        let mut fused = self.flash != FlashAttention::Off;
        let mut built = self.assign(space, case, self.trial, fused);
        if self.flash == FlashAttention::Auto && !stays_fused(&space.graph, &built) {
            fused = false;
            built = self.assign(space, case, self.trial, fused);
        }
        space.allocator.release();
        self.reserve(space, case, &built) && {
            let built = self.assign(space, case, self.batch, fused);
            self.reserve(space, case, &built)
        }
    }

    /// Builds the graph of one batch and gives every node a backend.
    fn assign(&self, space: &mut Workspace, case: Case<'_>, batch: Batch, fused: bool) -> Built {
        let graph = &mut space.graph;
        let built = self.build(graph, case.located, batch, fused, &space.selection.blocks);
        assign::assign(graph, case.devices, self.borrow);
        built
    }

    /// Reserves what the graph at hand needs. `false` where the selected blocks do not stand for all.
    fn reserve(&self, space: &mut Workspace, case: Case<'_>, built: &Built) -> bool {
        let Workspace {
            graph,
            scheduler,
            listing,
            allocator,
            selection,
            marks,
        } = space;
        marks.clear();
        marks.extend(selection.places().map(|place| Mark {
            node: graph.nodes[built.before[place].nodes],
            made: (built.before[place - 1].tensors, built.before[place].tensors),
        }));
        let pipeline = self.is_pipelined(case);
        scheduler.split(graph, case.devices, pipeline, listing);
        allocator.reserve(graph, listing, case.devices, marks);
        // What is copied between splits keeps its place with several graphs in flight: then every split counts.
        let few_splits = !pipeline || scheduler.n_splits() <= case.devices.backends();
        let mut checks = 0..selection.checks.len();
        checks.is_empty()
            || (few_splits && checks.all(|n| allocator.saw_the_same(2 * n, 2 * n + 1)))
    }

    /// Whether four copies of the graph are in flight (llama-context.cpp:429-460).
    fn is_pipelined(&self, case: Case<'_>) -> bool {
        case.devices.gpus() > 1
            && case.located.is_offloaded()
            && self.caches.offloaded
            && self.overrides.is_none()
            && case.devices.are_asynchronous()
    }

    fn build(
        &self,
        graph: &mut Graph,
        located: &Located<'_>,
        batch: Batch,
        fused: bool,
        blocks: &[usize],
    ) -> Built {
        graph.clear();
        let build = Build::new(graph, &self.network, located, batch, self.caches);
        build.model(blocks, fused, located.is_offloaded(), self.devices.cpu())
    }

    /// Whether the graph computes with every weight of every block: otherwise it is not the one that llama.cpp makes.
    fn uses_all_weights(&self) -> bool {
        let assignment = Assignment {
            blocks: vec![Place::Host; self.network.states.len()],
            output: Place::Host,
        };
        let located = self.located(&assignment, false);
        let all: Vec<usize> = (0..self.network.trunk).collect();
        let built = WORKSPACE.with_borrow_mut(|space| {
            self.build(&mut space.graph, &located, self.trial, true, &all)
        });
        let mut blocks = built.asked.iter().zip(&self.network.weights.blocks);
        blocks.all(|(&asked, block)| {
            let n = block.weights.len();
            n < 64 && asked == (1 << n) - 1
        })
    }

    /// Whether two blocks make the same nodes with the same sizes on the same devices.
    fn alike(&self, located: &Located<'_>, a: usize, b: usize) -> bool {
        let place = located.block(a);
        if place != located.block(b) {
            return false;
        }
        if self.overrides.is_none() {
            return self.class(place, a) == self.class(place, b);
        }
        let network = &self.network;
        network.type_class[a] == network.type_class[b]
            && (0..network.weights.blocks[a].weights.len())
                .all(|index| located.weight(a, index) == located.weight(b, index))
    }
}

/// AUTO: whether every fused attention is on the device of its block (llama-context.cpp:504, `resolve_fused_ops`).
fn stays_fused(graph: &Graph, built: &Built) -> bool {
    let mut nodes = built.fused_nodes.iter();
    nodes.all(|&(node, backend)| graph[node].backend == backend)
}
