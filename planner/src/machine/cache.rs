//! What was measured of devices, kept for the next time: a JSON file for each in the user's cache folder, since a home
//! directory may be on several machines.
//!
//! In flow a device and its figures; out flow the figures, the next time. A file that cannot be read, written or
//! understood is as good as none, and is said to `tracing` at debug level: measuring again is cheap.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use etcetera::BaseStrategy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Machine;
use super::gpu::{Gpu, GpuKind};
use super::host::Host;
use super::measured::{LearnedHeadroom, MeasuredRates};
use crate::json;

/// Changes with the meaning of the figures.
const VERSION: u32 = 2;

/// The kinds of figures, as their files are named.
const HEADROOM: &str = "headroom";
const RATES: &str = "rates";

/// What was measured of devices, in a folder with a file for each of them; without a folder it keeps nothing.
///
/// A host is known by its processor, its cores, those that the process may use, and its memory in GiB. A GPU is known
/// by its name, its PCI address, the version of its driver, its backend, and the build that used it: if any of them
/// changes, it is measured again. Nothing is kept of a GPU of another machine: its driver is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasurementCache {
    folder: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Document<T> {
    version: u32,
    key: String,
    value: T,
}

impl MeasurementCache {
    /// The one in the user's cache folder: `$XDG_CACHE_HOME/autoplace` or `~/.cache/autoplace`,
    /// `~/Library/Caches/autoplace` on macOS, `%LOCALAPPDATA%\autoplace` on Windows. Where the user has no home it
    /// keeps nothing.
    pub fn user() -> Self {
        let strategy = etcetera::base_strategy::choose_native_strategy().ok();
        Self { folder: strategy.map(|dirs| dirs.cache_dir().join("autoplace")) }
    }

    /// The one in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// The headroom that was measured of this GPU with this build. What is more than the GPU has was not measured, and
    /// does not count.
    pub fn headroom(&self, gpu: &Gpu, build: &str) -> Option<LearnedHeadroom> {
        let learned: LearnedHeadroom = self.get(HEADROOM, &gpu_key(gpu, build)?)?;
        let possible = learned.total() <= gpu.total;
        if !possible {
            tracing::debug!(gpu = %gpu.name, "the headroom that is kept is more than the GPU has");
        }
        possible.then_some(learned)
    }

    /// Keeps a headroom of this GPU with this build. Of several the most that was seen stays.
    pub fn put_headroom(&self, gpu: &Gpu, build: &str, learned: LearnedHeadroom) {
        if let Some(key) = gpu_key(gpu, build) {
            let earlier = self.headroom(gpu, build);
            self.put(HEADROOM, key, earlier.map_or(learned, |earlier| learned.and_earlier(earlier)));
        }
    }

    /// The rates that were measured of this GPU with this build.
    pub fn gpu_rates(&self, gpu: &Gpu, build: &str) -> Option<MeasuredRates> {
        self.get(RATES, &gpu_key(gpu, build)?)
    }

    /// The rates that were measured of this host with this build the last time.
    pub fn host_rates(&self, host: &Host, build: &str) -> Option<MeasuredRates> {
        self.get(RATES, &host_key(host, build))
    }

    /// Keeps all rates that were measured of this machine with this build. Earlier ones of other things stay beside
    /// them, of the host where it computed with as many threads, and with weights rearranged or not as now.
    pub fn put_rates(&self, machine: &Machine, build: &str) {
        let host = (Some(host_key(&machine.host, build)), &machine.host.rates);
        let gpus = machine.gpus.iter().map(|gpu| (gpu_key(gpu, build), &gpu.rates));
        for (key, later) in gpus.chain([host]) {
            if let (Some(key), Some(later)) = (key, later) {
                let earlier: Option<MeasuredRates> = self.get(RATES, &key);
                let is_same = |it: &MeasuredRates| (it.threads, it.repacked) == (later.threads, later.repacked);
                let mut rates = earlier.filter(is_same).unwrap_or_default();
                rates.repacked = later.repacked;
                rates.merge(later.clone());
                self.put(RATES, key, rates);
            }
        }
    }

    fn get<T: DeserializeOwned>(&self, kind: &str, key: &str) -> Option<T> {
        let file = self.folder.as_ref()?.join(name(kind, key));
        let text = json::read(&file).inspect_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                tracing::debug!(%error, file = %file.display(), "is not read");
            }
        });
        let document: Document<T> = json::parse(&text.ok()?, |it| Document::deserialize(it))
            .inspect_err(|error| tracing::debug!(%error, file = %file.display(), "is not understood"))
            .ok()?;
        (document.version == VERSION && document.key == key).then_some(document.value)
    }

    fn put<T: Serialize>(&self, kind: &str, key: String, value: T) {
        let Some(folder) = &self.folder else { return };
        let name = name(kind, &key);
        let document = Document { version: VERSION, key, value };
        let text = serde_json::to_string_pretty(&document).map_err(io::Error::other);
        let kept = text.and_then(|text| {
            fs::create_dir_all(folder)?;
            json::write(&folder.join(&name), &text)
        });
        if let Err(error) = kept {
            tracing::debug!(%error, name, folder = %folder.display(), "is not kept");
        }
    }
}

/// A key may hold anything, and be long.
fn name(kind: &str, key: &str) -> String {
    format!("{kind}-{:016x}.json", xxh3_64(key.as_bytes()))
}

/// What tells one machine and build from another.
fn host_key(host: &Host, build: &str) -> String {
    let cpu = host.cpu.as_deref().unwrap_or("unknown processor");
    let count = |cores: Option<u32>| cores.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let (usable, physical) = (count(host.usable_cores), count(host.physical_cores));
    // The kernel's own part of the memory, and with it the total, changes from version to version.
    let gib = host.total.saturating_add(1 << 29) >> 30;
    format!("{cpu}, {usable} of {physical} cores, {gib} GiB, {build}")
}

/// What tells one GPU, driver and build from another; `None` for one of another machine.
fn gpu_key(gpu: &Gpu, build: &str) -> Option<String> {
    if gpu.kind == GpuKind::Remote {
        return None;
    }
    let place = gpu.pci_id.map_or_else(|| "?".to_owned(), |id| id.to_string());
    // CUDA names a slice of a card by its profile: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    let name = &gpu.description;
    let (driver, backend) = (gpu.driver.as_deref().unwrap_or("?"), &gpu.backend);
    Some(format!("{name} at {place}, driver {driver}, {backend}, {build}"))
}
