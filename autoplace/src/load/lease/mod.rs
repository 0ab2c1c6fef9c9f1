//! Leases: what a load is about to take of a GPU, for other loads of the same user to see.
//!
//! Time passes between the moment at which free memory is read and the moment at which a load has taken it. Two loads
//! that read in between count the same bytes twice, and one of them runs out of memory. So a load enters a [`Section`],
//! in which it alone reads and plans; writes down in a [`Lease`] what it is going to take; leaves the section; and
//! drops the lease once it has taken that, or failed. In flows the machine; out flow the machine less what others are
//! about to take, and the lease.
//!
//! Whoever enters while others hold leases on the same GPUs waits until they are done, since then what is free is the
//! truth. Past the patience of the load their bytes count as taken, those that they have already allocated twice: too
//! careful, but never too much.
//!
//! Without a folder of this user's alone, or a file system that locks, loads do not see each other: an [`Unleased`] in
//! the report says so.

mod book;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use book::{Book, DeviceKey, Gate};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::machine::{Bytes, Gpu, Machine, Note};
use crate::plan::Plan;

/// A large model is read from a disk in about this time. Layers that go to the host because somebody did not
/// wait stay there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody who reads and plans longer than this is stopped, in a debugger say, and not waited for. Opening a CUDA
/// device takes a second, planning a tenth of one.
const SECTION: Duration = Duration::from_secs(30);

/// Between two looks whether others are done.
const PAUSE: Duration = Duration::from_millis(10);

/// Where the loads of one user, in this process and in others, tell each other what they are about to take of which
/// GPU, so that no two count the same free bytes.
///
/// A lease is a small file that its load keeps locked; the operating system lets go of it when the process
/// ends, however it ends. Where the folder is not this user's, others may write there, or it cannot be written or
/// locked, loads go on without it, and [`LoadReport::unleased`](super::LoadReport::unleased) says so.
///
/// Seen are the loads of this user with this folder, on this machine and outside of containers of their own. The host's
/// memory is not leased. A [simulated](llama_sys::sim) GPU is another one in each process, and leased only if it has a
/// PCI address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Leases {
    place: Place,
    patience: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    User,
    Folder(PathBuf),
    Nowhere,
}

impl Leases {
    /// Leases in the user's runtime folder: `autoplace` in `$XDG_RUNTIME_DIR` or `/run/user/<id>`, and where there is
    /// neither a folder of this user's in the one for temporary files.
    pub const fn user() -> Self {
        Self::at(Place::User)
    }

    /// Leases in this folder, which is made if there is none. It is for this user, and for leases alone.
    pub fn in_dir(folder: impl Into<PathBuf>) -> Self {
        Self::at(Place::Folder(folder.into()))
    }

    /// No leases: the load neither sees others nor is seen by them.
    pub const fn none() -> Self {
        Self::at(Place::Nowhere)
    }

    const fn at(place: Place) -> Self {
        Self { place, patience: PATIENCE }
    }

    /// How long to wait for loads that have begun on the same GPUs. Past it, what they are about to take counts as
    /// taken, with the part of it that is allocated already. Default: a minute.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The machine as `read` tells it while no other load reads and plans for its GPUs, less what others are about to
    /// take. `read` is called once to know the GPUs, and again once nobody else is at them.
    ///
    /// A load that has a lease drops it first: it would wait for itself.
    pub(super) fn machine<E>(&self, read: impl Fn() -> Result<Machine, E>) -> Result<(Machine, Section), E> {
        let machine = read()?;
        let section = self.enter(&machine.gpus);
        if section.book.is_err() {
            return Ok((machine, section));
        }
        let machine = section.less_others(read()?);
        Ok((machine, section))
    }

    /// Waits until nobody else reads and plans for these GPUs, and until nobody else holds a lease on them or
    /// the patience ends.
    fn enter(&self, gpus: &[Gpu]) -> Section {
        let devices: BTreeSet<DeviceKey> = gpus.iter().filter_map(DeviceKey::of).collect();
        if devices.is_empty() || self.place == Place::Nowhere {
            return Section::without(Unleased::Asked);
        }
        self.try_enter(&devices).unwrap_or_else(|error| Section::without(Unleased::failed(&error)))
    }

    fn try_enter(&self, devices: &BTreeSet<DeviceKey>) -> io::Result<Section> {
        let book = Book::open(match &self.place {
            Place::Folder(folder) => {
                let above = folder.parent().unwrap_or(folder);
                fs::create_dir_all(above).map_err(|error| book::of_file(above, &error))?;
                private(folder, user())?;
                folder.clone()
            }
            _ => user_folder()?,
        });
        let begun = Instant::now();
        let limit = self.patience.saturating_add(SECTION);
        let mut told = false;
        loop {
            let gates = book.gates(devices, || begun.elapsed() >= limit)?;
            let others = book.others(devices)?;
            if others.is_empty() || begun.elapsed() >= self.patience {
                return Ok(Section { book: Ok(book), others, _gates: gates });
            }
            drop(gates);
            if !told {
                tracing::info!(patience = ?self.patience, "waiting for other loads on {}", names(&others));
                told = true;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Default for Leases {
    /// The [user's](Self::user).
    fn default() -> Self {
        Self::user()
    }
}

/// The time in which one load alone reads free memory and plans. It ends with [`hold`](Self::hold), or when
/// this is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub(super) struct Section {
    /// Or why there are no leases.
    book: Result<Book, Unleased>,
    others: BTreeMap<DeviceKey, u64>,
    _gates: Vec<Gate>,
}

/// Why other loads do not see what a load takes of a GPU while it takes it. They may count the same free bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unleased {
    /// The load was to do without leases: [`Leases::none`].
    #[error("it was asked to load without leases")]
    Asked,
    /// The folder is not this user's alone, or a file there cannot be opened, written or locked: which, and why not.
    #[error("{0}")]
    Failed(String),
}

impl Unleased {
    fn failed(error: &io::Error) -> Self {
        tracing::warn!(%error, "loading without leases: other loads may count the same free bytes");
        Self::Failed(error.to_string())
    }
}

impl Section {
    const fn without(why: Unleased) -> Self {
        Self { book: Err(why), others: BTreeMap::new(), _gates: Vec::new() }
    }

    /// Bytes of this GPU that loads are about to take that were not waited for, those that they have already allocated
    /// included.
    fn others(&self, gpu: &Gpu) -> u64 {
        DeviceKey::of(gpu).and_then(|device| self.others.get(&device).copied()).unwrap_or(0)
    }

    /// The machine with fewer bytes free, and a note of each GPU that has fewer.
    fn less_others(&self, mut machine: Machine) -> Machine {
        for gpu in &mut machine.gpus {
            let others = self.others(gpu);
            if others > 0 {
                gpu.free = gpu.free.saturating_sub(others);
                let text = format!(
                    "other loads are about to take {} of it: not counted as free",
                    Bytes(others.min(gpu.total))
                );
                let about = gpu.device.as_ref().unwrap_or(&gpu.name);
                machine.notes.push(Note::new(about, text));
            }
        }
        machine
    }

    /// Writes down what the load by this plan may take of this machine's GPUs, headroom included, and lets others plan.
    pub(super) fn hold(self, plan: &Plan, machine: &Machine) -> Lease {
        self.write(plan.gpus().filter_map(|placement| {
            let is_it = |gpu: &&Gpu| gpu.device == placement.device;
            let gpu = machine.gpus.iter().find(is_it)?;
            let bytes = placement
                .footprint
                .total()
                .saturating_add(placement.headroom.total())
                .saturating_add(placement.companions);
            Some((gpu, bytes))
        }))
    }

    fn write<'a>(self, bytes: impl Iterator<Item = (&'a Gpu, u64)>) -> Lease {
        // Two of CUDA's virtual devices are one card.
        let mut devices: BTreeMap<DeviceKey, u64> = BTreeMap::new();
        for (gpu, bytes) in bytes {
            if let Some(device) = DeviceKey::of(gpu) {
                let sum = devices.entry(device).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        let mut lease = Lease::default();
        for (device, bytes) in devices.into_iter().filter(|(_, bytes)| *bytes > 0) {
            let written = self
                .book
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|book| book.write(&device, bytes).map_err(|error| Unleased::failed(&error)));
            match written {
                Ok(entry) => lease.entries.push(entry),
                Err(why) => lease.unleased = Some(why),
            }
        }
        lease
    }
}

/// What one load is about to take. Dropped once it has taken that, or failed; from any thread.
#[derive(Debug, Default)]
#[must_use = "others count its bytes as free once it is dropped"]
pub(super) struct Lease {
    entries: Vec<NamedTempFile>,
    /// Why others do not see all of it, if they do not.
    pub(super) unleased: Option<Unleased>,
}

fn names(devices: &BTreeMap<DeviceKey, u64>) -> String {
    let names: Vec<String> = devices.keys().map(ToString::to_string).collect();
    names.join(", ")
}

const NAME: &str = "autoplace";

/// The folder in the user's runtime directory, made if there is none.
///
/// Looked for in a fixed order, so that a service without the session's environment finds the same one: what the
/// session says (XDG Base Directory Specification), where systemd puts it, and the folder for temporary files, which
/// may be everybody's.
fn user_folder() -> io::Result<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let user = user();
    let mut failed = None;
    for candidate in [
        session.map(|folder| folder.join(NAME)),
        cfg!(target_os = "linux").then(|| PathBuf::from(format!("/run/user/{user}/{NAME}"))),
        Some(std::env::temp_dir().join(format!("{NAME}-{user}"))),
    ]
    .into_iter()
    .flatten()
    {
        match private(&candidate, user) {
            Ok(()) => return Ok(candidate),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

#[cfg(unix)]
fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Windows keeps the folder for temporary files apart for each user (`GetTempPath2`).
#[cfg(not(unix))]
const fn user() -> u32 {
    0
}

/// Makes the folder for this user alone. One that somebody else has made or can write in is refused: whoever writes
/// there decides how much of a GPU we use.
fn private(folder: &Path, user: u32) -> io::Result<()> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "folders have no mode there"))]
    let mut options = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut options, 0o700);
    match options.create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(book::of_file(folder, &error));
        }
        _ => {}
    }
    // Not what a link points to.
    let there = fs::symlink_metadata(folder)?;
    if there.is_dir() && is_alone(&there, user) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is not this user's alone", folder.display())))
}

#[cfg(unix)]
fn is_alone(folder: &fs::Metadata, user: u32) -> bool {
    use std::os::unix::fs::MetadataExt;

    folder.uid() == user && folder.mode() & 0o022 == 0
}

#[cfg(not(unix))]
const fn is_alone(_: &fs::Metadata, _: u32) -> bool {
    true
}
