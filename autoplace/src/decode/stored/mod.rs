//! The link between a context and the prompt store: idle sequences are stored in pieces, and the beginnings of prompts
//! are restored.
//!
//! In: sequences that no text uses at the moment, and prompts. Out: the longest stored beginning of a prompt, restored
//! into a sequence, if that takes less time than computing it. No failure here fails a text: the tokens of a piece that
//! cannot be written or read are computed again.

mod bringing;
mod restore;

use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_sys::{Context, Position, SeqId, State, StateRows};

pub(crate) use self::bringing::{Bringing, Read};
use self::restore::Restoring;

use super::checkpoints;
use super::prefix::Prefix;
use crate::load::{Checkpoint, Marks, ModelStore, Remembered, Scales};
use crate::store::{Added, Brought, Found, Id, NewPiece, Text, block_tokens, smoothed};

/// Minimum number of tokens by which a restored beginning exceeds the beginning that the context holds.
pub(crate) const WORTH_RESTORING: usize = 16;

/// One mebibyte; 1 KiB in the tests of this crate, whose models have small states.
const UNIT: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// Before the first measurement, this many bytes are copied between two steps. After a long step, a restoration copies
/// more. `AT_ONCE_LIMITS` bounds the later numbers. A single piece of rows may have more bytes.
const AT_ONCE: usize = 4 * UNIT;
const AT_ONCE_LIMITS: [usize; 2] = [UNIT, 16 * UNIT];

/// Seconds for which running texts wait between two steps while bytes are copied into the store. If the system has to
/// provide new memory, a part takes up to twice as long. A small model needs some milliseconds for a token.
const TIME_AT_ONCE: f64 = 2e-3;

/// After this time of copying between two steps, no further part begins while a running text waits for its next token.
const TIME_BETWEEN_STEPS: Duration = Duration::from_millis(10);

/// A smaller part counts as this number of bytes, because llama.cpp passes over all cells of the sequence for each
/// part.
const MIN_PART: usize = UNIT / 2;

/// Maximum number of pieces of rows that are added between two steps. This limit takes effect if the rows are small.
const PIECES_AT_ONCE: usize = 64;

/// In a sequence of this many tokens, finding the rows is the whole work between two steps: llama.cpp reports each
/// cell, which takes one or two milliseconds.
const MANY: usize = if cfg!(test) { 128 } else { 8192 };

/// A measured number of the host's free bytes is used for this time, if it is at least `FREE_AT_LEAST`. A measurement
/// reads some small files of the system, which takes half a millisecond.
const FREE_FOR: Duration = Duration::from_millis(100);
const FREE_AT_LEAST: u64 = 256 << 20;

/// Maximum number of searches for one prompt. Another search follows only after a damaged piece.
pub(crate) const MAX_SEARCHES: usize = 8;

/// Shortest batch, in tokens, from whose time the cost of a prompt is measured.
pub(crate) const MIN_BATCH: usize = 32;

/// Seconds to restore a byte from memory and to read one from the folder, before the first measurement.
const SECONDS_PER_BYTE: [f64; 2] = [1e-9, 4e-9];

/// The store of a session's model, or of one of its drafters.
#[derive(Debug)]
pub(crate) struct Stored {
    of: ModelStore,
    /// The position of a text's first token.
    first: Position,
    /// Whether the state at the end of a text is a part of the context's state. False after
    /// [`with_ends`](Self::with_ends).
    has_own_end: bool,
    /// The root of the store's tree for the adapters of the last text.
    root: Option<(Scales, Id)>,
    seconds_per_token: Option<f64>,
    /// Seconds to restore a byte from memory.
    seconds_per_byte: Option<f64>,
    /// Seconds to read a byte of the context's rows. For each part llama.cpp passes over all cells of the sequence.
    seconds_per_read: Option<f64>,
    /// Bytes that were copied since the store last counted them.
    copied_bytes: u64,
    /// Free bytes of the host at the last measurement, less the bytes that were copied since then.
    free: Option<(Instant, u64)>,
    /// Time of copying since the last step.
    since_step: Duration,
    /// Set if the last attempt to store ended with [`Progress::Later`]: how many pieces waited for the folder's thread
    /// then.
    later_at: Option<usize>,
    /// The idle sequence that is only partly stored.
    reading: Option<Reading>,
    /// The time of the last step's computation.
    last_step: Duration,
    /// The sequence that is only partly restored.
    restoring: Option<Restoring>,
    /// Seconds to write a byte of rows into the context.
    seconds_per_write: Option<f64>,
    /// Threads whose pieces are no longer wanted.
    left: Vec<Bringing>,
}

/// An idle sequence that is being stored, step by step.
#[derive(Debug)]
struct Reading {
    seq: SeqId,
    /// The cells of the sequence, which do not move until a text uses the sequence.
    rows: StateRows,
    /// The beginning of each piece: the shape of the rows, preceded by its length.
    front: Vec<u8>,
    rest: Rest,
    /// Numbers of tokens whose rests were offered to the store. Each is offered once: a small store drops an earlier
    /// rest for a later one, and offering the earlier rest again would never end.
    offered: Vec<usize>,
    /// Bytes that were copied since the last step. A smaller part counts as [`MIN_PART`].
    copied: usize,
}

/// The indivisible part of a sequence's state, while it is being read. It belongs to the first `tokens` tokens as a
/// whole: for example a window or a recurrent state. The rows are not part of it.
#[derive(Debug, Default)]
struct Rest {
    tokens: usize,
    /// The checkpoint that the rest comes from; `None` for the present end of the sequence.
    checkpoint: Option<Arc<State>>,
    data: Vec<u8>,
}

/// A sequence that no text uses at the moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idle<'a> {
    pub(crate) seq: SeqId,
    pub(crate) scales: &'a Scales,
    pub(crate) text: Text<'a>,
    pub(crate) marks: &'a Marks,
    /// The state at the end of the text, if it is not a part of the context's state.
    pub(crate) end: Option<&'a [u8]>,
}

/// The part of a sequence that is still to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No part: the store holds the sequence, or cannot hold more of it.
    Done,
    /// More pieces.
    More,
    /// More pieces, once the folder's thread has made room.
    Later,
}

/// The part of a text that came from the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) tokens: usize,
    /// The restored tokens whose rows were read from the folder.
    pub(crate) from_folder: usize,
}

impl Stored {
    pub(crate) fn new(of: ModelStore) -> Self {
        Self {
            of,
            first: 0,
            has_own_end: true,
            root: None,
            seconds_per_token: None,
            seconds_per_byte: None,
            seconds_per_read: None,
            copied_bytes: 0,
            free: None,
            since_step: Duration::ZERO,
            later_at: None,
            reading: None,
            last_step: Duration::ZERO,
            restoring: None,
            seconds_per_write: None,
            left: Vec::new(),
        }
    }

    /// The store of a drafter's context whose first position is `first`. The state at the end of its texts is given by
    /// the caller ([`Idle::end`]) and is not a part of the context's state.
    pub(crate) fn with_ends(of: ModelStore, first: Position) -> Self {
        // Such texts are never computed again, so their worth cannot be measured. These texts count as texts of a fast
        // model.
        let mut stored = Self::new(of);
        (stored.first, stored.has_own_end, stored.seconds_per_token) = (first, false, Some(1e-4));
        stored
    }

    /// Learns the cost of a prompt from a batch, and how long a step takes.
    pub(crate) fn computed(&mut self, tokens: usize, took: Duration) {
        self.last_step = took;
        if tokens >= MIN_BATCH {
            self.seconds_per_token = smoothed(self.seconds_per_token, tokens as u64, took);
        }
    }

    /// A step begins. `is_awaited` says whether a running text waits for its next token.
    pub(crate) fn step_begins(&mut self, is_awaited: bool) {
        if !is_awaited {
            self.since_step = Duration::ZERO;
        }
    }

    /// A step has ended.
    pub(crate) fn step_ended(&mut self) {
        self.of.store.paused(std::mem::take(&mut self.since_step));
        self.drop_ended();
    }

    /// Whether there is time to store another part before a running text must get its next token.
    pub(crate) fn has_time(&self) -> bool {
        self.since_step < TIME_BETWEEN_STEPS
    }

    fn root(&mut self, scales: &Scales) -> Id {
        let root = match &self.root {
            Some((of, root)) if of == scales => *root,
            _ => {
                let root = self.of.store.root(&self.of.key(scales));
                self.root = Some((scales.clone(), root));
                root
            }
        };
        self.of.store.learn(root, &self.of.label, self.seconds_per_token, self.of.needs_rest);
        root
    }

    /// The longest stored beginning of the prompt, if restoring it pays although `held` tokens are in the context
    /// already.
    pub(crate) fn find(&mut self, prompt: Prefix<'_>, held: usize) -> Option<Found> {
        // A draft model calls this for each draft, when it lacks only a few tokens.
        if prompt.tokens.len().saturating_sub(1 + held) < WORTH_RESTORING {
            return None;
        }
        let root = self.root(prompt.scales);
        // The last token is always computed, because its logits choose the next one.
        let (_, before_last) = prompt.tokens.split_last()?;
        let media = prompt.marks.all();
        let text = Text { tokens: before_last, media, projector: self.of.projector };
        let mut found = self.of.store.find(root, text);
        // A picture is restored as a whole.
        let whole = prompt.spans.floor(found.tokens);
        if whole < found.tokens {
            found = self.of.store.find(root, text.first(whole));
        }
        let more = found.tokens.saturating_sub(held);
        if more < WORTH_RESTORING {
            return None;
        }
        let [memory, folder] = found.bytes.map(|bytes| bytes as f64);
        let per_byte = self.seconds_per_byte.unwrap_or(SECONDS_PER_BYTE[0]);
        let restoring = memory * per_byte + folder * (per_byte + SECONDS_PER_BYTE[1]);
        let is_faster =
            !self.has_own_end || self.seconds_per_token.is_none_or(|of_token| restoring < of_token * more as f64);
        // Pieces from the folder are in memory until they are restored, even if the store has no room for them.
        let [_, in_folder] = found.bytes;
        (is_faster && (in_folder == 0 || in_folder <= self.free())).then_some(found)
    }

    /// The longest stored beginning of a prompt with its pieces in memory, if restoring it pays although `held` tokens
    /// are in the context already. After a damaged piece, another search finds the pieces before it. If pieces are only
    /// in the folder, this waits for them as long as a text of an engine does.
    pub(crate) fn bring_longest(&mut self, prompt: Prefix<'_>, held: usize) -> Option<(Found, Brought)> {
        for _ in 0..MAX_SEARCHES {
            let found = self.find(prompt, held)?;
            if !found.is_in_folder() {
                match self.in_memory(&found) {
                    Some(brought) => return Some((found, brought)),
                    None => continue,
                }
            }
            let mut bringing = self.start_bringing(found)?;
            match bringing.wait_for_all() {
                Read::All(found, brought) => return Some((found, brought)),
                Read::Damaged => {}
                Read::NotYet | Read::TooLate => {
                    self.leave_bringing(bringing);
                    return None;
                }
            }
        }
        None
    }

    /// The pieces of a beginning that were in memory when it was found; `None` if one of them has left memory.
    pub(crate) fn in_memory(&self, found: &Found) -> Option<Brought> {
        self.of.store.in_memory(found)
    }

    /// The folder of the store, for a message.
    pub(crate) fn folder(&self) -> String {
        let folder = self.of.store.options().folder.as_deref();
        folder.map_or_else(String::new, |folder| folder.display().to_string())
    }

    /// Forgets a beginning that is of no use.
    pub(crate) fn forget(&self, found: &Found) {
        self.of.store.forget(found);
    }

    /// The text of an idle sequence.
    fn text<'a>(&self, idle: &'a Remembered) -> Text<'a> {
        Text { tokens: &idle.tokens, media: idle.marks.all(), projector: self.of.projector }
    }

    /// Stores the next pieces of an idle sequence, or of the checkpoints of its tokens. Copies a few megabytes, or one
    /// larger piece of rows.
    pub(crate) fn store_part(
        &mut self,
        context: &mut Context,
        idle: &Remembered,
        checkpoints: &[Checkpoint],
    ) -> Progress {
        let idle = Idle { seq: idle.seq, scales: &idle.scales, text: self.text(idle), marks: &idle.marks, end: None };
        self.store_part_of(context, idle, checkpoints)
    }

    pub(crate) fn store_part_of(
        &mut self,
        context: &mut Context,
        idle: Idle<'_>,
        checkpoints: &[Checkpoint],
    ) -> Progress {
        // This check comes before any copy, because it runs again after each token.
        let unwritten = self.of.store.unwritten();
        if is_behind(self.later_at, unwritten) {
            return Progress::Later;
        }
        let begun = Instant::now();
        let progress = self.try_part(context, idle, checkpoints);
        let took = begun.elapsed();
        self.since_step += took;
        self.of.store.copied(std::mem::take(&mut self.copied_bytes), took);
        match progress {
            Ok(progress) => {
                self.later_at = (progress == Progress::Later).then_some(unwritten);
                progress
            }
            Err(error) => {
                tracing::debug!(target: "autoplace::store", "sequence {} is not stored: {error}", idle.seq);
                Progress::Done
            }
        }
    }

    fn try_part(
        &mut self,
        context: &mut Context,
        idle: Idle<'_>,
        checkpoints: &[Checkpoint],
    ) -> Result<Progress, llama_sys::Error> {
        let reading = self.reading.take().filter(|reading| reading.seq == idle.seq);
        if !idle.text.is_known() {
            // The tokens of a picture's rows have only 31 bits of its hash, which is too little for another process to
            // identify it.
            return Ok(Progress::Done);
        }
        let root = self.root(idle.scales);
        let free = self.free();
        if free < AT_ONCE as u64 {
            // The store gives memory back so that the machine need not swap.
            self.free = None;
            self.of.store.give_back(2 * AT_ONCE as u64 - free);
            return Ok(Progress::Done);
        }
        let mut reading = match reading {
            Some(reading) => reading,
            None => {
                let Some(rows) = context.rows(idle.seq)? else { return Ok(Progress::Done) };
                let is_many = rows.tokens() >= MANY;
                let reading = Reading::new(idle.seq, rows);
                if is_many {
                    self.reading = Some(reading);
                    return Ok(Progress::More);
                }
                reading
            }
        };
        let at_once = self.at_once();
        reading.copied = 0;
        let mut progress = Progress::More;
        while progress == Progress::More && reading.copied < at_once {
            progress = self.next_part(context, root, idle, &mut reading, checkpoints)?;
        }
        if let Some((_, free)) = &mut self.free {
            *free = free.saturating_sub(reading.copied as u64);
        }
        if progress != Progress::Done {
            self.reading = Some(reading);
        }
        Ok(progress)
    }

    /// Free bytes of the host beyond the margin that plans leave.
    fn free(&mut self) -> u64 {
        let known = self.free.filter(|(since, free)| since.elapsed() < FREE_FOR && *free >= FREE_AT_LEAST);
        let (_, free) = *self.free.insert(known.unwrap_or_else(|| (Instant::now(), checkpoints::free())));
        free
    }

    /// Bytes to copy between two steps.
    fn at_once(&self) -> usize {
        let [least, most] = AT_ONCE_LIMITS;
        let in_time = |per_byte: f64| (TIME_AT_ONCE / per_byte) as usize;
        self.seconds_per_read.map_or(AT_ONCE, |per_byte| in_time(per_byte).clamp(least, most))
    }

    fn next_part(
        &mut self,
        context: &mut Context,
        root: Id,
        idle: Idle<'_>,
        reading: &mut Reading,
        checkpoints: &[Checkpoint],
    ) -> Result<Progress, llama_sys::Error> {
        let (text, rows) = (idle.text, &reading.rows);
        // After a context shift, a sequence holds tokens that no other text can reuse.
        let has_all = rows.first() == self.first && rows.tokens() >= text.tokens.len();
        if !has_all || (rows.shape().has_rest() && !(self.of.needs_rest && self.has_own_end)) {
            return Ok(Progress::Done);
        }
        let row_bytes = rows.shape().row_bytes();
        let block = block_tokens(row_bytes);
        let Some(missing) = self.of.store.missing_rows(root, text, block) else {
            return match self.of.needs_rest {
                true => self.next_rest(context, root, idle, reading, checkpoints),
                false => Ok(Progress::Done),
            };
        };
        // If a piece is missing in the store, all later pieces are missing too.
        let pieces = (self.at_once() / (block * row_bytes).max(1)).clamp(1, PIECES_AT_ONCE);
        let until = text.tokens.len().min(missing.start + pieces * block);
        let begun = Instant::now();
        let pieces = context.read_pieces(idle.seq, rows, missing.start..until, block, &reading.front)?;
        let read = row_bytes * (until - missing.start);
        reading.copied += read.max(MIN_PART);
        self.copied_bytes += read as u64;
        if read >= MIN_PART {
            self.seconds_per_read = smoothed(self.seconds_per_read, read as u64, begun.elapsed());
        }
        for (data, from) in pieces.into_iter().zip((missing.start..until).step_by(block)) {
            let piece = NewPiece::Rows { from, data };
            match self.of.store.add(root, text.first(until.min(from + block)), piece) {
                Added::Yes { .. } => {}
                Added::Later => return Ok(Progress::Later),
                Added::No => return Ok(Progress::Done),
            }
        }
        let is_all = until == text.tokens.len() && !self.of.needs_rest;
        Ok(if is_all { Progress::Done } else { Progress::More })
    }

    /// Reads the next bytes of a [`Rest`]. The rests of the checkpoints come first, then the rest at the end of the
    /// sequence. Adds a complete rest to the store.
    fn next_rest(
        &mut self,
        context: &mut Context,
        root: Id,
        idle: Idle<'_>,
        reading: &mut Reading,
        checkpoints: &[Checkpoint],
    ) -> Result<Progress, llama_sys::Error> {
        let (text, tokens) = (idle.text, idle.text.tokens);
        if let Some(end) = idle.end {
            let is_missing = self.of.store.lacks_rest(root, text);
            let added = is_missing.then(|| self.of.store.add(root, text, NewPiece::Rest(end.to_vec())));
            return Ok(if added == Some(Added::Later) { Progress::Later } else { Progress::Done });
        }
        // The tokens of rows have only 31 bits of a picture's hash; the marks have the whole hash.
        let is_of_text = |checkpoint: &&Checkpoint| {
            let has_tokens = checkpoint.scales == *idle.scales && tokens.starts_with(&checkpoint.tokens);
            has_tokens && idle.marks.first_difference(&checkpoint.marks) >= checkpoint.tokens.len()
        };
        let of_checkpoints =
            checkpoints.iter().filter(is_of_text).map(|checkpoint| (checkpoint.tokens.len(), Some(&checkpoint.state)));
        let at_end = (reading.rows.tokens() == tokens.len()).then_some((tokens.len(), None));
        let is_missing = |of: usize| !reading.offered.contains(&of) && self.of.store.lacks_rest(root, text.first(of));
        let Some((of, checkpoint)) = of_checkpoints.chain(at_end).find(|(of, _)| is_missing(*of)) else {
            return Ok(Progress::Done);
        };
        let bytes = checkpoint.map_or(reading.rows.rest_bytes(), |state| state.len());
        if !self.of.store.may_take(bytes) {
            reading.offered.push(of);
            return Ok(Progress::More);
        }
        let (at_once, free, rest) = (self.at_once(), self.free(), &mut reading.rest);
        if !rest.is_of(of, checkpoint) {
            *rest = Rest { tokens: of, checkpoint: checkpoint.cloned(), data: Vec::new() };
            if free < bytes as u64 || rest.data.try_reserve_exact(bytes).is_err() {
                return Ok(Progress::Done);
            }
        }
        let part = rest.data.len()..bytes.min(rest.data.len() + at_once);
        reading.copied += part.len().max(MIN_PART);
        self.copied_bytes += part.len() as u64;
        match checkpoint {
            Some(state) => rest.data.extend_from_slice(&state.bytes()[part]),
            None => rest.data.extend(context.read_rest_part(idle.seq, &reading.rows, part)?),
        }
        if rest.data.len() < bytes {
            return Ok(Progress::More);
        }
        let piece = NewPiece::Rest(std::mem::take(rest).data);
        match self.of.store.add(root, text.first(of), piece) {
            Added::Later => return Ok(Progress::Later),
            Added::Yes { .. } | Added::No => reading.offered.push(of),
        }
        Ok(Progress::More)
    }

    /// Records that a text has used this sequence, so that its rows must be found anew.
    pub(crate) fn changed(&mut self, seq: SeqId) {
        self.reading = self.reading.take().filter(|reading| reading.seq != seq);
    }

    /// Waits until the folder's thread has written all pieces, unless the folder does not answer.
    pub(crate) fn wait(&self) {
        drop(self.of.store.wait_for_writer());
    }

    /// Continues with the store of the re-placed model.
    pub(crate) fn renew(&mut self, of: ModelStore) {
        (self.of, self.root, self.reading, self.restoring) = (of, None, None, None);
    }
}

/// Whether the folder's thread is behind: the waiting pieces left the store no room, and none has been written since.
fn is_behind(later_at: Option<usize>, unwritten: usize) -> bool {
    unwritten > 0 && later_at.is_some_and(|at| unwritten >= at)
}

impl Reading {
    fn new(seq: SeqId, rows: StateRows) -> Self {
        let shape = rows.shape().to_bytes();
        let front = [&(shape.len() as u32).to_le_bytes()[..], &shape].concat();
        Self { seq, rows, front, rest: Rest::default(), offered: Vec::new(), copied: 0 }
    }
}

impl Rest {
    fn is_of(&self, tokens: usize, checkpoint: Option<&Arc<State>>) -> bool {
        let is_same = match (&self.checkpoint, checkpoint) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        is_same && self.tokens == tokens
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use llama_sys::Token;
    use test_support::random_weights;

    use super::{Added, NewPiece, Text, is_behind};
    use crate::memory::{FlashAttention, KvType};
    use crate::plan::Request;
    use crate::store::PromptStore;
    use crate::{Model, ModelBuilder};

    fn model_of(arch: &str, folder: &Path) -> PathBuf {
        let mut sketch = random_weights::all().into_iter().find(|sketch| sketch.arch == arch).unwrap().in_floats();
        sketch.vocabulary();
        random_weights::write(&sketch, folder)
    }

    fn builder(path: &Path) -> ModelBuilder {
        let mut request = Request::new().n_ctx(1024).n_batch(64);
        request.params.flash_attn = FlashAttention::Off;
        request.params.swa_full = false;
        (request.params.type_k, request.params.type_v) = (KvType::F32, KvType::F32);
        Model::builder(path).request(request).n_threads(1).without_learning()
    }

    fn words(seed: Token, n: Token) -> Vec<Token> {
        (0..n).map(|at| 259 + (at * 7 + seed) % 200).collect()
    }

    /// The generated text, and the number of tokens that came from the store.
    fn text(model: &Model, prompt: &[Token]) -> (String, usize) {
        let generate = model.generate(prompt).temp(0.3).seed(1).top_k(0).top_p(1.0).min_p(0.0).max_tokens(8);
        let (text, statistics) = generate.cache_prompt(true).stream().unwrap().into_text().unwrap();
        (text, statistics.restored_tokens)
    }

    #[test]
    fn a_state_copied_in_many_parts_is_restored_like_one_copied_at_once() {
        let folder = tempfile::tempdir().unwrap();
        // The memories of these models: rows alone, rows with windows, a recurrent state, rows with a recurrent state.
        for arch in ["llama", "gpt-oss", "mamba2", "jamba"] {
            let path = model_of(arch, folder.path());
            let builder = || builder(&path);
            let long = words(1, 300);
            let next = [&long[..], &words(2, 20)].concat();
            let store = PromptStore::new(64 << 20);
            let model = builder().prompt_store(store.clone()).load().unwrap();
            text(&model, &long);
            text(&model, &words(3, 40));
            let (restored, tokens) = text(&model, &next);
            // Windows and recurrent states come from the checkpoint before the end of the prompt.
            assert!(tokens >= 296, "{arch}: {tokens}");
            assert!(store.usage().memory_bytes > 300 * 64, "{arch}");
            assert_eq!(restored, text(&builder().load().unwrap(), &next).0, "{arch}");
        }
    }

    #[test]
    fn pieces_that_a_context_refuses_are_forgotten_and_stored_anew() {
        let folder = tempfile::tempdir().unwrap();
        // Bytes that are no shape, and a shape without any row.
        for bytes in [vec![1; 5000], vec![1, 0, 0, 0, 0]] {
            for arch in ["llama", "jamba"] {
                let path = model_of(arch, folder.path());
                let store = PromptStore::new(64 << 20);
                let model = builder(&path).prompt_store(store.clone()).load().unwrap();
                let of = model.with_native(|native| model.prompt_store(native)).unwrap().unwrap();
                let root = store.root(&of.key(&model.scales(None).unwrap()));
                store.learn(root, "", None, of.needs_rest);
                let prompt = words(1, 100);
                let stored = Text::plain(&prompt[..64]);
                let rows = NewPiece::Rows { from: 0, data: bytes.clone() };
                assert!(matches!(store.add(root, stored, rows), Added::Yes { .. }));
                if of.needs_rest {
                    assert!(matches!(store.add(root, stored, NewPiece::Rest(bytes.clone())), Added::Yes { .. }));
                }
                assert_eq!(store.find(root, Text::plain(&prompt)).tokens, 64, "{arch}");
                assert_eq!(text(&model, &prompt).1, 0, "{arch}");
                text(&model, &words(3, 40));
                let next = [&prompt[..], &words(2, 20)].concat();
                let (restored, tokens) = text(&model, &next);
                assert!(tokens >= 96, "{arch}: {tokens}");
                assert_eq!(restored, text(&builder(&path).load().unwrap(), &next).0, "{arch}");
            }
        }
    }

    #[test]
    fn nothing_is_copied_again_before_the_folders_thread_has_written_something() {
        assert!(!is_behind(None, 5));
        assert!(is_behind(Some(5), 5) && is_behind(Some(5), 6));
        assert!(!is_behind(Some(5), 4));
        // The thread may have ended its work before this check.
        assert!(!is_behind(Some(0), 0) && is_behind(Some(0), 1));
    }
}
