//! Brings pieces into memory: those in memory as they are, and the others from the folder.
//!
//! A reader is no holder of the store. It may wait for a disk that does not answer (a network folder, for example), and
//! meanwhile it keeps neither the store's memory nor the lock of its folder.

use std::sync::{Arc, Weak};

use super::found::{Brought, Found, Id};
use super::tree::Content;
use super::writer::Shared;
use crate::sync::lock;

#[derive(Debug)]
pub(crate) struct StoreReader {
    store: Weak<Shared>,
}

impl StoreReader {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { store: Arc::downgrade(shared) }
    }

    /// Brings the pieces of a beginning into memory. `None` if one of them is damaged or gone; the store has then
    /// forgotten it, and another search finds less. Also `None` once the pieces are no longer wanted, or the store is
    /// gone.
    pub(crate) fn bring(&self, found: &Found, is_wanted: impl Fn() -> bool) -> Option<Brought> {
        let mut brought = Brought { pieces: Vec::new(), rest: None, from_folder: 0 };
        for piece in &found.pieces {
            if !is_wanted() {
                return None;
            }
            let (data, from_folder) = self.data(piece.id)?;
            brought.from_folder += if from_folder { piece.wanted } else { 0 };
            brought.pieces.push((data, piece.tokens, piece.wanted));
        }
        if let Some(rest) = found.rest {
            brought.rest = Some(self.data(rest)?.0);
        }
        self.used(found)?;
        Some(brought)
    }

    /// The pieces of a beginning, if all of them are in memory. No file is read.
    pub(super) fn in_memory(&self, found: &Found) -> Option<Brought> {
        let brought = {
            let store = self.store.upgrade()?;
            let tree = lock(&store.tree);
            let data = |id: Id| match tree.data(id)? {
                Content::Here(data) => Some(data),
                Content::InFolder(_) => None,
            };
            let pieces = found.pieces.iter().map(|piece| Some((data(piece.id)?, piece.tokens, piece.wanted)));
            let pieces = pieces.collect::<Option<_>>()?;
            let rest = match found.rest {
                Some(rest) => Some(data(rest)?),
                None => None,
            };
            Brought { pieces, rest, from_folder: 0 }
        };
        self.used(found)?;
        Some(brought)
    }

    /// Counts a use of these pieces. `None` if the store is gone.
    fn used(&self, found: &Found) -> Option<()> {
        self.store.upgrade()?.change(|tree, folder| tree.used(found, folder));
        Some(())
    }

    /// The bytes of a piece, and whether they were read from the folder.
    fn data(&self, id: Id) -> Option<(Arc<Vec<u8>>, bool)> {
        let (header, file) = {
            let store = self.store.upgrade()?;
            let content = lock(&store.tree).data(id)?;
            match content {
                Content::Here(data) => return Some((data, false)),
                Content::InFolder(header) => (header, store.folder.get()?.piece(id)),
            }
        };
        let read = file.read(&header);
        let store = self.store.upgrade()?;
        match read {
            Ok(data) => {
                let data = Arc::new(data);
                store.change(|tree, folder| tree.keep_read(id, &data, folder));
                Some((data, true))
            }
            Err(error) => {
                tracing::warn!(target: "autoplace::store", "a stored piece is not used: {error}");
                store.change(|tree, folder| tree.forget(id, folder));
                None
            }
        }
    }
}
