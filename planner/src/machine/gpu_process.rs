//! Programs that have opened a GPU.

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;

/// A program that has opened a GPU, and the memory that it uses there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{} (process {pid}) holds {}", name.as_deref().unwrap_or("a program"), held(*bytes))]
#[non_exhaustive]
#[must_use]
pub struct GpuProcess {
    /// The process id. Inside a container it may be the host's id.
    pub pid: u32,
    /// The program's name without its folder: `ollama`. `None` if the driver does not report it, for example for
    /// another user's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes that the program uses. `None` if the driver does not count them for each process: on Windows, the system
    /// owns the memory (WDDM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl GpuProcess {
    /// A program of which only the process id is known.
    pub const fn new(pid: u32) -> Self {
        Self { pid, name: None, bytes: None }
    }

    /// Sets the name. If it is a path, only the last part is kept. Control characters are removed.
    pub fn name(mut self, name: &str) -> Self {
        let last = name.trim().rsplit(['/', '\\']).next().unwrap_or_default();
        self.name = (!last.is_empty()).then(|| last.replace(char::is_control, " "));
        self
    }

    /// Sets the bytes that the program uses.
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }
}

fn held(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "what the driver does not report".to_owned(), |bytes| Bytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::GpuProcess;

    #[test]
    fn a_name_is_the_last_part_of_a_path_of_either_kind() {
        for (path, name) in [
            ("/usr/bin/python3.12", Some("python3.12")),
            ("C:\\Program Files\\LM Studio\\lms.exe", Some("lms.exe")),
            ("ollama", Some("ollama")),
            ("/tmp/\u{1b}[2J", Some(" [2J")),
            ("", None),
            (" ", None),
            ("/", None),
        ] {
            assert_eq!(GpuProcess::new(1).name(path).name.as_deref(), name);
        }
    }
}
