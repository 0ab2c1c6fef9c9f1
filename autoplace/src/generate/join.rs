//! Texts that come into the context of a session, leave it before they end, and come back.

use llama_sys::{SeqId, Token, Vocab};

use super::Spec;
use super::cache::Place;
use super::constraint::Matcher;
use super::error::Error;
use super::fork::take_out;
use super::sequence::Sequence;
use super::session::{Room, SequenceId, Session};
use super::shift::WhenFull;
use crate::load::Scales;

impl Sequence {
    /// What was asked for, with everything checked that can be. `capacity`: tokens that the context holds of it.
    pub(super) fn checked(
        id: SequenceId,
        spec: Spec,
        so_far: Vec<Token>,
        scales: Scales,
        matcher: Option<Matcher>,
        vocab: &Vocab,
        capacity: usize,
    ) -> Result<Self, Error> {
        if spec.stops.iter().any(String::is_empty) {
            return Err(Error::EmptyStop);
        }
        let prompt = spec.prompt.tokenize(vocab)?;
        let shifts = matches!(spec.when_full, WhenFull::Shift { .. });
        // What a shift forgot needs no place.
        let so_far_in_place = if shifts { 0 } else { so_far.len() };
        let tokens = prompt.len() + so_far_in_place;
        // The last token of an answer needs no place.
        if tokens >= capacity + usize::from(!so_far.is_empty()) {
            return Err(Error::PromptTooLong {
                tokens,
                context: capacity,
            });
        }
        let mut sequence = Self::new(id, spec, prompt, scales, vocab.model(), capacity)?;
        sequence.hold_to(matcher);
        sequence.go_on_after(&so_far, vocab, capacity)?;
        Ok(sequence)
    }
}

impl Session {
    /// Runs a text beside the others. `reuse`: what the context holds of its beginning is not computed again.
    pub(super) fn join(&mut self, mut sequence: Sequence, reuse: bool) -> Result<(), Error> {
        let place = self.place(&mut sequence, reuse)?;
        sequence.put(place);
        self.insert(sequence);
        Ok(())
    }

    /// Takes a text out of the context. What the context holds of it stays as long as nobody needs the place.
    pub(super) fn suspend(&mut self, sequence: SequenceId) -> Option<Sequence> {
        let at = self.sequences.iter().position(|it| it.id == sequence)?;
        let lent = self.lent.as_mut()?;
        let mut suspended = take_out(&mut self.sequences, at);
        let left = suspended.suspend(&mut self.cache, &mut lent.context);
        if left.is_err() && self.sequences.is_empty() {
            self.cache.spoil();
        }
        Some(suspended)
    }

    /// Goes on with a text that was suspended. What the context does not hold of it any more is computed again.
    pub(super) fn rejoin(&mut self, mut sequence: Sequence) -> Result<(), Error> {
        let place = self.place(&mut sequence, true)?;
        sequence.put_again(place);
        self.insert(sequence);
        Ok(())
    }

    /// Where every sequence has a cache of its own, llama.cpp computes those together whose numbers follow each other
    /// in the batch, and the others in graphs of their own (llama-batch.cpp, split_equal).
    pub(super) fn insert(&mut self, sequence: Sequence) {
        let at = self.sequences.partition_point(|it| it.seq < sequence.seq);
        self.sequences.insert(at, sequence);
    }

    /// Computes nothing of a text for a while, or goes on with it. It keeps its place.
    pub(super) fn pause(&mut self, sequence: SequenceId, pause: bool) {
        let mut sequences = self.sequences.iter_mut();
        if let Some(sequence) = sequences.find(|it| it.id == sequence) {
            sequence.pause(pause);
        }
    }

    /// Tokens that the context has places for.
    pub(super) fn room(&self) -> Room {
        match &self.lent {
            Some(lent) => lent.room,
            None => Room::of(&self.model.placement().context),
        }
    }

    /// False when only another context can compute.
    pub(super) fn is_usable(&self) -> bool {
        let lent = self.lent.as_ref();
        lent.is_some_and(|lent| lent.context.is_usable())
    }

    /// Ends all texts, and keeps nothing of them: nobody knows what the context holds.
    pub(super) fn spoil(&mut self) {
        self.sequences.clear();
        self.forget_failures();
        self.cache.spoil();
    }

    fn place(&mut self, sequence: &mut Sequence, reuse: bool) -> Result<Place, Error> {
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        sequence.take_up(&lent.vocab);
        // Behind those that wait for a token already.
        sequence.favoured = self.steps;
        let running: Vec<_> = self
            .sequences
            .iter()
            .map(|it| it.held(sequence.scales()))
            .collect();
        let wanted = (sequence.tokens(), sequence.scales());
        let place = self
            .cache
            .place(&mut lent.context, lent.room, &running, wanted, reuse)?;
        let place = place.ok_or(Error::SequencesBusy {
            n_seq_max: lent.room.sequences,
        })?;
        let mut sequences = self.sequences.iter();
        let of = sequences.find(|it| Some(it.seq) == place.shares);
        sequence.shares = of.map(|of| (of.id, place.cached));
        Ok(place)
    }
}

/// The sequences that texts run on, and what each holds that others with its adapters can go on from.
pub(super) fn held(sequences: &[Sequence]) -> Vec<(SeqId, &[Token])> {
    sequences.iter().map(|it| it.held(it.scales())).collect()
}
