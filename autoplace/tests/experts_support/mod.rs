//! Qwen3-30B-A3B on four cards: what llama.cpp's own fit (`common_fit_params`) chose there, and the one speed model that scores its
//! placements and ours.
//!
//! Shared with `benches/fit-params`, which asks the fit itself and fails where it no longer chooses what is recorded here.
#![allow(dead_code, reason = "each user takes its part")]

use std::ops::Range;

use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::memory::estimate::{Assignment, Estimate, Place};
use autoplace::memory::{ContextParams, Footprint, Headroom, Split, TensorOverride};
use autoplace::plan::speed::{Rates, SpeedModel};
use autoplace::plan::{Context, Plan, Planner, Request, Workload};
use autoplace::profile::ModelProfile;

/// What the host's memory has on paper, in bytes per second, between DDR4-3200 and DDR5-5600 in two channels: stated, not measured.
pub(crate) const HOST_BANDWIDTH: u64 = 60_000_000_000;

/// A card, a context, and what llama.cpp's fit chose for the two.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// A name of the catalogue, which has the bandwidth.
    pub(crate) card: &'static str,
    /// Its memory in GiB, all of it free.
    pub(crate) gib: u64,
    /// Tokens.
    pub(crate) context: u32,
    /// Bytes of the card that both leave free: the default headroom of our plan when this was recorded.
    pub(crate) margin: u64,
    pub(crate) fitted: Fitted,
}

/// A placement of llama.cpp's fit, which keeps experts of the last blocks on the host.
#[derive(Debug, Clone)]
pub(crate) struct Fitted {
    /// The output layer counted first.
    pub(crate) n_gpu_layers: u32,
    /// A block of which other parts stay on the host: its number and the end of its pattern.
    pub(crate) parted: Option<(u32, &'static str)>,
    /// The blocks of which all experts do. The fit counts the output layer as one more of them.
    pub(crate) experts: Range<u32>,
}

impl Fitted {
    /// What llama.cpp is told of it.
    pub(crate) fn split(&self) -> Split {
        let parted = self.parted.iter();
        let parted = parted.map(|(block, end)| format!(r"blk\.{block}\.{end}"));
        let experts = self.experts.clone();
        let experts =
            experts.map(|block| format!(r"blk\.{block}\.ffn_(up|down|gate_up|gate)_(ch|)exps"));
        let overrides: Vec<TensorOverride> = parted
            .chain(experts)
            .map(|pattern| TensorOverride::new(pattern, Place::Host))
            .collect();
        Split::layers(self.n_gpu_layers).overrides(overrides)
    }
}

impl Case {
    pub(crate) fn machine(&self) -> Machine {
        let card = Gpu::named(self.card).expect("a card of the catalogue");
        let card = card.total(gib(self.gib)).free(gib(self.gib));
        // More than the whole model takes: the fit takes the host's memory for unlimited.
        Machine::new(Host::new(gib(64)).bandwidth(HOST_BANDWIDTH)).with_gpu(card)
    }

    /// Our plan: the fastest by arithmetic.
    pub(crate) fn plan(&self, profile: &ModelProfile) -> Plan {
        let request = Request::new()
            .context(Context::Tokens(self.context))
            .headroom(Headroom::Bytes(self.margin));
        let machine = self.machine();
        let planner = Planner::new(profile, &machine).request(request);
        planner.plan().expect("the host alone has room")
    }

    /// Our placement, in the context that our plan chose.
    pub(crate) fn ours(&self, profile: &ModelProfile, plan: &Plan) -> Score {
        self.score(profile, &plan.context, &plan.split())
    }

    /// A placement of the fit, which keeps llama.cpp's default of tokens at once.
    pub(crate) fn theirs(&self, profile: &ModelProfile, plan: &Plan, split: &Split) -> Score {
        let mut params = plan.context.clone();
        params.n_ubatch = ContextParams::default().n_ubatch;
        self.score(profile, &params, split)
    }

    /// What a split makes of a model and a context, on this machine.
    fn score(&self, profile: &ModelProfile, params: &ContextParams, split: &Split) -> Score {
        let machine = self.machine();
        let gpus: Vec<&Gpu> = machine.gpus.iter().collect();
        let assignment = Assignment::new(profile.n_layer(), split.n_gpu_layers, &[1.0]);
        let rates = Rates::of(&gpus, &machine.host);
        let workload = Workload::typical(self.context);
        let speed = SpeedModel::new(profile, params, rates)
            .overrides(profile, &split.overrides)
            .expect("patterns of C++ that mean the same here");
        let estimate = Estimate::new(profile, &gpus, params)
            .and_then(|estimate| estimate.overrides(&split.overrides))
            .expect("parameters that a plan was made with");
        Score {
            tokens_per_second: speed.tokens_per_second(&assignment, workload.depth()),
            seconds: speed.seconds(&assignment, &workload),
            card: estimate.footprints_of(&assignment).gpus[0],
        }
    }
}

/// What a placement comes to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Score {
    /// Predicted, of one sequence.
    pub(crate) tokens_per_second: f64,
    /// Of the typical workload.
    pub(crate) seconds: f64,
    /// Bytes on the card by the estimate.
    pub(crate) card: Footprint,
}

impl Score {
    /// Whether it is as fast as the other one, but for the rounding of sums in another order.
    pub(crate) fn is_as_fast_as(&self, other: &Self) -> bool {
        self.seconds <= other.seconds * (1.0 + 1e-12)
    }
}

/// On the host of a block of which attention and norms alone find room; the matrix that chooses experts matches too.
const FEED_FORWARD: &str = "ffn_(gate|up|gate_up|down).*";
/// The same of a block of which the matrices upwards find room too.
const DOWN_AND_GATES: &str = "ffn_(gate|gate_up|down).*";

/// A name of the catalogue, and GiB.
type Card = (&'static str, u64);
const RTX_4060: Card = ("RTX 4060", 8);
const RTX_3060: Card = ("RTX 3060 12GB", 12);
const RTX_4060_TI: Card = ("RTX 4060 Ti 16GB", 16);
const RTX_4090: Card = ("RTX 4090", 24);

/// Recorded on 2026-11-21 from the `common_fit_params` of llama-cpp-sys-2 0.1.161.
pub(crate) const CASES: [Case; 8] = [
    case(RTX_4060, 8192, 735_516_981, but(16, FEED_FORWARD)),
    case(RTX_4060, 32_768, 736_106_805, but(9, DOWN_AND_GATES)),
    case(RTX_3060, 8192, 778_466_654, but(28, FEED_FORWARD)),
    case(RTX_3060, 32_768, 778_859_870, but(21, FEED_FORWARD)),
    case(RTX_4060_TI, 8192, 821_809_543, but(40, FEED_FORWARD)),
    case(RTX_4060_TI, 32_768, 821_809_543, but(33, FEED_FORWARD)),
    case(RTX_4090, 8192, 905_128_407, ALL),
    case(RTX_4090, 32_768, 905_521_623, ALL),
];

/// Everything on the card.
const ALL: Fitted = Fitted {
    n_gpu_layers: 49,
    parted: None,
    experts: 0..0,
};

/// All layers, but for parts of this block and the experts of those behind it.
const fn but(block: u32, end: &'static str) -> Fitted {
    Fitted {
        n_gpu_layers: 49,
        parted: Some((block, end)),
        experts: block + 1..49,
    }
}

const fn case((card, gib): Card, context: u32, margin: u64, fitted: Fitted) -> Case {
    Case {
        card,
        gib,
        context,
        margin,
        fitted,
    }
}
