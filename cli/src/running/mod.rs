//! What another program runs now. Its process id or its address flows in; what it was started with and what it says
//! over HTTP flow out ([`Seen`]). Nothing is asked of it that it would compute.

mod compare;
mod http;
mod process;
mod tools;

use std::path::PathBuf;
use std::str::FromStr;

use autoplace::machine::Machine;

use crate::emit::Tool;
pub(crate) use compare::compare;
use http::Http;
use process::Process;

/// Which program to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The process of this id.
    Pid(u32),
    /// What answers at this address.
    Url(String),
}

impl FromStr for Watched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(pid) = text.parse() {
            return Ok(Self::Pid(pid));
        }
        let address = text.strip_prefix("http://").unwrap_or(text);
        // A clipped address as people have it in their settings, `http://localhost:1234/v1`, is one of the same server.
        let host = address.split('/').next().unwrap_or_default();
        if host.is_empty() || host.contains("https:") {
            return Err("a process id, or an address such as http://127.0.0.1:8080".to_owned());
        }
        Ok(Self::Url(format!("http://{host}")))
    }
}

/// A program that runs a model, as far as it can be told.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Seen {
    /// Its version, where it says one.
    pub(crate) version: Option<String>,
    /// What it calls the model.
    pub(crate) name: String,
    /// The model's file.
    pub(crate) model: Option<PathBuf>,
    /// What places it, as [`flags::request`](crate::flags::request) takes it.
    pub(crate) words: Vec<String>,
    /// Sequences at once, where it holds several, and whether all of them may take all of the context.
    pub(crate) sequences: Option<(u32, bool)>,
    /// Bytes on GPUs, of all that the model takes.
    pub(crate) on_gpus: Option<(u64, u64)>,
    /// Tokens per second, now or of the last answer.
    pub(crate) speed: Option<f64>,
    /// What could not be told, or is not taken into account.
    pub(crate) notes: Vec<String>,
}

/// The program, what it runs, and the processes that hold its memory.
pub(crate) struct Found {
    pub(crate) tool: Tool,
    pub(crate) pids: Vec<u32>,
    pub(crate) seen: Seen,
}

/// Looks at it.
///
/// # Errors
///
/// A line that says what is not there, or why it could not be told.
pub(crate) fn find(watched: &Watched) -> Result<Found, String> {
    let processes = Process::all();
    let (tool, process, http) = match watched {
        Watched::Pid(pid) => {
            let process = processes.iter().find(|process| process.pid == *pid);
            let process = process.ok_or_else(|| format!("there is no process {pid}"))?;
            let tool = process.tool().ok_or_else(|| {
                format!("process {pid} is `{}`: llama-server, ollama, LM Studio and koboldcpp are known", process.name())
            })?;
            (tool, Some(process), Http::new(&process.url(tool), process.key(tool)))
        }
        Watched::Url(url) => {
            let tool = tools::answering(&Http::new(url, None))?;
            let mut processes = processes.iter();
            let process = processes.find(|it| it.tool() == Some(tool) && it.serves(tool, url));
            (tool, process, Http::new(url, process.and_then(|it| it.key(tool))))
        }
    };
    let mut seen = tools::look(tool, process, &http)?;
    if process.is_none() {
        let note = "its process is not among those of this computer that may be seen: what it was started with is not known";
        seen.notes.push(note.to_owned());
    }
    let pids = process.map_or_else(Vec::new, |it| it.family(&processes));
    Ok(Found { tool, pids, seen })
}

impl Found {
    /// Takes what it holds of the machine's GPUs for free, as it would be were it started anew; bytes in all.
    pub(crate) fn given_back(&self, machine: &mut Machine) -> u64 {
        let mut held = 0u64;
        for gpu in &mut machine.gpus {
            let Some(processes) = &mut gpu.processes else { continue };
            let own = processes.extract_if(.., |process| self.pids.contains(&process.pid));
            let bytes = own.filter_map(|process| process.bytes).fold(0, u64::saturating_add);
            gpu.free = gpu.free.saturating_add(bytes).min(gpu.total);
            held = held.saturating_add(bytes);
        }
        held
    }
}
