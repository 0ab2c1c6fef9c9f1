//! JPEG, with the decoder that the crate `image` uses too. Here, the decoder's reader has a time limit, because a
//! progressive file with many scans can take very long.

use image::RgbImage;
use image::metadata::Orientation;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::decode::{Input, orientation};
use crate::Error;

/// Decodes grey, YCbCr, RGB, CMYK and YCCK. CMYK is converted to RGB as other programs do it without a colour profile:
/// Adobe's inks are inverted, and each is multiplied by black.
pub(super) fn decode(input: &Input<'_>) -> Result<(RgbImage, Orientation), Error> {
    let refused = |error| refused(input, &error);
    // Many cameras and editors write files that break some rule. Like other programs, this decoder accepts them.
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(input.reader(), options);
    decoder.decode_headers().map_err(refused)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| input.damaged("there is no frame header"))?;
    let (width, height) = (side(input, width)?, side(input, height)?);
    input.allow(width, height)?;
    if !has_end(input.bytes) {
        return Err(input.damaged("the file ends before the image does"));
    }
    let needed = decoder.output_buffer_size().ok_or_else(|| input.damaged("there is no frame header"))?;
    let mut rgb = vec![0; needed];
    decoder.decode_into(&mut rgb).map_err(refused)?;
    let exif = decoder.exif().map(|exif| orientation(exif)).unwrap_or(Orientation::NoTransforms);
    let image = RgbImage::from_raw(width, height, rgb);
    Ok((image.ok_or_else(|| input.damaged(format!("{width} x {height} pixels are not {needed} bytes")))?, exif))
}

fn side(input: &Input<'_>, pixels: usize) -> Result<u32, Error> {
    u32::try_from(pixels).map_err(|_| input.damaged(format!("a side of {pixels} pixels")))
}

/// Whether the end marker follows the first scan. If a file was cut off, the decoder fills the missing part with grey.
fn has_end(bytes: &[u8]) -> bool {
    // There are bytes between the segments. The decoder decides about such a file.
    let Some(scan) = first_scan(bytes) else {
        return true;
    };
    bytes[scan..].windows(2).any(|pair| pair == [0xff, 0xd9])
}

/// The offset after the first start-of-scan marker. The segments before this marker may contain a thumbnail, which has
/// an end marker too.
fn first_scan(bytes: &[u8]) -> Option<usize> {
    let mut at = 2;
    loop {
        while bytes.get(at..at + 2)? == [0xff, 0xff] {
            at += 1;
        }
        let &[0xff, marker, high, low] = bytes.get(at..at + 4)? else {
            return None;
        };
        if marker == 0xda {
            return Some(at + 2);
        }
        at += 2 + usize::from(u16::from_be_bytes([high, low]));
    }
}

fn refused(input: &Input<'_>, error: &DecodeErrors) -> Error {
    match error {
        DecodeErrors::Unsupported(feature) => input.unsupported(format!("{feature:?}")),
        error => input.damaged(format!("{error:?}")),
    }
}
