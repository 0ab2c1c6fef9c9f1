//! Models that are made of metadata alone, and models that are written.

use crate::support::{cpu, demo_path};
use llama_sys::{Error, LoadMode, Model, ModelParams, architectures};

fn skeleton() -> Model {
    let params = ModelParams { no_alloc: true, load_mode: LoadMode::None, ..cpu() };
    Model::load(demo_path(), params).unwrap()
}

#[test]
fn the_architectures_of_llama_cpp_have_names() {
    let names = architectures();
    for name in ["llama", "qwen3moe", "mamba2"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
    assert!(names.iter().all(|name| !name.is_empty()));
}

#[test]
fn a_model_tells_its_tensors() {
    let tensors = skeleton().tensors();
    let embedding = tensors.iter().find(|it| it.name == "token_embd.weight");
    assert_eq!(embedding.unwrap().shape[2..], [1, 1]);
    assert!(tensors.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn metadata_alone_makes_every_tensor_that_the_architecture_can_have() {
    let file = skeleton().tensors();
    let made = Model::from_metadata(demo_path()).unwrap().tensors();
    for tensor in &file {
        assert!(made.contains(tensor), "{tensor:?}");
    }
    // Biases, for one, are optional.
    assert!(made.len() > file.len());
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
