//! Models that are written to files.

use crate::support::demo_path;
use llama_sys::{Model, ModelParams};

#[test]
fn a_written_model_can_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.gguf");
    let model = Model::load(demo_path(), ModelParams::default()).unwrap();
    model.save(&path).unwrap();
    let again = Model::load(&path, ModelParams::default()).unwrap();
    assert_eq!(again.tensors(), model.tensors());
}
