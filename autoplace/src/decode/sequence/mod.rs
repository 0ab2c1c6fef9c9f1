//! A text while it is generated: its tokens, its part of the context, and the state of its sampler.

mod batch;
mod held;
mod in_batch;
mod numbers;
mod reuse;
mod shift;

pub(crate) use held::Held;
pub(crate) use numbers::number_in_order;

use in_batch::InBatch;
use llama_sys::{SeqId, Token, Vocab};

use super::choose::Chooser;
use super::constraint::Matcher;
use super::error::Error;
use super::media::{Layout, Span, Spans};
use super::piece::SequenceId;
use super::prefix::Prefix;
use super::prompt::Prompt;
use super::request::{Limits, Spec, WhenFull};
use super::shift::Shifting;
use super::speculative::Speculator;
use super::stats::{DraftingPaused, Statistics};
use super::text::TextAssembler;
use crate::load::{self, Marks, Scales};

/// A text of a session. The parts that belong to the loaded model can be released and created again.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    /// The prompt and the generated tokens.
    pub(crate) tokens: Vec<Token>,
    /// The rows of pictures and sounds among the tokens; all of them are in the prompt.
    pub(crate) spans: Spans,
    /// The hashes of those rows.
    marks: Marks,
    /// Number of tokens in the prompt.
    pub(crate) prompt: usize,
    /// The scales of the adapters in this text.
    pub(crate) scales: Scales,
    pub(crate) limits: Limits,
    /// Tokens that end the text, in addition to the model's own end tokens.
    stop_tokens: Vec<Token>,
    pub(crate) text: TextAssembler,
    /// The constraint of the text.
    pub(crate) matcher: Option<Matcher>,
    pub(crate) chooser: Chooser,
    pub(crate) held: Held,
    batch: InBatch,
    /// Number of turns that other adapter sets have had since the last turn of this text's set.
    pub(crate) turns_waited: u32,
    pub(crate) speculator: Option<Speculator>,
    pub(crate) statistics: Statistics,
    /// Bytes of text in the pieces so far.
    pub(crate) given: usize,
    /// The request without its prompt, for a text that can be forked and rolled back.
    pub(crate) asked: Option<Box<Spec>>,
    /// How a full context discards the oldest tokens.
    pub(crate) shifting: Option<Shifting>,
}

impl Sequence {
    /// Checks a request and creates its text, which still needs a [place](Self::put). `so_far` contains tokens that an
    /// earlier process generated. `capacity` is the number of tokens that the context can hold of this text.
    pub(crate) fn new(
        id: SequenceId,
        spec: Spec,
        so_far: &[Token],
        model: &load::Model,
        vocab: &Vocab,
        capacity: usize,
    ) -> Result<Self, Error> {
        let scales = model.scales(spec.lora.as_deref())?;
        let mut matcher = spec.constraint.as_ref().map(|constraint| constraint.begin(model, vocab)).transpose()?;
        if let Some(matcher) = matcher.as_mut().filter(|_| spec.limits.ignore_eos) {
            matcher.ignore_ends();
        }
        if spec.stops.iter().any(String::is_empty) {
            return Err(Error::EmptyStop);
        }
        model.check_pictures(&spec.prompt, vocab, capacity)?;
        let Layout { mut tokens, spans } = spec.prompt.lay_out(vocab, &|media| model.prepare_media(media))?;
        let prompt = tokens.len();
        check_spans(&spans, prompt, &spec, model)?;
        let shifting = Shifting::new(spec.when_full, &tokens, capacity, vocab)?;
        // If the text shifts, an earlier process may have discarded tokens, which need no cell.
        let in_place = prompt + if shifting.is_some() { 0 } else { so_far.len() };
        // The last token of an answer needs no cell.
        if in_place >= capacity + usize::from(!so_far.is_empty()) {
            return Err(Error::PromptTooLong { tokens: in_place, context: capacity });
        }
        let text = TextAssembler::new(spec.stops);
        tokens.reserve(spec.limits.max_tokens.min(capacity.saturating_sub(prompt)));
        let mut chooser = Chooser::new(&spec.sampling, spec.logprobs, spec.custom, vocab.model())?;
        if spec.limits.min_tokens > 0 {
            chooser.know_ends(vocab, &spec.stop_tokens);
        }
        // If a number is neither a token nor a row, it is refused here.
        let texts = tokens.iter().enumerate().filter(|(index, token)| **token >= 0 || !spans.holds(*index));
        texts.map(|(_, token)| *token).try_for_each(|token| chooser.accept(token))?;
        let mut statistics = Statistics { prompt_tokens: prompt, seed: chooser.seed(), ..Statistics::default() };
        statistics.media_tokens = spans.rows();
        let mut speculator = Speculator::new(spec.speculation, spec.drafter);
        if !spans.is_empty() && speculator.take().is_some() {
            statistics.drafts_off = Some(DraftingPaused::Media);
        }
        let mut sequence = Self {
            id,
            tokens,
            marks: spans.marks(),
            spans,
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
            speculator,
            statistics,
            given: 0,
            asked: None,
            shifting,
        };
        sequence.go_on_after(so_far, vocab, capacity)?;
        Ok(sequence)
    }

    /// Appends tokens that an earlier process generated. The tokens are computed one by one, as in the earlier process,
    /// because batches of another shape are rounded differently. The text of these tokens was already returned, except
    /// for the part that is still held back. Samplers whose state depends on logits (mirostat, adaptive-p, XTC) start
    /// over. Tokens beyond `capacity` are discarded here, as the earlier process did.
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
            Some(matcher) => so_far.iter().try_for_each(|token| matcher.accept(*token)),
            None => Ok(()),
        }
    }

    /// Makes forks draw the same random numbers as this text, even if its seed was random.
    pub(crate) fn keep_seed(&mut self) {
        let seed = self.chooser.seed();
        if let Some(asked) = &mut self.asked {
            asked.sampling.seed = seed.or(asked.sampling.seed);
        }
    }

    /// The request with the first `prompt` tokens as its prompt.
    pub(crate) fn spec_after(&self, prompt: usize) -> Result<Spec, Error> {
        if self.statistics.discarded_tokens > 0 {
            return Err(Error::ShiftedOut { tokens: self.statistics.discarded_tokens });
        }
        let asked = self.asked.as_deref().ok_or(Error::NotRunning { sequence: self.id })?;
        Ok(Spec { prompt: Prompt::from_layout(&self.tokens[..prompt], &self.spans), ..asked.clone() })
    }

    /// Number of tokens of the text, whether or not they are computed yet.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Number of tokens that the context must hold for the text to continue.
    pub(crate) fn needs(&self) -> usize {
        // A fresh prompt needs a cell for at least one token of its answer. A generated token may be the last token of
        // the text, which needs no cell.
        self.len() + usize::from(self.statistics.generated_tokens == 0)
    }
}

/// Refuses a prompt that ends with a picture, and a context shift of a text with pictures. Also refuses a picture with
/// more rows than one computation holds, if all of its rows attend to each other.
fn check_spans(spans: &Spans, prompt: usize, spec: &Spec, model: &load::Model) -> Result<(), Error> {
    let Some(last) = spans.all().last() else { return Ok(()) };
    let refused = |span: &Span, reason: String| {
        let index = spans.index_of_media(span);
        Err(Error::Media { media: span.media.to_string(), index, reason })
    };
    if last.end() == prompt {
        return refused(last, "the prompt ends with it: a text must follow".to_owned());
    }
    if matches!(spec.when_full, WhenFull::Shift { .. }) {
        let reason = "images and sounds of a text cannot be shifted out of the context".to_owned();
        return Err(Error::CannotShift { reason });
    }
    let at_once = model.placement().context.sizes().map_or(u64::MAX, |sizes| sizes.n_tokens);
    let too_large = |span: &&Span| span.rows().is_non_causal && span.rows().len as u64 > at_once;
    let Some(span) = spans.all().iter().find(too_large) else { return Ok(()) };
    let rows = span.rows().len;
    refused(span, format!("its {rows} rows must be computed at once, and the context computes {at_once} at most"))
}

/// The sequences of the running texts, with the prefix that other texts can reuse.
pub(crate) fn held(sequences: &[Sequence]) -> Vec<(SeqId, Prefix<'_>)> {
    sequences.iter().map(|sequence| (sequence.held.seq, sequence.held())).collect()
}

/// Number of tokens at the beginning of a text that share cells with other running texts (`kv_unified`).
pub(crate) fn shared(sequences: &[Sequence], at: usize) -> usize {
    let this = &sequences[at];
    let by_it = this.held.shares.map(|(_, tokens)| tokens);
    sequences.iter().filter_map(|sequence| sequence.shared_with(this.id)).chain(by_it).max().unwrap_or(0)
}

impl Sequence {
    /// Number of leading tokens that this text shares with the text `id`.
    fn shared_with(&self, id: SequenceId) -> Option<usize> {
        let (of, tokens) = self.held.shares?;
        (of == id).then_some(tokens)
    }

    /// Number of cells of this text, without the shared cells, which are counted for the other text.
    fn cells(&self) -> usize {
        self.len() - self.held.shares.map_or(0, |(_, tokens)| tokens)
    }
}

/// Number of cells that all texts need together.
pub(crate) fn cells(sequences: &[Sequence]) -> usize {
    sequences.iter().map(Sequence::cells).sum()
}

/// Removes a text from the running texts.
pub(crate) fn take_out(sequences: &mut Vec<Sequence>, at: usize) -> Sequence {
    let gone = sequences.remove(at);
    part(sequences, gone.id, 0, gone.held.shares);
    gone
}

/// Records that a text now shares at most its first `keep` tokens with other texts.
pub(crate) fn part_after(sequences: &mut [Sequence], at: usize, keep: usize) {
    let id = sequences[at].id;
    sequences[at].held.shares = sequences[at].held.shares.map(|(of, tokens)| (of, tokens.min(keep)));
    part(sequences, id, keep, Some((id, keep)));
}

/// Updates the sharing after the text `id` has kept only its first `keep` tokens. The text that shares the most with it
/// becomes the heir. The other texts now share with the heir, and the heir shares with the text in `left`, if there is
/// one.
fn part(sequences: &mut [Sequence], id: SequenceId, keep: usize, left: Option<(SequenceId, usize)>) {
    let more = |sequence: &Sequence| sequence.shared_with(id).filter(|tokens| *tokens > keep);
    let heirs = sequences.iter().filter_map(|sequence| Some((more(sequence)?, sequence.id)));
    let Some((most, heir)) = heirs.max() else { return };
    for sequence in sequences {
        if sequence.id == heir {
            sequence.held.shares = left.map(|(of, tokens)| (of, tokens.min(most)));
        } else if let Some(tokens) = more(sequence) {
            sequence.held.shares = Some((heir, tokens));
        }
    }
}
