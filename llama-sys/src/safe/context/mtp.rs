//! Predicting further tokens (MTP). One context outputs the hidden states of tokens. Another context computes with the
//! prediction blocks, and takes these states as its input.
//!
//! A prediction block takes a token and the hidden state of the token before it. It yields the logits of the next
//! token, and a hidden state from which the prediction can continue (llama.cpp, common/speculative.cpp, `draft-mtp`).

use super::params::Mtp;
use super::{Batch, Context};
use crate::raw;
use crate::safe::call::{self, Error};

impl Context {
    /// The context's role in predicting further tokens.
    pub fn mtp(&self) -> Mtp {
        self.mtp
    }

    /// As [`decode`](Self::decode), for a context with [`Mtp::Heads`]. Each token comes with the hidden state of the
    /// token before it; `hidden` has one row of [`n_embd_out`](crate::Model::n_embd_out) numbers for each token.
    ///
    /// # Errors
    ///
    /// The errors of [`decode`](Self::decode). [`Error::InvalidParameter`] also for a context without [`Mtp::Heads`],
    /// for a wrong number of rows, and if some tokens are outputs and some are not: with such a batch some
    /// architectures return wrong hidden states (`graph_mtp` in models/glm4-moe.cpp does not drop the rows of tokens
    /// that are no outputs).
    pub fn decode_heads(&mut self, batch: &Batch, hidden: &[f32]) -> Result<(), Error> {
        self.check_usable()?;
        if self.mtp != Mtp::Heads {
            return Err(Error::parameter(
                "mtp",
                format!("{:?}", self.mtp),
                "only a context with Mtp::Heads takes hidden states",
            ));
        }
        let rows = batch.len();
        if hidden.len() != rows.saturating_mul(self.model().n_embd_out() as usize) {
            return Err(Error::parameter(
                "hidden",
                format!("{} numbers", hidden.len()),
                format!("there must be n_embd_out numbers for each of {rows} tokens"),
            ));
        }
        if ![0, rows].contains(&batch.n_outputs()) {
            return Err(Error::parameter(
                "n_outputs",
                batch.n_outputs(),
                format!("none or all of the {rows} tokens must be outputs"),
            ));
        }
        self.check_batch(batch)?;
        self.compute(batch, hidden.as_ptr())
    }

    /// The hidden state of token `index` of the last batch: [`n_embd_out`](crate::Model::n_embd_out) numbers. In a
    /// context with [`Mtp::Trunk`] every token has one; with [`Mtp::Heads`] every output has one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if the token has none; [`Error::Poisoned`].
    pub fn hidden(&mut self, index: i32) -> Result<&[f32], Error> {
        self.check_usable()?;
        let is_there = match self.mtp {
            Mtp::Off => false,
            Mtp::Trunk => usize::try_from(index).is_ok_and(|index| index < self.last_tokens()),
            Mtp::Heads => index >= 0 && self.is_output(index),
        };
        let missing = || Error::parameter("index", index, "the last batch has no hidden state at this index");
        if !is_there {
            return Err(missing());
        }
        // SAFETY: the context lives, and has a hidden state for this token.
        let row = call::quick(|error| unsafe { raw::shim_hidden(self.as_ptr(), index, error) })
            .map_err(|failure| Error::Call { what: "reading a hidden state", failure })?;
        if row.is_null() {
            return Err(missing());
        }
        let width = self.model().n_embd_out() as usize;
        // SAFETY: the row has `n_embd_out` numbers (llama-context.cpp, `get_embeddings_nextn_ith`). It stays valid
        // until the next decode, and the mutable borrow excludes a decode.
        Ok(unsafe { std::slice::from_raw_parts(row, width) })
    }
}
