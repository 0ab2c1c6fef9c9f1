//! An embedder of a model in a worker: its calls, and how the application and the worker handle them. The calls run one
//! after the other.

use serde::{Deserialize, Serialize};

use super::local::LocalEmbedder;
use super::options::{About, Options};
use super::{Embedding, Error};
use crate::load::ipc_error::Failed;
use crate::load::{self, AbortHandle, LentWorker, Model};
use crate::worker::{self, Sender};

const DOING: &str = "embedding";

/// Maximum number of floats per message. Longer results are split, so that no message exceeds its limit.
const AT_ONCE: usize = 1 << 20;

type Request = worker::Request<(), (), Call>;

/// A request to a worker about embeddings.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// The first call: the worker takes the context, and answers with the facts that apply to all texts.
    Open { run: u64 },
    /// Computes the vectors of texts, or of pairs of a query and documents.
    Compute { query: Option<String>, texts: Vec<String>, options: Options },
    /// The last call, which has no answer.
    Close,
}

/// The shapes of results, without the values. Each shape has the number of values, the width, the number of tokens, and
/// whether the text was truncated. The values follow, at most [`AT_ONCE`] per message.
type Shapes = Vec<(usize, usize, usize, bool)>;

/// The application's side of an embedder.
#[derive(Debug)]
pub(super) struct WorkerEmbedder {
    worker: LentWorker,
    /// The process that has the context, and the facts that apply to all texts.
    opened: Option<(u32, About)>,
}

impl WorkerEmbedder {
    pub(super) fn open(model: &Model) -> Result<Self, Error> {
        let worker = LentWorker::take(model)?;
        let mut embedder = Self { worker, opened: None };
        embedder.ask(None)?;
        Ok(embedder)
    }

    pub(super) fn compute(
        &mut self,
        query: Option<&str>,
        texts: &[&str],
        options: Options,
    ) -> Result<Vec<Embedding>, Error> {
        let texts = texts.iter().copied().map(str::to_owned).collect();
        self.ask(Some(&Request::Embed(Call::Compute { query: query.map(str::to_owned), texts, options })))
    }

    /// Sends a call to the worker. If the worker dies, sends the call to another worker, as many times as the
    /// application allows. Each new worker opens the embedder first.
    fn ask(&mut self, call: Option<&Request>) -> Result<Vec<Embedding>, Error> {
        let Self { worker, opened } = self;
        worker.survive(|worker| {
            if opened.as_ref().is_none_or(|(process, _)| Some(*process) != worker.id()) {
                let open = Request::Embed(Call::Open { run: worker.run() });
                match worker.ask(&open, DOING)? {
                    Ok(about) => *opened = worker.id().map(|process| (process, about)),
                    Err(Failed(error)) => return Ok(Err(error)),
                }
            }
            let Some(call) = call else {
                return Ok(Ok(Vec::new()));
            };
            match worker.ask::<Result<Shapes, Failed<Error>>>(call, DOING)? {
                Ok(shapes) => Ok(Ok(hear(worker, shapes)?)),
                Err(Failed(error)) => Ok(Err(error)),
            }
        })?
    }

    pub(super) fn about(&self) -> Result<About, Error> {
        self.opened.as_ref().map(|(_, about)| about.clone()).ok_or_else(|| load::Error::NotLoaded.into())
    }

    pub(super) fn model(&self) -> &Model {
        self.worker.model()
    }

    pub(super) fn abort_handle(&self) -> AbortHandle {
        self.worker.abort_handle()
    }
}

impl Drop for WorkerEmbedder {
    fn drop(&mut self) {
        if let Some(sender) = self.worker.sender() {
            // A dead worker has no embedder to close.
            let _ = sender.send(&Request::Embed(Call::Close));
        }
    }
}

/// Receives the values of the vectors.
fn hear(worker: &mut LentWorker, shapes: Shapes) -> Result<Vec<Embedding>, worker::Error> {
    let hear = |(wanted, width, tokens, truncated)| {
        let mut values = Vec::new();
        while values.len() < wanted {
            values.extend(worker.receive::<Vec<f32>>(DOING)?);
        }
        Ok(Embedding { values, width, tokens, truncated })
    };
    shapes.into_iter().map(hear).collect()
}

/// The worker's side: takes the context and reports the outcome.
pub(crate) fn open(model: Result<&Model, Error>, sender: &Sender) -> Result<Option<LocalEmbedder>, worker::Error> {
    let opened = model.and_then(LocalEmbedder::open);
    let about = opened.as_ref().map_err(Error::clone).and_then(LocalEmbedder::about);
    sender.send(&about.map_err(Failed))?;
    Ok(opened.ok())
}

/// The worker's side of [`Call::Compute`]. Returns false when the application is gone.
pub(crate) fn compute(
    embedder: &mut LocalEmbedder,
    (query, texts, options): (Option<&str>, &[String], Options),
    sender: &Sender,
) -> Result<bool, worker::Error> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let embeddings = embedder.compute(query, &texts, options);
    let shape =
        |embedding: &Embedding| (embedding.values.len(), embedding.width, embedding.tokens, embedding.truncated);
    let shapes = embeddings.as_ref().map(|all| all.iter().map(shape).collect::<Shapes>());
    let is_heard = sender.send(&shapes.map_err(|error| Failed(error.clone())))?;
    for values in embeddings.iter().flatten().flat_map(|embedding| embedding.values.chunks(AT_ONCE)) {
        if !sender.send(&values)? {
            return Ok(false);
        }
    }
    Ok(is_heard)
}
