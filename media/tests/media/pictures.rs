//! Writes pictures.

use image::codecs::gif::GifEncoder;
use image::codecs::png::PngEncoder;
use image::codecs::webp::WebPEncoder;
use image::{DynamicImage, Frame, ImageEncoder, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};

/// A picture as a file of this format.
pub(crate) fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    image.write_to(&mut file, format).unwrap();
    file.into_inner()
}

/// A GIF file with a coarser palette than that of [`encoded`], which is slow without optimisation.
pub(crate) fn quick_gif(image: &DynamicImage) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = GifEncoder::new_with_speed(&mut file, 30);
    encoder.encode_frame(Frame::new(image.to_rgba8())).unwrap();
    drop(encoder);
    file
}

/// A picture of many colours.
pub(crate) fn colourful(width: u32, height: u32) -> DynamicImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([(x * 7) as u8, (y * 11) as u8, (x * y) as u8])).into()
}

/// A picture of many colours. It is transparent on the left, and becomes opaque to the right.
pub(crate) fn translucent(width: u32, height: u32) -> DynamicImage {
    RgbaImage::from_fn(width, height, |x, y| Rgba([(x * 7) as u8, (y * 11) as u8, 90, (x * 255 / width) as u8])).into()
}

/// EXIF data with this orientation.
fn exif(orientation: u8) -> Vec<u8> {
    let mut tiff = b"II*\0\x08\0\0\0\x01\0".to_vec();
    tiff.extend([0x12, 0x01, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0]);
    tiff.extend([0; 4]);
    tiff
}

pub(crate) fn png_with_orientation(image: &RgbImage, orientation: u8) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = PngEncoder::new(&mut file);
    encoder.set_exif_metadata(exif(orientation)).unwrap();
    image.write_with_encoder(encoder).unwrap();
    file
}

pub(crate) fn webp_with_orientation(image: &RgbImage, orientation: u8) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = WebPEncoder::new_lossless(&mut file);
    encoder.set_exif_metadata(exif(orientation)).unwrap();
    image.write_with_encoder(encoder).unwrap();
    file
}

/// A JPEG file with an EXIF segment after its first marker.
pub(crate) fn jpeg_with_orientation(image: &RgbImage, orientation: u8) -> Vec<u8> {
    let mut file = encoded(&image.clone().into(), ImageFormat::Jpeg);
    let data = [b"Exif\0\0".as_slice(), &exif(orientation)].concat();
    let length = u16::try_from(data.len() + 2).unwrap().to_be_bytes();
    file.splice(2..2, [&[0xff, 0xe1], length.as_slice(), &data].concat());
    file
}

/// The parts of a PNG file. Each row begins with its filter, which is 0.
pub(crate) struct Png<'a> {
    pub(crate) size: (u32, u32),
    pub(crate) bits: u8,
    pub(crate) colour: u8,
    pub(crate) palette: &'a [u8],
    pub(crate) transparent: &'a [u8],
    pub(crate) rows: &'a [u8],
}

impl Png<'_> {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut header = [self.size.0.to_be_bytes(), self.size.1.to_be_bytes()].concat();
        header.extend([self.bits, self.colour, 0, 0, 0]);
        chunk(&mut file, b"IHDR", &header);
        if !self.palette.is_empty() {
            chunk(&mut file, b"PLTE", self.palette);
        }
        if !self.transparent.is_empty() {
            chunk(&mut file, b"tRNS", self.transparent);
        }
        chunk(&mut file, b"IDAT", &stored(self.rows));
        chunk(&mut file, b"IEND", &[]);
        file
    }
}

fn chunk(file: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    file.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    let body = [name, data].concat();
    file.extend(&body);
    file.extend(crc32(&body).to_be_bytes());
}

/// Wraps data in a zlib stream of one uncompressed block.
fn stored(data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    let mut stream = vec![0x78, 0x01, 0x01];
    stream.extend(length.to_le_bytes());
    stream.extend((!length).to_le_bytes());
    stream.extend(data);
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in data {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    stream.extend((b << 16 | a).to_be_bytes());
    stream
}

fn crc32(data: &[u8]) -> u32 {
    let crc = data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    });
    !crc
}

/// A RIFF file of these chunks.
pub(crate) fn riff(kind: &[u8; 4], chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let mut body = kind.to_vec();
    for (name, data) in chunks {
        body.extend(*name);
        body.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        body.extend(*data);
        body.extend(vec![0; data.len() % 2]);
    }
    [b"RIFF".as_slice(), &u32::try_from(body.len()).unwrap().to_le_bytes(), &body].concat()
}
