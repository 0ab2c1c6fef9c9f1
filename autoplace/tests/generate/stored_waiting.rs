//! Texts that wait in an engine for their stored beginnings, while other texts go on: with a damaged piece, with a
//! folder that does not answer, and beside another engine on the same store.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::{process::Command, thread, time::Duration};

use autoplace::generate::Engine;
#[cfg(target_os = "linux")]
use autoplace::generate::{Error, Shutdown, Speculation};
use autoplace::llama_sys::Token;
use autoplace::store::PromptStore;
#[cfg(target_os = "linux")]
use autoplace::{Model, ModelBuilder};
#[cfg(target_os = "linux")]
use test_support::wait;

#[cfg(target_os = "linux")]
use crate::speculative_support::{self, exact};
use crate::stored_texts::{ANSWER, MIB, generate, in_folder, load, turn};
#[cfg(target_os = "linux")]
use crate::text_support::{Texts, complete};
use crate::text_support::{answered, random, raw_by_chance as raw, request, to_the_end, words};

fn pieces(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|file| file.extension().is_some_and(|ending| ending == "piece")).collect()
}

#[test]
fn a_waiting_text_is_restored_up_to_its_first_damaged_piece() {
    let folder = tempfile::tempdir().unwrap();
    let (path, files) = (random("llama", None, folder.path()), folder.path().join("store"));
    let load = |files: &Path| load(&path, request(1200, 2, false), &in_folder(files));
    let history = turn("", &load(&files), &words(1, 200)).0;
    let next = [&history[..], &words(3, 20)].concat();
    let whole = pieces(&files).into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect::<Vec<_>>();
    let running = words(2, 40);
    let damaged_at = |at: usize| {
        pieces(&files).into_iter().for_each(|file| fs::remove_file(file).unwrap());
        for (number, (file, bytes)) in whole.iter().enumerate() {
            let mut bytes = bytes.clone();
            if number == at {
                *bytes.last_mut().unwrap() ^= 1;
            }
            fs::write(file, bytes).unwrap();
        }
        let model = load(&files);
        let engine = Engine::new(&model).unwrap();
        let mut other = engine.submit(generate(&model, &running).max_tokens(300)).unwrap();
        let begun = other.pieces().next().unwrap().unwrap();
        let text = answered(engine.submit(generate(&model, &next)).unwrap());
        assert_eq!(text.tokens, raw(&model, &next, ANSWER), "{at}");
        let other: Vec<Token> = begun.token.into_iter().chain(answered(other).tokens).collect();
        assert_eq!(other, raw(&model, &running, 300), "{at}");
        text.statistics().restored_tokens
    };
    // 223 tokens are stored in pieces of 64. The last number is that of no damaged piece.
    let mut restored: Vec<usize> = (0..=whole.len()).map(damaged_at).collect();
    restored.sort_unstable();
    assert_eq!(restored, [0, 64, 128, 192, 223]);
}

#[test]
fn two_engines_on_one_store_compute_the_same_texts_as_one_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = random("llama", None, folder.path());
    let store = PromptStore::new(256 * MIB);
    let models = [(); 2].map(|()| load(&path, request(1024, 2, true), &store));
    let engines = models.each_ref().map(|model| Engine::new(model).unwrap());
    let mut histories: Vec<Vec<Token>> = (0..8).map(|seed| words(100 + seed, 120)).collect();
    let mut restored = 0;
    for turn in 0..3 {
        // Each conversation goes on in the other engine.
        let submit = |(number, history): (usize, &mut Vec<Token>)| {
            history.extend(words(1000 * turn + number as u32, 10));
            let at = (number + turn as usize) % 2;
            engines[at].submit(generate(&models[at], history)).unwrap()
        };
        let texts: Vec<_> = histories.iter_mut().enumerate().map(submit).collect();
        for (history, text) in histories.iter_mut().zip(texts) {
            let text = answered(text);
            assert_eq!(text.tokens, raw(&models[0], history, ANSWER), "{turn}: {:?}", text.statistics());
            restored += text.statistics().restored_tokens;
            history.extend(&text.tokens);
        }
    }
    assert!(restored > 0);
}

/// The number of threads of this process that read pieces.
#[cfg(target_os = "linux")]
fn reading_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name == "autoplace-bring\n").count()
}

/// Replaces each piece by a pipe without a writer: the opening of such a file never ends.
#[cfg(target_os = "linux")]
fn hang(folder: &Path) {
    hang_files(&pieces(folder));
}

#[cfg(target_os = "linux")]
fn hang_files(files: &[PathBuf]) {
    for file in files {
        fs::remove_file(file).unwrap();
        assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_session_computes_a_text_whose_folder_does_not_answer() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, files) = (random("llama", None, folder.path()), folder.path().join("store"));
    let load = || load(&path, request(1600, 2, false), &in_folder(&files));
    let history = turn("", &load(), &words(1, 300)).0;
    let next = [&history[..], &words(3, 20)].concat();
    let model = load();
    let mut session = model.session().unwrap();
    // After a first text, the session knows how long a token takes, and waits for ten seconds instead of a minute.
    session.begin(generate(&model, &words(2, 40))).unwrap();
    to_the_end(&mut session);
    hang(&files);
    session.begin(generate(&model, &next)).unwrap();
    let text = to_the_end(&mut session).remove(0);
    assert_eq!(text.tokens, raw(&model, &next, ANSWER));
    assert_eq!(text.statistics().restored_tokens, 0);
    assert_eq!(reading_threads(), 1);
    // The thread ends once the folder answers.
    for file in pieces(&files).into_iter().filter(|file| !fs::metadata(file).unwrap().is_file()) {
        drop(fs::File::options().read(true).write(true).open(file).unwrap());
    }
    wait("ends", || reading_threads() == 0);
}

/// The state of a drafter is only in a folder that does not answer, and the model's own state is read. A text is
/// written without drafts until it has waited long enough. Then the drafter computes the text itself.
#[test]
#[cfg(target_os = "linux")]
fn a_drafter_goes_on_without_its_stored_state_if_the_folder_does_not_answer() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, files) = (exact("llama", folder.path()), folder.path().join("store"));
    let load = |store: Option<PromptStore>| {
        let request = speculative_support::request(1024, 1, 3).n_batch(64);
        let builder = speculative_support::builder(&path, request).draft(&path);
        store.into_iter().fold(builder, ModelBuilder::prompt_store).load().unwrap()
    };
    let speculation = Speculation::DraftModel { draft_max: 3, p_min: 0.0 };
    let asked = |model: &Model, prompt: &[Token], most: usize| {
        generate(model, prompt).temp(0.0).max_tokens(most).speculate(speculation)
    };
    let first = {
        let model = load(Some(in_folder(&files)));
        complete(asked(&model, &words(1, 150), 20), &model)
    };
    let next = [&words(1, 150)[..], &first.tokens, &words(2, 20)].concat();
    let expected = {
        let model = load(None);
        complete(asked(&model, &next, 600), &model)
    };
    let of_draft = |file: &PathBuf| fs::read(file).unwrap().windows(7).any(|bytes| bytes == b"(draft)");
    let (drafts, others): (Vec<_>, Vec<_>) = pieces(&files).into_iter().partition(of_draft);
    assert!(!drafts.is_empty() && !others.is_empty());
    let model = load(Some(in_folder(&files)));
    let mut session = model.session().unwrap();
    // After a first text, the drafter knows how long a token takes, and waits for ten seconds instead of a minute.
    session.begin(asked(&model, &words(3, 80), 20)).unwrap();
    assert!(to_the_end(&mut session).remove(0).statistics().drafted_tokens > 0);
    hang_files(&drafts);
    let text = session.begin(asked(&model, &next, 600)).unwrap();
    let (mut texts, mut written) = (Texts::default(), 5);
    texts.generate_to(&mut session, text, written);
    let statistics = session.statistics(text).unwrap();
    assert!(statistics.restored_tokens >= 150 && statistics.drafted_tokens == 0, "{statistics:?}");
    while session.statistics(text).unwrap().drafted_tokens == 0 {
        thread::sleep(Duration::from_millis(50));
        written += 1;
        texts.generate_to(&mut session, text, written);
    }
    texts.run(&mut session);
    let ours = texts.of(text);
    assert_eq!((&ours.tokens, ours.statistics().restored_draft_tokens), (&expected.tokens, 0));
    assert!(ours.statistics().acceptance_rate() > 0.9, "{:?}", ours.statistics());
    assert_eq!(reading_threads(), 1);
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_does_not_answer_delays_neither_other_texts_nor_the_end_of_an_engine() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = random("llama", None, folder.path());
    for (cancelled, end) in [(0, Some(Shutdown::Cancel)), (1, Some(Shutdown::FinishBegun)), (4, None)] {
        let files = folder.path().join(cancelled.to_string());
        let load = || load(&path, request(1600, 2, false), &in_folder(&files));
        let history = turn("", &load(), &words(1, 300)).0;
        let next = [&history[..], &words(3, 20)].concat();
        let model = load();
        let engine = Engine::new(&model).unwrap();
        let mut running = engine.submit(generate(&model, &words(2, 40)).max_tokens(700)).unwrap();
        running.pieces().next().unwrap().unwrap();
        hang(&files);
        let before = reading_threads();
        let waiting = |number: usize| {
            let text = engine.submit(generate(&model, &next)).unwrap();
            wait("waited for the folder", || reading_threads() == before + number);
            // A text that is not in the store overtakes it.
            let short = words(10 + number as u32, 30);
            assert_eq!(answered(engine.submit(generate(&model, &short)).unwrap()).tokens, raw(&model, &short, ANSWER));
            text
        };
        (1..=cancelled).for_each(|number| drop(waiting(number)));
        match end {
            Some(how) => {
                let text = waiting(cancelled + 1);
                engine.close(how);
                assert!(matches!(text.into_text(), Err(Error::EngineEnded)), "{how:?}");
            }
            // After so many texts, nothing more is read.
            None => {
                let text = answered(engine.submit(generate(&model, &next)).unwrap());
                assert_eq!(text.tokens, raw(&model, &next, ANSWER));
                assert_eq!(text.statistics().restored_tokens, 0);
            }
        }
        drop((running, engine, model));
        // The folder has no other writer. So the next store removes the pipes, and writes files.
        turn("", &load(), &words(1, 300));
        let left = pieces(&files);
        assert!(!left.is_empty() && left.iter().all(|file| fs::metadata(file).unwrap().is_file()), "{end:?}");
    }
}
