//! What another program runs now. Its process id flows in; what it was started with and what it says over HTTP flow out
//! ([`Seen`]). Nothing is asked of it that it would compute.

mod compare;
mod http;
mod process;
mod tools;

use std::fmt;
use std::path::PathBuf;

use autoplace::machine::{Machine, gib};

use crate::flags::Flags;
pub(crate) use compare::compare;
use http::Http;
use process::Process;

/// A program that runs models and says how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    LlamaServer,
    Ollama,
}

/// As people call it.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LlamaServer => "llama-server",
            Self::Ollama => "Ollama",
        })
    }
}

/// A program that runs a model, as far as it is known.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Seen {
    /// Its version, where it says one.
    pub(crate) version: Option<String>,
    /// The model's file.
    pub(crate) model: Option<PathBuf>,
    /// What places it.
    pub(crate) flags: Flags,
    /// Sequences at once, where it holds several, and whether each may take all of the context.
    pub(crate) sequences: Option<(u32, bool)>,
    /// Bytes on GPUs, of all that the model takes.
    pub(crate) on_gpus: Option<(u64, u64)>,
    /// Tokens per second, now or of the last answer.
    pub(crate) speed: Option<f64>,
    /// Why its placement is not held against a plan: what places it otherwise than a plan would.
    pub(crate) unlike: Vec<String>,
    /// What could not be found out.
    pub(crate) notes: Vec<String>,
}

/// The program, what it runs, and the processes that hold its memory.
pub(crate) struct Found {
    pub(crate) program: Program,
    pub(crate) pid: u32,
    /// Itself, and what it has started.
    pub(crate) family: Vec<u32>,
    pub(crate) seen: Seen,
}

/// Looks at the program of this process, or at the one that there is.
/// Fails with a line that says what is not there, or why it could not be found out.
pub(crate) fn find(pid: Option<u32>) -> Result<Found, String> {
    let processes = Process::all();
    let (process, program) = match pid {
        Some(pid) => process::program(&processes, pid)?,
        None => process::only(&processes)?,
    };
    let url = process.url(program);
    let http = Http::new(&url, process.key());
    let seen = match program {
        Program::LlamaServer => tools::llama_server(process, &http),
        Program::Ollama => tools::ollama(process, &http),
    };
    let mut seen = seen.map_err(|error| format!("{url}: {error}"))?;
    if process.environment.is_empty() {
        let unknown = "its environment may not be read: what its variables set is not known";
        seen.notes.push(unknown.to_owned());
    }
    Ok(Found { program, pid: process.pid, family: process.family(&processes), seen })
}

/// Memory that a driver uses of a card for itself, at most: what is taken beyond the programs' bytes is somebody's.
const DRIVERS_OWN: u64 = gib(1);

impl Found {
    /// Takes what it holds of the host's memory and of the machine's GPUs for free, as it would be were it started
    /// again: bytes on GPUs, `None` where no driver reports them.
    pub(crate) fn given_back(&self, machine: &mut Machine) -> Option<u64> {
        let host = &mut machine.host;
        let bytes = process::on_host(&self.family);
        for free in [&mut host.available, &mut host.system_available] {
            *free = free.saturating_add(bytes).min(host.total);
        }
        let (mut held, mut all_report) = (0u64, !machine.gpus.is_empty());
        for gpu in &mut machine.gpus {
            let Some(processes) = &mut gpu.processes else {
                all_report = false;
                continue;
            };
            let known = processes.iter().filter_map(|process| process.bytes);
            let known = known.fold(DRIVERS_OWN, u64::saturating_add);
            // In a container a driver may report the ids that processes have outside, and no names.
            all_report &=
                known >= gpu.total.saturating_sub(gpu.free) && processes.iter().all(|process| process.name.is_some());
            let own = processes.extract_if(.., |process| self.family.contains(&process.pid));
            let bytes = own.filter_map(|process| process.bytes).fold(0, u64::saturating_add);
            gpu.free = gpu.free.saturating_add(bytes).min(gpu.total);
            held = held.saturating_add(bytes);
        }
        (held > 0 || all_report).then_some(held)
    }
}
