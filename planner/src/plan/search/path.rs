//! Paths through the layers, in ascending cost: the host takes the first layers, then each GPU of an order takes a run.
//!
//! Apart from compute buffers, the costs of runs do not depend on each other. If compute buffers are ignored, one pass
//! from the last layer to the first gives the cheapest completion of a path from each layer. The cost of this
//! completion is the bound of an A* search: paths leave the heap in ascending cost, so the first path that also fits
//! with its compute buffers is the cheapest one that fits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::RangeInclusive;

use super::prices::{Prices, Runs};
use super::setting_costs::{HOST_ROLES, host_role};
use super::table::Run;

/// The cheapest completion of a path from each layer, for one order of GPUs.
#[derive(Debug)]
pub(super) struct CostToGo {
    /// `cost[n][begin]`: the least cost of the layers from `begin` on, if the GPUs from the `n`th on take them.
    cost: Vec<Vec<f64>>,
    /// The least number of bytes that a completion with these layers leaves to the host.
    host: Vec<Vec<u64>>,
}

impl CostToGo {
    /// `runs` caches the runs of each GPU, because several orders need the same runs. The key is the GPU, the first GPU
    /// of the order, and whether the GPU is the last one in the order.
    pub(super) fn new(prices: &Prices<'_>, runs: &mut BTreeMap<(usize, usize, bool), Runs>) -> Self {
        let Prices { table, order, .. } = *prices;
        let layers = table.layers as usize;
        let mut cost = vec![vec![f64::INFINITY; layers + 1]; order.len() + 1];
        let mut host = vec![vec![u64::MAX; layers + 1]; order.len() + 1];
        cost[order.len()][layers] = 0.0;
        host[order.len()][layers] = 0;
        for (n, &gpu) in order.iter().enumerate().rev() {
            let way = prices.way(n);
            let key = (gpu, order[0], n + 1 == order.len());
            for (begin, runs) in runs.entry(key).or_insert_with(|| prices.runs(n)).iter().enumerate() {
                for &(end, least, on_host) in runs {
                    let all = way + least + cost[n + 1][end as usize];
                    let on_host = host[n + 1][end as usize].saturating_add(on_host);
                    cost[n][begin] = cost[n][begin].min(all);
                    host[n][begin] = host[n][begin].min(on_host);
                }
            }
        }
        Self { cost, host }
    }
}

/// A whole path, or the beginning of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// Indices of the setting and of the order of GPUs.
    pub(super) setting: usize,
    pub(super) order: usize,
    /// The number of layers on the host.
    pub(super) first: u32,
    /// For each GPU, the end of its run and the number of its parts on the host.
    pub(super) runs: Vec<(u32, u32)>,
    /// Whether the graph has a single copy although llama.cpp would make four.
    pub(super) single_copy: bool,
}

impl Path {
    fn end(&self) -> u32 {
        self.runs.last().map_or(self.first, |&(end, _)| end)
    }

    /// The runs, each with its first layer.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        let begins = std::iter::once(self.first).chain(self.runs.iter().map(|&(end, _)| end));
        begins.zip(&self.runs).enumerate().map(|(n, (begin, &(end, kept)))| Run::new(n, begin, end, kept))
    }

    /// The number of layers on each GPU.
    pub(super) fn counts(&self) -> Vec<u32> {
        self.runs().map(|run| run.end - run.begin).collect()
    }

    /// Number of parts on the host.
    pub(super) fn kept(&self) -> u32 {
        self.runs.iter().map(|&(_, kept)| kept).fold(0, u32::saturating_add)
    }

    /// Whether llama.cpp would make four copies of the graph.
    pub(super) fn is_pipelined(&self) -> bool {
        self.runs.len() > 1 && self.first == 0 && self.kept() == 0 && !self.single_copy
    }
}

/// A path in the heap.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    /// The least cost of any completion of the path.
    pub(super) bound: f64,
    /// The cost of the path so far.
    cost: f64,
    /// The most that the last run may save by keeping further parts on the host. If it is positive, the paths that keep
    /// these parts leave the heap first, and this path is [requeued](Heap::requeue) after them.
    pub(super) gain: f64,
    pub(super) requeued: bool,
    /// Bytes on the host so far.
    pub(super) host: u64,
    pub(super) path: Path,
}

/// The paths that remain to be tried.
#[derive(Debug, Default)]
pub(super) struct Heap {
    nodes: Vec<Node>,
    /// The key is the bit pattern of the bound, because non-negative floats have the same order as their bit patterns.
    /// Among equal bounds the longest path comes first, so that the search follows it to its end.
    queue: BinaryHeap<(Reverse<u64>, usize, Reverse<usize>)>,
}

/// The data common to all paths of one order under one setting.
pub(super) struct OrderContext<'a> {
    pub(super) prices: Prices<'a>,
    pub(super) to_go: CostToGo,
    /// The bytes that the host has for the layers that are left to it, for each [role](host_role) of the host.
    pub(super) host_rooms: [Option<u64>; HOST_ROLES],
}

impl Heap {
    /// Removes the cheapest path, if its bound is below `cost`.
    pub(super) fn pop_below(&mut self, cost: f64) -> Option<Node> {
        let (.., Reverse(place)) = self.queue.pop()?;
        Some(std::mem::take(&mut self.nodes[place])).filter(|node| node.bound < cost)
    }

    /// Adds the beginnings of all paths of one order, one for each number of layers on the host. `extra` is the
    /// setting's surcharge.
    pub(super) fn begin(
        &mut self,
        (setting, order): (usize, usize),
        on_host: RangeInclusive<u32>,
        extra: f64,
        context: &OrderContext<'_>,
    ) {
        for first in on_host {
            let path = Path { setting, order, first, runs: Vec::new(), single_copy: false };
            let cost = extra + context.prices.host_seconds(first);
            self.put(cost, 0.0, context.prices.table.host_bytes[first as usize], path, context);
        }
    }

    /// Adds the continuations of a path: every run of the next GPU.
    pub(super) fn extend(&mut self, node: &Node, context: &OrderContext<'_>) {
        let begin = node.path.end();
        for end in begin + 1..=context.prices.table.layers {
            let run = Run::new(node.path.runs.len(), begin, end, 0);
            if !self.put_run(&node.path, &node.path.runs, (node.cost, node.host), run, context) {
                break;
            }
        }
    }

    /// Adds the path whose last run keeps one more part on the host.
    pub(super) fn keep_more(&mut self, node: &Node, context: &OrderContext<'_>) {
        if let (Some(run), Some((_, before))) = (node.path.runs().last(), node.path.runs.split_last())
            && !node.path.single_copy
        {
            let cost = node.cost - context.prices.run(before.len(), run);
            let host = node.host - context.prices.table.kept_bytes(run);
            self.put_run(&node.path, before, (cost, host), Run { kept: run.kept + 1, ..run }, context);
        }
    }

    /// Adds the same path with a single copy of its graph.
    pub(super) fn keep_single_copy(&mut self, node: &Node, context: &OrderContext<'_>) {
        if node.path.is_pipelined() {
            let path = Path { single_copy: true, ..node.path.clone() };
            self.put(node.cost + context.prices.single_copy(), 0.0, node.host, path, context);
        }
    }

    /// Adds a path with `run` after the runs `before`, which have the given cost and host bytes. If the run does not
    /// fit, more of its parts stay on the host. Returns whether it fits then.
    fn put_run(
        &mut self,
        like: &Path,
        before: &[(u32, u32)],
        (cost, host): (f64, u64),
        run: Run,
        context: &OrderContext<'_>,
    ) -> bool {
        let Prices { table, order, .. } = context.prices;
        let gpu = order[before.len()];
        let Some(run) = table.fitting(gpu, run) else {
            return false;
        };
        let path = Path { runs: [before, &[(run.end, run.kept)]].concat(), ..*like };
        let cost = cost + context.prices.run(before.len(), run);
        let host = host.saturating_add(table.kept_bytes(run));
        self.put(cost, table.most_saved(gpu, order[0], run), host, path, context);
        true
    }

    /// Puts a path back into the queue by its own cost. Paths with the same cost and more parts on the host come before
    /// this path.
    pub(super) fn requeue(&mut self, mut node: Node) {
        node.bound += node.gain;
        node.gain = 0.0;
        node.requeued = true;
        self.push(node);
    }

    fn put(&mut self, cost: f64, gain: f64, host: u64, path: Path, context: &OrderContext<'_>) {
        let (n, end) = (path.runs.len(), path.end() as usize);
        let bound = cost - gain + context.to_go.cost[n][end];
        let least_host = host.saturating_add(context.to_go.host[n][end]);
        // A completion may keep parts on the host even if this path keeps none.
        let roles = [path.kept(), 1].map(|parts| context.host_rooms[host_role(path.first, parts)]);
        let room = roles[0].max(roles[1]);
        if bound.is_finite() && room.is_some_and(|room| least_host <= room) {
            self.push(Node { bound, cost, gain, requeued: false, host, path });
        }
    }

    fn push(&mut self, node: Node) {
        self.queue.push((Reverse(node.bound.max(0.0).to_bits()), node.path.runs.len(), Reverse(self.nodes.len())));
        self.nodes.push(node);
    }
}
