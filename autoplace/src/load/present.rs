//! Notices between the processes of a user: about the models that are loaded on this machine, and about memory that
//! pools lack.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::counters::Generated;
use super::leases::Leases;
use super::notice::{self, Notice};
use crate::machine::folder;
use crate::plan::{Placement, Plan};
use crate::sync::lock;

/// The names of folders below the folder of the leases.
const LOADED: &str = "loaded";
const LACKING: &str = "lacking";

/// The pause between two reports of a measured speed.
const SPEED_PAUSE: Duration = Duration::from_secs(2);

/// The end of a model waits at most this long for a folder that does not answer. The thread that withdraws the notice
/// then ends by itself, and the notice counts no more once the process has ended.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(5);

/// Whether this process is a worker of an application.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_worker_from_now_on() {
    IS_WORKER.store(true, Ordering::Relaxed);
}

/// A model that a process of this user has loaded. See [`loaded_models`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadedModel {
    /// The model's name, from its header.
    pub name: String,
    /// The model's first file.
    pub path: Option<PathBuf>,
    /// The process in which the model is loaded.
    pub process: u32,
    /// The application's process, if `process` is its worker.
    pub application: Option<u32>,
    /// The name of the program's executable.
    pub program: String,
    /// The time when the model was loaded or last re-placed.
    pub since: SystemTime,
    /// The number of layers on GPUs, and the number of all layers.
    pub layers: (u32, u32),
    /// The bytes on each device, with the host at the end: weights, cache, compute buffers and companions. The host's
    /// bytes include the limit of the prompt store.
    pub devices: Vec<DeviceBytes>,
    /// Predicted tokens per second; `None` for a model without a predicted speed, such as an embedding model.
    pub tokens_per_second: Option<f64>,
    /// Measured tokens per second of the model's last texts that generated alone, without their prompts; `None` before
    /// the end of the first such text.
    pub measured_tokens_per_second: Option<f64>,
    /// The length of the model's context in tokens.
    pub n_ctx: u32,
    /// Whether the process unloads the model if it is idle and other processes lack memory. A pool does this.
    #[serde(rename = "gives")]
    pub makes_room: bool,
}

/// Bytes of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::exhaustive_structs, reason = "a name and a number")]
pub struct DeviceBytes {
    /// The device's display name.
    pub name: String,
    /// The bytes.
    pub bytes: u64,
}

impl LoadedModel {
    fn now(plan: &Plan, makes_room: bool) -> Self {
        let executable = std::env::current_exe().ok();
        let program = executable.as_deref().and_then(Path::file_stem).unwrap_or_default();
        let on = |placement: &Placement| DeviceBytes {
            name: placement.name.clone(),
            bytes: [placement.footprint.total(), placement.companions, placement.headroom.prompt_store]
                .into_iter()
                .fold(0, u64::saturating_add),
        };
        Self {
            name: plan.model.name.clone(),
            path: plan.model.path.clone(),
            process: std::process::id(),
            application: if IS_WORKER.load(Ordering::Relaxed) { parent() } else { None },
            program: program.to_string_lossy().into_owned(),
            since: SystemTime::now(),
            layers: (plan.n_gpu_layers, plan.layers()),
            devices: plan.gpus().chain(plan.host()).map(on).collect(),
            tokens_per_second: plan.speed.as_ref().map(|speed| speed.tokens_per_second),
            measured_tokens_per_second: None,
            n_ctx: plan.context.n_ctx,
            makes_room,
        }
    }
}

/// The process that started this one.
#[cfg(unix)]
fn parent() -> Option<u32> {
    Some(std::os::unix::process::parent_id())
}

#[cfg(not(unix))]
const fn parent() -> Option<u32> {
    None
}

impl Leases {
    /// Announces to other processes that a model is loaded by this plan. The announcement lasts until the result is
    /// dropped. If the announcement fails, the load continues, and other processes do not see the model.
    pub(super) fn say_loaded(&self, plan: &Plan) -> Option<LoadedNotice> {
        let folder = self.named()?;
        let model = LoadedModel::now(plan, self.makes_room);
        let said = model.clone();
        let notice = self.ask(move |folder| Notice::write(&folder.join(LOADED), &said));
        let notice =
            notice.inspect_err(|error| tracing::debug!(%error, "other programs do not see this model")).ok()?;
        Some(LoadedNotice::new(notice, model, folder))
    }

    /// Announces a lack of memory to the pools in this user's other processes. The announcement lasts until the result
    /// is dropped. These pools may unload idle models, but send no answer. `None` if there are no leases, if the notice
    /// cannot be written, or if the folder does not answer within ten seconds.
    pub fn announce_lack(&self, lack: &MemoryLack) -> Option<LackNotice> {
        let folder = self.named()?;
        let lack = lack.clone();
        let notice = self.ask(move |folder| Notice::write(&folder.join(LACKING), &lack));
        let notice = notice.inspect_err(|error| tracing::debug!(%error, "other pools are not asked for memory"));
        notice.ok().map(|notice| LackNotice { notice: Some(notice), folder })
    }
}

/// The notice to other processes that a model is loaded, with the speed of its texts. The notice is withdrawn when this
/// value is dropped.
///
/// The generating thread only hands a number over, and a thread of the notice writes the file: a disk or a folder on
/// the network may take long.
#[derive(Debug)]
pub(super) struct LoadedNotice {
    said: Mutex<Said>,
    /// The folder of the leases.
    folder: PathBuf,
    /// The speeds to write; `None` once the notice is being withdrawn, or if the system has refused a thread.
    speeds: Option<SyncSender<f64>>,
    /// The thread that writes them, and then withdraws the notice.
    writer: Option<Writer>,
    /// The notice, if the system has refused a thread.
    _notice: Option<Arc<Notice>>,
}

#[derive(Debug)]
struct Writer {
    thread: JoinHandle<()>,
    /// Closed once the thread has withdrawn the notice.
    has_ended: Mutex<Receiver<()>>,
}

/// What was reported last.
#[derive(Debug)]
struct Said {
    /// The totals and the time of the last report. Before the first report, these are the totals and the time of the
    /// load.
    last: (Generated, Instant),
    /// Whether a speed was reported.
    is_any: bool,
}

impl LoadedNotice {
    fn new(notice: Notice, model: LoadedModel, folder: PathBuf) -> Self {
        let said = Mutex::new(Said { last: (Generated::default(), Instant::now()), is_any: false });
        let notice = Arc::new(notice);
        let written = Arc::clone(&notice);
        // One speed may wait while another one is written. Further speeds are left out, because newer ones follow soon.
        let (speeds, received) = sync_channel(1);
        let (ends, has_ended) = sync_channel(0);
        let thread = thread::Builder::new().name("autoplace-notice".to_owned()).spawn(move || {
            write_speeds(&written, model, &received);
            drop(written);
            drop(ends);
        });
        match thread {
            Ok(thread) => {
                let writer = Some(Writer { thread, has_ended: Mutex::new(has_ended) });
                Self { said, folder, speeds: Some(speeds), writer, _notice: None }
            }
            Err(error) => {
                tracing::debug!(%error, "other programs do not see this model's speed");
                Self { said, folder, speeds: None, writer: None, _notice: Some(notice) }
            }
        }
    }

    /// From now on, leaves out the tokens that the model generated before this placement.
    pub(super) fn begin(&self, total: Generated) {
        lock(&self.said).last = (total, Instant::now());
    }

    /// Reports the speed of the tokens since the last report. `total` counts all tokens that the model has generated.
    /// Because a report writes a file, nothing is reported until a pause has passed since the last report. Only the end
    /// of the first text (`is_end`) is reported without a pause. The file is written by another thread.
    pub(super) fn say_speed(&self, total: Generated, is_end: bool) {
        let mut said = lock(&self.said);
        let (before, at) = said.last;
        let is_first = is_end && !said.is_any;
        if at.elapsed() < SPEED_PAUSE && !is_first {
            return;
        }
        said.last = (total, Instant::now());
        let (tokens, time) = (total.tokens.saturating_sub(before.tokens), total.time.saturating_sub(before.time));
        if tokens > 0 && !time.is_zero() {
            said.is_any = true;
            // If the writer is behind, this speed is left out.
            let _ = self.speeds.as_ref().map(|speeds| speeds.try_send(tokens as f64 / time.as_secs_f64()));
        }
    }
}

impl LoadedNotice {
    /// Withdraws the notice. Returns whether this was done within the time.
    fn withdraw(&mut self, within: Duration) -> bool {
        // When its channel is closed, the thread writes no more speeds, removes the files, and ends.
        self.speeds = None;
        let Some(Writer { thread, has_ended }) = self.writer.take() else { return true };
        let has_ended = !matches!(lock(&has_ended).recv_timeout(within), Err(RecvTimeoutError::Timeout));
        if has_ended {
            drop(thread.join());
        }
        has_ended
    }
}

impl Drop for LoadedNotice {
    fn drop(&mut self) {
        if !self.withdraw(WITHDRAWN_WITHIN) {
            let folder = self.folder.display();
            tracing::warn!("{folder}: the folder does not answer; other programs may still see an unloaded model");
        }
    }
}

/// Writes each speed to the notice of this model, until the channel is closed.
fn write_speeds(notice: &Notice, mut model: LoadedModel, speeds: &Receiver<f64>) {
    for speed in speeds {
        model.measured_tokens_per_second = Some(speed);
        if let Err(error) = notice.rewrite(&model) {
            tracing::debug!(%error, "other programs do not see this model's speed");
        }
    }
}

/// A pool that lacks memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::exhaustive_structs, reason = "callers make it")]
pub struct MemoryLack {
    /// Identifies the pool on this machine.
    pub pool: String,
    /// The bytes that the pool lacks on each device.
    pub devices: Vec<DeviceBytes>,
}

/// The notice about a lack of memory, which other processes can read. The notice is withdrawn when this value is
/// dropped.
#[derive(Debug)]
#[must_use = "the notice is withdrawn when this is dropped"]
pub struct LackNotice {
    /// The notice, until it is withdrawn.
    notice: Option<Notice>,
    /// The folder of the leases.
    folder: PathBuf,
}

impl Drop for LackNotice {
    fn drop(&mut self) {
        let notice = self.notice.take();
        folder::tell(&self.folder, move || drop(notice));
    }
}

/// The models that processes of this user have loaded at present, the oldest first. These include models of this
/// program and of all other programs that use this library with the same folder of [leases](Leases). The list is empty
/// if the folder does not answer within ten seconds.
pub fn loaded_models(leases: &Leases) -> Vec<LoadedModel> {
    let mut models: Vec<LoadedModel> = read(leases, LOADED);
    models.sort_by_key(|model| (model.since, model.process));
    models
}

/// The lacks of memory that pools of this user announce at present. The list is empty if the folder of the leases does
/// not answer within ten seconds.
pub fn memory_lacks(leases: &Leases) -> Vec<MemoryLack> {
    read(leases, LACKING)
}

fn read<T: serde::de::DeserializeOwned + Send + 'static>(leases: &Leases, folder: &'static str) -> Vec<T> {
    leases.ask(move |leases| Ok(notice::read(&leases.join(folder)))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::test_plan::plan;
    use crate::plan::PlacementKind;

    #[test]
    fn the_limit_of_a_prompt_store_counts_with_the_host() {
        let on_host = |plan: &Plan| LoadedModel::now(plan, false).devices.last().unwrap().bytes;
        let mut stored = plan();
        let host = stored.placements.iter_mut().find(|placement| placement.kind == PlacementKind::Host).unwrap();
        host.headroom.prompt_store = 5 << 20;
        assert_eq!(on_host(&stored), on_host(&plan()) + (5 << 20));
    }

    #[test]
    fn a_loaded_model_and_a_lack_of_memory_are_seen_by_others_until_they_are_withdrawn() {
        let folder = tempfile::tempdir().unwrap();
        let leases = Leases::in_dir(folder.path().join("leases"));
        assert_eq!(loaded_models(&leases), []);
        let loaded = leases.say_loaded(&plan()).unwrap();
        let [model] = &loaded_models(&leases)[..] else { panic!() };
        assert_eq!((&model.name, model.process), (&plan().model.name, std::process::id()));
        assert_eq!((model.devices.len(), model.application, model.makes_room), (plan().placements.len(), None, false));
        assert_eq!(model.measured_tokens_per_second, None);
        // The model generated fifty tokens in half a second.
        let total = Generated { tokens: 50, time: Duration::from_millis(500), depths: 0 };
        loaded.say_speed(total, false);
        assert_eq!(loaded_models(&leases)[0].measured_tokens_per_second, None, "in the middle of a first text");
        loaded.say_speed(total, true);
        let is_written = || loaded_models(&leases)[0].measured_tokens_per_second.is_some();
        let begun = Instant::now();
        while !is_written() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the speed is never written");
            thread::yield_now();
        }
        assert_eq!(loaded_models(&leases)[0].measured_tokens_per_second, Some(100.0));
        // A second report follows only after a pause.
        loaded.say_speed(Generated { tokens: 60, ..total }, true);
        assert_eq!(loaded_models(&leases)[0].measured_tokens_per_second, Some(100.0));
        assert_eq!(memory_lacks(&leases), []);
        let lack = MemoryLack { pool: "1-1".into(), devices: vec![DeviceBytes { name: "card".into(), bytes: 5 }] };
        let said = leases.announce_lack(&lack).unwrap();
        assert_eq!(memory_lacks(&leases), std::slice::from_ref(&lack));
        drop((loaded, said));
        assert_eq!((loaded_models(&leases), memory_lacks(&leases)), (vec![], vec![]));
        // Without leases, nothing is announced and nothing is read.
        assert!(Leases::none().say_loaded(&plan()).is_none() && Leases::none().announce_lack(&lack).is_none());
        assert_eq!(loaded_models(&Leases::none()), []);
    }

    #[test]
    fn a_notice_whose_speed_is_still_to_be_written_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let leases = Leases::in_dir(folder.path().join("leases"));
        for tokens in 1..50 {
            let loaded = leases.say_loaded(&plan()).unwrap();
            loaded.say_speed(Generated { tokens, time: Duration::from_secs(1), depths: 0 }, true);
            drop(loaded);
            let loaded = leases.private_folder().unwrap().unwrap().join(LOADED);
            assert_eq!(std::fs::read_dir(loaded).unwrap().count(), 0, "{tokens}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_text_does_not_wait_for_the_file_with_its_speed() {
        let folder = tempfile::tempdir().unwrap();
        let leases = Leases::in_dir(folder.path().join("leases"));
        let notice = leases.say_loaded(&plan()).unwrap();
        let loaded = leases.private_folder().unwrap().unwrap().join(LOADED);
        let files = std::fs::read_dir(loaded).unwrap().map(|entry| entry.unwrap().path());
        let new = files.map(|path| path.with_extension("new")).next().unwrap();
        // A writer of a pipe waits for a reader.
        let made = std::process::Command::new("mkfifo").arg(&new).status().unwrap();
        assert!(made.success());
        for tokens in 1..10 {
            lock(&notice.said).last.1 -= 2 * SPEED_PAUSE;
            notice.say_speed(Generated { tokens, time: Duration::from_secs(tokens), depths: 0 }, false);
        }
        let written = std::fs::read_to_string(&new).unwrap();
        assert!(written.contains("\"measured_tokens_per_second\":1.0"), "{written}");
        drop(notice);
        assert_eq!(loaded_models(&leases), []);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_does_not_answer_keeps_neither_a_load_nor_a_pool_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let leases = Leases::in_dir(folder.path().join("leases"));
        let said = leases.say_loaded(&plan()).unwrap();
        let lack = MemoryLack { pool: "1-1".into(), devices: vec![DeviceBytes { name: "card".into(), bytes: 5 }] };
        let lacking = leases.announce_lack(&lack).unwrap();
        // Whoever reads this notice opens its lock for writing, and waits for a reader of the pipe.
        let pipe = leases.private_folder().unwrap().unwrap().join(LOADED).join("1-0.lock");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(pipe.with_extension("json"), "{}").unwrap();
        assert_eq!(loaded_models(&leases), []);
        // From now on, nobody waits.
        assert_eq!(memory_lacks(&leases), []);
        assert!(leases.announce_lack(&lack).is_none() && leases.say_loaded(&plan()).is_none());
        // Notices are withdrawn in any case.
        drop(lacking);
        std::fs::read_to_string(&pipe).unwrap();
        test_support::wait("answers", || loaded_models(&leases).len() == 1);
        assert_eq!(memory_lacks(&leases), []);
        drop(said);
        assert_eq!(loaded_models(&leases), []);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_does_not_answer_does_not_keep_a_model_from_ending() {
        let folder = tempfile::tempdir().unwrap();
        let leases = Leases::in_dir(folder.path().join("leases"));
        let mut notice = leases.say_loaded(&plan()).unwrap();
        let loaded = leases.private_folder().unwrap().unwrap().join(LOADED);
        let count = || std::fs::read_dir(&loaded).unwrap().count();
        let files = std::fs::read_dir(&loaded).unwrap().map(|entry| entry.unwrap().path());
        let new = files.map(|path| path.with_extension("new")).next().unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&new).status().unwrap().success());
        notice.say_speed(Generated { tokens: 5, time: Duration::from_secs(1), depths: 0 }, true);
        // The thread waits for a reader of the pipe.
        assert!(!notice.withdraw(Duration::from_millis(100)));
        drop(notice);
        assert!(count() > 0);
        // Once the folder answers, the thread withdraws the notice and ends.
        std::fs::read_to_string(&new).unwrap();
        let begun = Instant::now();
        while count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the notice is never withdrawn");
            thread::yield_now();
        }
    }
}
