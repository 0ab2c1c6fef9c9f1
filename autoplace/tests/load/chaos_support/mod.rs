//! A round of chaos: a case, what happens on its cards, and how it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use autoplace::Model;
use autoplace::generate;
use autoplace::llama_sys::{Error as Native, sim::SimGpu};
use autoplace::load::{Error, OnDifference, Stage, Verify};
use autoplace::machine::{Host, Machine, gib, mib};
use autoplace::memory::{FlashAttention, Headroom};
use autoplace::plan::{GpuLayers, Plan, Request};
use autoplace::profile::ModelProfile;

use crate::fleets_support::{Case, Models};
use crate::rig::{Card, nothing_left};
use test_support::random_weights::Dice;

const TOKENS: usize = 6;

/// The kind of a round in which the text is the same as on the CPU, and no generation failed before it.
const SAME: &str = "the same text at once";

/// A round. Its number determines everything in it.
pub(crate) struct Round<'m> {
    case: Case,
    models: &'m Models,
    dice: Dice,
    attempts: u32,
    verify: Verify,
    on_difference: OnDifference,
    /// A list of what has happened, for debugging.
    happened: Vec<String>,
}

impl<'m> Round<'m> {
    pub(crate) fn new(number: u64, models: &'m Models) -> Self {
        let mut case = Case::new(number, models);
        let mut dice = Dice::new(number ^ 0x00c4_a05c_4a05);
        // Repacked weights are multiplied in another order. Only with the same order is the text certain to be the
        // same.
        case.request.params.repack = false;
        // If some memory stays free on the cards, faults are rare.
        if dice.percent(50) {
            case.request.headroom = Headroom::Bytes(0);
        }
        // If the context may grow, it can have thousands of tokens.
        let context = case.request.context;
        let tokens = context.tokens(&case.model(models).profile);
        let is_short = tokens <= 512 && !context.may_grow();
        Self {
            attempts: dice.one_of(&[1, 2, 3, 4, 4, 4, 4, 6]),
            verify: match dice.below(10) {
                0 => Verify::Off,
                1..=2 if is_short => Verify::Full,
                _ => Verify::Quick,
            },
            on_difference: dice.one_of(&[
                OnDifference::BackOff,
                OnDifference::BackOff,
                OnDifference::Accept,
                OnDifference::Fail,
            ]),
            case,
            models,
            dice,
            happened: Vec::new(),
        }
    }

    pub(crate) fn describe(&self) -> String {
        let (attempts, verify, case) = (self.attempts, self.verify, self.case.describe(self.models));
        let (on_difference, happened) = (self.on_difference, self.happened.join("; "));
        format!("{attempts} attempts, {verify:?}, {on_difference:?}: {happened}\n    {case}")
    }

    /// Loads and generates while all this happens. Returns the kinds of this round.
    ///
    /// # Errors
    ///
    /// An error that describes which expectation was violated.
    pub(crate) fn run(&mut self) -> Result<Vec<String>, String> {
        let dice = &mut self.dice;
        let pools = || match dice.below(4) {
            0 => dice.below(mib(2)),
            _ => 0,
        };
        let fleet = self.case.fleet(pools);
        let machine = self.case.machine(&fleet);
        let sims: Vec<_> = fleet.into_iter().map(|Card { sim, .. }| Arc::new(sim)).collect();
        let outcome = self.on(&sims, &machine);
        nothing_left("everything is dropped", sims.iter().map(|sim| &**sim))?;
        outcome
    }

    fn on(&mut self, sims: &[Arc<SimGpu>], machine: &Machine) -> Result<Vec<String>, String> {
        let builder = Model::builder(&self.case.model(self.models).path)
            .request(self.case.request.clone())
            .machine(machine.clone())
            .attempts(self.attempts)
            .verify(self.verify)
            .on_difference(self.on_difference)
            .n_threads(1);
        self.before_the_load(sims);
        let events = Mutex::new(self.events(sims));
        let mut calls = 0;
        let cards: Vec<Arc<SimGpu>> = sims.to_vec();
        let builder = builder.progress(move |progress| {
            if matches!(progress.stage, Stage::Plan | Stage::Measure | Stage::Wait) {
                return true;
            }
            calls += 1;
            for &(card, _, percent) in events.lock().unwrap().iter().filter(|(_, call, _)| *call == calls) {
                take(&cards[card], percent);
            }
            true
        });
        let stop = Arc::new(AtomicBool::new(false));
        let thread = (!sims.is_empty() && self.dice.percent(8)).then(|| self.thread(sims, &stop));
        let loaded = builder.load();
        stop.store(true, Ordering::Release);
        if let Some(thread) = thread {
            thread.join().unwrap();
        }
        match loaded {
            Ok(model) => self.loaded(sims, &model),
            Err(error) => self.refused(&error).map(|kind| vec![kind.to_owned()]),
        }
    }

    /// What happens after the machine was read and before the load.
    fn before_the_load(&mut self, sims: &[Arc<SimGpu>]) {
        let (dice, happened) = (&mut self.dice, &mut self.happened);
        for (card, sim) in sims.iter().enumerate() {
            if dice.percent(45) {
                let percent = dice.below(101);
                take(sim, percent);
                happened.push(format!("{percent} % of card {card} taken"));
            }
            if dice.percent(35) {
                let n = 1 + dice.below(12);
                sim.fail_allocation(n);
                happened.push(format!("allocation {n} of card {card} fails"));
            }
            if dice.percent(20) {
                let n = 1 + dice.below(8);
                sim.fail_graph(n);
                happened.push(format!("graph {n} of card {card} fails"));
            }
        }
    }

    /// What happens during the load and the warm-up. Each entry has the card, the number of a call of the progress
    /// callback, and the percentage of the memory that other programs then take.
    fn events(&mut self, sims: &[Arc<SimGpu>]) -> Vec<(usize, u64, u64)> {
        let dice = &mut self.dice;
        let mut events = Vec::new();
        for card in 0..sims.len() {
            while dice.percent(50) {
                let (call, any) = (1 + dice.below(120), dice.below(101));
                // The percentage is 0, 100, or any number between them.
                events.push((card, call, dice.one_of(&[0, 0, any, 100])));
            }
        }
        let said = |(card, call, percent)| format!("{percent} % of card {card} taken at call {call}");
        self.happened.extend(events.iter().copied().map(said));
        events
    }

    /// A thread that takes memory and releases it again, all the time.
    fn thread(&mut self, sims: &[Arc<SimGpu>], stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
        self.happened.push("a thread takes and gives back".to_owned());
        let (cards, stop) = (sims.to_vec(), Arc::clone(stop));
        let mut dice = Dice::new(self.case.number ^ 0x7412_ead0);
        thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                let card = dice.below(cards.len());
                take(&cards[card], dice.below(101));
                thread::yield_now();
            }
        })
    }

    /// Checks that a failed load has ended with one of the errors that are allowed.
    fn refused(&self, error: &Error) -> Result<&'static str, String> {
        let text = error.to_string();
        if text.contains('\n') {
            return Err(format!("an error of several lines: {text}"));
        }
        match error {
            Error::AllAttempts { attempts, .. } => {
                let all_failed = attempts.iter().all(|attempt| attempt.failure.is_some());
                let most = self.attempts as usize + 1;
                if !all_failed || !(2..=most).contains(&attempts.len()) {
                    return Err(format!("{} attempts: {text}", attempts.len()));
                }
                Ok("all attempts failed")
            }
            Error::Plan(_) => Ok("no plan at first"),
            Error::OutOfMemory { .. } if self.attempts == 1 => Ok("out of memory, tried once"),
            Error::Native(_) if self.attempts == 1 => Ok("llama.cpp's error, tried once"),
            Error::Difference { .. } if self.attempts == 1 || self.on_difference == OnDifference::Fail => {
                Ok("more taken than planned")
            }
            other => Err(format!("ended with {other:?}")),
        }
    }

    /// Checks that a loaded model generates the same text as on the CPU, however much memory other programs take from
    /// now on.
    fn loaded(&mut self, sims: &[Arc<SimGpu>], model: &Model) -> Result<Vec<String>, String> {
        let report = model.report();
        let attempts = report.tries();
        if attempts > self.attempts as usize {
            return Err(format!("{attempts} attempts\n{report}"));
        }
        for sim in sims {
            sim.fail_allocation(0);
            sim.fail_graph(0);
        }
        let expected = self.expected(&model.placement())?;
        let used: Vec<u64> = sims.iter().map(|sim| sim.used()).collect();
        let fails = self.dice.percent(25);
        if fails {
            for sim in sims {
                sim.fail_graph(1 + self.dice.below(6));
            }
        }
        let (mut outcome, mut said) = (self.generate(model, sims), SAME);
        // If nothing was computed to verify the load, the pools have not taken their memory yet.
        if matches!(outcome, Err(generate::Error::Native(Native::Decode { .. })))
            && (fails || self.verify == Verify::Off)
        {
            for sim in sims {
                sim.fail_graph(0);
            }
            (outcome, said) = (self.generate(model, sims), "a failed generation, then the same text");
            if let Err(generate::Error::Native(
                Native::ContextInit { .. } | Native::Decode { .. } | Native::Call { .. },
            )) = outcome
            {
                let no_room = "a failed generation, then no room for another";
                return Ok(vec![format!("loaded at attempt {attempts}"), no_room.to_owned()]);
            }
        }
        let grown = match outcome {
            Ok((text, grown)) if expected.contains(&text) => grown,
            Ok((text, _)) => return Err(format!("{text:?} instead of {expected:?}\n{report}")),
            Err(error) => return Err(format!("generating: {error:?}\n{report}")),
        };
        let now: Vec<u64> = sims.iter().map(|sim| sim.used()).collect();
        let is_verified = self.verify != Verify::Off;
        // If no card computes, a load reserves no more than llama.cpp itself does.
        let grew = now != used || (grown > 0 && !sims.is_empty());
        if is_verified && grew && said == SAME {
            let counted = format!("the text counted {grown} bytes more");
            return Err(format!("{used:?} bytes after the load, then {now:?}; {counted}\n{report}"));
        }
        Ok(vec![format!("loaded at attempt {attempts}"), said.to_owned()])
    }

    /// The text that follows the prompt, and by how many bytes buffers have grown for it. Between two tokens of the
    /// text, other programs take and release memory.
    fn generate(&mut self, model: &Model, sims: &[Arc<SimGpu>]) -> Result<(String, u64), generate::Error> {
        let mut text = String::new();
        let mut stream = self.stream(model)?;
        for piece in stream.by_ref() {
            text.push_str(&piece?);
            for sim in sims {
                if self.dice.percent(30) {
                    take(sim, self.dice.below(101));
                }
            }
        }
        Ok((text, stream.statistics().buffer_growth))
    }

    fn stream(&self, model: &Model) -> Result<generate::TokenStream, generate::Error> {
        let plan = model.placement();
        let tokens = plan.context.n_ubatch as usize + self.case.remainder;
        // If several sequences share the context, the prompt leaves room for the tokens that follow it.
        let room = (plan.context.n_ctx / plan.context.n_seq_max) as usize;
        let tokens = tokens.min(room - 2 * TOKENS);
        let prompt = "a".repeat(tokens.saturating_sub(4));
        model.generate(prompt).temp(0.0).max_tokens(TOKENS).special(true).stream()
    }

    /// For each form of attention that the plan's parameters allow, the text that the CPU generates with them.
    fn expected(&self, plan: &Plan) -> Result<Vec<String>, String> {
        let case = self.case.model(self.models);
        let on_the_cpu = |flash_attn| {
            let mut request = Request::new().n_ctx(plan.context.n_ctx).n_gpu_layers(GpuLayers::Exactly(0));
            request.params = plan.context.clone();
            request.params.flash_attn = flash_attn;
            let builder = Model::builder(&case.path).request(request).machine(Machine::new(Host::new(gib(16))));
            let model = builder.n_threads(1).load().map_err(generate::Error::from)?;
            self.stream(&model)?.collect::<Result<String, _>>()
        };
        let texts = ways_to_attend(&case.profile, plan).into_iter().map(on_the_cpu);
        texts.map(|text| text.map_err(|error| format!("on the CPU: {error}"))).collect()
    }
}

/// The forms of attention that cards may use with a plan. AUTO keeps attention fused if it is computed on the device of
/// its layer. If there is only a CPU, attention is always fused, and plain attention is rounded in another way. In a
/// hybrid whose cache is on the host, the form depends on the devices on which the scheduler puts the next operations
/// (`attention_fused_or_plain.rs`). With quantised values, attention is always fused (llama-context.cpp,
/// `llama_init_from_model`).
fn ways_to_attend(profile: &ModelProfile, plan: &Plan) -> Vec<FlashAttention> {
    let context = &plan.context;
    let has_state =
        profile.state.blocks().is_some_and(|blocks| blocks.iter().any(|block| block.recurrent_elements() > 0));
    let is_open = context.flash_attn == FlashAttention::Auto
        && !context.offload_kqv
        && !context.type_v.is_quantized()
        && plan.n_gpu_layers > 0
        && has_state;
    if is_open { vec![FlashAttention::On, FlashAttention::Off] } else { vec![context.flash_attn] }
}

/// Makes other programs take this percentage of a card.
fn take(sim: &SimGpu, percent: u64) {
    sim.set_taken(sim.total() / 100 * percent);
}
