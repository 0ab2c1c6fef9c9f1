//! A Linux machine in a folder. A test writes its `/proc` and `/sys`, and detection reads them. This file also
//! describes devices as ggml's backends list them.

use std::fs;
use std::path::PathBuf;

use autoplace_planner::machine::{Detector, GgmlDevice, GgmlKind, Host, gib};
use tempfile::TempDir;

/// A machine made of files, with 64 GiB of memory of which 48 GiB are available.
pub(crate) struct Fake {
    root: TempDir,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let fake = Self { root: tempfile::tempdir().unwrap() };
        fake.meminfo(gib(64), gib(48))
    }

    pub(crate) fn meminfo(self, total: u64, available: u64) -> Self {
        let (total, available) = (total / 1024, available / 1024);
        let text = format!("MemTotal: {total} kB\nMemFree: 100 kB\nMemAvailable: {available} kB\n");
        self.file("/proc/meminfo", text)
    }

    pub(crate) fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Adds processors, given as `(number, package, core)`.
    pub(crate) fn processors(mut self, processors: &[(u32, u32, u32)]) -> Self {
        for (cpu, package, core) in processors {
            let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            self = self
                .file(&format!("{topology}/physical_package_id"), format!("{package}\n"))
                .file(&format!("{topology}/core_id"), format!("{core}\n"));
        }
        self
    }

    pub(crate) fn host(&self) -> Host {
        Host::detect_under(self.root.path()).0
    }

    pub(crate) fn detector(&self) -> Detector {
        Detector::new().root(self.root.path()).without_nvml()
    }
}

/// A device as ggml lists it, with its sizes in GiB: `Vulkan0@0000:01:00.0 gpu 24 23 RTX 4090`.
pub(crate) fn device(text: &str) -> GgmlDevice {
    let words: Vec<&str> = text.splitn(5, ' ').collect();
    let (name, id) = words[0].split_once('@').unwrap_or((words[0], ""));
    let kind = match words[1] {
        "gpu" => GgmlKind::Gpu,
        "igpu" => GgmlKind::IntegratedGpu,
        "cpu" => GgmlKind::Cpu,
        "accelerator" => GgmlKind::Accelerator,
        "meta" => GgmlKind::Meta,
        other => panic!("{other}"),
    };
    // If more bytes than the budget are in use, backends report a negative number of free bytes.
    let size = |text: &str| (text.parse::<i64>().unwrap() << 30) as u64;
    let backend = name.trim_end_matches(char::is_numeric);
    let mut device = GgmlDevice::new(name, backend, kind).memory(size(words[2]), size(words[3]));
    if let Some(description) = words.get(4) {
        device.description = description.replace("RTX", "NVIDIA GeForce RTX");
    }
    if id.is_empty() { device } else { device.device_id(id) }
}
