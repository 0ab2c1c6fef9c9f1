//! Bytes of weights on each device. They are exact: the code follows llama.cpp's choice of buffer types
//! (llama-model.cpp, `make_cpu_buft_list`, `make_gpu_buft_list`; llama-model-loader.cpp, `create_tensor`). The table
//! keeps each weight, so that overrides can be matched by name without the profile.

use std::sync::Arc;

use crate::memory::backend::BackendRules;
use crate::memory::context::ContextParams;
use crate::profile::{Group, LoraPair, ModelProfile, Weight, WeightRole};

use super::cost::{Cost, Largest};
use super::experts::HostExperts;
use super::host_memory::{HostMemory, Pinned};
use super::{Assignment, Place};

/// One weight.
#[derive(Debug, Clone)]
pub(super) struct StoredWeight {
    pub(super) group: Group,
    kind: Kind,
    pub(super) weight: Weight,
}

/// The origin of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The model's file.
    Model,
    /// A factor of a LoRA adapter. It is on the device of the weight of the same name, and is neither mapped nor
    /// rearranged.
    Lora,
    /// A layer's part of a control vector. It is on the layer's device, and no override can match it by name.
    ControlVector,
}

impl StoredWeight {
    /// Bytes of the weight under these rules.
    fn alloc(&self, rules: &BackendRules) -> u64 {
        rules.alloc(self.weight.ty, self.weight.shape[0], self.weight.bytes)
    }

    /// Like [`Weight::is_matrix`], but false for adapters and control vectors, which no GPU borrows and no CPU
    /// rearranges.
    pub(super) fn is_matrix(&self) -> bool {
        self.kind == Kind::Model && self.weight.is_matrix()
    }
}

/// All weights that llama.cpp loads.
#[derive(Debug, Clone)]
struct Stored {
    weights: Vec<StoredWeight>,
    /// For each block, whether the block uses rope frequencies.
    rope_blocks: Vec<bool>,
}

impl Stored {
    fn new(profile: &ModelProfile) -> Self {
        let of = &profile.weights;
        let store = |group: Group, kind: Kind, weight: &Weight| StoredWeight { group, kind, weight: weight.clone() };
        let own = of.grouped().map(|(group, weight)| store(group, Kind::Model, weight));
        let adapted = profile.adapters.adapted.iter();
        let lora =
            adapted.flat_map(|(group, LoraPair { a, b })| [a, b].map(|factor| store(*group, Kind::Lora, factor)));
        let (blocks, direction) = profile.control_vector();
        let control_vector = blocks.map(|block| store(Group::Block(block), Kind::ControlVector, &direction));
        // A tied output needs a copy of the token embedding.
        let tied = of.output_matrix().filter(|_| of.tied_output).map(|matrix| store(Group::Tied, Kind::Model, matrix));
        let weights = own.chain(lora).chain(control_vector).chain(tied).collect();
        Self { weights, rope_blocks: of.rope_blocks.clone() }
    }
}

impl Largest {
    fn add(&mut self, weight: &StoredWeight) {
        let largest = match (weight.group, weight.weight.role) {
            (Group::Output | Group::Tied, _) => &mut self.output,
            (Group::Input | Group::Rope, _) => return,
            (_, WeightRole::FeedForward | WeightRole::Experts | WeightRole::SharedExperts) => {
                let narrows = weight.weight.name.contains("_down");
                if narrows { &mut self.down } else { &mut self.up }
            }
            _ => &mut self.other,
        };
        *largest = weight.weight.bytes.max(*largest);
    }
}

/// Bytes of one layer's weights on each kind of device.
#[derive(Debug, Clone, Default)]
struct Layer {
    gpus: Vec<u64>,
    host: u64,
    /// The largest matrices, which a GPU may borrow for a large batch.
    largest: Largest,
}

impl Layer {
    fn add(&mut self, weight: &StoredWeight, rules: &[BackendRules]) {
        for (bytes, rules) in self.gpus.iter_mut().zip(rules) {
            *bytes = bytes.saturating_add(weight.alloc(rules));
        }
        self.host = self.host.saturating_add(weight.alloc(&BackendRules::HOST));
        if weight.is_matrix() {
            self.largest.add(weight);
        }
    }

    /// Bytes on a device. A GPU outside the estimate counts as the host.
    fn at(&self, place: Place) -> u64 {
        match place {
            Place::Gpu(gpu) => self.gpus.get(gpu).copied().unwrap_or(self.host),
            Place::Host => self.host,
        }
    }
}

/// A model's weights, summed up by layer for the given GPUs.
#[derive(Debug, Clone)]
pub(super) struct WeightTable {
    stored: Arc<Stored>,
    rules: Vec<BackendRules>,
    /// The facts that decide the buffer types on the host.
    host: HostMemory,
    sums: Arc<Sums>,
}

/// Bytes of each layer, without weights placed elsewhere.
#[derive(Debug, Clone, Default)]
struct Sums {
    /// Bytes that are in the same place under every assignment: on GPUs, and on the host.
    fixed_gpus: Vec<u64>,
    fixed: Layer,
    blocks: Vec<Layer>,
    output: Layer,
    /// The copy of the token embedding that a tied output needs on the output layer's device; empty if the output is
    /// not tied.
    tied: Layer,
    rope: Layer,
    /// The experts of each block if a [cache](super::experts) can hold them, otherwise empty.
    host_experts: Vec<HostExperts>,
}

impl WeightTable {
    pub(super) fn new(profile: &ModelProfile, rules: &[BackendRules], pinned: Pinned, params: &ContextParams) -> Self {
        let (stored, host) = (Arc::new(Stored::new(profile)), HostMemory::new(pinned, params));
        let mut table = Self { stored, rules: rules.to_vec(), host, sums: Arc::default() };
        table.sums = Arc::new(table.sums(&[]));
        table
    }

    /// The table with weights placed apart from their layer: given a weight's name, `place` returns the new place, if
    /// there is one.
    ///
    /// llama.cpp matches the name alone, so input tensors, the output and the copy of a tied embedding move too
    /// (llama-model-loader.cpp, `create_tensor`).
    pub(super) fn overridden(mut self, place: &dyn Fn(&str) -> Option<Place>) -> Self {
        let place = |weight: &StoredWeight| match weight.kind {
            Kind::Model | Kind::Lora => place(&weight.weight.name),
            Kind::ControlVector => None,
        };
        let places: Vec<_> = self.stored.weights.iter().map(place).collect();
        self.sums = Arc::new(self.sums(&places));
        self
    }

    /// The sums with the weights in these places. A place of `None` means that the weight stays with its layer.
    fn sums(&self, places: &[Option<Place>]) -> Sums {
        let (stored, rules) = (&self.stored, &self.rules);
        let empty = Layer { gpus: vec![0; rules.len()], ..Layer::default() };
        let mut sums = Sums {
            fixed_gpus: vec![0; rules.len()],
            blocks: vec![empty.clone(); stored.rope_blocks.len()],
            fixed: empty.clone(),
            output: empty.clone(),
            tied: empty.clone(),
            rope: empty,
            host_experts: self.host_experts(places),
        };
        for (index, weight) in stored.weights.iter().enumerate() {
            let is_tied = weight.group == Group::Tied;
            let of_its_own = (weight.kind == Kind::Model && weight.weight.stays_on_host()).then_some(Place::Host);
            let layer = match places.get(index).copied().flatten().or(of_its_own) {
                Some(Place::Gpu(gpu)) => {
                    // If the embedding is already in the buffer type of a tied output, the output shares it
                    // (llama-model-loader.cpp, `create_tensor`).
                    if let Some(bytes) = sums.fixed_gpus.get_mut(gpu)
                        && !is_tied
                    {
                        *bytes = bytes.saturating_add(weight.alloc(&rules[gpu]));
                    }
                    continue;
                }
                Some(Place::Host) => {
                    if is_tied {
                        sums.fixed.largest.add(weight);
                        if !self.host.keeps_twice(weight) {
                            continue;
                        }
                    }
                    &mut sums.fixed
                }
                None => match weight.group {
                    Group::Input => &mut sums.fixed,
                    Group::Block(block) => match sums.blocks.get_mut(block) {
                        Some(layer) => layer,
                        None => continue,
                    },
                    Group::Output => &mut sums.output,
                    Group::Tied => &mut sums.tied,
                    Group::Rope => &mut sums.rope,
                },
            };
            layer.add(weight, rules);
        }
        sums
    }

    /// The experts of each block, if all of them are in plain memory of the host, wherever the block itself is.
    /// Rearranged weights are not counted (llama-moe-cache.cpp, `llama_moe_cache_is_host_weight`).
    fn host_experts(&self, places: &[Option<Place>]) -> Vec<HostExperts> {
        let mut all = vec![HostExperts::default(); self.stored.rope_blocks.len()];
        for (index, weight) in self.stored.weights.iter().enumerate() {
            if let (Kind::Model, Group::Block(block)) = (weight.kind, weight.group)
                && let Some(experts) = all.get_mut(block)
            {
                let place = places.get(index).copied().flatten();
                let is_on_host = place == Some(Place::Host) || weight.weight.stays_on_host();
                experts.add(&weight.weight, is_on_host && !self.host.repacks(weight));
            }
        }
        all.iter_mut().for_each(HostExperts::finish);
        all
    }

    /// For each block, the experts that a cache can hold if the block is on a GPU.
    pub(super) fn experts_on_host(&self) -> &[HostExperts] {
        &self.sums.host_experts
    }

    /// The rules of a GPU's backend.
    pub(super) fn rules(&self, gpu: usize) -> Option<&BackendRules> {
        self.rules.get(gpu)
    }

    /// Bytes of a weight on a GPU.
    pub(super) fn weight_bytes(&self, gpu: usize, weight: &Weight) -> u64 {
        self.rules.get(gpu).map_or(0, |rules| rules.alloc(weight.ty, weight.shape[0], weight.bytes))
    }

    /// Bytes that a layer adds to a device. `il` is a block, or the number of blocks for the output layer. If the
    /// output is tied, the host already has its matrix.
    pub(super) fn layer_bytes(&self, place: Place, il: usize) -> u64 {
        let Sums { blocks, output, tied, .. } = &*self.sums;
        match (blocks.get(il), place) {
            (Some(block), _) => block.at(place),
            (None, Place::Gpu(_)) => output.at(place).saturating_add(tied.at(place)),
            (None, Place::Host) => output.host,
        }
    }

    /// Adds the weights under this assignment.
    pub(super) fn add_to(&self, cost: &mut Cost, assignment: &Assignment) {
        let sums = &self.sums;
        let mut put = |layer: &Layer, place| {
            let share = cost.at(place);
            share.weights = share.weights.saturating_add(layer.at(place));
            share.largest = share.largest.max(layer.largest);
        };
        put(&sums.fixed, Place::Host);
        for (block, &place) in sums.blocks.iter().zip(&assignment.blocks) {
            put(block, place);
        }
        put(&sums.output, assignment.output);
        let tied = self.stored.weights.last().filter(|last| last.group == Group::Tied);
        let twice = tied.is_some_and(|tied| self.host.keeps_twice(tied));
        if assignment.output != Place::Host || twice {
            put(&sums.tied, assignment.output);
        }
        // There is one copy in each buffer type that contains a block with rope frequencies.
        for place in (0..self.rules.len()).map(Place::Gpu).chain([Place::Host]) {
            let mut blocks = assignment.blocks.iter().zip(&self.stored.rope_blocks);
            if blocks.any(|(&block, &uses)| uses && block == place) {
                put(&sums.rope, place);
            }
        }
        for (share, &fixed) in cost.gpus.iter_mut().zip(&sums.fixed_gpus) {
            share.weights = share.weights.saturating_add(fixed);
        }
        let host = &mut cost.host;
        host.weights = host.weights.saturating_add(self.host.beside(host.weights));
        if assignment.output == Place::Host {
            host.largest = host.largest.max(sums.tied.largest);
        }
        cost.weights_moved = sums.fixed_gpus.iter().any(|&bytes| bytes > 0) || sums.fixed.largest.output > 0;
    }
}
