//! Limits for decoding: bytes, memory and time.

use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Limits for decoding a picture. If a picture exceeds one of them, that is an error. All limits but the time are
/// checked before the pixels are decoded.
///
/// ```
/// use autoplace_media::{Image, ImageLimits};
///
/// let mut limits = ImageLimits::default();
/// limits.pixels = 100;
/// let bytes = b"BM"; // no picture at all
/// assert!(Image::from_bytes_within(bytes, &limits).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageLimits {
    /// Maximum bytes of the file; by default 64 MiB.
    pub bytes: u64,
    /// Maximum of width times height, both for the canvas and for the first frame; by default 2^26, which is 8192 x
    /// 8192.
    pub pixels: u64,
    /// Maximum bytes of heap that the decoder and the pixels take at the same time, in addition to the bytes of the
    /// file; by default 1 GiB. The bytes are computed before the pixels are decoded: 16 MiB, twice the bytes of the
    /// file for its metadata, and for each pixel 8 bytes in a BMP file, 12 in PNG and GIF, 16 in JPEG, and 24 in WebP.
    /// The decoded picture keeps 3 bytes for each pixel.
    pub memory: u64,
    /// Maximum time for decoding; by default 20 seconds. The clock is read after every 4 KiB of the file. Between two
    /// readings a decoder makes at most one pass over the pixels.
    pub time: Duration,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { bytes: 64 * MIB, pixels: 1 << 26, memory: 1024 * MIB, time: Duration::from_secs(20) }
    }
}

/// Limits for decoding a sound. If a sound exceeds one of them, that is an error, as soon as its header or its samples
/// show this.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoundLimits {
    /// Maximum bytes of the file; by default 512 MiB. The file is never in memory as a whole.
    pub bytes: u64,
    /// Maximum length of the sound in seconds; by default 1800. Each sample takes 4 bytes, so a sound takes at most
    /// `seconds` x 48,000 x 4 bytes: by default 330 MiB. If the file does not state its length, decoding needs three
    /// times as much for a moment.
    pub seconds: u32,
    /// Maximum number of channels; by default 16. They are mixed down to one.
    pub channels: u32,
    /// The minimum sample rate in Hz; by default 4,000.
    pub min_rate: u32,
    /// The maximum sample rate in Hz; by default 384,000. A rate above 48,000 Hz is reduced to 48,000 while the file is
    /// decoded.
    pub max_rate: u32,
    /// Maximum time for decoding; by default 60 seconds. The clock is read at each packet, and after every 4 KiB of the
    /// file.
    pub time: Duration,
}

impl Default for SoundLimits {
    fn default() -> Self {
        Self {
            bytes: 512 * MIB,
            seconds: 1800,
            channels: 16,
            min_rate: 4_000,
            max_rate: 384_000,
            time: Duration::from_secs(60),
        }
    }
}
