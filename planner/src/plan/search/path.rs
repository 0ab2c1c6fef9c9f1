//! Paths through the layers, the cheapest first: the host takes the first layers, then each GPU of an
//! order a run of them.
//!
//! The cost of a run does not depend on the other runs, except by compute buffers. Without those the cheapest rest of a
//! path from any layer is computed once, from the back. With that as a bound the paths come out of a heap in order of
//! their cost (A*), and the first one that also has room for its compute buffers is the cheapest that does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::RangeInclusive;

use super::ground::{HOST_ROLES, host_role};
use super::prices::{Prices, Runs};
use super::table::Run;

/// The cheapest rests of paths, for one order of GPUs.
#[derive(Debug)]
pub(super) struct Onward {
    /// `cost[n][begin]`: of the layers from `begin` on, with the GPUs from the `n`th on.
    cost: Vec<Vec<f64>>,
    /// The least bytes that these leave to the host.
    host: Vec<Vec<u64>>,
}

impl Onward {
    /// `runs` are those of some GPUs, last or not, beside the first one of some order: all orders have them in common.
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

/// A path, or the beginning of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// Which setting, and which order of GPUs.
    pub(super) setting: usize,
    pub(super) order: usize,
    /// Layers on the host.
    pub(super) first: u32,
    /// For each GPU where its layers end, and the parts of them that stay on the host.
    pub(super) runs: Vec<(u32, u32)>,
    /// Whether it keeps a single copy of its graph, where llama.cpp would keep four.
    pub(super) single_copy: bool,
}

impl Path {
    fn end(&self) -> u32 {
        self.runs.last().map_or(self.first, |&(end, _)| end)
    }

    /// The runs with their first layers.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        let begins = std::iter::once(self.first).chain(self.runs.iter().map(|&(end, _)| end));
        begins.zip(&self.runs).enumerate().map(|(n, (begin, &(end, kept)))| Run::of(n, begin, end, kept))
    }

    /// Layers on each GPU.
    pub(super) fn counts(&self) -> Vec<u32> {
        self.runs().map(|run| run.end - run.begin).collect()
    }

    /// Parts that stay on the host.
    pub(super) fn kept(&self) -> u32 {
        self.runs.iter().map(|&(_, kept)| kept).fold(0, u32::saturating_add)
    }

    /// Whether llama.cpp would keep four copies of its graph.
    pub(super) fn is_pipelined(&self) -> bool {
        self.runs.len() > 1 && self.first == 0 && self.kept() == 0 && !self.single_copy
    }
}

/// A path in the heap.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    /// What it costs at least, once it is whole.
    pub(super) bound: f64,
    /// What it costs so far.
    cost: f64,
    /// What more parts on the host may save of its last run. Where something may, those come before it does
    /// [again](Heap::put_again).
    pub(super) gain: f64,
    pub(super) again: bool,
    /// Bytes it takes of the host so far.
    pub(super) host: u64,
    pub(super) path: Path,
}

/// The paths that are still to be tried.
#[derive(Debug, Default)]
pub(super) struct Heap {
    nodes: Vec<Node>,
    /// By the bits of their bounds, whose order is that of numbers that are not negative. Of equals the longest comes
    /// first, and is then followed to its end.
    queue: BinaryHeap<(Reverse<u64>, usize, Reverse<usize>)>,
}

/// What all paths of one order under one setting have in common.
pub(super) struct Around<'a> {
    pub(super) prices: Prices<'a>,
    pub(super) onward: Onward,
    /// Bytes that the host has for what layers leave to it, by the [role](host_role) of its compute buffer.
    pub(super) host_rooms: [Option<u64>; HOST_ROLES],
}

impl Heap {
    /// The cheapest path, if it costs less than this.
    pub(super) fn pop_below(&mut self, cost: f64) -> Option<Node> {
        let (.., Reverse(place)) = self.queue.pop()?;
        Some(std::mem::take(&mut self.nodes[place])).filter(|node| node.bound < cost)
    }

    /// Puts in the beginnings of all paths of one order that leave so many layers to the host. They cost `extra`
    /// wherever they lead.
    pub(super) fn begin(
        &mut self,
        (setting, order): (usize, usize),
        on_host: RangeInclusive<u32>,
        extra: f64,
        around: &Around<'_>,
    ) {
        for first in on_host {
            let path = Path { setting, order, first, runs: Vec::new(), single_copy: false };
            let cost = extra + around.prices.host_seconds(first);
            self.put(cost, 0.0, around.prices.table.host_bytes[first as usize], path, around);
        }
    }

    /// Puts in what follows a path: every run of the next GPU.
    pub(super) fn extend(&mut self, node: &Node, around: &Around<'_>) {
        let begin = node.path.end();
        for end in begin + 1..=around.prices.table.layers {
            let run = Run::of(node.path.runs.len(), begin, end, 0);
            if !self.put_run(&node.path, &node.path.runs, (node.cost, node.host), run, around) {
                break;
            }
        }
    }

    /// Puts in the path whose last run leaves more parts to the host.
    pub(super) fn keep_more(&mut self, node: &Node, around: &Around<'_>) {
        if let (Some(run), Some((_, before))) = (node.path.runs().last(), node.path.runs.split_last())
            && !node.path.single_copy
        {
            let cost = node.cost - around.prices.run(before.len(), run);
            let host = node.host - around.prices.table.kept_bytes(run);
            self.put_run(&node.path, before, (cost, host), Run { kept: run.kept + 1, ..run }, around);
        }
    }

    /// Puts in the same path with a single copy of its graph.
    pub(super) fn keep_single_copy(&mut self, node: &Node, around: &Around<'_>) {
        if node.path.is_pipelined() {
            let path = Path { single_copy: true, ..node.path.clone() };
            self.put(node.cost + around.prices.single_copy(), 0.0, node.host, path, around);
        }
    }

    /// Puts in a path like another with one run more behind some of its runs, which cost so much and take so many bytes
    /// of the host. It leaves as many more parts there as it must; whether any are enough.
    fn put_run(
        &mut self,
        like: &Path,
        before: &[(u32, u32)],
        (cost, host): (f64, u64),
        run: Run,
        around: &Around<'_>,
    ) -> bool {
        let Prices { table, order, .. } = around.prices;
        let gpu = order[before.len()];
        let Some(run) = table.roomiest(gpu, run) else {
            return false;
        };
        let path = Path { runs: [before, &[(run.end, run.kept)]].concat(), ..*like };
        let cost = cost + around.prices.run(before.len(), run);
        let host = host.saturating_add(table.kept_bytes(run));
        self.put(cost, table.most_saved(gpu, order[0], run), host, path, around);
        true
    }

    /// Puts a path in again, by its own cost, when those with more parts on the host are in.
    pub(super) fn put_again(&mut self, mut node: Node) {
        node.bound += node.gain;
        node.gain = 0.0;
        node.again = true;
        self.push(node);
    }

    fn put(&mut self, cost: f64, gain: f64, host: u64, path: Path, around: &Around<'_>) {
        let (n, end) = (path.runs.len(), path.end() as usize);
        let bound = cost - gain + around.onward.cost[n][end];
        let least_host = host.saturating_add(around.onward.host[n][end]);
        // More parts may stay on the host yet.
        let roles = [path.kept(), 1].map(|parts| around.host_rooms[host_role(path.first, parts)]);
        let room = roles[0].max(roles[1]);
        if bound.is_finite() && room.is_some_and(|room| least_host <= room) {
            self.push(Node { bound, cost, gain, again: false, host, path });
        }
    }

    fn push(&mut self, node: Node) {
        self.queue.push((Reverse(node.bound.max(0.0).to_bits()), node.path.runs.len(), Reverse(self.nodes.len())));
        self.nodes.push(node);
    }
}
