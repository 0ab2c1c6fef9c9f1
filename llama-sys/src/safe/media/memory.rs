//! The memory of a projector, as llama.cpp counts it.

use std::path::Path;

use super::ProjectorParams;
use crate::raw;
use crate::safe::call::text::path_to_c;
use crate::safe::call::{self, Error};
use crate::safe::device::{Backend, Device, registry};
use crate::safe::model::readable;

/// The bytes of a projector on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectorBytes {
    /// The device: the one that computes, or the host, which prepares the inputs.
    pub device: Device,
    /// Weights.
    pub weights: u64,
    /// Buffers for the largest image, and for a sound.
    pub compute: u64,
}

impl ProjectorBytes {
    /// Weights and compute buffers together.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.compute)
    }
}

/// The memory that a projector will take, known before it is loaded.
#[derive(Debug, Clone)]
pub struct MediaMemory {
    /// The bytes on each device. A load with the same parameters allocates the same number of bytes.
    pub bytes: Vec<ProjectorBytes>,
    /// Maximum number of tokens of an image, if the projector accepts images of any size and its file states the
    /// number.
    pub image_max_tokens: Option<u32>,
    /// The number of rows of the largest image. If an image is computed in parts, the number of rows of the largest
    /// part. `None` without an encoder of images.
    pub image_rows: Option<u32>,
    /// Whether all rows of an image are computed at once. `n_ubatch` must then be at least the number of these rows.
    pub is_non_causal: bool,
}

/// The maximum number of rows in the shim's answer. There are at most two devices: the host and one other.
const MAX_DEVICES: usize = 16;

/// The shim's answer: the bytes on each device.
pub(super) struct Rows {
    rows: [raw::shim_media_row; MAX_DEVICES],
}

impl Rows {
    pub(super) const MAX: i32 = MAX_DEVICES as i32;

    pub(super) fn new() -> Self {
        let none = raw::shim_media_row { device: std::ptr::null_mut(), weights: 0, compute: 0 };
        Self { rows: [none; MAX_DEVICES] }
    }

    /// Room for [`MAX`](Self::MAX) rows.
    pub(super) fn as_mut_ptr(&mut self) -> *mut raw::shim_media_row {
        self.rows.as_mut_ptr()
    }

    /// The first `count` rows.
    pub(super) fn read(&self, count: i32) -> Vec<ProjectorBytes> {
        let count = usize::try_from(count).unwrap_or(0).min(self.rows.len());
        let read = |row: &raw::shim_media_row| {
            let device = Device::from_raw(row.device)?;
            Some(ProjectorBytes { device, weights: row.weights, compute: row.compute })
        };
        self.rows[..count].iter().filter_map(read).collect()
    }
}

impl MediaMemory {
    /// Asks llama.cpp (clip.cpp). llama.cpp reads the file's header, allocates nothing on a device, and plans the
    /// encoders' graphs for the largest image that they accept.
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::init`]; [`Error::Unreadable`], [`Error::InvalidParameter`], and
    /// [`Error::ProjectorLoad`] for a file that is not a projector.
    pub fn ask(path: impl AsRef<Path>, params: &ProjectorParams) -> Result<Self, Error> {
        let path = path.as_ref();
        let native = params.to_native()?;
        readable(path)?;
        let text = path_to_c(path)?;
        Backend::init()?;
        let _unchanged = registry::reading();
        let mut limits = raw::shim_media_limits { image_max_tokens: -1, image_rows: 0, is_non_causal: false };
        let mut rows = Rows::new();
        let counted = call::accepted(
            // SAFETY: the path is NUL-terminated, and there is room for `MAX` rows.
            |error| unsafe {
                raw::shim_media_memory(
                    text.as_ptr(),
                    &raw const native,
                    &raw mut limits,
                    rows.as_mut_ptr(),
                    Rows::MAX,
                    error,
                )
            },
            |rows| (1..=Rows::MAX).contains(rows),
        );
        let count =
            counted.map_err(|failure| Error::ProjectorLoad { path: path.to_owned(), failure: Box::new(failure) })?;
        Ok(Self {
            bytes: rows.read(count),
            image_max_tokens: u32::try_from(limits.image_max_tokens).ok(),
            image_rows: u32::try_from(limits.image_rows).ok().filter(|rows| *rows > 0),
            is_non_causal: limits.is_non_causal,
        })
    }
}
