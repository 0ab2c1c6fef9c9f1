//! If two processes load at the same time, they never count the same free bytes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
#[cfg(target_os = "linux")]
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sim_support::{card, card_of};
use autoplace::llama_sys::sim::SimGpu;
use autoplace::load::{Leases, Stage};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{HostParts, Request};
use autoplace::{Model, ModelBuilder};
use serde::{Deserialize, Serialize};
use test_support::demo_path;

/// What another process must do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The file of the simulated card; with `None`, the machine's own card is used.
    card: Option<PathBuf>,
    total: u64,
    /// The folder for the leases; with `None`, it is the user's runtime folder.
    leases: Option<PathBuf>,
    /// How long the load waits for others; with `None`, the default.
    patience: Option<Duration>,
    /// Whether the process stops when its load begins.
    stops_while_loading: bool,
}

/// The outcome of a load: the number of layers on the card, and a text.
type Outcome = (u32, String);

impl Task {
    fn in_folder(folder: &Path, card: &str, total: u64) -> Self {
        let (card, leases) = (Some(folder.join(card)), Some(folder.join("leases")));
        Self { card, total, leases, patience: None, stops_while_loading: false }
    }

    /// A load in another process. It does not wait for other loads, and the process stops when the load begins.
    #[cfg(feature = "vulkan")]
    pub(crate) fn of_a_driver(folder: &Path) -> Self {
        let (leases, patience) = (Some(folder.join("leases")), Some(Duration::ZERO));
        Self { card: None, total: 0, leases, patience, stops_while_loading: true }
    }

    fn card(&self) -> SimGpu {
        // The address is the same in all processes, and so they see the same card.
        let shared = self.card.as_ref().unwrap();
        card_of(self.total).pci_id("ffff:01:00.0").shared(shared).register().unwrap()
    }

    pub(crate) fn builder(&self) -> ModelBuilder {
        let leases = self.leases.as_ref().map_or(Leases::user(), Leases::in_dir);
        builder().leases(match self.patience {
            Some(patience) => leases.patience(patience),
            None => leases,
        })
    }

    fn load(&self) -> (Model, Outcome) {
        let model = self.builder().load().unwrap();
        let outcome = (model.placement().n_gpu_layers, text(&model));
        (model, outcome)
    }
}

/// The demo model. It may use all bytes of the card. In a larger context, the compute buffers would need more memory
/// than the layers.
fn builder() -> ModelBuilder {
    let request = Request::new().headroom(Headroom::Bytes(0)).n_ubatch(64).host_parts(HostParts::None);
    Model::builder(demo_path()).request(request.n_ctx(512)).n_threads(1)
}

fn text(model: &Model) -> String {
    model.generate("And it came to pass").temp(0.0).max_tokens(4).text().unwrap()
}

/// Another process, and what it must do.
pub(crate) struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

const TASK: &str = "AUTOPLACE_TEST_TASK";

impl Other {
    pub(crate) fn start(task: &Task) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args("--exact leases::the_other_process --ignored --nocapture".split(' '))
            .env(TASK, serde_json::to_string(task).unwrap())
            .envs(task.card.iter().map(|card| ("XDG_RUNTIME_DIR", card.parent().unwrap())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The rest of the line that begins with this word. Lines that the test itself has printed are skipped.
    pub(crate) fn said(&mut self, word: &str) -> String {
        let mut lines = (&mut self.output).lines().map(Result::unwrap);
        let said = lines.find_map(|line| line.split_once(word).map(|(_, said)| said.to_owned()));
        said.unwrap_or_else(|| panic!("it ended before it said {word}"))
    }

    /// Lets the process drop its model, and waits until it has ended.
    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
#[ignore = "the other process of these tests, by itself nothing"]
fn the_other_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    let _gpu = task.card.as_ref().map(|_| task.card());
    // Waits until the process may end.
    let wait = || drop(std::io::stdin().read_line(&mut String::new()));
    if task.stops_while_loading {
        let load = task.builder().progress(move |progress| {
            if progress.stage == Stage::Weights {
                println!("\nloading:");
                wait();
            }
            true
        });
        let _ = load.load();
        return;
    }
    let (_model, outcome) = task.load();
    println!("\noutcome:{}", serde_json::to_string(&outcome).unwrap());
    wait();
}

/// Returns three things: the layers and the text of the demo model on the host; the size of a card that has room for
/// one and a half of this model; and how many layers fit on that card together with a whole model.
fn one_and_a_half() -> (Outcome, u64, u32) {
    let load = || builder().leases(Leases::none()).load().unwrap();
    let text = text(&load());
    let gpu = card(mib(64));
    let all = load();
    let (layers, bytes) = (all.placement().n_gpu_layers, gpu.used());
    drop((all, gpu));
    let total = bytes + bytes / 2;
    let _gpu = card_of(total).taken(bytes).register().unwrap();
    let beside = builder().plan().unwrap().n_gpu_layers;
    assert!(0 < beside && beside < layers, "{beside}");
    ((layers, text), total, beside)
}

#[cfg(unix)]
#[test]
fn a_load_reports_that_others_cannot_see_it() {
    use std::os::unix::fs::PermissionsExt;

    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let task = Task::in_folder(folder.path(), "card", mib(64));
    let _gpu = task.card();
    let report = || task.builder().load().unwrap().report();
    assert_eq!(report().unleased, None);
    // If others can write to the folder, it is refused, because they could block the card.
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path().join("leases"), open).unwrap();
    let said = report().to_string();
    assert!(said.contains("without a lease") && said.contains("to this user alone"), "{said}");
}

#[test]
fn two_processes_that_load_at_once_never_exceed_the_card() {
    own_process!();
    let ((all, text), total, beside) = one_and_a_half();
    let folder = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let mut task = Task::in_folder(folder.path(), &format!("card {round}"), total);
        // In every second pair, the loads do not wait for each other. In such a pair, the second load gets only the
        // memory that is left on the card, or nothing.
        let waits = round % 2 == 0;
        task.patience = (!waits).then_some(Duration::ZERO);
        let gpu = task.card();
        let mut others = [Other::start(&task), Other::start(&task)];
        let outcomes = others.each_mut().map(|other| serde_json::from_str::<Outcome>(&other.said("outcome:")).unwrap());
        let peak = gpu.shared_peak().unwrap();
        assert!(peak <= total, "round {round}: {peak} bytes of {total}");
        assert!(outcomes.iter().all(|outcome| outcome.1 == text), "round {round}: {outcomes:?}");
        let mut layers = outcomes.map(|outcome| outcome.0);
        layers.sort_unstable();
        assert_eq!(layers[1], all, "round {round}");
        // If a load waits, it gets as many layers as if it had started much later.
        assert!(layers[0] == beside || (!waits && layers[0] < beside), "round {round}: {layers:?}");
        others.into_iter().for_each(Other::end);
        assert_eq!(gpu.shared_used(), Some(0), "round {round}");
    }
}

#[test]
fn memory_that_another_process_is_loading_into_is_not_free_until_it_is_gone() {
    own_process!();
    let (known, total, _) = one_and_a_half();
    let folder = tempfile::tempdir().unwrap();
    let mut task = Task::in_folder(folder.path(), "card", total);
    task.patience = Some(Duration::ZERO);
    let gpu = task.card();
    let mut other = Other::start(&Task { stops_while_loading: true, ..task.clone() });
    other.said("loading:");

    let (model, (layers, text)) = task.load();
    assert_eq!((layers, &text), (0, &known.1));
    let notes = &model.machine().notes;
    assert!(notes.iter().any(|note| note.text.contains("another load")), "{notes:?}");
    drop(model);

    other.child.kill().unwrap();
    other.child.wait().unwrap();
    assert_eq!(task.load().1.0, known.0);
    assert!(gpu.shared_peak().unwrap() <= total);
}

/// The threads of this process that work in folders, by their numbers.
#[cfg(target_os = "linux")]
fn folder_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_one = |task: &std::fs::DirEntry| {
        // Linux shows 15 characters of a name.
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "autoplace-folde\n")
    };
    tasks.filter(is_one).map(|task| task.file_name().into_string().unwrap()).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_load_that_waits_for_another_tries_again_in_one_thread() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let task = Task::in_folder(folder.path(), "card", mib(64));
    let _gpu = task.card();
    let mut other = Other::start(&Task { stops_while_loading: true, ..task.clone() });
    other.said("loading:");
    let looks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&looks);
    let load = task.builder().progress(move |progress| {
        let mut seen = seen.lock().unwrap();
        if progress.stage == Stage::Wait {
            seen.push(folder_threads());
        }
        seen.len() < 20
    });
    assert!(load.load().is_err(), "it was cancelled");
    let looks = looks.lock().unwrap();
    assert!(looks[0].len() == 1 && looks[..] == vec![looks[0].clone(); 20], "{looks:?}");
    assert_eq!(folder_threads(), [] as [String; 0]);
    other.end();
}

#[test]
#[cfg(unix)]
fn by_default_loads_meet_in_the_users_runtime_folder() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let mut task = Task::in_folder(folder.path(), "card", mib(64));
    (task.leases, task.stops_while_loading) = (None, true);
    let mut other = Other::start(&task);
    other.said("loading:");
    let lease = std::fs::File::open(folder.path().join("autoplace/ffff-01-00-0.lease")).unwrap();
    assert!(lease.try_lock_shared().is_err(), "it is locked");
    other.end();
    lease.lock_shared().unwrap();
}

#[test]
fn threads_of_one_process_that_load_at_once_never_exceed_the_card() {
    own_process!();
    let ((all, text), total, beside) = one_and_a_half();
    let folder = tempfile::tempdir().unwrap();
    let task = Task::in_folder(folder.path(), "card", total);
    let gpu = task.card();
    for _ in 0..5 {
        let loaded =
            std::thread::scope(|scope| [(); 2].map(|()| scope.spawn(|| task.load())).map(|load| load.join().unwrap()));
        assert!(loaded.iter().all(|(_, outcome)| outcome.1 == text));
        let mut layers = loaded.map(|(_, outcome)| outcome.0);
        layers.sort_unstable();
        assert_eq!(layers, [beside, all]);
    }
    assert!(gpu.peak() <= total);
}
