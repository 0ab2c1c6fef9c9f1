//! Chooses the pieces that are evicted to make room for others: the least valuable first, and the end of a text before
//! its beginning.
//!
//! In: a bound, and the bytes of a new piece. Out: pieces whose data leaves memory, pieces that are forgotten, and
//! files that the folder's thread removes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::{Kind, NONE, Node, Tree};
use crate::store::folder::Folder;
use crate::store::found::Id;

/// Limits of the evictions beyond the needed bytes: the number of pieces, and the share of the limit that becomes free
/// (one of this many parts). A search for the least valuable pieces visits all pieces. Because of these evictions, the
/// next additions need no search.
const AHEAD: usize = 32;
const PART_AHEAD: u64 = 32;

/// Candidates for eviction, the least valuable first. Of equally valuable candidates, the least recently used comes
/// first. Values are never negative, so their bits have the same order as the values.
type Candidates = BinaryHeap<Reverse<(u64, u64, Id)>>;

/// How much is still to be evicted under a bound.
struct Excess {
    limit: u64,
    ahead: usize,
}

impl Excess {
    fn over(limit: u64) -> Self {
        Self { limit, ahead: 0 }
    }

    /// Whether one more piece is to be evicted if the remaining pieces and the new one have this many bytes together.
    /// Below the limit, a few more pieces are evicted ([`AHEAD`]).
    fn is_left(&mut self, bytes: u64) -> bool {
        if bytes > self.limit {
            return true;
        }
        self.ahead += 1;
        self.ahead <= AHEAD && bytes > self.limit - self.limit / PART_AHEAD
    }
}

/// The pieces that may leave memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// The data of pieces that have a file, and whole pieces that have neither a file nor children.
    Data,
    /// Pieces without children.
    Piece,
}

impl Leaves {
    fn allows(self, node: &Node) -> bool {
        let is_last = node.first_child == NONE;
        let may_leave = match self {
            Self::Data => node.data.is_some() && (is_last || node.file > 0),
            Self::Piece => is_last,
        };
        may_leave && !node.waits
    }
}

impl Tree {
    pub(in crate::store) fn set_limit(&mut self, bytes: u64, folder: Option<&Folder>) {
        self.limit = bytes;
        self.make_room(0, &[], folder);
    }

    pub(in crate::store) fn give_back(&mut self, bytes: u64, folder: Option<&Folder>) {
        if bytes == 0 {
            return;
        }
        let left = self.bytes().saturating_sub(bytes);
        let limit = std::mem::replace(&mut self.limit, left);
        self.make_room(0, &[], folder);
        self.nodes.shrink_to_fit();
        self.limit = limit;
    }

    fn value(&self, node: &Node) -> f64 {
        let Some(root) = self.roots.get(&node.root) else { return 0.0 };
        // Two kinds of pieces are evicted first: rows that cannot be restored because they lack a rest, and pieces of
        // models that this process does not use.
        let is_of_no_use = root.of.needs_rest && node.kind == Kind::Rows && node.first_child == NONE;
        if is_of_no_use || root.of.seconds_per_token.is_none() {
            return 0.0;
        }
        node.uses.value(root.of, node.saves as usize, node.data_bytes, self.clock)
    }

    fn rank(&self, id: Id, node: &Node) -> Reverse<(u64, u64, Id)> {
        Reverse((self.value(node).to_bits(), node.uses.last, id))
    }

    fn candidates(&self, may_go: impl Fn(Id, &Node) -> bool) -> Candidates {
        let may_go = self.nodes.iter().filter(|(id, node)| may_go(**id, node));
        may_go.map(|(id, node)| self.rank(*id, node)).collect()
    }

    /// Evicts pieces until `bytes` more fit into memory. `keep` are pieces that must stay. Returns whether the bytes
    /// fit.
    pub(super) fn make_room(&mut self, bytes: u64, keep: &[Id], folder: Option<&Folder>) -> bool {
        if bytes > self.limit {
            return false;
        }
        while self.bytes() + bytes > self.limit {
            let keep: HashSet<Id> = keep.iter().copied().collect();
            let has_evicted =
                self.evict(Leaves::Data, bytes, &keep, folder) || self.evict(Leaves::Piece, bytes, &keep, folder);
            if self.nodes.is_empty() {
                // Even the table of the empty map may be too large.
                self.nodes = HashMap::new();
            }
            if !has_evicted {
                break;
            }
        }
        self.bytes() + bytes <= self.limit
    }

    /// Evicts pieces that `leaves` allows, until `bytes` more fit into memory. Returns whether any piece was evicted.
    fn evict(&mut self, leaves: Leaves, bytes: u64, keep: &HashSet<Id>, folder: Option<&Folder>) -> bool {
        let mut candidates = self.candidates(|id, node| leaves.allows(node) && !keep.contains(&id));
        let (mut excess, mut has_evicted) = (Excess::over(self.limit), false);
        while let Some(Reverse((_, _, id))) = candidates.pop() {
            // A piece may be among the candidates twice, because it is added again when its last child is evicted.
            let node = self.nodes.get(&id).filter(|node| leaves.allows(node));
            let Some(parent) = node.map(|node| node.parent) else { continue };
            if !excess.is_left(self.bytes() + bytes) {
                break;
            }
            match leaves {
                Leaves::Data => self.leave_memory(id, folder),
                Leaves::Piece => drop(self.take(id, folder)),
            }
            has_evicted = true;
            if let Some(node) = self.nodes.get(&parent)
                && leaves.allows(node)
                && !keep.contains(&parent)
            {
                candidates.push(self.rank(parent, node));
            }
        }
        has_evicted
    }

    /// Drops the data of a piece that has a file, and the whole piece otherwise.
    fn leave_memory(&mut self, id: Id, folder: Option<&Folder>) {
        match self.nodes.get_mut(&id) {
            Some(node) if node.file > 0 => {
                let before = node.bytes();
                node.data = None;
                self.of_nodes -= before - node.bytes();
            }
            _ => drop(self.take(id, folder)),
        }
    }

    /// Whether the file of a piece may be removed: no other file depends on it.
    fn file_may_go(&self, id: Id, node: &Node) -> bool {
        node.file > 0 && self.children(id).all(|(_, child)| child.file == 0)
    }

    /// Chooses files that make room for `bytes` more in the folder, and lets the folder's thread remove them. Returns
    /// whether the bytes then fit.
    pub(super) fn make_room_in_folder(&mut self, bytes: u64, folder: &Folder) -> bool {
        if bytes > self.folder_limit || !folder.is_ours() {
            return false;
        }
        if self.of_files + bytes > self.folder_limit {
            let mut candidates = self.candidates(|id, node| self.file_may_go(id, node));
            let mut excess = Excess::over(self.folder_limit);
            while let Some(Reverse((_, _, id))) = candidates.pop() {
                if !excess.is_left(self.of_files + bytes) {
                    break;
                }
                let Some(node) = self.nodes.get_mut(&id) else { continue };
                self.of_files -= std::mem::take(&mut node.file);
                self.outdated.push(id);
                let (parent, is_in_memory) = (node.parent, node.data.is_some());
                if !is_in_memory {
                    self.forget(id, Some(folder));
                }
                if let Some(node) = self.nodes.get(&parent)
                    && self.file_may_go(parent, node)
                {
                    candidates.push(self.rank(parent, node));
                }
            }
        }
        self.of_files + bytes <= self.folder_limit
    }
}
