//! Five traces in virtual time, under the pool's rule and those of llama-swap, Ollama and llama-server's router. Prints
//! the table of `benches/results/2026-11-29-virtual/pool.md`.

mod bounds;
mod ours;
mod rivals;
mod sim;
mod unforeseen;

use autoplace::machine::Machine;
use autoplace::plan::{Context, Request};
use autoplace_pool::Rung;
use test_support::random_weights::Dice;

use crate::models::{machine, model};
use bounds::Foresight;
use ours::Ours;
use rivals::{LlamaSwap, Ollama, Router};
use sim::{Caching, Report, Rule, TracedModel, Wish};
use unforeseen::Draw;

/// A trace: its name, its machine, its models, and its requests.
struct Trace {
    name: &'static str,
    machine: Machine,
    models: Vec<TracedModel>,
    wishes: Vec<Wish>,
    /// The draws of the models, which no rule can foresee. None for a trace whose requests follow each other as a rule.
    draws: Vec<Draw>,
}

/// A model whose sequences each have this context.
fn traced(machine: &Machine, name: &'static str, n_ctx: u32, sequences: u32) -> TracedModel {
    let request = Request::new().n_seq_max(sequences).context(Context::Tokens(n_ctx * sequences));
    TracedModel { name, ladder: model(name, machine, &request).unwrap().ladder, sequences: sequences as usize }
}

/// A random time between two independent events, in seconds, whose mean is `mean`.
fn pause(dice: &mut Dice, mean: f64) -> f64 {
    let uniform = (f64::from(dice.below(1_000_000_u32)) + 1.0) / 1_000_001.0;
    -mean * uniform.ln()
}

fn between(dice: &mut Dice, from: u32, to: u32) -> u32 {
    from + dice.below(to - from)
}

fn sorted(mut wishes: Vec<Wish>) -> Vec<Wish> {
    wishes.sort_by(|one, other| one.at.total_cmp(&other.at));
    wishes
}

/// Three hours in which a person chats with a large model, and a small one writes a title and suggestions after each
/// answer.
fn chat_and_titles(seed: u64) -> Trace {
    let machine = machine(&["RTX 4090"], "Ryzen 9 7950X", 64);
    let models = vec![traced(&machine, "32b", 16_384, 1), traced(&machine, "3b", 8192, 1)];
    let (mut dice, mut wishes, mut now) = (Dice::new(seed), Vec::new(), 0.0);
    while now < 3.0 * 3600.0 {
        let turns = between(&mut dice, 3, 12);
        for _ in 0..turns {
            let reply = between(&mut dice, 100, 600);
            wishes.push(Wish { at: now, model: 0, prompt: between(&mut dice, 50, 800), reply });
            // The client asks for a title after the answer, which takes some twenty tokens per second.
            let answered = now + f64::from(reply) / 20.0;
            wishes.push(Wish { at: answered, model: 1, prompt: 600, reply: 20 });
            now = answered + 5.0 + pause(&mut dice, 40.0);
        }
        now += pause(&mut dice, 300.0);
    }
    Trace { name: "a chat and its titles", machine, models, wishes: sorted(wishes), draws: Vec::new() }
}

/// Two hours in which an agent writes code with one model, searches with an embedder, and summarises with a third. A
/// model of 1B, which writes one token, stands in for the embedder.
fn agent(seed: u64) -> Trace {
    let machine = machine(&["RTX 4090"], "Ryzen 9 7950X", 64);
    let models = vec![
        traced(&machine, "30b-a3b", 32_768, 1),
        traced(&machine, "1b", 8192, 1),
        traced(&machine, "8b", 16_384, 1),
    ];
    let (mut dice, mut wishes, mut now) = (Dice::new(seed), Vec::new(), 0.0);
    // The times of the coder's requests, and the times before them at which a summary may have been drawn.
    let (mut coder, mut drawn) = (Vec::new(), Vec::new());
    while now < 2.0 * 3600.0 {
        for _ in 0..between(&mut dice, 4, 15) {
            for _ in 0..between(&mut dice, 0, 4) {
                wishes.push(Wish { at: now, model: 1, prompt: between(&mut dice, 200, 2000), reply: 1 });
                now += 0.3;
            }
            coder.push(now);
            wishes.push(Wish {
                at: now,
                model: 0,
                prompt: between(&mut dice, 500, 6000),
                reply: between(&mut dice, 50, 500),
            });
            now += 4.0 + pause(&mut dice, 6.0);
            if dice.percent(15) {
                wishes.push(Wish { at: now, model: 2, prompt: between(&mut dice, 2000, 8000), reply: 200 });
                now += 5.0;
            }
            // After a summary this is five seconds later than the draw, and so are all later times.
            drawn.push(now);
        }
        now += pause(&mut dice, 120.0);
    }
    let draw = |(index, &at): (usize, &f64)| {
        let (&next, &another) = (coder.get(index + 1)?, coder.get(index + 2)?);
        // If a summary was drawn before the second request, this request was five seconds later than without it.
        let is_delayed = |wish: &Wish| wish.model == 2 && wish.at > next && wish.at < another;
        let another = another - if wishes.iter().any(is_delayed) { 5.0 } else { 0.0 };
        Some(Draw::of_agent(at, [next - at, 5.0, another - at], [0.15, 0.75]))
    };
    let draws = drawn.iter().enumerate().filter_map(draw).collect();
    Trace { name: "an agent with coder and embedder", machine, models, wishes: sorted(wishes), draws }
}

/// One hour in which a hundred users ask two models a question now and then.
fn hundred_users(seed: u64) -> Trace {
    let machine = machine(&["RTX 4090"], "Ryzen 9 7950X", 64);
    let models = vec![traced(&machine, "14b", 4096, 8), traced(&machine, "8b", 4096, 8)];
    let (mut dice, mut wishes) = (Dice::new(seed), Vec::new());
    for user in 0..100 {
        let mut now = pause(&mut dice, 600.0);
        while now < 3600.0 {
            // Most users always ask the same model.
            let model = if dice.percent(90) { user % 2 } else { (user + 1) % 2 };
            let (prompt, reply) = (between(&mut dice, 50, 1500), between(&mut dice, 50, 400));
            wishes.push(Wish { at: now, model, prompt, reply });
            now += pause(&mut dice, 600.0);
        }
    }
    Trace { name: "one hundred users of two models", machine, models, wishes: sorted(wishes), draws: Vec::new() }
}

/// Three hours with a large, slow model for hard questions and a small, fast one for the others.
fn slow_and_fast(seed: u64) -> Trace {
    let machine = machine(&["RTX 3060 12GB"], "Core i5-12400", 64);
    let models = vec![traced(&machine, "32b", 8192, 1), traced(&machine, "8b", 8192, 1)];
    let (mut dice, mut wishes, mut now) = (Dice::new(seed), Vec::new(), 0.0);
    let mut draws = Vec::new();
    while now < 3.0 * 3600.0 {
        draws.push(Draw::of_models(now, &[0.1, 0.9]));
        let is_hard = dice.percent(10);
        let (prompt, reply) = (between(&mut dice, 50, 1000), between(&mut dice, 50, 400));
        wishes.push(Wish { at: now, model: usize::from(!is_hard), prompt, reply });
        now += if is_hard { 90.0 } else { 10.0 } + pause(&mut dice, 30.0);
    }
    Trace { name: "a slow large model and a fast small one", machine, models, wishes: sorted(wishes), draws }
}

/// Four hours on two cards with six models, some of which are popular for a while.
fn random(seed: u64) -> Trace {
    let machine = machine(&["RTX 4060 Ti 16GB", "RTX 3060 12GB"], "Ryzen 7 5800X", 64);
    let names = ["8b", "14b", "32b", "30b-a3b", "3b", "1b"];
    let models: Vec<TracedModel> = names.iter().map(|name| traced(&machine, name, 8192, 1)).collect();
    let (mut dice, mut wishes, mut now) = (Dice::new(seed), Vec::new(), 0.0);
    let mut fashion = [0, 1, 4];
    let (mut known, mut draws) = (Fashions::new(fashion), Vec::new());
    while now < 4.0 * 3600.0 {
        if dice.percent(2) {
            fashion = [(); 3].map(|()| dice.below(names.len()));
        }
        draws.push(Draw::of_models(now, &known.chances()));
        let model = if dice.percent(90) { dice.one_of(&fashion) } else { dice.below(names.len()) };
        known.see(model);
        let (prompt, reply) = (between(&mut dice, 50, 3000), between(&mut dice, 20, 400));
        wishes.push(Wish { at: now, model, prompt, reply });
        now += pause(&mut dice, 45.0);
    }
    Trace { name: "six models at random", machine, models, wishes: sorted(wishes), draws }
}

/// What a rule can know of the models in fashion, if it knows how they are drawn and which models were requested.
struct Fashions(Vec<([usize; 3], f64)>);

impl Fashions {
    /// The first three are known.
    fn new(first: [usize; 3]) -> Self {
        let all = (0..216).map(|number| [number / 36, number / 6 % 6, number % 6]);
        let mut fashions = Self(all.map(|fashion| (fashion, f64::from(u8::from(fashion == first)))).collect());
        fashions.pass();
        fashions
    }

    /// The probability of each model while these three are in fashion.
    fn chances_in(fashion: [usize; 3]) -> [f64; 6] {
        let count = |model: usize| fashion.iter().filter(|&&other| other == model).count() as f64;
        [0, 1, 2, 3, 4, 5].map(|model| 0.3 * count(model) + 0.1 / 6.0)
    }

    /// The probability of each model, whichever fashion it is.
    fn chances(&self) -> Vec<f64> {
        let chance =
            |model: usize| self.0.iter().map(move |(fashion, chance)| chance * Self::chances_in(*fashion)[model]);
        (0..6).map(|model| chance(model).sum()).collect()
    }

    /// This model was requested.
    fn see(&mut self, model: usize) {
        self.0.iter_mut().for_each(|(fashion, chance)| *chance *= Self::chances_in(*fashion)[model]);
        let all: f64 = self.0.iter().map(|(_, chance)| chance).sum();
        self.0.iter_mut().for_each(|(_, chance)| *chance /= all);
        self.pass();
    }

    /// Another fashion may have come before the next request.
    fn pass(&mut self) {
        self.0.iter_mut().for_each(|(_, chance)| *chance = 0.98 * *chance + 0.02 / 216.0);
    }
}

/// Runs the traces and prints their table. For each trace, returns the seconds that requests waited under the pool's
/// rule, llama-swap's, Ollama's and the router's.
fn run(traces: &[Trace], caching: Caching) -> Vec<[f64; 4]> {
    println!(
        "| trace | rule | waited, all requests | by pool | of it for loads | in the queue | slower | shared | read | \
         by pool | loads | moves |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut waited = Vec::new();
    for Trace { name, machine, models, wishes, .. } in traces {
        let trace = (machine, &models[..], &wishes[..]);
        let run = |rule: &mut dyn Rule| sim::run(trace, caching, rule);
        let pool = run(&mut Ours::new((machine, models), false));
        let moving = run(&mut Ours::new((machine, models), true));
        let rivals = [run(&mut LlamaSwap), run(&mut Ollama::default()), run(&mut Router)];
        let row = |trace: &str, rule: &str, report: &Report| {
            println!(
                "| {trace} | {rule} | {:.0} s | {:.2} | {:.0} s | {:.0} s | {:.0} s | {:.0} s | {:.0} GB | {:.2} | {} \
                 | {} |",
                report.waited,
                report.waited / pool.waited,
                report.parts.load,
                report.parts.queue,
                report.parts.slower,
                report.parts.shared,
                report.read as f64 / 1e9,
                report.read as f64 / pool.read as f64,
                report.loads,
                report.moves
            );
        };
        row(&format!("{name}, {} requests", wishes.len()), "pool", &pool);
        row("", "pool, moving in mid-text", &moving);
        let names = ["llama-swap", "Ollama", "llama-server's router"];
        names.iter().zip(&rivals).for_each(|(rule, report)| row("", rule, report));
        if models.iter().any(|model| model.sequences > 1) {
            row("", "Ollama, choosing its number of texts", &run(&mut Ollama { chooses_texts: true }));
        }
        row("", "the pool, told the next two requests", &run(&mut Ours::clairvoyant((machine, models))));
        row("", "bound: room for all models", &bounds::with_room_for_all(trace));
        if let Some(fixed) = bounds::best_fixed(trace) {
            row("", "the best fixed placements", &fixed);
        }
        let [swap, ollama, router] = rivals.map(|report| report.waited);
        waited.push([pool.waited, swap, ollama, router]);
    }
    waited
}

#[test]
fn a_chat_and_its_titles_wait_a_half_of_one_model_at_a_time_and_nothing_waits_much_longer_than_by_the_best_rule() {
    let waited = run(&[chat_and_titles(1), slow_and_fast(4)], Caching::Nothing);
    let [pool, swap, ollama, _] = waited[0];
    assert!(pool <= 0.5 * swap.min(ollama), "{waited:?}");
    for [pool, rivals @ ..] in waited.clone() {
        let best = rivals.into_iter().fold(f64::INFINITY, f64::min);
        assert!(pool <= 1.25 * best, "{waited:?}");
    }
}

/// Prints the tables of five traces by these seeds: without a page cache, and with one.
fn five(seeds: [u64; 5]) {
    let [chat, coding, users, hard, any] = seeds;
    let traces = [chat_and_titles(chat), agent(coding), hundred_users(users), slow_and_fast(hard), random(any)];
    for caching in [Caching::Nothing, Caching::Pages] {
        println!("\n{caching:?}\n");
        let waited = run(&traces, caching);
        let best = |[pool, rivals @ ..]: &[f64; 4]| pool / rivals.iter().copied().fold(f64::INFINITY, f64::min);
        let over: Vec<f64> = waited.iter().map(best).collect();
        let mut sorted = over.clone();
        sorted.sort_by(f64::total_cmp);
        println!("\nwaiting by the pool over that by the best other rule: {over:.2?}, the median {:.2}", sorted[2]);
    }
}

#[test]
#[ignore = "a minute or two: prints the table of benches/results"]
fn five_traces() {
    five([1, 2, 3, 4, 5]);
}

/// The rule is never changed because of the results of these seeds. They show whether the gains on the other seeds hold
/// here too.
#[test]
#[ignore = "a minute or two: prints the second table of benches/results"]
fn five_traces_held_out() {
    five([301, 302, 303, 304, 305]);
}

const KINDS: [fn(u64) -> Trace; 5] = [chat_and_titles, agent, hundred_users, slow_and_fast, random];

/// Uses five further seeds of each kind, which no change of the rule has seen. Prints the waiting under the pool's
/// rule, divided by the waiting under the best other rule, and the bytes that both rules have read.
#[test]
#[ignore = "a minute or two: prints the third table of benches/results"]
fn twenty_five_traces_held_out() {
    println!("| traces | files | waiting over the best other rule's | read | read by that rule |");
    println!("|---|---|---|--:|--:|");
    for kind in KINDS {
        for caching in [Caching::Nothing, Caching::Pages] {
            let (mut ratios, mut read, mut read_by_best) = (Vec::new(), 0, 0);
            let mut name = "";
            for seed in 311..316 {
                let Trace { machine, models, wishes, name: of_kind, .. } = kind(seed);
                let trace = (&machine, &models[..], &wishes[..]);
                let pool = sim::run(trace, caching, &mut Ours::new((&machine, &models), false));
                let rivals: [&mut dyn Rule; 3] = [&mut LlamaSwap, &mut Ollama::default(), &mut Router];
                let rivals = rivals.map(|rule| sim::run(trace, caching, rule));
                let best = rivals.into_iter().min_by(|one, other| one.waited.total_cmp(&other.waited)).unwrap();
                ratios.push(format!("{:.2}", pool.waited / best.waited));
                (read, read_by_best, name) = (read + pool.read, read_by_best + best.read, of_kind);
            }
            let gigabytes = |bytes: u64| bytes / 1_000_000_000;
            println!(
                "| {name} | {caching:?} | {} | {} GB | {} GB |",
                ratios.join(", "),
                gigabytes(read),
                gigabytes(read_by_best)
            );
        }
    }
}

/// Prints, for traces of each kind by these seeds, the waiting under the pool's rule, divided by that under the best
/// other rule.
fn summary(seeds: std::ops::Range<u64>) {
    println!("| traces | files | mean | worst | above 1 | of |");
    println!("|---|---|--:|--:|--:|--:|");
    for kind in KINDS {
        for caching in [Caching::Nothing, Caching::Pages] {
            let (mut ratios, mut name) = (Vec::new(), "");
            for seed in seeds.clone() {
                let Trace { machine, models, wishes, name: of_kind, .. } = kind(seed);
                let trace = (&machine, &models[..], &wishes[..]);
                let pool = sim::run(trace, caching, &mut Ours::new((&machine, &models), false)).waited;
                let rivals: [&mut dyn Rule; 3] = [&mut LlamaSwap, &mut Ollama::default(), &mut Router];
                let best = rivals.map(|rule| sim::run(trace, caching, rule).waited);
                ratios.push(pool / best.into_iter().fold(f64::INFINITY, f64::min));
                name = of_kind;
            }
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            let worst = ratios.iter().copied().fold(0.0, f64::max);
            let above = ratios.iter().filter(|ratio| **ratio > 1.0).count();
            println!("| {name} | {caching:?} | {mean:.3} | {worst:.3} | {above} | {} |", ratios.len());
        }
    }
}

/// A change of the rule for the sake of its figures is made with these seeds only.
#[test]
#[ignore = "some minutes: prints what a change of the rule does"]
fn a_hundred_traces_for_changes_of_the_rule() {
    summary(500..520);
}

/// These seeds are run once, after the last change.
#[test]
#[ignore = "ten minutes: prints the fourth table of benches/results"]
fn two_hundred_traces_held_out() {
    summary(600..640);
}

/// Prints, for the five traces, whether a half of the waiting under the best other rule is within reach at all.
#[test]
#[ignore = "a minute: prints the table of bounds of benches/results"]
fn bounds_of_five_traces() {
    println!(
        "| trace | files | best other rule | a half of it | pool | loading on request | knowing all | room for all | \
         read by that rule | by the pool | least for no longer waits |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let traces = [chat_and_titles(1), agent(2), hundred_users(3), slow_and_fast(4), random(5)];
    for Trace { name, machine, models, wishes, .. } in &traces {
        for caching in [Caching::Nothing, Caching::Pages] {
            let trace = (machine, &models[..], &wishes[..]);
            let pool = sim::run(trace, caching, &mut Ours::new((machine, models), false));
            let rivals: [&mut dyn Rule; 3] = [&mut LlamaSwap, &mut Ollama::default(), &mut Router];
            let rivals = rivals.map(|rule| sim::run(trace, caching, rule));
            let other = rivals.into_iter().min_by(|one, other| one.waited.total_cmp(&other.waited)).unwrap();
            let best = other.waited;
            let bounds =
                [Foresight::Nothing, Foresight::All].map(|foresight| bounds::in_order(trace, caching, foresight, 0.0));
            let room = bounds::with_room_for_all(trace);
            let share = |seconds: f64| format!("{seconds:.0} s ({:.2})", seconds / best);
            // With a page cache, each file is read once from the disk, by whichever rule.
            let least = match caching {
                Caching::Nothing => bounds::least_bytes(trace, best).max(room.read as f64),
                Caching::Pages => room.read as f64,
            };
            let bytes = |bytes: f64| format!("{:.0} GB ({:.2})", bytes / 1e9, bytes / other.read as f64);
            println!(
                "| {name} | {caching:?} | {best:.0} s | {:.0} s | {} | {} | {} | {} | {:.0} GB | {} | {} |",
                best / 2.0,
                share(pool.waited),
                share(bounds[0]),
                share(bounds[1]),
                share(room.waited),
                other.read as f64 / 1e9,
                bytes(pool.read as f64),
                bytes(least)
            );
        }
    }
}

/// Prints numbers that show why the router's requests wait so long in the fourth trace, and less in the held-out one.
#[test]
#[ignore = "prints two lines"]
fn the_routers_placements_in_the_traces_of_a_slow_model_and_a_fast_one() {
    for seed in [4, 104] {
        let Trace { machine, models, wishes, .. } = slow_and_fast(seed);
        let alone = |model: usize| &models[model].ladder.rungs()[0];
        let (first, other) = (wishes[0].model, 1 - wishes[0].model);
        let taken = &alone(first).held.gpus;
        let is_beside = |rung: &&Rung| {
            let gpus = machine.gpus.iter().zip(rung.held.gpus.iter().zip(taken));
            gpus.into_iter().all(|(gpu, (held, taken))| held + taken <= gpu.free)
        };
        let second = models[other].ladder.rungs().iter().find(is_beside).unwrap();
        let of_other: Vec<&Wish> = wishes.iter().filter(|wish| wish.model == other).collect();
        let mean =
            |rung: &Rung| of_other.iter().map(|wish| sim::seconds(rung, wish)).sum::<f64>() / of_other.len() as f64;
        println!(
            "seed {seed}: {} comes first and takes {} of {} layers; {} then has {} of {}, and a request takes {:.0} s \
             there ({:.0} s alone), where one comes each {:.0} s",
            models[first].name,
            alone(first).plan.n_gpu_layers,
            alone(first).plan.layers(),
            models[other].name,
            second.plan.n_gpu_layers,
            second.plan.layers(),
            mean(second),
            mean(alone(other)),
            wishes.last().unwrap().at / of_other.len() as f64,
        );
    }
}

/// Prints how long requests can be expected to wait at least under any rule without foresight, for the traces in which
/// chance decides what is requested, and five more of each kind.
#[test]
#[ignore = "four minutes: prints a table of benches/results"]
fn bounds_without_foresight() {
    type Kind = (fn(u64) -> Trace, [u64; 6]);
    let kinds: [Kind; 3] = [
        (agent, [2, 301, 311, 312, 313, 314]),
        (slow_and_fast, [4, 301, 311, 312, 313, 314]),
        (random, [5, 301, 311, 312, 313, 314]),
    ];
    println!(
        "| trace | files | bound over the best other rule's waiting | sum of the bounds | sum of the best | pool |"
    );
    println!("|---|---|--:|--:|--:|--:|");
    for (kind, seeds) in kinds {
        let traces = seeds.map(kind);
        for caching in [Caching::Nothing, Caching::Pages] {
            let (mut ratios, mut sums) = (Vec::new(), [0.0; 3]);
            for Trace { machine, models, wishes, draws, .. } in &traces {
                let trace = (machine, &models[..], &wishes[..]);
                let bound = unforeseen::least(trace, draws, caching);
                let rivals: [&mut dyn Rule; 3] = [&mut LlamaSwap, &mut Ollama::default(), &mut Router];
                let best =
                    rivals.map(|rule| sim::run(trace, caching, rule).waited).into_iter().fold(f64::INFINITY, f64::min);
                let pool = sim::run(trace, caching, &mut Ours::new((machine, models), false)).waited;
                ratios.push(format!("{:.2}", bound / best));
                sums.iter_mut().zip([bound, best, pool]).for_each(|(sum, more)| *sum += more);
            }
            let [bound, best, pool] = sums;
            println!(
                "| {} | {caching:?} | {} | {bound:.0} s ({:.2}) | {best:.0} s | {pool:.0} s ({:.2}) |",
                traces[0].name,
                ratios.join(", "),
                bound / best,
                pool / best
            );
        }
    }
}
