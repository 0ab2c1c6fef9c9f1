//! Placements by depth in virtual time: machines of the ledger, dense models of 32B and 70B, and four traces. The test
//! prints the table of `benches/results/2026-11-29-virtual`.
//!
//! The speeds come from the speed model, so the test judges the rule and the choice of placements. The ledger judges
//! the speed model.

use std::cell::Cell;

use autoplace_planner::machine::{Gpu, Host, Machine, MoveFigure, MoveRates, RateConditions, gib, mib};
use autoplace_planner::memory::estimate::Assignment;
use autoplace_planner::memory::{ContextParams, Place, TensorOverride};
use autoplace_planner::plan::speed::{Rates, SpeedModel};
use autoplace_planner::plan::{
    Depth, DepthRule, DepthWork, GpuLayers, HostParts, Plan, Planner, Policy, Request, Workload,
};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::prop;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::plan_properties::assert_sound;
use test_support::shapes::{LLAMA_8B, LLAMA_70B};
use test_support::synthetic;

const N_CTX: u32 = 32_768;
/// Tokens of a prompt that are computed at once.
const CHUNK: u32 = 512;

fn profile(title: &str) -> ModelProfile {
    let sketch = synthetic::measured().into_iter().find(|sketch| sketch.title() == title).expect(title);
    ModelProfile::from_header(&sketch.builder().header().unwrap()).unwrap()
}

/// The machine of unslothai/unsloth#9872 (docs/ledger/speeds.csv). The bandwidth of the host's memory follows from the
/// first row: 2.19 tokens per second after 2339 tokens, with the feed-forward matrices of 38 blocks on the host.
fn of_the_ledger(profile: &ModelProfile) -> Machine {
    let card = Gpu::named("RTX 6000 Ada").unwrap().free(mib(38_016));
    let host = |bytes_per_second| {
        Host::named("Core i5-12400", 100_931_731_456).unwrap().bandwidth(bytes_per_second).physical_cores(6)
    };
    let rule = TensorOverride::new(r"^blk\.([0-9]|[12][0-9]|3[0-7])\.ffn_(gate|up|down)\.weight", Place::Host);
    let predicted = |bytes_per_second| {
        let rates = Rates::for_devices(&[&card], &host(bytes_per_second));
        let model = SpeedModel::new(profile, &ContextParams::default(), rates);
        let model = model.overrides(profile, std::slice::from_ref(&rule)).unwrap();
        model.tokens_per_second(&Assignment::by_counts(profile.n_layer(), &[profile.full_offload()]), 2339)
    };
    let (mut low, mut high) = (1_000_000_000_u64, 1_000_000_000_000);
    while high - low > 1_000_000 {
        let middle = (low + high) / 2;
        *(if predicted(middle) < 2.19 { &mut low } else { &mut high }) = middle;
    }
    Machine::new(host(low)).with_gpu(card)
}

/// A machine with a card and a host, both with the rates of data sheets.
fn by_data_sheet(card: &str, host: &str) -> Machine {
    Machine::new(Host::named(host, 64 << 30).unwrap()).with_gpu(Gpu::named(card).unwrap())
}

/// The times of a placement of a dense model without windows, which are linear in the depth.
#[derive(Debug, Clone, Copy)]
struct Times {
    token: [f64; 2],
    chunk: [f64; 2],
}

impl Times {
    fn new(profile: &ModelProfile, machine: &Machine, plan: &Plan) -> Self {
        let gpus: Vec<&Gpu> = machine.gpus.iter().filter(|_| plan.n_gpu_layers > 0).collect();
        let model = SpeedModel::new(profile, &plan.context, Rates::for_devices(&gpus, &machine.host));
        let model = model.overrides(profile, &plan.overrides).unwrap();
        let assignment = Assignment::by_counts(profile.n_layer(), &[plan.n_gpu_layers]);
        let chunk = |depth| model.prompt_seconds(&assignment, &Workload::new(CHUNK, 0).after(depth));
        Self { token: [0, N_CTX].map(|depth| model.token_seconds(&assignment, depth)), chunk: [chunk(0), chunk(N_CTX)] }
    }

    fn seconds(self, work: DepthWork) -> f64 {
        let at = |[first, last]: [f64; 2]| first + (last - first) * f64::from(work.depth) / f64::from(N_CTX);
        let prompt = at(self.chunk) * f64::from(work.prompt_tokens) / f64::from(CHUNK);
        prompt + if work.generates { at(self.token) } else { 0.0 }
    }
}

/// Texts, each a list of turns. A turn has the tokens of a prompt and of its reply.
type Texts = Vec<Vec<(u32, u32)>>;

/// The four traces.
fn traces() -> [(&'static str, Texts); 4] {
    // A linear congruential generator gives the same numbers in every run.
    let mut state = 20_261_129_u64;
    let mut random = move |from: u32, to: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + ((state >> 33) % u64::from(to - from)) as u32
    };
    let growing = std::iter::repeat_n((60, 240), ((N_CTX - 300) / 300) as usize).collect();
    let document = std::iter::once((25_000, 300)).chain(std::iter::repeat_n((40, 300), 12)).collect();
    let agent = (0..40).map(|_| {
        let mut turns = vec![(random(500, 12_000), random(50, 400))];
        for _ in 0..random(0, 6) {
            turns.push((random(100, 2000), random(50, 400)));
        }
        turns
    });
    let agent = agent.collect();
    [
        ("200 short chats", vec![vec![(200, 300)]; 200]),
        ("one chat to the end", vec![growing]),
        ("a document of 25,000 tokens", vec![document]),
        ("an agent's mix", agent),
    ]
}

/// The steps of a text. The first step of a prompt comes with a second value, which describes the whole prompt.
fn steps(turns: &[(u32, u32)]) -> Vec<(DepthWork, Option<DepthWork>)> {
    let (mut depth, mut steps) = (0, Vec::new());
    for &(prompt, reply) in turns {
        let mut ahead = Some(DepthWork::prompt(depth, prompt));
        for begin in (0..prompt).step_by(CHUNK as usize) {
            let tokens = CHUNK.min(prompt - begin);
            steps.push((DepthWork::prompt(depth, tokens), ahead.take()));
            depth += tokens;
        }
        for _ in 0..reply {
            steps.push((DepthWork::token(depth), None));
            depth += 1;
        }
    }
    steps
}

/// The time of a trace under the rule, and the number of moves. The model begins in the shallow placement.
fn following(plans: [&Plan; 2], times: [Times; 2], trace: &Texts) -> (f64, u32) {
    let rule = |side: usize| DepthRule::new(plans[side].by_depth.as_deref().unwrap());
    let (mut side, mut seconds, mut moves) = (0, 0.0, 0);
    let mut here = rule(side);
    for (work, ahead) in trace.iter().flat_map(|turns| steps(turns)) {
        if here.is_due() || ahead.is_some_and(|ahead| here.is_due_before(ahead, u32::MAX)) {
            (seconds, moves, side) = (seconds + here.moving_seconds(), moves + 1, 1 - side);
            here = rule(side);
        }
        let took = times[side].seconds(work);
        seconds += took;
        here.took(work, took);
    }
    (seconds, moves)
}

fn fixed(times: Times, trace: &Texts) -> f64 {
    trace.iter().flat_map(|turns| steps(turns)).map(|(work, _)| times.seconds(work)).sum()
}

/// The minimum time over all series of moves, from either placement, if the whole trace is known.
fn clairvoyant(times: [Times; 2], moving: f64, trace: &Texts) -> f64 {
    let mut best = [0.0, 0.0];
    for (work, _) in trace.iter().flat_map(|turns| steps(turns)) {
        let after = [best[0] + times[0].seconds(work), best[1] + times[1].seconds(work)];
        best = [f64::min(after[0], after[1] + moving), f64::min(after[1], after[0] + moving)];
    }
    best[0].min(best[1])
}

#[test]
fn following_the_depth_is_close_to_the_better_placement_and_beats_the_worse() {
    let cases = [
        ("llama Llama 3.3 70B", "RTX 6000 Ada, 37 GiB free", None),
        ("llama Llama 3.3 70B", "RTX 4090", Some(("RTX 4090", "Ryzen 9 7950X"))),
        ("qwen3 Qwen3 32B", "RTX 5060 Ti", Some(("RTX 5060 Ti 16GB", "Ryzen 7 5800X"))),
        ("qwen3 Qwen3 32B", "RTX 3060", Some(("RTX 3060 12GB", "Core i5-12400"))),
    ];
    println!("| model, card | trace | follows | shallow | deep | clairvoyant | llama.cpp's fit | moves |");
    println!("|---|---|--:|--:|--:|--:|--:|--:|");
    for (title, name, named) in cases {
        let profile = profile(title);
        let machine = named.map_or_else(|| of_the_ledger(&profile), |(card, host)| by_data_sheet(card, host));
        let plan_for =
            |request: Request| Planner::new(&profile, &machine).request(request.n_ctx(N_CTX)).plan().unwrap();
        let plan = plan_for(Request::new());
        let words = plan.by_depth_in_words().unwrap_or_else(|| panic!("{title}, {name}: one placement\n{plan}"));
        println!("| {title}, {name} | {words} | | | | | | |");
        // With `Depth::All` a plan has one placement, for programs that do not move a loaded model.
        let one = plan_for(Request::new().depth(Depth::All));
        assert_eq!((&one.overrides, one.n_gpu_layers), (&plan.overrides, plan.n_gpu_layers));
        let (shallow, deep) = (plan.clone().for_depth(0), plan.clone().for_depth(N_CTX));
        assert_ne!(shallow.split(), deep.split());
        let fit = Request::new().policy(Policy::MostLayers).host_parts(HostParts::None).n_gpu_layers(GpuLayers::Auto);
        let [shallow_times, deep_times, fit_times] =
            [&shallow, &deep, &plan_for(fit)].map(|plan| Times::new(&profile, &machine, plan));
        let times = [shallow_times, deep_times];
        let moving = plan.by_depth.as_deref().unwrap().moving_seconds;
        for (trace_name, trace) in traces() {
            let (follows, moves) = following([&shallow, &deep], times, &trace);
            let [shallow, deep, fit] = [shallow_times, deep_times, fit_times].map(|times| fixed(times, &trace));
            let best = clairvoyant(times, moving, &trace);
            println!(
                "| | {trace_name} | {follows:.0} s | {:.2} | {:.2} | {:.2} | {:.2} | {moves} |",
                shallow / follows,
                deep / follows,
                best / follows,
                fit / follows
            );
            let (better, worse) = (shallow.min(deep), shallow.max(deep));
            assert!(follows <= 1.1 * better, "{title}, {name}, {trace_name}: {follows} {better}");
            assert!(
                worse < 1.5 * better || follows <= 0.75 * worse,
                "{title}, {name}, {trace_name}: {follows} {worse}"
            );
            assert!(follows <= 2.0 * best, "{title}, {name}, {trace_name}: {follows} {best}");
            if trace_name == "one chat to the end" {
                assert!(fit >= 1.3 * follows, "{title}, {name}: {follows} {fit}");
                assert_eq!(moves, 1, "{title}, {name}");
            }
        }
    }
}

/// Plans random dense models on random fleets, and checks that both placements of a plan fit. At least a twelfth of the
/// plans must have two placements.
fn both_placements_fit(cases: u32) {
    let profiles: [ModelProfile; 2] = [LLAMA_8B.profile(), LLAMA_70B.profile()];
    // The fleets are the same in every run.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::with_cases(cases), rng);
    let case = (0_usize..2, prop::collection::vec((3_u64..26, 200_u64..2000), 1..4), 4_u32..64, 32_u64..96);
    let pairs = Cell::new(0);
    let outcome = runner.run(&case, |(which, cards, n_ctx, ram)| {
        let host = Host::new(gib(ram)).bandwidth(60_000_000_000).physical_cores(8);
        let card = |(n, &(size, speed)): (usize, &(u64, u64))| {
            Gpu::new(format!("card {n}")).total(gib(size)).bandwidth(speed * 1_000_000_000)
        };
        let machine = cards.iter().enumerate().map(card).fold(Machine::new(host), Machine::with_gpu);
        let request = Request::new().n_ctx(n_ctx * 1024);
        if let Ok(plan) = Planner::new(&profiles[which], &machine).request(request).plan() {
            assert_sound(&plan);
            if let Some(other) = plan.other() {
                pairs.set(pairs.get() + 1);
                assert_eq!(other.other().unwrap(), plan);
                assert_ne!(other.split(), plan.split());
                assert_sound(&other);
            }
        }
        Ok(())
    });
    outcome.unwrap();
    println!("{cases} fleets, {} plans with two placements", pairs.get());
    assert!(pairs.get() * 12 >= cases, "{} of {cases}", pairs.get());
}

#[test]
fn both_placements_of_random_fleets_fit_into_the_free_memory() {
    both_placements_fit(60);
}

#[test]
#[ignore = "minutes: 1,000 fleets"]
fn both_placements_of_1000_random_fleets_fit_into_the_free_memory() {
    both_placements_fit(1000);
}

#[test]
fn a_plan_that_is_best_at_every_depth_names_no_other_placement() {
    let profile = profile("qwen3 Qwen3 32B");
    let request = || Request::new().n_ctx(N_CTX);
    let planned =
        |machine: &Machine, request: Request| Planner::new(&profile, machine).request(request).plan().unwrap();
    // The model fits on the card, or the machine has only a host.
    for machine in [by_data_sheet("RTX 6000 Ada", "Core i5-12400"), Machine::new(Host::new(64 << 30))] {
        let plan = planned(&machine, request());
        assert_eq!(plan.by_depth, None);
        assert!(!plan.to_string().contains("\n  depth"), "{plan}");
    }
    // A plan with stated settings has one placement.
    let machine = by_data_sheet("RTX 5060 Ti 16GB", "Ryzen 7 5800X");
    assert!(planned(&machine, request()).by_depth.is_some());
    for stated in [
        request().workload(Workload::new(1024, 256)),
        request().depth(Depth::All),
        request().depth(Depth::Fixed(1000)),
        request().n_gpu_layers(GpuLayers::Exactly(20)),
        request().policy(Policy::MostLayers),
        request().tensor_split([1.0]),
        request().overrides([TensorOverride::new(r"^blk\.0\.ffn_up\.weight", Place::Host)]),
    ] {
        assert_eq!(planned(&machine, stated.clone()).by_depth, None, "{stated:?}");
    }
}

#[test]
fn a_plan_follows_a_stated_depth_and_refuses_one_beyond_the_context() {
    let profile = profile("qwen3 Qwen3 32B");
    let machine = by_data_sheet("RTX 5060 Ti 16GB", "Ryzen 7 5800X");
    let planned = |depth| Planner::new(&profile, &machine).request(Request::new().n_ctx(N_CTX).depth(depth)).plan();
    let follows = planned(Depth::Follow).unwrap();
    for (depth, tokens) in [(Depth::Fixed(0), 0), (Depth::Fixed(N_CTX), N_CTX)] {
        let plan = planned(depth).unwrap();
        // At its depth, a plan for a fixed depth is at least as fast as the better placement of a plan with two
        // placements.
        let [fixed, of_two] =
            [&plan, &follows.clone().for_depth(tokens)].map(|plan| Times::new(&profile, &machine, plan));
        let at = |times: Times| times.seconds(DepthWork::token(tokens));
        assert!(at(fixed) <= 1.02 * at(of_two), "{depth}: {plan}");
    }
    let error = planned(Depth::Fixed(N_CTX + 1)).unwrap_err().to_string();
    assert!(error.contains("depth") && error.contains("32768"), "{error}");
}

#[test]
fn a_plan_states_the_measured_time_of_a_move_and_has_one_placement_if_too_long() {
    let profile = profile("qwen3 Qwen3 32B");
    let machine = by_data_sheet("RTX 5060 Ti 16GB", "Ryzen 7 5800X");
    let planned = |moves: MoveRates| {
        let planner = Planner::new(&profile, &machine).request(Request::new().n_ctx(N_CTX));
        planner.move_rates(moves).plan().unwrap()
    };
    let mut conditions = RateConditions::default();
    (conditions.at, conditions.waited) = (1_800_000_000, Some(60));
    let figure = |value| Some(MoveFigure::new(value, conditions.clone()));
    let of_load = |warm: u64| {
        let mut moves = MoveRates::default();
        (moves.warm_file, moves.rest_ns) = (figure(warm), figure(7_000_000_000));
        moves
    };
    let stated = planned(MoveRates::default());
    let by_depth = |plan: &Plan| plan.by_depth.as_deref().unwrap().clone();
    assert_eq!(by_depth(&stated).moving_measured, None);
    // A load's figures predict nothing if the time of everything but reading is missing.
    let mut part = of_load(4_000_000_000);
    part.rest_ns = None;
    assert_eq!(planned(part), stated);

    let measured = planned(of_load(4_000_000_000));
    let other = &by_depth(&measured).plan;
    let weights: u64 = other.placements.iter().map(|placement| placement.footprint.weights).sum();
    let without_state = weights as f64 / 4e9 + 7.0;
    let seconds = by_depth(&measured).moving_seconds;
    assert!(without_state < seconds && seconds < without_state + 1.0, "{seconds} {without_state}");
    let line = measured.by_depth_in_words().unwrap();
    assert!(
        line.ends_with("(as measured 2027-01-15, beside other work (its threads waited for a core 60 % of the time))"),
        "{line}"
    );
    // Once a move was measured, the prediction also counts the copies of the state for the same number of tokens.
    let mut moves = of_load(4_000_000_000);
    moves.state = figure(1_000_000);
    assert!(by_depth(&stated.clone().with_move_rates(&moves)).moving_seconds > seconds + 60.0);
    // Reading the file takes a day.
    assert_eq!(planned(of_load(200_000)).by_depth, None);
}
