//! Sessions, embedders, saved caches and the vocabulary of a model in a worker: as in this process.

use std::path::Path;

use crate::embedding_models::{bert, classifier};
use crate::isolation::{program, resuming_process};
use crate::native_support::demo_path;
use autoplace::embed::Embedding;
use autoplace::generate::{Engine, Error, Fork, SavedCacheError};
use autoplace::gguf::TensorType::F32;
use autoplace::llama_sys;
use autoplace::load::Replacement;
use autoplace::memory::Pooling;
use autoplace::worker::Error as Lost;
use autoplace::{Isolation, Model, WorkerProcess, embed};

const PROMPT: &str = "And the king said unto his servants,";

fn load(path: &Path, process: Option<WorkerProcess>) -> Model {
    let isolation = process.map_or(Isolation::None, Isolation::Process);
    let builder = Model::builder(path).n_threads(1).isolation(isolation);
    let builder = if path == demo_path() { builder.parallel(3, 128) } else { builder.embeddings(Pooling::Model) };
    builder.load().unwrap()
}

fn demo(process: Option<WorkerProcess>) -> Model {
    load(&demo_path(), process)
}

/// All that a session tells, of everything that it can be asked for.
fn session(model: &Model, folder: &Path) -> Vec<String> {
    let mut told = Vec::new();
    let mut session = model.session().unwrap();
    let calm = session.begin(model.generate("In the").temp(0.0).max_tokens(30)).unwrap();
    let drawn = session.begin(model.generate(PROMPT).seed(3).max_tokens(40)).unwrap();
    let mut steps = |session: &mut autoplace::generate::Session, steps: usize| {
        for _ in 0..steps {
            let pieces = session.step().unwrap().map(|it| (it.sequence, it.token, it.text));
            told.push(format!("{:?}", pieces.collect::<Vec<_>>()));
            let of = |it| session.statistics(it).map(|it| (it.prompt_tokens, it.generated_tokens));
            let is = (session.len(), session.is_empty(), session.failed(), session.n_seq_max());
            told.push(format!("{is:?} {:?} {:?}", of(calm), session.tokens(drawn)));
        }
    };
    steps(&mut session, 6);
    let other = session.fork(drawn, Fork::from_prompt().seed(9)).unwrap();
    steps(&mut session, 4);
    let path = folder.join("drawn.kv");
    let mut more = vec![
        format!("{:?}", session.roll_back(calm, 3).unwrap()),
        format!("{:?}", session.can_roll_back(calm).unwrap()),
        format!("{:?}", session.roll_back(calm, 1000).unwrap_err()),
        format!("{:?}", session.save(drawn, &path).unwrap()),
        format!("{:?}", session.end(other).map(|it| it.generated_tokens)),
        format!("{:?}", session.save(other, &path).unwrap_err()),
        format!("{:?}", session.tokens(other)),
        format!("{:?}", session.restore(&path).unwrap()),
        format!("{}", session.restore(folder.join("none.kv")).unwrap_err()),
        format!("{:?}", session.checkpoints()),
    ];
    steps(&mut session, 60);
    more.push(format!("{:?}", session.save_last(folder.join("last.kv")).unwrap().tokens));
    more.push(format!("{:?}", session.begin(model.generate("")).map(|_| ())));
    told.append(&mut more);
    told
}

#[test]
fn a_session_is_asked_for_everything_and_tells_what_one_of_this_process_tells() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let here = session(&demo(None), folders[0].path());
    let there = session(&demo(Some(program())), folders[1].path());
    let unplaced = |told: &[String], folder: &Path| {
        let folder = folder.display().to_string();
        told.iter().map(|it| it.replace(&folder, "FOLDER")).collect::<Vec<_>>()
    };
    let (here, there) = (unplaced(&here, folders[0].path()), unplaced(&there, folders[1].path()));
    assert!(here.len() > 140, "{here:?}");
    for (here, there) in here.iter().zip(&there) {
        assert_eq!(there, here);
    }
    assert_eq!(there.len(), here.len());
}

#[test]
fn what_a_session_cannot_have_is_refused_by_its_own_name() {
    let (model, other) = (demo(Some(program())), demo(None));
    let mut session = model.session().unwrap();
    assert_matches!(model.session().map(drop), Err(Error::Busy));
    assert_matches!(session.begin(other.generate(PROMPT)), Err(Error::OtherModel));
    let own = model.generate(PROMPT).sampler(|_, _| 0);
    assert_matches!(session.begin(own), Err(Error::Worker(Lost::Elsewhere { .. })));
    let texts = [(); 3].map(|()| session.begin(model.generate(PROMPT)).unwrap());
    let fourth = session.begin(model.generate(PROMPT));
    assert_matches!(fourth, Err(Error::SequencesBusy { n_seq_max: 3 }));
    session.abort_handle().abort();
    assert_matches!(session.step().map(drop), Err(Error::Native(llama_sys::Error::Aborted)));
    assert!(session.is_empty() && session.statistics(texts[0]).is_none());
    session.begin(model.generate(PROMPT).max_tokens(2)).unwrap();
    session.step().unwrap();
    drop(session);
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}

#[test]
fn a_session_in_a_worker_is_re_placed_between_two_tokens() {
    let run = |model: &Model, replaces: bool| {
        let mut session = model.session().unwrap();
        let text = session.begin(model.generate(PROMPT).seed(5).max_tokens(20)).unwrap();
        let mut said = String::new();
        for step in 0.. {
            if session.is_empty() {
                break;
            }
            let before = model.placement();
            if replaces && step == 4 {
                model.request_replace(Replacement::Anew);
            }
            said.extend(session.step().unwrap().map(|piece| piece.text));
            let is_same = std::sync::Arc::ptr_eq(&before, &model.placement());
            assert_eq!(is_same, !(replaces && step == 4), "{step}");
            if replaces && step == 6 {
                let replaced = session.replace(Some((*model.placement()).clone())).unwrap();
                assert_eq!(session.last_replaced().unwrap().unwrap(), replaced);
                assert_eq!(*replaced.after, *model.placement());
                assert!(session.improve(f64::INFINITY).unwrap().is_none());
            }
        }
        assert!(session.is_loaded() && session.tokens(text).is_none());
        said
    };
    let model = demo(Some(program()));
    assert_eq!(run(&model, true), run(&demo(None), false));
}

#[test]
fn a_saved_cache_of_a_worker_is_one_of_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turn.kv");
    let (here, there) = (demo(None), demo(Some(program())));
    let answer = |model: &Model, prompt: &str| {
        let mut stream = model.generate(prompt).temp(0.0).max_tokens(12).cache_prompt(true).stream().unwrap();
        let text: String = stream.by_ref().map(Result::unwrap).collect();
        (text, stream.statistics().cached_tokens)
    };
    let (said, cached) = answer(&there, PROMPT);
    assert_eq!(cached, 0);
    let saved = there.save_cache(&path).unwrap();
    assert_eq!(here.restore_cache(&path).unwrap(), saved);
    let next = format!("{PROMPT}{said} And he");
    let (text, cached) = answer(&here, &next);
    assert!(cached > PROMPT.len() / 8, "{cached}");
    here.save_cache(&path).unwrap();
    there.restore_cache(&path).unwrap();
    assert_eq!(answer(&there, &next).0, text);
    std::fs::write(&path, "something else").unwrap();
    let refused = there.restore_cache(&path);
    let Err(Error::Saved(refused)) = refused else { panic!("{refused:?}") };
    assert_matches!(*refused, SavedCacheError::NotSaved { .. });
}

#[test]
fn the_vocabulary_is_read_in_this_process() {
    let (here, there) = (demo(None), demo(Some(program())));
    let text = "Thus it came to pass, in the 7th year…";
    assert_eq!(there.tokenize(text).unwrap(), here.tokenize(text).unwrap());
    let engine = Engine::new(&there).unwrap();
    let pieces = engine.with_vocab(|vocab| (vocab.n_tokens(), vocab.piece(5, true).unwrap()));
    let vocab = here.native().unwrap().vocab();
    assert_eq!(pieces.unwrap(), (vocab.n_tokens(), vocab.piece(5, true).unwrap()));
}

fn embedded(path: &Path, process: Option<WorkerProcess>, texts: &[String]) -> Vec<Embedding> {
    let model = load(path, process);
    let mut embedder = model.embedder().unwrap();
    let embeddings = embedder.embed(texts).unwrap();
    assert_eq!(embedder.statistics().texts, texts.len());
    assert_eq!(embedder.width().unwrap(), embeddings[0].width());
    embeddings
}

#[test]
fn an_embedder_gives_the_vectors_of_this_process_however_many_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = crate::random_weights::write(&bert(F32), folder.path());
    // More numbers than a message holds.
    let texts: Vec<String> = (0..4200).map(|n| format!("the sea{}", " moon".repeat(n % 7))).collect();
    let there = embedded(&path, Some(program()), &texts);
    assert_eq!(there, embedded(&path, None, &texts));
    assert!(there.len() * there[0].width() > 1 << 20);
}

#[test]
fn an_embedder_in_a_worker_tells_what_it_is_and_what_it_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let sketch = classifier(&["calm", "storm"]);
    let path = crate::random_weights::write(&sketch, folder.path());
    let run = |process| {
        let model = load(&path, process);
        let mut embedder = model.embedder().unwrap();
        let texts = ["the sea".to_owned(), "the moon ".repeat(400)];
        let told = format!(
            "{:?} {:?} {:?} {:?} {:?}",
            embedder.labels(),
            embedder.pooling(),
            embedder.longest_text(),
            embedder.rerank("the sea", &["the moon", "a cat"]),
            embedder.embed(&texts),
        );
        let mut embedder = embedder.truncate(true).normalize(embed::Normalization::None);
        let scores = embedder.embed(&texts).unwrap();
        embedder.abort_handle().abort();
        let aborted = embedder.embed(&texts);
        assert_matches!(aborted, Err(embed::Error::Native(llama_sys::Error::Aborted)));
        embedder.embed(&texts[..1]).unwrap();
        let second = model.embedder().map(drop);
        assert_matches!(second, Err(embed::Error::Busy));
        drop(embedder);
        assert_matches!(model.generate("In").text(), Err(Error::NotGenerative { .. }));
        (told, scores)
    };
    assert_eq!(run(Some(program())), run(None));
    let generating = demo(Some(program())).embedder().map(drop);
    assert!(generating.unwrap_err().to_string().contains("loaded to generate"));
}

#[cfg(unix)]
mod deaths {
    use super::*;
    use crate::isolation::deaths::kill;

    #[test]
    fn a_session_whose_worker_died_says_so_and_another_has_another() {
        let model = demo(Some(resuming_process(1)));
        for _ in 0..2 {
            let mut session = model.session().unwrap();
            let text = session.begin(model.generate(PROMPT)).unwrap();
            session.step().unwrap();
            kill(&model);
            for _ in 0..2 {
                let died = session.step().map(drop);
                assert_matches!(died, Err(Error::Worker(Lost::Died { .. })));
                assert!(session.is_empty() && session.tokens(text).is_none());
            }
        }
        model.generate(PROMPT).max_tokens(2).text().unwrap();
    }

    #[test]
    fn an_embedder_goes_on_in_another_worker() {
        let folder = tempfile::tempdir().unwrap();
        let path = crate::random_weights::write(&bert(F32), folder.path());
        let model = load(&path, Some(resuming_process(1)));
        let mut embedder = model.embedder().unwrap();
        let abort = embedder.abort_handle();
        let before = embedder.embed(&["the sea"]).unwrap();
        for _ in 0..2 {
            kill(&model);
            assert_eq!(embedder.embed(&["the sea"]).unwrap(), before);
        }
        assert_eq!(embedder.statistics().texts, 3);
        abort.abort();
        assert!(embedder.embed(&["the sea"]).is_err());
        drop(embedder);
        let mut fails = load(&path, Some(program())).embedder().unwrap();
        drop(model);
        fails.embed(&["the sea"]).unwrap();
    }
}
