//! The format of a picture, recognised by its first bytes.

use image::ImageFormat;

use crate::Error;

/// A format that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Bmp,
    Gif,
    Jpeg,
    Png,
    WebP,
}

const FORMATS: &str = "a PNG, JPEG, WebP, GIF or BMP file";

impl Format {
    /// The format of a file, or an error that says what kind of file it is.
    pub(super) fn detect(name: &str, bytes: &[u8]) -> Result<Self, Error> {
        let found = match image::guess_format(bytes) {
            Ok(ImageFormat::Bmp) => return Ok(Self::Bmp),
            Ok(ImageFormat::Gif) => return Ok(Self::Gif),
            Ok(ImageFormat::Jpeg) => return Ok(Self::Jpeg),
            Ok(ImageFormat::Png) => return Ok(Self::Png),
            Ok(ImageFormat::WebP) => return Ok(Self::WebP),
            Ok(other) => format!("it is {other:?}"),
            Err(_) => other_format(bytes),
        };
        Err(Error::Format { name: name.to_owned(), needed: FORMATS, found })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bmp => "BMP",
            Self::Gif => "GIF",
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        }
    }

    /// Maximum bytes of heap per pixel for a decoder and the conversion to RGB.
    pub(super) fn bytes_per_pixel(self) -> u64 {
        match self {
            // At most 4 for the decoder, and 3 for the picture.
            Self::Bmp => 8,
            // 4 for the canvas, and 4 for the frame or 3 for the picture.
            Self::Gif => 12,
            // 4 channels of 16 bits, and 3 for the picture.
            Self::Png => 12,
            // 2 bytes for each coefficient of at most 4 components, 3 for the picture, and 3 for its rotated copy.
            Self::Jpeg => 16,
            // 4 for an animation's canvas, 4 for its frame and 4 for a copy. The rest is for the planes and the alpha
            // channel of the frame.
            Self::WebP => 24,
        }
    }
}

/// The name of a format that this crate does not decode.
fn other_format(bytes: &[u8]) -> String {
    let brand = bytes.get(8..12).filter(|_| bytes.get(4..8) == Some(b"ftyp"));
    match (brand, bytes) {
        (Some(b"heic" | b"heix" | b"hevc" | b"mif1" | b"msf1"), _) => {
            "it is HEIC, the format of Apple's cameras: convert it to JPEG".to_owned()
        }
        (Some(b"avif" | b"avis"), _) => "it is AVIF: convert it to PNG or JPEG".to_owned(),
        (Some(_), _) => "it is a video or a sound".to_owned(),
        (_, [0xff, 0x0a, ..] | [0, 0, 0, 0x0c, b'J', b'X', b'L', b' ', ..]) => "it is JPEG XL".to_owned(),
        (_, [b'%', b'P', b'D', b'F', ..]) => "it is PDF".to_owned(),
        (_, [b'<', ..]) => "it is a text, such as SVG or HTML".to_owned(),
        (_, []) => "it is empty".to_owned(),
        _ => format!("it begins with {}", first(bytes)),
    }
}

/// The first bytes of a file, for a message.
pub(crate) fn first(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes[..bytes.len().min(8)].escape_ascii())
}
