//! Processes of this computer: what one was started with, and which one serves an address.

use std::ffi::OsString;
use std::path::PathBuf;

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};

use crate::emit::Tool;

/// A process, as far as this user may see it.
pub(super) struct Process {
    pub(super) pid: u32,
    parent: Option<u32>,
    /// Its command line.
    pub(super) words: Vec<String>,
    /// Its environment, `NAME=VALUE`.
    environment: Vec<String>,
    /// The folder that its paths begin at.
    pub(super) folder: Option<PathBuf>,
}

impl Process {
    pub(super) fn all() -> Vec<Self> {
        let mut system = System::new();
        let what = ProcessRefreshKind::nothing()
            .without_tasks()
            .with_cmd(UpdateKind::Always)
            .with_environ(UpdateKind::Always)
            .with_cwd(UpdateKind::Always);
        system.refresh_processes_specifics(ProcessesToUpdate::All, true, what);
        let texts = |words: &[OsString]| -> Vec<String> {
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let processes = system.processes().values();
        let processes = processes.map(|process| Self {
            pid: process.pid().as_u32(),
            parent: process.parent().map(sysinfo::Pid::as_u32),
            words: texts(process.cmd()),
            environment: texts(process.environ()),
            folder: process.cwd().map(Into::into),
        });
        processes.collect()
    }

    /// What it is called, without control characters.
    pub(super) fn name(&self) -> String {
        stem(self.words.first().map_or("", String::as_str))
    }

    /// The program, by the name of its file; or of the script that an interpreter runs.
    pub(super) fn tool(&self) -> Option<Tool> {
        let names = self.words.iter().take(2).map(|word| stem(word).to_lowercase());
        names.into_iter().find_map(|name| match name.as_str() {
            "llama-server" => Some(Tool::LlamaCpp),
            "ollama" => Some(Tool::Ollama),
            "lm studio" | "lm-studio" | "lms" | "llmster" => Some(Tool::LmStudio),
            name if name.starts_with("koboldcpp") => Some(Tool::KoboldCpp),
            _ => None,
        })
    }

    /// The value behind one of these flags; the last counts.
    pub(super) fn value(&self, names: &[&str]) -> Option<&str> {
        let pairs = self.words.windows(2).rev();
        let mut found = pairs.filter(|pair| names.contains(&pair[0].replace('_', "-").as_str()));
        found.next().map(|pair| pair[1].as_str())
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let mut variables = self.environment.iter().filter_map(|it| it.split_once('='));
        variables.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Where it serves.
    pub(super) fn url(&self, tool: Tool) -> String {
        let (host, port) = match tool {
            Tool::Ollama => {
                let said = self.variable("OLLAMA_HOST").unwrap_or_default();
                let said = said.strip_prefix("http://").unwrap_or(said).trim_end_matches('/');
                match said.rsplit_once(':') {
                    Some((host, port)) => (Some(host), Some(port)),
                    None => (Some(said), None),
                }
            }
            _ => (
                self.value(&["--host"]).or(self.variable("LLAMA_ARG_HOST")),
                self.value(&["--port"]).or(self.variable("LLAMA_ARG_PORT")),
            ),
        };
        let port = port.unwrap_or(match tool {
            Tool::Ollama => "11434",
            Tool::LmStudio => "1234",
            Tool::KoboldCpp => "5001",
            Tool::LlamaCpp | Tool::LlamaCpp2 => "8080",
        });
        // One that listens everywhere listens here.
        let host = host.filter(|host| !host.is_empty() && *host != "0.0.0.0" && *host != "::");
        match host.unwrap_or("127.0.0.1") {
            host if host.contains(':') && !host.starts_with('[') => {
                format!("http://[{host}]:{port}")
            }
            host => format!("http://{host}:{port}"),
        }
    }

    /// Whether this address is its own, which must be one of this computer.
    pub(super) fn serves(&self, tool: Tool, url: &str) -> bool {
        let port = |url: &str| url.rsplit_once(':').map(|(_, port)| port.to_owned());
        let is_here = ["http://127.", "http://localhost", "http://[::1]"];
        // Ollama's runners say a port of their own.
        let is_runner = tool == Tool::Ollama && self.words.get(1).is_some_and(|it| it == "runner");
        is_here.iter().any(|here| url.starts_with(here))
            && port(url) == port(&self.url(tool))
            && !is_runner
    }

    /// What llama-server asks of who reads its slots.
    pub(super) fn key(&self, tool: Tool) -> Option<String> {
        let key = self.value(&["--api-key"]).or(self.variable("LLAMA_API_KEY"));
        let first = key.filter(|_| tool == Tool::LlamaCpp)?.split(',').next()?;
        Some(first.to_owned())
    }

    /// Itself and what it has started.
    pub(super) fn family(&self, all: &[Self]) -> Vec<u32> {
        let mut family = vec![self.pid];
        let mut index = 0;
        while let Some(parent) = family.get(index).copied() {
            let children = all.iter().filter(|it| it.parent == Some(parent)).map(|it| it.pid);
            let new: Vec<u32> = children.filter(|pid| !family.contains(pid)).collect();
            family.extend(new);
            index += 1;
        }
        family
    }
}

/// `llama-server` of `C:\llama\llama-server.exe`.
fn stem(word: &str) -> String {
    let file = word.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem = [".exe", ".py"].iter().find_map(|end| file.strip_suffix(end)).unwrap_or(file);
    stem.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::Process;
    use crate::emit::Tool;

    fn process(line: &str, environment: &[&str]) -> Process {
        Process {
            pid: 7,
            parent: None,
            words: shlex::split(line).unwrap(),
            environment: environment.iter().map(|&it| it.to_owned()).collect(),
            folder: None,
        }
    }

    #[test]
    fn a_program_is_known_by_its_file_and_a_script_by_its_own() {
        for (line, tool) in [
            ("/usr/bin/llama-server -m a.gguf", Some(Tool::LlamaCpp)),
            (r"'C:\llama\llama-server.exe' -m a.gguf", Some(Tool::LlamaCpp)),
            ("ollama serve", Some(Tool::Ollama)),
            ("python3 /opt/koboldcpp.py --model a.gguf", Some(Tool::KoboldCpp)),
            ("./koboldcpp-linux-x64 a.gguf", Some(Tool::KoboldCpp)),
            ("'/opt/LM Studio/LM Studio'", Some(Tool::LmStudio)),
            ("vim llama-server.log", None),
            ("", None),
        ] {
            assert_eq!(process(line, &[]).tool(), tool, "{line}");
        }
    }

    #[test]
    fn where_it_serves_is_said_by_flags_or_variables_or_is_the_usual_place() {
        let url = |tool, line, environment: &[&str]| process(line, environment).url(tool);
        assert_eq!(url(Tool::LlamaCpp, "llama-server", &[]), "http://127.0.0.1:8080");
        let said =
            url(Tool::LlamaCpp, "llama-server --host 0.0.0.0 --port 81", &["LLAMA_ARG_PORT=82"]);
        assert_eq!(said, "http://127.0.0.1:81");
        assert_eq!(
            url(Tool::LlamaCpp, "llama-server", &["LLAMA_ARG_PORT=82"]),
            "http://127.0.0.1:82"
        );
        assert_eq!(url(Tool::LlamaCpp, "llama-server --host ::1", &[]), "http://[::1]:8080");
        assert_eq!(
            url(Tool::Ollama, "ollama serve", &["OLLAMA_HOST=0.0.0.0:99"]),
            "http://127.0.0.1:99"
        );
        assert_eq!(url(Tool::Ollama, "ollama serve", &["OLLAMA_HOST=gpu"]), "http://gpu:11434");
    }

    #[test]
    fn an_address_is_that_of_the_server_and_not_of_its_runner_or_of_another_computer() {
        let server = process("ollama serve", &[]);
        assert!(server.serves(Tool::Ollama, "http://localhost:11434"));
        assert!(!server.serves(Tool::Ollama, "http://localhost:11435"));
        assert!(!server.serves(Tool::Ollama, "http://10.0.0.1:11434"));
        let runner = process("ollama runner --model a", &[]);
        assert!(!runner.serves(Tool::Ollama, "http://localhost:11434"));
    }

    #[test]
    fn memory_is_held_by_children_too() {
        let child = |pid, parent| Process { pid, parent: Some(parent), ..process("x", &[]) };
        let all = [process("ollama serve", &[]), child(8, 7), child(9, 8), child(10, 1)];
        assert_eq!(all[0].family(&all), [7, 8, 9]);
    }
}
