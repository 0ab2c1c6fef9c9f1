//! A sound: from the bytes of a file to samples of one channel.

mod decode;
mod format;
mod resample;
mod vorbis;

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::{Error, MediaHash, SoundLimits};

/// A decoded sound: samples of one channel between -1 and 1.
///
/// Clones share the samples. Two sounds are equal if they have the same rate and the same samples.
#[derive(Clone)]
pub struct Sound(Arc<Samples>);

struct Samples {
    rate: u32,
    samples: Vec<f32>,
    hash: OnceLock<MediaHash>,
}

impl Sound {
    /// Decodes a WAV, MP3, FLAC or Ogg Vorbis file within the default [`SoundLimits`].
    ///
    /// If there are several channels, they are mixed: the result is their mean. The sound has the sample rate of the
    /// file, up to 48,000 Hz. [`Sound::resampled`] converts it to the rate that a model needs.
    ///
    /// # Errors
    /// An error if the file cannot be read, has none of these formats, is damaged, or exceeds a limit.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_within(path, &SoundLimits::default())
    }

    /// As [`Sound::open`], but within `limits`.
    ///
    /// # Errors
    /// As [`Sound::open`].
    pub fn open_within(path: impl AsRef<Path>, limits: &SoundLimits) -> Result<Self, Error> {
        let name = path.as_ref().display().to_string();
        let io = |source| Error::Io { name: name.clone(), source };
        let file = File::open(&path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(io(io::Error::other("it is not a regular file")));
        }
        decode::decode(&name, file, metadata.len(), limits)
    }

    /// Decodes the bytes of a file within the default [`SoundLimits`].
    ///
    /// # Errors
    /// As [`Sound::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_bytes_within(bytes, &SoundLimits::default())
    }

    /// As [`Sound::from_bytes`], but within `limits`.
    ///
    /// # Errors
    /// As [`Sound::open`].
    pub fn from_bytes_within(bytes: &[u8], limits: &SoundLimits) -> Result<Self, Error> {
        decode::decode(NAME, Cursor::new(bytes), bytes.len() as u64, limits)
    }

    /// Makes a sound from an application's samples: one channel, at `rate` samples per second.
    ///
    /// ```
    /// let silence = autoplace_media::Sound::from_samples(16_000, vec![0.0; 8_000])?;
    /// assert_eq!(silence.duration(), std::time::Duration::from_millis(500));
    /// # Ok::<(), autoplace_media::Error>(())
    /// ```
    ///
    /// # Errors
    /// An error if `samples` is empty or contains a number that is not finite, or if `rate` is not from 1,000 to
    /// 384,000 Hz.
    pub fn from_samples(rate: u32, samples: Vec<f32>) -> Result<Self, Error> {
        let fails = |problem| Err(Error::Values { name: NAME, problem });
        resample::check_rate(rate)?;
        if samples.is_empty() {
            return fails("it has no samples".to_owned());
        }
        if let Some(at) = samples.iter().position(|sample| !sample.is_finite()) {
            return fails(format!("sample {at} is {}, which is not a finite number", samples[at]));
        }
        Ok(Self::of_samples(rate, samples))
    }

    fn of_samples(rate: u32, samples: Vec<f32>) -> Self {
        Self(Arc::new(Samples { rate, samples, hash: OnceLock::new() }))
    }

    /// Samples per second.
    pub fn rate(&self) -> u32 {
        self.0.rate
    }

    /// The samples.
    pub fn samples(&self) -> &[f32] {
        &self.0.samples
    }

    /// How long the sound lasts.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.samples().len() as f64 / f64::from(self.rate()))
    }

    /// The same sound at `rate` samples per second. The number of its samples is the old number x `rate` / old rate,
    /// rounded up. Frequencies above half of the new rate are filtered out.
    ///
    /// # Errors
    /// An error if `rate` is not from 1,000 to 384,000 Hz.
    pub fn resampled(&self, rate: u32) -> Result<Self, Error> {
        resample::check_rate(rate)?;
        if rate == self.rate() {
            return Ok(self.clone());
        }
        let mut resampler = resample::Resampler::new(self.rate(), rate)?;
        resampler.push(self.samples())?;
        Ok(Self::of_samples(rate, resampler.finish()?))
    }

    /// The hash of the rate and the samples. It is computed once for all clones.
    pub fn hash(&self) -> MediaHash {
        *self.0.hash.get_or_init(|| {
            let rate = self.rate().to_le_bytes();
            // The sound is hashed in pieces. The bytes of all samples together would be a second copy of the sound.
            let pieces: Vec<MediaHash> = self.samples().chunks(1 << 16).map(hash_of).collect();
            MediaHash::new(
                "sound",
                [rate.as_slice()].into_iter().chain(pieces.iter().map(|piece| piece.as_bytes().as_slice())),
            )
        })
    }
}

fn hash_of(samples: &[f32]) -> MediaHash {
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    MediaHash::new("samples", [bytes.as_slice()])
}

/// The name, in errors, of a sound that is not a file.
const NAME: &str = "sound";

impl PartialEq for Sound {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.rate(), self.samples()) == (other.rate(), other.samples())
    }
}

/// The rate and the duration, without the samples.
impl fmt::Debug for Sound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sound({:?} at {} Hz)", self.duration(), self.rate())
    }
}
