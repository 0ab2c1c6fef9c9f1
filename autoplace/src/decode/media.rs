//! Pictures and sounds among the tokens of a text.
//!
//! Each row of a picture has a place in the list of tokens, just as it has a cell in the KV cache. A row's token is a
//! negative number that comes from the hash of the pixels. So two texts with the same picture have the same tokens, and
//! the reuse of prompts works for pictures too. The [`Spans`] of a text tell which of its places are rows. A token
//! contains only a part of the hash. So before the cache of another text is reused, the whole hashes ([`Marks`]) are
//! compared too.

use std::sync::Arc;

use llama_sys::{Position, Token, Vocab};

use super::error::Error;
use super::prompt::Prompt;
use crate::chat::Media;
use crate::load::{Marks, Model, PreparedMedia, PreparedPart, Rows, number};
use crate::store::MediaRows;

/// The tokens of a prompt, with the rows of its pictures and sounds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    pub(crate) tokens: Vec<Token>,
    pub(crate) spans: Spans,
}

/// The rows of pictures and sounds in a text, in order. Cloning is cheap; texts without media allocate nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(Option<Arc<Vec<Span>>>);

/// The spans of a text without pictures and sounds.
pub(crate) static NO_SPANS: Spans = Spans(None);

/// Rows that follow each other in a text.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    /// Index of the first row among the text's tokens.
    pub(crate) from: usize,
    pub(crate) media: Media,
    pub(crate) prepared: Arc<PreparedMedia>,
    /// Index of these rows among the parts of the prepared picture or sound.
    part: usize,
}

impl Span {
    pub(crate) fn rows(&self) -> &Rows {
        match &self.prepared.parts[self.part] {
            PreparedPart::Rows(rows) => rows,
            PreparedPart::Tokens(_) => unreachable!("a span is of rows"),
        }
    }

    /// Index after the last row.
    pub(crate) fn end(&self) -> usize {
        self.from + self.rows().len
    }

    /// Index of these rows among the parts of the prepared picture or sound.
    pub(crate) fn part(&self) -> usize {
        self.part
    }
}

impl Spans {
    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    pub(crate) fn all(&self) -> &[Span] {
        self.0.as_deref().map_or(&[], |spans| spans)
    }

    /// The rows that begin at this index.
    pub(crate) fn at(&self, index: usize) -> Option<&Span> {
        self.all().iter().find(|span| span.from == index)
    }

    /// The first index at or after `from` where rows begin.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        self.all().iter().map(|span| span.from).find(|begin| *begin >= from)
    }

    /// `index`; if it lies within rows, the index of the first of these rows.
    pub(crate) fn floor(&self, index: usize) -> usize {
        let within = self.all().iter().find(|span| span.from < index && index < span.end());
        within.map_or(index, |span| span.from)
    }

    /// `index`; if it lies within rows, the index after the last of these rows.
    pub(crate) fn ceil(&self, index: usize) -> usize {
        let within = self.all().iter().find(|span| span.from < index && index < span.end());
        within.map_or(index, Span::end)
    }

    /// The position of the token at `index`, which must not lie within rows. With M-RoPE, an image has fewer positions
    /// than rows.
    pub(crate) fn position(&self, index: usize) -> usize {
        let before = self.all().iter().take_while(|span| span.end() <= index);
        let later = before.map(|span| span.rows().len.saturating_sub(span.rows().n_positions));
        index.saturating_sub(later.sum())
    }

    /// Whether the token at this index is a row.
    pub(crate) fn holds(&self, index: usize) -> bool {
        self.all().iter().any(|span| (span.from..span.end()).contains(&index))
    }

    /// The index of this span's picture or sound among the pictures and sounds of the text. A picture may have several
    /// spans.
    pub(crate) fn index_of_media(&self, span: &Span) -> usize {
        let before = self.all().iter().take_while(|other| other.from <= span.from);
        let mut count = 0;
        let mut last: Option<&Span> = None;
        for span in before {
            let goes_on = last.is_some_and(|last| Arc::ptr_eq(&last.prepared, &span.prepared) && last.part < span.part);
            count += usize::from(!goes_on);
            last = Some(span);
        }
        count.saturating_sub(1)
    }

    /// Index after the last row; 0 for a text without pictures and sounds.
    pub(crate) fn end(&self) -> usize {
        self.all().last().map_or(0, Span::end)
    }

    /// The places and the hashes of the rows.
    pub(crate) fn marks(&self) -> Marks {
        let rows = |span: &Span| MediaRows {
            from: span.from,
            len: span.rows().len,
            part: span.part as u32,
            hash: span.prepared.hash,
        };
        self.all().iter().map(rows).collect()
    }

    /// The first rows of each picture and sound, in order.
    fn firsts(&self) -> impl Iterator<Item = &Span> {
        let is_first = |span: &&Span| {
            let before = &span.prepared.parts[..span.part];
            !before.iter().any(|part| matches!(part, PreparedPart::Rows(_)))
        };
        self.all().iter().filter(is_first)
    }

    /// The hash of each picture and sound, in order.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = [u8; 32]> {
        self.firsts().map(|span| span.prepared.hash)
    }

    /// Number of pictures.
    fn pictures(&self) -> usize {
        self.firsts().filter(|span| span.media.rgb().is_some()).count()
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.all().iter().map(|span| span.rows().len).sum()
    }
}

impl Layout {
    /// Appends a picture or a sound, with the tokens that surround it as in the model's training. For MiniCPM-V 4.6,
    /// these tokens include the number of the picture.
    pub(crate) fn push(
        &mut self,
        media: &Media,
        prepared: &Arc<PreparedMedia>,
        vocab: &Vocab,
    ) -> Result<(), llama_sys::Error> {
        let index = match prepared.numbered {
            0 => 0,
            _ => self.spans.pictures(),
        };
        let mut skipped = 0;
        if index > 0 {
            self.tokens.extend(vocab.tokenize(&number(index), false, true)?);
            skipped = prepared.numbered;
        }
        for (part, what) in prepared.parts.iter().enumerate() {
            match what {
                PreparedPart::Tokens(tokens) => self.tokens.extend_from_slice(&tokens[skipped..]),
                PreparedPart::Rows(_) => self.push_rows(media, prepared, part),
            }
            skipped = 0;
        }
        Ok(())
    }

    /// Appends the rows of one part of a picture or a sound, without tokens around them.
    pub(crate) fn push_rows(&mut self, media: &Media, prepared: &Arc<PreparedMedia>, part: usize) {
        let Some(PreparedPart::Rows(rows)) = prepared.parts.get(part) else { return };
        let (from, prepared) = (self.tokens.len(), Arc::clone(prepared));
        self.tokens.extend((0..rows.len).map(|row| row_token(&prepared.hash, part, row)));
        let span = Span { from, media: media.clone(), prepared, part };
        Arc::make_mut(self.spans.0.get_or_insert_default()).push(span);
    }

    /// Replaces the first `of` tokens by `tokens`.
    pub(crate) fn replace_first(&mut self, of: usize, tokens: &[Token]) {
        self.tokens.splice(..of, tokens.iter().copied());
        if let Some(spans) = &mut self.spans.0 {
            for span in Arc::make_mut(spans) {
                span.from = span.from + tokens.len() - of;
            }
        }
    }
}

/// The token of a row: a negative number with 31 bits of the hash. Rows of different pictures seldom have the same
/// token.
fn row_token(hash: &[u8; 32], part: usize, row: usize) -> Token {
    // Each row uses one of the hash's four lanes of eight bytes, so that four rows depend on all bytes of the hash.
    let lane = row % 4 * 8;
    let mut bits = [0; 8];
    bits.copy_from_slice(&hash[lane..lane + 8]);
    // The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    let mut bits = u64::from_le_bytes(bits) ^ ((part as u64) << 32 | row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    ((bits as u32) | 1 << 31).cast_signed()
}

/// The position as llama.cpp's type.
pub(crate) fn first_position(position: usize) -> Position {
    Position::try_from(position).unwrap_or(Position::MAX)
}

impl Model {
    /// Prepares a picture or a sound of a prompt: finds its tokens and its number of rows. If the projector refuses the
    /// medium, the error is [`Error::Media`].
    pub(crate) fn prepare_media(&self, media: &Media) -> Result<Arc<PreparedMedia>, Error> {
        let Some((encoder, table)) = self.media() else {
            return Err(Error::NoProjector { media: media.to_string(), in_worker: self.is_in_worker() });
        };
        encoder.prepare(media, table).map_err(|error| Error::of_media(media, error))
    }

    /// Refuses a prompt whose pictures alone would fill the context, before any of the pictures is scaled.
    pub(crate) fn check_pictures(&self, prompt: &Prompt, vocab: &Vocab, capacity: usize) -> Result<(), Error> {
        let Some((encoder, table)) = self.media() else { return Ok(()) };
        // A known picture must not wait for the projector, which may be encoding another one.
        let tokens = |media: &Media| match table.find(&media.hash()) {
            Some(known) => Some(known.tokens()),
            None => encoder.count(media),
        };
        let pictures: usize = prompt.whole_media().filter_map(tokens).sum();
        if pictures < capacity {
            return Ok(());
        }
        let tokens = pictures + prompt.tokens_of_texts(vocab)?;
        Err(Error::PromptTooLong { tokens, context: capacity })
    }

    /// The encoded rows of a span, and whether they were encoded during this call. If the projector refuses the medium,
    /// the error is [`Error::Media`]; if a device fails, it is the error of llama.cpp.
    pub(crate) fn encode_media(&self, span: &Span) -> Result<(Arc<Vec<f32>>, bool), Error> {
        let no_projector = || Error::NoProjector { media: span.media.to_string(), in_worker: false };
        let (encoder, table) = self.media().ok_or_else(no_projector)?;
        let encoded = encoder.encode(&span.media, &span.prepared, span.rows()).map_err(|error| match &error {
            llama_sys::Error::Call { failure, .. } if failure.reason.ends_with("mtmd_encode_chunk failed") => {
                error.into()
            }
            _ => Error::of_media(&span.media, error),
        })?;
        table.keep_within(&span.prepared, self.media_cache());
        Ok(encoded)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::row_token;

    #[test]
    fn the_numbers_of_rows_are_negative_and_differ_by_picture_part_and_row() {
        let hash = |byte: usize| {
            let mut hash = [7; 32];
            hash[byte] ^= 1;
            hash
        };
        let mut seen = HashSet::new();
        for byte in 0..32 {
            for part in 0..3 {
                // If two hashes differ in one lane only, the rows of the other lanes have equal tokens.
                let rows: Vec<_> = (0..8).map(|row| row_token(&hash(byte), part, row)).collect();
                assert!(rows.iter().all(|token| *token < 0));
                seen.insert(rows);
            }
        }
        assert_eq!(seen.len(), 32 * 3);
    }
}
