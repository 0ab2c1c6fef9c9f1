//! Damaged files. Decoding returns pixels or samples, or an error, and takes no more memory than is stated.

use std::sync::LazyLock;

use autoplace_media::{Error, Image, ImageLimits, Sound, SoundLimits};
use image::codecs::gif::GifEncoder;
use image::{Frame, ImageFormat, Rgba, RgbaImage};
use proptest::prelude::*;
use proptest::sample::Index;
use test_support::counting::{Work, work};

use crate::jpeg::FlatJpeg;
use crate::pictures::{Png, colourful, encoded, png_with_orientation, translucent, webp_with_orientation};
use crate::tones::{FlatFlac, MP3, OGG, Wav, sine};

static PICTURES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let (solid, clear) = (colourful(24, 17), translucent(24, 17));
    let wide = image::DynamicImage::from(clear.to_rgba16());
    let progressive = FlatJpeg { size: (24, 17), values: &[9, 80, 200, 4], is_progressive: true, adobe: Some(2) };
    let mut files: Vec<Vec<u8>> = vec![
        encoded(&wide, ImageFormat::Png),
        png_with_orientation(&solid.to_rgb8(), 6),
        webp_with_orientation(&solid.to_rgb8(), 5),
        progressive.encoded(),
    ];
    files.extend([ImageFormat::Jpeg, ImageFormat::Bmp].map(|format| encoded(&solid, format)));
    files.extend([ImageFormat::Gif, ImageFormat::WebP, ImageFormat::Bmp].map(|format| encoded(&clear, format)));
    // Palettes, and an animation of twenty frames.
    let palette =
        Png { size: (3, 2), bits: 4, colour: 3, palette: &[1, 2, 3, 4, 5, 6], transparent: &[0], rows: &[0; 6] };
    files.extend([palette.encoded(), animation(20)]);
    files
});

/// An animated GIF of this many frames.
fn animation(frames: usize) -> Vec<u8> {
    let mut gif = Vec::new();
    let frame = Frame::new(RgbaImage::from_pixel(9, 7, Rgba([1, 2, 3, 255])));
    GifEncoder::new(&mut gif).encode_frames(std::iter::repeat_n(frame, frames)).unwrap();
    gif
}

static SOUNDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let samples = sine(8_000, 440.0, 0.05);
    let wav = Wav { rate: 8_000, channels: 2, samples: &samples };
    let flac = FlatFlac { rate: 16_000, value: -77, samples_per_frame: 192, frames: 3, samples: 576 };
    vec![wav.pcm8(), wav.pcm16(), wav.pcm24(), wav.float(), flac.encoded(), MP3.to_vec(), OGG.to_vec()]
});

/// One fault of a file: some bytes are replaced, in the first tenth of the file or anywhere.
type Damage = (Index, bool, (usize, Vec<u8>));

fn apply((at, is_early, (gone, put)): &Damage, bytes: &mut Vec<u8>) {
    if !bytes.is_empty() {
        let at = at.index(if *is_early { bytes.len().div_ceil(10) } else { bytes.len() });
        let end = at.saturating_add(*gone).min(bytes.len());
        bytes.splice(at..end, put.iter().copied());
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let number = || prop_oneof![Just(0), Just(u32::MAX), 0..70_000_u32];
    let change = prop_oneof![
        4 => any::<u8>().prop_map(|byte| (1, vec![byte])),
        2 => number().prop_map(|number| (4, number.to_le_bytes().to_vec())),
        2 => number().prop_map(|number| (4, number.to_be_bytes().to_vec())),
        1 => (1..40_usize).prop_map(|gone| (gone, Vec::new())),
        1 => prop::collection::vec(any::<u8>(), 1..20).prop_map(|put| (0, put)),
        1 => Just((usize::MAX, Vec::new())),
    ];
    (any::<Index>(), any::<bool>(), change)
}

/// The maximum memory, pixels and seconds in this test. They are low, so that no case takes long without optimisation.
const MEMORY: u64 = 32 << 20;
const PIXELS: u64 = 1 << 16;
const SECONDS: u32 = 2;

/// Limits for the work on one file: the bytes of all allocations together, and the number of allocations. They are
/// checked in place of the time, which a test cannot check. Files that are decoded here have at most 10 KiB.
const WORK: u64 = 2 * MEMORY;
const ALLOCATIONS: usize = 20_000;

fn damaged(files: &[Vec<u8>], file: Index, damages: &[Damage]) -> Vec<u8> {
    let mut bytes = files[file.index(files.len())].clone();
    for damage in damages {
        apply(damage, &mut bytes);
    }
    bytes
}

fn is_within(bytes: &[u8], name: &str, work: Work, error: Option<Error>) {
    let file = || bytes.escape_ascii();
    assert!(work.peak as u64 <= MEMORY, "{} bytes of heap: {}", work.peak, file());
    assert!(work.bytes as u64 <= WORK, "{} bytes allocated: {}", work.bytes, file());
    assert!(work.allocations <= ALLOCATIONS, "{} allocations: {}", work.allocations, file());
    if let Some(error) = error {
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

/// Decodes a picture. The result is an error, or as many pixels as the sides state and the limits allow.
fn picture(file: Index, damages: &[Damage]) {
    let bytes = damaged(&PICTURES, file, damages);
    let mut limits = ImageLimits::default();
    (limits.pixels, limits.memory) = (PIXELS, MEMORY);
    let (decoded, work) = work(|| Image::from_bytes_within(&bytes, &limits));
    if let Ok(image) = &decoded {
        let pixels = u64::from(image.width()) * u64::from(image.height());
        assert!((1..=PIXELS).contains(&pixels), "{pixels} pixels: {}", bytes.escape_ascii());
        assert_eq!(image.rgb().len() as u64, 3 * pixels);
    }
    is_within(&bytes, "image: ", work, decoded.err());
}

/// Decodes a sound. The result is an error, or finite samples for at most as many seconds as the limits allow.
fn sound(file: Index, damages: &[Damage]) {
    let bytes = damaged(&SOUNDS, file, damages);
    let mut limits = SoundLimits::default();
    limits.seconds = SECONDS;
    let (decoded, work) = work(|| Sound::from_bytes_within(&bytes, &limits));
    if let Ok(sound) = &decoded {
        let most = SECONDS as usize * sound.rate() as usize;
        assert!(sound.samples().len() <= most, "{} samples: {}", sound.samples().len(), bytes.escape_ascii());
        assert!(sound.samples().iter().all(|sample| sample.is_finite()), "{}", bytes.escape_ascii());
    }
    // The limit is enough for a sound of 2 seconds and for the tables of a Vorbis stream.
    is_within(&bytes, "sound: ", work, decoded.err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_damaged_picture_is_decoded_or_refused_within_bounds(
        file in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        picture(file, &damages);
    }

    #[test]
    fn a_damaged_sound_is_decoded_or_refused_within_bounds(
        file in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        sound(file, &damages);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..Default::default() })]

    #[test]
    #[ignore = "ten seconds"]
    fn ten_thousand_damaged_pictures_are_decoded_or_refused_within_bounds(
        file in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        picture(file, &damages);
    }

    #[test]
    #[ignore = "ten seconds"]
    fn ten_thousand_damaged_sounds_are_decoded_or_refused_within_bounds(
        file in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        sound(file, &damages);
    }
}
