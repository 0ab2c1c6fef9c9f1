//! One text in the making: its tokens, what the context holds of them, and what the next one is chosen by.

mod batch;
mod held;

pub(super) use held::Held;

use batch::InBatch;
use llama_sys::{SeqId, Token, Vocab};

use super::cache::Prefix;
use super::choose::Chooser;
use super::constraint::Matcher;
use super::error::Error;
use super::piece::SequenceId;
use super::prompt::Prompt;
use super::request::{Limits, Spec};
use super::shift::Shifting;
use super::speculative::Speculator;
use super::stats::Statistics;
use super::text::TextAssembler;
use crate::load::{self, Scales};

/// A text of a session. Its parts that are tied to the loaded model can be released and made again.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// The prompt, and what was generated.
    pub(super) tokens: Vec<Token>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// The adapters that it is computed with.
    pub(super) scales: Scales,
    pub(super) limits: Limits,
    /// Tokens that end it beside the model's own.
    stop_tokens: Vec<Token>,
    pub(super) text: TextAssembler,
    /// What the text is held to.
    pub(super) matcher: Option<Matcher>,
    pub(super) chooser: Chooser,
    pub(super) held: Held,
    batch: InBatch,
    /// Turns of other sets of adapters since its own.
    pub(super) turns_waited: u32,
    pub(super) speculator: Option<Speculator>,
    pub(super) statistics: Statistics,
    /// Bytes of text in its pieces so far.
    pub(super) given: usize,
    /// What was asked for, without the prompt, of a text that can be forked and rolled back.
    pub(super) asked: Option<Box<Spec>>,
    /// How its oldest tokens are shifted out when the context is full.
    pub(super) shifting: Option<Shifting>,
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
        let matcher = spec.constraint.as_ref().map(|it| it.begin(model, vocab)).transpose()?;
        if spec.stops.iter().any(String::is_empty) {
            return Err(Error::EmptyStop);
        }
        let mut tokens = spec.prompt.tokenize(vocab)?;
        let prompt = tokens.len();
        let shifting = Shifting::of(spec.when_full, &tokens, capacity, vocab)?;
        // What an earlier process has shifted out needs no place.
        let in_place = prompt + if shifting.is_some() { 0 } else { so_far.len() };
        // The last token of an answer needs no place.
        if in_place >= capacity + usize::from(!so_far.is_empty()) {
            return Err(Error::PromptTooLong { tokens: in_place, context: capacity });
        }
        let text = TextAssembler::new(spec.stops);
        tokens.reserve(spec.limits.max_tokens.min(capacity.saturating_sub(prompt)));
        let mut chooser = Chooser::new(&spec.sampling, spec.logprobs, spec.custom, vocab.model())?;
        if spec.limits.min_tokens > 0 {
            chooser.know_ends(vocab, &spec.stop_tokens);
        }
        tokens.iter().try_for_each(|it| chooser.accept(*it))?;
        let statistics = Statistics { prompt_tokens: prompt, seed: chooser.seed(), ..Statistics::default() };
        let mut sequence = Self {
            id,
            tokens,
            prompt,
            scales,
            limits: spec.limits,
            stop_tokens: spec.stop_tokens,
            text,
            matcher,
            chooser,
            held: Held { in_batches: prompt, ..Held::default() },
            batch: InBatch::default(),
            turns_waited: 0,
            speculator: Speculator::new(spec.speculation, spec.drafter),
            statistics,
            given: 0,
            asked: None,
            shifting,
        };
        sequence.go_on_after(so_far, vocab, capacity)?;
        Ok(sequence)
    }

    /// Puts tokens behind the prompt that an earlier process has generated: they are computed again one after the
    /// other, as they were there, since another shape of batch would round otherwise. Their text was given out, but for
    /// what is held back. The state of samplers that depends on logits (mirostat, adaptive-p, XTC) starts over.
    /// Tokens beyond `capacity` were shifted out there, and are here.
    fn go_on_after(&mut self, so_far: &[Token], vocab: &Vocab, capacity: usize) -> Result<(), Error> {
        for &token in so_far {
            vocab.append_piece(token, self.limits.special, self.text.buffer())?;
            self.given += self.text.release().0.len();
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

    /// Has a fork draw the same random numbers as this text, whose seed was drawn.
    pub(super) fn keep_seed(&mut self) {
        let seed = self.chooser.seed();
        if let Some(asked) = &mut self.asked {
            asked.sampling.seed = seed.or(asked.sampling.seed);
        }
    }

    /// What was asked for, with the first tokens as the prompt.
    pub(super) fn spec_after(&self, prompt: usize) -> Result<Spec, Error> {
        if self.statistics.discarded_tokens > 0 {
            return Err(Error::ShiftedOut { tokens: self.statistics.discarded_tokens });
        }
        let asked = self.asked.as_deref().ok_or(Error::NotRunning { sequence: self.id })?;
        Ok(Spec { prompt: Prompt::tokens(&self.tokens[..prompt]), ..asked.clone() })
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
pub(super) fn held(sequences: &[Sequence]) -> Vec<(SeqId, Prefix<'_>)> {
    sequences.iter().map(|it| (it.held.seq, it.held())).collect()
}

/// Tokens at the beginning of a text that lie in cells which other running texts have too (`kv_unified`).
pub(super) fn shared(sequences: &[Sequence], at: usize) -> usize {
    let this = &sequences[at];
    let by_it = this.held.shares.map(|(_, tokens)| tokens);
    sequences.iter().filter_map(|it| it.shared_with(this.id)).chain(by_it).max().unwrap_or(0)
}

impl Sequence {
    /// Tokens at the beginning that it shares with the text `id`.
    fn shared_with(&self, id: SequenceId) -> Option<usize> {
        let (of, tokens) = self.held.shares?;
        (of == id).then_some(tokens)
    }

    /// Cells of the context that it needs and no other text that it shares cells with has been counted for.
    fn cells(&self) -> usize {
        self.len() - self.held.shares.map_or(0, |(_, tokens)| tokens)
    }
}

/// Cells of the context that texts need together.
pub(super) fn cells(sequences: &[Sequence]) -> usize {
    sequences.iter().map(Sequence::cells).sum()
}

/// Takes a text out of those that run.
pub(super) fn take_out(sequences: &mut Vec<Sequence>, at: usize) -> Sequence {
    let gone = sequences.remove(at);
    part(sequences, gone.id, 0, gone.held.shares);
    gone
}

/// Notes that a text holds its first `keep` tokens only of those that it shares with others.
pub(super) fn part_after(sequences: &mut [Sequence], at: usize, keep: usize) {
    let id = sequences[at].id;
    sequences[at].held.shares = sequences[at].held.shares.map(|(of, tokens)| (of, tokens.min(keep)));
    part(sequences, id, keep, Some((id, keep)));
}

/// Of the texts that share more than `keep` tokens with the text `id`, the one that shares the most has all that the
/// others have: they share with that one now, and it shares as much of `left` as it had of the text.
fn part(sequences: &mut [Sequence], id: SequenceId, keep: usize, left: Option<(SequenceId, usize)>) {
    let more = |it: &Sequence| it.shared_with(id).filter(|tokens| *tokens > keep);
    let heirs = sequences.iter().filter_map(|it| Some((more(it)?, it.id)));
    let Some((most, heir)) = heirs.max() else { return };
    for it in sequences {
        if it.id == heir {
            it.held.shares = left.map(|(of, tokens)| (of, tokens.min(most)));
        } else if let Some(tokens) = more(it) {
            it.held.shares = Some((heir, tokens));
        }
    }
}
