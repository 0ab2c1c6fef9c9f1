//! What ggml's operations were measured to do on a device, kept for the next time: a JSON file per device in the
//! user's cache folder.
//!
//! In flow a device, a build and its rates; out flow the rates, the next time. A file that cannot be read, written or
//! understood is as good as none, and is said to `tracing` at debug level: measuring again is cheap.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Machine;
use super::cache::{replace, user_folder};
use super::gpu::Gpu;
use super::host::{Host, cache};
use super::learned;
use super::rates::MeasuredRates;

/// Changes with the meaning of the figures.
const VERSION: u32 = 1;

/// Ways to compute that are kept for a host; the oldest are forgotten.
const WAYS: usize = 8;

/// The measured rates of devices, each in a file of the user's cache folder.
///
/// A GPU is known as [`HeadroomCache`](super::HeadroomCache) knows it, a host as
/// [`BandwidthCache`](super::BandwidthCache) does and by the number of threads and whether weights were rearranged;
/// each with the build that measured it. New measurements are merged with earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RatesCache {
    folder: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    /// What tells the device, its driver and the build from others.
    device: String,
    /// One for each number of threads, with weights rearranged or not; the latest last.
    rates: Vec<MeasuredRates>,
}

impl RatesCache {
    /// The one in the user's cache folder: see [`BandwidthCache::user`](super::BandwidthCache::user).
    #[must_use]
    pub fn user() -> Self {
        Self {
            folder: user_folder(),
        }
    }

    /// The one in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: Some(folder.into()),
        }
    }

    /// What was measured of this GPU with this build.
    #[must_use]
    pub fn gpu(&self, gpu: &Gpu, build: &str) -> Option<MeasuredRates> {
        self.read(&learned::key(gpu, build)?).pop()
    }

    /// Keeps a measurement of this GPU with this build. Of a GPU of another machine nothing is kept: its
    /// driver is not known.
    pub fn put_gpu(&self, gpu: &Gpu, build: &str, rates: MeasuredRates) {
        if let Some(key) = learned::key(gpu, build) {
            self.keep(key, rates);
        }
    }

    /// The latest that was measured of this host with this build and that is `wanted`: with so many threads, say.
    #[must_use]
    pub fn host(
        &self,
        host: &Host,
        build: &str,
        wanted: impl Fn(&MeasuredRates) -> bool,
    ) -> Option<MeasuredRates> {
        let mut all = self.read(&host_key(host, build)).into_iter().rev();
        all.find(wanted)
    }

    /// Keeps a measurement of this host with this build.
    pub fn put_host(&self, host: &Host, build: &str, rates: MeasuredRates) {
        self.keep(host_key(host, build), rates);
    }

    /// Keeps all that was measured of this machine with this build.
    pub fn put(&self, machine: &Machine, build: &str) {
        for gpu in &machine.gpus {
            if let Some(rates) = &gpu.rates {
                self.put_gpu(gpu, build, rates.clone());
            }
        }
        if let Some(rates) = &machine.host.rates {
            self.put_host(&machine.host, build, rates.clone());
        }
    }

    fn keep(&self, device: String, later: MeasuredRates) {
        let Some(folder) = &self.folder else { return };
        let mut rates = self.read(&device);
        let earlier = (rates.iter())
            .position(|one| (one.threads, one.repacked) == (later.threads, later.repacked));
        let merged = match earlier.map(|index| rates.remove(index)) {
            Some(mut merged) => {
                merged.merge(later);
                merged
            }
            None => later,
        };
        rates.push(merged);
        rates.drain(..rates.len().saturating_sub(WAYS));
        let name = file_name(&device);
        let document = Document {
            version: VERSION,
            device,
            rates,
        };
        // Of plain numbers and names.
        let Ok(text) = serde_json::to_string_pretty(&document) else {
            return;
        };
        if let Err(error) = replace(folder, &name, &text) {
            tracing::debug!(%error, name, folder = %folder.display(), "is not kept");
        }
    }

    fn read(&self, device: &str) -> Vec<MeasuredRates> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let file = folder.join(file_name(device));
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::debug!(%error, file = %file.display(), "is not read");
                }
                return Vec::new();
            }
        };
        match serde_json::from_str::<Document>(&text) {
            Ok(read) if read.version == VERSION && read.device == device => read.rates,
            Ok(_) => {
                tracing::debug!(file = %file.display(), "is of another version or device");
                Vec::new()
            }
            Err(error) => {
                tracing::debug!(%error, file = %file.display(), "is not understood");
                Vec::new()
            }
        }
    }
}

fn host_key(host: &Host, build: &str) -> String {
    format!("host {}, {build}", cache::key(host))
}

/// A name may hold anything, and be long.
fn file_name(device: &str) -> String {
    let hash = Sha256::digest(device.as_bytes());
    let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("rates-{hash}.json")
}
