//! Cards that this process and its workers share, and the demo model.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::Leases;
use autoplace::machine::{Gpu, Host, Machine};
use autoplace::memory::Headroom;
use autoplace::plan::Request;
use autoplace::{Isolation, Model, OnDeath, WorkerProcess, generate};
use autoplace_pool::{ModelHandle, ModelSpec, Pool, PoolBuilder};
use tempfile::TempDir;
use test_support::demo_path;

/// The cards of a worker: `file=bytes` for each, with `;` between.
const CARDS: &str = "AUTOPLACE_TEST_CARDS";

pub(crate) const PROMPT: &str = "And it came to pass";
pub(crate) const TOKENS: usize = 24;

/// The text of the model alone.
pub(crate) static TEXT: LazyLock<String> = LazyLock::new(|| {
    let model = alone();
    model.generate(PROMPT).temp(0.0).max_tokens(TOKENS).text().unwrap()
});

/// The demo model on the host.
pub(crate) fn alone() -> Model {
    let host = Machine::new(Host::new(4 << 30));
    Model::builder(demo_path()).request(request()).machine(host).n_threads(1).load().unwrap()
}

/// A small context, without the options that round differently on a card.
pub(crate) fn request() -> Request {
    let mut request = Request::new().headroom(Headroom::Bytes(256 << 10)).n_ctx(512).n_ubatch(64);
    request.params.repack = false;
    request
}

pub(crate) fn spec(name: &str) -> ModelSpec {
    ModelSpec::new(name, demo_path()).request(request())
}

/// A simulated card whose memory processes share through a file.
pub(crate) struct Card {
    sim: SimGpu,
    total: u64,
    file: PathBuf,
    _folder: TempDir,
}

impl Card {
    pub(crate) fn new(total: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("card");
        Self { sim: register(file.clone(), total, 0), total, file, _folder: folder }
    }

    /// Bytes that all processes together take.
    pub(crate) fn used(&self) -> u64 {
        self.sim.shared_used().unwrap()
    }

    pub(crate) fn peak(&self) -> u64 {
        self.sim.shared_peak().unwrap()
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Takes this number of bytes as another program would.
    pub(crate) fn take(&self, bytes: u64) {
        self.sim.set_taken(bytes);
    }

    pub(crate) fn taken(&self) -> u64 {
        self.sim.taken()
    }
}

fn register(file: PathBuf, total: u64, index: usize) -> SimGpu {
    let card = SimGpu::builder(format!("SIM card {index}")).total(total).rules(Rules::Cuda).backend("CUDA");
    card.pci_id(format!("ffff:{:02x}:00.0", index + 1)).shared(file).register().unwrap()
}

/// The cards of this process if it is a worker.
pub(crate) fn cards_of_a_worker() -> Vec<SimGpu> {
    let cards = std::env::var(CARDS).unwrap_or_default();
    let cards = cards.split(';').filter_map(|card| card.split_once('=')).enumerate();
    cards.map(|(index, (file, total))| register(file.into(), total.parse().unwrap(), index)).collect()
}

/// A pool in workers that have these cards.
pub(crate) fn builder(cards: &[&Card]) -> PoolBuilder {
    let list: Vec<String> = cards.iter().map(|card| format!("{}={}", card.file.display(), card.total)).collect();
    let worker = WorkerProcess::own_executable().env(CARDS, list.join(";")).on_death(OnDeath::Resume { attempts: 2 });
    Pool::builder()
        .isolation(Isolation::Process(worker))
        .look_every(Duration::from_millis(500))
        .patience(Duration::from_secs(120))
        // Pools of other tests are not asked for memory.
        .leases(Leases::none())
        .configure(|_, builder| builder.n_threads(1).without_learning())
}

/// Bytes that the model alone takes of a card, with its headroom.
pub(crate) fn held_alone() -> u64 {
    let card = Card::new(1 << 30);
    let model = Model::builder(demo_path()).request(request()).n_threads(1).without_learning().load().unwrap();
    assert!(model.placement().full_offload);
    card.used() + (256 << 10)
}

/// A machine whose host has no room for another model.
pub(crate) fn machine_without_room(card: &Card) -> Machine {
    let device = card.sim.device().name();
    let gpu = Gpu::new("SIM card 0").device(device).backend("CUDA").total(card.total).free(card.sim.free());
    Machine::new(Host::new(1 << 30).available(330 << 20)).with_gpu(gpu)
}

pub(crate) fn text(model: &ModelHandle) -> Result<String, generate::Error> {
    model.generate(PROMPT).temp(0.0).max_tokens(TOKENS).text()
}

/// Waits until the condition holds; it must hold soon.
#[track_caller]
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never holds");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The processes that this one has started.
pub(crate) fn workers() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Kills a process, unless it has ended already.
#[cfg(unix)]
pub(crate) fn kill(process: u32) {
    use rustix::process::{Pid, Signal, kill_process};

    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    let _ = kill_process(pid, Signal::KILL);
}
