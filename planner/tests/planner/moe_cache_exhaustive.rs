//! The search for a cache of experts, compared with a search through all placements that a person could write by hand.
//! Such a placement consists of the number of layers on the host, the number of blocks whose experts stay on the host,
//! an ubatch, and the largest cache that fits.

use autoplace_planner::machine::{Gpu, Machine, mib};
use autoplace_planner::memory::estimate::Assignment;
use autoplace_planner::memory::{ContextParams, Estimate, PeakSizes, Place, TensorOverride};
use autoplace_planner::plan::speed::{ExpertHits, Rates, SpeedModel};
use autoplace_planner::plan::{MoeCache, Plan, Planner, Request, Workload};
use autoplace_planner::profile::ModelProfile;

use crate::plan_moe_cache::{A3B, A5B, CARDS, behind, machine, planned, profile};

/// The factor by which a cache may lengthen prompts, as in `plan/moe_cache.rs`.
const MAX_SLOWER_PROMPT: f64 = 1.0 / 0.9;

/// A placement by hand: the number of layers on the host, and the number of other blocks whose experts stay on the
/// host.
#[derive(Debug, Clone, Copy)]
struct ByHand {
    first: u32,
    kept: u32,
    n_ubatch: u32,
}

/// Predicted times of a placement, and its cache.
#[derive(Debug, Clone, Copy)]
struct Times {
    by_hand: ByHand,
    share: f64,
    workload: f64,
    prompt: f64,
    token: f64,
    /// Seconds of a token if no use missed.
    always_hit: f64,
}

/// One cell of the table in docs/fit.md.
struct Cell<'a> {
    profile: &'a ModelProfile,
    machine: &'a Machine,
    /// The parameters of a plan, except for the ubatch and the cache.
    params: ContextParams,
}

impl<'a> Cell<'a> {
    fn new(profile: &'a ModelProfile, machine: &'a Machine, plan: &Plan) -> Self {
        let mut params = plan.context.clone();
        params.moe_cache_size = 0;
        Self { profile, machine, params }
    }

    fn gpu(&self) -> &Gpu {
        &self.machine.gpus[0]
    }

    fn workload(&self) -> Workload {
        Workload::typical(self.params.n_ctx)
    }

    /// Keeps the experts of the last `kept` blocks on the host.
    fn overrides(&self, by_hand: ByHand) -> Vec<TensorOverride> {
        let end = self.profile.n_layer();
        let blocks: Vec<String> = (end - by_hand.kept..end).map(|block| block.to_string()).collect();
        match blocks.is_empty() {
            true => Vec::new(),
            false => vec![TensorOverride::new(format!(r"^blk\.({})\.ffn_.*_exps\.", blocks.join("|")), Place::Host)],
        }
    }

    /// The times of a placement with the largest cache that fits; `None` if the placement does not fit even without a
    /// cache.
    fn times(&self, by_hand: ByHand) -> Option<Times> {
        let overrides = self.overrides(by_hand);
        let gpus = [self.gpu()];
        let mut params = self.params.clone();
        params.n_ubatch = by_hand.n_ubatch;
        let on_gpu = self.profile.full_offload() - by_hand.first;
        let assignment = Assignment::by_counts(self.profile.n_layer(), &[on_gpu]);
        let estimate =
            |params: &ContextParams| Estimate::new(self.profile, &gpus, params).unwrap().overrides(&overrides).unwrap();
        let peak = PeakSizes::new(self.profile, &params.sizes().unwrap());
        let headroom = Request::new().headroom.of_gpu(gpus[0], &peak, 0, false).total();
        let budget = gpus[0].free.saturating_sub(headroom);
        let used = |params: &ContextParams| {
            let (footprints, unsure) = estimate(params).with_uncertainty(&assignment);
            footprints.gpus[0].total() + unsure.gpus[0]
        };
        let spare = budget.checked_sub(used(&params))?;
        let mut share = 0.0;
        if by_hand.kept > 0 {
            params.moe_cache_size = spare / mib(1) * mib(1);
            let cache = estimate(&params).expert_cache(&assignment);
            if params.moe_cache_size < cache.least || used(&params) > budget {
                params.moe_cache_size = 0;
            } else {
                share = cache.share;
            }
        }
        let rates = Rates::for_devices(&gpus, &self.machine.host);
        let model = SpeedModel::new(self.profile, &params, rates).overrides(self.profile, &overrides).unwrap();
        let workload = self.workload();
        let prompt = model.prompt_seconds(&assignment, &workload);
        let seconds = model.seconds(&assignment, &workload);
        let token = |seconds: f64, prompt: f64| (seconds - prompt) / f64::from(workload.reply);
        let hit = model.clone().expert_hits(ExpertHits::new(f64::INFINITY));
        let always_hit = token(hit.seconds(&assignment, &workload), hit.prompt_seconds(&assignment, &workload));
        Some(Times { by_hand, share, workload: seconds, prompt, token: token(seconds, prompt), always_hit })
    }

    /// The times of all placements that fit, with these ubatches. `of_first` is the step between the numbers of layers
    /// on the host, and `of_kept` is the step between the numbers of blocks whose experts are on the host.
    fn all(&self, (of_first, of_kept): (usize, usize), n_ubatch: &[u32]) -> Vec<Times> {
        let layers = self.profile.n_layer();
        let firsts = (0..=layers).step_by(of_first);
        let kept = |first: u32| (0..=layers - first).rev().step_by(of_kept).map(move |kept| (first, kept));
        let all = firsts.flat_map(kept);
        let each = |n_ubatch: u32| move |(first, kept)| ByHand { first, kept, n_ubatch };
        let by_hand = n_ubatch.iter().flat_map(|&n| all.clone().map(each(n)));
        by_hand.filter_map(|by_hand| self.times(by_hand)).collect()
    }
}

/// The fastest of the placements whose prompts are fast enough in comparison with a plan without a cache.
fn best(all: &[Times], prompt: f64, by: fn(&Times) -> f64) -> Times {
    let allowed = all.iter().filter(|times| times.prompt <= MAX_SLOWER_PROMPT * prompt);
    *allowed.min_by(|a, b| by(a).total_cmp(&by(b))).expect("a placement that fits")
}

/// The seconds of a plan's prompt, and of its workload.
fn of_plan(plan: &Plan) -> (f64, f64) {
    let speed = plan.speed.as_ref().unwrap();
    (f64::from(speed.prompt.tokens) / speed.prompt.tokens_per_second, speed.seconds())
}

#[test]
fn no_placement_by_hand_is_faster_than_the_searched_one_with_a_cache() {
    let cells = [(A3B, CARDS[1].1, false), (A5B, CARDS[2].1, false)];
    for (title, card, has_layers_on_host) in cells {
        let (profile, machine) = (profile(title), machine([behind(card, 4, 16)]));
        let with = |cache| planned(&profile, &machine, Request::new().n_ctx(4096).moe_cache(cache)).unwrap();
        let (auto, off) = (with(MoeCache::Auto), with(MoeCache::Off));
        assert!(auto.moe_cache.is_some(), "{auto}");
        assert_eq!(auto.n_gpu_layers < auto.layers(), has_layers_on_host, "{auto}");
        let all = Cell::new(&profile, &machine, &off).all((4, 4), &[512, 1024, 2048]);
        let ((prompt, _), (_, seconds)) = (of_plan(&off), of_plan(&auto));
        let best = best(&all, prompt, |times| times.workload);
        // The search moves away from the preferred setting, for example to another ubatch, only if each step gains a
        // hundredth.
        assert!(seconds <= 1.015 * best.workload, "{title}: {seconds} s, and {best:?}\n{auto}");
    }
}

/// The least locality with which generation is 1.5 times as fast as without a cache; "none" if no locality is enough.
fn least_locality(gain: impl Fn(f64) -> f64) -> String {
    const GOAL: f64 = 1.5;
    let (mut short, mut enough) = (0.0, 1e6);
    if gain(enough) < GOAL {
        return "none".to_owned();
    }
    for _ in 0..24 {
        // The middle of the range by factors, because localities differ by factors.
        let middle = f64::sqrt((short + 1.0) * (enough + 1.0)) - 1.0;
        match gain(middle) >= GOAL {
            true => enough = middle,
            false => short = middle,
        }
    }
    format!("{enough:.0}")
}

/// Prints the median gain of the sixteen cells for hosts with other memory. Run it as the test above.
#[test]
#[ignore = "minutes: for docs/fit.md"]
fn medians_of_the_cells_of_fit_by_the_memory_of_the_host() {
    for (memory, bandwidth) in [("DDR4-3200", 51.2e9), ("60 GB/s", 60e9), ("DDR5-5600", 89.6e9)] {
        let mut gains = Vec::new();
        for title in [A3B, A5B] {
            let profile = profile(title);
            for n_ctx in [4096, 32_768] {
                for (_, card) in CARDS {
                    let mut machine = machine([behind(card, 4, 16)]);
                    machine.host = machine.host.bandwidth(bandwidth as u64);
                    let speed = |cache| {
                        let plan = planned(&profile, &machine, Request::new().n_ctx(n_ctx).moe_cache(cache)).unwrap();
                        plan.speed.as_ref().unwrap().tokens_per_second
                    };
                    gains.push(speed(MoeCache::Auto) / speed(MoeCache::Off));
                }
            }
        }
        gains.sort_by(f64::total_cmp);
        println!("{memory}: median {:.2} of {gains:.2?}", (gains[7] + gains[8]) / 2.0);
    }
}

/// Prints the table of bounds over all placements. Run `cargo test --release -p autoplace-planner --test planner
/// bounds_of -- --ignored --nocapture`.
#[test]
#[ignore = "minutes: every placement of sixteen cells, for docs/fit.md"]
fn bounds_of_the_cells_of_fit() {
    for title in [A3B, A5B] {
        let profile = profile(title);
        for n_ctx in [4096, 32_768] {
            for (name, card) in CARDS {
                let machine = machine([behind(card, 4, 16)]);
                let with = |cache| planned(&profile, &machine, Request::new().n_ctx(n_ctx).moe_cache(cache)).unwrap();
                let (auto, off) = (with(MoeCache::Auto), with(MoeCache::Off));
                let cell = Cell::new(&profile, &machine, &off);
                let all = cell.all((3, 1), &[64, 128, 256, 512, 1024, 2048]);
                let at = |locality: f64| {
                    let request = Request::new().n_ctx(n_ctx);
                    let planner = Planner::new(&profile, &machine).request(request);
                    let plan = planner.expert_hits(ExpertHits::new(locality)).plan().unwrap();
                    plan.speed.as_ref().unwrap().tokens_per_second
                };
                let without = off.speed.as_ref().unwrap().tokens_per_second;
                let gain = |locality: f64| at(locality) / without;
                let gains: Vec<String> =
                    [20.0, 30.0, 1e9].iter().map(|locality| format!("{:.2}", gain(*locality))).collect();
                println!("by locality {}, {} for 1.5 times", gains.join(" "), least_locality(gain));
                let ((prompt, then), (_, now)) = (of_plan(&off), of_plan(&auto));
                let same: Vec<Times> = all.iter().copied().filter(|times| times.by_hand.n_ubatch >= 512).collect();
                let workload = best(&same, prompt, |times| times.workload);
                let token = best(&all, prompt, |times| times.token);
                let any = best(&all, f64::INFINITY, |times| times.token);
                let hit = best(&all, f64::INFINITY, |times| times.always_hit);
                let speed = |plan: &Plan| plan.speed.as_ref().unwrap().tokens_per_second;
                let before = speed(&off);
                println!(
                    "| {title} | {n_ctx} | {name} | ours {:.2} ({:.3} s of {then:.3}) | best workload {:.3} s {:.2} {:?} {:.2} | tokens {:.2} {:?} {:.2} | any prompts {:.2} {:?} | never missing {:.2} {:?} | {}",
                    speed(&auto) / before,
                    now,
                    workload.workload,
                    1.0 / workload.token / before,
                    workload.by_hand,
                    workload.share,
                    1.0 / token.token / before,
                    token.by_hand,
                    token.share,
                    1.0 / any.token / before,
                    any.by_hand,
                    1.0 / hit.always_hit / before,
                    hit.by_hand,
                    auto.notes.first().unwrap(),
                );
            }
        }
    }
}
