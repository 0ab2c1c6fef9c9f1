//! `measure --ready`: tests whether a placement lasts. In: a model. Out: for each placement that was tried, what passed
//! and what failed; and the plan that passed.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use autoplace_measure::{Measured, Readiness, Ready};
use clap::value_parser;

use super::{Format, MeasureArgs, with_measure};
use crate::terminal::print;
use crate::values::seconds;

/// The exit code if no placement lasts.
const NOT_READY: u8 = 3;

/// The arguments for a sweep. Each argument that needs `--ready` excludes all of them. So clap reports the conflict,
/// and does not say that `--ready` is missing.
const OF_A_SWEEP: [&str; 9] = ["steps", "full", "before", "write", "picture", "beside", "submission", "at", "rounds"];

/// The arguments of `--ready`.
#[derive(Debug, clap::Args)]
pub(super) struct ReadyArgs {
    /// Instead of a sweep, repeats the same work RUNS times at the end of the context and watches the machine: drift,
    /// headroom, clocks, swap, memory, processor, quota and heat pass or fail. After a failure it tries a smaller
    /// placement [default: 10]
    #[arg(long, value_name = "RUNS", num_args = 0..=1, require_equals = true, value_parser = value_parser!(u32).range(2..), conflicts_with_all = OF_A_SWEEP)]
    ready: Option<Option<u32>>,
    /// Takes two minutes for each placement instead of ten: six short runs
    #[arg(long, requires = "ready", conflicts_with_all = OF_A_SWEEP)]
    quick: bool,
    /// Seconds over which the runs are spread [default: 600, with --quick 120]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "ready", conflicts_with_all = OF_A_SWEEP)]
    over: Option<Duration>,
    /// Allowed difference between the last and the first runs in percent [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "ready", conflicts_with_all = OF_A_SWEEP)]
    drift: Option<f64>,
    /// Saves the plan that passed, for `--plan` of `run`, `chat` and `serve`
    #[arg(long, value_name = "FILE", requires = "ready", conflicts_with_all = OF_A_SWEEP)]
    save: Option<PathBuf>,
}

impl ReadyArgs {
    pub(super) fn is_asked(&self) -> bool {
        self.ready.is_some()
    }

    /// The file in which the plan that passed is saved.
    pub(super) const fn file(&self) -> &Option<PathBuf> {
        &self.save
    }

    fn how(&self) -> Ready {
        let mut ready = if self.quick { Ready::quick() } else { Ready::default() };
        if let Some(runs) = self.ready.flatten() {
            ready = ready.runs(runs);
        }
        if let Some(over) = self.over {
            ready = ready.over(over);
        }
        if let Some(percent) = self.drift {
            ready = ready.drift(percent / 100.0);
        }
        ready
    }
}

/// Parses a percentage, which must not be negative.
fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent: &f64| *percent >= 0.0);
    percent.ok_or_else(|| "write a percentage, such as 5 or 2.5".to_owned())
}

/// Prints what passed and what failed. The exit code is 0 if a placement passed, 3 if none passed, and 130 after
/// Ctrl-C.
pub(super) fn run(args: &MeasureArgs) -> Result<ExitCode, Box<dyn Error>> {
    if !matches!(args.format(), Format::Table | Format::Json) {
        return Err("--ready prints a table or JSON (--json), and no other format".into());
    }
    let how = args.ready.how();
    let (readiness, is_stopped) = with_measure(args, |measure, _, _| Ok(measure.ready(&how)?))?;
    // The runs took minutes, so the result is printed even if the plan cannot be written.
    let printed = print(&match args.format() {
        Format::Json => readiness.to_json(),
        _ => text(&readiness),
    });
    if let (Some(plan), Some(file)) = (&readiness.plan, &args.ready.save) {
        plan.write(file)?;
    }
    Ok(match readiness.passed() {
        true => printed,
        false if is_stopped || readiness.is_stopped => ExitCode::from(130),
        false => ExitCode::from(NOT_READY),
    })
}

/// The placements that were tried. Each has a line for everything that passed or failed, and the verdict.
fn text(readiness: &Readiness) -> String {
    let mut lines = Vec::new();
    for trial in &readiness.trials {
        let Measured { n_gpu_layers, layers, settings, .. } = &trial.placement;
        let (n_ctx, runs) = (settings.n_ctx, trial.runs.samples.len());
        lines.push(format!("{n_gpu_layers} of {layers} layers on GPUs, a context of {n_ctx}, {runs} runs at its end"));
        lines.extend(trial.checks.iter().map(|check| format!("  {check}")));
    }
    lines.extend(readiness.notes.iter().cloned());
    let verdict = match (&readiness.plan, readiness.trials.len()) {
        (Some(_), 1) => "ready",
        (Some(_), _) => "ready, with a smaller placement than was planned at first",
        (None, _) => "not ready: no placement passed",
    };
    lines.push(verdict.to_owned());
    lines.join("\n")
}
