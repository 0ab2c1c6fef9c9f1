//! The feed-forward step, dense or by experts (llama-graph.cpp:1690-2440).

use super::build::{Build, Homes};
use super::style::Gateless;
use super::tensor::Id;
use super::weights::Part;

/// The weights of a dense step, each with its bias.
struct Dense {
    gate: (Part, Option<Part>),
    up: (Part, Option<Part>),
    down: (Part, Option<Part>),
}

const DENSE: Dense = Dense {
    gate: (Part::Gate, Some(Part::GateBias)),
    up: (Part::Up, Some(Part::UpBias)),
    down: (Part::Down, Some(Part::DownBias)),
};

const SHARED: Dense = Dense {
    gate: (Part::GateShared, None),
    up: (Part::UpShared, None),
    down: (Part::DownShared, None),
};

impl<H: Homes> Build<'_, H> {
    /// The feed-forward step of the block at hand.
    pub(super) fn feed_forward(&mut self, stream: Id) -> Id {
        if !self.has(Part::Router) {
            return self.dense(stream, &DENSE);
        }
        let routed = self.experts(stream);
        if !self.has(Part::UpShared) {
            return routed;
        }
        if let Some(score) = self.product(Part::SharedRouter, stream) {
            // models/qwen2moe.cpp: the sigmoid of the score, in two steps.
            let silu = self.graph.unary(score);
            let gate = self.graph.binary(silu, score);
            let shared = self.dense(stream, &SHARED);
            let shared = self.graph.binary(shared, gate);
            return self.graph.binary(routed, shared);
        }
        let shared = self.dense(stream, &SHARED);
        self.graph.binary(routed, shared)
    }

    /// `build_ffn`. Without a matrix of its own the gate is half of one (models/phi3.cpp), or there is none.
    fn dense(&mut self, stream: Id, parts: &Dense) -> Id {
        let step = |this: &mut Self, of: Id, (weight, bias): (Part, Option<Part>)| {
            let product = this.product(weight, of)?;
            Some(match bias {
                Some(bias) => this.biased(product, bias),
                None => product,
            })
        };
        let up = step(self, stream, parts.up).unwrap_or(stream);
        let hidden = match step(self, stream, parts.gate) {
            Some(gate) => self.graph.glu_split(gate, up),
            None => match self.network.style.gateless {
                Gateless::Half => self.graph.glu(up),
                Gateless::Unary(steps) => (0..steps).fold(up, |of, _| self.graph.unary(of)),
            },
        };
        step(self, hidden, parts.down).unwrap_or(hidden)
    }

    /// `build_moe_ffn`.
    fn experts(&mut self, stream: Id) -> Id {
        let tokens = self.graph[stream].ne[1];
        let n_embd = self.graph[stream].ne[0];
        let used = self.network.experts_used;
        let (weights, chosen) = self.choose(stream, tokens, used);
        self.graph.expand(weights);
        let each = self.graph.reshape(stream, [n_embd, 1, tokens, 1]);
        let hidden = if let Some(both) = self.product_of_chosen(Part::GateUpExps, each, chosen) {
            let [width, n, tokens, _] = self.graph[both].ne;
            let [_, nb1, nb2, _] = self.graph[both].nb;
            let half = [width / 2, n, tokens];
            let gate = self.graph.view_3d(both, half, [nb1, nb2]);
            let up = self.graph.view_3d(both, half, [nb1, nb2]);
            self.graph.glu_split(gate, up)
        } else {
            let up = self.of_chosen(each, chosen, Part::UpExps, Part::UpExpsBias);
            let gate = self.of_chosen(each, chosen, Part::GateExps, Part::GateExpsBias);
            self.graph.glu_split(gate, up)
        };
        let down = self.of_chosen(hidden, chosen, Part::DownExps, Part::DownExpsBias);
        let weighted = self.graph.binary(down, weights);
        self.graph.expand(weighted);
        self.sum_of_experts(weighted, n_embd, tokens, used)
    }

    /// A product with the experts that were chosen, and their bias.
    fn of_chosen(&mut self, of: Id, chosen: Id, weight: Part, bias: Part) -> Id {
        let Some(product) = self.product_of_chosen(weight, of, chosen) else {
            return of;
        };
        match self.weight(bias) {
            Some(bias) => self.graph.add_id(product, bias, chosen),
            None => product,
        }
    }

    /// Which experts each token uses, and their weights.
    fn choose(&mut self, stream: Id, tokens: u64, used: u64) -> (Id, Id) {
        let mixing = self.network.style.mixing;
        let switches = self.network.switches;
        let scores = self.product(Part::Router, stream).unwrap_or(stream);
        let scores = self.biased(scores, Part::RouterBias);
        let count = self.graph[scores].ne[0];
        let probs = if mixing.softmax_of_chosen {
            scores
        } else {
            self.graph.unary(scores)
        };
        let mut selection = self.biased(probs, Part::ProbsBias);
        if switches.expert_groups > 1 {
            selection = self.choose_groups(selection, count, tokens);
        }
        let chosen = self.graph.top_k(selection, used);
        let g = &mut *self.graph;
        let each = g.reshape(probs, [1, count, tokens, 1]);
        let mut weights = g.get_rows(each, chosen);
        if mixing.softmax_of_chosen {
            weights = g.reshape(weights, [used, tokens, 1, 1]);
            weights = g.unary(weights);
            weights = g.reshape(weights, [1, used, tokens, 1]);
        }
        if mixing.normalized.unwrap_or(switches.expert_weights_norm) {
            weights = g.reshape(weights, [used, tokens, 1, 1]);
            let sum = g.sum_rows(weights);
            let sum = g.unary(sum);
            weights = g.binary(weights, sum);
            weights = g.reshape(weights, [1, used, tokens, 1]);
        }
        let scale = switches.expert_weights_scale;
        if mixing.scaled && scale != 0.0 && (scale - 1.0).abs() > 0.0 {
            weights = g.unary(weights);
        }
        (weights, chosen)
    }

    /// First the best groups of experts are chosen, by the sum of their two best (DeepSeek V3).
    fn choose_groups(&mut self, selection: Id, count: u64, tokens: u64) -> Id {
        let groups = u64::from(self.network.switches.expert_groups);
        let kept = u64::from(self.network.switches.expert_groups_used);
        let size = count / groups;
        let g = &mut *self.graph;
        let grouped = g.reshape(selection, [size, groups, tokens, 1]);
        let best = g.top_k(grouped, 2);
        let each = g.reshape(grouped, [1, size, groups, tokens]);
        let best = g.get_rows(each, best);
        let [_, n1, n2, n3] = g[best].ne;
        let best = g.reshape(best, [n1, n2, n3, 1]);
        let sums = g.sum_rows(best);
        let [_, n1, n2, _] = g[sums].ne;
        let sums = g.reshape(sums, [n1, n2, 1, 1]);
        let best = g.top_k(sums, kept);
        let picked = g.get_rows(grouped, best);
        let filled = g.unary(grouped);
        let masked = g.set_rows(filled, picked, best);
        g.reshape(masked, [count, tokens, 1, 1])
    }

    /// The sum of the experts' results: all views first, then the sums, so that they can be fused.
    fn sum_of_experts(&mut self, of: Id, n_embd: u64, tokens: u64, used: u64) -> Id {
        let g = &mut *self.graph;
        let row = g[of].nb[2];
        let mut views = (0..used).map(|_| {
            let view = g.view_2d(of, [n_embd, tokens], row);
            g.expand(view);
            view
        });
        let Some(first) = views.next() else { return of };
        let rest: Vec<Id> = views.collect();
        if rest.is_empty() {
            return g.cont(first);
        }
        rest.into_iter().fold(first, |sum, view| {
            let sum = g.binary(sum, view);
            g.expand(sum);
            sum
        })
    }
}
