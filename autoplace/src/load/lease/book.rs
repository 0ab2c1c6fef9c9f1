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
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::device::DeviceKey;

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
    pub(super) fn gates(
        &self,
        devices: &BTreeSet<DeviceKey>,
        give_up: impl Fn() -> bool,
    ) -> io::Result<Vec<Gate>> {
        let gates = devices.iter().map(|device| self.gate(device, &give_up));
        gates.collect()
    }

    fn gate(&self, device: &DeviceKey, give_up: &impl Fn() -> bool) -> io::Result<Gate> {
        let path = self.folder.join(format!("{}.gate", device.file_name()));
        let file = open(&path, true)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Gate(file)),
                Err(TryLockError::Error(error)) => return Err(error),
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
    pub(super) fn others(
        &self,
        devices: &BTreeSet<DeviceKey>,
    ) -> io::Result<BTreeMap<DeviceKey, u64>> {
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
        let record = Record {
            pid,
            since: since.map_or(0, |time| time.as_secs()),
            device: device.to_string(),
            bytes,
        };
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
        // Ours can be opened; one that is gone has been dropped meanwhile.
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::debug!(%error, file = %path.display(), "is no lease");
                remove(path);
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

fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .open(path)
}
