//! Models that are made of metadata alone, and models that are written.

use crate::support::{cpu, demo_path};
use llama_sys::{Error, LoadMode, Model, ModelParams};

fn skeleton() -> Model {
    let params = ModelParams { no_alloc: true, load_mode: LoadMode::None, ..cpu() };
    Model::load(demo_path(), params).unwrap()
}

#[test]
fn what_is_written_can_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.gguf");
    let model = Model::load(demo_path(), ModelParams::default()).unwrap();
    model.save(&path).unwrap();
    let again = Model::load(&path, ModelParams::default()).unwrap();
    assert_eq!(again.tensors(), model.tensors());
}

#[test]
fn a_model_without_data_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let error = skeleton().save(folder.path().join("x.gguf")).unwrap_err();
    assert_matches!(error, Error::InvalidParameter { .. });
}

#[test]
fn metadata_that_is_not_there_is_said_to_be_unreadable() {
    let error = Model::from_metadata("no such file").unwrap_err();
    assert_matches!(error, Error::Unreadable { .. });
}
