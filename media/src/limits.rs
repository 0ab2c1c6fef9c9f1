//! Limits of decoding: bytes, memory and time.

use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Limits of decoding a picture. A picture that exceeds one is an error. All limits but the time are checked before the
/// pixels are decoded.
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
    /// Bytes of the file; by default 64 MiB.
    pub bytes: u64,
    /// Width times height, of the canvas and of the first frame; by default 2^26, which is 8192 x 8192.
    pub pixels: u64,
    /// Bytes of heap that the decoder and the pixels take together at their peak, beside the bytes of the file; by
    /// default 1 GiB. The need is computed before the pixels are decoded: 16 MiB, twice the bytes of the file for its
    /// metadata, and for each pixel 8 bytes in a BMP file, 12 in PNG and GIF, 16 in JPEG, and 24 in WebP. The decoded
    /// picture keeps 3 bytes for each pixel.
    pub memory: u64,
    /// Time for decoding; by default 20 seconds. The clock is read after every 4 KiB of the file. Between two readings
    /// a decoder makes at most one pass over the pixels.
    pub time: Duration,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { bytes: 64 * MIB, pixels: 1 << 26, memory: 1024 * MIB, time: Duration::from_secs(20) }
    }
}

/// Limits of decoding a sound. A sound that exceeds one is an error, as soon as its header or its samples show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoundLimits {
    /// Bytes of the file; by default 512 MiB. A file is not held in memory.
    pub bytes: u64,
    /// Seconds of the sound; by default 1800. Each sample takes 4 bytes, so a sound takes at most `seconds` x 48,000 x
    /// 4 bytes: by default 330 MiB. If the file does not state its length, decoding takes three times as much for a
    /// moment.
    pub seconds: u32,
    /// Channels; by default 16. They are mixed to one.
    pub channels: u32,
    /// The lowest sample rate in Hz; by default 4,000.
    pub min_rate: u32,
    /// The highest sample rate in Hz; by default 384,000. Rates above 48,000 Hz are reduced to 48,000 while the file is
    /// decoded.
    pub max_rate: u32,
    /// Time for decoding; by default 60 seconds. The clock is read for each packet, and after every 4 KiB of the file.
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
