//! Models loaded by the library and by llama.cpp itself.

use std::path::Path;

use autoplace::Model;
use autoplace::llama_sys::{self, ModelParams};
use test_support::demo_path;

/// The demo model, loaded only for the caller. The model has one thread, because ggml's threads spin while they wait
/// for each other. Tests that run side by side on few cores would mostly wait.
pub(crate) fn load_demo() -> Model {
    Model::builder(demo_path()).n_threads(1).load().expect("the demo model loads")
}

/// A model loaded by llama.cpp on the host.
pub(crate) fn native(path: &Path) -> Result<llama_sys::Model, llama_sys::Error> {
    let params = ModelParams { devices: Some(Vec::new()), ..ModelParams::default() };
    llama_sys::Model::load(path, params)
}
