//! A model in the program `autoplace-worker` behaves as it does in this process. If the worker dies, that is an error,
//! or the text continues without an interruption.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::native_support::load_demo;
use crate::replace_support::replace;
use crate::text_support::{PROMPT, worker};
use autoplace::generate::{self, Engine, FinishReason, GenerateRequest, TokenStream};
use autoplace::llama_sys::Error as Native;
use autoplace::load::{self, Replacement, Stage};
use autoplace::plan::{self, GpuLayers, SavedPlan};
use autoplace::worker::Error as Lost;
use autoplace::{Isolation, Model, ModelBuilder, OnDeath, WorkerProcess};
use test_support::{demo_path, meanwhile, settled, wait};

fn builder(process: WorkerProcess) -> ModelBuilder {
    Model::builder(demo_path()).n_threads(1).isolation(Isolation::Process(process))
}

fn in_worker() -> Model {
    builder(worker()).load().expect("the worker loads")
}

pub(crate) fn resuming_process(attempts: u32) -> WorkerProcess {
    worker().on_death(OnDeath::Resume { attempts })
}

fn resuming(attempts: u32) -> Model {
    builder(resuming_process(attempts)).load().expect("the worker loads")
}

/// A model with room for texts that wait for their readers: a text runs at most 1,024 tokens ahead. Such a text does
/// not end before its worker is killed, however late that is.
#[cfg(unix)]
fn roomy(process: WorkerProcess) -> Model {
    builder(process).n_ctx(4096).load().expect("the worker loads")
}

fn greedy(model: &Model, tokens: usize) -> String {
    model.generate(PROMPT).temp(0.0).max_tokens(tokens).text().unwrap()
}

#[test]
fn the_placement_is_reported_a_saved_plan_followed_and_the_native_model_refused() {
    let (here, there) = (load_demo(), in_worker());
    let of = |model: &Model| {
        let plan = model.placement();
        (plan.n_gpu_layers, plan.placements.len(), model.machine().host.total)
    };
    assert_eq!(of(&there), of(&here));
    assert_eq!(there.allocated(), here.allocated());
    assert_ne!(there.worker_id(), Some(std::process::id()));
    assert!(there.worker_id().is_some() && here.worker_id().is_none());
    assert_eq!(there.report().attempts, here.report().attempts);
    assert!(there.better_plan().unwrap().is_none());
    let saved = SavedPlan::new((*here.placement()).clone(), plan::Request::new(), here.header().unwrap()).unwrap();
    assert_eq!(builder(worker()).follow(saved).load().unwrap().placement(), here.placement());
    let native = there.native().map(drop);
    assert_matches!(native, Err(load::Error::Worker(Lost::Elsewhere { .. })));
}

#[test]
fn a_model_in_a_worker_can_be_re_placed() {
    let model = in_worker();
    let (before, worker) = (greedy(&model, 12), model.worker_id());
    model.replace(Some((*model.placement()).clone())).unwrap();
    meanwhile(|| replace(&model, None), || assert_eq!(greedy(&model, 12), before));
    assert_eq!(greedy(&model, 12), before);
    assert_eq!(model.worker_id(), worker);
    let _stream = model.generate(PROMPT).stream().unwrap();
    assert_matches!(model.replace(None), Err(load::Error::Busy));
}

#[test]
fn refusals_have_their_own_types() {
    use generate::Error;
    let model = in_worker();
    let engine = Engine::new(&model).unwrap();
    let refused = |generate: GenerateRequest| engine.try_submit(generate).map(drop);
    let text = || model.generate(PROMPT);
    let several = refused(text().logit_bias_text("a b", 1.0));
    assert_matches!(several, Err(Error::NotOneToken { .. }));
    let many = refused(text().logprobs(1000));
    assert_matches!(many, Err(Error::TooManyLogprobs { asked: 1000, .. }));
    let closure = refused(text().sampler(|_, _| 0));
    assert_matches!(closure, Err(Error::Worker(Lost::Elsewhere { .. })));
    drop(engine);
    model.session().unwrap();
    text().max_tokens(2).text().unwrap();

    let too_many = builder(worker()).n_gpu_layers(GpuLayers::Exactly(3)).load();
    assert_matches!(too_many, Err(load::Error::Plan(plan::Error::NoGpu { n_gpu_layers: 3, .. })));
    let missing = Model::builder("/nonexistent/model.gguf").isolation(Isolation::Process(worker())).load();
    assert_matches!(missing, Err(load::Error::Gguf(_)));
}

#[test]
fn one_stream_at_a_time_and_dropping_it_cancels() {
    let model = in_worker();
    let mut first = model.generate(PROMPT).stream().unwrap();
    first.next().unwrap().unwrap();
    let second = model.generate(PROMPT).stream();
    assert_matches!(second, Err(generate::Error::Busy));
    drop(first);
    // The stream is dropped before its first token, at this token, and after it.
    let expected = greedy(&load_demo(), 5);
    for pieces in [0, 1, 2, 40] {
        let mut stream = model.generate(PROMPT).stream().unwrap();
        stream.by_ref().take(pieces).for_each(|piece| drop(piece.unwrap()));
        drop(stream);
        assert_eq!(greedy(&model, 5), expected, "after {pieces} pieces");
    }
}

#[test]
fn progress_is_reported_and_may_cancel() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reported);
    let loaded = builder(worker()).progress(move |progress| {
        sink.lock().unwrap().push((progress.stage, progress.done));
        true
    });
    loaded.load().unwrap();
    let seen = reported.lock().unwrap();
    assert!(seen.iter().map(|report| report.1).is_sorted() && seen.last().unwrap().1 == 1.0, "{seen:?}");
    let stages: Vec<Stage> = seen.chunk_by(|one, next| one.0 == next.0).map(|all| all[0].0).collect();
    assert_eq!(stages[..4], [Stage::Plan, Stage::Measure, Stage::Plan, Stage::Weights], "{seen:?}");
    // A small model may be loaded before the worker learns that the load was cancelled.
    let cancelled = builder(worker()).progress(|_| false).load();
    assert_matches!(cancelled, Ok(_) | Err(load::Error::Native(Native::LoadCancelled { .. })));
}

#[cfg(unix)]
pub(crate) mod deaths {
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;
    #[cfg(target_os = "linux")]
    use crate::text_support::held;

    fn signal(model: &Model, signal: &str) {
        let id = model.worker_id().expect("it lives").to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    pub(crate) fn kill(model: &Model) {
        signal(model, "-KILL");
    }

    pub(crate) fn stop(model: &Model) {
        signal(model, "-STOP");
        // Each thread of the worker stops at a different time.
        let tasks = format!("/proc/{}/task", model.worker_id().expect("it lives"));
        let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let entries = || std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        let runs = || entries().any(|task| !stat(task).contains(") T "));
        while runs() {
            thread::yield_now();
        }
    }

    fn died(ended: Result<(), generate::Error>) {
        assert_matches!(ended, Err(generate::Error::Worker(Lost::Died { .. })));
    }

    /// A model whose worker is killed soon after it has stopped answering.
    fn impatient(on_death: OnDeath) -> Model {
        let process = worker().timeout(Duration::from_secs(2)).on_death(on_death);
        // A text runs ahead of its reader by fewer tokens than the context has. So the text waits, and does not end
        // before the worker is stopped.
        builder(process).n_ctx(4096).load().unwrap()
    }

    #[test]
    fn a_worker_that_was_stopped_is_ended_and_another_goes_on() {
        let model = impatient(OnDeath::Resume { attempts: 1 });
        let mut stream = model.generate(PROMPT).temp(0.0).max_tokens(120).stream().unwrap();
        let mut text = stream.next().unwrap().unwrap();
        stop(&model);
        stream.for_each(|piece| text += &piece.unwrap());
        assert_eq!(text, greedy(&load_demo(), 120));
        stop(&model);
        model.generate(PROMPT).max_tokens(2).text().unwrap();
    }

    #[test]
    fn a_worker_that_was_stopped_holds_nobody_up() {
        let silent = |ended: Result<(), generate::Error>| {
            assert_matches!(ended, Err(generate::Error::Worker(Lost::Silent { .. })));
        };
        let model = impatient(OnDeath::Fail);
        // The model always generates the same token, so that the text does not end.
        let mut stream = model.generate(PROMPT).logit_bias(300, 1000.0).stream().unwrap();
        stream.next().unwrap().unwrap();
        stop(&model);
        stream.abort_handle().abort();
        silent(stream.by_ref().try_for_each(|piece| piece.map(drop)));
        drop(stream);
        silent(model.generate(PROMPT).stream().map(drop));

        let model = impatient(OnDeath::Fail);
        let engine = Engine::new(&model).unwrap();
        let answers = [(); 3].map(|()| engine.submit(model.generate(PROMPT)).unwrap());
        stop(&model);
        drop(answers);
        drop(engine);

        let model = impatient(OnDeath::Fail);
        stop(&model);
        silent(model.generate(PROMPT).text().map(drop));
        stop(&impatient(OnDeath::Fail));
    }

    #[test]
    fn a_worker_that_computes_or_waits_for_longer_lives() {
        // On a busy machine, a worker may get no core for some hundred milliseconds.
        let timeout = Duration::from_secs(1);
        let model = builder(worker().timeout(timeout)).n_ctx(4096).load().unwrap();
        let engine = Engine::new(&model).unwrap();
        let submit = |tokens| engine.submit(model.generate(PROMPT).temp(0.0).ignore_eos().max_tokens(tokens)).unwrap();
        let text = submit(20).into_text().unwrap().0;
        // This text takes longer than the limit. It is read so slowly that it does not fill its context.
        let begun = Instant::now();
        let mut long = submit(usize::MAX);
        while begun.elapsed() < 2 * timeout {
            long.next().unwrap().unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        drop(long);
        // Meanwhile, the worker has nothing to do.
        thread::sleep(2 * timeout);
        assert_eq!(submit(20).into_text().unwrap().0, text);
    }

    /// Reads a stream: its text, its number of tokens, and how it ends. After `pieces` pieces, `done` is called. The
    /// statistics of the prompt must not change.
    fn read(mut stream: TokenStream, pieces: usize, done: impl FnOnce()) -> (String, usize, Option<FinishReason>) {
        let mut text: String = stream.by_ref().take(pieces).map(Result::unwrap).collect();
        let begun = |stream: &TokenStream| {
            let statistics = stream.statistics();
            (statistics.prompt_time, statistics.first_token_latency, statistics.seed)
        };
        let before = begun(&stream);
        done();
        stream.by_ref().for_each(|piece| text += &piece.unwrap());
        assert!(pieces == 0 || begun(&stream) == before);
        (text, stream.statistics().generated_tokens, stream.finish_reason())
    }

    #[test]
    fn a_worker_killed_at_any_token_loses_none_and_doubles_none() {
        let here = load_demo();
        let kinds: [fn(GenerateRequest) -> GenerateRequest; 3] = [
            |request| request.temp(0.0),
            |request| request.seed(3).temp(1.2),
            |request| request.seed(4).temp(1.0).repeat_penalty(1.2).stop("no such text"),
        ];
        for (kind, describe) in kinds.into_iter().enumerate() {
            let stream = |model: &Model| describe(model.generate(PROMPT).max_tokens(140)).stream().unwrap();
            let expected = read(stream(&here), 0, || {});
            // If a worker is killed after its last text, this may be noticed only when the next text begins. For that
            // text, there are then two deaths.
            let (model, mut deaths) = (resuming(2), 0);
            for pieces in (4 * kind..130).step_by(13) {
                let worker = model.worker_id();
                let text = read(stream(&model), pieces, || kill(&model));
                assert_eq!(text, expected, "killed after {pieces} pieces");
                deaths += usize::from(model.worker_id() != worker);
            }
            // If the machine is busy, the worker may live until its text has ended.
            assert!(deaths > 0);
        }
    }

    #[test]
    fn without_a_policy_a_death_is_a_lasting_error_with_its_cause() {
        let model = roomy(worker());
        let mut stream = model.generate(PROMPT).seed(1).ignore_eos().stream().unwrap();
        stream.next().unwrap().unwrap();
        kill(&model);
        let error = stream.by_ref().find_map(Result::err).expect("it is dead");
        let generate::Error::Worker(Lost::Died { status, .. }) = &error else { panic!("{error:?}") };
        assert_eq!(status.and_then(|status| status.signal()), Some(9));
        assert!(error.to_string().contains("SIGKILL"), "{error}");
        assert!(stream.next().is_none());
        assert_eq!(stream.finish_reason(), Some(FinishReason::Error));
        drop(stream);
        (0..2).for_each(|_| died(model.generate(PROMPT).stream().map(drop)));
        assert_eq!(model.worker_id(), None);
        assert_matches!(&model.worker_deaths()[..], [Lost::Died { .. }]);
    }

    #[test]
    fn a_death_that_a_text_survived_is_in_its_statistics_and_in_the_model() {
        let model = roomy(resuming_process(1));
        assert!(model.worker_deaths().is_empty());
        let mut stream = model.generate(PROMPT).temp(0.0).ignore_eos().max_tokens(1200).stream().unwrap();
        stream.next().unwrap().unwrap();
        kill(&model);
        let (_, statistics) = stream.into_text().unwrap();
        assert_eq!(statistics.worker_deaths, 1);
        assert!(statistics.to_string().contains("the worker died"), "{statistics}");
        let deaths = model.worker_deaths();
        assert_matches!(&deaths[..], [Lost::Died { .. }]);
        assert!(deaths[0].to_string().contains("SIGKILL"), "{}", deaths[0]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_mapped_file_that_is_cut_short_ends_the_worker_and_not_the_application() {
        let folder = tempfile::tempdir().unwrap();
        for attempts in [0, 1] {
            let path = folder.path().join("model.gguf");
            std::fs::copy(demo_path(), &path).unwrap();
            let process = Isolation::Process(resuming_process(attempts));
            let model = Model::builder(&path).n_threads(1).isolation(process).load().unwrap();
            greedy(&model, 1);
            std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
            let error = model.generate(PROMPT).max_tokens(4).text().unwrap_err();
            if attempts == 0 {
                let generate::Error::Worker(Lost::Died { status, .. }) = &error else { panic!("{error:?}") };
                let bus = rustix::process::Signal::BUS.as_raw();
                assert_eq!(status.and_then(|status| status.signal()), Some(bus));
            } else {
                // Before the file is mapped, another worker reads its header.
                assert!(error.to_string().contains("it is incomplete"), "{error}");
            }
        }
    }

    #[test]
    fn without_a_policy_a_death_ends_all_texts_of_an_engine_and_refuses_others() {
        let model = roomy(worker());
        let engine = Engine::new(&model).unwrap();
        let submit = || engine.submit(model.generate(PROMPT).seed(1).ignore_eos());
        let answers = [submit().unwrap(), submit().unwrap()];
        kill(&model);
        answers.into_iter().for_each(|answer| died(answer.into_text().map(drop)));
        (0..2).for_each(|_| died(submit().map(drop)));
        drop(engine);
        assert_eq!(model.worker_id(), None);
    }

    #[test]
    fn attempts_are_counted() {
        let model = roomy(resuming_process(2));
        let mut stream = model.generate(PROMPT).seed(2).ignore_eos().stream().unwrap();
        let mut died = None;
        for _ in 0..3 {
            kill(&model);
            // Pieces that arrived before the worker's death can still be read.
            let worker = model.worker_id();
            died = stream.by_ref().find_map(|piece| match piece {
                Ok(_) if model.worker_id() == worker => None,
                other => Some(other),
            });
        }
        assert_matches!(died, Some(Err(generate::Error::Worker(Lost::Died { .. }))));
    }

    #[test]
    fn where_none_can_be_started_whoever_comes_next_tries_again() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("worker");
        let install = || std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_autoplace-worker"), &program).unwrap();
        let process = WorkerProcess::program(&program).on_death(OnDeath::Resume { attempts: 1 });
        assert_matches!(builder(process.clone()).load(), Err(load::Error::Worker(Lost::Start { .. })));
        install();
        let model = builder(process).load().unwrap();
        kill(&model);
        std::fs::remove_file(&program).unwrap();
        let text = || model.generate(PROMPT).max_tokens(4).text();
        assert_matches!(text(), Err(generate::Error::Worker(Lost::Start { .. })));
        install();
        text().unwrap();
        // A worker that is dead cannot carry out the request, but the next worker places the model again anyway.
        kill(&model);
        model.request_replace(Replacement::Replan);
        text().unwrap();
    }

    /// The error of a load whose worker is a shell script with these lines.
    fn load_with(patience: Duration, script: &str) -> Lost {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stub");
        // Another process writes the file. If this process wrote it, a child that another test starts at that time
        // would keep the file open for writing. Then the file could not be executed.
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod +x "$2""#;
        let mut shell = Command::new("sh");
        assert!(shell.args(["-c", write, "sh", script]).arg(&path).status().unwrap().success());
        let process = WorkerProcess::program(path).patience(patience);
        match builder(process).load() {
            Err(load::Error::Worker(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn a_program_that_is_not_a_worker_is_recognised() {
        let error = load_with(LONG, "echo out; echo something went wrong >&2; exit 3");
        let Lost::NotAWorker { status, log, .. } = &error else { panic!("{error:?}") };
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        assert_eq!(log[..], ["out", "something went wrong"]);
        assert!(error.to_string().contains("worker_main"), "{error}");
        // A program that another one has killed may be a worker.
        let error = load_with(LONG, "kill -KILL $$");
        assert!(matches!(error, Lost::Died { .. }) && error.is_death(), "{error:?}");
        // A program that sends nothing and does not end is killed. If it has children, this does not take longer.
        let error = load_with(Duration::from_millis(200), "exec sleep 600");
        assert_matches!(error, Lost::NotAWorker { .. });
    }

    /// The first message that a worker of this build sends. The build's name comes after its length, and has fewer than
    /// 128 bytes.
    fn hello(build: &str) -> String {
        let (message, name) = (build.len() + 1, build.len());
        format!(r"printf '\{message:03o}\000\000\000\{name:03o}{build}' >&0")
    }

    #[test]
    fn a_worker_that_speaks_nonsense_at_first_or_later_is_ended() {
        let greeting = hello(&(load::build_name() + ", constraints"));
        for (said, expected) in [
            ("printf 'Content-Length: 12' >&0".to_owned(), "a message of"),
            (format!(r"{greeting}; printf '\003\000\000\000abc' >&0"), "Deserialization"),
            (format!(r"{greeting}; printf '\377\377\377\377abc' >&0"), "4294967295"),
        ] {
            let error = load_with(LONG, &format!("{said}; exec sleep 600"));
            assert_matches!(error, Lost::Protocol { reason, .. } if reason.contains(expected));
        }
        let other = format!("{}; exec sleep 600", hello("autoplace 0.0.0"));
        let error = load_with(LONG, &other);
        assert_matches!(error, Lost::OtherBuild { theirs, .. } if theirs == "autoplace 0.0.0");
        let error = load_with(LONG, &format!("{greeting}; echo last words >&2; exit 7"));
        let Lost::Died { status, log, .. } = error else { panic!("{error:?}") };
        assert_eq!(status.and_then(|status| status.code()), Some(7));
        assert_eq!(log[..], ["last words"]);
    }

    #[cfg(target_os = "linux")]
    fn exists(id: u32) -> bool {
        PathBuf::from(format!("/proc/{id}")).exists()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn models_leave_no_process_and_no_handle() {
        own_process!();
        drop(in_worker());
        let open_files = || settled(|| held().unwrap()[2]);
        let (before, mut ids) = (open_files(), Vec::new());
        for round in 0..8 {
            let model = resuming(1);
            ids.extend(model.worker_id());
            match round % 4 {
                // The model is dropped while a sentence is being generated.
                1 => {
                    let mut stream = model.generate(PROMPT).stream().unwrap();
                    drop(model);
                    stream.next().unwrap().unwrap();
                }
                // The worker is dead when the text begins.
                2 => kill(&model),
                // A second worker continues the text.
                3 => {
                    kill(&model);
                    model.generate(PROMPT).max_tokens(2).text().unwrap();
                    ids.extend(model.worker_id());
                }
                _ => {}
            }
        }
        assert_eq!(open_files(), before);
        assert_eq!(ids.len(), 10);
        wait("leaves no process", || !ids.iter().any(|id| exists(*id)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_worker_ends_when_the_application_is_killed() {
        const APPLICATION: &str = "AUTOPLACE_TEST_APPLICATION";
        const THIS: &str = "isolation::deaths::a_worker_ends_when_the_application_is_killed";
        if std::env::var_os(APPLICATION).is_some() {
            let model = in_worker();
            println!("worker {}", model.worker_id().unwrap());
            // This process itself is killed while a sentence is being generated.
            let mut stream = model.generate(PROMPT).stream().unwrap();
            while stream.next().is_some() {}
            loop {
                thread::sleep(Duration::from_secs(60));
            }
        }
        let mut application = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", THIS, "--nocapture"])
            .env(APPLICATION, "1")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(application.stdout.take().unwrap());
        let worker = std::io::BufRead::lines(lines)
            .map_while(Result::ok)
            .find_map(|line| line.split_once("worker ")?.1.trim().parse::<u32>().ok())
            .expect("it loads");
        application.kill().unwrap();
        application.wait().unwrap();
        wait("ends", || !exists(worker));
    }
}
