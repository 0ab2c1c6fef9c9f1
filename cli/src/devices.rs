//! The verb `devices`: shows the devices of this machine and the programs that hold their memory, and can write the
//! machine to a file.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use autoplace::load;
use autoplace::machine::{Bytes, Gpu, GpuProcess, Host, Machine};

use crate::rates;
use crate::terminal::fact;
use crate::values::seconds;

/// The arguments of `devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct DevicesArgs {
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
    /// Also writes the machine to a file, for `plan --machine` on another computer
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Measures each device's speed with common types of weights and caches, and the host's memory bandwidth, and
    /// stores the figures for plans. Takes some ten seconds per device; begins no measurement after SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, value_parser = seconds, conflicts_with = "machine")]
    pub(crate) measure: Option<Option<Duration>>,
    /// Describes the machine in a file instead of this one
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
}

/// Maximum number of programs that are listed by name. The others are counted, but not listed.
const LISTED: usize = 8;

/// Describes this machine, or the machine in a file, as text or JSON.
pub(crate) fn run(args: &DevicesArgs) -> Result<String, Box<dyn Error>> {
    let mut machine = match &args.machine {
        Some(file) => Machine::read(file)?,
        None => load::detect()?,
    };
    if let Some(within) = args.measure {
        rates::measure(&mut machine, within)?;
    }
    if let Some(file) = &args.write {
        machine.write(file)?;
    }
    Ok(if args.json { machine.to_json()? } else { words(&machine) })
}

fn words(machine: &Machine) -> String {
    let mut lines = Vec::new();
    if machine.gpus.is_empty() {
        lines.push("no GPU that can be used".to_owned());
    }
    for gpu in &machine.gpus {
        describe(&mut lines, gpu);
    }
    describe_host(&mut lines, &machine.host);
    if machine.wsl {
        lines.push("Linux runs inside Windows (WSL): Windows manages the GPU's memory".to_owned());
    }
    lines.extend(machine.unused_gpus.iter().map(ToString::to_string));
    lines.extend(machine.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

fn describe(lines: &mut Vec<String>, gpu: &Gpu) {
    lines.push(gpu.to_string());
    let at = gpu.pci_id.map_or_else(String::new, |id| format!(" at {id}"));
    lines.push(fact("device", format_args!("{} by {}{at}", gpu.description, gpu.backend)));
    let known = [
        ("memory", gpu.bandwidth.as_ref().map(ToString::to_string)),
        ("link", gpu.pcie.as_ref().map(ToString::to_string)),
        ("driver", gpu.driver.clone()),
        ("headroom", gpu.learned.as_ref().map(ToString::to_string)),
    ];
    lines.extend(known.into_iter().filter_map(|(what, value)| Some(fact(what, value?))));
    lines.extend(gpu.rates.iter().flat_map(rates::describe));
    let programs = gpu.processes.as_deref().unwrap_or_default();
    // Windows lists every program that has a window, but not how much memory it uses.
    let holders = programs.iter().filter_map(|program| Some((program, program.bytes?)));
    let listed: Vec<(&GpuProcess, u64)> = holders.take(LISTED).collect();
    for (program, bytes) in &listed {
        let name = program.name.as_deref().unwrap_or("a program");
        lines.push(fact("held by", format_args!("{name} (process {}): {}", program.pid, Bytes(*bytes))));
    }
    let rest = programs.len().saturating_sub(listed.len());
    if rest > 0 {
        let more = if listed.is_empty() { "" } else { " more" };
        let programs = if rest == 1 { "program" } else { "programs" };
        lines.push(fact("opened by", format_args!("{rest}{more} {programs}")));
    }
}

fn describe_host(lines: &mut Vec<String>, host: &Host) {
    lines.push(host.to_string());
    let cores = match (host.usable_cores, host.physical_cores) {
        (Some(usable), Some(all)) if usable < all => Some(format!("{usable} of {all} cores")),
        (usable, all) => all.or(usable).map(|cores| format!("{cores} cores")),
    };
    let parts: Vec<String> = host.cpu.clone().into_iter().chain(cores).collect();
    if !parts.is_empty() {
        lines.push(fact("processor", parts.join(", ")));
    }
    lines.extend(host.bandwidth.iter().map(|bandwidth| fact("memory", bandwidth)));
    lines.extend(host.rates.iter().flat_map(rates::describe));
}
