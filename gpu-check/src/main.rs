//! `gpu-check`: checks the library's promises on the cards of a machine or, without a card, on simulated cards.
//!
//! In: a machine. Out: a folder with a JSON file for each check, a description of the machine, and a table with one
//! line for each check. The exit code is 0 if all checks passed.
//!
//! The checks are calls into `autoplace-measure` and into llama.cpp itself (`bare-llama`), in order. Computations that
//! a card, a driver or llama.cpp may crash run in the library's workers, or in child processes (`child.rs`).

mod checks;
mod child;
mod document;
mod hold;
mod machine;
mod measured;
mod models;
mod peer;
mod rig;
mod setting;
mod summary;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use checks::{CHECKS, Check};
use setting::{Setting, Size};
use summary::Summary;

/// Checks autoplace's promises on the cards of this machine.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The checks to run [default: all].
    #[arg(value_parser = CHECKS.map(|check| check.name))]
    checks: Vec<String>,
    /// Uses no card: the CPU backend and simulated GPUs.
    #[arg(long)]
    cpu: bool,
    /// Uses models of megabytes; takes seconds. Always set without a card.
    #[arg(long)]
    small: bool,
    /// The demo model.
    #[arg(long, value_name = "FILE", required_unless_present = "document")]
    model: Option<PathBuf>,
    /// Folder of the results.
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    /// Folder for temporary models: up to 60 GB.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    scratch: PathBuf,
    /// Minutes after which no further case begins, over all checks; 0 for no limit.
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// Maximum number of cases for each check.
    #[arg(long, value_name = "N")]
    cases: Option<usize>,
    /// CPU threads.
    #[arg(long)]
    threads: Option<u32>,
    /// KiB that a simulated card's pools take at the first computation. 1024 are left free for them; with more the
    /// checks must fail.
    #[arg(long, value_name = "KIB", default_value_t = 512, hide = true)]
    sim_growth: u64,
    /// A JSON file about the build, written by `run.sh`.
    #[arg(long, value_name = "FILE")]
    build: Option<PathBuf>,
    /// Only prints docs/hardware.md, made from the folders of results in this folder.
    #[arg(long, value_name = "DIR")]
    document: Option<PathBuf>,
}

fn main() -> ExitCode {
    // A worker uses the cards of the process that started it.
    let cards = rig::cards_of_worker();
    autoplace::worker_main();
    if let Err(error) = cards {
        eprintln!("error: {error:#}");
        return ExitCode::from(2);
    }
    let verb = std::env::args().nth(1);
    let ended = match verb.as_deref() {
        Some(child::HOLD) => hold::main().map(|()| true),
        Some(child::PEER) => peer::main().map(|()| true),
        _ => run(&Args::parse()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the checks. Returns whether all passed.
fn run(args: &Args) -> Result<bool> {
    if let Some(results) = &args.document {
        print!("{}", document::document(results)?);
        return Ok(true);
    }
    let model = args.model.as_ref().context("--model is missing")?;
    ensure!(model.is_file(), "--model: there is no file {}", model.display());
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("--out: cannot make the folder {}", args.out.display()))?;
    let scratch = tempfile::tempdir_in(&args.scratch)
        .with_context(|| format!("--scratch: cannot write into {}", args.scratch.display()))?;
    let mut setting = Setting {
        simulated: args.cpu,
        size: if args.cpu || args.small { Size::Small } else { Size::Real },
        demo: model.clone(),
        out: args.out.clone(),
        scratch: scratch.path().to_owned(),
        threads: args.threads,
        growth: args.sim_growth << 10,
        cases: args.cases,
        until: None,
    };
    machine::record(&setting, args.build.as_deref())?;
    let chosen: Vec<&Check> = CHECKS
        .iter()
        .filter(|check| args.checks.is_empty() || args.checks.iter().any(|name| name == check.name))
        .collect();
    let shares: f64 = chosen.iter().map(|check| check.share).sum();
    let mut summary = Summary::new();
    for check in chosen {
        let begin = Instant::now();
        setting.until =
            (args.minutes > 0.0).then(|| begin + Duration::from_secs_f64(args.minutes * 60.0 * check.share / shares));
        eprintln!("{}: {}", check.name, check.what);
        let verdict = (check.run)(&setting).with_context(|| format!("the check `{}`", check.name))?;
        setting.keep(&format!("{}.json", check.name), &serde_json::to_vec_pretty(&verdict.json)?)?;
        summary.add(check.name, &verdict, begin.elapsed());
        setting.keep("summary.md", summary.table().as_bytes())?;
    }
    print!("{}", summary.table());
    Ok(summary.passed())
}
