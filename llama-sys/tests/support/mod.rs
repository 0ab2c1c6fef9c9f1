//! What the integration tests share.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use llama_sys::{Context, ContextParams, Model, ModelParams};

/// The model that the repository ships.
pub(crate) fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/model/autoplace-demo-q8_0.gguf")
}

/// The demo model, loaded once per test process, on the CPU.
pub(crate) fn demo_model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL
        .get_or_init(|| {
            let params = ModelParams {
                n_gpu_layers: 0,
                devices: Some(Vec::new()),
                ..ModelParams::default()
            };
            Model::load(demo_path(), params).expect("the demo model loads")
        })
        .clone()
}

/// A context of the demo model.
pub(crate) fn cpu_context(params: ContextParams) -> Context {
    // One thread: ggml's threads spin while they wait for each other, so that tests running side by side
    // would mostly wait.
    let params = ContextParams {
        n_threads: Some(1),
        n_threads_batch: Some(1),
        ..params
    };
    Context::new(&demo_model(), params).expect("the demo model makes a context")
}
