//! From the bytes of a file to pixels, within limits.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use super::format::Format;
use super::{Image, jpeg, pixels, webp};
use crate::timed::{Deadline, Timed};
use crate::{Error, ImageLimits};

/// Bytes of memory that a decoder needs in addition to the pixels: buffers of rows, and metadata.
const BESIDE_PIXELS: u64 = 16 << 20;

/// The file, and the limits of its decoding.
pub(super) struct Input<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: &'a [u8],
    pub(super) format: Format,
    pub(super) limits: &'a ImageLimits,
    pub(super) deadline: Deadline,
}

/// Decodes a picture: its first frame, upright, over white.
pub(super) fn decode(name: &str, bytes: &[u8], limits: &ImageLimits) -> Result<Image, Error> {
    let deadline = Deadline::after(limits.time);
    if bytes.len() as u64 > limits.bytes {
        return Err(too_large(name, bytes.len() as u64, "bytes", limits.bytes));
    }
    let input = Input { name, bytes, format: Format::detect(name, bytes)?, limits, deadline };
    input.allow_memory(0)?;
    let decoded = catch_unwind(AssertUnwindSafe(|| input.decode()));
    // The time is checked first, because a decoder whose reader has ended early reports a damaged file.
    input.deadline.check(name)?;
    // If a decoder panics, that is an error of the file and not of the application.
    decoded.unwrap_or_else(|_| Err(input.damaged("the decoder panicked")))
}

impl<'a> Input<'a> {
    fn decode(&self) -> Result<Image, Error> {
        let (image, orientation) = match self.format {
            Format::Jpeg => jpeg::decode(self)?,
            Format::WebP => {
                webp::check(self)?;
                self.by_image(ImageFormat::WebP)?
            }
            Format::Png => {
                // The size is checked first, because the decoder's own limit counts bytes of rows.
                if let Some(size) = self.bytes.get(16..24).and_then(|size| size.as_chunks::<4>().0.try_into().ok()) {
                    let [width, height]: [[u8; 4]; 2] = size;
                    self.allow(u32::from_be_bytes(width), u32::from_be_bytes(height))?;
                }
                self.by_image(ImageFormat::Png)?
            }
            Format::Gif => self.by_image(ImageFormat::Gif)?,
            Format::Bmp => self.by_image(ImageFormat::Bmp)?,
        };
        let mut upright = DynamicImage::ImageRgb8(image);
        upright.apply_orientation(orientation);
        let upright = upright.into_rgb8();
        Ok(Image::of_pixels(upright.width(), upright.height(), upright.into_raw()))
    }

    /// Decodes with the crate `image`.
    fn by_image(&self, format: ImageFormat) -> Result<(image::RgbImage, Orientation), Error> {
        let mut reader = ImageReader::with_format(self.reader(), format);
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(BESIDE_PIXELS);
        reader.limits(limits.clone());
        let mut decoder = reader.into_decoder().map_err(|error| self.refused(&error))?;
        let (width, height) = decoder.dimensions();
        self.allow(width, height)?;
        // A frame of a GIF may be larger than the canvas, so the decoder gets a separate limit.
        limits.max_alloc = Some(self.limits.pixels.saturating_mul(4).min(self.limits.memory / 2));
        decoder.set_limits(limits).map_err(|error| self.refused(&error))?;
        // A picture whose metadata are broken can still be read.
        let exif = decoder.exif_metadata().ok().flatten();
        let orientation = exif.as_deref().map_or(Orientation::NoTransforms, orientation);
        let decoded = DynamicImage::from_decoder(decoder).map_err(|error| self.refused(&error))?;
        Ok((pixels::over_white(decoded), orientation))
    }

    /// A reader of the file. When the time is up, it reports the end of the file.
    pub(super) fn reader(&self) -> Timed<Cursor<&'a [u8]>> {
        Timed::new(Cursor::new(self.bytes), self.bytes.len() as u64, &self.deadline)
    }

    /// Fails unless a picture of this size is within the limits.
    pub(super) fn allow(&self, width: u32, height: u32) -> Result<(), Error> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(self.damaged(format!("{width} x {height} pixels")));
        }
        if pixels > self.limits.pixels {
            return Err(too_large(self.name, pixels, "pixels", self.limits.pixels));
        }
        self.allow_memory(pixels)
    }

    /// Fails if the pixels, the metadata and the decoder's buffers together need too much memory.
    fn allow_memory(&self, pixels: u64) -> Result<(), Error> {
        let metadata = 2 * self.bytes.len() as u64;
        let memory = BESIDE_PIXELS + metadata + pixels.saturating_mul(self.format.bytes_per_pixel());
        if memory > self.limits.memory {
            return Err(too_large(self.name, memory, "bytes of memory", self.limits.memory));
        }
        Ok(())
    }

    pub(super) fn damaged(&self, problem: impl ToString) -> Error {
        Error::Damaged { name: self.name.to_owned(), format: self.format.name(), problem: problem.to_string() }
    }

    pub(super) fn unsupported(&self, feature: impl ToString) -> Error {
        Error::Unsupported { name: self.name.to_owned(), format: self.format.name(), feature: feature.to_string() }
    }

    fn refused(&self, error: &ImageError) -> Error {
        match error {
            ImageError::Unsupported(error) => self.unsupported(error),
            ImageError::Limits(_) => self.unsupported("a frame, a row or metadata of more bytes than the limits allow"),
            ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.damaged("the file ends before the image does")
            }
            error => self.damaged(error),
        }
    }
}

/// The orientation in EXIF data. Some WebP files begin the data with the prefix of JPEG files.
pub(super) fn orientation(exif: &[u8]) -> Orientation {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
}

fn too_large(name: &str, needed: u64, unit: &'static str, limit: u64) -> Error {
    Error::TooLarge { name: name.to_owned(), needed, unit, limit }
}
