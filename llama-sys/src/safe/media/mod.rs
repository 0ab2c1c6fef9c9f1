//! Images and sound, with llama.cpp's tools/mtmd (feature `media`). A projector is a file that belongs to a model. A
//! prompt consists of texts, pixels and samples. The projector turns pixels and samples into rows, and the model
//! computes rows like tokens.
//!
//! In: decoded pixels and samples. This module does not read files of images or sounds.

mod chunks;
mod memory;

use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use crate::raw;
use crate::safe::call::text::path_to_c;
use crate::safe::call::{self, Error};
use crate::safe::context::FlashAttention;
use crate::safe::device::{Device, registry};
use crate::safe::model::{Model, readable};

pub use chunks::{MediaChunk, MediaChunks, MediaKind, MediaPart};
use memory::Rows;
pub use memory::{MediaMemory, ProjectorBytes};

/// Whether this build of llama.cpp supports images and sound. They need the feature `media`, or a runtime that was
/// built with it. With the feature `prebuilt-runtime`, this function opens the runtime, as [`Backend::init`] does; if
/// none can be opened, it returns false.
///
/// [`Backend::init`]: crate::Backend::init
pub fn has_media() -> bool {
    #[cfg(feature = "prebuilt-runtime")]
    if crate::safe::build::runtime::open().is_err() {
        return false;
    }
    // SAFETY: it only returns a constant.
    unsafe { raw::shim_media_built() }
}

/// How a projector is loaded.
#[derive(Debug, Clone)]
pub struct ProjectorParams {
    /// The device on which the whole projector lies and is computed. `None` means the host.
    pub device: Option<Device>,
    /// The number of threads for computations on the host.
    pub n_threads: u32,
    /// Whether the projector's attention is fused.
    pub flash_attention: FlashAttention,
    /// Minimum number of tokens of an image, if the projector accepts images of any size. `None` means the number in
    /// the projector's file.
    pub image_min_tokens: Option<u32>,
    /// Maximum number of tokens of an image, under the same conditions.
    pub image_max_tokens: Option<u32>,
}

impl ProjectorParams {
    fn to_native(&self) -> Result<raw::shim_media_params, Error> {
        let tokens = |name, tokens: Option<u32>| match tokens {
            None => Ok(-1),
            Some(0) => Err(Error::parameter(name, 0, "an image has at least one token")),
            Some(tokens) => i32::try_from(tokens).map_err(|_| Error::parameter(name, tokens, "it must be below 2^31")),
        };
        let (min, max) = (self.image_min_tokens, self.image_max_tokens);
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let reason = format!("it must be at most image_max_tokens ({max})");
            return Err(Error::parameter("image_min_tokens", min, reason));
        }
        if !(1..=512).contains(&self.n_threads) {
            return Err(Error::parameter("n_threads", self.n_threads, "it must be 1 to 512"));
        }
        Ok(raw::shim_media_params {
            device: self.device.as_ref().map_or(std::ptr::null_mut(), Device::as_ptr),
            n_threads: self.n_threads as i32,
            flash_attn: self.flash_attention.to_native(),
            image_min_tokens: tokens("image_min_tokens", min)?,
            image_max_tokens: tokens("image_max_tokens", max)?,
        })
    }
}

/// The encoders in a projector's file (mmproj), loaded for a model. It keeps the model loaded.
pub struct Projector {
    raw: NonNull<raw::mtmd_context>,
    path: PathBuf,
    shape: raw::shim_media_shape,
    bytes: Vec<ProjectorBytes>,
    model: Model,
}

// SAFETY: a context of mtmd belongs to no thread, and `&mut self` serialises encoding, which changes it. Tokenising
// only reads it (mtmd.h, `mtmd_tokenize`).
unsafe impl Send for Projector {}
// SAFETY: as above.
unsafe impl Sync for Projector {}

impl Drop for Projector {
    fn drop(&mut self) {
        // SAFETY: shim_media_load made it, and it is freed once, before the model in the last field.
        unsafe { raw::shim_media_free(self.raw.as_ptr()) };
    }
}

impl Projector {
    /// Loads a projector's file for `model`, and allocates the buffers that the encoders need for the largest image or
    /// sound. The projector takes exactly the bytes that [`MediaMemory::ask`] returns.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] for a path without a readable file; [`Error::ProjectorLoad`] for a file that is not a
    /// projector, belongs to a model of another width, or does not fit ([`Error::out_of_memory`]), and in a build
    /// without the feature `media`; [`Error::InvalidParameter`].
    pub fn load(model: &Model, path: impl AsRef<Path>, params: &ProjectorParams) -> Result<Self, Error> {
        let path = path.as_ref();
        if model.is_no_alloc() {
            return Err(Error::parameter("no_alloc", true, "a model without data computes no images"));
        }
        let native = params.to_native()?;
        readable(path)?;
        let text = path_to_c(path)?;
        let failed = |failure| Error::ProjectorLoad { path: path.to_owned(), failure: Box::new(failure) };
        // llama.cpp looks up the CPU's backend in ggml's registry.
        let _unchanged = registry::reading();
        let (mut rows, mut n_rows) = (Rows::new(), 0);
        let loaded = call::accepted(
            // SAFETY: the model is loaded and outlives the projector; the path is NUL-terminated; there is room for
            // `MAX` rows.
            |error| unsafe {
                let (path, native, to) = (text.as_ptr(), &raw const native, rows.as_mut_ptr());
                raw::shim_media_load(path, model.as_ptr(), native, to, Rows::MAX, &raw mut n_rows, error)
            },
            |loaded| !loaded.is_null(),
        );
        let raw = NonNull::new(loaded.map_err(failed)?).expect("accepted above");
        // SAFETY: a structure of numbers.
        let shape: raw::shim_media_shape = unsafe { std::mem::zeroed() };
        let bytes = rows.read(n_rows);
        let mut projector = Self { raw, path: path.to_owned(), shape, bytes, model: model.clone() };
        let shape = &raw mut projector.shape;
        // SAFETY: the projector lives; the shape is written before the call returns.
        call::checked(|error| unsafe { raw::shim_media_shape(raw.as_ptr(), shape, error) }).map_err(failed)?;
        Ok(projector)
    }

    /// The file that the projector was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes that the projector has allocated on each device.
    pub fn bytes(&self) -> &[ProjectorBytes] {
        &self.bytes
    }

    /// The model that the projector belongs to.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether the projector encodes images.
    pub fn has_images(&self) -> bool {
        self.shape.has_image
    }

    /// The sample rate in Hz of the sound that the projector encodes; `None` if it encodes no sound.
    pub fn sample_rate(&self) -> Option<u32> {
        u32::try_from(self.shape.sample_rate).ok().filter(|_| self.shape.has_audio)
    }

    /// How many positions a row has: 1, or 4 with M-RoPE.
    pub fn sections(&self) -> usize {
        if self.shape.is_mrope { 4 } else { 1 }
    }

    /// Computes the rows of chunk `index`, which must be an image or a sound. Returns the rows one after the other;
    /// each row has [`width`](Self::width) values.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a text, and for an index beyond the last. [`Error::Call`] if a device fails, and
    /// for an image that needs larger buffers than the largest image does: if an image is a thousand times as wide as
    /// high, llama.cpp makes more tokens of it than its own limit allows.
    pub fn encode(&mut self, chunks: &MediaChunks, index: usize) -> Result<Vec<f32>, Error> {
        let chunk = chunks.get(self, index)?;
        if chunk.kind() == MediaKind::Text {
            return Err(Error::parameter("index", index, "this chunk is a text"));
        }
        let mut rows = vec![0.0; chunk.len() * self.width()];
        let (raw, list) = (self.raw.as_ptr(), chunks.as_ptr());
        let encoded = call::accepted(
            // SAFETY: both live, and `&mut self` keeps others from computing; there is room for all rows, whose width
            // was compared with the model's when the projector was loaded (native/media.cpp, `check`).
            |error| unsafe { raw::shim_media_encode(raw, list, index, rows.as_mut_ptr(), rows.len(), error) },
            |encoded| *encoded,
        );
        encoded.map_err(|failure| Error::Call { what: "encoding an image or a sound", failure })?;
        Ok(rows)
    }

    /// The number of values in a row: the width of the model's input.
    pub fn width(&self) -> usize {
        // SAFETY: the model lives.
        let width = unsafe { raw::llama_model_n_embd_inp(self.model.as_ptr()) };
        usize::try_from(width).unwrap_or(0)
    }

    pub(super) fn as_ptr(&self) -> *const raw::mtmd_context {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for Projector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Projector").field("path", &self.path).field("model", &self.model).finish_non_exhaustive()
    }
}
