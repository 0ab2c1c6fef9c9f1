//! Prompts that consist of texts, images and sounds. In: the parts of a prompt. Out: chunks, each with tokens or with
//! an encoder's rows.

use std::ptr::NonNull;

use super::Projector;
use crate::raw;
use crate::safe::call::{self, Error};
use crate::safe::context::Position;
use crate::safe::model::Token;

/// A part of a prompt.
#[derive(Debug, Clone, Copy)]
pub enum MediaPart<'a> {
    /// A text.
    Text {
        /// The text.
        text: &'a str,
        /// Whether a control token's name in the text is read as that token.
        parse_special: bool,
    },
    /// An image: for each pixel its red, green and blue, row by row.
    Image {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
        /// `width` x `height` x 3 bytes.
        rgb: &'a [u8],
    },
    /// An image of which only the size is known. Its chunks have as many tokens and rows as those of any image of this
    /// size, but they cannot be encoded. No image is scaled to make them.
    ImageSize {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// A sound: samples of one channel at [`Projector::sample_rate`].
    Sound(&'a [f32]),
}

/// The kind of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// Tokens.
    Text,
    /// Rows of an image. A large image may be several chunks, with texts between them.
    Image,
    /// Rows of a sound.
    Sound,
}

/// A prompt as llama.cpp computes it: texts, and between them images and sounds. Around each image or sound are the
/// begin and end tokens that the model was trained with, if it has any.
pub struct MediaChunks {
    raw: NonNull<raw::mtmd_input_chunks>,
    len: usize,
}

// SAFETY: after it was made, a list of chunks is only read.
unsafe impl Send for MediaChunks {}
// SAFETY: as above.
unsafe impl Sync for MediaChunks {}

impl Drop for MediaChunks {
    fn drop(&mut self) {
        // SAFETY: shim_media_tokenize made it, and it is freed once.
        unsafe { raw::shim_media_chunks_free(self.raw.as_ptr()) };
    }
}

/// A chunk of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct MediaChunk<'a> {
    kind: MediaKind,
    tokens: &'a [Token],
    len: usize,
    n_positions: Position,
    is_non_causal: bool,
}

impl<'a> MediaChunk<'a> {
    /// Whether this is a text, an image or a sound.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// The tokens of a text; empty for an image or a sound.
    pub fn tokens(&self) -> &'a [Token] {
        self.tokens
    }

    /// The number of tokens of a text, or of rows of an image or a sound. Each of them takes a place in the KV cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the chunk has neither tokens nor rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many positions the chunk takes: the next chunk begins this many positions later. With M-RoPE an image takes
    /// fewer positions than it has rows.
    pub fn n_positions(&self) -> Position {
        self.n_positions
    }

    /// Whether all rows of the chunk must be computed at once, because each of them attends to all others.
    pub fn is_non_causal(&self) -> bool {
        self.is_non_causal
    }
}

impl Projector {
    /// Divides the parts of a prompt into chunks. With `add_special`, the tokens are added that the vocabulary requires
    /// at the beginning and end of a text. Images and sounds are scaled and cut as in the model's training, but are not
    /// encoded yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an image whose bytes do not match its size, for an image or sound without a
    /// fitting encoder in the projector, and for a sound of fewer than two samples; [`Error::NoVocabulary`];
    /// [`Error::NoStack`]; [`Error::Call`] if llama.cpp refuses a part.
    pub fn tokenize(&self, parts: &[MediaPart<'_>], add_special: bool) -> Result<MediaChunks, Error> {
        if !self.model.vocab().has_tokenizer() {
            return Err(Error::NoVocabulary);
        }
        let texts = parts.iter().filter_map(|part| match part {
            MediaPart::Text { text, .. } => Some(*text),
            _ => None,
        });
        let texts: Vec<&str> = texts.collect();
        self.model.vocab().with_stack_for(&texts, || self.tokenize_here(parts, add_special))?
    }

    /// Tokenises on the calling thread's stack.
    fn tokenize_here(&self, parts: &[MediaPart<'_>], add_special: bool) -> Result<MediaChunks, Error> {
        let native: Vec<raw::shim_media_part> = parts.iter().map(|part| self.native(part)).collect::<Result<_, _>>()?;
        let made = call::accepted(
            // SAFETY: the projector lives. Every pointer points to as many values as the count next to it states, and
            // the values are only read.
            |error| unsafe {
                raw::shim_media_tokenize(self.as_ptr(), native.as_ptr(), native.len(), add_special, error)
            },
            |made| !made.is_null(),
        );
        let failed = |failure| Error::Call { what: "preparing an image or a sound", failure };
        let raw = NonNull::new(made.map_err(failed)?).expect("accepted above");
        let mut chunks = MediaChunks { raw, len: 0 };
        // SAFETY: the list lives.
        chunks.len =
            call::checked(|error| unsafe { raw::shim_media_chunks_size(raw.as_ptr(), error) }).map_err(failed)?;
        Ok(chunks)
    }

    fn native(&self, part: &MediaPart<'_>) -> Result<raw::shim_media_part, Error> {
        // SAFETY: a structure of numbers and pointers. A pointer is read only if the kind requires it.
        let mut native: raw::shim_media_part = unsafe { std::mem::zeroed() };
        match *part {
            MediaPart::Text { text, parse_special } => {
                native.kind = raw::SHIM_MEDIA_TEXT;
                (native.text, native.text_len) = (text.as_ptr().cast(), text.len());
                native.parse_special = parse_special;
            }
            MediaPart::Image { width, height, rgb } => {
                let bytes = u64::from(width) * u64::from(height) * 3;
                if bytes == 0 || bytes != rgb.len() as u64 {
                    let reason = format!("{width} x {height} pixels are {bytes} bytes");
                    return Err(Error::parameter("rgb", format_args!("{} bytes", rgb.len()), reason));
                }
                if !self.has_images() {
                    return Err(Error::parameter("image", format_args!("{width} x {height}"), self.lacks("images")));
                }
                native.kind = raw::SHIM_MEDIA_IMAGE;
                (native.rgb, native.width, native.height) = (rgb.as_ptr(), width, height);
            }
            MediaPart::ImageSize { width, height } => {
                if !self.has_images() {
                    return Err(Error::parameter("image", format_args!("{width} x {height}"), self.lacks("images")));
                }
                native.kind = raw::SHIM_MEDIA_IMAGE;
                (native.rgb, native.width, native.height) = (std::ptr::null(), width, height);
            }
            MediaPart::Sound(samples) => {
                let length = format_args!("{} samples", samples.len()).to_string();
                if self.sample_rate().is_none() {
                    return Err(Error::parameter("sound", length, self.lacks("sound")));
                }
                if samples.len() < 2 {
                    return Err(Error::parameter("sound", length, "a sound has at least two samples"));
                }
                native.kind = raw::SHIM_MEDIA_AUDIO;
                (native.samples, native.n_samples) = (samples.as_ptr(), samples.len());
            }
        }
        Ok(native)
    }

    fn lacks(&self, what: &str) -> String {
        format!("{} has no encoder of {what}", self.path().display())
    }
}

impl MediaChunks {
    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A chunk of a prompt. `projector` must be the one that made the chunks.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an index beyond the last.
    pub fn get<'a>(&'a self, projector: &Projector, index: usize) -> Result<MediaChunk<'a>, Error> {
        self.check(index)?;
        // SAFETY: a structure of numbers and of a pointer.
        let mut chunk: raw::shim_media_chunk = unsafe { std::mem::zeroed() };
        let read = call::checked(
            // SAFETY: both live; the chunk is written before the call returns.
            |error| unsafe { raw::shim_media_chunk(projector.as_ptr(), self.as_ptr(), index, &raw mut chunk, error) },
        );
        read.map_err(|failure| Error::Call { what: "reading a chunk of a prompt", failure })?;
        let kind = match chunk.kind {
            raw::SHIM_MEDIA_TEXT => MediaKind::Text,
            raw::SHIM_MEDIA_IMAGE => MediaKind::Image,
            _ => MediaKind::Sound,
        };
        let tokens = if kind == MediaKind::Text && !chunk.tokens.is_null() {
            // SAFETY: the tokens of a text chunk, which live as long as the list and are not changed.
            unsafe { std::slice::from_raw_parts(chunk.tokens, chunk.n_tokens) }
        } else {
            &[]
        };
        let (len, n_positions, is_non_causal) = (chunk.n_tokens, chunk.n_pos, chunk.is_non_causal);
        Ok(MediaChunk { kind, tokens, len, n_positions, is_non_causal })
    }

    /// The positions of each row of chunk `index`, if the chunk begins at position `first`. Each row has
    /// [`Projector::sections`] numbers.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an index beyond the last.
    pub fn positions(&self, projector: &Projector, index: usize, first: Position) -> Result<Vec<Position>, Error> {
        let chunk = self.get(projector, index)?;
        let mut positions = vec![0; chunk.len() * projector.sections()];
        let written = call::accepted(
            // SAFETY: both live, and there is room for all positions.
            |error| unsafe {
                let (to, room) = (positions.as_mut_ptr(), positions.len());
                raw::shim_media_positions(projector.as_ptr(), self.as_ptr(), index, first, to, room, error)
            },
            |written| *written,
        );
        written.map_err(|failure| Error::Call { what: "reading positions of an image", failure })?;
        Ok(positions)
    }

    fn check(&self, index: usize) -> Result<(), Error> {
        if index < self.len {
            return Ok(());
        }
        Err(Error::parameter("index", index, format!("the prompt has {} chunks", self.len)))
    }

    pub(super) fn as_ptr(&self) -> *const raw::mtmd_input_chunks {
        self.raw.as_ptr()
    }
}

impl std::fmt::Debug for MediaChunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MediaChunks({})", self.len)
    }
}
