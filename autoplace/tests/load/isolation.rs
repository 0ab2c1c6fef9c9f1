//! A model in the program `autoplace-worker` does what it does in this process, and its death is an error
//! or goes unnoticed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::native_support::{demo_path, load_demo};
use autoplace::generate::{self, FinishReason, Generate, SamplerKind, TokenStream};
use autoplace::llama_sys;
use autoplace::plan::{self, GpuLayers, SavedPlan};
use autoplace::worker;
use autoplace::{Isolation, Model, ModelBuilder, OnDeath, WorkerProcess, load};

const PROMPT: &str = "And the king said unto his servants,";

fn program() -> WorkerProcess {
    WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"))
}

fn builder(process: WorkerProcess) -> ModelBuilder {
    Model::builder(demo_path())
        .threads(1)
        .isolation(Isolation::Process(process))
}

fn in_worker() -> Model {
    builder(program()).load().expect("the worker loads")
}

fn resuming(attempts: u32) -> Model {
    let process = program().on_death(OnDeath::Resume { attempts });
    builder(process).load().expect("the worker loads")
}

/// Both models' texts, pieces and ends.
fn same(here: &Model, there: &Model, describe: impl Fn(Generate) -> Generate) {
    let run = |model: &Model| {
        let mut stream = describe(model.generate(PROMPT)).stream().unwrap();
        let pieces: Vec<String> = stream.by_ref().map(Result::unwrap).collect();
        let statistics = stream.statistics();
        assert!(stream.next().is_none());
        (
            pieces,
            stream.finish_reason(),
            statistics.prompt_tokens,
            statistics.generated_tokens,
            statistics.seed,
        )
    };
    assert_eq!(run(there), run(here));
}

#[test]
fn text_pieces_end_and_counts_are_those_of_this_process() {
    let (here, there) = (load_demo(), in_worker());
    same(&here, &there, |it| it.temperature(0.0).max_tokens(40));
    same(&here, &there, |it| it.seed(7).max_tokens(150));
    same(&here, &there, |it| {
        it.seed(8).repeat_penalty(1.3).max_tokens(40)
    });
    same(&here, &there, |it| it.temperature(0.0).max_tokens(1));
    let text = here.generate(PROMPT).temperature(0.0).max_tokens(60).text();
    let stop = text.unwrap().split_whitespace().nth(5).unwrap().to_owned();
    same(&here, &there, |it| {
        it.temperature(0.0).max_tokens(60).stop(&stop)
    });
    same(&here, &there, |it| {
        it.temperature(0.0).max_tokens(60).stop("no such text")
    });
    let mut none = there.generate(PROMPT).max_tokens(0).stream().unwrap();
    assert!(none.next().is_none());
    assert_eq!(none.finish_reason(), Some(FinishReason::MaxTokens));
}

#[test]
fn the_likeliest_tokens_are_told_as_in_this_process() {
    let told = |model: &Model| {
        let generate = model.generate(PROMPT).seed(5).logprobs(3).max_tokens(30);
        let mut stream = generate.stream().unwrap();
        let pieces = stream.pieces().map(Result::unwrap);
        let told = pieces.filter_map(|piece| Some((piece.token?, piece.logprobs)));
        told.collect::<Vec<_>>()
    };
    let there = told(&in_worker());
    let is_told = |(token, logprobs): &(_, Option<generate::TokenLogprobs>)| {
        let logprobs = logprobs.as_ref();
        logprobs.is_some_and(|it| it.token == *token && it.top.len() == 3)
    };
    assert!(there.len() > 1 && there.iter().all(is_told), "{there:?}");
    let here = told(&load_demo());
    assert_eq!(there, here[..there.len()]);
}

#[test]
fn the_placement_is_told_and_what_is_elsewhere_is_not_given() {
    let (here, there) = (load_demo(), in_worker());
    assert_eq!(
        there.placement().n_gpu_layers,
        here.placement().n_gpu_layers
    );
    assert_eq!(
        there.placement().placements.len(),
        here.placement().placements.len()
    );
    assert_eq!(there.allocated(), here.allocated());
    assert_eq!(there.machine().host.total, here.machine().host.total);
    assert_ne!(there.worker_id(), Some(std::process::id()));
    assert!(there.worker_id().is_some() && here.worker_id().is_none());
    assert_eq!(there.report().attempts, here.report().attempts);
    assert!(there.better_plan().unwrap().is_none());
    let native = there.native().map(drop);
    assert!(
        matches!(
            native,
            Err(load::Error::Worker(worker::Error::Elsewhere { .. }))
        ),
        "{native:?}"
    );
    let session = there.session().map(drop);
    assert!(
        matches!(
            session,
            Err(generate::Error::Worker(worker::Error::Elsewhere { .. }))
        ),
        "{session:?}"
    );
}

#[test]
fn a_model_in_a_worker_is_placed_anew() {
    let model = in_worker();
    let text = || {
        model
            .generate(PROMPT)
            .temperature(0.0)
            .max_tokens(12)
            .text()
            .unwrap()
    };
    let before = text();
    let worker = model.worker_id();
    model.replace(Some((*model.placement()).clone())).unwrap();
    model.replace(None).unwrap();
    assert_eq!(text(), before);
    assert_eq!(model.worker_id(), worker);
    let stream = model.generate(PROMPT).stream().unwrap();
    assert!(matches!(model.replace(None), Err(load::Error::Busy)));
    drop(stream);
}

#[test]
fn a_saved_plan_is_followed() {
    let request = plan::Request::new();
    let here = Model::builder(demo_path())
        .request(request.clone())
        .load()
        .unwrap();
    let header = autoplace::gguf::Header::open(demo_path()).unwrap();
    let plan = (*here.placement()).clone();
    let saved = SavedPlan::new(plan, request, &header, &here.machine()).unwrap();
    let there = builder(program()).follow(saved).load().unwrap();
    assert_eq!(there.placement().context, here.placement().context);
}

#[test]
fn refusals_have_their_own_types() {
    let model = builder(program())
        .context(plan::Context::Tokens(64))
        .load()
        .unwrap();
    let long = model.generate(PROMPT.repeat(40)).stream();
    assert!(
        matches!(
            long,
            Err(generate::Error::PromptTooLong { context: 64, .. })
        ),
        "{long:?}"
    );
    let stop = model.generate(PROMPT).stop("").stream();
    assert!(matches!(stop, Err(generate::Error::EmptyStop)));
    for bad in [
        model.generate(PROMPT).temperature(f32::NAN),
        model.generate(PROMPT).temperature(-0.5),
        model.generate(PROMPT).top_p(1.5),
        model.generate(PROMPT).dry(-1.0),
        model.generate(PROMPT).logit_bias(1 << 30, 1.0),
    ] {
        let refused = bad.stream();
        let is_parameter = matches!(
            &refused,
            Err(generate::Error::Native(
                llama_sys::Error::InvalidParameter { .. }
            ))
        );
        assert!(is_parameter, "{refused:?}");
    }
    let several = model.generate(PROMPT).logit_bias_text("a b", 1.0).stream();
    let several = several.map(drop).unwrap_err();
    assert!(
        matches!(several, generate::Error::NotOneToken { .. }),
        "{several:?}"
    );
    let many = model.generate(PROMPT).logprobs(1000).stream();
    let many = many.map(drop).unwrap_err();
    assert!(
        matches!(many, generate::Error::TooManyLogprobs { asked: 1000, .. }),
        "{many:?}"
    );
    let closure = model.generate(PROMPT).sampler(|_, _| 0).stream();
    assert!(matches!(
        closure,
        Err(generate::Error::Worker(worker::Error::Elsewhere { .. }))
    ));
    model.generate(PROMPT).max_tokens(2).text().unwrap();

    let too_many = builder(program()).gpu_layers(GpuLayers::Exactly(3)).load();
    assert!(
        matches!(
            too_many,
            Err(load::Error::Plan(plan::Error::NoGpu { n_gpu_layers: 3 }))
        ),
        "{too_many:?}"
    );
    let missing = Model::builder("/nonexistent/model.gguf")
        .isolation(Isolation::Process(program()))
        .load();
    assert!(matches!(missing, Err(load::Error::Gguf(_))));
}

#[test]
fn one_stream_at_a_time_and_dropping_it_cancels() {
    let model = in_worker();
    let mut first = model.generate(PROMPT).stream().unwrap();
    first.next().unwrap().unwrap();
    assert!(matches!(
        model.generate(PROMPT).stream(),
        Err(generate::Error::Busy)
    ));
    drop(first);
    // Before, at and after its first token.
    let expected = load_demo()
        .generate(PROMPT)
        .temperature(0.0)
        .max_tokens(5)
        .text()
        .unwrap();
    for pieces in [0, 1, 2, 40] {
        let mut stream = model.generate(PROMPT).stream().unwrap();
        stream
            .by_ref()
            .take(pieces)
            .for_each(|piece| drop(piece.unwrap()));
        drop(stream);
        let text = model.generate(PROMPT).temperature(0.0).max_tokens(5).text();
        assert_eq!(text.unwrap(), expected);
    }
}

#[test]
fn an_abort_from_another_thread_is_an_error_once() {
    let model = in_worker();
    let mut stream = model.generate(PROMPT).stream().unwrap();
    stream.abort_handle().abort();
    let aborted = stream.next();
    assert!(
        matches!(
            aborted,
            Some(Err(generate::Error::Native(llama_sys::Error::Aborted)))
        ),
        "{aborted:?}"
    );
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::Error));
    let late = stream.abort_handle();
    drop(stream);
    late.abort();
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}

#[test]
fn progress_is_told_and_may_cancel() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let load = |go_on: bool, told: Arc<Mutex<Vec<f32>>>| {
        builder(program())
            .progress(move |done| {
                told.lock().unwrap().push(done);
                go_on
            })
            .load()
    };
    load(true, told).unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.is_sorted() && seen.last() == Some(&1.0), "{seen:?}");
    // A small model may be there before the worker hears of it.
    match load(false, Arc::default()) {
        Ok(_) | Err(load::Error::Native(llama_sys::Error::LoadCancelled { .. })) => {}
        Err(error) => panic!("{error:?}"),
    }
}

#[cfg(unix)]
mod deaths {
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    fn signal(name: &str, id: u32) {
        let sent = Command::new("kill").args([name, &id.to_string()]).status();
        assert!(sent.unwrap().success());
    }

    fn kill(model: &Model) {
        signal("-KILL", model.worker_id().expect("it lives"));
    }

    fn describe(model: &Model, kind: usize) -> Generate {
        let text = model.generate(PROMPT).max_tokens(140);
        match kind {
            0 => text.temperature(0.0),
            1 => text.seed(3).temperature(1.2),
            // What these draw and remember depends on the logits.
            3 => text
                .seed(5)
                .xtc(0.5, 0.1)
                .samplers([SamplerKind::Xtc])
                .adaptive_p(0.3),
            _ => text
                .seed(4)
                .temperature(1.0)
                .repeat_penalty(1.2)
                .stop("no such text"),
        }
    }

    /// The text, with the worker killed when these many pieces have come.
    fn text_killed_at(model: &Model, mut stream: TokenStream, pieces: usize) -> String {
        let mut text = String::new();
        for _ in 0..pieces {
            match stream.next() {
                Some(piece) => text += &piece.unwrap(),
                None => return text,
            }
        }
        kill(model);
        stream.for_each(|piece| text += &piece.unwrap());
        text
    }

    #[test]
    fn a_worker_killed_at_any_token_loses_none_and_doubles_none() {
        let here = load_demo();
        for kind in 0..4 {
            let expected = describe(&here, kind).text().unwrap();
            // A worker that is killed when it is done with a text may be found dead in the next one, which has a
            // death of its own.
            let model = resuming(2);
            for pieces in (0..130).step_by(if kind == 0 { 3 } else { 13 }) {
                let worker = model.worker_id();
                let stream = describe(&model, kind).stream().unwrap();
                let text = text_killed_at(&model, stream, pieces);
                assert_eq!(text, expected, "killed after {pieces} pieces");
                // No more than 64 tokens ahead, the worker was not done with them all.
                assert!(pieces > 60 || model.worker_id() != worker, "{pieces}");
            }
        }
    }

    #[test]
    fn counts_go_on_over_a_death() {
        let model = resuming(2);
        let mut stream = model
            .generate(PROMPT)
            .seed(5)
            .max_tokens(150)
            .stream()
            .unwrap();
        stream.next().unwrap().unwrap();
        let first = stream.statistics();
        kill(&model);
        stream.by_ref().for_each(|piece| drop(piece.unwrap()));
        let (statistics, reason) = (stream.statistics(), stream.finish_reason());
        drop(stream);
        let mut undisturbed = model
            .generate(PROMPT)
            .seed(5)
            .max_tokens(150)
            .stream()
            .unwrap();
        undisturbed.by_ref().for_each(|piece| drop(piece.unwrap()));
        assert_eq!(
            statistics.generated_tokens,
            undisturbed.statistics().generated_tokens
        );
        assert_eq!(reason, undisturbed.finish_reason());
        assert_eq!(statistics.prompt_time, first.prompt_time);
        assert_eq!(statistics.first_token_latency, first.first_token_latency);
        assert_eq!(statistics.seed, Some(5));
    }

    #[test]
    fn without_a_policy_a_death_is_an_error_with_how_and_stays_one() {
        let model = in_worker();
        let mut stream = model.generate(PROMPT).seed(1).stream().unwrap();
        stream.next().unwrap().unwrap();
        kill(&model);
        let error = stream.by_ref().find_map(Result::err).expect("it is dead");
        match &error {
            generate::Error::Worker(worker::Error::Died { status, .. }) => {
                assert_eq!(status.and_then(|status| status.signal()), Some(9));
            }
            other => panic!("{other:?}"),
        }
        assert!(error.to_string().contains("SIGKILL"), "{error}");
        assert!(stream.next().is_none());
        assert_eq!(stream.finish_reason(), Some(FinishReason::Error));
        drop(stream);
        for _ in 0..2 {
            let again = model.generate(PROMPT).stream().unwrap_err();
            assert!(matches!(
                again,
                generate::Error::Worker(worker::Error::Died { .. })
            ));
        }
        assert_eq!(model.worker_id(), None);
    }

    #[test]
    fn a_worker_that_died_between_two_generations_is_replaced() {
        let model = resuming(1);
        let text = || {
            model
                .generate(PROMPT)
                .temperature(0.0)
                .max_tokens(8)
                .text()
                .unwrap()
        };
        let expected = text();
        for _ in 0..3 {
            let dead = model.worker_id();
            kill(&model);
            assert_eq!(text(), expected);
            assert_ne!(model.worker_id(), dead);
        }
    }

    #[test]
    fn attempts_are_counted() {
        let model = resuming(2);
        let mut stream = model.generate(PROMPT).seed(2).stream().unwrap();
        let mut died = None;
        for _ in 0..3 {
            kill(&model);
            // What had come before its death is still told.
            let worker = model.worker_id();
            died = stream.by_ref().find_map(|piece| match piece {
                Ok(_) if model.worker_id() == worker => None,
                other => Some(other),
            });
        }
        assert!(
            matches!(
                died,
                Some(Err(generate::Error::Worker(worker::Error::Died { .. })))
            ),
            "{died:?}"
        );
    }

    /// A program that is a shell script, and the folder that it is in.
    fn stub(script: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stub");
        // Written by another process: a child that another test starts meanwhile would hold it open for writing, and
        // it could not run.
        let written = Command::new("sh")
            .args([
                "-c",
                r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod +x "$2""#,
                "sh",
                script,
            ])
            .arg(&path)
            .status();
        assert!(written.unwrap().success());
        (dir, path)
    }

    fn load_with(script: &str) -> worker::Error {
        load_within(Duration::from_secs(120), script)
    }

    fn load_within(patience: Duration, script: &str) -> worker::Error {
        let (_dir, path) = stub(script);
        let process = WorkerProcess::program(path).patience(patience);
        match builder(process).load() {
            Err(load::Error::Worker(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_that_is_no_worker_is_told_apart() {
        let error = load_with("echo out; echo something went wrong >&2; exit 3");
        match &error {
            worker::Error::NotAWorker { status, log, .. } => {
                assert_eq!(status.and_then(|status| status.code()), Some(3));
                assert_eq!(log[..], ["out", "something went wrong"]);
            }
            other => panic!("{other:?}"),
        }
        assert!(error.to_string().contains("worker_main"), "{error}");
        // One that says nothing and does not end: it is ended, and what it started with it or not, the wait is over.
        let error = load_within(Duration::from_millis(200), "exec sleep 600");
        assert!(
            matches!(error, worker::Error::NotAWorker { .. }),
            "{error:?}"
        );
        let error = load_with("printf 'Content-Length: 12' >&0; exec sleep 600");
        assert!(
            matches!(&error, worker::Error::Protocol { reason, .. } if reason.contains("Content-")),
            "{error:?}"
        );
        let error = load_with(r"printf 'autoplw\011' >&0; exec sleep 600");
        assert!(
            matches!(&error, worker::Error::Protocol { reason, .. } if reason.contains("version 9")),
            "{error:?}"
        );
        let hello = r#"{"build":"autoplace 0.0.0"}"#;
        let length = hello.len();
        let error = load_with(&format!(
            r"printf 'autoplw\001\{length:03o}\000\000\000{hello}' >&0; exec sleep 600"
        ));
        assert!(
            matches!(&error, worker::Error::OtherBuild { theirs, .. } if theirs == "autoplace 0.0.0"),
            "{error:?}"
        );
        let missing = WorkerProcess::program("/nonexistent/autoplace-worker");
        let error = builder(missing).load().unwrap_err();
        assert!(
            matches!(error, load::Error::Worker(worker::Error::Start { .. })),
            "{error:?}"
        );
    }

    #[test]
    fn a_worker_that_speaks_nonsense_later_is_ended() {
        let build = load::build_name();
        let hello = format!(r#"{{"build":"{build}"}}"#);
        let length = hello.len();
        let greeting = format!(r"printf 'autoplw\001\{length:03o}\000\000\000{hello}' >&0");
        for (nonsense, expected) in [
            (r"printf '\003\000\000\000abc' >&0", "expected"),
            (r"printf '\377\377\377\377abc' >&0", "4294967295"),
        ] {
            let error = load_with(&format!("{greeting}; {nonsense}; exec sleep 600"));
            assert!(
                matches!(&error, worker::Error::Protocol { reason, .. } if reason.contains(expected)),
                "{error:?}"
            );
        }
        let error = load_with(&format!("{greeting}; echo last words >&2; exit 7"));
        match error {
            worker::Error::Died { status, log, .. } => {
                assert_eq!(status.and_then(|status| status.code()), Some(7));
                assert_eq!(log[..], ["last words"]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[cfg(target_os = "linux")]
    fn open_handles() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[cfg(target_os = "linux")]
    fn exists(id: u32) -> bool {
        PathBuf::from(format!("/proc/{id}")).exists()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn two_hundred_models_leave_no_process() {
        let mut ids = Vec::new();
        for round in 0..200 {
            let model = in_worker();
            ids.extend(model.worker_id());
            // Some end in the middle of a sentence, and some are dead already.
            if round % 4 == 1 {
                let mut stream = model.generate(PROMPT).stream().unwrap();
                drop(model);
                stream.next().unwrap().unwrap();
            } else if round % 4 == 2 {
                kill(&model);
            }
        }
        assert_eq!(ids.len(), 200);
        let left: Vec<u32> = ids.into_iter().filter(|id| exists(*id)).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn models_leave_no_handles() {
        own_process!();
        drop(in_worker());
        let before = open_handles();
        for _ in 0..20 {
            let model = resuming(1);
            kill(&model);
            model.generate(PROMPT).max_tokens(2).text().unwrap();
        }
        assert_eq!(open_handles(), before);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_worker_ends_when_the_application_is_killed() {
        const APPLICATION: &str = "AUTOPLACE_TEST_APPLICATION";
        if std::env::var_os(APPLICATION).is_some() {
            let model = in_worker();
            println!("worker {}", model.worker_id().unwrap());
            // In the middle of a sentence.
            let mut stream = model.generate(PROMPT).stream().unwrap();
            while stream.next().is_some() {}
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        let mut application = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "isolation::deaths::a_worker_ends_when_the_application_is_killed",
                "--nocapture",
            ])
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
        let begin = Instant::now();
        while exists(worker) {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{worker} is still there"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
