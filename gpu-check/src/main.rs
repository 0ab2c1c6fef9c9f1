//! `gpu-check`: holds the library's promises against the cards of a machine, or, without a card,
//! against simulated ones.
//!
//! In: a machine. Out: a folder with a JSON file per check, the machine described, and a table in a line each; the
//! exit code is 0 where all of them have passed. Whatever a card, a driver or llama.cpp may end runs in processes of
//! its own (`child.rs`).

mod checks;
mod child;
mod curve;
mod document;
mod drive;
mod fit;
mod hold;
mod job;
mod machine;
mod measured;
mod models;
mod peer;
mod plain;
mod rig;
mod setting;
mod summary;
mod table;
mod weights;

#[path = "../../autoplace/tests/support/random_weights/mod.rs"]
mod random_weights;
#[path = "../../planner/tests/support/synthetic/mod.rs"]
mod synthetic;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use checks::{CHECKS, Check};
use setting::{Setting, Size};
use summary::Summary;

/// Holds autoplace's promises against the cards of this machine.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The checks to run; all of them unless named.
    #[arg(value_parser = CHECKS.map(|check| check.name))]
    checks: Vec<String>,
    /// No card: the CPU's backend and simulated GPUs.
    #[arg(long)]
    cpu: bool,
    /// Models of megabytes, seconds in all. Without a card it is always so.
    #[arg(long)]
    small: bool,
    /// The demo model.
    #[arg(long, value_name = "FILE", required_unless_present = "document")]
    model: Option<PathBuf>,
    /// Where the results go.
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    /// Where models are written while they are needed: up to 60 GB.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    scratch: PathBuf,
    /// Minutes after which no further case is begun, for all checks together; 0 for as long as it takes.
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// Cases of each check after which no further one is begun.
    #[arg(long, value_name = "N")]
    cases: Option<usize>,
    /// Threads of the CPU.
    #[arg(long)]
    threads: Option<u32>,
    /// What a simulated card's pools take at the first computation, in KiB: 1024 are left free for them, and with more
    /// than that the checks must fail.
    #[arg(long, value_name = "KIB", default_value_t = 512, hide = true)]
    sim_growth: u64,
    /// What is to be reported of the build: a file of JSON that `run.sh` has written.
    #[arg(long, value_name = "FILE")]
    build: Option<PathBuf>,
    /// Runs nothing, and prints docs/hardware.md as the folders of results in this one make it.
    #[arg(long, value_name = "DIR")]
    document: Option<PathBuf>,
}

fn main() -> ExitCode {
    let verb = std::env::args().nth(1);
    let ended = match verb.as_deref() {
        Some(child::DRIVE) => drive::main().map(|()| true),
        Some(child::HOLD) => hold::main().map(|()| true),
        Some(child::PEER) => peer::main().map(|()| true),
        Some(table::TABLE) => table::main(),
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

/// Whether all of the checks have passed.
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
