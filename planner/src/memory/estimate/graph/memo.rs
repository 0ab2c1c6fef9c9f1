//! What was found before. Placements of one model differ in how many blocks are where, and most of these blocks are left out as
//! repetitions: what stays is the same for many placements.

use std::sync::{Mutex, PoisonError};

use super::super::Place;

/// What decides about the compute buffers: the blocks that were gone through, in order, each by its kind and its device, and
/// whatever else differs between placements.
pub(super) type Key = Vec<(usize, Place)>;

/// Bytes per backend; `None` where these blocks turned out not to stand for all.
pub(super) type Found = Option<Vec<u64>>;

/// A search over one model asks for some dozens of placements.
const MOST: usize = 256;

/// Findings of one [`ComputeGraph`](super::ComputeGraph).
#[derive(Debug, Default)]
pub(super) struct Memo(Mutex<Vec<(Key, Found)>>);

impl Memo {
    pub(super) fn get(&self, key: &Key) -> Option<Found> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|(known, _)| known == key);
        found.map(|(_, found)| found.clone())
    }

    pub(super) fn put(&self, key: Key, found: Found) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST {
            all.push((key, found));
        }
    }
}

/// A copy begins with nothing: it may be changed.
impl Clone for Memo {
    fn clone(&self) -> Self {
        Self::default()
    }
}
