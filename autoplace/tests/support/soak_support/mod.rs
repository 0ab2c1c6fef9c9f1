//! The work of a soak, and what the process holds.

use std::fmt;
use std::path::PathBuf;
use std::thread;

use autoplace::Model;
use autoplace::generate::{FinishReason, TokenStream};
use autoplace::llama_sys::sim::SimGpu;
use autoplace::machine::mib;
use autoplace::plan::{Plan, Request};

use crate::native_support::demo_path;
use crate::replace_support::{Dice, builder, plan, request};
use crate::sim_support::card;

/// What was done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) tokens: u64,
    /// Streams and sessions.
    pub(crate) opened: u64,
    pub(crate) dropped: u64,
    pub(crate) aborted: u64,
    pub(crate) replaced: u64,
    pub(crate) failed: u64,
    pub(crate) loaded: u64,
}

/// What the process holds while no model is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    tally: Tally,
    /// VmRSS, in KiB.
    pub(crate) resident: u64,
    /// VmData, in KiB.
    pub(crate) data: u64,
    pub(crate) files: u64,
    pub(crate) threads: u64,
    /// Bytes that the simulated card counts.
    card: u64,
}

impl Row {
    pub(crate) const HEAD: &'static str = "| tokens | streams and sessions | re-placed | VmRSS KiB | VmData KiB | open files | threads | card bytes |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|";

    fn of(tally: Tally, card: &SimGpu) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let number = |key: &str| {
            let mut words = status.lines().find_map(|line| line.strip_prefix(key)).unwrap().split_whitespace();
            words.next().unwrap().parse().unwrap()
        };
        Self {
            tally,
            resident: number("VmRSS:"),
            data: number("VmData:"),
            files: std::fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            threads: number("Threads:"),
            card: card.used(),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = [self.tally.tokens, self.tally.opened, self.tally.replaced];
        let held = [self.resident, self.data, self.files, self.threads, self.card];
        write!(f, "|")?;
        done.iter().chain(&held).try_for_each(|cell| write!(f, " {cell} |"))
    }
}

/// A model on a simulated card, and what is done with it.
pub(crate) struct Soak {
    path: PathBuf,
    request: Request,
    plans: Vec<Plan>,
    card: SimGpu,
    model: Option<Model>,
    dice: Dice,
    pub(crate) tally: Tally,
}

impl Soak {
    pub(crate) fn new() -> Self {
        let path = demo_path();
        let request = request().n_ubatch(64).n_seq_max(4).n_ctx(1024);
        let card = card(mib(16));
        let plans = [7, 4, 0].map(|layers| plan(&path, &request, layers));
        Self { path, request, plans: plans.into(), card, model: None, dice: Dice::new(1), tally: Tally::default() }
    }

    /// Goes on until so many tokens are generated in all, each round in a thread of its own.
    pub(crate) fn generate(&mut self, tokens: u64) {
        while self.tally.tokens < tokens {
            thread::scope(|scope| scope.spawn(|| self.round()).join()).unwrap();
        }
    }

    /// Drops the model and looks at what is left.
    pub(crate) fn measure(&mut self) -> Row {
        self.model = None;
        assert_eq!(self.card.used(), 0, "the card's memory is not free");
        Row::of(self.tally, &self.card)
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
        // The last one is whatever fits.
        self.plans.get(self.dice.below(4)).cloned()
    }

    fn round(&mut self) {
        let model = self.model();
        self.tally.opened += 1;
        match self.dice.below(8) {
            0 => self.several(&model, usize::MAX),
            1 => {
                self.tally.dropped += 1;
                let steps = self.dice.below(60);
                self.several(&model, steps);
            }
            2 => self.aborted(&model),
            3 => self.in_vain(&model),
            4 => {
                self.tally.dropped += 1;
                let pieces = self.dice.below(60);
                let mut stream = self.stream(&model);
                self.read(&mut stream, pieces);
            }
            5 => {
                // The next round loads it again.
                self.model = None;
                let mut stream = self.stream(&model);
                drop(model);
                self.read(&mut stream, usize::MAX);
            }
            _ => {
                let mut stream = self.stream(&model);
                for _ in 0..3 {
                    let pieces = self.dice.below(80);
                    self.read(&mut stream, pieces);
                    let plan = self.some_plan();
                    stream.replace(plan).unwrap();
                    self.tally.replaced += 1;
                }
                self.read(&mut stream, usize::MAX);
            }
        }
    }

    /// By chance, with a penalty now and then, and a stop string that seldom comes.
    fn stream(&mut self, model: &Model) -> TokenStream {
        let seed = self.dice.below(1 << 20) as u32;
        let generate = model.generate("And it came to pass").seed(seed);
        let penalty = [1.0, 1.2][self.dice.below(2)];
        generate.repeat_penalty(penalty).stop("Amen.").stream().unwrap()
    }

    fn read(&mut self, stream: &mut TokenStream, pieces: usize) {
        let before = stream.statistics().generated_tokens;
        for piece in stream.take(pieces) {
            piece.unwrap();
        }
        self.tally.tokens += (stream.statistics().generated_tokens - before) as u64;
    }

    /// Texts side by side, placed anew once.
    fn several(&mut self, model: &Model, steps: usize) {
        let mut session = model.session().unwrap();
        for length in [20, 60, 100, 200] {
            let seed = self.dice.below(1 << 20) as u32;
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

    fn aborted(&mut self, model: &Model) {
        let mut stream = self.stream(model);
        let pieces = self.dice.below(40);
        self.read(&mut stream, pieces);
        stream.abort_handle().abort();
        assert!(stream.next().is_none());
        // It may have ended before.
        self.tally.aborted += u64::from(stream.finish_reason() == Some(FinishReason::Aborted));
    }

    /// A re-placement that fails, and the next one, after which the text goes on.
    fn in_vain(&mut self, model: &Model) {
        let mut stream = self.stream(model);
        self.read(&mut stream, 10);
        self.card.set_taken(self.card.total());
        stream.replace(Some(self.plans[0].clone())).unwrap_err();
        self.card.set_taken(0);
        assert_eq!(self.card.used(), 0);
        assert!(stream.next().is_none_or(|piece| piece.is_err()));
        stream.replace(None).unwrap();
        self.tally.failed += 1;
        self.tally.replaced += 1;
        self.read(&mut stream, usize::MAX);
    }
}
