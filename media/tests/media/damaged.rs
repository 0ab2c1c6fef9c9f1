//! Damaged files: pixels or samples, or an error, within the stated memory.

use std::sync::LazyLock;

use autoplace_media::{Image, ImageLimits, Sound, SoundLimits};
use image::ImageFormat;
use proptest::prelude::*;
use proptest::sample::Index;
use test_support::counting::peak;

use crate::jpeg::FlatJpeg;
use crate::pictures::{colourful, encoded, png_with_orientation, translucent, webp_with_orientation};
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
    files
});

static SOUNDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let samples = sine(8_000, 440.0, 0.05);
    let wav = Wav { rate: 8_000, channels: 2, samples: &samples };
    let flac = FlatFlac { rate: 16_000, value: -77, samples_per_frame: 192, frames: 3, samples: 576 };
    vec![wav.pcm8(), wav.pcm16(), wav.pcm24(), wav.float(), flac.encoded(), MP3.to_vec(), OGG.to_vec()]
});

/// One damage to a file: some bytes are replaced, in the first tenth of the file or anywhere.
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

/// The limit of memory in this test. It is low, so that no case takes long without optimisation.
const MEMORY: u64 = 32 << 20;

fn decode(is_sound: bool, file: Index, damages: &[Damage]) {
    let files = if is_sound { &SOUNDS } else { &PICTURES };
    let mut bytes = files[file.index(files.len())].clone();
    for damage in damages {
        apply(damage, &mut bytes);
    }
    let (error, held) = peak(|| {
        if is_sound {
            let mut limits = SoundLimits::default();
            limits.seconds = 2;
            Sound::from_bytes_within(&bytes, &limits).err()
        } else {
            let mut limits = ImageLimits::default();
            limits.pixels = 1 << 16;
            limits.memory = MEMORY;
            Image::from_bytes_within(&bytes, &limits).err()
        }
    });
    // The limit covers a sound of 2 seconds and the tables of a Vorbis stream.
    assert!(held as u64 <= MEMORY, "{held} bytes of heap: {}", bytes.escape_ascii());
    if let Some(error) = error {
        let name = if is_sound { "sound: " } else { "image: " };
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_damaged_file_is_decoded_or_refused_within_bounds(
        is_sound in any::<bool>(),
        file in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        decode(is_sound, file, &damages);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() })]

    #[test]
    #[ignore = "minutes without optimisation"]
    fn twenty_thousand_damaged_files_are_decoded_or_refused_within_bounds(
        is_sound in any::<bool>(),
        file in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        decode(is_sound, file, &damages);
    }
}
