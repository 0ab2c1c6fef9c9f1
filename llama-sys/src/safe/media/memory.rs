//! The bytes that a projector takes, as llama.cpp counts them.

use std::path::Path;

use super::ProjectorParams;
use crate::raw;
use crate::safe::call::text::path_to_c;
use crate::safe::call::{self, Error};
use crate::safe::device::{Device, registry};
use crate::safe::model::readable;

/// The memory that a projector will take, known before it is loaded.
#[derive(Debug, Clone)]
pub struct MediaMemory {
    /// Bytes of each device: weights, and the buffers for an image or a sound of the usual size.
    pub bytes: Vec<(Device, u64)>,
    /// Maximum tokens of an image, if the projector takes images of any size and its file states the number.
    pub image_max_tokens: Option<u32>,
    /// Whether all rows of an image are computed at once, so that `n_ubatch` has to hold them.
    pub is_non_causal: bool,
}

impl MediaMemory {
    /// Asks llama.cpp (mtmd.cpp, `mtmd_get_memory_usage`). It reads the file's header.
    ///
    /// llama.cpp allocates the memory while it counts it, on the device that is asked about, and reads no data into it
    /// (clip.cpp, `load_tensors`): a device without room is an error.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`], [`Error::InvalidParameter`], and [`Error::ProjectorLoad`] for a file that is not a
    /// projector.
    pub fn ask(path: impl AsRef<Path>, params: &ProjectorParams) -> Result<Self, Error> {
        let path = path.as_ref();
        let native = params.to_native()?;
        readable(path)?;
        let text = path_to_c(path)?;
        let _unchanged = registry::reading();
        let mut limits = raw::shim_media_limits { image_max_tokens: -1, is_non_causal: false };
        // More rows than devices, which are the host and at most one other.
        let mut rows = [raw::shim_media_row { device: std::ptr::null_mut(), bytes: 0 }; 16];
        let most = rows.len() as i32;
        let counted = call::accepted(
            // SAFETY: the path is NUL-terminated, and there is room for `most` rows.
            |error| unsafe {
                raw::shim_media_memory(
                    text.as_ptr(),
                    &raw const native,
                    &raw mut limits,
                    rows.as_mut_ptr(),
                    most,
                    error,
                )
            },
            |rows| (1..=most).contains(rows),
        );
        let count =
            counted.map_err(|failure| Error::ProjectorLoad { path: path.to_owned(), failure: Box::new(failure) })?;
        let rows = rows[..count as usize].iter();
        let bytes = rows.filter_map(|row| Some((Device::from_raw(row.device)?, row.bytes))).collect();
        Ok(Self {
            bytes,
            image_max_tokens: u32::try_from(limits.image_max_tokens).ok(),
            is_non_causal: limits.is_non_causal,
        })
    }
}
