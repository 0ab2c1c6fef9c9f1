//! A model that is to embed is loaded in a worker like any other; that it cannot embed there so far, it says.

use crate::native_support::demo_path;
use autoplace::embed::Error;
use autoplace::memory::Pooling;
use autoplace::worker;
use autoplace::{Isolation, Model, WorkerProcess};

#[test]
fn an_embedder_is_not_to_be_had_of_a_worker() {
    let program = WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"));
    let model = Model::builder(demo_path())
        .embeddings(Pooling::Mean)
        .threads(1)
        .isolation(Isolation::Process(program))
        .load()
        .unwrap();
    assert_eq!(model.placement().context.embeddings, Some(Pooling::Mean));
    let refused = model.embedder().map(drop).unwrap_err();
    assert!(
        matches!(refused, Error::Worker(worker::Error::Elsewhere { .. })),
        "{refused}"
    );
    let refused = model.generate("In").text().unwrap_err();
    assert!(refused.to_string().contains("loaded to embed"), "{refused}");
}
