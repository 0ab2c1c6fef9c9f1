//! A program whose `main` begins with `worker_main` is its own worker; one whose `main` does not is told so, and
//! starts no others.

#[path = "../../planner/tests/support/lora_support/mod.rs"]
mod lora_support;
#[path = "support/native_support/mod.rs"]
mod native_support;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use autoplace::chat::ChatTemplate;
use autoplace::generate::{self, Generate};
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::sim::SimGpu;
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::{Isolation, Model, ModelBuilder, OnDeath, WorkerProcess, load, worker};
use libtest_mimic::{Arguments, Failed, Trial};
use lora_support::Adapter;
use native_support::demo_path;
use tracing::field::Field;
use tracing::{Event, Metadata, Subscriber, span};

/// In a worker: the computation at which it aborts, once; a file says that it has.
const ABORT_AT: &str = "AUTOPLACE_TEST_ABORT_AT";
const HAS_ABORTED: &str = "AUTOPLACE_TEST_HAS_ABORTED";
/// In a worker: abort in the middle of the load instead.
const LOADING: &str = "loading";
/// In a worker: leave `worker_main` out.
const NO_GUARD: &str = "AUTOPLACE_TEST_NO_GUARD";

const TOKENS: usize = 24;

type Test = fn() -> Result<(), Failed>;

fn main() {
    // As an application with a GPU of its own; every process has one.
    let card = SimGpu::builder("SIM card").total(mib(64)).register();
    let card = Arc::new(card.expect("it is the first"));
    if let Ok(at) = std::env::var(ABORT_AT) {
        abort_at(card, at);
    }
    if std::env::var_os(NO_GUARD).is_none() {
        autoplace::worker_main();
    } else if std::env::var_os("AUTOPLACE_WORKER").is_some() {
        nested();
    }
    let tests: [(&str, Test); 7] = [
        ("the_application_is_its_own_worker", own),
        ("adapters_travel_to_the_worker", adapters),
        ("a_chat_in_a_worker_outgrows_its_context", chat),
        ("without_the_guard_nothing_is_started_twice", without_guard),
        ("an_abort_at_any_computation_loses_no_token", aborts),
        ("an_abort_during_the_load_is_an_error_or_goes_unnoticed", loading),
        ("an_abort_is_an_error_with_the_last_lines", last_lines),
    ];
    let tests = tests.map(|(name, test)| Trial::test(name, test)).into();
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

/// Ends the process as llama.cpp does, at the `n`-th computation on the card or soon after.
fn abort_at(card: Arc<SimGpu>, at: String) {
    let mark = PathBuf::from(std::env::var_os(HAS_ABORTED).expect("set with the other"));
    if mark.exists() {
        return;
    }
    if at == LOADING {
        let _ = tracing::subscriber::set_global_default(AbortInLoad { mark });
        return;
    }
    let n = at.parse().expect("a number");
    std::thread::spawn(move || {
        while card.graphs() < n {
            std::thread::yield_now();
        }
        abort(&mark);
    });
}

fn abort(mark: &Path) -> ! {
    std::fs::write(mark, "").expect("its folder is there");
    eprintln!("GGML_ASSERT(on purpose) failed");
    process::abort();
}

/// An application's own subscriber, which hears llama.cpp from within a load.
struct AbortInLoad {
    mark: PathBuf,
}

impl Subscriber for AbortInLoad {
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
        if line.contains("load_tensors") {
            abort(&self.mark);
        }
    }
}

/// A worker whose `main` does not begin as it should loads its model, which wants a worker.
fn nested() -> ! {
    match there().load() {
        Err(load::Error::Worker(worker::Error::Nested)) => eprintln!("nested"),
        _ => eprintln!("started another"),
    }
    process::exit(5);
}

fn builder(process: WorkerProcess) -> ModelBuilder {
    Model::builder(demo_path())
        .headroom(Headroom::Bytes(0))
        .n_threads(1)
        .isolation(Isolation::Process(process))
}

/// In this program as its own worker, and without one.
fn there() -> ModelBuilder {
    builder(WorkerProcess::own_executable())
}

fn here() -> ModelBuilder {
    there().isolation(Isolation::None)
}

fn describe(model: &Model) -> Generate {
    let text = model.generate("And it came to pass").seed(9);
    text.temp(1.1).repeat_penalty(1.1).max_tokens(TOKENS)
}

fn own() -> Result<(), Failed> {
    let (here, there) = (here().load()?, there().load()?);
    let layers = [&there, &here].map(|model| model.placement().n_gpu_layers);
    assert!(layers[0] > 0 && layers[0] == layers[1], "{layers:?}");
    assert_eq!(describe(&there).text()?, describe(&here).text()?);
    Ok(())
}

fn chat() -> Result<(), Failed> {
    let model = there().n_ctx(256).load()?;
    let mut chat = model.chat_with(ChatTemplate::family("chatml")?).system("Be brief.");
    chat = chat.with(|generate| generate.temp(0.0).max_tokens(8));
    for turn in 0..40 {
        let (_, statistics) = chat.say(format!("And {turn}?"))?.finish()?;
        assert!(statistics.prompt_tokens <= 256 - 8, "{}", statistics.prompt_tokens);
    }
    assert_eq!(chat.messages().len(), 81);
    assert!(chat.forgotten().len() > 40, "{}", chat.forgotten().len());
    Ok(())
}

fn adapters() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let header = Header::open(demo_path())?;
    let adapter = Adapter::of("llama");
    let adapter = adapter.of_weights(&header, 8, TensorType::F32, |name| name.contains("attn_q"));
    let adapter = adapter.write_random(folder.path(), "style", 1, 0.2);
    let here = here().lora(&adapter, 1.0).load()?;
    let there = there().lora(&adapter, 1.0).load()?;
    assert_eq!(there.adapters(), here.adapters());
    let styled = describe(&there).text()?;
    assert_eq!(styled, describe(&here).text()?);
    let plain = describe(&there).lora::<&str>([]).text()?;
    assert_eq!(plain, describe(&here).lora([("style", 0.0)]).text()?);
    assert_ne!(plain, styled);
    let unknown = describe(&there).lora([("other", 1.0)]).text();
    let unknown = unknown.expect_err("there is none").to_string();
    assert!(unknown.contains("without an adapter called other"), "{unknown}");
    Ok(())
}

fn without_guard() -> Result<(), Failed> {
    let process = WorkerProcess::own_executable().env(NO_GUARD, "1");
    match builder(process).load() {
        Err(load::Error::Worker(worker::Error::NotAWorker { status, log, .. })) => {
            assert_eq!(status.and_then(|status| status.code()), Some(5));
            assert_eq!(log.last().map(String::as_str), Some("nested"));
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// A worker that aborts there, once: a file at `mark` says that it has.
fn aborting(at: &str, mark: &Path) -> WorkerProcess {
    let process = WorkerProcess::own_executable();
    process.env(ABORT_AT, at).env(HAS_ABORTED, mark)
}

fn aborts() -> Result<(), Failed> {
    let expected = describe(&here().load()?).text()?;
    let mut deaths = 0;
    for n in 1..=TOKENS as u64 {
        let dir = tempfile::tempdir()?;
        let mark = dir.path().join("mark");
        let process = aborting(&n.to_string(), &mark);
        let model = builder(process.on_death(OnDeath::Resume { attempts: 1 })).load()?;
        let worker = model.worker_id();
        assert_eq!(describe(&model).text()?, expected, "aborted at {n}");
        deaths += usize::from(model.worker_id() != worker);
    }
    // A busy machine may let it live to the end of its text.
    assert!(deaths > 0);
    Ok(())
}

fn loading() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let process = |mark: &str| aborting(LOADING, &dir.path().join(mark));
    match builder(process("first")).load() {
        Err(load::Error::Worker(worker::Error::Died { doing, .. })) => {
            assert_eq!(doing, "loading the model");
        }
        other => return Err(format!("{other:?}").into()),
    }
    let resume = OnDeath::Resume { attempts: 1 };
    let model = builder(process("second").on_death(resume)).load()?;
    assert!(dir.path().join("second").exists());
    describe(&model).text()?;
    Ok(())
}

fn last_lines() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let model = builder(aborting("3", &dir.path().join("mark"))).load()?;
    match model.generate("And").text() {
        Err(generate::Error::Worker(error @ worker::Error::Died { .. })) => {
            let said = error.to_string();
            assert!(said.contains("GGML_ASSERT(on purpose) failed"), "{said}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}
