//! One text becomes two: from where it is, or from the end of its prompt.

use llama_sys::Model;
use serde::{Deserialize, Serialize};

use super::context::Room;
use super::error::Error;
use super::local::SessionHere;
use super::piece::SequenceId;
use super::sampling::Sampling;
use super::sequence::{Sequence, held};
use super::stats::Statistics;

/// How a [fork](super::Session::fork) differs from the text that it is made of. As it is, it does not: the same tokens
/// are chosen for both.
///
/// ```no_run
/// use autoplace::{Model, generate::Fork};
/// let model = Model::builder("model.gguf").parallel(3, 2048).load()?;
/// let mut session = model.session()?;
/// let first = session.begin(model.generate("Three names for a cat:").seed(1).max_tokens(16))?;
/// session.step()?;
/// // The prompt is computed once, and each answer has another first word.
/// let others = [2, 3].map(|seed| session.fork(first, Fork::from_prompt().seed(seed)));
/// # let _ = others;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[must_use = "a fork is made by `Session::fork`"]
pub struct Fork {
    from_prompt: bool,
    sampling: Option<Sampling>,
    seed: Option<u32>,
    max_tokens: Option<usize>,
}

impl Fork {
    /// Goes on from where the text is.
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on from the end of the text's prompt: another answer to it.
    pub fn from_prompt() -> Self {
        Self { from_prompt: true, ..Self::default() }
    }

    /// Other sampling parameters, from the next token on. Without a seed one is drawn.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = Some(sampling);
        self
    }

    /// Another seed: random numbers as of a text that had this seed from its beginning.
    pub fn seed(mut self, seed: u32) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Ends after `n` generated tokens, those before the fork included. Default: as the text that it is made of.
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = Some(n);
        self
    }
}

impl SessionHere {
    pub(super) fn fork(&mut self, sequence: SequenceId, fork: Fork) -> Result<SequenceId, Error> {
        let at = self.position(sequence)?;
        let used = self.used();
        let id = self.next_id();
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        let Room { sequences, all, .. } = lent.room;
        if self.sequences.len() >= sequences {
            return Err(Error::SequencesBusy { n_seq_max: sequences });
        }
        let source = &self.sequences[at];
        let mut forked = source.forked(id, fork, lent.context.model())?;
        // Cells of its own are those that are not computed yet, and all of them where they would be computed again.
        let seq = source.held.seq;
        let known = &forked.tokens[..forked.held.computed];
        let known = (known, &source.scales);
        let kept = self.cache.reach(&lent.context, seq, known.0, known.1)?;
        let own = forked.needs() - kept;
        if lent.context.kv_unified() && used + own > all {
            return Err(Error::ContextTooSmall { tokens: used + own, context: all });
        }
        let running = held(&self.sequences);
        let context = &mut lent.context;
        let place = self.cache.fork(context, lent.room, &running, seq, known)?;
        let place = place.ok_or(Error::SequencesBusy { n_seq_max: sequences })?;
        forked.held.seq = place.seq;
        if place.cached < forked.held.computed {
            forked.computed_to(place.cached);
        }
        forked.held.shares = place.shares.map(|_| (sequence, place.cached));
        if forked.statistics.first_token_latency.is_none() {
            forked.statistics.cached_tokens = place.cached;
        }
        self.insert(forked);
        Ok(id)
    }
}

impl Sequence {
    /// The same text under another number, without a place.
    fn forked(&self, id: SequenceId, fork: Fork, model: &Model) -> Result<Self, Error> {
        let generated = self.statistics.generated_tokens;
        if fork.from_prompt && self.statistics.discarded_tokens > 0 {
            return Err(Error::CannotRollBack {
                tokens: generated,
                possible: 0,
                reason: "a part of the prompt was forgotten when the context was full".into(),
            });
        }
        let mut choosing = self.choices.choosing.clone();
        choosing.sampling = fork.sampling.unwrap_or(choosing.sampling);
        choosing.sampling.seed = fork.seed.or(choosing.sampling.seed);
        let (tokens, choices) = if fork.from_prompt { (self.prompt, 0) } else { (self.len(), generated) };
        let mut chooser = self.chooser_after(&mut choosing, tokens, choices, model)?;
        if !fork.from_prompt {
            chooser.take_custom(&self.choices.chooser);
        }
        let mut forked = self.twin(id, choosing, chooser);
        forked.limits.max_tokens = fork.max_tokens.unwrap_or(self.limits.max_tokens);
        if fork.from_prompt {
            forked.tokens.truncate(forked.prompt);
            forked.held.in_batches = forked.prompt;
            // The last token of the prompt is computed again, for what comes after it.
            forked.held.computed = forked.held.computed.min(forked.prompt - 1);
            forked.choices.known = forked.prompt;
            forked.text = forked.before.text.clone();
            forked.matcher = forked.before.matcher.clone();
            forked.statistics = Statistics::default();
        }
        forked.statistics.seed = forked.choices.chooser.seed();
        Ok(forked)
    }
}
