//! After thousands of probes, whether they succeed or fail, the process is unchanged: its memory, descriptors, threads,
//! devices, environment and log.

use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::text_support::status;
use autoplace::gguf::{Header, TensorType as T};
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{Backend, Device, Model, ModelParams};
use autoplace::load::{Breakdown, NativeProbe};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{ContextParams, FlashAttention, KvType, Place, Split, TensorOverride};
use test_support::random_weights::DIMS;
use test_support::settled;
use test_support::synthetic::Sketch;

/// The number of probes in a round, and the number of rounds. A leak can be seen in every round, but the allocator's
/// memory grows only in some rounds.
const PROBES: usize = 1_000;
const ROUNDS: usize = 4;

/// Memory that grows by at least this many bytes in every round is a leak. A leak of 200 bytes in each probe would
/// reach this number, and the smallest object of a probe, the description of a tensor, has more than 200 bytes.
const GROWTH: u64 = 200 * PROBES as u64;

/// A variable that `cargo xtask sanitize` sets. The sanitizer itself finds leaks, so some hundred probes are enough. It
/// does not give freed memory back, so memory grows.
const SANITIZED: &str = "AUTOPLACE_SANITIZED";

/// The model with this title in the list. Its random weights are not needed.
fn named(title: &str) -> Sketch {
    test_support::random_weights::all().into_iter().find(|sketch| sketch.title() == title).unwrap()
}

/// One of the probes. They run in turn.
struct Question<'a> {
    probe: &'a NativeProbe,
    gpus: Vec<&'a Gpu>,
    params: ContextParams,
    split: Split,
}

impl<'a> Question<'a> {
    fn new(probe: &'a NativeProbe, gpus: &[&'a Gpu], split: Split) -> Self {
        let mut params = ContextParams::default();
        (params.n_ctx, params.n_batch, params.n_ubatch) = (256, 32, 32);
        Self { probe, gpus: gpus.to_vec(), params, split }
    }

    fn ask(&self) -> Option<Breakdown> {
        self.probe.breakdown(&self.gpus, &self.params, &self.split).ok()
    }
}

/// The resources that a probe could leak.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    descriptors: usize,
    threads: usize,
    devices: Vec<String>,
    environment: Vec<(OsString, OsString)>,
    temporary: usize,
}

impl Traces {
    fn now() -> Self {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        let devices = Backend::init().unwrap().devices();
        let temporary = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            devices: devices.iter().map(Device::name).collect(),
            environment: std::env::vars_os().collect(),
            temporary: temporary.filter(|entry| entry.file_name().to_string_lossy().contains("skeleton")).count(),
        }
    }
}

/// Counts the lines of llama.cpp's log that reach `tracing`.
struct Ear;

static HEARD: AtomicUsize = AtomicUsize::new(0);

impl tracing::Subscriber for Ear {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        let target = metadata.target();
        target.starts_with("llama") || target.starts_with("ggml")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        HEARD.fetch_add(1, Ordering::Relaxed);
    }
}

/// There is only one test here, because another test that runs at the same time would leave traces of its own.
#[test]
fn thousands_of_probes_leave_nothing_behind() {
    // Its temporary folder is its own, because other tests leave files in the usual one meanwhile.
    let temporary = tempfile::tempdir().unwrap();
    if test_support::own_process::ran_with(&[("TMPDIR", temporary.path().to_str().unwrap())]) {
        return;
    }
    tracing::subscriber::set_global_default(Ear).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cards =
        [gib(8), gib(8), 4096].map(|total| SimGpu::builder("SIM").total(total).rules(Rules::Cuda).register().unwrap());
    let [large, other, tiny] =
        cards.each_ref().map(|card| Gpu::new("SIM").device(card.device().name()).total(card.total()).backend("CUDA"));
    let gone = Gpu::new("gone").device("GONE0");
    // In this model, a tensor is missing that llama.cpp requires.
    let mut broken = Sketch::new("llama", "half a block", DIMS);
    broken.ends(T::Q8_0, None);
    broken.norms(0);
    // Mamba has a recurrent state.
    let [llama, mamba, broken] = [named("llama tied q4_k"), named("mamba2 2 groups"), broken].map(|sketch| {
        let header = Header::open(sketch.write(folder.path())).unwrap();
        NativeProbe::new(&header).unwrap()
    });
    let split = Split::layers;
    let mut questions = [
        Question::new(&llama, &[], split(0)),
        Question::new(&llama, &[&large], split(1)),
        Question::new(&llama, &[&large, &other], split(2).tensor_split([1.0, 1.0])),
        Question::new(&llama, &[&large], split(2).overrides([TensorOverride::new("ffn_.*", Place::Host)])),
        Question::new(&mamba, &[&other], split(2)),
        // There is no room for the state on this card, but a probe does not allocate it.
        Question::new(&mamba, &[&tiny], split(2)),
        // All questions from here on lead to errors. llama.cpp refuses them in the middle of the load, or while it
        // creates the context.
        Question::new(&broken, &[&large], split(1)),
        Question::new(&llama, &[&large], split(2)),
        // This device does not exist.
        Question::new(&llama, &[&gone], split(2)),
    ];
    questions[3].params.mmap = false;
    (questions[7].params.type_v, questions[7].params.flash_attn) = (KvType::Q8_0, FlashAttention::Off);
    let ask = |n: usize| questions[n % questions.len()].ask();

    // The first probes may make objects that every process has once.
    let answers: Vec<Option<Breakdown>> = questions.iter().map(Question::ask).collect();
    assert!(answers.iter().enumerate().all(|(n, answer)| answer.is_some() == (n < 6)));
    for n in 0..PROBES / 5 {
        ask(n);
    }
    HEARD.store(0, Ordering::Relaxed);
    let traces = settled(Traces::now);

    let sanitized = std::env::var_os(SANITIZED).is_some();
    let (rounds, probes) = if sanitized { (1, PROBES / 5) } else { (ROUNDS, PROBES) };
    // How many bytes of anonymous memory this process has.
    let resident = || status("RssAnon").unwrap() << 10;
    let mut growth = Vec::new();
    // If there were a leak, memory would grow in every round.
    let is_level = (0..rounds).any(|_| {
        let before = resident();
        for n in 0..probes {
            assert_eq!(ask(n), answers[n % answers.len()], "probe {n}");
        }
        growth.push(resident().saturating_sub(before));
        growth.last().is_some_and(|&bytes| bytes < GROWTH)
    });
    assert!(sanitized || is_level, "{growth:?} bytes");
    assert_eq!(settled(Traces::now), traces);

    // If several threads ask at once, they get the same answers.
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (ask, answers) = (&ask, &answers);
            scope.spawn(move || {
                for n in (thread..).take(100) {
                    assert_eq!(ask(n), answers[n % answers.len()]);
                }
            });
        }
    });
    assert_eq!(settled(Traces::now), traces);
    for card in &cards {
        assert_eq!((card.used(), card.buffers()), (0, 0));
    }

    // The probes have logged nothing, but a real load does log lines.
    assert_eq!(HEARD.load(Ordering::Relaxed), 0);
    drop(Model::load(folder.path().join("none.gguf"), ModelParams::default()).unwrap_err());
    let path = named("llama tied q4_k").write(folder.path());
    let params = ModelParams { devices: Some(Vec::new()), ..ModelParams::default() };
    Model::load(path, params).unwrap();
    assert!(HEARD.load(Ordering::Relaxed) > 100);
}
