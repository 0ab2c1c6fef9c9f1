//! Continues several prompts at once on one model, with a progress bar for each.
//!
//!     cargo run --release --example many -- -m model.gguf -n 64 "Once upon a time" "In the beginning"

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::Context as _;
use autoplace::generate::{Shutdown, Statistics};
use autoplace::plan::Request;
use autoplace::{Engine, Model, TokenStream};
use autoplace_examples::DEMO_MODEL;
use clap::Parser;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

const PROMPTS: [&str; 8] = [
    "And the king said unto his servants,",
    "In the beginning God created",
    "And it came to pass in those days that",
    "The first song of David, when he",
    "Blessed is the man that",
    "And Moses went up from the plains of Moab unto",
    "Now these are the names of the children of",
    "Praise ye the LORD,",
];

/// Continues several prompts at once with a local model, placed so that it fits.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true)]
struct Args {
    /// GGUF file; for a split model, its first part
    #[arg(short, long, value_name = "FILE", default_value = DEMO_MODEL, hide_default_value = true)]
    model: PathBuf,
    /// Texts to continue [default: eight texts for the demo model]
    prompts: Vec<String>,
    /// Maximum number of tokens to generate for each text
    #[arg(short, default_value_t = 48)]
    n: usize,
    /// Number of texts that run at once; the rest wait
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    at_once: u32,
    /// Tokens of context for each running text
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ctx: u32,
    /// Sampling temperature; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8)]
    temp: f32,
    /// Seed of the random choice [default: a new seed every time]
    #[arg(long)]
    seed: Option<u32>,
}

fn main() -> ExitCode {
    autoplace_examples::run(|args: Args| {
        let interrupted = Arc::new(AtomicBool::new(false));
        let outcome = run(args, &interrupted);
        if interrupted.load(Relaxed) {
            return Ok(ExitCode::from(130));
        }
        outcome.map(|()| ExitCode::SUCCESS)
    })
}

fn run(mut args: Args, interrupted: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let flag = Arc::clone(interrupted);
    let running: Arc<OnceLock<Engine>> = Arc::default();
    let engine = Arc::clone(&running);
    // The first Ctrl-C ends all texts, and the second ends the program.
    let on_signal = move || match (flag.swap(true, Relaxed), engine.get()) {
        (false, Some(engine)) => engine.close(Shutdown::Cancel),
        (false, None) => {}
        (true, _) => std::process::exit(130),
    };
    ctrlc::set_handler(on_signal).context("cannot listen for Ctrl-C")?;

    let request = Request::new().n_seq_max(args.at_once).n_ctx(args.ctx * args.at_once);
    let model = Model::builder(&args.model).request(request).load()?;
    let engine = Engine::new(&model)?;
    let engine = running.get_or_init(|| engine);

    if args.prompts.is_empty() {
        args.prompts = PROMPTS.map(String::from).to_vec();
    }
    // Draws the bars only on a terminal.
    let bars = MultiProgress::new();
    let style = ProgressStyle::with_template("{bar:24} {pos:>4} of {len}  {wide_msg}")?;
    let outcomes = thread::scope(|scope| {
        let mut readers = Vec::new();
        for prompt in &args.prompts {
            let mut generate = model.generate(prompt).max_tokens(args.n);
            generate = generate.temp(args.temp);
            if let Some(seed) = args.seed {
                generate = generate.seed(seed);
            }
            // Blocks while the queue is full.
            let answer = engine.submit(generate)?;
            let bar = bars.add(ProgressBar::new(args.n as u64).with_style(style.clone()));
            readers.push(scope.spawn(move || read(prompt, answer, &bar)));
        }
        let join = |reader: thread::ScopedJoinHandle<'_, _>| {
            let outcome = reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"));
            outcome?
        };
        readers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    bars.clear()?;
    for (prompt, (text, statistics)) in args.prompts.iter().zip(outcomes) {
        println!("{prompt}{text}\n  [{statistics}]\n");
    }
    println!("{:?}", engine.metrics());
    Ok(())
}

/// Reads an answer to its end and shows its progress.
fn read(prompt: &str, mut answer: TokenStream, bar: &ProgressBar) -> anyhow::Result<(String, Statistics)> {
    let mut text = String::new();
    bar.set_message(prompt.to_owned());
    while let Some(piece) = answer.next() {
        text.push_str(&piece?);
        bar.set_position(answer.statistics().generated_tokens as u64);
    }
    bar.finish();
    Ok((text, answer.statistics()))
}
