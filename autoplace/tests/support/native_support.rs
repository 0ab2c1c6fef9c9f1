//! Models that the library loads, and models that llama.cpp itself loads.

use std::path::Path;

use autoplace::Model;
use autoplace::llama_sys::{self, ModelParams};
use test_support::demo_path;

/// The demo model. It is loaded again for each caller. It has one thread, because ggml's threads spin while they wait
/// for each other. If tests run at the same time on few cores, they would mostly wait.
pub(crate) fn load_demo() -> Model {
    Model::builder(demo_path()).n_threads(1).load().expect("the demo model loads")
}

/// A model that llama.cpp itself loads on the host.
pub(crate) fn native(path: &Path) -> Result<llama_sys::Model, llama_sys::Error> {
    let params = ModelParams { devices: Some(Vec::new()), ..ModelParams::default() };
    llama_sys::Model::load(path, params)
}
