//! A stored beginning of a text gets into a sequence: at once, or in parts between the steps of running texts.
//!
//! A sequence first gets its cells and its rest, and then its rows, which can wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_sys::{Context, Position, RowPiece, RowShape, SeqId};

use super::{AT_ONCE, AT_ONCE_LIMITS, Restored, Stored};
use crate::store::{Brought, Found, smoothed};

/// Seconds for which running texts wait between two steps while rows are written. This is longer than the time for
/// copying into the store, because here another text waits too.
const TIME_AT_ONCE: f64 = 4e-3;
/// Maximum of these seconds after a long step, such as the computation of a prompt.
const MAX_TIME_AT_ONCE: f64 = 50e-3;

/// If steps take long, the running texts wait for this part of a step's time, so that the other text does not wait for
/// a hundred of these steps.
const PART_OF_A_STEP: f64 = 0.05;

/// A sequence that has its cells, and only a part of its rows.
#[derive(Debug)]
pub(super) struct Restoring {
    seq: SeqId,
    found: Found,
    brought: Brought,
    took: Duration,
}

impl Stored {
    /// Restores a beginning into an empty sequence. The next token then has the position `end`. If the context refuses
    /// the pieces, the sequence stays empty, the store forgets those of no other text, and the result is `None`.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        seq: SeqId,
        (found, brought): (Found, Brought),
        end: usize,
    ) -> Option<Restored> {
        // Another sequence may be only partly restored.
        let other = self.restoring.take();
        let begun = self.begin_restore(context, seq, (found, brought), end);
        let restored = begun.filter(|_| self.restore_part(context, true).is_some());
        self.restoring = other;
        restored
    }

    /// Gives an empty sequence the cells of a beginning, as the first part of [`restore`](Self::restore). The other
    /// parts follow with [`restore_part`](Self::restore_part). Until then, nothing but a removal may use the sequence.
    pub(crate) fn begin_restore(
        &mut self,
        context: &mut Context,
        seq: SeqId,
        (found, brought): (Found, Brought),
        end: usize,
    ) -> Option<Restored> {
        let begun = Instant::now();
        if self.try_begin(context, seq, &brought, end).is_none() {
            tracing::debug!(target: "autoplace::store", "sequence {seq} refuses {} stored tokens", found.tokens);
            // A context that no longer works refuses everything.
            if context.is_usable() {
                self.forget(&found);
            }
            return None;
        }
        let took = begun.elapsed();
        self.since_step += took;
        let restored = Restored { tokens: found.tokens, from_folder: brought.from_folder };
        tracing::debug!(
            target: "autoplace::store",
            "sequence {seq} gets {} tokens from the store, {} of them from its folder",
            restored.tokens, restored.from_folder
        );
        self.restoring = Some(Restoring { seq, found, brought, took });
        Some(restored)
    }

    fn try_begin(&self, context: &mut Context, seq: SeqId, brought: &Brought, end: usize) -> Option<()> {
        let (shape, pieces) = brought.rows()?;
        let rest = brought.rest.as_deref().filter(|_| self.has_own_end);
        let rest: &[u8] = rest.map_or(&[], |rest| rest);
        context.begin_rows(seq, self.first, &shape, &pieces, rest).ok()?;
        // After a picture, some positions may be unused.
        let held = context.kv_seq_end(seq).ok().flatten().and_then(|held| usize::try_from(held).ok());
        if held.is_none_or(|held| held > end) {
            tracing::warn!(target: "autoplace::store", "a stored text ends at {held:?}, and not before {end}");
            context.kv_seq_remove(seq, 0..Position::MAX).ok()?;
            return None;
        }
        Some(())
    }

    /// Writes the next rows of the sequence that is being restored; with `is_last`, all that are left. Returns whether
    /// rows are left after that. `None` if the context refuses the rows: the sequence is then empty.
    pub(crate) fn restore_part(&mut self, context: &mut Context, is_last: bool) -> Option<bool> {
        let mut restoring = self.restoring.take()?;
        let Restoring { seq, found, brought, .. } = &restoring;
        let bytes = if is_last { usize::MAX } else { self.restored_at_once() };
        let begun = Instant::now();
        let (_, pieces) = brought.rows()?;
        let Ok(is_left) = context.write_more_rows(*seq, &pieces, bytes) else {
            if context.is_usable() {
                self.forget(found);
            }
            return None;
        };
        let took = begun.elapsed();
        self.since_step += took;
        restoring.took += took;
        if is_left {
            self.seconds_per_write = smoothed(self.seconds_per_write, bytes as u64, took);
            self.restoring = Some(restoring);
        } else {
            let bytes = restoring.found.bytes.iter().sum();
            self.seconds_per_byte = smoothed(self.seconds_per_byte, bytes, restoring.took);
        }
        Some(is_left)
    }

    /// Bytes of rows to write between two steps.
    fn restored_at_once(&self) -> usize {
        restored_at_once(self.seconds_per_write, self.last_step)
    }

    /// Whether the pieces of a sequence are kept, which is restored only partly.
    #[cfg(test)]
    pub(crate) fn is_restoring(&self) -> bool {
        self.restoring.is_some()
    }

    /// Leaves a sequence that is about to be removed as it is.
    pub(crate) fn stop_restoring(&mut self) {
        self.restoring = None;
    }
}

/// Bytes of rows to write between two steps, of which the last took this time.
fn restored_at_once(seconds_per_write: Option<f64>, last_step: Duration) -> usize {
    let time = (PART_OF_A_STEP * last_step.as_secs_f64()).clamp(TIME_AT_ONCE, MAX_TIME_AT_ONCE);
    let longer = time / TIME_AT_ONCE;
    let [least, most] = AT_ONCE_LIMITS;
    let bytes = seconds_per_write.map_or(AT_ONCE as f64 * longer, |per_byte| time / per_byte);
    bytes.clamp(least as f64, most as f64 * longer) as usize
}

impl Brought {
    /// The shape and the rows of the pieces. `None` if their shapes differ.
    fn rows(&self) -> Option<(RowShape, Vec<RowPiece<'_>>)> {
        let (first, _, _) = self.pieces.first()?;
        let (shape_bytes, _) = split(first)?;
        let shape = RowShape::from_bytes(shape_bytes)?;
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for (data, tokens, wanted) in &self.pieces {
            let (of_shape, rows) = split(data)?;
            if of_shape != shape_bytes {
                return None;
            }
            pieces.push(RowPiece { data: rows, tokens: *tokens, wanted: *wanted });
        }
        Some((shape, pieces))
    }
}

/// The shape and the rows of a piece.
fn split(data: &Arc<Vec<u8>>) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_longer_steps_more_is_restored_in_proportion() {
        let [least, most] = AT_ONCE_LIMITS;
        let of = |per_byte, milliseconds| restored_at_once(per_byte, Duration::from_millis(milliseconds));
        assert_eq!((of(None, 0), of(None, 80), of(None, 800)), (AT_ONCE, AT_ONCE, 10 * AT_ONCE));
        // Fast and slow memory.
        assert_eq!((of(Some(1e-12), 10), of(Some(1e-12), 800)), (most, 10 * most));
        assert_eq!((of(Some(1.0), 10), of(Some(1.0), 800)), (least, least));
        let per_byte = TIME_AT_ONCE / (2 * least) as f64;
        assert_eq!((of(Some(per_byte), 10), of(Some(per_byte), 160)), (2 * least, 4 * least));
    }
}
