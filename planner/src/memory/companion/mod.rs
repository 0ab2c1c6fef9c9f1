//! Companions: files loaded beside the main model. With a projector (*mmproj*) the main model sees or hears, and a
//! small model drafts tokens for it.
//!
//! In: a header. Out: [`CompanionBytes`], for one GPU that takes the whole companion, or for the host alone. With these
//! bytes, a plan can leave room for the companion. llama.cpp does not split companions by layers: an mmproj goes to one
//! device as a whole (tools/mtmd/clip.cpp, `clip_ctx`), and so does a draft with its default `n_gpu_layers`.
//!
//! - A **draft** is a normal model. Its bytes are the [`Estimate`](super::Estimate) of a full offload, or of the
//!   [stated](DraftOptions) layers, in the [context](Companion::draft_context) that llama.cpp's programs create for a
//!   draft.
//! - The bytes of an **mmproj** are those that llama.cpp [counted](Companion::counted) for the largest image. Without
//!   such a count, the bytes of its weights are exact and follow the backend's rules; the bytes of its compute buffers
//!   are an upper bound.

mod bytes;
mod draft;
mod error;
mod mmproj;
mod options;
mod vocabulary;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gguf::Header;
use crate::machine::Gpu;

use self::draft::Draft;
use self::mmproj::{Counted, Mmproj};
use super::{ContextParams, FlashAttention, PeakSizes};

pub use bytes::CompanionBytes;
pub use error::Error;
pub use options::DraftOptions;

/// A file that is loaded together with the main model.
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

/// The purpose of a companion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CompanionRole {
    /// Turns images or sound into embeddings: llama.cpp's `--mmproj`.
    #[error("mmproj")]
    Mmproj,
    /// Drafts tokens that the main model checks: llama.cpp's `--model-draft`.
    #[error("draft")]
    Draft,
}

impl Companion {
    /// An encoder and projector for images or sound.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`] for a file whose architecture is not `clip`, [`Error::Missing`] if the header lacks a key
    /// that determines the size, [`Error::Unread`] if no bound of the memory is known.
    pub fn mmproj(header: &Header) -> Result<Self, Error> {
        let kind = Kind::Mmproj(Box::new(Mmproj::read(header)?));
        Ok(Self { name: header.title().unwrap_or_default(), kind })
    }

    /// A small model with the same vocabulary, which drafts.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKind`] for an mmproj, [`Error::Unread`] for a head that computes with the main model's hidden
    /// states, [`Error::Profile`] for a file that is not a usable model.
    pub fn draft(header: &Header) -> Result<Self, Error> {
        let draft = Box::new(Draft::read(header)?);
        Ok(Self { name: draft.profile.name.clone(), kind: Kind::Draft(draft) })
    }

    /// Limits the tokens of an image, like llama.cpp's `--image-max-tokens`; 0 means no limit. It affects only
    /// projectors that take images of any size.
    pub fn max_image_tokens(mut self, tokens: u32) -> Self {
        if let Kind::Mmproj(mmproj) = &mut self.kind {
            mmproj.max_image_tokens = (tokens > 0).then_some(tokens);
        }
        self
    }

    /// Sets the bytes that llama.cpp counts for an mmproj with this setting of flash attention. `device` is ggml's name
    /// of the device; `None` is the host. [`bytes`](Self::bytes) then returns these bytes instead of a bound. They have
    /// no effect on a draft.
    pub fn counted(mut self, device: Option<&str>, flash: FlashAttention, bytes: CompanionBytes) -> Self {
        if let Kind::Mmproj(mmproj) = &mut self.kind {
            mmproj.counted.push(Counted { device: device.map(str::to_owned), flash, bytes });
        }
        self
    }

    /// Sets the options of a draft. For an mmproj, they have no effect.
    pub fn draft_options(mut self, options: DraftOptions) -> Self {
        if let Kind::Draft(draft) = &mut self.kind {
            draft.options = options;
        }
        self
    }

    /// The options of a draft; the defaults for an mmproj.
    pub(crate) fn options(&self) -> DraftOptions {
        match &self.kind {
            Kind::Mmproj(_) => DraftOptions::default(),
            Kind::Draft(draft) => draft.options.clone(),
        }
    }

    /// The purpose of the companion.
    pub const fn role(&self) -> CompanionRole {
        match self.kind {
            Kind::Mmproj(_) => CompanionRole::Mmproj,
            Kind::Draft(_) => CompanionRole::Draft,
        }
    }

    /// The name for people: `general.name`, or the file's name if the header has no name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The context of a draft for a main model with these parameters; `None` for an mmproj.
    ///
    /// It has as many tokens as the main model's padded context and one output per sequence (common/speculative.cpp,
    /// `common_base_params_to_speculative`; examples/speculative-simple does the same).
    ///
    /// # Errors
    ///
    /// [`Error::Context`] if llama.cpp would reject the main model's parameters.
    pub fn draft_context(&self, main: &ContextParams) -> Result<Option<ContextParams>, Error> {
        match &self.kind {
            Kind::Mmproj(_) => Ok(None),
            Kind::Draft(draft) => Ok(Some(draft.context(main)?)),
        }
    }

    /// Checks that llama.cpp would accept the companion for this main model: a draft by its vocabulary, an mmproj by
    /// the width of its output if the output tensor is known.
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

    /// The companion's memory if the main model has these parameters. The companion is put on this GPU as far as
    /// possible (of a draft, only the [stated](DraftOptions) layers), or on the host if `gpu` is `None`. Only the GPU's
    /// backend matters, not its free memory.
    ///
    /// # Errors
    ///
    /// [`Error::Context`] if llama.cpp would reject the parameters.
    pub fn bytes(&self, gpu: Option<&Gpu>, main: &ContextParams) -> Result<CompanionBytes, Error> {
        match &self.kind {
            Kind::Mmproj(mmproj) => Ok(mmproj.bytes(gpu, main.flash_attn)),
            Kind::Draft(draft) => draft.bytes(gpu, main),
        }
    }

    /// The ubatch, in tokens, that the main model needs for the companion. If each row of an image attends to all
    /// others, as in Gemma 3, all rows of the image must be computed at once. `None` if any ubatch is large enough.
    pub fn rows_at_once(&self) -> Option<u32> {
        match &self.kind {
            Kind::Mmproj(mmproj) => mmproj.rows_at_once(),
            Kind::Draft(_) => None,
        }
    }

    /// The companion's contribution to the headroom, in addition to the main model's. The companion computes with a
    /// backend of its own, whose pools add to the pools of the main model (the [growth](super::HeadroomParts::growth)
    /// part).
    ///
    /// # Errors
    ///
    /// [`Error::Context`] if llama.cpp would reject the parameters.
    pub fn peak_sizes(&self, main: &ContextParams) -> Result<PeakSizes, Error> {
        match &self.kind {
            Kind::Mmproj(mmproj) => Ok(mmproj.peak_sizes()),
            Kind::Draft(draft) => draft.peak_sizes(main),
        }
    }
}

impl fmt::Display for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.role())
    }
}
