//! The texts of an engine, which this process or a worker computes.

use std::future;
use std::sync::Arc;

use llama_sys::Token;

use super::queue::Queue;
use crate::decode::error::Error;
use crate::decode::piece::SequenceId;
use crate::decode::request::{GenerateRequest, Spec};
use crate::decode::sequence::Sequence;
use crate::decode::stats::Replaced;
use crate::load::Model;
use crate::run::metrics::Metrics;
use crate::run::places::{Places, Shutdown};
use crate::run::progress::Progress;
use crate::run::remote::Link;
use crate::run::token_stream::{Source, TokenStream};

/// The texts of one engine.
#[derive(Debug, Clone)]
pub(super) struct Texts {
    places: Arc<Places>,
    computed: Computed,
}

/// The place where the texts are computed.
#[derive(Debug, Clone)]
enum Computed {
    /// In this process: the engine's thread takes the texts from its queue.
    Local(Arc<Queue>),
    /// In a worker, which has its own queue.
    Worker(Arc<Link>),
}

/// A checked request: a sequence that this process computes, or a request that a worker will check.
enum Checked {
    /// The flag tells whether the prompt reuses tokens that the context already holds.
    Local(Arc<Queue>, Box<Sequence>, bool),
    Worker(Arc<Link>, Box<Spec>),
}

impl Texts {
    pub(super) fn local(queue: Arc<Queue>) -> Self {
        Self { places: Arc::clone(&queue.places), computed: Computed::Local(queue) }
    }

    pub(super) fn in_worker(link: Arc<Link>, places: Arc<Places>) -> Self {
        Self { places, computed: Computed::Worker(link) }
    }

    pub(super) fn model(&self) -> &Model {
        match &self.computed {
            Computed::Local(queue) => &queue.model,
            Computed::Worker(link) => &link.model,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.places.capacity()
    }

    pub(super) fn metrics(&self) -> Metrics {
        match &self.computed {
            Computed::Local(queue) => queue.metrics(),
            Computed::Worker(link) => {
                let metrics = link.metrics();
                Metrics { running: self.places.accepted().saturating_sub(metrics.queued), ..metrics }
            }
        }
    }

    /// `None` for a model in a worker, because the worker's engine does not report the outcomes of re-placements.
    pub(super) fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        match &self.computed {
            Computed::Local(queue) => queue.last_replaced(),
            Computed::Worker(_) => None,
        }
    }

    /// Refuses further requests.
    pub(super) fn close(&self, how: Shutdown) {
        match &self.computed {
            Computed::Local(queue) => queue.close(how),
            Computed::Worker(link) => {
                self.places.close(how);
                link.close(how);
            }
        }
    }

    /// Checks a request and queues it once there is a place. `so_far` contains tokens that an earlier process
    /// generated. For a model in a worker, the worker checks the request.
    pub(super) fn submit(
        &self,
        generate: GenerateRequest,
        so_far: &[Token],
        waits: bool,
    ) -> impl Future<Output = Result<TokenStream, Error>> + Send + use<> {
        let checked = self.check(generate, so_far);
        let turn = self.places.turn(waits);
        async move {
            let (checked, mut progress) = checked?;
            let place = turn.await?;
            let pieces = match checked {
                Checked::Local(queue, sequence, reuse) => queue.push(*sequence, reuse, place)?,
                Checked::Worker(link, spec) => {
                    let mut pieces = link.submit(*spec, place)?;
                    let accepted = future::poll_fn(|context| pieces.poll_next(context)).await;
                    (_, progress.statistics) = accepted.unwrap_or(Err(Error::EngineEnded))?;
                    pieces
                }
            };
            Ok(TokenStream::new(Source::Channel(pieces), progress))
        }
    }

    fn check(&self, generate: GenerateRequest, so_far: &[Token]) -> Result<(Checked, Progress), Error> {
        let GenerateRequest { model, spec } = generate;
        if !model.is(self.model()) {
            return Err(Error::OtherModel);
        }
        // A worker would return this error without its type.
        model.scales(spec.lora.as_deref())?;
        let mut progress = Progress::of_request(&spec);
        match &self.computed {
            Computed::Local(queue) => {
                let reuse = spec.cache_prompt.unwrap_or(true) && so_far.is_empty();
                let sequence = model.with_vocab(|vocab| {
                    Sequence::new(SequenceId(0), spec, so_far, &model, vocab, queue.room().each)
                })??;
                progress.statistics = sequence.statistics;
                Ok((Checked::Local(Arc::clone(queue), Box::new(sequence), reuse), progress))
            }
            Computed::Worker(link) => {
                spec.check_for_worker()?;
                Ok((Checked::Worker(Arc::clone(link), Box::new(spec)), progress))
            }
        }
    }
}
