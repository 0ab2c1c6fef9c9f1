//! A file that exceeds a limit is refused, and decoding takes no more memory than is stated.

use std::time::Duration;

use autoplace_media::{Error, Image, ImageLimits, Sound, SoundLimits};
use image::{DynamicImage, ImageFormat, Rgba};
use test_support::counting::peak;

use crate::jpeg::FlatJpeg;
use crate::pictures::{colourful, encoded, quick_gif, translucent};
use crate::tones::{Wav, sine};

/// For each format, the file that takes most memory per pixel, and the bytes that [`ImageLimits::memory`] counts for
/// it.
fn greedy() -> [(&'static str, u64, Vec<u8>); 6] {
    const SIDE: u32 = 400;
    let wide = image::ImageBuffer::<Rgba<u16>, _>::from_pixel(SIDE, SIDE, Rgba([1, 2, 3, 4]));
    let four = |is_progressive| {
        FlatJpeg { size: (SIDE as u16, SIDE as u16), values: &[9, 8, 7, 6], is_progressive, adobe: None }.encoded()
    };
    let clear = translucent(SIDE, SIDE);
    [
        ("PNG", 12, encoded(&DynamicImage::from(wide), ImageFormat::Png)),
        ("JPEG", 16, four(false)),
        ("progressive JPEG", 16, four(true)),
        ("WebP", 24, encoded(&clear, ImageFormat::WebP)),
        ("GIF", 12, quick_gif(&clear)),
        ("BMP", 8, encoded(&clear, ImageFormat::Bmp)),
    ]
}

#[test]
fn no_format_takes_more_memory_than_the_limit_counts() {
    for (name, each, file) in greedy() {
        let pixels = 400 * 400;
        let (image, held) = peak(|| Image::from_bytes(&file).unwrap());
        println!("{name}: {:.1} bytes for each pixel", held as f64 / pixels as f64);
        assert_eq!(image.rgb().len(), pixels * 3);
        // There are buffers whose size does not depend on the picture. They take less than 1 MiB.
        assert!(held as u64 <= each * pixels as u64 + 2 * file.len() as u64 + (1 << 20), "{name}: {held} bytes");
    }
}

#[test]
fn a_picture_beyond_a_limit_is_refused_with_what_it_needs() {
    for (name, each, file) in greedy() {
        let with = |change: &dyn Fn(&mut ImageLimits)| {
            let mut limits = ImageLimits::default();
            change(&mut limits);
            Image::from_bytes_within(&file, &limits).unwrap_err().to_string()
        };
        assert_eq!(
            with(&|limits| limits.pixels = 159_999),
            "image: 160000 pixels, but at most 159999 are allowed",
            "{name}"
        );
        let needed = (16 << 20) + 2 * file.len() as u64 + each * 160_000;
        let says = format!("image: {needed} bytes of memory, but at most {} are allowed", needed - 1);
        assert_eq!(with(&|limits| limits.memory = needed - 1), says, "{name}");
        let says = format!("image: {} bytes, but at most 99 are allowed", file.len());
        assert_eq!(with(&|limits| limits.bytes = 99), says, "{name}");
        assert_eq!(
            with(&|limits| limits.time = Duration::ZERO),
            "image: decoding was stopped: it took longer than 0ns",
            "{name}"
        );
    }
}

#[test]
fn a_file_is_read_up_to_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.bmp");
    std::fs::write(&path, encoded(&colourful(300, 300), ImageFormat::Bmp)).unwrap();
    let mut limits = ImageLimits::default();
    limits.bytes = 1000;
    let (result, held) = peak(|| Image::open_within(&path, &limits));
    let error = result.unwrap_err().to_string();
    assert!(error.ends_with("large.bmp: 1001 bytes, but at most 1000 are allowed"), "{error}");
    assert!(held < 10_000, "{held}");
}

#[test]
fn a_sound_beyond_a_limit_is_refused_with_what_it_needs() {
    let wav = |rate, channels, seconds: u32| {
        Wav { rate, channels, samples: &vec![0.1; (rate * u32::from(channels) * seconds) as usize] }.pcm16()
    };
    let with = |file: &[u8], change: fn(&mut SoundLimits)| {
        let mut limits = SoundLimits::default();
        change(&mut limits);
        Sound::from_bytes_within(file, &limits).unwrap_err().to_string()
    };
    let three = wav(8_000, 2, 3);
    assert_eq!(with(&three, |limits| limits.seconds = 2), "sound: 3 seconds, but at most 2 are allowed");
    assert_eq!(with(&three, |limits| limits.channels = 1), "sound: 2 channels, but at most 1 are allowed");
    assert_eq!(with(&three, |limits| limits.max_rate = 7_999), "sound: 8000 Hz, but at most 7999 are allowed");
    assert_eq!(with(&three, |limits| limits.min_rate = 8_001), "sound: 8000 Hz, but at least 8001 are needed");
    assert_eq!(with(&three, |limits| limits.bytes = 9), "sound: 96044 bytes, but at most 9 are allowed");
    assert_eq!(
        with(&three, |limits| limits.time = Duration::ZERO),
        "sound: decoding was stopped: it took longer than 0ns"
    );
    for file in [crate::tones::MP3, crate::tones::OGG] {
        let error = with(file, |limits| limits.seconds = 0);
        assert_eq!(error, "sound: 1 seconds, but at most 0 are allowed");
    }
    assert!(matches!(Sound::from_bytes(&wav(3_999, 1, 1)), Err(Error::TooSmall { .. })));
}

#[test]
fn a_sound_takes_four_bytes_for_each_kept_sample() {
    let samples = sine(96_000, 440.0, 2.0);
    let file = Wav { rate: 96_000, channels: 1, samples: &samples }.pcm16();
    let (sound, held) = peak(|| Sound::from_bytes(&file).unwrap());
    assert_eq!((sound.rate(), sound.samples().len()), (48_000, 96_000));
    println!("{held} bytes of heap");
    // While a vector grows, it takes up to three times the bytes of its contents. The filter has 512 x 256 values.
    assert!(held <= 3 * 4 * 96_000 + (2 << 20), "{held}");
}
