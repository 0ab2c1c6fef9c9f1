//! One text in the making: its tokens, what the context holds of them, and what the next one is chosen by.

mod batch;
mod held;

pub(super) use held::Held;

use batch::InBatch;
use llama_sys::{SeqId, Token, Vocab};

use super::choose::Chooser;
use super::constraint::Matcher;
use super::error::Error;
use super::piece::SequenceId;
use super::request::{Limits, Spec};
use super::speculative::Speculator;
use super::stats::Statistics;
use super::text::TextAssembler;
use super::when_full::{Shifting, WhenFull};
use crate::load::{self, Scales};

/// A text of a session. What of it is tied to the loaded model can be let go of, and made again.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// The prompt, and what was generated.
    pub(super) tokens: Vec<Token>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    pub(super) scales: Scales,
    pub(super) limits: Limits,
    pub(super) shifting: Option<Shifting>,
    pub(super) text: TextAssembler,
    /// What the text is held to.
    pub(super) matcher: Option<Matcher>,
    pub(super) chooser: Chooser,
    pub(super) held: Held,
    batch: InBatch,
    /// Turns of other adapters since its own.
    pub(super) turns_waited: u32,
    pub(super) speculator: Option<Speculator>,
    pub(super) statistics: Statistics,
}

impl Sequence {
    /// What was asked for, with everything checked that can be: a text that has no [place](Self::put) yet, after the
    /// tokens that an earlier process has generated. `capacity`: tokens that the context holds of it.
    pub(super) fn new(
        id: SequenceId,
        spec: Spec,
        so_far: &[Token],
        model: &load::Model,
        vocab: &Vocab,
        capacity: usize,
    ) -> Result<Self, Error> {
        let scales = model.scales(spec.lora.as_deref())?;
        let matcher = spec.matcher(model, vocab)?;
        if spec.stops.iter().any(String::is_empty) {
            return Err(Error::EmptyStop);
        }
        let mut tokens = spec.prompt.tokenize(vocab)?;
        let prompt = tokens.len();
        let shifts = matches!(spec.when_full, WhenFull::Shift { .. });
        // What a shift forgot needs no place.
        let in_place = prompt + if shifts { 0 } else { so_far.len() };
        // The last token of an answer needs no place.
        if in_place >= capacity + usize::from(!so_far.is_empty()) {
            return Err(Error::PromptTooLong { tokens: in_place, context: capacity });
        }
        let shifting = Shifting::of(&spec.when_full, &tokens, capacity, vocab)?;
        let text = TextAssembler::new(spec.stops);
        tokens.reserve(spec.limits.max_tokens.min(capacity.saturating_sub(prompt)));
        let mut chooser = Chooser::new(&spec.sampling, spec.logprobs, spec.custom, vocab.model())?;
        tokens.iter().try_for_each(|it| chooser.accept(*it))?;
        let statistics = Statistics { seed: chooser.seed(), ..Statistics::default() };
        let mut sequence = Self {
            id,
            tokens,
            prompt,
            scales,
            limits: spec.limits,
            shifting,
            text,
            matcher,
            chooser,
            held: Held::nothing_of(prompt),
            batch: InBatch::default(),
            turns_waited: 0,
            speculator: Speculator::new(spec.speculation),
            statistics,
        };
        sequence.go_on_after(so_far, vocab, capacity)?;
        Ok(sequence)
    }

    /// Puts tokens behind the prompt that an earlier process has generated: they are computed again one after the
    /// other, as they were there, since another shape of batch would round otherwise. Their text has been told, but for
    /// what is held back. What has no place in `capacity` tokens was forgotten there too. What a sampler goes by that
    /// depends on logits (mirostat, adaptive-p, XTC) begins anew.
    fn go_on_after(&mut self, so_far: &[Token], vocab: &Vocab, capacity: usize) -> Result<(), Error> {
        for &token in so_far {
            vocab.append_piece(token, self.limits.special, self.text.buffer())?;
            self.text.release();
            self.tokens.push(token);
            if self.tokens.len() > capacity {
                self.forget_oldest(0);
            }
        }
        self.statistics.generated_tokens = so_far.len();
        self.chooser.go_on_after(so_far)?;
        match &mut self.matcher {
            Some(matcher) => so_far.iter().try_for_each(|it| matcher.accept(*it)),
            None => Ok(()),
        }
    }

    /// Tokens that it has places for or needs them: those computed, and those to be.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens that the context must hold for it to go on.
    pub(super) fn needs(&self) -> usize {
        // An answer to a prompt has one token at least; a token that was chosen may be the last.
        self.len() + usize::from(self.statistics.generated_tokens == 0)
    }
}

/// The sequences that texts run on, and what each holds that others with its adapters can go on from.
pub(super) fn held(sequences: &[Sequence]) -> Vec<(SeqId, &[Token])> {
    sequences.iter().map(|it| it.held(&it.scales)).collect()
}

impl Sequence {
    /// Tokens at the beginning that it shares with the text `id`.
    fn shared_with(&self, id: SequenceId) -> Option<usize> {
        let (of, tokens) = self.held.shares?;
        (of == id).then_some(tokens)
    }

    /// Cells of the context that it needs and no other text that it shares cells with has been counted for.
    pub(super) fn cells(&self) -> usize {
        self.len() - self.held.shares.map_or(0, |(_, tokens)| tokens)
    }
}

/// Tokens at the beginning of a text that lie in cells which other running texts hold too (`kv_unified`).
pub(super) fn shared(sequences: &[Sequence], at: usize) -> usize {
    let this = &sequences[at];
    let by_it = this.held.shares.map(|(_, tokens)| tokens);
    sequences.iter().filter_map(|it| it.shared_with(this.id)).chain(by_it).max().unwrap_or(0)
}

/// Takes note that a text holds its first `keep` tokens only: what others have shared with it beyond, they share
/// with one of them.
pub(super) fn part_after(sequences: &mut [Sequence], at: usize, keep: usize) {
    let id = sequences[at].id;
    sequences[at].held.shares = sequences[at].held.shares.map(|(of, n)| (of, n.min(keep)));
    part(sequences, id, keep, Some((id, keep)));
}

/// Takes a text out of those that run: what others have shared with it, they share with one of them.
pub(super) fn take_out(sequences: &mut Vec<Sequence>, at: usize) -> Sequence {
    let gone = sequences.remove(at);
    part(sequences, gone.id, 0, gone.held.shares);
    gone
}

/// Of the texts that share more than `keep` tokens with the text `id`, the one that shares the most has all that the
/// others have: they share with that one now, and it has as much of `left` as it had of them.
fn part(sequences: &mut [Sequence], id: SequenceId, keep: usize, left: Option<(SequenceId, usize)>) {
    let more = |it: &Sequence| it.shared_with(id).filter(|tokens| *tokens > keep);
    let heirs = sequences.iter().filter_map(|it| Some((more(it)?, it.id)));
    let Some((most, heir)) = heirs.max() else {
        return;
    };
    for it in sequences {
        if it.id == heir {
            it.held.shares = left.map(|(of, tokens)| (of, tokens.min(most)));
        } else if let Some(tokens) = more(it) {
            it.held.shares = Some((heir, tokens));
        }
    }
}
