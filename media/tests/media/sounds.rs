//! Sounds: the samples that decoding returns.

use autoplace_media::{Error, Sound};
use proptest::prelude::*;

use crate::bombs::shortened;
use crate::tones::{FlatFlac, MP3, OGG, Wav, amplitude, sine};

#[test]
fn every_form_of_wav_gives_its_samples() {
    let samples = sine(16_000, 300.0, 0.1);
    let wav = Wav { rate: 16_000, channels: 1, samples: &samples };
    for (file, step) in [(wav.pcm8(), 1.0 / 64.0), (wav.pcm16(), 1e-4), (wav.pcm24(), 1e-6), (wav.float(), 0.0)] {
        let sound = Sound::from_bytes(&file).unwrap();
        assert_eq!((sound.rate(), sound.samples().len()), (16_000, 1600));
        assert!(sound.samples().iter().zip(&samples).all(|(a, b)| (a - b).abs() <= step), "{step}");
    }
}

#[test]
fn channels_are_mixed_to_their_mean() {
    let file = Wav { rate: 8_000, channels: 3, samples: &[0.3, 0.6, 0.0, -0.9, 0.0, 0.0] }.float();
    let sound = Sound::from_bytes(&file).unwrap();
    assert!(sound.samples().iter().zip([0.3, -0.3]).all(|(a, b)| (a - b).abs() < 1e-6), "{:?}", sound.samples());
}

#[test]
fn compressed_files_keep_their_tone_and_their_length() {
    // lame scales its input by 0.95.
    for (name, file, loud) in [("MP3", MP3, 0.475), ("Ogg", OGG, 0.5)] {
        let sound = Sound::from_bytes(file).unwrap();
        assert_eq!(sound.rate(), 22_050, "{name}");
        let found = amplitude(sound.samples(), sound.rate(), 440.0);
        assert!((found - loud).abs() < 0.02, "{name}: {found}");
        assert!(sound.duration().as_secs_f64().abs_diff_within(0.3, 0.03), "{name}: {:?}", sound.duration());
    }
    let flac = FlatFlac { rate: 16_000, value: 8192, samples_per_frame: 192, frames: 3, samples: 576 };
    let sound = Sound::from_bytes(&flac.encoded()).unwrap();
    assert_eq!((sound.rate(), sound.samples()), (16_000, [0.25; 576].as_slice()));
}

trait Within {
    fn abs_diff_within(self, other: f64, most: f64) -> bool;
}

impl Within for f64 {
    fn abs_diff_within(self, other: f64, most: f64) -> bool {
        (self - other).abs() <= most
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_sine_keeps_its_frequency_its_amplitude_and_its_beginning_at_any_rate(
        from in 4_000..48_000_u32,
        to in 4_000..48_000_u32,
        share in 0.05..0.8_f64,
    ) {
        let hertz = share * f64::from(from.min(to)) / 2.0;
        let sound = Sound::from_samples(from, sine(from, hertz, 0.25)).unwrap();
        let resampled = sound.resampled(to).unwrap();
        prop_assert_eq!(resampled.rate(), to);
        let frames = sound.samples().len() as u64 * u64::from(to);
        prop_assert_eq!(resampled.samples().len() as u64, frames.div_ceil(from.into()));
        let found = amplitude(resampled.samples(), to, hertz);
        prop_assert!((found - 0.5).abs() < 0.02, "{} of {} Hz", found, hertz);
        // In the middle, the result is the same sine, sampled at the new rate and shifted by less than a sample.
        let expected = sine(to, hertz, 0.25);
        let middle = expected.len() / 4..expected.len() * 3 / 4;
        let worst = middle.map(|at| (resampled.samples()[at] - expected[at]).abs()).fold(0.0, f32::max);
        let a_sample = 0.5 * std::f64::consts::TAU * hertz / f64::from(from.min(to));
        prop_assert!(f64::from(worst) < a_sample + 0.02, "{} away", worst);
    }
}

#[test]
fn what_the_new_rate_cannot_hold_is_filtered_out() {
    // Without a filter, 7,000 Hz would become 1,000 Hz at a rate of 8,000.
    let sound = Sound::from_samples(48_000, sine(48_000, 7_000.0, 0.3)).unwrap().resampled(8_000).unwrap();
    let found = amplitude(sound.samples(), 8_000, 1_000.0);
    assert!(found < 0.001, "{found}");
    let same = sound.resampled(8_000).unwrap();
    assert_eq!((same.hash(), &same), (sound.hash(), &sound));
}

#[test]
fn the_hash_is_of_rate_and_samples() {
    let of = |rate, samples: &[f32]| Sound::from_samples(rate, samples.to_vec()).unwrap().hash();
    let long = vec![0.25; 70_000];
    assert_eq!(of(16_000, &long), of(16_000, &long));
    assert_ne!(of(16_000, &long), of(8_000, &long));
    assert_ne!(of(16_000, &long), of(16_000, &long[1..]));
    let file = Wav { rate: 16_000, channels: 1, samples: &[0.25; 10] }.float();
    assert_eq!(Sound::from_bytes(&file).unwrap().hash(), of(16_000, &[0.25; 10]));
}

#[test]
fn a_sound_that_ends_early_or_differs_from_its_header_is_damaged() {
    let wav = Wav { rate: 8_000, channels: 1, samples: &[0.1; 4000] }.pcm16();
    let error = Sound::from_bytes(&wav[..5044]).unwrap_err().to_string();
    assert_eq!(error, "sound: damaged WAV: its header states 4000 samples, but the file ends after 2500");
    let flac = FlatFlac { rate: 16_000, value: 5, samples_per_frame: 192, frames: 2, samples: 576 };
    let error = Sound::from_bytes(&flac.encoded()).unwrap_err().to_string();
    assert_eq!(error, "sound: damaged FLAC: its header states 576 samples, but the file ends after 384");
    let mut file = FlatFlac { samples: 384, ..flac }.encoded();
    // The MD5 hash of the samples, in the header.
    file[26..42].fill(1);
    let error = Sound::from_bytes(&file).unwrap_err().to_string();
    assert!(error.ends_with("the MD5 hash of its samples differs from the one in its header"), "{error}");
    let float = Wav { rate: 8_000, channels: 1, samples: &[0.0, f32::NAN] }.float();
    let error = Sound::from_bytes(&float).unwrap_err().to_string();
    assert_eq!(error, "sound: damaged WAV: sample 1 is not a finite number");
    let empty = Wav { rate: 8_000, channels: 1, samples: &[] }.pcm16();
    assert!(matches!(Sound::from_bytes(&empty), Err(Error::Damaged { .. })));
}

#[test]
fn a_wav_file_from_a_pipe_ends_where_it_ends() {
    let wav = Wav { rate: 8_000, channels: 1, samples: &[0.1; 400] }.pcm16();
    for length in [u32::MAX, 0x7fff_ffff, 0x7fff_f000] {
        let file = shortened(shortened(wav.clone(), b"data", length), b"RIFF", length.saturating_add(36));
        let sound = Sound::from_bytes(&file).unwrap();
        assert_eq!(sound.samples().len(), 400, "{length:x}");
    }
}

#[test]
fn what_is_louder_than_the_loudest_sample_is_cut_off() {
    let file = Wav { rate: 8_000, channels: 1, samples: &[1.5, -1e30, 0.5] }.float();
    assert_eq!(Sound::from_bytes(&file).unwrap().samples(), [1.0, -1.0, 0.5]);
}

#[test]
fn a_file_is_known_by_its_bytes_and_an_error_names_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("answer.txt");
    std::fs::write(&path, MP3).unwrap();
    assert_eq!(Sound::open(&path).unwrap(), Sound::from_bytes(MP3).unwrap());
    for (bytes, says) in [
        (b"".as_slice(), "it is empty"),
        (b"\0\0\0\x18ftypM4A \0\0\0\0", "it is MP4 or M4A: convert it to WAV or FLAC"),
        (b"\xff\xf1\x50\x80", "it is AAC: convert it to WAV or FLAC"),
        (b"FORM\0\0\0\0AIFF", "it is AIFF: convert it to WAV or FLAC"),
        (b"hello there", "it begins with \"hello th\""),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = Sound::open(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: not a WAV, MP3, FLAC or Ogg Vorbis file: {says}", path.display()));
    }
    assert!(matches!(Sound::open(folder.path()), Err(Error::Io { .. })));
}

#[test]
fn samples_of_the_application_are_finite_and_of_a_rate_that_sounds_have() {
    let says = |rate, samples: &[f32]| Sound::from_samples(rate, samples.to_vec()).unwrap_err().to_string();
    assert_eq!(says(16_000, &[]), "sound: it has no samples");
    assert_eq!(says(16_000, &[0.0, f32::INFINITY]), "sound: sample 1 is inf, which is not a finite number");
    assert_eq!(says(0, &[0.0]), "sound: 0 Hz is not from 1000 to 384000 Hz");
    let sound = Sound::from_samples(16_000, vec![0.0]).unwrap();
    assert!(sound.resampled(999).is_err() && sound.resampled(384_001).is_err());
}
