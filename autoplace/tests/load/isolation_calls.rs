//! A model in a worker: its embedders and its vocabulary behave as in this process.

use std::path::Path;

use crate::isolation::resuming_process;
use crate::text_support::worker;
use autoplace::embed::Embedding;
use autoplace::generate::{Engine, Error};
use autoplace::gguf::TensorType::F32;
use autoplace::llama_sys;
use autoplace::memory::Pooling;
use autoplace::{Isolation, Model, WorkerProcess, embed};
use test_support::demo_path;
use test_support::embedding_models::{bert, classifier};

fn load(path: &Path, process: Option<WorkerProcess>) -> Model {
    let isolation = process.map_or(Isolation::None, Isolation::Process);
    let builder = Model::builder(path).n_threads(1).isolation(isolation);
    let builder = if path == demo_path() { builder.parallel(3, 128) } else { builder.embeddings(Pooling::Model) };
    builder.load().unwrap()
}

fn demo(process: Option<WorkerProcess>) -> Model {
    load(&demo_path(), process)
}

#[test]
fn the_vocabulary_is_read_in_this_process() {
    let (here, there) = (demo(None), demo(Some(worker())));
    let text = "Thus it came to pass, in the 7th year…";
    assert_eq!(there.tokenize(text).unwrap(), here.tokenize(text).unwrap());
    let pieces = Engine::new(&there).unwrap().with_vocab(|vocab| (vocab.n_tokens(), vocab.piece(5, true).unwrap()));
    let vocab = here.native().unwrap().vocab();
    assert_eq!(pieces.unwrap(), (vocab.n_tokens(), vocab.piece(5, true).unwrap()));
    // So is that of an embedder's model.
    let folder = tempfile::tempdir().unwrap();
    let path = test_support::random_weights::write(&bert(F32), folder.path());
    let n_tokens = |process| {
        let embedder = load(&path, process).embedder().unwrap();
        embedder.model().with_vocab(llama_sys::Vocab::n_tokens).unwrap()
    };
    assert_eq!(n_tokens(Some(worker())), n_tokens(None));
}

fn embedded(path: &Path, process: Option<WorkerProcess>, texts: &[String]) -> Vec<Embedding> {
    load(path, process).embedder().unwrap().embed(texts).unwrap()
}

#[test]
fn an_embedder_gives_the_vectors_of_this_process_however_many_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = test_support::random_weights::write(&bert(F32), folder.path());
    // The result consists of more numbers than fit into one message.
    let texts: Vec<String> = (0..4200).map(|n| format!("the sea{}", " moon".repeat(n % 7))).collect();
    let there = embedded(&path, Some(worker()), &texts);
    assert_eq!(there, embedded(&path, None, &texts));
    assert!(there.len() * there[0].width() > 1 << 20);
}

#[test]
fn an_embedder_in_a_worker_says_what_it_is_and_what_it_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let sketch = classifier(&["calm", "storm"]);
    let path = test_support::random_weights::write(&sketch, folder.path());
    let run = |process| {
        let model = load(&path, process);
        let mut embedder = model.embedder().unwrap();
        let texts = ["the sea".to_owned(), "the moon ".repeat(400)];
        let report = format!(
            "{:?} {:?} {:?} {:?} {:?}",
            embedder.labels(),
            embedder.pooling(),
            embedder.longest_text(),
            embedder.rerank("the sea", &["the moon", "a cat"]),
            embedder.embed(&texts),
        );
        let mut embedder = embedder.truncate(true).normalize(false);
        let scores = embedder.embed(&texts).unwrap();
        embedder.abort_handle().abort();
        let aborted = embedder.embed(&texts);
        assert_matches!(aborted, Err(embed::Error::Native(llama_sys::Error::Aborted)));
        embedder.embed(&texts[..1]).unwrap();
        let second = model.embedder().map(drop);
        assert_matches!(second, Err(embed::Error::Busy));
        drop(embedder);
        assert_matches!(model.generate("In").text(), Err(Error::NotGenerative { .. }));
        (report, scores)
    };
    assert_eq!(run(Some(worker())), run(None));
    assert!(demo(Some(worker())).embedder().map(drop).unwrap_err().to_string().contains("loaded to generate"));
}

#[cfg(unix)]
mod deaths {
    use super::*;
    use crate::isolation::deaths::kill;

    #[test]
    fn an_embedder_goes_on_in_another_worker() {
        let folder = tempfile::tempdir().unwrap();
        let path = test_support::random_weights::write(&bert(F32), folder.path());
        let model = load(&path, Some(resuming_process(1)));
        let mut embedder = model.embedder().unwrap();
        let abort = embedder.abort_handle();
        let before = embedder.embed(&["the sea"]).unwrap();
        for _ in 0..2 {
            kill(&model);
            assert_eq!(embedder.embed(&["the sea"]).unwrap(), before);
        }
        abort.abort();
        assert!(embedder.embed(&["the sea"]).is_err());
        drop(embedder);
        let mut fails = load(&path, Some(worker())).embedder().unwrap();
        drop(model);
        fails.embed(&["the sea"]).unwrap();
    }
}
