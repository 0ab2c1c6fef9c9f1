//! A picture: from the bytes of a file to its pixels.

mod decode;
mod format;
mod jpeg;
mod pixels;
mod webp;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::{Error, ImageLimits, MediaHash};

/// A decoded picture. Each pixel has 8 bits of red, of green and of blue. Pixels are stored row by row, from the top
/// left.
///
/// Clones share the pixels. Two pictures are equal if they have the same size and the same pixels.
#[derive(Clone)]
pub struct Image(Arc<Pixels>);

struct Pixels {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
    hash: OnceLock<MediaHash>,
}

impl Image {
    /// Decodes a PNG, JPEG, WebP, GIF or BMP file within the default [`ImageLimits`].
    ///
    /// The format is recognised by the file's first bytes, not by its name.
    ///
    /// # Errors
    /// An error if the file cannot be read, has none of these formats, is damaged, or exceeds a limit.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_within(path, &ImageLimits::default())
    }

    /// As [`Image::open`], but within `limits`.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn open_within(path: impl AsRef<Path>, limits: &ImageLimits) -> Result<Self, Error> {
        let name = path.as_ref().display().to_string();
        let io = |source| Error::Io { name: name.clone(), source };
        let mut bytes = Vec::new();
        // Reads one byte more than is allowed. So it is noticed if the file grows meanwhile.
        let file = File::open(&path).map_err(io)?;
        file.take(limits.bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
        decode::decode(&name, &bytes, limits)
    }

    /// Decodes the bytes of a file within the default [`ImageLimits`].
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_bytes_within(bytes, &ImageLimits::default())
    }

    /// As [`Image::from_bytes`], but within `limits`.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn from_bytes_within(bytes: &[u8], limits: &ImageLimits) -> Result<Self, Error> {
        decode::decode(NAME, bytes, limits)
    }

    /// Makes a picture from pixels that the application has decoded: `width` x `height` x 3 bytes, row by row from the
    /// top left.
    ///
    /// ```
    /// let red = autoplace_media::Image::from_rgb(2, 1, vec![255, 0, 0, 255, 0, 0])?;
    /// assert_eq!((red.width(), red.height()), (2, 1));
    /// # Ok::<(), autoplace_media::Error>(())
    /// ```
    ///
    /// # Errors
    /// An error if there are no pixels, or if `rgb` has the wrong number of bytes.
    pub fn from_rgb(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self, Error> {
        let needed = u128::from(width) * u128::from(height) * 3;
        if needed == 0 || rgb.len() as u128 != needed {
            let problem = format!("{width} x {height} pixels are {needed} bytes; there are {}", rgb.len());
            return Err(Error::Values { name: NAME, problem });
        }
        Ok(Self::of_pixels(width, height, rgb))
    }

    fn of_pixels(width: u32, height: u32, rgb: Vec<u8>) -> Self {
        Self(Arc::new(Pixels { width, height, rgb, hash: OnceLock::new() }))
    }

    /// Pixels in a row.
    pub fn width(&self) -> u32 {
        self.0.width
    }

    /// Rows of pixels.
    pub fn height(&self) -> u32 {
        self.0.height
    }

    /// The pixels: for each its red, green and blue, row by row from the top left.
    pub fn rgb(&self) -> &[u8] {
        &self.0.rgb
    }

    /// The hash of the size and the pixels. It is computed once for all clones.
    pub fn hash(&self) -> MediaHash {
        *self.0.hash.get_or_init(|| {
            let size = [self.width().to_le_bytes(), self.height().to_le_bytes()].concat();
            MediaHash::new("image", [size.as_slice(), self.rgb()])
        })
    }
}

/// The name, in errors, of a picture that is not a file.
const NAME: &str = "image";

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.width(), self.height(), self.rgb()) == (other.width(), other.height(), other.rgb())
    }
}

impl Eq for Image {}

/// The size, without the pixels.
impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} x {})", self.width(), self.height())
    }
}
