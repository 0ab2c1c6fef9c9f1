//! The tree of pieces: which beginning of a text is stored, and which pieces are evicted to make room for others.
//!
//! A piece of rows has the tokens of one block, and the piece before it as its parent, so two texts share their pieces
//! up to the block in which they differ. The last piece of a text may be shorter than a block; a longer piece with the
//! same beginning replaces it. A rest is the part of a state that belongs to all tokens together. Its parent is the
//! piece with the last of these tokens.

mod evict;
mod find;

use std::collections::HashMap;
use std::sync::Arc;

use llama_sys::Token;

use self::find::Step;
use super::folder::Folder;
use super::found::{Added, Found, Id, NewPiece};
use super::memory::{allocated, of_map};
use super::options::{StoreUse, StoredModel};
use super::piece::{Header, Kind, id, on_disk};
use super::text::{PieceMedia, Text};
use super::value::{Root, Uses};

/// No piece.
const NONE: Id = 0;

/// Number of roots above which roots without pieces are removed. Requests may choose any scales of adapters, and each
/// choice is a root.
const MAX_EMPTY_ROOTS: usize = 64;

/// One text may take at most the limit divided by this number, so that a long conversation does not displace all
/// others.
const SHARE_OF_ONE: u64 = 2;

#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<Id, Node>,
    roots: HashMap<Id, RootNode>,
    /// Bytes that the nodes take in addition to their entries in the hash map `nodes` (see [`Node::bytes`]).
    of_nodes: u64,
    limit: u64,
    /// Bytes of files that are written or being written.
    of_files: u64,
    folder_limit: u64,
    /// Pieces whose files are to be removed. Their bytes are no longer counted.
    outdated: Vec<Id>,
    clock: u64,
}

#[derive(Debug, Default)]
struct RootNode {
    of: Root,
    /// The model's name, for people.
    label: String,
    first_child: Id,
}

#[derive(Debug)]
struct Node {
    root: Id,
    parent: Id,
    first_child: Id,
    next: Id,
    start: u32,
    kind: Kind,
    /// Number of tokens that must be computed again if the piece is missing.
    saves: u32,
    tokens: Box<[Token]>,
    media: Box<[PieceMedia]>,
    /// `None` if only the folder has the data.
    data: Option<Arc<Vec<u8>>>,
    data_bytes: u64,
    uses: Uses,
    /// Bytes of the file; 0 without one.
    file: u64,
    /// Whether the piece waits for the folder's thread, which needs its data.
    waits: bool,
}

impl Node {
    /// Bytes that the node takes in addition to its entry in the hash map.
    fn bytes(&self) -> u64 {
        // An `Arc` has two counters, and a `Vec` three words.
        let data = self.data.as_ref().map_or(0, |data| allocated(40) + allocated(data.capacity()));
        allocated(size_of_val(&*self.tokens)) + allocated(size_of_val(&*self.media)) + data
    }
}

/// Where the data of a piece is.
#[derive(Debug)]
pub(super) enum Content {
    Here(Arc<Vec<u8>>),
    InFolder(Box<Header>),
}

/// The work of the folder's thread for one piece.
#[derive(Debug, Default)]
pub(super) struct Write {
    /// Files that are removed first.
    pub(super) outdated: Vec<Id>,
    /// The piece that is then written; `None` if it is gone or finds no room.
    pub(super) piece: Option<(Header, Arc<Vec<u8>>)>,
}

impl Tree {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            nodes: HashMap::new(),
            roots: HashMap::new(),
            of_nodes: 0,
            limit,
            of_files: 0,
            folder_limit: 0,
            outdated: Vec::new(),
            clock: 0,
        }
    }

    pub(super) fn learn(&mut self, root: Id, label: &str, of: Root) {
        if self.roots.len() > MAX_EMPTY_ROOTS {
            self.roots.retain(|_, root| root.first_child != NONE);
        }
        let known = self.roots.entry(root).or_default();
        known.of = of;
        if known.label != label {
            label.clone_into(&mut known.label);
        }
    }

    pub(super) fn usage(&self) -> StoreUse {
        let rows = self.nodes.values().filter(|node| node.kind == Kind::Rows);
        StoreUse {
            pieces: self.nodes.len(),
            tokens: rows.map(|node| node.tokens.len() as u64).sum(),
            memory_bytes: self.bytes(),
            memory_limit: self.limit,
            folder_bytes: self.of_files,
            folder_limit: self.folder_limit,
            ..StoreUse::default()
        }
    }

    pub(super) fn models(&self) -> Vec<StoredModel> {
        let mut models: HashMap<Id, StoredModel> = HashMap::new();
        for node in self.nodes.values() {
            let name = || self.roots.get(&node.root).map(|root| root.label.clone()).unwrap_or_default();
            let model = models.entry(node.root).or_insert_with(|| StoredModel {
                name: name(),
                pieces: 0,
                tokens: 0,
                memory_bytes: 0,
                folder_bytes: 0,
            });
            model.pieces += 1;
            model.tokens += node.tokens.len() as u64;
            model.memory_bytes += node.bytes();
            model.folder_bytes += node.file;
        }
        let mut models: Vec<StoredModel> = models.into_values().collect();
        models.sort_by(|a, b| {
            let size = |model: &StoredModel| model.memory_bytes.max(model.folder_bytes);
            size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name))
        });
        models
    }

    /// Bytes of memory that the store takes.
    fn bytes(&self) -> u64 {
        let labels: u64 = self.roots.values().map(|root| allocated(root.label.capacity())).sum();
        self.of_nodes + of_map(&self.nodes) + of_map(&self.roots) + labels
    }

    /// Adds pieces whose files were found.
    pub(super) fn add_files(&mut self, mut found: Vec<Header>, folder: &Folder) {
        found.sort_by_key(|header| header.modified);
        let mut times: HashMap<Id, u64> = HashMap::new();
        for header in &found {
            self.clock += 1;
            times.insert(header.id, self.clock);
        }
        // Parents come before children, and rows before the rests that belong to them.
        found.sort_by_key(|header| (header.start, header.kind != Kind::Rows));
        for header in found {
            let is_first = header.start == 0 && header.parent == header.root && header.kind == Kind::Rows;
            let follows = |node: &Node| {
                let before = match header.kind {
                    Kind::Rows => header.start.checked_sub(node.start) == u32::try_from(node.tokens.len()).ok(),
                    Kind::Rest { offset } => {
                        header.start == node.start && (1..=node.tokens.len()).contains(&(offset as usize))
                    }
                };
                before && node.kind == Kind::Rows && node.root == header.root
            };
            if !is_first && !self.nodes.get(&header.parent).is_some_and(follows) {
                self.remove_later(header.id, Some(folder));
                continue;
            }
            let file = on_disk(header.file_bytes());
            self.of_files += file;
            if let Some(known) = self.nodes.get_mut(&header.id) {
                known.file = file;
                continue;
            }
            let root = self.roots.entry(header.root).or_default();
            if root.label.is_empty() {
                root.label = header.label;
            }
            let last = times.get(&header.id).copied().unwrap_or(0);
            let node = Node {
                root: header.root,
                parent: header.parent,
                first_child: NONE,
                next: NONE,
                start: header.start,
                kind: header.kind,
                saves: header.saves,
                tokens: header.tokens,
                media: header.media,
                data: None,
                data_bytes: header.data_bytes,
                uses: Uses { times: 0, last },
                file,
                waits: false,
            };
            self.insert(header.id, node);
        }
        self.make_room(0, &[], Some(folder));
        self.make_room_in_folder(0, folder);
    }

    /// Becomes the tree of the folder's writer. `found` are the files in the folder now: the earlier writer may have
    /// added and removed files since this store read the folder. Returns the pieces that are only in memory.
    pub(super) fn taken_over(&mut self, found: Vec<Header>, folder_limit: u64, folder: &Folder) -> Vec<Id> {
        self.folder_limit = folder_limit;
        self.of_files = 0;
        self.nodes.values_mut().for_each(|node| node.file = 0);
        self.add_files(found, folder);
        let is_gone = |node: &Node| node.data.is_none() && node.file == 0;
        let gone: Vec<Id> = self.nodes.iter().filter(|(_, node)| is_gone(node)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.forget(id, Some(folder)));
        let mut in_memory: Vec<(u32, bool, Id)> = Vec::new();
        for (id, node) in self.nodes.iter_mut().filter(|(_, node)| node.file == 0) {
            node.waits = true;
            in_memory.push((node.start, node.kind != Kind::Rows, *id));
        }
        // Parents come before children, and rows before the rests that belong to them.
        in_memory.sort_unstable();
        in_memory.into_iter().map(|(_, _, id)| id).collect()
    }

    fn insert(&mut self, id: Id, mut node: Node) {
        let first = match self.nodes.get_mut(&node.parent) {
            Some(parent) => &mut parent.first_child,
            None => &mut self.roots.entry(node.parent).or_default().first_child,
        };
        node.next = std::mem::replace(first, id);
        self.of_nodes += node.bytes();
        self.nodes.insert(id, node);
    }

    fn children(&self, parent: Id) -> impl Iterator<Item = (Id, &Node)> {
        let first = match self.nodes.get(&parent) {
            Some(node) => node.first_child,
            None => self.roots.get(&parent).map_or(NONE, |root| root.first_child),
        };
        let node = |id: Id| self.nodes.get(&id).map(|node| (id, node));
        std::iter::successors(node(first), move |(_, before)| node(before.next))
    }

    fn rows(&self, parent: Id) -> impl Iterator<Item = (Id, &Node)> {
        self.children(parent).filter(|(_, node)| node.kind == Kind::Rows)
    }

    /// Counts a use of these pieces.
    pub(super) fn used(&mut self, found: &Found, folder: Option<&Folder>) {
        self.clock += 1;
        for id in found.pieces.iter().map(|piece| piece.id).chain(found.rest) {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.uses = Uses { times: node.uses.times.saturating_add(1), last: self.clock };
            }
        }
        self.make_room(0, &[], folder);
    }

    pub(super) fn data(&self, id: Id) -> Option<Content> {
        let node = self.nodes.get(&id)?;
        Some(match &node.data {
            Some(data) => Content::Here(Arc::clone(data)),
            None => Content::InFolder(Box::new(self.header(id, node))),
        })
    }

    fn header(&self, id: Id, node: &Node) -> Header {
        Header {
            id,
            root: node.root,
            parent: node.parent,
            start: node.start,
            kind: node.kind,
            saves: node.saves,
            tokens: node.tokens.clone(),
            media: node.media.clone(),
            data_bytes: node.data_bytes,
            label: self.roots.get(&node.root).map(|root| root.label.clone()).unwrap_or_default(),
            modified: None,
        }
    }

    /// Keeps data that was read from the folder, if there is room for it.
    pub(super) fn keep_read(&mut self, id: Id, data: &Arc<Vec<u8>>, folder: Option<&Folder>) {
        let bytes = allocated(40) + allocated(data.capacity());
        let is_wanted = self.nodes.get(&id).is_some_and(|node| node.data.is_none());
        if is_wanted
            && self.make_room(bytes, &[id], folder)
            && let Some(node) = self.nodes.get_mut(&id)
        {
            node.data = Some(Arc::clone(data));
            self.of_nodes += bytes;
        }
    }

    /// Adds a piece, if there is room for it and all pieces before it are there.
    pub(super) fn add(&mut self, root: Id, text: Text<'_>, piece: NewPiece, folder: Option<&Folder>) -> Added {
        self.clock += 1;
        let before = if let NewPiece::Rows { from, .. } = &piece { *from } else { text.tokens.len() };
        let (path, reached) = self.walk(root, text.first(before));
        if reached != before {
            return Added::No;
        }
        let Some((new, mut node)) = self.node(root, text, piece, &path) else { return Added::No };
        if self.nodes.contains_key(&new) {
            return Added::No;
        }
        node.waits = folder.is_some_and(Folder::is_ours);
        let ids: Vec<Id> = path.iter().map(|step| step.id).collect();
        let of_text: u64 = ids.iter().filter_map(|id| self.nodes.get(id)).map(|node| node.data_bytes).sum();
        if of_text + node.data_bytes > self.most_of_one(node.waits) {
            return Added::No;
        }
        // One more entry may double the table.
        let table = if self.nodes.len() == self.nodes.capacity() { of_map(&self.nodes).max(1024) } else { 0 };
        if !self.make_room(node.bytes() + table, &ids, folder) {
            return if self.nodes.values().any(|node| node.waits) { Added::Later } else { Added::No };
        }
        let (parent, is_rows, waits) = (node.parent, node.kind == Kind::Rows, node.waits);
        self.insert(new, node);
        let mut to_write = vec![new];
        if is_rows {
            to_write.extend(self.replace_shorter(parent, new, folder));
        }
        Added::Yes { to_write: if waits { to_write } else { Vec::new() } }
    }

    /// Maximum bytes of one text. `is_written` is true if its pieces are written to the folder.
    fn most_of_one(&self, is_written: bool) -> u64 {
        if is_written { self.limit.max(self.folder_limit) / SHARE_OF_ONE } else { self.limit / SHARE_OF_ONE }
    }

    /// Whether a piece of this size could be added. Every piece needs room in memory, even if it is then written to the
    /// folder.
    pub(super) fn may_take(&self, bytes: u64) -> bool {
        bytes <= self.limit && bytes <= self.most_of_one(self.folder_limit > 0)
    }

    /// The node of a new piece after the path, and its identity. `None` if the path does not end with a whole piece.
    fn node(&self, root: Id, text: Text<'_>, piece: NewPiece, path: &[Step]) -> Option<(Id, Node)> {
        let (tokens, last) = (text.tokens, path.last().copied());
        let (kind, parent, start, own, media, saves, data) = match piece {
            NewPiece::Rows { from, data } => {
                if last.is_some_and(|step| self.nodes.get(&step.id).is_none_or(|node| node.tokens.len() != step.common))
                {
                    return None;
                }
                let (own, media) = (tokens[from..].into(), text.media_of(from..tokens.len()));
                (Kind::Rows, last.map_or(root, |step| step.id), from, own, media, tokens.len() - from, data)
            }
            NewPiece::Rest(data) => {
                let step = last?;
                let earlier = self.last_rest(root, text, path).map_or(0, |rest| rest.tokens);
                let offset = u32::try_from(step.common).ok()?;
                let start = self.nodes.get(&step.id)?.start as usize;
                (Kind::Rest { offset }, step.id, start, Box::default(), Box::default(), tokens.len() - earlier, data)
            }
        };
        let node = Node {
            root,
            parent,
            first_child: NONE,
            next: NONE,
            start: u32::try_from(start).ok()?,
            kind,
            saves: u32::try_from(saves).ok()?,
            tokens: own,
            media,
            data_bytes: data.len() as u64,
            data: Some(Arc::new(data)),
            uses: Uses { times: 0, last: self.clock },
            file: 0,
            waits: false,
        };
        Some((id(parent, kind, &node.tokens, &node.media), node))
    }

    /// Removes shorter pieces whose tokens are the beginning of the new piece. Their children become children of the
    /// new piece. Returns the moved children.
    fn replace_shorter(&mut self, parent: Id, new: Id, folder: Option<&Folder>) -> Vec<Id> {
        let mut all_moved = Vec::new();
        let Some(new_node) = self.nodes.get(&new) else { return all_moved };
        let (tokens, media, waits) = (new_node.tokens.clone(), new_node.media.clone(), new_node.waits);
        let is_shorter = |node: &Node| {
            let beginning = media.iter().take_while(|rows| (rows.offset as usize) < node.tokens.len());
            node.tokens.len() < tokens.len() && tokens.starts_with(&node.tokens) && beginning.eq(&*node.media)
        };
        let shorter: Vec<Id> = self.rows(parent).filter(|(_, node)| is_shorter(node)).map(|(id, _)| id).collect();
        for old in shorter {
            let rests: Vec<Id> = self.children(old).map(|(id, _)| id).collect();
            for rest in rests {
                let Some(mut node) = self.take(rest, folder) else { continue };
                // The name of the child's file depended on the old parent, so the file is gone. Without data in memory,
                // the child is lost.
                if node.data.is_some() {
                    (node.parent, node.file, node.waits, node.first_child) = (new, 0, waits, NONE);
                    let moved = id(new, node.kind, &node.tokens, &node.media);
                    self.insert(moved, node);
                    all_moved.push(moved);
                }
            }
            self.take(old, folder);
        }
        all_moved
    }

    /// Forgets a piece and all of its descendants.
    pub(super) fn forget(&mut self, id: Id, folder: Option<&Folder>) {
        let mut all = vec![id];
        let mut at = 0;
        while let Some(&parent) = all.get(at) {
            all.extend(self.children(parent).map(|(id, _)| id));
            at += 1;
        }
        for id in all.into_iter().rev() {
            self.take(id, folder);
        }
    }

    /// Forgets a beginning that a context has refused: its rest, and those of its pieces that no other text has. The
    /// pieces of other texts stay, because a context may have had too few cells for this text only.
    pub(super) fn refused(&mut self, found: &Found, folder: Option<&Folder>) {
        if let Some(rest) = found.rest {
            self.forget(rest, folder);
        }
        for piece in found.pieces.iter().rev() {
            if self.children(piece.id).next().is_some() {
                return;
            }
            self.forget(piece.id, folder);
        }
    }

    pub(super) fn clear(&mut self, folder: Option<&Folder>) {
        // All pieces are removed, so they need not be unlinked one by one. To unlink a piece, the list of its siblings
        // is searched.
        let nodes = std::mem::take(&mut self.nodes);
        self.of_nodes = 0;
        self.roots.values_mut().for_each(|root| root.first_child = NONE);
        for (id, node) in nodes {
            self.remove_file(id, node.file, folder);
        }
    }

    /// Takes a piece out of the tree, and removes its file.
    fn take(&mut self, id: Id, folder: Option<&Folder>) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        self.of_nodes -= node.bytes();
        self.remove_file(id, node.file, folder);
        let first = match self.nodes.get(&node.parent) {
            Some(parent) => parent.first_child,
            None => self.roots.get(&node.parent).map_or(NONE, |root| root.first_child),
        };
        if first == id {
            match self.nodes.get_mut(&node.parent) {
                Some(parent) => parent.first_child = node.next,
                None => {
                    if let Some(root) = self.roots.get_mut(&node.parent) {
                        root.first_child = node.next;
                    }
                }
            }
        } else {
            let before = self.children(node.parent).find(|(_, sibling)| sibling.next == id).map(|(id, _)| id);
            if let Some(before) = before.and_then(|before| self.nodes.get_mut(&before)) {
                before.next = node.next;
            }
        }
        Some(node)
    }

    fn remove_file(&mut self, id: Id, bytes: u64, folder: Option<&Folder>) {
        if bytes > 0 {
            self.of_files -= bytes;
            self.remove_later(id, folder);
        }
    }

    /// Lets the folder's thread remove a file, if this store writes to the folder. The tree is locked now, and a disk
    /// may take long.
    fn remove_later(&mut self, id: Id, folder: Option<&Folder>) {
        if folder.is_some_and(Folder::is_ours) {
            self.outdated.push(id);
        }
    }

    /// Whether files are to be removed.
    pub(super) const fn has_outdated(&self) -> bool {
        !self.outdated.is_empty()
    }

    /// The pieces whose files are to be removed now, without the lock of the tree.
    pub(super) fn take_outdated(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.outdated)
    }

    /// Begins to write a piece: reserves its bytes in the folder. Always returns the files to be removed, and the piece
    /// unless it is gone or has no room.
    pub(super) fn begin_write(&mut self, id: Id, folder: &Folder) -> Write {
        let Some(node) = self.nodes.get(&id) else { return Write { outdated: self.take_outdated(), piece: None } };
        let header = self.header(id, node);
        let data = node.data.clone();
        // If the parent has no file, a file of this piece would be of no use to the next process.
        let has_parent = node.parent == node.root || self.nodes.get(&node.parent).is_some_and(|parent| parent.file > 0);
        let is_to_write = node.file == 0 && data.is_some() && has_parent;
        let bytes = on_disk(header.file_bytes());
        let is_enough = is_to_write && self.make_room_in_folder(bytes, folder);
        let piece = data.map(|data| (header, data)).filter(|_| is_enough);
        if piece.is_some() {
            self.of_files += bytes;
        } else if let Some(node) = self.nodes.get_mut(&id) {
            node.waits = false;
        }
        Write { piece, outdated: self.take_outdated() }
    }

    pub(super) fn end_write(&mut self, header: &Header, is_written: bool, folder: &Folder) {
        let bytes = on_disk(header.file_bytes());
        match self.nodes.get_mut(&header.id) {
            Some(node) if node.file == 0 && is_written => (node.file, node.waits) = (bytes, false),
            other => {
                if let Some(node) = other {
                    node.waits = false;
                }
                self.of_files -= bytes;
                // The write has failed, or the piece was forgotten meanwhile.
                self.remove_later(header.id, Some(folder));
            }
        }
        self.make_room(0, &[], Some(folder));
    }
}
