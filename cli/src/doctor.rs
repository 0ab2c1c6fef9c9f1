//! The verb `doctor`. In: a machine, and an optional model. Out: a verdict with its evidence.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use autoplace::load::{Leases, LoadedModel, loaded_models};
use autoplace::machine::{Bytes, Gpu, Machine};
use autoplace_measure::{Evidence, Finding, Measure, Running};
use serde_json::json;

use crate::ask::AskArgs;
use crate::files::{self, in_file};
use crate::talk::here;
use crate::terminal::print;
use crate::{gpu, ps, running};

/// The arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// GGUF file, or hf:OWNER/NAME[:QUANT][@REVISION] that was fetched: plans it, loads it and measures it for some
    /// seconds
    model: Option<PathBuf>,
    #[command(flatten)]
    ask: AskArgs,
    /// Uses a simulated GPU instead of the machine's own; repeat for several
    #[arg(long, value_name = "NAME[=TOTAL][,free=SIZE]", value_parser = gpu::gpu, allow_hyphen_values = true)]
    pub(crate) gpu: Vec<Gpu>,
    /// Judges the machine in a file instead of this one: a file of `doctor --report` or `devices --write`
    #[arg(long, value_name = "FILE", conflicts_with = "gpu")]
    machine: Option<PathBuf>,
    /// Inspects another program that runs a model now: process PID, or the only running llama-server, Ollama, LM Studio
    /// or KoboldCpp. Loads nothing, and requests no computation from that program
    #[arg(long, value_name = "PID", num_args = 0..=1, require_equals = true, conflicts_with = "machine")]
    watch: Option<Option<u32>>,
    /// Plans the model without loading it
    #[arg(long)]
    no_load: bool,
    /// Prints a report for an issue, for `--machine` to read, without data that identifies the machine
    #[arg(long, conflicts_with = "json")]
    report: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Prints the verdict. The exit code is 3 if there are findings.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Box<dyn Error>> {
    // The list of loaded models is made before this process loads one. A report about another machine has no such list.
    let is_here = args.machine.is_none() && args.gpu.is_empty();
    let loaded = if is_here { loaded_models(&Leases::user()) } else { Vec::new() };
    let (mut evidence, cards) = match &args.machine {
        Some(file) => (read(file)?, None),
        None if args.gpu.is_empty() => (Evidence::of_this_machine()?, None),
        // Another program cannot run on a simulated device, so the simulated card is described as if it were real.
        None if args.watch.is_some() => (Evidence::new(gpu::machine(&args.gpu)), None),
        None => {
            let (machine, cards) = gpu::as_fast_as_the_host(&args.gpu)?;
            (Evidence::new(machine), Some(cards))
        }
    };
    if let Some(watched) = args.watch {
        let found = running::find(watched)?;
        evidence = running::compare(evidence, &found, args.model.as_deref(), &args.ask)?;
    } else if let Some(model) = &args.model {
        let request = args.ask.request();
        let model = here(model, &request, || Ok(evidence.machine.clone()))?;
        evidence = evidence.with_model(&model, &request)?;
        if args.machine.is_none() && !args.no_load {
            let machine = evidence.machine.clone();
            let measure = Measure::new(&model).request(request).load_with(|builder| match cards {
                Some(_) => builder.machine(machine.clone()),
                None => builder,
            });
            evidence = evidence.measured(measure)?;
        }
    }
    let findings = evidence.diagnose();
    let healthy = findings.is_empty();
    let text = if args.json {
        format!(
            "{:#}",
            json!({
                "healthy": healthy, "findings": findings, "stale_rates": evidence.stale_rates(), "evidence": evidence,
                "loaded": loaded
            })
        )
    } else if args.report {
        let evidence = evidence.anonymous();
        let words = words(&evidence, &evidence.diagnose());
        format!("{words}\n\n```json\n{}\n```", evidence.to_json())
    } else {
        words(&evidence, &findings) + &loaded.iter().map(loaded_words).collect::<String>()
    };
    let printed = print(&text);
    Ok(if healthy { printed } else { ExitCode::from(3) })
}

/// Reads a report of `doctor`, or the description of a machine.
fn read(file: &Path) -> Result<Evidence, String> {
    const REPORT: &str = "a report is what `autoplace doctor --report` prints";
    let text = files::read(file).map_err(|error| {
        format!("{error}; {REPORT}, and a machine is a file that `autoplace devices --write` writes")
    })?;
    match Evidence::from_json(&text) {
        Ok(evidence) => Ok(evidence),
        // The file looks like a report. So the error that is returned is the one from parsing a report.
        Err(error) if text.contains("\"machine\"") => Err(format!("{}; {REPORT}", in_file(file, error))),
        Err(_) => Machine::read(file).map(Evidence::new).map_err(|error| format!("{error}; {REPORT}")),
    }
}

/// The verdict, followed by the evidence.
fn words(evidence: &Evidence, findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    if findings.is_empty() {
        lines.push("verdict: nothing is wrong".to_owned());
    }
    for (index, finding) in findings.iter().enumerate() {
        let lead = if index == 0 { "verdict" } else { "also" };
        lines.push(format!("{lead}: {}\n  {}", finding.cause, finding.evidence));
        lines.extend(finding.remedy.as_ref().map(|remedy| match remedy.trim_end().replace('\n', "\n    ") {
            several if several.contains('\n') => format!("  fix:\n    {several}"),
            one => format!("  fix: {one}"),
        }));
    }
    if let Some(model) = &evidence.model {
        if let Some(plan) = &model.plan {
            lines.push(format!("{}: {} of {} layers on GPUs", plan.model.name, plan.n_gpu_layers, plan.layers()));
        }
        lines.extend(model.running.as_ref().map(running_words));
        lines.extend(model.measured.map(|measured| {
            let predicted = model.predicted.map_or("nothing".to_owned(), |speed| format!("{speed:.1}"));
            format!("{:.1} tok/s measured, {predicted} predicted", measured.median)
        }));
    }
    lines.extend(evidence.machine.gpus.iter().map(ToString::to_string));
    lines.push(evidence.machine.host.to_string());
    lines.extend(evidence.stale_rates());
    lines.join("\n")
}

/// One line about a model that this user's processes have loaded.
fn loaded_words(model: &LoadedModel) -> String {
    let (on_gpus, layers) = model.layers;
    let line = format!(
        "loaded by {}: {}, {on_gpus} of {layers} layers on GPUs, {}",
        ps::process(model),
        model.name,
        ps::memory(model)
    );
    // A file's name may contain control characters.
    format!("\n{}", line.replace(char::is_control, " "))
}

/// Describes the program that was inspected, and lists what could not be found out.
fn running_words(running: &Running) -> String {
    let layers = running.n_gpu_layers.map_or("?".to_owned(), |layers| layers.to_string());
    let facts = [
        running.pid.map(|pid| format!(" (process {pid})")),
        Some(format!(": {layers} layers on GPUs")),
        running.on_gpus.map(|held| format!(", {} of GPU memory", Bytes(held))),
        running.tokens_per_second.map(|speed| format!("; {speed:.1} tok/s")),
        running.predicted.map(|predicted| format!("; {predicted:.1} predicted")),
    ];
    let notes = running.notes.iter().map(|note| format!("\n  note: {note}"));
    [running.program.clone()].into_iter().chain(facts.into_iter().flatten()).chain(notes).collect()
}
