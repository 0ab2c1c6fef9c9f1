//! A program whose `main` begins with `worker_main` can be its own worker. If its `main` begins in another way, it gets
//! an error, and starts no other process.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use autoplace::generate::GenerateRequest;
use autoplace::llama_sys::sim::SimGpu;
use autoplace::machine::mib;
use autoplace::memory::{Headroom, Place, TensorOverride};
use autoplace::plan::{GpuLayers, MoeCache, Request};
use autoplace::{Isolation, Model, ModelBuilder, OnDeath, WorkerProcess, load, worker};
use libtest_mimic::{Arguments, Failed, Trial};
use test_support::demo_path;
use tracing::field::Field;
use tracing::{Event, Metadata, Subscriber, span};

/// With this variable, a worker aborts in the middle of its load, or hangs there forever. It does so only once. It
/// makes a file, which records that this has happened.
const IN_LOAD: &str = "AUTOPLACE_TEST_IN_LOAD";
const MARK: &str = "AUTOPLACE_TEST_MARK";
const ABORT: &str = "abort";
const HANG: &str = "hang";
/// With this variable, a process does not call `worker_main`. Each process that does not call it writes a line to a
/// file.
const NO_GUARD: &str = "AUTOPLACE_TEST_NO_GUARD";
/// With this variable, a process is an application whose worker hangs.
const APPLICATION: &str = "AUTOPLACE_TEST_APPLICATION";

type Test = fn() -> Result<(), Failed>;

fn main() {
    // As in an application, every process has a GPU of its own.
    let _card = SimGpu::builder("SIM card").total(mib(64)).register().expect("it is the first");
    if let Ok(what) = std::env::var(IN_LOAD) {
        let mark = PathBuf::from(std::env::var_os(MARK).expect("set with the other"));
        if !mark.exists() {
            tracing::subscriber::set_global_default(InLoad { mark, hangs: what == HANG }).expect("it is the first");
        }
    }
    if let Some(runs) = std::env::var_os(NO_GUARD) {
        unguarded(Path::new(&runs));
    }
    autoplace::worker_main();
    if let Some(mark) = std::env::var_os(APPLICATION) {
        let loaded = builder(in_load(HANG, Path::new(&mark))).load();
        panic!("the worker hangs: {loaded:?}");
    }
    let mut tests: Vec<(&str, Test)> = vec![
        ("the_application_is_its_own_worker", own),
        ("a_worker_has_the_same_cache_of_experts_and_text", experts),
        ("an_application_without_the_guard_starts_nothing_and_lives_on", without_guard),
        ("a_worker_without_the_guard_is_recognised", worker_without_guard),
        ("an_abort_during_the_load_is_an_error_or_goes_unnoticed", loading),
    ];
    #[cfg(target_os = "linux")]
    tests.push(("a_worker_that_computes_without_end_is_killed_after_its_application", orphan));
    let tests = tests.into_iter().map(|(name, test)| Trial::test(name, test)).collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

/// The application's own subscriber. While a model is loaded, it receives the lines that llama.cpp logs.
struct InLoad {
    mark: PathBuf,
    hangs: bool,
}

impl Subscriber for InLoad {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut |_: &Field, value: &dyn fmt::Debug| line += &format!("{value:?}"));
        if !line.contains("load_tensors") {
            return;
        }
        fs::write(&self.mark, format!("{}\n", process::id())).expect("its folder is there");
        if !self.hangs {
            eprintln!("GGML_ASSERT(on purpose) failed");
            process::abort();
        }
        loop {
            std::thread::park();
        }
    }
}

/// An application whose `main` does not call `worker_main`. It tries to load a model in a worker, and survives.
fn unguarded(runs: &Path) -> ! {
    let mut file = OpenOptions::new().create(true).append(true).open(runs).expect("a file");
    writeln!(file, "run").expect("it is written");
    process::exit(match there().load() {
        Err(load::Error::Worker(worker::Error::NoWorkerMain)) => 4,
        Err(load::Error::Worker(worker::Error::Nested)) => {
            eprintln!("nested");
            5
        }
        other => {
            eprintln!("{other:?}");
            6
        }
    })
}

fn builder(process: WorkerProcess) -> ModelBuilder {
    Model::builder(demo_path()).headroom(Headroom::Bytes(0)).n_threads(1).isolation(Isolation::Process(process))
}

/// A load in a worker. The worker is this program itself.
fn there() -> ModelBuilder {
    builder(WorkerProcess::own_executable())
}

fn describe(model: &Model) -> GenerateRequest {
    model.generate("And it came to pass").seed(9).temp(1.1).repeat_penalty(1.1).max_tokens(24)
}

fn own() -> Result<(), Failed> {
    let (here, there) = (there().isolation(Isolation::None).load()?, there().load()?);
    let layers = [&there, &here].map(|model| model.placement().n_gpu_layers);
    assert!(layers[0] > 0 && layers[0] == layers[1], "{layers:?}");
    assert_eq!(describe(&there).text()?, describe(&here).text()?);
    Ok(())
}

/// Loads a model in this process, and again in the worker. All experts are on the host, and the card has a cache for
/// them.
fn experts() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let mut sketches = test_support::random_weights::all().into_iter();
    let mut sketch = sketches.find(|sketch| sketch.arch == "qwen3moe").expect("it is listed").in_floats();
    sketch.vocabulary();
    let path = test_support::random_weights::write(&sketch, folder.path());
    let request = Request::new().n_ctx(256).headroom(Headroom::Bytes(256 << 10)).n_gpu_layers(GpuLayers::All);
    let request = request.overrides(vec![TensorOverride::new("_exps", Place::Host)]).moe_cache(MoeCache::Bytes(mib(9)));
    let load = |isolation| Model::builder(&path).request(request.clone()).n_threads(1).isolation(isolation).load();
    let text = |model: &Model| model.generate(vec![7, 300, 45, 12]).seed(3).temp(0.5).max_tokens(20).stream();
    // One load begins when the other has ended, because each needs the whole card.
    let here = load(Isolation::None)?;
    let mut expected = text(&here)?;
    let words: Vec<String> = expected.by_ref().collect::<Result<_, _>>()?;
    let (plan, report, hits) = (here.placement(), here.report(), expected.statistics().expert_hits);
    assert!(plan.moe_cache.is_some() && hits > 0, "{plan}");
    drop((expected, here));
    let there = load(Isolation::Process(WorkerProcess::own_executable()))?;
    let mut told = text(&there)?;
    let said: Vec<String> = told.by_ref().collect::<Result<_, _>>()?;
    assert_eq!((said, told.statistics().expert_hits), (words, hits));
    assert_eq!(there.placement().moe_cache, plan.moe_cache);
    assert_eq!(there.report().gpus[0].allocated, report.gpus[0].allocated);
    Ok(())
}

fn without_guard() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let runs = dir.path().join("runs");
    assert_eq!(Command::new(std::env::current_exe()?).env(NO_GUARD, &runs).status()?.code(), Some(4));
    assert_eq!(fs::read_to_string(runs)?, "run\n");
    Ok(())
}

fn worker_without_guard() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let process = WorkerProcess::own_executable().env(NO_GUARD, dir.path().join("runs"));
    match builder(process).load() {
        Err(load::Error::Worker(worker::Error::NotAWorker { status, log, .. })) => {
            assert_eq!(status.and_then(|status| status.code()), Some(5));
            assert_eq!(log.last().map(String::as_str), Some("nested"));
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

#[cfg(target_os = "linux")]
fn orphan() -> Result<(), Failed> {
    use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpid};

    // If a process loses its parent, it becomes a child of this process. So this process can read its exit status.
    set_child_subreaper(Some(getpid()))?;
    let dir = tempfile::tempdir()?;
    let mark = dir.path().join("mark");
    let mut application = Command::new(std::env::current_exe()?).env(APPLICATION, &mark).spawn()?;
    let worker = loop {
        match fs::read_to_string(&mark) {
            Ok(id) if id.ends_with('\n') => break id.trim().parse()?,
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
        assert!(application.try_wait()?.is_none(), "the application has ended");
    };
    application.kill()?;
    application.wait()?;
    let (_, status) = waitpid(Pid::from_raw(worker), WaitOptions::empty())?.expect("it was waited for");
    // In a normal exit, libraries would run exit handlers while the other thread is still computing.
    assert_eq!(status.terminating_signal(), Some(Signal::KILL.as_raw()), "{status:?}");
    Ok(())
}

/// A worker that does `what` in the middle of its load, but only once. The file `mark` records that it has done so.
fn in_load(what: &str, mark: &Path) -> WorkerProcess {
    WorkerProcess::own_executable().env(IN_LOAD, what).env(MARK, mark)
}

fn loading() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let process = |mark: &str| in_load(ABORT, &dir.path().join(mark));
    match builder(process("first")).load() {
        Err(load::Error::Worker(error @ worker::Error::Died { .. })) => {
            let said = error.to_string();
            assert!(said.contains("while loading the model"), "{said}");
            assert!(said.contains("GGML_ASSERT(on purpose) failed"), "{said}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    let resume = OnDeath::Resume { attempts: 1 };
    let model = builder(process("second").on_death(resume)).load()?;
    assert!(dir.path().join("second").exists());
    describe(&model).text()?;
    Ok(())
}
