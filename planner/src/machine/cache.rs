//! Measurements cached on disk, in the user's cache folder: one JSON file for each device and for each model file. A
//! home directory may serve several machines, so the file's name depends on the device or the machine.
//!
//! Measurements flow in; later runs read them. A file that cannot be read, written or understood is ignored, because
//! measuring again is cheap. `tracing` then gets a debug message. A folder that does not answer is ignored too, until
//! it answers (`folder`).

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Machine;
use super::expert_use::ExpertUse;
use super::folder::{ANSWER_WITHIN, ask, ask_within};
use super::gpu::{Gpu, GpuKind};
use super::host::Host;
use super::measured::{LearnedHeadroom, MeasuredRates};
use super::moves::MoveRates;
use crate::json;

/// Increases when the meaning of the figures changes.
const VERSION: u32 = 3;

/// The end of the message about a file that is not a measurement.
const EXPECTED: &str = "autoplace writes this file itself";

/// The kinds of figures. Each is the prefix of a file's name.
const HEADROOM: &str = "headroom";
const RATES: &str = "rates";
const MOVES: &str = "moves";
const EXPERTS: &str = "experts";
const HASH: &str = "hash";

/// A folder of cached measurements, with a file for each device and for each model file. A cache without a folder keeps
/// nothing.
///
/// A host is identified by its processor, its cores, the cores usable by the process, and its memory in GiB. A GPU is
/// identified by its name, PCI address, driver version, backend and build; if any of them changes, it is measured
/// again. The measurements of GPUs on other machines are not cached, because their driver is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasurementCache {
    folder: Option<PathBuf>,
    patience: Duration,
}

#[derive(Serialize, Deserialize)]
struct Document<T> {
    version: u32,
    key: String,
    value: T,
}

impl MeasurementCache {
    /// The cache in the user's cache folder: `$XDG_CACHE_HOME/autoplace` or `~/.cache/autoplace`,
    /// `~/Library/Caches/autoplace` on macOS, `%LOCALAPPDATA%\autoplace` on Windows. A user without a home folder gets
    /// a cache that keeps nothing.
    pub fn user() -> Self {
        let strategy = etcetera::base_strategy::choose_native_strategy().ok();
        Self { folder: strategy.map(|dirs| dirs.cache_dir().join("autoplace")), patience: ANSWER_WITHIN }
    }

    /// The cache in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), patience: ANSWER_WITHIN }
    }

    /// Sets how long to wait for each file, for example because running texts wait meanwhile. If writing takes longer,
    /// a thread completes it. Default: ten seconds.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The headroom measured on this GPU with this build. A value above the GPU's total is invalid and ignored.
    pub fn headroom(&self, gpu: &Gpu, build: &str) -> Option<LearnedHeadroom> {
        let learned: LearnedHeadroom = self.get(HEADROOM, &gpu_key(gpu, build)?)?;
        let possible = learned.total() <= gpu.total;
        if !possible {
            tracing::debug!(gpu = %gpu.name, "the cached headroom exceeds the GPU's memory");
        }
        possible.then_some(learned)
    }

    /// Stores the headroom of this GPU with this build. The largest values of several measurements are kept.
    pub fn put_headroom(&self, gpu: &Gpu, build: &str, learned: LearnedHeadroom) {
        if let Some(key) = gpu_key(gpu, build) {
            let earlier = self.headroom(gpu, build);
            self.put(HEADROOM, key, earlier.map_or(learned, |earlier| learned.and_earlier(earlier)));
        }
    }

    /// The rates measured on this GPU with this build.
    pub fn gpu_rates(&self, gpu: &Gpu, build: &str) -> Option<MeasuredRates> {
        self.get(RATES, &gpu_key(gpu, build)?)
    }

    /// The rates last measured on this host with this build.
    pub fn host_rates(&self, host: &Host, build: &str) -> Option<MeasuredRates> {
        self.get(RATES, &host_key(host, build))
    }

    /// Stores all rates measured on this machine with this build. Earlier rates of other operations are kept. On the
    /// host they are kept only if the number of threads and the setting of weight repacking are the same.
    pub fn put_rates(&self, machine: &Machine, build: &str) {
        let host = (Some(host_key(&machine.host, build)), &machine.host.rates);
        let gpus = machine.gpus.iter().map(|gpu| (gpu_key(gpu, build), &gpu.rates));
        for (key, later) in gpus.chain([host]) {
            if let (Some(key), Some(later)) = (key, later) {
                let earlier: Option<MeasuredRates> = self.get(RATES, &key);
                let is_same =
                    |earlier: &MeasuredRates| (earlier.threads, earlier.repacked) == (later.threads, later.repacked);
                let mut rates = earlier.filter(is_same).unwrap_or_default();
                rates.repacked = later.repacked;
                rates.merge(later.clone());
                self.put(RATES, key, rates);
            }
        }
    }

    /// The times of loads and moves of this model's file, which has `bytes` bytes, on this machine with this build.
    pub fn move_rates(&self, machine: &Machine, (file, bytes): (&Path, u64), build: &str) -> Option<MoveRates> {
        self.get(MOVES, &moves_key(machine, (file, bytes), build)?)
    }

    /// Stores the times of a load or a move. [`MoveRates::merge`] decides which earlier figures are kept.
    pub fn put_move_rates(&self, machine: &Machine, (file, bytes): (&Path, u64), build: &str, later: MoveRates) {
        let Some(key) = moves_key(machine, (file, bytes), build) else { return };
        let earlier: Option<MoveRates> = self.get(MOVES, &key);
        let mut rates = earlier.clone().unwrap_or_default();
        rates.merge(later);
        if earlier.as_ref() != Some(&rates) {
            self.put(MOVES, key, rates);
        }
    }

    /// The observed reuse of experts in texts of this model, whose file has `bytes` bytes.
    pub fn expert_use(&self, (file, bytes): (&Path, u64)) -> Option<ExpertUse> {
        self.get(EXPERTS, &file_key(file, bytes))
    }

    /// Adds newly observed uses of a model's cache of experts to the stored ones.
    pub fn put_expert_use(&self, (file, bytes): (&Path, u64), later: ExpertUse) {
        let earlier = self.expert_use((file, bytes)).unwrap_or_default();
        self.put(EXPERTS, file_key(file, bytes), earlier.with_later(later));
    }

    /// The hash of the bytes of a file with this name, length and times.
    pub fn file_hash(&self, stamp: &str) -> Option<String> {
        self.get(HASH, stamp)
    }

    /// Stores the hash of a file's bytes.
    pub fn put_file_hash(&self, stamp: &str, hash: &str) {
        self.put(HASH, stamp.to_owned(), hash);
    }

    fn get<T: DeserializeOwned>(&self, kind: &str, key: &str) -> Option<T> {
        let folder = self.folder.as_ref()?;
        let file = folder.join(name(kind, key));
        let of = file.clone();
        let text = ask_within(self.patience, folder, move || json::read(&of, EXPECTED)).inspect_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                tracing::debug!(%error, file = %file.display(), "cannot be read");
            }
        });
        let document: Document<T> = json::parse(&text.ok()?, |value| Document::deserialize(value))
            .inspect_err(|error| tracing::debug!(%error, file = %file.display(), "is not a valid measurement"))
            .ok()?;
        (document.version == VERSION && document.key == key).then_some(document.value)
    }

    fn put<T: Serialize>(&self, kind: &str, key: String, value: T) {
        let Some(folder) = &self.folder else { return };
        let name = name(kind, &key);
        let document = Document { version: VERSION, key, value };
        let text = serde_json::to_string_pretty(&document).map_err(io::Error::other);
        let (of, file) = (folder.clone(), folder.join(&name));
        let write = move |text: &str| {
            fs::create_dir_all(of)?;
            json::write(&file, text)
        };
        let kept = text.and_then(|text| ask_within(self.patience, folder, move || write(&text)));
        if let Err(error) = kept {
            tracing::debug!(%error, name, folder = %folder.display(), "cannot be stored");
        }
    }
}

/// The file's name contains a hash of the key, because a key may be long and contain any characters.
fn name(kind: &str, key: &str) -> String {
    format!("{kind}-{:016x}.json", xxh3_64(key.as_bytes()))
}

/// The identity of a host and build.
fn host_key(host: &Host, build: &str) -> String {
    let cpu = host.cpu.as_deref().unwrap_or("unknown processor");
    let count = |cores: Option<u32>| cores.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let (usable, physical) = (count(host.usable_cores), count(host.physical_cores));
    // The kernel reserves a varying part of the memory, which changes the total from version to version.
    let gib = host.total.saturating_add(1 << 29) >> 30;
    format!("{cpu}, {usable} of {physical} cores, {gib} GiB, {build}")
}

/// The identity of a machine, a model's file and a build. `None` if a GPU belongs to another machine, because other
/// programs share the link to that machine.
fn moves_key(machine: &Machine, (file, bytes): (&Path, u64), build: &str) -> Option<String> {
    let gpus = machine.gpus.iter().map(|gpu| gpu_key(gpu, build)).collect::<Option<Vec<_>>>()?;
    let host = host_key(&machine.host, build);
    Some(format!("{}; {host}; {}", file_key(file, bytes), gpus.join("; ")))
}

/// The identity of a model's file.
fn file_key(file: &Path, bytes: u64) -> String {
    let (folder, of) = (file.parent().unwrap_or(file), file.to_owned());
    let file = ask(folder, move || fs::canonicalize(of)).unwrap_or_else(|_| file.to_owned());
    format!("{}, {bytes} bytes", file.display())
}

/// The identity of a GPU, driver and build; `None` for a GPU of another machine.
fn gpu_key(gpu: &Gpu, build: &str) -> Option<String> {
    if gpu.kind == GpuKind::Remote {
        return None;
    }
    let place = gpu.pci_id.map_or_else(|| "?".to_owned(), |id| id.to_string());
    // CUDA includes the profile in the name of a MIG slice: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    let name = &gpu.description;
    let (driver, backend) = (gpu.driver.as_deref().unwrap_or("?"), &gpu.backend);
    Some(format!("{name} at {place}, driver {driver}, {backend}, {build}"))
}
