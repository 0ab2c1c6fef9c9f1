//! Pictures and sounds of a loaded model: media flow in; tokens and encoded rows flow out.
//!
//! A [`MediaEncoder`] is the projector beside the native model. Prepared and encoded media are found by the hash of
//! their pixels or samples ([`MediaTable`]), so that a later turn, or another text, need neither prepare nor encode a
//! medium again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use llama_sys::{MediaChunks, MediaKind, MediaPart, Model, Position, Projector, ProjectorParams, Token};

use crate::chat::Media;
use crate::sync::lock;

/// Media that were prepared and not encoded, whose scaled pixels are kept until they are. A picture of some tiles takes
/// about 40 MiB.
const MAX_PENDING: usize = 4;

/// Most media of which the tokens are known. Each takes some hundred bytes beside its rows.
const MAX_KNOWN: usize = 10_000;

/// The projector of a loaded model.
#[derive(Debug)]
pub(crate) struct MediaEncoder {
    projector: Mutex<Projector>,
    sample_rate: Option<u32>,
}

/// The tokens and rows of a picture or a sound.
#[derive(Debug)]
pub(crate) struct PreparedMedia {
    pub(crate) hash: [u8; 32],
    pub(crate) parts: Vec<PreparedPart>,
    work: Mutex<Work>,
}

/// A part of a picture or a sound in a prompt.
#[derive(Debug)]
pub(crate) enum PreparedPart {
    /// Tokens that the model was trained with around the rows.
    Tokens(Vec<Token>),
    /// Rows that an encoder computes.
    Rows(Rows),
}

/// The shape of the rows of a picture or a sound, or of a part of it.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Index among llama.cpp's chunks.
    chunk: usize,
    /// Number of rows. Each takes a cell of the KV cache.
    pub(crate) len: usize,
    /// Number of positions: the next part begins this many positions later.
    pub(crate) n_positions: usize,
    /// Whether each row attends to all others, so that all are computed at once.
    pub(crate) is_non_causal: bool,
    /// The positions of all rows if the first is at 0, and how much each is later if the first is one later.
    positions: Vec<(Position, Position)>,
}

impl Rows {
    /// The positions of all rows, where the first is at `first`: one number for each, or four with M-RoPE.
    pub(crate) fn positions(&self, first: Position) -> Vec<Position> {
        self.positions.iter().map(|(at_0, step)| at_0 + first * step).collect()
    }
}

/// The computed parts of a medium.
#[derive(Debug)]
struct Work {
    /// Scaled pixels, until all rows are encoded.
    chunks: Option<MediaChunks>,
    /// The rows of each chunk.
    rows: Vec<Option<Arc<Vec<f32>>>>,
    /// Chunks with rows that are not encoded yet.
    left: usize,
}

impl PreparedMedia {
    /// Bytes of its rows.
    fn bytes(&self) -> u64 {
        let work = lock(&self.work);
        work.rows.iter().flatten().map(|rows| size_of_val(&***rows) as u64).sum()
    }
}

impl MediaEncoder {
    pub(super) fn load(
        model: &Model,
        path: &std::path::Path,
        params: &ProjectorParams,
    ) -> Result<Self, llama_sys::Error> {
        let projector = Projector::load(model, path, params)?;
        Ok(Self { sample_rate: projector.sample_rate(), projector: Mutex::new(projector) })
    }

    /// The tokens of a medium, and the shapes of its rows.
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
        drop(projector);
        let rows = vec![None; chunks.len()];
        let work = Mutex::new(Work { chunks: Some(chunks), rows, left });
        Ok(table.add(PreparedMedia { hash, parts, work }))
    }

    /// The rows of a prepared medium, and whether they were encoded for this call.
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
            // llama.cpp's refusal names the file.
            return projector.tokenize(&[MediaPart::Sound(&[])], false);
        };
        let samples = media.samples_at(rate).unwrap_or_else(|| Ok(Vec::new()));
        let refused = |reason| llama_sys::Error::InvalidParameter { name: "sound", value: media.to_string(), reason };
        projector.tokenize(&[MediaPart::Sound(&samples.map_err(refused)?)], false)
    }
}

/// The media that a model has seen, least recently used first. It outlives a re-placement.
#[derive(Debug, Default)]
pub(crate) struct MediaTable {
    known: Mutex<VecDeque<Arc<PreparedMedia>>>,
}

impl MediaTable {
    fn find(&self, hash: &[u8; 32]) -> Option<Arc<PreparedMedia>> {
        let mut known = lock(&self.known);
        let at = known.iter().rposition(|it| it.hash == *hash)?;
        let found = known.remove(at)?;
        known.push_back(Arc::clone(&found));
        Some(found)
    }

    /// Adds a medium, unless another thread has added it since.
    fn add(&self, prepared: PreparedMedia) -> Arc<PreparedMedia> {
        if let Some(found) = self.find(&prepared.hash) {
            return found;
        }
        let added = Arc::new(prepared);
        let mut known = lock(&self.known);
        known.push_back(Arc::clone(&added));
        while known.len() > MAX_KNOWN {
            known.pop_front();
        }
        let mut pending = 0;
        for it in known.iter().rev() {
            // A medium that is being encoded keeps its pixels.
            if let Ok(mut work) = it.work.try_lock()
                && work.chunks.is_some()
            {
                pending += 1;
                work.chunks = work.chunks.take().filter(|_| pending <= MAX_PENDING);
            }
        }
        added
    }

    /// Forgets media, least recently used first, until the rows take at most `limit` bytes. Running texts keep theirs.
    pub(crate) fn shrink_to(&self, limit: u64) {
        let mut known = lock(&self.known);
        let mut bytes: u64 = known.iter().map(|it| it.bytes()).sum();
        while bytes > limit
            && let Some(gone) = known.pop_front()
        {
            bytes = bytes.saturating_sub(gone.bytes());
        }
    }
}
