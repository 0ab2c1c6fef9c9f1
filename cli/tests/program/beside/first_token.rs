//! Measures how long many simultaneous users wait for their first token, with `autoplace serve` and with
//! the llama-server of the latest llama.cpp whose whole source a package has (`cargo xtask first-token`).
//!
//! In: a model, and both servers, compiled with the same options. Out: Markdown tables on standard output. The servers
//! take turns. Each round starts a new server, so that no prompt is cached.

use std::fmt;
use std::path::Path;
use std::thread;

use anyhow::Result;

use super::{Arguments, Kind, Server, Timed, servers};

/// The number of sequences of each server.
const SEQUENCES: usize = 8;
/// Tokens of the context that the sequences share.
const N_CTX: usize = 8 * 4096;
/// Tokens of each answer.
const ANSWER: usize = 64;
/// Tokens of the answer that is already running when the prompts arrive.
const RUNNING: usize = 400;

/// Prompts that arrive at once, while one other text may be running.
struct Load {
    name: &'static str,
    /// Words of each prompt.
    prompts: Vec<usize>,
    /// Whether a text is generated when the prompts arrive.
    is_busy: bool,
}

fn loads() -> Vec<Load> {
    // The prompts have 100 to 3,000 words, in no particular order. Most are short, like people's prompts.
    let mixed = |n: usize| -> Vec<usize> {
        let at = |place: usize| (100.0 * 30_f64.powf(place as f64 / (n - 1) as f64)) as usize;
        (0..n).map(|number| at(number * 5 % n)).collect()
    };
    vec![
        Load { name: "8 prompts of 700 tokens", prompts: vec![700; 8], is_busy: false },
        Load { name: "8 prompts of 100 to 3,000 tokens", prompts: mixed(8), is_busy: false },
        Load { name: "32 prompts of 100 to 3,000 tokens", prompts: mixed(32), is_busy: false },
        Load { name: "7 prompts of 700 tokens beside a text", prompts: vec![700; 7], is_busy: true },
    ]
}

/// The figures of one server under one load.
#[derive(Debug, Clone, Copy)]
struct Figures {
    mean_first: f64,
    last_first: f64,
    longest_gap: f64,
    /// Tokens per second, of prompts and answers together.
    throughput: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean_first, last_first, longest_gap, throughput } = self;
        write!(f, "{mean_first:.2} s | {last_first:.2} s | {longest_gap:.2} s | {throughput:.0} tok/s")
    }
}

impl Figures {
    fn new(texts: &[Timed]) -> Self {
        let most = |of: fn(&Timed) -> f64| texts.iter().map(of).fold(0.0, f64::max);
        let tokens: u64 = texts.iter().map(|text| text.prompt_tokens + text.tokens).sum();
        Self {
            mean_first: texts.iter().map(|text| text.first).sum::<f64>() / texts.len() as f64,
            last_first: most(|text| text.first),
            longest_gap: most(|text| text.longest_gap),
            throughput: tokens as f64 / most(|text| text.end),
        }
    }

    /// The median of each figure.
    fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Self {
            mean_first: of(|figures| figures.mean_first),
            last_first: of(|figures| figures.last_first),
            longest_gap: of(|figures| figures.longest_gap),
            throughput: of(|figures| figures.throughput),
        }
    }
}

/// The second argument is the number of rounds; the default is three. A word selects the loads with that word in their
/// names.
#[test]
#[ignore = "minutes, beside a llama-server: `cargo xtask first-token MODEL`"]
fn the_time_to_the_first_token_of_many_prompts() -> Result<()> {
    let loads = loads();
    let names: Vec<&str> = loads.iter().map(|load| load.name).collect();
    let arguments = Arguments::from_environment("first-token MODEL [ROUNDS] [LOAD]", 3, &names)?;
    let servers = servers()?;
    for load in loads.iter().filter(|load| arguments.has(load.name)) {
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..arguments.number {
            // The order of the servers alternates, so that neither always runs after the other.
            for number in 0..2 {
                let server = if round % 2 == 0 { number } else { 1 - number };
                let measured = measure(&servers[server], &arguments.model, load)?;
                eprintln!("{}, round {}: {}: {measured}", load.name, round + 1, servers[server].name());
                figures[server].push(measured);
            }
        }
        print(load, &servers, &figures);
    }
    Ok(())
}

fn print(load: &Load, servers: &[Kind; 2], figures: &[Vec<Figures>; 2]) {
    println!(
        "\n| {} | mean time to the first token | the last first token | longest gap within a text | prompts and answers |",
        load.name
    );
    println!("|---|--:|--:|--:|--:|");
    let medians = figures.each_ref().map(|rounds| Figures::median(rounds));
    for (server, median) in servers.iter().zip(&medians) {
        println!("| {} | {median} |", server.name());
    }
    let [ours, theirs] = medians;
    println!(
        "| *ratio* | {:.2} | {:.2} | {:.2} | {:.2} |",
        ours.mean_first / theirs.mean_first,
        ours.last_first / theirs.last_first,
        ours.longest_gap / theirs.longest_gap,
        ours.throughput / theirs.throughput
    );
}

fn measure(kind: &Kind, model: &Path, load: &Load) -> Result<Figures> {
    let server = &Server::start(kind, model, SEQUENCES, N_CTX, &[])?;
    thread::scope(|scope| {
        let running = load.is_busy.then(|| {
            let (begun, begins) = std::sync::mpsc::channel();
            let text = scope.spawn(move || server.text(1000, 20, RUNNING, || begun.send(()).unwrap_or_default()));
            // If the text fails, the error is in the result of its own thread.
            let _ = begins.recv();
            text
        });
        let texts: Vec<_> = (0..)
            .zip(&load.prompts)
            .map(|(number, words)| scope.spawn(move || server.text(number, *words, ANSWER, || {})))
            .collect();
        let texts =
            texts.into_iter().map(|text| text.join().expect("it does not panic")).collect::<Result<Vec<_>>>()?;
        let mut figures = Figures::new(&texts);
        if let Some(running) = running {
            // Only the reader of the running text observes a gap.
            figures.longest_gap = running.join().expect("it does not panic")?.longest_gap;
        }
        Ok(figures)
    })
}
