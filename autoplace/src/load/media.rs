//! Encodes the pictures and sounds of a loaded model. In: media. Out: tokens and encoded rows.
//!
//! A [`MediaEncoder`] is the projector, together with the native model. A [`MediaTable`] keeps prepared and encoded
//! media by the hash of their pixels or samples, so that later turns and other texts need not prepare or encode them
//! again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use llama_sys::{
    MediaChunks, MediaKind, MediaPart, Model, Position, Projector, ProjectorBytes, ProjectorParams, Token,
};

use crate::chat::Media;
use crate::store::MediaRows;
use crate::sync::lock;

/// Maximum number of prepared media whose scaled pixels wait for the encoder. A picture of several tiles takes about 40
/// MiB.
const MAX_PENDING: usize = 4;

/// Maximum number of media whose tokens are known. Each of them takes some hundred bytes in addition to its rows.
const MAX_KNOWN: usize = 10_000;

/// The projector of a loaded model.
#[derive(Debug)]
pub(crate) struct MediaEncoder {
    projector: Mutex<Projector>,
    sample_rate: Option<u32>,
    /// The bytes that the projector has allocated.
    pub(super) bytes: Vec<ProjectorBytes>,
}

/// The tokens and rows of a picture or a sound.
#[derive(Debug)]
pub(crate) struct PreparedMedia {
    pub(crate) hash: [u8; 32],
    pub(crate) parts: Vec<PreparedPart>,
    /// The number of tokens at the beginning that state the number of the first picture of a prompt ([`number`]). 0 if
    /// the projector does not number pictures.
    pub(crate) numbered: usize,
    work: Mutex<Work>,
}

/// The text that states a picture's number in its prompt, counted from 0 (mtmd.cpp, `add_media`, `use_image_id`).
pub(crate) fn number(index: usize) -> String {
    format!("<image_id>{index}</image_id>")
}

/// A part of a picture or a sound in a prompt.
#[derive(Debug)]
pub(crate) enum PreparedPart {
    /// Tokens to put around the rows, as in the model's training.
    Tokens(Vec<Token>),
    /// Rows that an encoder computes.
    Rows(Rows),
}

/// The shape of the rows of a picture or a sound, or of a part of it.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Index among llama.cpp's chunks.
    chunk: usize,
    /// Number of rows. Each row takes a cell of the KV cache.
    pub(crate) len: usize,
    /// The number of positions that the rows take: the next part begins this many positions later.
    pub(crate) n_positions: usize,
    /// Whether each row attends to all other rows, so that all rows must be computed at once.
    pub(crate) is_non_causal: bool,
    /// For each position of the rows: its value if the first row is at position 0, and how much it grows if the first
    /// row moves by one position.
    positions: Vec<(Position, Position)>,
}

/// Axes of a position with M-RoPE: time, height, width, and a fourth that few models use.
const AXES: usize = 4;

impl Rows {
    /// The positions of all rows, if the first row is at `first`: one value per row, or four values per row with
    /// M-RoPE. `number` is the number of the image in its prompt, counted from 0.
    pub(crate) fn positions(&self, first: Position, number: usize) -> Vec<Position> {
        let mut positions: Vec<Position> = self.positions.iter().map(|(at_0, step)| at_0 + first * step).collect();
        if self.is_numbered() {
            let number = Position::try_from(number).unwrap_or(Position::MAX);
            for (position, (_, step)) in positions.iter_mut().zip(&self.positions).skip(AXES - 1).step_by(AXES) {
                if *step == 0 {
                    *position = number;
                }
            }
        }
        positions
    }

    /// Whether the fourth axis of the rows is the number of their image, as in HunyuanVL (mtmd.cpp,
    /// `mtmd_image_tokens_get_decoder_pos`). Such an image begins with a row that has the position that a token of text
    /// would have. In other models, all rows of an image, or of a tile, have the same kind of value on that axis.
    fn is_numbered(&self) -> bool {
        let is_with_axes = self.positions.len() == self.len * AXES;
        is_with_axes
            && self.positions[AXES - 1].1 == 1
            && self.positions.iter().skip(AXES - 1).step_by(AXES).any(|axis| *axis == (0, 0))
    }
}

/// The results of the encoder for one picture or sound.
#[derive(Debug)]
struct Work {
    /// The scaled pixels, kept until all rows are encoded.
    chunks: Option<MediaChunks>,
    /// The rows of each chunk.
    rows: Vec<Option<Arc<Vec<f32>>>>,
    /// The number of chunks whose rows are not encoded yet.
    left: usize,
}

impl PreparedMedia {
    /// Bytes of the encoded rows.
    fn bytes(&self) -> u64 {
        let work = lock(&self.work);
        work.rows.iter().flatten().map(|rows| size_of_val(&***rows) as u64).sum()
    }

    /// Number of tokens and rows in a prompt.
    pub(crate) fn tokens(&self) -> usize {
        let of = |part: &PreparedPart| match part {
            PreparedPart::Tokens(tokens) => tokens.len(),
            PreparedPart::Rows(rows) => rows.len,
        };
        self.parts.iter().map(of).sum()
    }

    /// Forgets the encoded rows, and returns how many bytes they took. If a text needs the rows later, they are encoded
    /// again.
    fn forget_rows(&self) -> u64 {
        let bytes = self.bytes();
        let mut work = lock(&self.work);
        work.rows.iter_mut().for_each(|rows| *rows = None);
        work.left = self.parts.iter().filter(|part| matches!(part, PreparedPart::Rows(_))).count();
        bytes
    }
}

/// The rows of pictures and sounds in a text, with their places in the text. The token that stands for a row has only
/// 31 bits of a hash. So texts are also compared by the whole hashes, which are kept here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks(Option<Arc<[MediaRows]>>);

/// The marks of a text without pictures and sounds.
pub(crate) static NO_MARKS: Marks = Marks(None);

impl FromIterator<MediaRows> for Marks {
    fn from_iter<I: IntoIterator<Item = MediaRows>>(marks: I) -> Self {
        let marks: Arc<[MediaRows]> = marks.into_iter().collect();
        Self((!marks.is_empty()).then_some(marks))
    }
}

impl Marks {
    pub(crate) fn all(&self) -> &[MediaRows] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The first index at which only one of the texts has rows, or the texts have different rows; `usize::MAX` if there
    /// is none.
    pub(crate) fn first_difference(&self, other: &Self) -> usize {
        let (ours, theirs) = (self.all(), other.all());
        let same = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
        let next = [ours, theirs].map(|marks| marks.get(same).map_or(usize::MAX, |mark| mark.from));
        next[0].min(next[1])
    }
}

impl MediaEncoder {
    pub(super) fn load(
        model: &Model,
        path: &std::path::Path,
        params: &ProjectorParams,
    ) -> Result<Self, llama_sys::Error> {
        let projector = Projector::load(model, path, params)?;
        let bytes = projector.bytes().to_vec();
        Ok(Self { sample_rate: projector.sample_rate(), projector: Mutex::new(projector), bytes })
    }

    /// The tokens of a picture or a sound, and the shapes of its rows.
    pub(crate) fn prepare(&self, media: &Media, table: &MediaTable) -> Result<Arc<PreparedMedia>, llama_sys::Error> {
        let hash = media.hash();
        if let Some(known) = table.find(&hash) {
            return Ok(known);
        }
        let projector = lock(&self.projector);
        let chunks = self.chunks(&projector, media)?;
        let mut parts = Vec::new();
        let mut left = 0;
        for index in 0..chunks.len() {
            let chunk = chunks.get(&projector, index)?;
            if chunk.kind() == MediaKind::Text {
                if let Some(token) = chunk.tokens().iter().find(|token| **token < 0) {
                    // mtmd looks some tokens up by their text (mtmd.cpp, `lookup_token`).
                    return Err(llama_sys::Error::InvalidParameter {
                        name: "mmproj",
                        value: token.to_string(),
                        reason: "the vocabulary lacks a token that the projector puts around images".to_owned(),
                    });
                }
                parts.push(PreparedPart::Tokens(chunk.tokens().to_vec()));
                continue;
            }
            if chunk.is_empty() {
                return Err(llama_sys::Error::InvalidParameter {
                    name: "mmproj",
                    value: media.to_string(),
                    reason: "the projector produces no rows for it".to_owned(),
                });
            }
            left += 1;
            let (at_0, at_1) = (chunks.positions(&projector, index, 0)?, chunks.positions(&projector, index, 1)?);
            let positions = at_0.into_iter().zip(at_1).map(|(at_0, at_1)| (at_0, at_1 - at_0)).collect();
            parts.push(PreparedPart::Rows(Rows {
                chunk: index,
                len: chunk.len(),
                n_positions: usize::try_from(chunk.n_positions()).unwrap_or(0),
                is_non_causal: chunk.is_non_causal(),
                positions,
            }));
        }
        let first = projector.model().vocab().tokenize(&number(0), false, true)?;
        drop(projector);
        let numbered = match parts.first() {
            Some(PreparedPart::Tokens(tokens)) if tokens.starts_with(&first) => first.len(),
            _ => 0,
        };
        let rows = vec![None; chunks.len()];
        let work = Mutex::new(Work { chunks: Some(chunks), rows, left });
        Ok(table.add(PreparedMedia { hash, parts, numbered, work }))
    }

    /// The number of tokens and rows of a picture, computed from the picture's size before scaling. `None` for a sound,
    /// and if mtmd cannot compute the number.
    pub(crate) fn count(&self, media: &Media) -> Option<usize> {
        let (width, height, _) = media.rgb()?;
        let projector = lock(&self.projector);
        let chunks = projector.tokenize(&[MediaPart::ImageSize { width, height }], false).ok()?;
        (0..chunks.len()).map(|index| Some(chunks.get(&projector, index).ok()?.len())).sum()
    }

    /// The rows of a prepared medium, and whether this call encoded them.
    pub(crate) fn encode(
        &self,
        media: &Media,
        prepared: &PreparedMedia,
        rows: &Rows,
    ) -> Result<(Arc<Vec<f32>>, bool), llama_sys::Error> {
        let mut work = lock(&prepared.work);
        if let Some(known) = &work.rows[rows.chunk] {
            return Ok((Arc::clone(known), false));
        }
        let mut projector = lock(&self.projector);
        let chunks = match work.chunks.take() {
            Some(chunks) => chunks,
            None => self.chunks(&projector, media)?,
        };
        let encoded = Arc::new(projector.encode(&chunks, rows.chunk)?);
        work.rows[rows.chunk] = Some(Arc::clone(&encoded));
        work.left = work.left.saturating_sub(1);
        work.chunks = (work.left > 0).then_some(chunks);
        Ok((encoded, true))
    }

    fn chunks(&self, projector: &Projector, media: &Media) -> Result<MediaChunks, llama_sys::Error> {
        if let Some((width, height, rgb)) = media.rgb() {
            return projector.tokenize(&[MediaPart::Image { width, height, rgb }], false);
        }
        let Some(rate) = self.sample_rate else {
            // The projector takes no sound. llama.cpp's error for this names the file.
            return projector.tokenize(&[MediaPart::Sound(&[])], false);
        };
        let samples = media.samples_at(rate).unwrap_or_else(|| Ok(Vec::new()));
        let refused = |reason| llama_sys::Error::InvalidParameter { name: "sound", value: media.to_string(), reason };
        projector.tokenize(&[MediaPart::Sound(&samples.map_err(refused)?)], false)
    }
}

/// The media that a model's texts have contained, the least recently used first. The table is kept when the model is
/// re-placed.
#[derive(Debug, Default)]
pub(crate) struct MediaTable {
    known: Mutex<VecDeque<Arc<PreparedMedia>>>,
}

impl MediaTable {
    pub(crate) fn find(&self, hash: &[u8; 32]) -> Option<Arc<PreparedMedia>> {
        let mut known = lock(&self.known);
        let at = known.iter().rposition(|medium| medium.hash == *hash)?;
        let found = known.remove(at)?;
        known.push_back(Arc::clone(&found));
        Some(found)
    }

    /// Adds a medium, unless another thread has added it meanwhile.
    fn add(&self, prepared: PreparedMedia) -> Arc<PreparedMedia> {
        if let Some(found) = self.find(&prepared.hash) {
            return found;
        }
        let added = Arc::new(prepared);
        self.hold(&added);
        added
    }

    /// Makes a medium the most recently used one. Adds it again if the table forgot it while a text still used it.
    fn hold(&self, medium: &Arc<PreparedMedia>) {
        let mut known = lock(&self.known);
        known.retain(|other| !Arc::ptr_eq(other, medium));
        known.push_back(Arc::clone(medium));
        while known.len() > MAX_KNOWN
            && let Some(gone) = known.pop_front()
        {
            // A running text may still use the medium, so its rows would otherwise stay in memory.
            gone.forget_rows();
        }
        let mut pending = 0;
        for medium in known.iter().rev() {
            // A medium that is being encoded keeps its pixels.
            if let Ok(mut work) = medium.work.try_lock()
                && work.chunks.is_some()
            {
                pending += 1;
                work.chunks = work.chunks.take().filter(|_| pending <= MAX_PENDING);
            }
        }
    }

    /// Keeps the rows of a medium, and forgets the rows of the least recently used media until all rows take at most
    /// `limit` bytes. Rows of running texts may be forgotten too: if a text needs them again, they are encoded again.
    /// In addition to `limit`, only the rows of the part that is being computed are in memory.
    pub(crate) fn keep_within(&self, medium: &Arc<PreparedMedia>, limit: u64) {
        self.hold(medium);
        let known = lock(&self.known);
        let mut bytes: u64 = known.iter().map(|medium| medium.bytes()).sum();
        for medium in known.iter() {
            if bytes <= limit {
                break;
            }
            bytes = bytes.saturating_sub(medium.forget_rows());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::{Marks, MediaTable, PreparedMedia, PreparedPart, Rows, Work};
    use crate::store::MediaRows;
    use crate::sync::lock;

    /// A medium of two parts, each with 400 bytes of encoded rows.
    fn medium(number: u8) -> PreparedMedia {
        let part = |chunk| {
            let (positions, n_positions) = (Vec::new(), 1);
            PreparedPart::Rows(Rows { chunk, len: 1, n_positions, is_non_causal: false, positions })
        };
        let rows = vec![Some(Arc::new(vec![0.0; 100])), Some(Arc::new(vec![0.0; 100]))];
        let work = Mutex::new(Work { chunks: None, rows, left: 0 });
        PreparedMedia { hash: [number; 32], parts: vec![part(0), part(1)], numbered: 0, work }
    }

    #[test]
    fn rows_of_running_texts_count_among_those_that_are_kept() {
        let table = MediaTable::default();
        // Running texts use all of these media.
        let running: Vec<Arc<PreparedMedia>> = (0..8).map(|number| table.add(medium(number))).collect();
        let bytes = || running.iter().map(|medium| medium.bytes()).collect::<Vec<_>>();
        assert_eq!(bytes(), [800; 8]);
        table.keep_within(&running[0], 2000);
        assert_eq!(bytes(), [800, 0, 0, 0, 0, 0, 0, 800]);
        assert_eq!(lock(&running[1].work).left, 2, "both parts are to be encoded again");
        // All media stay in the table, so that the next text need not prepare them.
        assert!((0..8).all(|number| table.find(&[number; 32]).is_some()));
        table.keep_within(&running[3], 0);
        assert_eq!(bytes(), [0; 8]);
    }

    #[test]
    fn rows_of_a_medium_that_the_table_has_forgotten_are_kept_within_the_limit_too() {
        let table = MediaTable::default();
        let forgotten = Arc::new(medium(1));
        table.keep_within(&forgotten, 1000);
        assert_eq!(forgotten.bytes(), 800);
        let next = table.add(medium(2));
        table.keep_within(&next, 1000);
        assert_eq!((forgotten.bytes(), next.bytes()), (0, 800));
    }

    #[test]
    fn texts_differ_where_one_has_rows_of_another_picture() {
        let mark = |from, part, number| MediaRows { from, len: 1, part, hash: [number; 32] };
        let marks = |all: &[MediaRows]| all.iter().cloned().collect::<Marks>();
        let text = marks(&[mark(3, 0, 1), mark(9, 0, 2)]);
        assert_eq!(text.first_difference(&text.clone()), usize::MAX);
        assert_eq!(text.first_difference(&Marks::default()), 3);
        assert_eq!(text.first_difference(&marks(&[mark(3, 0, 1)])), 9);
        assert_eq!(text.first_difference(&marks(&[mark(3, 0, 1), mark(9, 0, 3)])), 9);
        assert_eq!(text.first_difference(&marks(&[mark(3, 1, 1), mark(9, 0, 2)])), 3);
        assert_eq!(text.first_difference(&marks(&[mark(2, 0, 1)])), 2);
    }
}
