//! The longest stored beginning of a text, and the pieces of it that the store lacks.

use std::ops::Range;

use super::{Kind, Node, Tree};
use crate::store::found::{Found, FoundPiece, Id};
use crate::store::text::Text;

/// A stored piece that continues the beginning of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) id: Id,
    /// Number of tokens at the beginning of the piece that the text has too.
    pub(super) common: usize,
}

/// A rest that belongs to the first tokens of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastRest {
    id: Id,
    /// The rest belongs to this number of tokens at the beginning of the text.
    pub(super) tokens: usize,
    /// The index of the rest's parent in the path. If the path has another piece in the parent's place, it is the index
    /// of that piece. The next field is the parent itself.
    at: usize,
    piece: Id,
    /// The rest belongs to this number of tokens at the beginning of the parent.
    offset: usize,
}

impl Tree {
    /// The pieces with which the text begins, and the number of tokens that they share with the text. The last piece
    /// may continue differently from the text.
    pub(super) fn walk(&self, root: Id, text: Text<'_>) -> (Vec<Step>, usize) {
        let (mut path, mut at, mut parent) = (Vec::new(), 0, root);
        loop {
            let common = |node: &Node| text.common(at, &node.tokens, &node.media);
            let found = self.rows(parent).map(|(id, node)| (common(node), id, node)).max_by_key(|(common, ..)| *common);
            let Some((common, id, node)) = found.filter(|(common, ..)| *common > 0) else { break };
            path.push(Step { id, common });
            at += common;
            if common < node.tokens.len() {
                break;
            }
            parent = id;
        }
        (path, at)
    }

    /// The longest rest at or before the end of the path. Several pieces may begin with the same tokens, and the rest
    /// may be a child of any of them, so all are searched.
    pub(super) fn last_rest(&self, root: Id, text: Text<'_>, path: &[Step]) -> Option<LastRest> {
        (0..path.len()).rev().find_map(|at| {
            let parent = at.checked_sub(1).map_or(root, |before| path[before].id);
            let start = self.nodes.get(&path[at].id)?.start as usize;
            let common = |node: &Node| text.common(start, &node.tokens, &node.media);
            let of_piece = |(piece, node): (Id, &Node)| {
                let common = common(node);
                let rests = self.children(piece).filter_map(move |(id, rest)| match rest.kind {
                    Kind::Rest { offset } if offset as usize <= common => Some((offset as usize, id)),
                    _ => None,
                });
                rests.max().map(|(offset, id)| LastRest { id, tokens: start + offset, at, piece, offset })
            };
            self.rows(parent).filter_map(of_piece).max_by_key(|rest| rest.offset)
        })
    }

    pub(in crate::store) fn find(&self, root: Id, text: Text<'_>) -> Found {
        let needs_rest = self.roots.get(&root).is_some_and(|root| root.of.needs_rest);
        let (mut path, mut reached) = self.walk(root, text);
        let mut found = Found::default();
        if needs_rest {
            let Some(rest) = self.last_rest(root, text, &path) else { return found };
            path.truncate(rest.at);
            path.push(Step { id: rest.piece, common: rest.offset });
            reached = rest.tokens;
            found.rest = Some(rest.id);
        }
        found.tokens = reached;
        let mut count = |node: &Node| found.bytes[usize::from(node.data.is_none())] += node.data_bytes;
        for step in &path {
            let Some(node) = self.nodes.get(&step.id) else { return Found::default() };
            count(node);
            let wanted = step.common.min(reached - node.start as usize);
            found.pieces.push(FoundPiece { id: step.id, tokens: node.tokens.len(), wanted });
        }
        if let Some(node) = found.rest.and_then(|rest| self.nodes.get(&rest)) {
            count(node);
        }
        found
    }

    pub(in crate::store) fn missing_rows(&self, root: Id, text: Text<'_>, block: usize) -> Option<Range<usize>> {
        let (mut at, mut parent) = (0, root);
        while at < text.tokens.len() {
            let wanted = block.min(text.tokens.len() - at);
            match self.rows(parent).find(|(_, node)| text.common(at, &node.tokens, &node.media) >= wanted) {
                Some((id, _)) if wanted == block => (at, parent) = (at + block, id),
                Some(_) => return None,
                None => return Some(at..at + wanted),
            }
        }
        None
    }

    pub(in crate::store) fn lacks_rest(&self, root: Id, text: Text<'_>) -> bool {
        let (path, reached) = self.walk(root, text);
        reached == text.tokens.len() && self.last_rest(root, text, &path).is_none_or(|rest| rest.tokens < reached)
    }
}
