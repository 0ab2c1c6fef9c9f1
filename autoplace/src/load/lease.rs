//! Leases: one load at a time reads the free memory of a GPU, plans with it and takes it.
//!
//! Two loads that read the free memory before either has taken it count the same bytes twice. So a load locks a file
//! for each GPU of the machine before it reads the free memory. After planning, the load unlocks the GPUs that the plan
//! does not use. The GPUs that it uses stay locked until the load has taken their memory, or has failed. Other loads
//! wait. If a GPU is still locked when their patience is over, they count it as full. A lock belongs to the open file
//! and not to the process (flock, LockFileEx), so it also separates the threads of one process. A folder that does not
//! answer is not waited for (`machine::folder`): the load then has no lease.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Error;
use super::devices::is_simulated;
use super::error::Stage;
use super::leases::{Folder, Leases};
use super::options::LoadOptions;
use super::progress::{LoadProgress, Progress};
use crate::machine::folder::{self, FolderThread};
use crate::machine::{Gpu, GpuKind, Machine, Note};
use crate::plan::Plan;
use crate::private::{create, is_of, of_file};

/// Default patience: about the time to read a model of 100 GB from a hard disk. The patience is long because a load
/// that does not wait puts layers on the host for good.
const PATIENCE: Duration = Duration::from_secs(600);

/// Pause between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(10);

impl Leases {
    /// The folder that is tried first, which is not read. `None` without leases.
    pub(super) fn named(&self) -> Option<PathBuf> {
        match &self.folder {
            Folder::Nowhere => None,
            Folder::User => Some(user_folders().next().unwrap_or_else(temporary_folder)),
            Folder::At(folder) => Some(folder.clone()),
        }
    }

    /// Does this work with the folder of the leases, unless the folder does not answer.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let named = self.named().ok_or(io::ErrorKind::Unsupported)?;
        let leases = self.clone();
        folder::ask(&named, move || {
            let folder = leases.private_folder()?.ok_or(io::ErrorKind::Unsupported)?;
            work(&folder)
        })
    }

    /// The folder of the leases, created if missing. The folder belongs to this user alone. `None` without leases. This
    /// waits for the folder, however long it takes to answer.
    pub(super) fn private_folder(&self) -> io::Result<Option<PathBuf>> {
        match &self.folder {
            Folder::Nowhere => Ok(None),
            Folder::User => user_folder().map(Some),
            Folder::At(folder) => {
                let above = folder.parent().unwrap_or(folder);
                fs::create_dir_all(above).map_err(|error| of_file(above, &error))?;
                private(folder, llama_sys::user_id())?;
                Ok(Some(folder.clone()))
            }
        }
    }

    /// Locks the devices in the order of their names, so that two loads cannot deadlock.
    fn lock(&self, devices: BTreeSet<String>, progress: &Progress) -> io::Result<Lease> {
        let folder = self.ask(|folder| Ok(folder.to_owned()))?;
        let (begun, patience) = (Instant::now(), self.patience.unwrap_or(PATIENCE));
        let mut lease = Lease::default();
        // One thread tries again and again.
        let mut thread = FolderThread::new(&folder);
        for device in devices {
            let name = file_name(&device);
            match lock(&mut thread, (&folder, &name), || begun.elapsed() < patience, progress)? {
                Some(lock) => lease.locks.push((device, lock)),
                None => lease.busy.push(device),
            }
        }
        Ok(lease)
    }
}

impl LoadOptions {
    /// The [machine](Self::machine) for which the load plans, and a lease on its GPUs, so that no other load reads,
    /// plans or takes memory meanwhile. GPUs that other loads keep locked count as full. The machine is read once to
    /// find its GPUs, and again after they are locked.
    ///
    /// A load must drop the lease that it already has, because otherwise it would wait for itself.
    pub(super) fn leased_machine(&self, again: bool, progress: &Progress) -> Result<(Machine, Lease), Error> {
        let machine = self.machine(again)?;
        let devices: BTreeSet<String> = machine.gpus.iter().filter_map(key).collect();
        if devices.is_empty() || self.leases.folder == Folder::Nowhere {
            return Ok((machine, Lease::default()));
        }
        let lease = self.leases.lock(devices, progress).or_else(|error| match error.kind() {
            io::ErrorKind::Interrupted => Err(llama_sys::Error::LoadCancelled { path: self.path.clone() }),
            _ => {
                tracing::warn!(%error, "loading without leases: other loads may count the same free bytes");
                Ok(Lease { unleased: Some(error.to_string()), ..Lease::default() })
            }
        })?;
        Ok((lease.without_busy(self.machine(again)?), lease))
    }
}

const WAITING: LoadProgress = LoadProgress { stage: Stage::Wait, done: 0.0 };

/// Locks this file of the folder, in the folder's thread. `None` if another load keeps it locked for too long. The
/// error is `Interrupted` if the progress callback cancels.
fn lock(
    thread: &mut FolderThread,
    (folder, name): (&Path, &str),
    waits: impl Fn() -> bool,
    progress: &Progress,
) -> io::Result<Option<Lock>> {
    let path = folder.join(name);
    let mut is_logged = false;
    let mut file = {
        let path = path.clone();
        thread.ask(move || {
            let options = File::options().write(true).create(true).truncate(false).open(&path);
            options.map_err(|error| of_file(&path, &error))
        })?
    };
    loop {
        let (of, in_folder) = (path.clone(), folder.to_owned());
        let attempt = thread.ask(move || match file.try_lock() {
            Ok(()) => Ok(Attempt::Locked(Lock { file: Some(file), folder: in_folder })),
            Err(TryLockError::WouldBlock) => Ok(Attempt::Busy(file)),
            Err(TryLockError::Error(error)) => Err(of_file(&of, &error)),
        });
        file = match attempt? {
            Attempt::Locked(lock) => return Ok(Some(lock)),
            Attempt::Busy(_) if !waits() => return Ok(None),
            Attempt::Busy(_) if !progress.report(WAITING) => return Err(io::ErrorKind::Interrupted.into()),
            Attempt::Busy(file) => file,
        };
        std::thread::sleep(PAUSE);
        if !std::mem::replace(&mut is_logged, true) {
            tracing::info!(file = %path.display(), "waiting for another load");
        }
    }
}

/// The outcome of an attempt to lock a file.
enum Attempt {
    Locked(Lock),
    /// Another load has locked it.
    Busy(File),
}

/// The locked GPUs of one load. The lease is dropped after the memory is taken or after a failure, in any thread.
#[derive(Debug, Default)]
#[must_use = "others read what is free once it is dropped"]
pub(super) struct Lease {
    locks: Vec<(String, Lock)>,
    /// GPUs that other loads keep locked.
    busy: Vec<String>,
    /// The reason why other loads cannot see all memory that this load uses; `None` if they can.
    pub(super) unleased: Option<String>,
}

impl Lease {
    /// The machine, with no free bytes on GPUs that other loads have leased, and a note about each such GPU.
    fn without_busy(&self, mut machine: Machine) -> Machine {
        for gpu in &mut machine.gpus {
            if key(gpu).is_some_and(|device| self.busy.contains(&device)) {
                gpu.free = 0;
                let about = gpu.device.as_ref().unwrap_or(&gpu.name);
                let text = "another load is using it and did not finish in time: none of its memory counts as free";
                machine.notes.push(Note::new(about, text));
            }
        }
        machine
    }

    /// Unlocks the GPUs of the machine that this plan does not use.
    pub(super) fn hold(mut self, plan: &Plan, machine: &Machine) -> Self {
        let beside = plan.companions.iter().map(|one| &one.device);
        let devices: Vec<_> = plan.gpus().map(|gpu| &gpu.device).chain(beside).collect();
        let used = machine.gpus.iter().filter(|gpu| devices.contains(&&gpu.device));
        let used: Vec<String> = used.filter_map(key).collect();
        self.locks.retain(|(device, _)| used.contains(device));
        if let Some(device) = self.busy.iter().find(|device| used.contains(device)) {
            self.unleased = Some(format!("another load is using {device} and did not finish in time"));
        }
        if used.is_empty() {
            self.unleased = None;
        }
        self
    }
}

#[derive(Debug)]
struct Lock {
    /// The locked file, until it is unlocked.
    file: Option<File>,
    folder: PathBuf,
}

impl Drop for Lock {
    /// Unlocks explicitly, because a child process that is being started has a copy of the handle until its own program
    /// runs.
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        folder::tell(&self.folder, move || {
            if let Err(error) = file.unlock() {
                tracing::debug!(%error, "a lease stays locked until its file is closed");
            }
        });
    }
}

/// The name of a GPU that is the same in every process. The same card may be `CUDA0` in one process, and `Vulkan1` or
/// `CUDA1` in another. `None` for a hypothetical GPU, and for a GPU that is simulated in this process.
fn key(gpu: &Gpu) -> Option<String> {
    let device = gpu.device.as_deref()?;
    let card = || gpu.pci_id.map(|id| id.to_string());
    let name = || match gpu.kind {
        // ggml numbers remote devices per process and describes them by their endpoint (ggml-rpc.cpp,
        // `ggml_backend_rpc_add_server`).
        GpuKind::Remote => Some(format!("{} {}", gpu.backend, gpu.description)),
        _ if is_simulated(device) => None,
        _ => Some(format!("{} {device}", gpu.backend)),
    };
    card().or_else(name)
}

fn file_name(device: &str) -> String {
    let safe = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let name: String = device.chars().map(safe).take(128).collect();
    name + ".lease"
}

const NAME: &str = "autoplace";

/// The folder in the user's runtime directory, created if missing.
///
/// There are three candidates, in a fixed order, so that a service without the session's environment finds the same
/// folder: the session's runtime folder (XDG Base Directory Specification), systemd's runtime folder of the user, and
/// the temporary folder, which other users may share.
fn user_folder() -> io::Result<PathBuf> {
    let user = llama_sys::user_id();
    if let Some(folder) = user_folders().find(|folder| private(folder, user).is_ok()) {
        return Ok(folder);
    }
    let temporary = temporary_folder();
    private(&temporary, user).map(|()| temporary)
}

/// The runtime folders of the user, which may not exist.
fn user_folders() -> impl Iterator<Item = PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let user = llama_sys::user_id();
    let systemd = cfg!(target_os = "linux").then(|| PathBuf::from(format!("/run/user/{user}/{NAME}")));
    session.map(|folder| folder.join(NAME)).into_iter().chain(systemd)
}

/// The folder of this user in the temporary folder. On Windows each user has a separate temporary folder
/// (`GetTempPath2`).
fn temporary_folder() -> PathBuf {
    std::env::temp_dir().join(format!("{NAME}-{}", llama_sys::user_id()))
}

/// Creates the folder for this user alone. Refuses a folder that another user owns or can write to, because that user
/// could lock our GPUs.
fn private(folder: &Path, user: u32) -> io::Result<()> {
    create(folder)?;
    // Checks the entry itself and not the target of a link.
    let there = fs::symlink_metadata(folder)?;
    let error = || format!("{} does not belong to this user alone", folder.display());
    let is_ours = there.is_dir() && is_of(&there, user, 0o022);
    if is_ours { Ok(()) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, error())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::draft::beside;
    use crate::load::test_plan::plan;
    use crate::machine::{Host, PciId};

    fn card(bus: u8) -> Gpu {
        Gpu::new("card").device(format!("CUDA{bus}")).pci_id(PciId::new(0, bus, 0, 0)).total(1000)
    }

    /// The options of a load on the machine with these cards, with this patience.
    fn options(folder: &Path, cards: &[u8], patience: Duration) -> LoadOptions {
        let machine = cards.iter().fold(Machine::new(Host::new(1)), |machine, &bus| machine.with_gpu(card(bus)));
        let leases = Leases::in_dir(folder).patience(patience);
        LoadOptions { machine: Some(machine), leases, ..LoadOptions::default() }
    }

    /// The machine that a load with this patience plans for, and its lease.
    fn machine(folder: &Path, cards: &[u8], patience: Duration) -> (Machine, Lease) {
        options(folder, cards, patience).leased_machine(false, &Progress::default()).unwrap()
    }

    fn free(machine: &Machine) -> Vec<u64> {
        machine.gpus.iter().map(|gpu| gpu.free).collect()
    }

    #[test]
    fn cards_that_a_plan_does_not_use_are_unlocked() {
        let folder = tempfile::tempdir().unwrap();
        let device = plan().gpus().next().unwrap().device.clone().unwrap();
        let bus: u8 = device.strip_prefix("CUDA").unwrap().parse().unwrap();
        let (all, lease) = machine(folder.path(), &[bus, 9], Duration::ZERO);
        let lease = lease.hold(&plan(), &all);
        let (now, other) = machine(folder.path(), &[bus, 9], Duration::ZERO);
        assert_eq!(free(&now), [0, 1000]);
        // A load that uses the card anyway reports that other loads cannot see this use.
        assert!(other.hold(&plan(), &all).unleased.unwrap().contains("another load"));
        // A waiting load can be cancelled.
        let waiting = options(folder.path(), &[bus], Duration::MAX).leased_machine(false, &Progress::new(|_| false));
        assert!(matches!(waiting, Err(Error::Native(llama_sys::Error::LoadCancelled { .. }))));
        drop(lease);
        // A card with only a draft model is used too.
        let (all, lease) = machine(folder.path(), &[9], Duration::ZERO);
        let _lease = lease.hold(&beside("CUDA9"), &all);
        assert_eq!(free(&machine(folder.path(), &[9], Duration::ZERO).0), [0]);
    }

    #[cfg(unix)]
    #[test]
    fn a_load_whose_folder_of_leases_does_not_answer_has_no_lease() {
        let folder = tempfile::tempdir().unwrap();
        let leases = folder.path().join("leases");
        drop(machine(&leases, &[1], Duration::ZERO));
        // The opening of a pipe for writing waits for a reader.
        let pipe = leases.join(file_name("0000:01:00.0"));
        fs::remove_file(&pipe).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let expected = format!("{}: the folder has not answered within 10 s", leases.display());
        let (now, lease) = machine(&leases, &[1], Duration::MAX);
        assert_eq!((free(&now), lease.unleased.as_ref()), (vec![1000], Some(&expected)));
        // Another load does not wait again, not even for another card.
        assert_eq!(machine(&leases, &[2], Duration::MAX).1.unleased, Some(expected));
        // The folder answers. A pipe can be locked too.
        let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
        test_support::wait("answers", || machine(&leases, &[2], Duration::MAX).1.unleased.is_none());
        assert_eq!(machine(&leases, &[1], Duration::MAX).1.unleased, None);
    }

    #[cfg(unix)]
    #[test]
    fn the_users_folder_is_for_the_user_alone() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

        let base = tempfile::tempdir().unwrap();
        let me = llama_sys::user_id();
        let folder = base.path().join("mine");
        private(&folder, me).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        private(&folder, me).unwrap();

        assert!(private(&folder, me + 1).is_err(), "somebody else's");
        let link = base.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(private(&link, me).is_err(), "a link");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        let error = private(&folder, me).unwrap_err().to_string();
        assert!(error.contains("mine"), "{error}");
        // A folder that the caller named is checked too.
        assert_eq!(machine(&folder, &[1], Duration::ZERO).1.unleased, Some(error));
    }

    #[test]
    fn a_card_has_the_same_key_in_every_process() {
        let address = PciId::new(0, 0xc1, 0, 0);
        let card = Gpu::new("card").pci_id(address);
        let remote = Gpu::new("10.0.0.2:50052").kind(GpuKind::Remote).backend("RPC");
        let simulated = Gpu::new("SIM card").device("SIM0");
        for (gpu, expected) in [
            (card.clone().device("CUDA0"), Some("0000:c1:00.0")),
            (card.device("Vulkan1").backend("Vulkan"), Some("0000:c1:00.0")),
            (Gpu::new("Apple M4").device("MTL0").backend("MTL"), Some("MTL MTL0")),
            (remote.clone().device("RPC0"), Some("RPC 10.0.0.2:50052")),
            (remote.device("RPC3"), Some("RPC 10.0.0.2:50052")),
            (simulated.clone().pci_id(address), Some("0000:c1:00.0")),
            // GPUs that exist only in this process.
            (simulated, None),
            (Gpu::new("RTX 4090"), None),
        ] {
            assert_eq!(key(&gpu).as_deref(), expected, "{gpu:?}");
        }
        assert_eq!(file_name("0000:c1:00.0"), "0000-c1-00-0.lease");
    }
}
