//! Small files that announce large contents: each is an error, and takes little memory.

use autoplace_media::{Image, Sound, SoundLimits};
use image::codecs::gif::GifEncoder;
use image::{Frame, Rgba, RgbaImage};
use test_support::counting::peak;

use crate::jpeg::FlatJpeg;
use crate::pictures::{Png, riff};
use crate::tones::{FlatFlac, Wav};

/// Maximum bytes of heap for a file that is refused. The decoders have buffers whose size does not depend on a header.
const REFUSED: usize = 4 << 20;

/// Gives a chunk another length, and leaves the file as short as it is.
pub(crate) fn shortened(mut file: Vec<u8>, name: &[u8; 4], length: u32) -> Vec<u8> {
    let at = file.windows(4).position(|four| four == name).unwrap() + 4;
    file[at..at + 4].copy_from_slice(&length.to_le_bytes());
    file
}

fn bmp(width: i32, height: i32, bits: u16, colours: u32) -> Vec<u8> {
    let mut file = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    file.extend([width.to_le_bytes(), height.to_le_bytes()].concat());
    file.extend([1_u16.to_le_bytes(), bits.to_le_bytes()].concat());
    file.extend([0; 16]);
    file.extend(colours.to_le_bytes());
    file.extend([0; 20]);
    file
}

/// A canvas of one pixel, with a frame whose sides have the maximum length.
fn gif_of_a_large_frame() -> Vec<u8> {
    let mut file = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff".to_vec();
    file.extend(b"\x2c\0\0\0\0\xff\xff\xff\xff\0\x02\x02\x44\x01\0\x3b");
    file
}

/// A canvas of one pixel, with a frame whose sides have the maximum length.
fn webp_of_a_large_frame() -> Vec<u8> {
    let canvas = [0; 10];
    let frame = [0x10, 0, 0, 0x9d, 0x01, 0x2a, 0xff, 0x3f, 0xff, 0x3f, 0, 0];
    riff(b"WEBP", &[(b"VP8X", &canvas), (b"VP8 ", &frame)])
}

/// A picture whose header says that its metadata have 4 GiB.
fn webp_of_long_metadata() -> Vec<u8> {
    let canvas = [0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let frame = [0x10, 0, 0, 0x9d, 0x01, 0x2a, 1, 0, 1, 0, 0, 0];
    let file = riff(b"WEBP", &[(b"VP8X", &canvas), (b"VP8 ", &frame), (b"EXIF", b"II*\0")]);
    shortened(file, b"EXIF", u32::MAX - 9)
}

#[test]
fn pictures_that_announce_much_are_refused_within_little_memory() {
    let side = 0x7fff_ffff;
    let png = |colour, palette| Png { size: (side, side), bits: 8, colour, palette, transparent: &[], rows: &[0, 0] };
    let bombs = [
        ("dimensions of PNG", png(6, &[]).encoded(), "but at most"),
        ("dimensions and a palette of PNG", png(3, &[1, 2, 3]).encoded(), "but at most"),
        ("dimensions of JPEG", jpeg_of_dimensions(), "but at most"),
        ("dimensions of BMP", bmp(65_535, 65_535, 24, 0), "but at most"),
        ("a palette of BMP", bmp(1, 1, 8, u32::MAX), "damaged BMP"),
        ("a frame of GIF", gif_of_a_large_frame(), "a frame, a row or metadata of more bytes than the limits allow"),
        ("a frame of WebP", webp_of_a_large_frame(), "a frame of 16383 x 16383 pixels in 1 x 1"),
        ("metadata of WebP", webp_of_long_metadata(), "reaches beyond byte"),
    ];
    for (name, file, says) in bombs {
        let (result, held) = peak(|| Image::from_bytes(&file));
        let error = result.unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
        assert!(held <= REFUSED, "{name}: {held} bytes of heap for a file of {}", file.len());
    }
}

/// A small picture whose header states longer sides.
fn jpeg_of_dimensions() -> Vec<u8> {
    let mut file = FlatJpeg { size: (8, 8), values: &[1, 2, 3], is_progressive: true, adobe: None }.encoded();
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    file[frame + 5..frame + 9].fill(0xff);
    file
}

#[test]
fn of_an_animation_of_a_thousand_frames_one_is_decoded() {
    let mut gif = Vec::new();
    let mut encoder = GifEncoder::new(&mut gif);
    let frame = Frame::new(RgbaImage::from_pixel(32, 32, Rgba([1, 2, 3, 255])));
    encoder.encode_frames(std::iter::repeat_n(frame, 1000)).unwrap();
    drop(encoder);
    let (image, held) = peak(|| Image::from_bytes(&gif).unwrap());
    assert_eq!(image.width(), 32);
    assert!(held <= 1 << 20, "{held}");
}

#[test]
fn sounds_that_announce_much_are_refused_within_little_memory() {
    let wav = |rate, channels| Wav { rate, channels, samples: &[0.0; 64] }.pcm16();
    let bombs = [
        ("a rate of 0", wav(0, 1), "sound: "),
        ("a rate of 1", wav(1, 1), "sound: 1 Hz, but at least 4000 are needed"),
        ("a high rate", wav(u32::MAX, 1), "sound: 4294967295 Hz, but at most 384000 are allowed"),
        ("many channels", wav(8_000, 16_383), "sound: "),
        ("a long chunk", shortened(wav(8_000, 1), b"data", 0x7ffe_0000), "sound: "),
        ("a long header", shortened(wav(8_000, 1), b"fmt ", 0x7fff_fff0), "sound: "),
        ("no channel", wav(8_000, 0), "sound: "),
    ];
    for (name, file, says) in bombs {
        let (result, held) = peak(|| Sound::from_bytes(&file));
        let error = result.unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
        assert!(held <= REFUSED, "{name}: {held} bytes of heap for a file of {}", file.len());
    }
}

#[test]
fn a_sound_that_is_long_in_few_bytes_ends_at_its_limit() {
    // Each frame of some ten bytes has 65,535 samples. The header does not state the number of samples.
    let flac = FlatFlac { rate: 8_000, value: 1, samples_per_frame: 65_535, frames: 200, samples: 0 }.encoded();
    assert!(flac.len() < 4000);
    let mut limits = SoundLimits::default();
    limits.seconds = 20;
    let (result, held) = peak(|| Sound::from_bytes_within(&flac, &limits));
    let error = result.unwrap_err().to_string();
    assert_eq!(error, "sound: 25 seconds, but at most 20 are allowed");
    assert!(held <= 8 << 20, "{held}");
}
