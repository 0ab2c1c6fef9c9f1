//! Decoding of rows that an encoder of images or sound has computed. They become tokens of a sequence.

use super::{Context, Position, SeqId};
use crate::raw;
use crate::safe::call::{self, Error};

/// Rows to decode in one call.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The rows, one after the other; each row is as wide as the model's input.
    pub values: &'a [f32],
    /// The positions of each row: one number for each row, or four with M-RoPE.
    pub positions: &'a [Position],
    /// The sequence.
    pub seq: SeqId,
    /// Whether each row attends to all other rows, as in an image of Gemma 3. All rows of the image must then be in one
    /// call.
    pub is_non_causal: bool,
    /// Whether the logits of the last row are computed.
    pub output_last: bool,
}

impl Context {
    /// Decodes the rows that an encoder has computed, and adds them to the KV cache.
    ///
    /// # Errors
    ///
    /// The errors of [`decode`](Self::decode). [`Error::InvalidParameter`] also for rows of the wrong width, for a
    /// wrong number of positions, and for more than `n_ubatch` rows if each row attends to all others.
    pub fn decode_rows(&mut self, rows: &Rows<'_>) -> Result<(), Error> {
        self.check_usable()?;
        let n_rows = self.check_rows(rows)?;
        self.outputs.clear();
        let native = raw::shim_media_rows {
            values: rows.values.as_ptr(),
            n_rows,
            width: rows.values.len() / n_rows,
            positions: rows.positions.as_ptr(),
            n_sections: rows.positions.len() / n_rows,
            seq: rows.seq,
            is_non_causal: rows.is_non_causal,
            output_last: rows.output_last,
        };
        let listed = self.vocab.model().adapters();
        // SAFETY: the context lives and is borrowed mutably. There are `n_rows` rows of `width` values, and
        // `n_sections` positions for each row; llama.cpp only reads them. The counts were checked against its
        // assertions.
        let code = call::quick(|error| unsafe { raw::shim_media_decode(self.as_ptr(), &raw const native, error) });
        drop(listed);
        let mut outputs = vec![0; n_rows];
        outputs[n_rows - 1] = i8::from(rows.output_last);
        self.decoded(code, &outputs)
    }

    /// Refuses rows on which llama.cpp would fail an assertion (llama-context.cpp, `decode`). Returns the number of
    /// rows.
    fn check_rows(&self, rows: &Rows<'_>) -> Result<usize, Error> {
        if self.model().is_no_alloc() {
            return Err(Error::parameter("no_alloc", true, "a model without data cannot compute"));
        }
        if self.embeddings || self.needs_encoder || !self.has_memory {
            return Err(Error::parameter("rows", rows.values.len(), "this context does not generate texts"));
        }
        // SAFETY: the model lives.
        let (width, rope) = unsafe {
            let model = self.model().as_ptr();
            (raw::llama_model_n_embd_inp(model), raw::llama_model_rope_type(model))
        };
        let width = usize::try_from(width).unwrap_or(0).max(1);
        let n_rows = rows.values.len() / width;
        if n_rows == 0 || rows.values.len() != n_rows * width {
            let reason = format!("the model takes rows of {width} values");
            return Err(Error::parameter("values", rows.values.len(), reason));
        }
        let four = [raw::LLAMA_ROPE_TYPE_MROPE, raw::LLAMA_ROPE_TYPE_IMROPE].contains(&rope);
        let sections = if four { 4 } else { 1 };
        if rows.positions.len() != n_rows * sections {
            let reason = format!("{n_rows} rows have {sections} positions each");
            return Err(Error::parameter("positions", rows.positions.len(), reason));
        }
        let (name, most) = if rows.is_non_causal { ("n_ubatch", self.n_ubatch) } else { ("n_batch", self.n_batch) };
        if n_rows > most as usize {
            return Err(Error::parameter("n_rows", n_rows, format!("it must be at most {name} ({most})")));
        }
        if let Some(position) = rows.positions.iter().find(|position| !(0..Position::MAX).contains(*position)) {
            let reason = format!("it must be 0 to {}", Position::MAX - 1);
            return Err(Error::parameter("pos", position, reason));
        }
        self.check_seq(rows.seq)?;
        self.check_finished(rows.seq)?;
        Ok(n_rows)
    }
}
