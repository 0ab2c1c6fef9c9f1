//! What the context holds of a text, in a file: so that a conversation goes on after a restart without its
//! prompt being computed.
//!
//! Out: a file of a running text or of one that has ended. In: such a file, of the same model and kind of cache; it
//! becomes what a text that has ended has left, and a prompt that [begins with it](super::Generate::cache_prompt) pays
//! only for the rest.

mod file;
pub(super) mod weights;

use std::io;
use std::path::Path;

use llama_sys::SeqId;
use serde::{Deserialize, Serialize};

use super::cache::Prefix;
use super::context::Lent;
use super::error::{Error, SavedCacheError};
use super::piece::SequenceId;
use super::sequence::{Sequence, held};
use super::session::Session;
use crate::gguf::Header;
use crate::load::{self, Added, Model, Scales, Unreadable};
use crate::plan::ModelIdentity;
use file::{Description, Layout, Opened};

/// What was saved or restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SavedCache {
    /// Tokens that a prompt has to begin with to go on from them.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Session {
    /// Saves what the context holds of a running text, which goes on. The file holds its tokens and with them what was
    /// said: it is readable for its owner alone. It is written beside its place first, so that a file that was there
    /// stays until the new one is whole.
    ///
    /// # Errors
    ///
    /// [`Error::Saved`] when there is nothing to save or the file cannot be written; [`Error::NotRunning`];
    /// [`Error::Load`] after a re-placement that failed, or when the model file cannot be read any more;
    /// [`Error::Native`].
    pub fn save(&mut self, sequence: SequenceId, path: impl AsRef<Path>) -> Result<SavedCache, Error> {
        let at = self.position(sequence)?;
        let scales = &self.sequences[at].scales;
        let (seq, tokens) = self.sequences[at].held(scales);
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        save(&self.model, lent, seq, Prefix { tokens, scales }, path.as_ref())
    }

    /// Saves what the text that ended last has left in the context, likewise.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    pub fn save_last(&mut self, path: impl AsRef<Path>) -> Result<SavedCache, Error> {
        let path = path.as_ref();
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        match self.cache.last() {
            Some(last) => {
                let text = Prefix { tokens: &last.tokens, scales: &last.scales };
                save(&self.model, lent, last.seq, text, path)
            }
            None => Err(nothing(path)),
        }
    }

    /// Restores a saved text beside those that run, as if it had just ended: the next prompt that begins with its
    /// tokens and is asked to ([`cache_prompt`](super::Generate::cache_prompt)) computes only the rest. Where no
    /// sequence is empty, what was used least recently makes room.
    ///
    /// The whole file is read and its checksum compared before llama.cpp sees any of it. The placement need not be
    /// the one that it was saved with: only the types of the cache (`type_k`, `type_v`), fused attention, and
    /// whether sequences share one cache. The adapters that it was computed with must be the
    /// model's, told apart by what their files hold, and prompts go on from it that are computed with the same ones
    /// at the same scales.
    ///
    /// # Errors
    ///
    /// [`Error::Saved`] for a file that is damaged, foreign or too long; [`Error::SequencesBusy`]; otherwise as
    /// [`save`](Self::save). The texts that run go on: computed again where llama.cpp itself refused a file whose
    /// checksum was right.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<SavedCache, Error> {
        let path = path.as_ref();
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        let Opened { description, state: mut from, bytes } = file::open(path)?;
        check(&description, &identity(&self.model)?, &Layout::of(lent), path)?;
        let scales = scales(&self.model, &description.adapters, path)?;
        let Description { tokens, positions, state, .. } = description;
        let used: usize = self.sequences.iter().map(Sequence::cells).sum();
        let left = lent.room.all.saturating_sub(used);
        let context = lent.room.each.min(left);
        if positions > context {
            let path = path.to_owned();
            return Err(Box::new(SavedCacheError::TooLong { path, tokens: positions, context }).into());
        }
        let running = held(&self.sequences);
        let seq = self.cache.clear_one(lent, &running, left - positions)?;
        let context = &mut lent.context;
        let reason = match context.read_state(seq, state, &mut from) {
            Err(llama_sys::Error::State { reason }) => Some(reason),
            read => {
                read?;
                let ends = (context.kv_seq_start(seq)?, context.kv_seq_end(seq)?);
                let is_whole = matches!(ends, (Some(_), Some(end)) if usize::try_from(end) == Ok(positions));
                (!is_whole).then(|| format!("the state does not end at position {positions}"))
            }
        };
        if let Some(reason) = reason {
            // What is at positions that cannot be is not found by its sequence.
            context.kv_clear()?;
            self.cache.emptied();
            for sequence in &mut self.sequences {
                sequence.compute_again();
                sequence.held.shares = None;
            }
            return Err(Box::new(SavedCacheError::Refused { path: path.to_owned(), reason }).into());
        }
        let kept = self.cache.go_back(context, seq, Prefix { tokens: &tokens, scales: &scales })?;
        self.cache.remember(seq, scales, tokens, kept);
        Ok(SavedCache { tokens: kept, bytes })
    }
}

impl Layout {
    fn of(lent: &Lent) -> Self {
        let context = &lent.context;
        Self {
            type_k: lent.type_k,
            type_v: lent.type_v,
            flash_attn: context.flash_attn(),
            streams: if context.kv_unified() { 1 } else { context.n_seq_max() },
        }
    }
}

fn nothing(path: &Path) -> Error {
    Box::new(SavedCacheError::Nothing { path: path.to_owned() }).into()
}

/// The model whose file this is, and what tells its weights from others.
fn identity(model: &Model) -> Result<(ModelIdentity, String), Error> {
    let header = Header::open(model.native()?.path()).map_err(load::Error::from)?;
    let identity = ModelIdentity::of(&header).map_err(load::Error::from)?;
    Ok((identity, weights::fingerprint(&header)?))
}

fn save(model: &Model, lent: &mut Lent, seq: SeqId, text: Prefix<'_>, path: &Path) -> Result<SavedCache, Error> {
    let layout = Layout::of(lent);
    let context = &mut lent.context;
    let positions = context.kv_seq_end(seq)?.and_then(|end| usize::try_from(end).ok());
    let Some(positions) = positions.filter(|_| !text.tokens.is_empty()) else {
        return Err(nothing(path));
    };
    let (identity, weights) = identity(model)?;
    let description = Description {
        model: identity,
        weights,
        layout,
        adapters: model.added(text.scales).map_err(unreadable)?,
        tokens: text.tokens.to_vec(),
        positions,
        state: context.state_bytes(seq)?,
    };
    let failed = |error| match error {
        llama_sys::Error::State { reason } => file::cannot("write", path)(io::Error::other(reason)).into(),
        error => Error::from(error),
    };
    let bytes = file::write(path, &description, |to| context.write_state(seq, to).map_err(failed))?;
    Ok(SavedCache { tokens: text.tokens.len(), bytes })
}

/// The scales of the model's adapters at which it computes as it was computed then.
fn scales(model: &Model, then: &Added, path: &Path) -> Result<Scales, Error> {
    if let Some(scales) = model.scales_of(then).map_err(unreadable)? {
        return Ok(scales);
    }
    let now = model.added(&model.scales(None)?).map_err(unreadable)?;
    Err(Box::new(SavedCacheError::OtherCache {
        path: path.to_owned(),
        field: "adapters".into(),
        needed: now.to_string(),
        found: then.to_string(),
    })
    .into())
}

fn unreadable(file: Unreadable) -> Error {
    file::cannot("read", &file.path)(file.error).into()
}

/// Refuses what is of another model, or of another kind of cache.
fn check(
    found: &Description,
    (model, weights): &(ModelIdentity, String),
    layout: &Layout,
    path: &Path,
) -> Result<(), Box<SavedCacheError>> {
    let path = path.to_owned();
    if !found.model.is(model) {
        let (needed, found) = (Box::new(model.clone()), Box::new(found.model.clone()));
        return Err(Box::new(SavedCacheError::OtherModel { path, needed, found }));
    }
    if found.weights != *weights {
        return Err(Box::new(SavedCacheError::OtherWeights { path, model: Box::new(model.clone()) }));
    }
    let of = &found.layout;
    let fields = [
        ("type_k", layout.type_k.to_string(), of.type_k.to_string()),
        ("type_v", layout.type_v.to_string(), of.type_v.to_string()),
        ("flash_attn", layout.flash_attn.to_string(), of.flash_attn.to_string()),
        ("streams", layout.streams.to_string(), of.streams.to_string()),
    ];
    match fields.into_iter().find(|(_, needed, found)| needed != found) {
        Some((field, needed, found)) => {
            Err(Box::new(SavedCacheError::OtherCache { path, field: field.into(), needed, found }))
        }
        None => Ok(()),
    }
}
