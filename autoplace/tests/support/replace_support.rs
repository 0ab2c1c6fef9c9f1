//! Simulated cards, plans for them, and texts. The tests that re-place a model share them.

use std::path::{Path, PathBuf};

use autoplace::generate::{GenerateRequest, Resumed, Session, TokenStream};
use autoplace::load;
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, Plan, Request};
use autoplace::{Model, ModelBuilder};
use tempfile::TempDir;
use test_support::demo_path;

use super::text_support::{Completion, texts_of};

/// A request with enough headroom for buffers that grow in a warm-up. Nothing is repacked, so that the host and the
/// cards compute the same bits.
pub(crate) fn request() -> Request {
    let mut request = Request::new().headroom(Headroom::Bytes(256 << 10));
    request.params.repack = false;
    request
}

/// A load with only one attempt. If there is not enough memory, the result is an error, and not another plan.
pub(crate) fn builder(path: &Path, request: &Request) -> ModelBuilder {
    Model::builder(path).request(request.clone()).n_threads(1).attempts(1)
}

/// A plan for the memory that is free now, with `layers` layers on cards.
pub(crate) fn plan(path: &Path, request: &Request, layers: u32) -> Plan {
    let exactly = request.clone().n_gpu_layers(GpuLayers::Exactly(layers));
    builder(path, &exactly).plan().unwrap()
}

/// A copy of the demo model in a folder of its own, which is removed with the value.
pub(crate) struct DemoCopy {
    folder: TempDir,
}

impl DemoCopy {
    pub(crate) fn new() -> Self {
        let copy = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::copy(demo_path(), copy.path()).unwrap();
        copy
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    /// Replaces the file by one that is a byte longer. A loaded model keeps the old file mapped.
    pub(crate) fn replace_by_longer(&self) {
        let longer = self.folder.path().join("longer.gguf");
        let mut bytes = std::fs::read(self.path()).unwrap();
        bytes.push(0);
        std::fs::write(&longer, bytes).and_then(|()| std::fs::rename(&longer, self.path())).unwrap();
    }
}

/// Loads the model with the plan that [`plan`] makes.
pub(crate) fn load(path: &Path, request: &Request, layers: u32) -> Model {
    let exactly = request.clone().n_gpu_layers(GpuLayers::Exactly(layers));
    builder(path, &exactly).load().unwrap()
}

/// Re-places the model as soon as no text is being generated.
pub(crate) fn replace(model: &Model, plan: Option<&Plan>) {
    while let Err(error) = model.replace(plan.cloned()) {
        assert!(matches!(error, load::Error::Busy), "{error}");
    }
}

/// Two texts: a greedy one, and a random one with a penalty, whose sampler has state.
pub(crate) fn generations(model: &Model, prompt: &str, tokens: usize) -> [GenerateRequest; 2] {
    [
        model.generate(prompt).temp(0.0).repeat_penalty(1.2).max_tokens(tokens),
        model.generate(prompt).seed(7).temp(1.2).repeat_penalty(1.3).max_tokens(tokens),
    ]
}

/// The text of a stream. Before each of its pieces, `before_piece` is called.
pub(crate) fn text_of(generate: GenerateRequest, mut before_piece: impl FnMut(&mut TokenStream, usize)) -> String {
    let mut stream = generate.stream().unwrap();
    let mut text = String::new();
    for index in 0.. {
        before_piece(&mut stream, index);
        match stream.next() {
            Some(piece) => text.push_str(&piece.unwrap()),
            None => break,
        }
    }
    text
}

/// Runs a session with one text to the text's end. After every fourth step, the model is re-placed with the next of
/// these plans. Each time, the states must be restored.
pub(crate) fn run_replacing(session: &mut Session, plans: &[Plan]) -> Completion {
    let mut plans = plans.iter().cycle();
    let mut texts = texts_of(session, |session, step| {
        if step % 5 == 4 {
            let replaced = session.replace(plans.next().cloned()).unwrap();
            assert_eq!(replaced.resumed, Resumed::Restored);
        }
    });
    texts.remove(0)
}
