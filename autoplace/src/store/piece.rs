//! A piece in a file: a header with its checksum, the data, and the data's checksum.
//!
//! The file's name is the piece's `Id`. This is a hash of the root, the earlier tokens and the piece's own tokens, so
//! that a piece is found by its tokens alone. A reader trusts nothing: a file counts only if its length, both checksums
//! and its identity are right.

use std::time::SystemTime;

use llama_sys::Token;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128_with_seed};

use super::found::Id;
use super::text::{PieceMedia, fits};

/// The first bytes of a file: a name and the version of the format.
const MAGIC: [u8; 8] = *b"apstore\x01";

/// The longest header that is read. A header has at most some hundred tokens and a name.
const MAX_HEADER: usize = 64 << 10;

/// The numbers of the kinds of pieces in a header. Versions without pictures ignore pieces of the last kind.
const OF_ROWS: u32 = 0;
const OF_REST: u32 = 1;
const OF_ROWS_WITH_MEDIA: u32 = 2;

/// The kind of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows of the tokens of the piece.
    Rows,
    /// The part of a state that belongs to all tokens up to the end of the parent's first `offset` tokens.
    Rest { offset: u32 },
}

/// The identity of a piece.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Header {
    pub(super) id: Id,
    pub(super) root: Id,
    /// The piece before this piece, or the root.
    pub(super) parent: Id,
    /// Number of tokens before the piece.
    pub(super) start: u32,
    pub(super) kind: Kind,
    /// Number of tokens that must be computed again if the piece is missing.
    pub(super) saves: u32,
    pub(super) tokens: Box<[Token]>,
    /// The pictures and sounds whose rows are among the tokens.
    pub(super) media: Box<[PieceMedia]>,
    pub(super) data_bytes: u64,
    /// The model's name, for people.
    pub(super) label: String,
    /// When the file was last used; not a part of the file.
    pub(super) modified: Option<SystemTime>,
}

/// The identity of a piece after `parent`.
pub(super) fn id(parent: Id, kind: Kind, tokens: &[Token], media: &[PieceMedia]) -> Id {
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    match kind {
        Kind::Rows => hash.update(&[0]),
        Kind::Rest { offset } => hash.update(&[&[1][..], &offset.to_le_bytes()].concat()),
    }
    for token in tokens {
        hash.update(&token.to_le_bytes());
    }
    for rows in media {
        hash.update(&rows.encode());
    }
    // 0 stands for no piece.
    hash.digest128().max(1)
}

impl PieceMedia {
    /// Bytes in a header.
    const BYTES: usize = 60;

    fn encode(&self) -> [u8; Self::BYTES] {
        let Self { offset, row, part, projector, hash } = self;
        let fields =
            [&offset.to_le_bytes()[..], &row.to_le_bytes(), &part.to_le_bytes(), &projector.to_le_bytes(), hash];
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&fields.concat());
        bytes
    }
}

/// Bytes of a file on disk, in whole blocks.
pub(super) fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

impl Header {
    /// The header as it is written to a file, with its checksum.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        for id in [self.id, self.root, self.parent] {
            fields.extend(id.to_le_bytes());
        }
        let (kind, offset) = match self.kind {
            Kind::Rows if self.media.is_empty() => (OF_ROWS, 0),
            Kind::Rows => (OF_ROWS_WITH_MEDIA, 0),
            Kind::Rest { offset } => (OF_REST, offset),
        };
        let (tokens, label) = (self.tokens.len() as u32, self.label.len() as u32);
        for number in [kind, offset, self.start, self.saves, tokens, label] {
            fields.extend(number.to_le_bytes());
        }
        fields.extend(self.data_bytes.to_le_bytes());
        fields.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        if kind == OF_ROWS_WITH_MEDIA {
            fields.extend((self.media.len() as u32).to_le_bytes());
            fields.extend(self.media.iter().flat_map(PieceMedia::encode));
        }
        fields.extend(self.label.as_bytes());
        let mut header = MAGIC.to_vec();
        header.extend((fields.len() as u32).to_le_bytes());
        header.extend(fields);
        let checksum = xxh3_64(&header);
        header.extend(checksum.to_le_bytes());
        header
    }

    /// Bytes of the whole file.
    pub(super) fn file_bytes(&self) -> u64 {
        let tokens = size_of_val(&*self.tokens) as u64;
        let media = if self.media.is_empty() { 0 } else { 4 + (self.media.len() * PieceMedia::BYTES) as u64 };
        // Magic, length and checksum; three hashes, six numbers and the length of the data; the data's checksum.
        20 + 80 + tokens + media + self.label.len() as u64 + self.data_bytes + 16
    }

    /// Number of bytes at the beginning of a file that contain the length of its header.
    pub(super) const PREFIX: usize = 12;

    /// The length of the header with its checksum, from the first [`PREFIX`](Self::PREFIX) bytes.
    pub(super) fn length(prefix: &[u8]) -> Result<usize, &'static str> {
        let (magic, length) = prefix.split_at_checked(8).ok_or("it is shorter than a header")?;
        if magic != MAGIC {
            return Err("it was written by another version, or by another program");
        }
        let length = u32::from_le_bytes(length.try_into().map_err(|_| "it is shorter than a header")?) as usize;
        if length > MAX_HEADER { Err("its header is too long") } else { Ok(Self::PREFIX + length + 8) }
    }

    /// Reads a header with its checksum.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (header, checksum) = bytes
            .len()
            .checked_sub(8)
            .and_then(|at| bytes.split_at_checked(at))
            .ok_or("it is shorter than a header")?;
        if xxh3_64(header).to_le_bytes() != *checksum {
            return Err("the checksum of its header is wrong");
        }
        // Only files that this version has written reach this line.
        let mut fields = Fields(&header[Self::PREFIX..]);
        let header = fields.header().filter(|_| fields.0.is_empty()).ok_or("its header is not complete")?;
        let Header { parent, kind, tokens, media, .. } = &header;
        if !fits(tokens, media) {
            return Err("its media are not those of its tokens");
        }
        if header.id != id(*parent, *kind, tokens, media) {
            return Err("its name is not that of its tokens");
        }
        Ok(header)
    }

    /// The checksum of the data.
    pub(super) fn checksum(&self, data: &[u8]) -> [u8; 16] {
        xxh3_128_with_seed(data, self.id as u64).to_le_bytes()
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn media(&mut self) -> Option<PieceMedia> {
        let (offset, row, part) = (self.number()?, self.number()?, self.number()?);
        Some(PieceMedia { offset, row, part, projector: self.array().map(Id::from_le_bytes)?, hash: self.array()? })
    }

    fn header(&mut self) -> Option<Header> {
        let mut hash = || self.array().map(Id::from_le_bytes);
        let (id, root, parent) = (hash()?, hash()?, hash()?);
        let (kind, offset) = (self.number()?, self.number()?);
        let has_media = kind == OF_ROWS_WITH_MEDIA;
        let kind = match kind {
            OF_ROWS | OF_ROWS_WITH_MEDIA => Kind::Rows,
            OF_REST => Kind::Rest { offset },
            _ => return None,
        };
        let (start, saves, tokens, label) = (self.number()?, self.number()?, self.number()?, self.number()?);
        let data_bytes = self.array().map(u64::from_le_bytes)?;
        let (tokens, rest) = self.0.split_at_checked((tokens as usize).checked_mul(4)?)?;
        let tokens = tokens.as_chunks::<4>().0.iter().map(|bytes| Token::from_le_bytes(*bytes)).collect();
        self.0 = rest;
        let mut media = Vec::new();
        for _ in 0..if has_media { self.number()? } else { 0 } {
            media.push(self.media()?);
        }
        let (label, rest) = self.0.split_at_checked(label as usize)?;
        self.0 = rest;
        let label = String::from_utf8(label.to_vec()).ok()?;
        let media = media.into();
        Some(Header { id, root, parent, start, kind, saves, tokens, media, data_bytes, label, modified: None })
    }
}
