//! Programs that hold a GPU's memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;

/// A program that has opened a GPU, and what it holds of its memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuProcess {
    /// Its process id. Seen from inside a container it may be that of the host.
    pub pid: u32,
    /// Its program, without the folder: `ollama`. `None` where the driver does not tell, as for another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes that it holds. `None` where the driver does not count by process: on Windows its memory belongs to
    /// the system (WDDM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl GpuProcess {
    /// A program of which only its process id is known.
    #[must_use]
    pub const fn new(pid: u32) -> Self {
        Self {
            pid,
            name: None,
            bytes: None,
        }
    }

    /// Sets its name. Of a path, as drivers give it, the last part is kept.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        let last = name.trim().rsplit(['/', '\\']).next().unwrap_or_default();
        self.name = (!last.is_empty()).then(|| last.to_owned());
        self
    }

    /// Sets the bytes that it holds.
    #[must_use]
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }
}

impl fmt::Display for GpuProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("a program");
        write!(f, "{name} (process {}) holds ", self.pid)?;
        match self.bytes {
            Some(bytes) => write!(f, "{}", Bytes(bytes)),
            None => f.write_str("what the driver does not tell"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GpuProcess;
    use crate::machine::gib;

    #[test]
    fn a_name_is_the_last_part_of_a_path_of_either_kind() {
        for (path, name) in [
            ("/usr/bin/python3.12", Some("python3.12")),
            ("C:\\Program Files\\LM Studio\\lms.exe", Some("lms.exe")),
            ("ollama", Some("ollama")),
            ("", None),
            (" ", None),
            ("/", None),
        ] {
            assert_eq!(GpuProcess::new(1).name(path).name.as_deref(), name);
        }
    }

    #[test]
    fn it_prints_who_holds_how_much() {
        let held = GpuProcess::new(4711).name("/opt/ollama").bytes(gib(5));
        assert_eq!(held.to_string(), "ollama (process 4711) holds 5.0 GiB");
        let text = GpuProcess::new(7).to_string();
        assert_eq!(
            text,
            "a program (process 7) holds what the driver does not tell"
        );
    }
}
