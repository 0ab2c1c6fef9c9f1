//! Two processes that load at the same time: never do both count the same free bytes.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::native_support::demo_path;
use autoplace::llama_sys::sim::{Rules, SimGpu, SimGpuBuilder};
use autoplace::load::{Leases, Unleased};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{HostParts, Request};
use autoplace::{Model, ModelBuilder};
use serde::{Deserialize, Serialize};

/// What another process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    card: PathBuf,
    total: u64,
    /// None: in the user's runtime folder.
    leases: Option<PathBuf>,
    /// None: as long as it takes by default.
    patience: Option<Duration>,
    /// Never gets further than the begin of its load.
    stops_while_loading: bool,
}

/// What became of a load.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    layers: u32,
    text: String,
}

impl Task {
    fn in_folder(folder: &Path, card: &str, total: u64) -> Self {
        Self {
            card: folder.join(card),
            total,
            leases: Some(folder.join("leases")),
            patience: None,
            stops_while_loading: false,
        }
    }

    fn card(&self) -> SimGpu {
        // The same card for all, so with an address.
        card(self.total).pci_id("ffff:01:00.0").shared(&self.card).register().unwrap()
    }

    fn builder(&self) -> ModelBuilder {
        let leases = self.leases.as_ref().map_or(Leases::user(), Leases::in_dir);
        builder().leases(match self.patience {
            Some(patience) => leases.patience(patience),
            None => leases,
        })
    }

    fn load(&self) -> (Model, Outcome) {
        let model = self.builder().load().unwrap();
        let outcome = Outcome { layers: model.placement().n_gpu_layers, text: text(&model) };
        (model, outcome)
    }
}

fn card(total: u64) -> SimGpuBuilder {
    SimGpu::builder("SIM shared card").total(total).rules(Rules::Cuda).backend("CUDA")
}

/// The demo model, taking the card to the last byte if it must. With a larger context than this, more is for computing
/// than for layers.
fn builder() -> ModelBuilder {
    let request = Request::new().headroom(Headroom::Bytes(0)).n_ubatch(64);
    let request = request.host_parts(HostParts::None);
    Model::builder(demo_path()).request(request.n_ctx(512)).n_threads(1)
}

fn text(model: &Model) -> String {
    let generation = model.generate("And it came to pass").temp(0.0);
    generation.max_tokens(4).text().unwrap()
}

/// Another process.
struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

const TASK: &str = "AUTOPLACE_TEST_TASK";

impl Other {
    /// Starts it; it waits until it is told to [go](Self::go).
    fn start(task: &Task) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args("--exact leases::the_other_process --ignored --nocapture".split(' '))
            .env(TASK, serde_json::to_string(task).unwrap())
            .env("XDG_RUNTIME_DIR", task.card.parent().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut other = Self { child, output };
        other.said("ready:");
        other
    }

    fn go(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"go\n").unwrap();
    }

    /// What it says after this word; the test's own output is passed over.
    fn said(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.output.read_line(&mut line).unwrap();
            assert!(length > 0, "it ended before it said {word}");
            if let Some((_, said)) = line.split_once(word) {
                return said.trim().to_owned();
            }
        }
    }

    fn outcome(&mut self) -> Outcome {
        serde_json::from_str(&self.said("outcome:")).unwrap()
    }

    /// Lets it drop its model and end.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Waits for a line, or for the end.
fn wait() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
#[ignore = "the other process of these tests, by itself nothing"]
fn the_other_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let task: Task = serde_json::from_str(&task).unwrap();
    let _gpu = task.card();
    println!("\nready:");
    wait();
    if task.stops_while_loading {
        let load = task.builder().progress(|_| {
            println!("\nloading:");
            wait();
            true
        });
        let _ = load.load();
        return;
    }
    let (_model, outcome) = task.load();
    println!("\noutcome:{}", serde_json::to_string(&outcome).unwrap());
    wait();
}

/// What the demo model is by itself.
struct Known {
    layers: u32,
    /// What it says on the host.
    text: String,
}

/// The demo model, the size of a card with room for one and a half of it, and the layers that fit there where another
/// has all of its own.
fn one_and_a_half() -> (Known, u64, u32) {
    let load = || builder().leases(Leases::none()).load().unwrap();
    let text = text(&load());
    let gpu = card(mib(64)).register().unwrap();
    let all = load();
    let (layers, bytes) = (all.placement().n_gpu_layers, gpu.used());
    drop((all, gpu));
    let total = bytes + bytes / 2;
    let _gpu = card(total).taken(bytes).register().unwrap();
    let beside = builder().plan().unwrap().n_gpu_layers;
    assert!(0 < beside && beside < layers, "{beside}");
    (Known { layers, text }, total, beside)
}

#[cfg(unix)]
#[test]
fn a_load_that_others_do_not_see_says_so() {
    use std::os::unix::fs::PermissionsExt;

    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let task = Task::in_folder(folder.path(), "card", mib(64));
    let _gpu = task.card();
    let report = |leases: Leases| builder().leases(leases).load().unwrap().report();
    let leases = Leases::in_dir(task.leases.unwrap());
    assert_eq!(report(leases.clone()).unleased, None);
    assert_eq!(report(Leases::none()).unleased, Some(Unleased::Asked));
    // Who may write there may delete a lease that is held.
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path().join("leases"), open).unwrap();
    let report = report(leases);
    assert_matches!(&report.unleased, Some(Unleased::Failed(_)));
    let said = report.to_string();
    assert!(said.contains("without a lease") && said.contains("not this user's alone"), "{said}");
}

/// Two processes load at once onto a card with room for one and a half.
fn two_processes(rounds: u32) {
    own_process!();
    let (known, total, beside) = one_and_a_half();
    let folder = tempfile::tempdir().unwrap();
    for round in 0..rounds {
        let mut task = Task::in_folder(folder.path(), &format!("card {round}"), total);
        // Every other pair has no time to wait for each other, and counts what is leased.
        let waits = round % 2 == 0;
        task.patience = (!waits).then_some(Duration::ZERO);
        let gpu = task.card();
        let mut others = [Other::start(&task), Other::start(&task)];
        others.iter_mut().for_each(Other::go);
        let outcomes = others.each_mut().map(Other::outcome);
        let peak = gpu.shared_peak().unwrap();
        assert!(peak <= total, "round {round}: {peak} bytes of {total}");
        for outcome in &outcomes {
            assert_eq!(outcome.text, known.text, "round {round}: {outcome:?}");
        }
        let mut layers = outcomes.map(|outcome| outcome.layers);
        layers.sort_unstable();
        if waits {
            // As many as if the second had come much later.
            assert_eq!(layers, [beside, known.layers], "round {round}");
        } else {
            assert!(layers[0] <= beside, "round {round}: {layers:?}");
            assert_eq!(layers[1], known.layers, "round {round}");
        }
        others.into_iter().for_each(Other::end);
        assert_eq!(gpu.shared_used(), Some(0), "round {round}");
    }
    assert!(leases_in(&folder.path().join("leases")).is_empty());
}

fn leases_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".lease")).collect()
}

#[test]
fn two_processes_that_load_at_once_never_exceed_the_card() {
    two_processes(24);
}

#[test]
#[ignore = "minutes"]
fn two_processes_that_load_at_once_never_exceed_the_card_in_1000_rounds() {
    two_processes(1000);
}

#[test]
fn what_a_load_in_another_process_is_about_to_take_is_not_free_until_that_process_is_gone() {
    own_process!();
    let (known, total, _) = one_and_a_half();
    let folder = tempfile::tempdir().unwrap();
    let mut task = Task::in_folder(folder.path(), "card", total);
    task.patience = Some(Duration::ZERO);
    let gpu = task.card();
    let mut other = Other::start(&Task { stops_while_loading: true, ..task.clone() });
    other.go();
    other.said("loading:");

    let (model, outcome) = task.load();
    assert!(outcome.layers < known.layers, "{outcome:?}");
    assert_eq!(outcome.text, known.text);
    let notes = &model.machine().notes;
    let is_said = notes.iter().any(|note| note.text.contains("other loads"));
    assert!(is_said, "{notes:?}");
    drop(model);

    other.kill();
    let (model, outcome) = task.load();
    assert_eq!(outcome.layers, known.layers);
    assert!(gpu.shared_peak().unwrap() <= total);
    drop(model);
}

#[test]
#[cfg(unix)]
fn unless_told_otherwise_loads_meet_in_the_users_runtime_folder() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let mut task = Task::in_folder(folder.path(), "card", mib(64));
    task.leases = None;
    task.stops_while_loading = true;
    let mut other = Other::start(&task);
    other.go();
    other.said("loading:");
    assert_eq!(leases_in(&folder.path().join("autoplace")).len(), 1);
    other.end();
    assert!(leases_in(&folder.path().join("autoplace")).is_empty());
}

#[test]
fn threads_of_one_process_that_load_at_once_never_exceed_the_card() {
    own_process!();
    let (known, total, beside) = one_and_a_half();
    let folder = tempfile::tempdir().unwrap();
    let task = Task::in_folder(folder.path(), "card", total);
    let gpu = task.card();
    for _ in 0..5 {
        let loaded = std::thread::scope(|scope| {
            let loads = [(); 2].map(|()| scope.spawn(|| task.load()));
            loads.map(|load| load.join().unwrap())
        });
        let mut layers = [0, 1].map(|n: usize| loaded[n].1.layers);
        layers.sort_unstable();
        assert_eq!(layers, [beside, known.layers]);
        assert!(loaded.iter().all(|(_, outcome)| outcome.text == known.text));
    }
    assert!(gpu.peak() <= total);
}
