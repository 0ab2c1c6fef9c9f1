//! What is loaded beside the main model: a projector that makes it see or hear (*mmproj*), a small model
//! that drafts for it.
//!
//! A header flows in; [`CompanionBytes`] flow out, for one GPU that takes all of it or for the host alone, so that a
//! plan can leave that room. llama.cpp places neither of them layer by layer by itself: an mmproj goes to one device as
//! a whole (tools/mtmd/clip.cpp, `clip_ctx`), and so does a draft with its default `n_gpu_layers`.
//!
//! * A **draft** is a model like any other: its bytes are the [`Estimate`](super::Estimate) of a full offload, in the
//!   [context](Companion::draft_context) that llama.cpp's programs give it.
//! * Of an **mmproj** the weights are exact by the backend's rules. What its computation takes is an upper bound for
//!   the largest image that llama.cpp would hand it, not for the smaller one that it warms up with. It cannot be
//!   probed: the code that loads it (`libmtmd`) is no part of our build.

mod draft;
mod error;
mod mmproj;
mod vocabulary;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gguf::Header;
use crate::machine::Gpu;

use self::draft::Draft;
use self::mmproj::Mmproj;
use super::{ContextParams, Footprint, Workload};

pub use error::Error;

/// A file that is loaded beside the main model.
///
/// ```
/// # use autoplace_planner::{gguf::Header, machine::Gpu, memory::{Companion, ContextParams}};
/// # fn f(main: &Header, gpu: &Gpu) -> Result<(), Box<dyn std::error::Error>> {
/// let eyes = Companion::mmproj(&Header::open("mmproj-gemma-3-4b-it-f16.gguf")?)?;
/// eyes.compatible_with(main)?;
/// let bytes = eyes.bytes(Some(gpu), &ContextParams::default())?;
/// println!("{eyes}: {} bytes on the GPU, {} on the host", bytes.gpu.total(), bytes.host.total());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Companion {
    name: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Mmproj(Box<Mmproj>),
    Draft(Box<Draft>),
}

/// What a companion is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// It turns images or sound into embeddings: llama.cpp's `--mmproj`.
    #[error("mmproj")]
    Mmproj,
    /// It drafts tokens that the main model checks: llama.cpp's `--model-draft`.
    #[error("draft")]
    Draft,
}

/// What a companion takes, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CompanionBytes {
    /// On the GPU that it was asked for; nothing where it is on the host alone.
    pub gpu: Footprint,
    /// On the host: all of it, or what stays there.
    pub host: Footprint,
    /// Bytes by which the GPU's `compute` may be too low.
    pub gpu_uncertainty: u64,
    /// Bytes by which the host's `compute` may be too low.
    pub host_uncertainty: u64,
}

impl Companion {
    /// A projector and its encoder, for images or for sound.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`] for a file whose architecture is not `clip`, [`Error::Missing`] for a key without which it
    /// has no size, [`Error::Unread`] where we know no bound of its memory.
    pub fn mmproj(header: &Header) -> Result<Self, Error> {
        let kind = Kind::Mmproj(Box::new(Mmproj::read(header)?));
        Ok(Self { name: header.title().unwrap_or_default(), kind })
    }

    /// A small model of the same vocabulary, which drafts.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`] for an mmproj, [`Error::Unread`] for a head that computes with the main model's hidden
    /// states, [`Error::Profile`] for what is no model.
    pub fn draft(header: &Header) -> Result<Self, Error> {
        let draft = Box::new(Draft::read(header)?);
        Ok(Self { name: draft.profile.name.clone(), kind: Kind::Draft(draft) })
    }

    /// Limits the tokens of an image, as llama.cpp's `--image-max-tokens` does where the projector takes images of any
    /// size; 0 is no limit. Anything else is not changed by it.
    pub fn max_image_tokens(mut self, tokens: u32) -> Self {
        if let Kind::Mmproj(mmproj) = &mut self.kind {
            mmproj.max_image_tokens = (tokens > 0).then_some(tokens);
        }
        self
    }

    /// What it is for.
    pub const fn role(&self) -> Role {
        match self.kind {
            Kind::Mmproj(_) => Role::Mmproj,
            Kind::Draft(_) => Role::Draft,
        }
    }

    /// Its name for people: `general.name`, or that of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The context of a draft beside a main model with these parameters; `None` of an mmproj.
    ///
    /// It has as many tokens as the main model's after padding, and one output per sequence (common/speculative.cpp,
    /// `common_base_params_to_speculative`; examples/speculative-simple is the same).
    ///
    /// # Errors
    ///
    /// [`Error::Context`] where llama.cpp would not take the main model's parameters.
    pub fn draft_context(&self, main: &ContextParams) -> Result<Option<ContextParams>, Error> {
        match &self.kind {
            Kind::Mmproj(_) => Ok(None),
            Kind::Draft(draft) => Ok(Some(draft.context(main)?)),
        }
    }

    /// Checks that llama.cpp would use it with this main model: a draft by its vocabulary, an mmproj by the width of
    /// what it gives, where we know which tensor says that.
    ///
    /// # Errors
    ///
    /// [`Error::Vocabulary`], [`Error::Width`], [`Error::Header`].
    pub fn compatible_with(&self, main: &Header) -> Result<(), Error> {
        match &self.kind {
            Kind::Mmproj(mmproj) => mmproj.compatible_with(main),
            Kind::Draft(draft) => vocabulary::compatible(&draft.header, main),
        }
    }

    /// What it takes when all of it that can be is on this GPU, or without one on the host alone, beside a main model
    /// with these parameters. Of a GPU's memory only its backend matters, not how much is free.
    ///
    /// # Errors
    ///
    /// [`Error::Context`] where llama.cpp would not take the parameters.
    pub fn bytes(&self, gpu: Option<&Gpu>, main: &ContextParams) -> Result<CompanionBytes, Error> {
        match &self.kind {
            Kind::Mmproj(mmproj) => Ok(mmproj.bytes(gpu, main.flash_attn)),
            Kind::Draft(draft) => draft.bytes(gpu, main),
        }
    }

    /// What it makes a driver and its pools do beside the main model: it computes with a backend of its own, whose
    /// pools come to the main model's (its share of the [growth](super::HeadroomParts::growth)).
    ///
    /// # Errors
    ///
    /// [`Error::Context`] where llama.cpp would not take the parameters.
    pub fn workload(&self, main: &ContextParams) -> Result<Workload, Error> {
        match &self.kind {
            Kind::Mmproj(mmproj) => Ok(mmproj.workload()),
            Kind::Draft(draft) => draft.workload(main),
        }
    }
}

impl fmt::Display for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.role())
    }
}

/// The file of a header, for errors.
fn file(header: &Header) -> String {
    header.path().display().to_string()
}
