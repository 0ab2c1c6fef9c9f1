//! Thousands of probes, good and bad, leave the process as it was: memory, descriptors, threads, devices,
//! environment and log.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::random_weights::DIMS;
use crate::synthetic::Sketch;
use autoplace::gguf::{Header, TensorType as T};
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{Backend, Device, Model, ModelParams};
use autoplace::load::{Breakdown, NativeProbe};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{ContextParams, FlashAttention, KvType, Place, Split, TensorOverride};

/// Probes of a round, and rounds. What a probe leaves behind is left in every round; pages that the allocator takes at
/// some time, in some.
const PROBES: usize = 1_000;
const ROUNDS: usize = 4;

/// A leak of 200 bytes per probe would show. The smallest thing that a probe makes, a tensor's description, has more.
const GROWTH: u64 = 200 * PROBES as u64;

/// Set by `cargo xtask sanitize`, which finds leaks by itself: a few hundred probes are enough for that, and memory
/// grows since it keeps what is freed.
const SANITIZED: &str = "AUTOPLACE_SANITIZED";

/// A model of the list with random weights, of which a probe needs none.
fn named(title: &str) -> Sketch {
    crate::random_weights::all().into_iter().find(|sketch| sketch.title() == title).unwrap()
}

/// The questions, in turns.
struct Asked {
    llama: NativeProbe,
    mamba: NativeProbe,
    broken: NativeProbe,
    gpus: Vec<Gpu>,
}

const QUESTIONS: usize = 9;

impl Asked {
    fn new(folder: &Path, gpus: Vec<Gpu>) -> Self {
        let probe = |sketch: Sketch| {
            let header = Header::open(sketch.write(folder)).unwrap();
            NativeProbe::new(&header).unwrap()
        };
        // Without a tensor that llama.cpp asks for.
        let mut broken = Sketch::new("llama", "half a block", DIMS);
        broken.ends(T::Q8_0, None);
        broken.norms(0);
        // Mamba has a state that a probe really allocates.
        let [llama, mamba] = ["llama tied q4_k", "mamba2 2 groups"].map(named);
        Self { llama: probe(llama), mamba: probe(mamba), broken: probe(broken), gpus }
    }

    /// Asks question `n`; `None` if the answer was, as it must be for the last four, an error.
    fn ask(&self, n: usize) -> Option<Breakdown> {
        let [large, other, tiny] = &self.gpus[..] else { panic!("three cards") };
        let gone = Gpu::new("gone").device("GONE0");
        let mut params = ContextParams::default();
        (params.n_ctx, params.n_batch, params.n_ubatch) = (256, 32, 32);
        params.mmap = n != 3;
        if n == 7 {
            (params.type_v, params.flash_attn) = (KvType::Q8_0, FlashAttention::Off);
        }
        let (both, split) = (Split::layers(2).tensor_split([1.0, 1.0]), Split::layers);
        let overridden = split(2).overrides([TensorOverride::new("ffn_.*", Place::Host)]);
        let (probe, gpus, split) = match n {
            0 => (&self.llama, vec![], split(0)),
            1 => (&self.llama, vec![large], split(1)),
            2 => (&self.llama, vec![large, other], both),
            3 => (&self.llama, vec![large], overridden),
            4 => (&self.mamba, vec![other], split(2)),
            // A card without room for the state.
            5 => (&self.mamba, vec![tiny], split(2)),
            // Refused by llama.cpp in the middle of the load, and of the context.
            6 => (&self.broken, vec![large], split(1)),
            7 => (&self.llama, vec![large], split(2)),
            // No such device.
            _ => (&self.llama, vec![&gone], split(2)),
        };
        probe.breakdown(&gpus, &params, &split).ok()
    }
}

/// What a probe could leave behind.
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

/// Bytes of memory that are this process's own.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find(|line| line.starts_with("RssAnon")).unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// Counts what llama.cpp says through `tracing`.
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

/// One test, since another one beside it would leave traces of its own.
#[test]
fn thousands_of_probes_leave_nothing_behind() {
    own_process!();
    tracing::subscriber::set_global_default(Ear).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cards =
        [gib(8), gib(8), 4096].map(|total| SimGpu::builder("SIM").total(total).rules(Rules::Cuda).register().unwrap());
    let gpus =
        cards.iter().map(|card| Gpu::new("SIM").device(card.device().name()).total(card.total()).backend("CUDA"));
    let asked = Asked::new(folder.path(), gpus.collect());

    // The first ones may leave what is made once per process.
    let answers: Vec<Option<Breakdown>> = (0..QUESTIONS).map(|n| asked.ask(n)).collect();
    let is_good = |n: usize| n < 5;
    assert!((0..QUESTIONS).all(|n| answers[n].is_some() == is_good(n)));
    for n in 0..PROBES / 5 {
        asked.ask(n % QUESTIONS);
    }
    HEARD.store(0, Ordering::Relaxed);
    let traces = Traces::now();

    let sanitized = std::env::var_os(SANITIZED).is_some();
    let (rounds, probes) = if sanitized { (1, PROBES / 5) } else { (ROUNDS, PROBES) };
    let growth = (0..rounds).map(|_| {
        let before = resident();
        for n in 0..probes {
            let question = n % QUESTIONS;
            assert_eq!(asked.ask(question), answers[question], "probe {n}");
        }
        resident().saturating_sub(before)
    });
    let growth: Vec<u64> = growth.collect();
    assert!(sanitized || growth.iter().any(|&bytes| bytes < GROWTH), "{growth:?} bytes");
    assert_eq!(Traces::now(), traces);

    // From several threads at once the answers are the same.
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (asked, answers) = (&asked, &answers);
            scope.spawn(move || {
                for n in (thread..).take(100) {
                    assert_eq!(asked.ask(n % QUESTIONS), answers[n % QUESTIONS]);
                }
            });
        }
    });
    // The system may still be taking the threads down.
    let threads = traces.threads;
    let now = Traces::now();
    assert_eq!(Traces { threads, ..now }, traces);
    for card in &cards {
        assert_eq!((card.used(), card.buffers()), (0, 0));
    }

    // Nobody was told anything; whoever loads a model in earnest is.
    assert_eq!(HEARD.load(Ordering::Relaxed), 0);
    drop(Model::load(folder.path().join("none.gguf"), ModelParams::default()).unwrap_err());
    let path = named("llama tied q4_k").write(folder.path());
    let params = ModelParams { devices: Some(Vec::new()), ..ModelParams::default() };
    Model::load(path, params).unwrap();
    assert!(HEARD.load(Ordering::Relaxed) > 100);
}
