//! Inspects another program that runs a model. In: its process id. Out: facts from the program's arguments, and from
//! its answers over HTTP ([`Seen`]). The requests never make the program compute.

mod compare;
mod http;
mod process;
mod seen;
mod tools;

use std::net::TcpStream;

use autoplace::machine::{Machine, gib};

pub(crate) use compare::compare;
pub(crate) use seen::{Program, Seen};

use http::Http;
use process::Process;

/// The program, its model, and the processes that use its memory.
pub(crate) struct Found {
    pub(crate) program: Program,
    pub(crate) pid: u32,
    /// The program's process and its descendants.
    pub(crate) family: Vec<u32>,
    pub(crate) seen: Seen,
}

/// Inspects the program with this process id, or the only known program that is running. The error is one line, and
/// says what is missing, or why something could not be read.
pub(crate) fn find(pid: Option<u32>) -> Result<Found, String> {
    let processes = Process::all();
    let (process, program) = match pid {
        Some(pid) => process::program(&processes, pid)?,
        None => process::only(&processes)?,
    };
    let (url, http) = address(process, program);
    let seen = match program {
        Program::LlamaServer => tools::llama_server(process, &http),
        Program::Ollama => tools::ollama(process, &http),
        Program::LmStudio => tools::lm_studio(&http),
        Program::KoboldCpp => tools::koboldcpp(process, &http),
    };
    let mut seen = seen.map_err(|error| format!("{url}: {error}"))?;
    if process.environment.is_empty() {
        let unknown = "the program's environment cannot be read, so settings in its variables are unknown";
        seen.notes.push(unknown.to_owned());
    }
    Ok(Found { program, pid: process.pid, family: process.family(&processes), seen })
}

/// The server's address. If several addresses are possible, the first at which a server of this kind answers. If there
/// is none, the first at which any program listens.
fn address(process: &Process, program: Program) -> (String, Http) {
    answering(process.urls(program), process)
}

fn answering(mut urls: Vec<String>, process: &Process) -> (String, Http) {
    let http = |url: &str| Http::new(url, process.key());
    let listens = |url: &String| {
        let address = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
        TcpStream::connect(address).is_ok()
    };
    let at = match urls.len() {
        1 => 0,
        _ => {
            let answers = urls.iter().position(|url| tools::is_llama_server(process, &http(url)));
            // While a server loads its model, it answers with an error.
            answers.or_else(|| urls.iter().position(listens)).unwrap_or(0)
        }
    };
    let url = urls.swap_remove(at);
    let http = http(&url);
    (url, http)
}

/// Maximum memory of a card that the driver itself may be using. If more memory is in use than the sum of this number
/// and the bytes of the programs, it is not known who uses the rest.
const DRIVERS_OWN: u64 = gib(1);

impl Found {
    /// Changes the machine so that the program's memory on the host and on GPUs counts as free, as it would be if the
    /// program were restarted. Returns the program's bytes on GPUs; `None` if no driver reports them.
    pub(crate) fn given_back(&self, machine: &mut Machine) -> Option<u64> {
        let host = &mut machine.host;
        let bytes = process::on_host(&self.family);
        host.available = host.available.saturating_add(bytes).min(host.usable_total());
        host.system_available = host.system_available.saturating_add(bytes).min(host.total);
        let (mut held, mut all_report) = (0u64, !machine.gpus.is_empty());
        for gpu in &mut machine.gpus {
            let Some(processes) = &mut gpu.processes else {
                all_report = false;
                continue;
            };
            let known = processes.iter().filter_map(|process| process.bytes);
            let known = known.fold(DRIVERS_OWN, u64::saturating_add);
            // In a container, a driver may report the ids of processes outside the container. Such processes have no
            // names here.
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::answering;
    use super::process::Process;

    /// Starts a server that answers every request in the same way, and returns its address.
    fn server(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = move |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 4096]);
            let length = answer.len();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
            let _ = write!(stream, "{head}Content-Length: {length}\r\n\r\n{answer}");
        };
        std::thread::spawn(move || listener.incoming().flatten().for_each(answers));
        url
    }

    #[test]
    fn the_default_port_at_which_this_server_answers_is_used() {
        let own = server(r#"{"build_info": "b1", "model_path": "/models/a.gguf"}"#);
        let others = server(r#"{"build_info": "b1", "model_path": "/models/b.gguf"}"#);
        let another_program = server(r#"{"hello": true}"#);
        // A port on which nobody listens. A port that was free a moment ago may belong to another test now.
        let nobody = "http://127.0.0.1:1".to_owned();
        let process = Process::started("llama-server -m a.gguf");
        for (urls, expected) in [
            ([&nobody, &own], &own),
            ([&own, &nobody], &own),
            ([&others, &own], &own),
            ([&another_program, &own], &own),
            // No server of this kind answers. But the one that listens may still be loading its model.
            ([&nobody, &another_program], &another_program),
        ] {
            assert_eq!(&answering(urls.map(Clone::clone).into(), &process).0, expected, "{urls:?}");
        }
    }
}
