//! Forks a text: the second text continues from the present end of the first, or from the end of its prompt.

use serde::{Deserialize, Serialize};

use crate::decode::error::Error;
use crate::decode::piece::SequenceId;
use crate::decode::sampling::Sampling;
use crate::decode::sequence::Sequence;
use crate::run::local::LocalSession;

/// Settings of a [fork](crate::generate::Session::fork) that differ from the original text. By default, no setting
/// differs, and both texts get the same tokens.
///
/// ```no_run
/// use autoplace::{Model, generate::Fork};
/// let model = Model::builder("model.gguf").parallel(3, 2048).load()?;
/// let mut session = model.session()?;
/// let first = session.begin(model.generate("Three names for a cat:").seed(1).max_tokens(16))?;
/// session.step()?;
/// // The prompt is computed once, and each answer has another first word.
/// for seed in [2, 3] {
///     session.fork(first, Fork::from_prompt().seed(seed))?;
/// }
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
    /// Continues from the present end of the text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues from the end of the prompt, for another answer to it.
    pub fn from_prompt() -> Self {
        Self { from_prompt: true, ..Self::default() }
    }

    /// Uses other sampling parameters from the next token on. If these parameters have no seed, the seed of the text
    /// stays.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = Some(sampling);
        self
    }

    /// Uses another seed. The fork draws the same random numbers as a text that had this seed from its beginning.
    pub fn seed(mut self, seed: u32) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Ends after `n` generated tokens, including the tokens before the fork. Default: the limit of the text.
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = Some(n);
        self
    }
}

impl LocalSession {
    pub(crate) fn fork(&mut self, sequence: SequenceId, fork: Fork) -> Result<SequenceId, Error> {
        let at = self.position(sequence).ok_or(Error::NotRunning { sequence })?;
        let (room, mut free) = self.room_for_another()?;
        let lent = self.lent.as_ref().ok_or_else(Error::not_loaded)?;
        let source = &self.sequences[at];
        let prompt = source.prompt;
        let end = if fork.from_prompt { prompt } else { source.len() };
        let mut spec = source.spec_after(prompt)?;
        if let Some(sampling) = fork.sampling {
            let seed = sampling.seed.or(spec.sampling.seed);
            spec.sampling = Sampling { seed, ..sampling };
        }
        spec.sampling.seed = fork.seed.or(spec.sampling.seed);
        spec.limits.max_tokens = fork.max_tokens.unwrap_or(spec.limits.max_tokens);
        if !fork.from_prompt {
            spec.custom = source.chooser.custom();
        }
        // Cells that both texts share are counted once.
        if lent.context.kv_unified() {
            let known = source.held.computed.min(end - 1);
            let known = source.all().first(known);
            free += self.cache.reach(&lent.context, source.held.seq, known)?;
        }
        let id = self.next_id();
        let lent = self.lent.as_ref().ok_or_else(Error::not_loaded)?;
        let source = &self.sequences[at];
        let generated = &source.tokens[prompt..end];
        let asked = Box::new(spec.without_prompt());
        let mut forked = Sequence::new(id, spec, generated, &self.model, &lent.vocab, room.each.min(free))?;
        forked.asked = Some(asked);
        forked.keep_seed();
        if !generated.is_empty() && forked.chooser.depends_on_logits() {
            return Err(Error::ChoicesLost { choices: generated.len() });
        }
        self.join(forked, true, false, None)?;
        Ok(id)
    }
}
