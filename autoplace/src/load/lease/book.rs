//! The files of a folder of leases.
//!
//! `<device>.gate` is locked by whoever reads and plans. `<device>.<process>-<random>.lease` is one lease: it is
//! written and looked at under the gate's lock only, and its holder keeps it locked. One that is not locked is of a
//! process that is gone, and is deleted. The lock is a shared one, since Windows lets nobody read behind an exclusive
//! one; only the test for the dead asks for that.
//!
//! A lock belongs to the open file and not to the process (flock, LockFileEx), so the same goes for the
//! threads of one process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::load::devices::is_simulated;
use crate::machine::{Gpu, GpuKind};

const LEASE: &str = ".lease";

/// Between two attempts at a gate: nobody stays long.
const PAUSE: Duration = Duration::from_millis(1);

/// No lease is longer.
const LONGEST: u64 = 4096;

#[derive(Debug)]
pub(super) struct Book {
    folder: PathBuf,
}

/// The right to read and plan for one device, until it is dropped.
#[derive(Debug)]
pub(super) struct Gate(File);

/// What a lease's file says. All but the bytes is for people.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    /// When it took the lease, in seconds since 1970.
    since: u64,
    device: String,
    bytes: u64,
}

impl Book {
    pub(super) const fn open(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Waits for all gates, in the devices' order, so that two who want the same ones do not wait for each other.
    pub(super) fn gates(&self, devices: &BTreeSet<DeviceKey>, give_up: impl Fn() -> bool) -> io::Result<Vec<Gate>> {
        let gates = devices.iter().map(|device| self.gate(device, &give_up));
        gates.collect()
    }

    fn gate(&self, device: &DeviceKey, give_up: &impl Fn() -> bool) -> io::Result<Gate> {
        let path = self.folder.join(format!("{}.gate", device.file_name()));
        let file = open(&path, true)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Gate(file)),
                Err(TryLockError::Error(error)) => return Err(of_file(&path, &error)),
                Err(TryLockError::WouldBlock) if give_up() => {
                    let text = format!("another process plans for {device} and does not end");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// What the leases on these devices sum up to, for those that have any. Deletes those of the dead.
    /// Behind the gates.
    pub(super) fn others(&self, devices: &BTreeSet<DeviceKey>) -> io::Result<BTreeMap<DeviceKey, u64>> {
        let mut others = BTreeMap::new();
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let name = file.file_name();
            let name = name.to_string_lossy();
            let is_of = |device: &&DeviceKey| {
                let rest = name.strip_prefix(&device.file_name());
                rest.is_some_and(|rest| rest.starts_with('.')) && name.ends_with(LEASE)
            };
            let Some(device) = devices.iter().find(is_of) else {
                continue;
            };
            if let Some(bytes) = held(&file.path()) {
                let sum: &mut u64 = others.entry(device.clone()).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        Ok(others)
    }

    /// Writes a lease: its file is locked, and is deleted when this is dropped. Behind the device's gate.
    pub(super) fn write(&self, device: &DeviceKey, bytes: u64) -> io::Result<NamedTempFile> {
        let pid = std::process::id();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let record = Record { pid, since: since.map_or(0, |time| time.as_secs()), device: device.to_string(), bytes };
        let mut file = tempfile::Builder::new()
            .prefix(&format!("{}.{pid}-", device.file_name()))
            .suffix(LEASE)
            .tempfile_in(&self.folder)?;
        let mut text = serde_json::to_string(&record)?;
        text.push('\n');
        file.write_all(text.as_bytes())?;
        file.as_file().try_lock_shared()?;
        Ok(file)
    }
}

impl Drop for Gate {
    /// Closing is not enough while a child process is being started: it has a copy of the handle until it runs.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "a gate stays locked until its file is closed");
        }
    }
}

/// The bytes of a lease that somebody holds; `None` for what is left of the dead, which is deleted.
fn held(path: &Path) -> Option<u64> {
    match open(path, false) {
        // Ours can be opened; one that is gone has been dropped meanwhile. What nobody can lock may still be in use.
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::debug!(%error, "is no lease");
            }
            None
        }
        Ok(file) => match file.try_lock() {
            Ok(()) => {
                tracing::debug!(file = %path.display(), "the lease of a process that is gone");
                remove(path);
                None
            }
            Err(TryLockError::WouldBlock) => Some(read(file).unwrap_or_else(|error| {
                tracing::debug!(%error, file = %path.display(), "a lease of unknown size");
                u64::MAX
            })),
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, file = %path.display(), "cannot be locked");
                None
            }
        },
    }
}

fn read(file: File) -> io::Result<u64> {
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    let record: Record = serde_json::from_str(&text)?;
    Ok(record.bytes)
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, file = %path.display(), "stays");
        }
        _ => {}
    }
}

/// Opens a file of the folder, and nothing else that has its name: a link leads elsewhere, and a pipe never ends.
fn open(path: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits().cast_signed());
    }
    let opened = options.open(path).and_then(|file| {
        let is_file = file.metadata()?.is_file();
        is_file.then_some(file).ok_or_else(|| io::Error::other("not a regular file"))
    });
    opened.map_err(|error| of_file(path, &error))
}

/// The error, with the file that it is about.
pub(super) fn of_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A GPU by its name that is the same in every process: a card is `CUDA0` in one and `Vulkan1` or, beside other visible
/// devices, `CUDA1` in another. Ordered, so that all who lock several do so in one order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceKey(String);

impl DeviceKey {
    /// The key of a GPU; `None` for one that is hypothetical, or simulated within this process.
    pub(super) fn of(gpu: &Gpu) -> Option<Self> {
        let device = gpu.device.as_deref()?;
        let slice = gpu.mig.as_ref().and_then(|slice| slice.uuid.clone());
        let card = || gpu.pci_id.map(|id| id.to_string());
        let name = || match gpu.kind {
            // ggml counts remote devices anew in each process and describes them by their endpoint (ggml-rpc.cpp,
            // `ggml_backend_rpc_add_server`).
            GpuKind::Remote => Some(format!("{} {}", gpu.backend, gpu.description)),
            _ if is_simulated(device) => None,
            _ => Some(format!("{} {device}", gpu.backend)),
        };
        slice.or_else(card).or_else(name).map(Self)
    }

    /// The key as the beginning of a file's name: letters, digits and hyphens.
    pub(super) fn file_name(&self) -> String {
        let safe = |letter: char| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' => letter,
            _ => '-',
        };
        self.0.chars().map(safe).take(128).collect()
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{MigSlice, PciId};

    fn key(gpu: &Gpu) -> Option<String> {
        DeviceKey::of(gpu).map(|key| key.to_string())
    }

    #[test]
    fn a_card_is_its_pci_address_whatever_drives_it() {
        let card = Gpu::new("card").pci_id(PciId::new(0, 0xc1, 0, 0));
        let cuda = card.clone().device("CUDA0");
        let vulkan = card.device("Vulkan1").backend("Vulkan");
        assert_eq!(key(&cuda).as_deref(), Some("0000:c1:00.0"));
        assert_eq!(key(&cuda), key(&vulkan));
        let name = DeviceKey::of(&cuda).unwrap().file_name();
        assert_eq!(name, "0000-c1-00-0");
    }

    #[test]
    fn a_slice_is_its_own_device_where_it_is_known_which_it_is() {
        let mut slice = Gpu::new("A100").device("CUDA0");
        slice.pci_id = Some(PciId::new(0, 1, 0, 0));
        slice.mig = Some(MigSlice::new("NVIDIA A100-SXM4-40GB MIG 1g.5gb"));
        assert_eq!(key(&slice).as_deref(), Some("0000:01:00.0"));
        slice.mig.as_mut().unwrap().uuid = Some("MIG-1".to_owned());
        assert_eq!(key(&slice).as_deref(), Some("MIG-1"));
    }

    #[test]
    fn without_an_address_it_is_the_devices_name_or_the_endpoint() {
        let apple = Gpu::new("Apple M4").device("MTL0").backend("MTL");
        assert_eq!(key(&apple).as_deref(), Some("MTL MTL0"));
        let remote = Gpu::new("10.0.0.2:50052").kind(GpuKind::Remote);
        let remote = |device: &str| key(&remote.clone().device(device).backend("RPC"));
        assert_eq!(remote("RPC0").as_deref(), Some("RPC 10.0.0.2:50052"));
        assert_eq!(remote("RPC0"), remote("RPC3"));
    }

    #[test]
    fn what_only_this_process_has_is_not_leased() {
        assert_eq!(key(&Gpu::new("RTX 4090")), None);
        let simulated = Gpu::new("SIM card").device("SIM0");
        assert_eq!(key(&simulated), None);
        assert!(key(&simulated.pci_id(PciId::new(0, 1, 0, 0))).is_some());
    }
}
