//! The prompt store beside a context: idle sequences go there in pieces, and prompts come back from there.
//!
//! In: sequences that no text uses at the moment, and prompts. Out: the longest stored beginning of a prompt, restored
//! into a sequence, if that takes less time than computing it. Nothing here fails a text: a piece that cannot be
//! written or read is computed again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_sys::{Context, RowPiece, RowShape, SeqId};

use super::checkpoints;
use super::media;
use super::prefix::Prefix;
use crate::load::{Checkpoint, ModelStore, Remembered, Scales};
use crate::store::{Added, Brought, Found, Id, NewPiece, block_tokens, smoothed};

/// Minimum number of tokens by which a restored beginning must exceed the one that the context holds.
const WORTH_RESTORING: usize = 16;

/// Bytes that are copied into the store between two steps. At the speed of one core's copies this takes some
/// milliseconds.
const AT_ONCE: usize = 8 << 20;

/// Shortest batch, in tokens, whose time tells the cost of a prompt.
const MIN_BATCH: usize = 32;

/// Seconds for a byte in memory and in the folder, before the first measurement.
const SECONDS_PER_BYTE: [f64; 2] = [1e-9, 4e-9];

/// The store of a session's model.
#[derive(Debug)]
pub(crate) struct Stored {
    of: ModelStore,
    /// The root of the texts with the adapters of the last text.
    root: Option<(Scales, Id)>,
    seconds_per_token: Option<f64>,
    /// Seconds to restore a byte from memory.
    seconds_per_byte: Option<f64>,
    /// The number of pieces that waited for the folder's thread when the store last had no room because of them.
    later_at: Option<usize>,
}

/// The part of a sequence that is still to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing: the store holds it, or cannot hold more of it.
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
    /// Those whose rows were read from the folder.
    pub(crate) from_folder: usize,
}

impl Stored {
    pub(crate) fn new(of: ModelStore) -> Self {
        Self { of, root: None, seconds_per_token: None, seconds_per_byte: None, later_at: None }
    }

    /// Learns the cost of a prompt from a batch.
    pub(crate) fn computed(&mut self, tokens: usize, took: Duration) {
        if tokens >= MIN_BATCH {
            self.seconds_per_token = smoothed(self.seconds_per_token, tokens as u64, took);
        }
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

    /// The longest stored beginning of the prompt, if it is worth restoring where `held` tokens need not be computed
    /// anyway.
    pub(crate) fn find(&mut self, prompt: Prefix<'_>, held: usize) -> Option<Found> {
        let root = self.root(prompt.scales);
        // The last token is always computed, because its logits choose the next one.
        let (_, before_last) = prompt.tokens.split_last()?;
        let found = self.of.store.find(root, before_last);
        let more = found.tokens.saturating_sub(held);
        if more < WORTH_RESTORING {
            return None;
        }
        let [memory, folder] = found.bytes.map(|bytes| bytes as f64);
        let per_byte = self.seconds_per_byte.unwrap_or(SECONDS_PER_BYTE[0]);
        let restoring = memory * per_byte + folder * (per_byte + SECONDS_PER_BYTE[1]);
        let is_faster = self.seconds_per_token.is_none_or(|of_token| restoring < of_token * more as f64);
        is_faster.then_some(found)
    }

    /// Brings the pieces of a beginning into memory. `None` if one of them is damaged or gone; another search then
    /// finds less.
    pub(crate) fn bring(&self, found: &Found) -> Option<Brought> {
        self.of.store.bring(found)
    }

    /// Restores a beginning into an empty sequence. `None` leaves the sequence empty: the context refuses the pieces.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        seq: SeqId,
        found: &Found,
        brought: &Brought,
    ) -> Option<Restored> {
        let begun = Instant::now();
        let (first, _, _) = brought.pieces.first()?;
        let (shape_bytes, _) = split(first)?;
        let shape = RowShape::from_bytes(shape_bytes)?;
        let mut pieces = Vec::with_capacity(brought.pieces.len());
        for (data, tokens, wanted) in &brought.pieces {
            let (of_shape, rows) = split(data)?;
            if of_shape != shape_bytes {
                return None;
            }
            pieces.push(RowPiece { data: rows, tokens: *tokens, wanted: *wanted });
        }
        let rest: &[u8] = brought.rest.as_deref().map_or(&[], |rest| rest);
        let written = context.write_rows(seq, &shape, &pieces, rest);
        tracing::debug!(
            target: "autoplace::store",
            "sequence {seq} gets {} tokens from the store, {} of them from its folder: {written:?}",
            found.tokens, brought.from_folder
        );
        written.ok()?;
        let bytes = found.bytes.iter().sum();
        self.seconds_per_byte = smoothed(self.seconds_per_byte, bytes, begun.elapsed());
        Some(Restored { tokens: found.tokens, from_folder: brought.from_folder })
    }

    /// Stores the next pieces of an idle sequence, and the checkpoints of its tokens. Copies some megabytes at most.
    pub(crate) fn store_part(
        &mut self,
        context: &mut Context,
        idle: &Remembered,
        checkpoints: &[Checkpoint],
    ) -> Progress {
        // Asked before anything is copied, because the steps come back here for each token.
        let unwritten = self.of.store.unwritten();
        if is_behind(self.later_at, unwritten) {
            return Progress::Later;
        }
        match self.try_part(context, idle, checkpoints) {
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
        idle: &Remembered,
        checkpoints: &[Checkpoint],
    ) -> Result<Progress, llama_sys::Error> {
        if media::has_rows(&idle.tokens) {
            // A stored piece is found by its tokens, and another process does not know the ids of a picture's rows.
            return Ok(Progress::Done);
        }
        let root = self.root(&idle.scales);
        let free = checkpoints::free();
        if free < AT_ONCE as u64 {
            // The store is never the reason for swap.
            self.of.store.give_back(2 * AT_ONCE as u64 - free);
            return Ok(Progress::Done);
        }
        let Some(rows) = context.rows(idle.seq)? else { return Ok(Progress::Done) };
        let tokens = &*idle.tokens;
        // A text whose oldest tokens were shifted out holds more tokens than others can reuse.
        if rows.tokens() < tokens.len() || (rows.shape().has_rest() && !self.of.needs_rest) {
            return Ok(Progress::Done);
        }
        let shape = rows.shape().to_bytes();
        let row_bytes = rows.shape().row_bytes();
        let block = block_tokens(row_bytes);
        let mut copied = 0;
        while let Some(missing) = self.of.store.missing_rows(root, tokens, block) {
            if copied >= AT_ONCE {
                return Ok(Progress::More);
            }
            let data = piece(&shape, &context.read_rows(idle.seq, &rows, missing.clone())?);
            copied += data.len();
            let piece = NewPiece::Rows { from: missing.start, data };
            match self.of.store.add(root, &tokens[..missing.end], piece) {
                Added::Yes { .. } => {}
                Added::Later => return Ok(Progress::Later),
                Added::No => return Ok(Progress::Done),
            }
        }
        if !self.of.needs_rest {
            return Ok(Progress::Done);
        }
        for checkpoint in checkpoints {
            let is_of_text = checkpoint.scales == idle.scales && tokens.starts_with(&checkpoint.tokens);
            if is_of_text && self.of.store.lacks_rest(root, &checkpoint.tokens) {
                let rest = NewPiece::Rest(checkpoint.state.bytes().to_vec());
                if self.of.store.add(root, &checkpoint.tokens, rest) == Added::Later {
                    return Ok(Progress::Later);
                }
            }
        }
        if rows.tokens() == tokens.len() && self.of.store.lacks_rest(root, tokens) {
            let rest = NewPiece::Rest(context.read_rest(idle.seq, &rows)?);
            if self.of.store.add(root, tokens, rest) == Added::Later {
                return Ok(Progress::Later);
            }
        }
        Ok(Progress::Done)
    }

    /// Waits until the folder's thread has written all pieces.
    pub(crate) fn wait(&self) {
        self.of.store.flush();
    }

    /// Goes on with the store as the re-placed model has it.
    pub(crate) fn renew(&mut self, of: ModelStore) {
        (self.of, self.root) = (of, None);
    }
}

/// Whether the folder's thread has written nothing since the store had no room because of the pieces that waited for
/// it.
fn is_behind(later_at: Option<usize>, unwritten: usize) -> bool {
    unwritten > 0 && later_at.is_some_and(|at| unwritten >= at)
}

/// Rows with their shape before them, and the length of that.
fn piece(shape: &[u8], rows: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(4 + shape.len() + rows.len());
    data.extend((shape.len() as u32).to_le_bytes());
    data.extend(shape);
    data.extend(rows);
    data
}

/// The shape and the rows of a piece.
fn split(data: &Arc<Vec<u8>>) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::is_behind;

    #[test]
    fn nothing_is_copied_again_before_the_folders_thread_has_written_something() {
        assert!(!is_behind(None, 5));
        assert!(is_behind(Some(5), 5) && is_behind(Some(5), 6));
        assert!(!is_behind(Some(5), 4));
        // The thread may have ended its work before it was asked.
        assert!(!is_behind(Some(0), 0) && is_behind(Some(0), 1));
    }
}
