//! The processes of this computer. Finds the one that runs a model, and reads its arguments.

use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};

use super::seen::{Program, file_name};
use crate::llama_cpp::{api_keys, api_keys_in_file};

/// The default ports of llama-server: 9931 since v0.8.0 (common.h, `common_params`), and 8080 before.
const LLAMA_SERVER_PORTS: [&str; 2] = ["9931", "8080"];

/// A process, with what this user may see of it. The environment and the folder of another user's process are hidden.
pub(super) struct Process {
    pub(super) pid: u32,
    parent: Option<u32>,
    /// The words of its command line.
    pub(super) words: Vec<String>,
    /// The variables of its environment, as `NAME=VALUE`.
    pub(super) environment: Vec<String>,
    /// Its working folder.
    folder: Option<PathBuf>,
}

/// The known program that this process is, or to which it belongs. Drivers report the process that computes, which a
/// server may have started. The error is one line, and says what the process is.
pub(super) fn program(all: &[Process], pid: u32) -> Result<(&Process, Program), String> {
    let found = all.iter().find(|process| process.pid == pid);
    let found = found.ok_or_else(|| format!("there is no process {pid}"))?;
    let ancestry = found.ancestry(all).into_iter();
    let programs: Vec<_> = ancestry.filter_map(|process| Some((process, process.program()?))).collect();
    // Ollama starts a llama-server, but the placement depends on Ollama's own settings.
    let ollama = programs.iter().find(|(_, program)| *program == Program::Ollama);
    ollama.or(programs.first()).copied().ok_or_else(|| {
        let name = found.name();
        format!("process {pid} is `{name}`: only llama-server, ollama, LM Studio and KoboldCpp are known")
    })
}

/// The only known program on this computer that runs models. The error says that there is none, or lists several.
pub(super) fn only(all: &[Process]) -> Result<(&Process, Program), String> {
    let programs = all.iter().filter_map(|process| Some((process, process.program()?)));
    // A process belongs to the server that started it.
    let is_started =
        |process: &Process| process.ancestry(all).iter().skip(1).any(|ancestor| ancestor.program().is_some());
    let found: Vec<_> = programs.filter(|(process, _)| !is_started(process)).collect();
    match found.as_slice() {
        [] => Err("none of llama-server, ollama, LM Studio and KoboldCpp runs here: give a process id, `--watch=PID`"
            .to_owned()),
        [found] => Ok(*found),
        several => {
            let several: Vec<String> =
                several.iter().map(|(process, program)| format!("{} ({program})", process.pid)).collect();
            Err(format!("processes {} run models: name one of them by `--watch=PID`", several.join(", ")))
        }
    }
}

/// The bytes of host memory that these processes use, and that are not backed by a file. Without the processes, these
/// bytes would be free.
pub(super) fn on_host(pids: &[u32]) -> u64 {
    let status = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/status")).ok();
    let held = pids.iter().filter_map(status).map(|status| {
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        let own = lines.filter(|(name, _)| ["RssAnon", "RssShmem"].contains(name));
        let kib = own.filter_map(|(_, value)| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.fold(0, u64::saturating_add).saturating_mul(1024)
    });
    held.fold(0, u64::saturating_add)
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
        let processes = system.processes().values().map(|process| Self {
            pid: process.pid().as_u32(),
            parent: process.parent().map(sysinfo::Pid::as_u32),
            words: texts(process.cmd()),
            environment: texts(process.environ()),
            folder: process.cwd().map(Into::into),
        });
        processes.collect()
    }

    /// A process with this command line. It is for tests.
    #[cfg(test)]
    pub(super) fn started(line: &str) -> Self {
        Self { pid: 7, parent: None, words: shlex::split(line).unwrap(), environment: Vec::new(), folder: None }
    }

    /// The name of the program's file, without control characters: `llama-server` from `C:\llama\llama-server.exe`.
    pub(super) fn name(&self) -> String {
        let file = file_name(self.words.first().map_or("", String::as_str));
        file.strip_suffix(".exe").unwrap_or(file).replace(char::is_control, "?")
    }

    /// The known program whose file has this name.
    pub(super) fn program(&self) -> Option<Program> {
        // With any other argument, this program is only a client of a server.
        let is_server = self.words.get(1).is_some_and(|word| word == "serve");
        match self.name().to_lowercase().as_str() {
            "llama-server" => Some(Program::LlamaServer),
            "llama" if is_server => Some(Program::LlamaServer),
            "ollama" if is_server => Some(Program::Ollama),
            // The application, and its server, which has no window.
            "lm studio" | "lm-studio" | "llmster" => Some(Program::LmStudio),
            name if name.starts_with("koboldcpp") => Some(Program::KoboldCpp),
            name if name.starts_with("python") => {
                let script = file_name(self.words.get(1)?);
                (script == "koboldcpp.py").then_some(Program::KoboldCpp)
            }
            _ => None,
        }
    }

    /// The process and its ancestors, in which each process comes before its parent.
    fn ancestry<'a>(&'a self, all: &'a [Self]) -> Vec<&'a Self> {
        let parent = |process: &&'a Self| all.iter().find(|other| Some(other.pid) == process.parent);
        // No process is its own ancestor. But processes start and end while the list is read, so the list may contain a
        // loop.
        std::iter::successors(Some(self), parent).take(64).collect()
    }

    /// The value of one of these flags. If they occur several times, the last occurrence counts.
    pub(super) fn value(&self, names: &[&str]) -> Option<&str> {
        let is_named = |word: &str| names.contains(&word.replace('_', "-").as_str());
        (0..self.words.len()).rev().find_map(|index| match self.words[index].split_once('=') {
            Some((name, value)) => is_named(name).then_some(value),
            None if is_named(&self.words[index]) => self.words.get(index + 1).map(String::as_str),
            None => None,
        })
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let mut variables = self.environment.iter().filter_map(|variable| variable.split_once('='));
        variables.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The addresses that the program's server may have, with the prefix of its paths. If the port is not known, there
    /// are several.
    pub(super) fn urls(&self, program: Program) -> Vec<String> {
        let (host, port) = if matches!(program, Program::LmStudio | Program::KoboldCpp) {
            let usual = if program == Program::LmStudio { "1234" } else { "5001" };
            let host = self.value(&["--host"]).unwrap_or_default();
            (host, Some(self.value(&["--port"]).unwrap_or(usual)))
        } else if program == Program::Ollama {
            let usual = "11434";
            // This follows envconfig.Host in Ollama. The scheme does not matter, because Ollama's server never uses
            // TLS.
            let said = self.variable("OLLAMA_HOST").unwrap_or_default().trim();
            let (usual, said) = match said.split_once("://") {
                Some(("http", said)) => ("80", said),
                Some(("https", said)) => ("443", said),
                Some((_, said)) => (usual, said),
                None => (usual, said),
            };
            let said = said.split('/').next().unwrap_or_default();
            let (host, port) = match said.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(_) => (said, usual),
                Err(_) => said.rsplit_once(':').unwrap_or((said, usual)),
            };
            (host, Some(port))
        } else {
            let said = |flag, variable| self.value(&[flag]).or(self.variable(variable));
            let host = said("--host", "LLAMA_ARG_HOST").unwrap_or_default();
            (host, said("--port", "LLAMA_ARG_PORT"))
        };
        let host = match host.trim_matches(['[', ']']) {
            // A server that listens on all addresses also listens on this one.
            "" | "0.0.0.0" | "::" => "127.0.0.1".to_owned(),
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let ports = port.map_or(LLAMA_SERVER_PORTS.to_vec(), |port| vec![port]);
        let prefix = self.prefix(program);
        ports.into_iter().map(|port| format!("http://{host}:{port}{prefix}")).collect()
    }

    /// The path that precedes all paths of the program's server, as llama-server was started with it.
    fn prefix(&self, program: Program) -> &str {
        match program {
            Program::LlamaServer => self.value(&["--api-prefix"]).or(self.variable("LLAMA_ARG_API_PREFIX")),
            Program::Ollama | Program::LmStudio | Program::KoboldCpp => None,
        }
        // Another beginning would change the host of the address.
        .filter(|prefix| prefix.starts_with('/'))
        .unwrap_or_default()
    }

    /// A key with which llama-server shows its slots: the first of its keys.
    pub(super) fn key(&self) -> Option<String> {
        if self.program() != Some(Program::LlamaServer) {
            return None;
        }
        let lists = [self.value(&["--api-key"]), self.variable("LLAMA_API_KEY")];
        lists.into_iter().flatten().flat_map(api_keys).next().or_else(|| {
            let file = self.value(&["--api-key-file"]).or(self.variable("LLAMA_ARG_API_KEY_FILE"))?;
            let text = fs::read_to_string(self.path(file)).ok()?;
            api_keys_in_file(&text).next().map(|(_, key)| key.to_owned())
        })
    }

    /// A path of the program, as this process can open it. A relative path begins at the program's folder, and a path
    /// in a container begins at the container's root.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        let path = match &self.folder {
            Some(folder) => folder.join(path),
            None => PathBuf::from(path),
        };
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let inside = path.strip_prefix("/").map(|path| root.join(path));
        match inside {
            Ok(inside) if !path.exists() && inside.exists() => inside,
            _ => path,
        }
    }

    /// The process and its descendants.
    pub(super) fn family(&self, all: &[Self]) -> Vec<u32> {
        let is_started = |other: &&Self| {
            other.pid != self.pid && other.ancestry(all).iter().any(|ancestor| ancestor.pid == self.pid)
        };
        [self.pid].into_iter().chain(all.iter().filter(is_started).map(|process| process.pid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Process, Program, only, program};

    fn process(line: &str, environment: &[&str]) -> Process {
        let environment = environment.iter().map(|&variable| variable.to_owned()).collect();
        Process { environment, ..Process::started(line) }
    }

    #[test]
    fn a_program_is_known_by_its_file() {
        for (line, tool) in [
            ("/usr/bin/llama-server -m a.gguf", Some(Program::LlamaServer)),
            (r"'C:\llama\llama-server.exe' -m a.gguf", Some(Program::LlamaServer)),
            ("llama serve", Some(Program::LlamaServer)),
            ("ollama serve", Some(Program::Ollama)),
            ("ollama run qwen3", None),
            ("koboldcpp --model a.gguf", Some(Program::KoboldCpp)),
            ("/opt/koboldcpp-linux-x64 a.gguf", Some(Program::KoboldCpp)),
            ("/usr/bin/python3 ./koboldcpp.py a.gguf", Some(Program::KoboldCpp)),
            ("python3 train.py koboldcpp.py", None),
            ("'/opt/LM Studio/LM Studio'", Some(Program::LmStudio)),
            ("llmster", Some(Program::LmStudio)),
            ("vim llama-server.log", None),
            ("", None),
        ] {
            assert_eq!(process(line, &[]).program(), tool, "{line}");
        }
    }

    #[test]
    fn the_address_of_a_server_comes_from_flags_variables_or_defaults() {
        let url = |tool, line, environment: &[&str]| process(line, environment).urls(tool).join(" ");
        let either = "http://127.0.0.1:9931 http://127.0.0.1:8080";
        assert_eq!(url(Program::LlamaServer, "llama-server", &[]), either);
        let said = url(Program::LlamaServer, "llama-server --host 0.0.0.0 --port 81", &["LLAMA_ARG_PORT=82"]);
        assert_eq!(said, "http://127.0.0.1:81");
        assert_eq!(url(Program::LlamaServer, "llama-server", &["LLAMA_ARG_PORT=82"]), "http://127.0.0.1:82");
        assert_eq!(url(Program::LlamaServer, "llama-server --host ::1", &[]), "http://[::1]:9931 http://[::1]:8080");
        let prefixed =
            url(Program::LlamaServer, "llama-server --port 81 --api-prefix /a/b", &["LLAMA_ARG_API_PREFIX=/c"]);
        assert_eq!(prefixed, "http://127.0.0.1:81/a/b");
        let prefixed = url(Program::LlamaServer, "llama-server --port 81", &["LLAMA_ARG_API_PREFIX=/c"]);
        assert_eq!(prefixed, "http://127.0.0.1:81/c");
        let no_path = url(Program::LlamaServer, "llama-server --port 81 --api-prefix @elsewhere/", &[]);
        assert_eq!(no_path, "http://127.0.0.1:81");
        assert_eq!(url(Program::LmStudio, "lm-studio", &[]), "http://127.0.0.1:1234");
        assert_eq!(url(Program::KoboldCpp, "koboldcpp a.gguf", &[]), "http://127.0.0.1:5001");
        assert_eq!(url(Program::KoboldCpp, "koboldcpp --port=81 a.gguf", &[]), "http://127.0.0.1:81");
        assert_eq!(url(Program::Ollama, "ollama serve", &["OLLAMA_HOST=0.0.0.0:99"]), "http://127.0.0.1:99");
        for (said, meant) in [
            ("gpu", "gpu:11434"),
            ("::1", "[::1]:11434"),
            ("[::1]", "[::1]:11434"),
            ("[::]:99/", "127.0.0.1:99"),
            ("http://gpu", "gpu:80"),
            ("https://gpu/ollama", "gpu:443"),
        ] {
            let variable = format!("OLLAMA_HOST={said}");
            assert_eq!(url(Program::Ollama, "ollama serve", &[&variable]), format!("http://{meant}"), "{said}");
        }
    }

    #[test]
    fn a_process_that_a_server_started_belongs_to_it_and_a_second_server_does_not() {
        let child = |pid, parent, line| Process { pid, parent: Some(parent), ..process(line, &[]) };
        let family = [process("ollama serve", &[]), child(8, 7, "x"), child(9, 8, "x"), child(10, 1, "x")];
        assert_eq!(family[0].family(&family), [7, 8, 9], "memory is held by children too");
        let mut all = vec![process("ollama serve", &[]), child(8, 7, "llama-server -m a.gguf"), child(9, 7, "x")];
        assert_eq!(only(&all).map(|(process, program)| (process.pid, program)), Ok((7, Program::Ollama)));
        // Drivers report the process that the server started.
        for pid in [8, 9] {
            assert_eq!(program(&all, pid).map(|(process, program)| (process.pid, program)), Ok((7, Program::Ollama)));
        }
        all.push(child(10, 1, "llama-server"));
        assert!(only(&all).is_err_and(|error| error.contains("7 (Ollama), 10 (llama-server)")));
        assert!(only(&all[2..3]).is_err_and(|error| error.contains("none of")));
    }

    #[test]
    fn a_key_is_the_first_of_those_in_a_file_too() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("keys"), "# for the phone\n\nabc\ndef\n").unwrap();
        let mut server = process("llama-server --api-key-file=keys", &[]);
        server.folder = Some(folder.path().to_owned());
        assert_eq!(server.key().as_deref(), Some("abc"));
        assert_eq!(process("llama-server --api-key a,b", &[]).key().as_deref(), Some("a"));
        assert_eq!(process("llama-server --api-key ,", &["LLAMA_API_KEY=\"c,d\",e"]).key().as_deref(), Some("c,d"));
        assert_eq!(process("ollama serve --api-key a", &[]).key(), None);
    }
}
