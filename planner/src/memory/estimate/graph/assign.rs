//! Who computes what: passes 1 to 4 of ggml's `ggml_backend_sched_split_graph` (ggml-backend.cpp:1160-1430).

use super::devices::Devices;
use super::ops::Graph;
use super::tensor::{Backend, Home, Id, Memory, Op, Tensor};

/// Gives every tensor of the graph a backend. `borrow`: whether GPUs compute large batches with weights of the host (`op_offload`).
pub(super) fn assign(graph: &mut Graph, devices: &Devices, borrow: bool) {
    for i in 0..graph.leafs.len() {
        let leaf = graph.leafs[i];
        by_memory(graph, devices, borrow, leaf);
    }
    for i in 0..graph.nodes.len() {
        let node = graph.nodes[i];
        by_memory(graph, devices, borrow, node);
    }
    let n = graph.nodes.len();
    let cpu = devices.cpu();
    spread(graph, devices, 0..n, Some(cpu));
    spread(graph, devices, (0..n).rev(), Some(cpu));
    spread(graph, devices, 0..n, None);
    spread(graph, devices, (0..n).rev(), None);
    by_operands(graph, devices);
    rest(graph, devices);
}

/// Pass 1 (`ggml_backend_sched_backend_id_from_cur`): what lies in memory already, inputs, and what computes with weights.
fn by_memory(graph: &mut Graph, devices: &Devices, borrow: bool, id: Id) {
    if graph[id].backend.is_chosen() {
        return;
    }
    let tensor = &graph[id];
    let home = match tensor.view_src.get() {
        Some(source) => graph[source].home,
        None => tensor.home,
    };
    let backend = if let Some(memory) = home.memory() {
        of_memory(graph, devices, memory, tensor)
    } else if tensor.input {
        devices.cpu()
    } else if matches!(tensor.op, Op::Rope | Op::FlashAttn) {
        // Their weights, factors and sinks, are too small to decide.
        Backend::NONE
    } else {
        by_weights(graph, devices, borrow, tensor)
    };
    graph[id].backend = backend;
}

/// `ggml_backend_sched_backend_from_buffer`: the backend that reaches this memory and runs the operation.
fn of_memory(graph: &Graph, devices: &Devices, memory: Memory, tensor: &Tensor) -> Backend {
    let backend = match memory {
        Memory::Gpu(gpu) => Backend::new(gpu.into()),
        Memory::Host | Memory::Repacked => devices.cpu(),
    };
    if devices.runs(backend, graph, tensor) {
        backend
    } else {
        Backend::NONE
    }
}

/// The backend of the first weight among the operands, or a GPU that borrows it.
fn by_weights(graph: &Graph, devices: &Devices, borrow: bool, tensor: &Tensor) -> Backend {
    for source in tensor.sources() {
        let Home::Weights(memory) = graph[source].home else {
            continue;
        };
        if borrow && memory == Memory::Host {
            let gpus = (0..devices.gpus()).map(Backend::new);
            for gpu in gpus {
                if devices.runs(gpu, graph, tensor) && devices.borrows(gpu, tensor) {
                    return gpu;
                }
            }
        }
        return of_memory(graph, devices, memory, tensor);
    }
    Backend::NONE
}

/// Pass 2: nodes without a backend take that of the node before (or behind, in the other direction), if it runs them; `barrier` is a
/// backend that does not spread.
fn spread(
    graph: &mut Graph,
    devices: &Devices,
    order: impl Iterator<Item = usize>,
    barrier: Option<Backend>,
) {
    let mut current = Backend::NONE;
    for i in order {
        let id = graph.nodes[i];
        let tensor = &graph[id];
        if tensor.op == Op::View {
            continue;
        }
        if tensor.backend.is_chosen() {
            current = if Some(tensor.backend) == barrier {
                Backend::NONE
            } else {
                tensor.backend
            };
        } else if current.is_chosen() && devices.runs(current, graph, tensor) {
            graph[id].backend = current;
        }
    }
}

/// Pass 3: what no neighbour runs goes to the backend that reaches most of its operands. (Upgrades to backends with the same memory
/// do not occur: each has its own.)
fn by_operands(graph: &mut Graph, devices: &Devices) {
    for i in 0..graph.nodes.len() {
        let id = graph.nodes[i];
        let tensor = graph[id];
        if tensor.op == Op::View || tensor.backend.is_chosen() {
            continue;
        }
        let mut most = None;
        for backend in (0..devices.backends()).map(Backend::new) {
            if !devices.runs(backend, graph, &tensor) {
                continue;
            }
            let reached = tensor
                .sources()
                .filter(|&source| {
                    let whole = graph[source].view_src.get();
                    let chosen = graph[source].backend.is_chosen()
                        || whole.is_some_and(|whole| graph[whole].backend.is_chosen());
                    chosen && devices.reaches_tensor(backend, graph, source)
                })
                .count();
            if most.is_none_or(|most| reached > most) {
                most = Some(reached);
                graph[id].backend = backend;
            }
        }
    }
}

/// Pass 4: views go where what they look at is, operands where they are needed.
fn rest(graph: &mut Graph, devices: &Devices) {
    for i in 0..graph.nodes.len() {
        let id = graph.nodes[i];
        if let Some(whole) = graph[id].view_src.get()
            && !graph[id].backend.is_chosen()
        {
            graph[id].backend = graph[whole].backend;
        }
        let backend = graph[id].backend;
        for source in graph[id].sources() {
            if graph[source].backend.is_chosen() {
                continue;
            }
            graph[source].backend = match graph[source].view_src.get() {
                Some(whole) => graph[whole].backend,
                None => backend,
            };
        }
        if !graph[id].backend.is_chosen() {
            let tensor = &graph[id];
            let first = (0..devices.backends())
                .map(Backend::new)
                .find(|&backend| devices.runs(backend, graph, tensor));
            graph[id].backend = first.unwrap_or_else(|| devices.cpu());
        }
    }
}
