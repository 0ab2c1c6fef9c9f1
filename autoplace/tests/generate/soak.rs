//! Generates many tokens. Streams and sessions are opened, dropped before their end, re-placed and aborted. No memory,
//! file or thread is leaked. `cargo xtask soak` generates a million tokens, and `cargo test` a few thousand.

use std::path::PathBuf;
use std::thread;

use crate::replace_support::{builder, plan, request};
use crate::sim_support::card;
use crate::text_support::held;
use autoplace::Model;
use autoplace::generate::{FinishReason, TokenStream};
use autoplace::llama_sys::sim::SimGpu;
use autoplace::machine::mib;
use autoplace::plan::{Plan, Request};
use test_support::random_weights::Dice;
use test_support::{demo_path, settled};

/// How often each operation was carried out.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    tokens: u64,
    /// The number of streams and sessions that were opened.
    opened: u64,
    dropped: u64,
    aborted: u64,
    replaced: u64,
    failed: u64,
    loaded: u64,
    /// The bytes by which texts on the card have made buffers grow after the warm-up.
    grown: u64,
}

/// A model on a simulated card, and what this test knows about it.
struct Soak {
    path: PathBuf,
    request: Request,
    plans: Vec<Plan>,
    card: SimGpu,
    model: Option<Model>,
    dice: Dice,
    tally: Tally,
}

impl Soak {
    fn new() -> Self {
        let path = demo_path();
        let request = request().n_ubatch(64).n_seq_max(4).n_ctx(1024);
        let card = card(mib(16));
        let plans = [7, 4, 0].map(|layers| plan(&path, &request, layers));
        Self { path, request, plans: plans.into(), card, model: None, dice: Dice::new(1), tally: Tally::default() }
    }

    fn model(&mut self) -> Model {
        let (path, request, tally) = (&self.path, &self.request, &mut self.tally);
        let model = self.model.get_or_insert_with(|| {
            tally.loaded += 1;
            builder(path, request).load().unwrap()
        });
        model.clone()
    }

    fn some_plan(&mut self) -> Option<Plan> {
        // If the index is beyond the plans, a new plan is made.
        self.plans.get(self.dice.below(4)).cloned()
    }

    fn round(&mut self) {
        let model = self.model();
        self.tally.opened += 1;
        let kind = self.dice.below(8_u32);
        self.tally.dropped += u64::from(kind == 1 || kind == 4);
        if kind < 2 {
            let steps = if kind == 0 { usize::MAX } else { self.dice.below(60) };
            return self.several(&model, steps);
        }
        let mut stream = self.stream(&model);
        match kind {
            2 => {
                self.read_some(&mut stream, 40);
                stream.abort_handle().abort();
                assert!(stream.next().is_none());
                // The stream may have ended before it was aborted.
                self.tally.aborted += u64::from(stream.finish_reason() == Some(FinishReason::Aborted));
            }
            // One re-placement fails. After the next one, the text continues.
            3 => {
                self.read(&mut stream, 10);
                self.card.set_taken(self.card.total());
                stream.replace(Some(self.plans[0].clone())).unwrap_err();
                self.card.set_taken(0);
                assert_eq!(self.card.used(), 0);
                assert!(stream.next().is_none_or(|piece| piece.is_err()));
                stream.replace(None).unwrap();
                self.tally.failed += 1;
                self.tally.replaced += 1;
            }
            4 => return self.read_some(&mut stream, 60),
            // In the next round, the model is loaded again.
            5 => self.model = None,
            _ => {
                for _ in 0..3 {
                    self.read_some(&mut stream, 80);
                    stream.replace(self.some_plan()).unwrap();
                    self.tally.replaced += 1;
                }
            }
        }
        drop(model);
        self.read(&mut stream, usize::MAX);
    }

    /// A stream with random sampling and a rare stop string, and sometimes with a penalty.
    fn stream(&mut self, model: &Model) -> TokenStream {
        let seed = self.dice.below(1 << 20);
        let penalty = self.dice.one_of(&[1.0, 1.2]);
        let generate = model.generate("And it came to pass").seed(seed).repeat_penalty(penalty);
        generate.stop("Amen.").stream().unwrap()
    }

    fn read_some(&mut self, stream: &mut TokenStream, fewer_than: usize) {
        let pieces = self.dice.below(fewer_than);
        self.read(stream, pieces);
    }

    fn read(&mut self, stream: &mut TokenStream, pieces: usize) {
        let (before, grown) = (stream.statistics().generated_tokens, stream.statistics().buffer_growth);
        for piece in stream.take(pieces) {
            piece.unwrap();
        }
        let statistics = stream.statistics();
        self.tally.tokens += (statistics.generated_tokens - before) as u64;
        // If no card computes, a load reserves no more than llama.cpp itself does.
        let is_on_card = |model: &Model| model.placement().gpus().next().is_some();
        if self.model.as_ref().is_some_and(is_on_card) {
            self.tally.grown += statistics.buffer_growth - grown;
        }
    }

    /// Runs several texts at once. The model is re-placed once.
    fn several(&mut self, model: &Model, steps: usize) {
        let mut session = model.session().unwrap();
        for length in [20, 60, 100, 200] {
            let seed = self.dice.below(1 << 20);
            session.begin(model.generate("In those days").seed(seed).max_tokens(length)).unwrap();
        }
        let at = self.dice.below(30);
        for step in 0..steps {
            if session.is_empty() {
                break;
            }
            if step == at {
                session.replace(self.some_plan()).unwrap();
                self.tally.replaced += 1;
            }
            self.tally.tokens += session.step().unwrap().count() as u64;
        }
    }
}

/// Generates `tokens` tokens. Each round has a thread of its own. Prints `rows` rows, each at a time when no model is
/// loaded: how much memory, and how many files and threads, the process has. Memory may exceed the maximum of the first
/// tenth of the rows by `kib` KiB.
fn soak(tokens: u64, rows: u64, kib: u64) -> Tally {
    let mut soak = Soak::new();
    let mut table = Vec::new();
    println!(
        "| tokens | streams and sessions | re-placed | VmRSS KiB | VmData KiB | open files | threads | card bytes |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for row in 1..=rows {
        while soak.tally.tokens < tokens * row / rows {
            thread::scope(|scope| scope.spawn(|| soak.round()).join()).unwrap();
        }
        soak.model = None;
        assert_eq!(soak.card.used(), 0, "the card's memory is not free");
        settled(|| held().map(|[.., files, threads]| [files, threads]));
        let held = held().unwrap();
        let done = [soak.tally.tokens, soak.tally.opened, soak.tally.replaced];
        let cells = done.into_iter().chain(held).chain([soak.card.used()]).map(|cell| cell.to_string());
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
        table.push(held);
    }
    let (first, later) = table.split_at(table.len().div_ceil(10));
    let quantities = [("VmRSS KiB", kib), ("VmData KiB", kib), ("open files", 0), ("threads", 0)];
    for (at, (what, tolerance)) in quantities.into_iter().enumerate() {
        let highest = |rows: &[[u64; 4]]| rows.iter().map(|held| held[at]).max().unwrap_or_default();
        let (level, highest) = (highest(first), highest(later));
        assert!(highest <= level + tolerance, "{what}: {highest}, at first {level}, and {tolerance} more are allowed");
    }
    soak.tally
}

#[test]
fn a_few_thousand_tokens_leave_nothing_behind() {
    // All threads share one heap of the allocator (glibc). Otherwise it would reserve another one of 64 MiB whenever
    // threads happen to allocate at the same time.
    if test_support::own_process::ran_with(&[("MALLOC_ARENA_MAX", "1")]) {
        return;
    }
    // If each round leaked one model, memory would grow by more than 80 MiB.
    let tally = soak(3_000, 8, 80 * 1024);
    assert!(tally.replaced > 20 && tally.failed > 0, "{tally:?}");
    assert!(tally.aborted > 0 && tally.dropped > 0, "{tally:?}");
    assert_eq!(tally.grown, 0, "{tally:?}");
}

#[test]
#[ignore = "many minutes: cargo xtask soak"]
fn tokens_without_end_leave_nothing_behind() {
    own_process!();
    let tokens = std::env::var("AUTOPLACE_SOAK_TOKENS").ok();
    let tokens = tokens.map_or(1_000_000, |tokens| tokens.parse().expect("a number"));
    // In so many rounds, the allocator's memory grows only because it becomes fragmented.
    println!("{:?}", soak(tokens, 40, 8 * 1024));
}
