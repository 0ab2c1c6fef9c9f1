//! From the bytes of a file to samples of one channel, within limits.

use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::audio::{Channels, GenericAudioBufferRef};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_OPUS, CODEC_ID_VORBIS};
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::common::Limit;
use symphonia::core::errors::Error as Symphonia;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

use super::format::Format;
use super::resample::Resampler;
use super::{Sound, vorbis};
use crate::timed::{Deadline, Timed};
use crate::{Error, SoundLimits};

/// The highest rate of a decoded sound, in Hz. Models use only frequencies far below half of this rate.
const KEPT_RATE: u32 = 48_000;

/// Maximum bytes of a tag, and of a picture in the tags.
const TAG: Limit = Limit::Maximum(64 << 10);

/// Decodes a sound. `bytes` is the length of the file.
pub(super) fn decode<R>(name: &str, mut reader: R, bytes: u64, limits: &SoundLimits) -> Result<Sound, Error>
where
    R: Read + Seek + Send + Sync,
{
    let deadline = Deadline::after(limits.time);
    if bytes > limits.bytes {
        return Err(Error::TooLarge { name: name.to_owned(), needed: bytes, unit: "bytes", limit: limits.bytes });
    }
    let io = |source| Error::Io { name: name.to_owned(), source };
    let mut first = Vec::new();
    (&mut reader).take(16).read_to_end(&mut first).map_err(io)?;
    reader.seek(SeekFrom::Start(0)).map_err(io)?;
    let input = Input { name, format: Format::detect(name, &first)?, limits, deadline };
    let decoded = catch_unwind(AssertUnwindSafe(|| input.decode(Timed::new(reader, bytes, &input.deadline))));
    // The time is checked first, because a decoder whose reader has ended early reports a damaged file.
    input.deadline.check(name)?;
    // If a decoder panics, that is an error of the file and not of the application.
    decoded.unwrap_or_else(|_| Err(input.damaged("the decoder panicked")))
}

/// The file, and the limits of its decoding.
struct Input<'a> {
    name: &'a str,
    format: Format,
    limits: &'a SoundLimits,
    deadline: Deadline,
}

impl Input<'_> {
    fn decode<R: Read + Seek + Send + Sync>(&self, source: Timed<R>) -> Result<Sound, Error> {
        let stream = MediaSourceStream::new(Box::new(source), Default::default());
        let metadata = MetadataOptions::default().limit_tag_bytes(TAG).limit_visual_bytes(TAG);
        let probe = symphonia::default::get_probe();
        let format = probe.probe(&Hint::new(), stream, FormatOptions::default(), metadata);
        let mut format = format.map_err(|error| self.refused(&error))?;
        let track = format.default_track(TrackType::Audio).ok_or_else(|| self.damaged("there is no sound in it"))?;
        let Some(CodecParameters::Audio(parameters)) = track.codec_params.clone() else {
            return Err(self.damaged("its header does not name the codec"));
        };
        let id = track.id;
        let frames = track.num_frames.filter(|frames| self.is_count(*frames, &parameters));
        let rate = self.allow(&parameters, frames)?;
        let mut decoder = self.decoder(&parameters)?;
        let mut mono = Mono::new(self, rate)?;
        while let Some(packet) = self.packet(&mut *format)? {
            self.deadline.check(self.name)?;
            if packet.track_id != id {
                continue;
            }
            let decoded = decoder.decode(&packet).map_err(|error| self.at(mono.frames, rate, &error))?;
            mono.push(&decoded)?;
        }
        self.complete(&mut *decoder, frames, mono.frames)?;
        mono.finish()
    }

    /// The next packet, or `None` at the end of the file.
    fn packet(&self, format: &mut dyn FormatReader) -> Result<Option<symphonia::core::packet::Packet>, Error> {
        match format.next_packet() {
            Ok(packet) => Ok(packet),
            Err(Symphonia::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(Symphonia::ResetRequired) => Err(self.unsupported("several streams one after the other")),
            Err(error) => Err(self.refused(&error)),
        }
    }

    /// Checks the header against the limits. Returns the sample rate.
    fn allow(&self, parameters: &AudioCodecParameters, frames: Option<u64>) -> Result<u32, Error> {
        let limits = self.limits;
        let rate = parameters.sample_rate.ok_or_else(|| self.damaged("its header has no sample rate"))?;
        let name = || self.name.to_owned();
        if rate < limits.min_rate {
            return Err(Error::TooSmall {
                name: name(),
                found: rate.into(),
                unit: "Hz",
                limit: limits.min_rate.into(),
            });
        }
        if rate > limits.max_rate {
            return Err(Error::TooLarge {
                name: name(),
                needed: rate.into(),
                unit: "Hz",
                limit: limits.max_rate.into(),
            });
        }
        self.allow_channels(parameters.channels.as_ref().map_or(1, Channels::count))?;
        if let Some(frames) = frames {
            self.allow_frames(frames, rate)?;
        }
        Ok(rate)
    }

    /// Whether the number of frames in the header is exact. In an MP3 file it is only an estimate. If a WAV file was
    /// written into a pipe, its header states a length near 2 or 4 GiB.
    fn is_count(&self, frames: u64, parameters: &AudioCodecParameters) -> bool {
        const OF_A_PIPE: u64 = 0x7fff_0000;
        let channels = parameters.channels.as_ref().map_or(1, Channels::count) as u64;
        let bytes = channels * u64::from(parameters.bits_per_sample.unwrap_or(8).div_ceil(8));
        match self.format {
            Format::Wav => frames.saturating_mul(bytes) < OF_A_PIPE,
            Format::Flac => true,
            Format::Mp3 | Format::Ogg => false,
        }
    }

    fn allow_channels(&self, channels: usize) -> Result<(), Error> {
        let (channels, limit) = (channels as u64, u64::from(self.limits.channels));
        if channels > limit {
            return Err(Error::TooLarge { name: self.name.to_owned(), needed: channels, unit: "channels", limit });
        }
        Ok(())
    }

    fn allow_frames(&self, frames: u64, rate: u32) -> Result<(), Error> {
        let (seconds, limit) = (frames.div_ceil(u64::from(rate)), u64::from(self.limits.seconds));
        if seconds > limit {
            return Err(Error::TooLarge { name: self.name.to_owned(), needed: seconds, unit: "seconds", limit });
        }
        Ok(())
    }

    fn decoder(&self, parameters: &AudioCodecParameters) -> Result<Box<dyn AudioDecoder>, Error> {
        if parameters.codec == CODEC_ID_OPUS {
            return Err(self.unsupported("Opus: convert it to WAV or FLAC"));
        }
        if parameters.codec == CODEC_ID_VORBIS {
            let headers = parameters.extra_data.as_deref().unwrap_or_default();
            vorbis::check(headers).map_err(|problem| self.damaged(problem))?;
        }
        let options = AudioDecoderOptions::default().verify(true);
        let decoder = symphonia::default::get_codecs().make_audio_decoder(parameters, &options);
        decoder.map_err(|error| self.refused(&error))
    }

    /// Fails if the file has fewer frames than its header states, or if the samples do not have the MD5 hash in the
    /// header.
    fn complete(&self, decoder: &mut dyn AudioDecoder, said: Option<u64>, found: u64) -> Result<(), Error> {
        if found == 0 {
            return Err(self.damaged("it has no samples"));
        }
        if let Some(said) = said.filter(|said| *said > found) {
            return Err(self.damaged(format!("its header states {said} samples, but the file ends after {found}")));
        }
        if decoder.finalize().verify_ok == Some(false) {
            return Err(self.damaged("the MD5 hash of its samples differs from the one in its header"));
        }
        Ok(())
    }

    fn damaged(&self, problem: impl ToString) -> Error {
        Error::Damaged { name: self.name.to_owned(), format: self.format.name(), problem: problem.to_string() }
    }

    fn unsupported(&self, feature: impl ToString) -> Error {
        Error::Unsupported { name: self.name.to_owned(), format: self.format.name(), feature: feature.to_string() }
    }

    fn refused(&self, error: &Symphonia) -> Error {
        match error {
            Symphonia::Unsupported(feature) => self.unsupported(feature),
            Symphonia::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.damaged("the file ends in its header")
            }
            error => self.damaged(error),
        }
    }

    /// The error for the packet that follows the first `frames` frames.
    fn at(&self, frames: u64, rate: u32, error: &Symphonia) -> Error {
        self.damaged(format!("after {:.1} seconds: {error}", frames as f64 / f64::from(rate)))
    }
}

/// Mixes all channels down to one, and keeps the samples.
struct Mono<'a> {
    input: &'a Input<'a>,
    rate: u32,
    /// The number of the file's frames so far.
    frames: u64,
    interleaved: Vec<f32>,
    mixed: Vec<f32>,
    samples: Vec<f32>,
    /// Reduces rates above [`KEPT_RATE`].
    resampler: Option<Resampler>,
}

impl<'a> Mono<'a> {
    fn new(input: &'a Input<'a>, rate: u32) -> Result<Self, Error> {
        let resampler = (rate > KEPT_RATE).then(|| Resampler::new(rate, KEPT_RATE)).transpose()?;
        let (interleaved, mixed, samples) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { input, rate, frames: 0, interleaved, mixed, samples, resampler })
    }

    fn push(&mut self, decoded: &GenericAudioBufferRef<'_>) -> Result<(), Error> {
        let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
        if rate != self.rate {
            let change = format!("a sample rate that changes from {} to {rate} Hz", self.rate);
            return Err(self.input.unsupported(change));
        }
        self.input.allow_channels(channels)?;
        self.input.allow_frames(self.frames + decoded.frames() as u64, rate)?;
        decoded.copy_to_vec_interleaved(&mut self.interleaved);
        if let Some(at) = self.interleaved.iter().position(|sample| !sample.is_finite()) {
            let frame = self.frames + (at / channels.max(1)) as u64;
            return Err(self.input.damaged(format!("sample {frame} is not a finite number")));
        }
        self.frames += decoded.frames() as u64;
        self.mixed.clear();
        let share = 1.0 / channels.max(1) as f32;
        let frames = self.interleaved.chunks_exact(channels.max(1));
        // If samples are floating-point numbers, they may lie outside -1 and 1. They are cut off at these values, as by
        // a sound card.
        self.mixed.extend(frames.map(|frame| frame.iter().map(|sample| sample.clamp(-1.0, 1.0) * share).sum::<f32>()));
        match &mut self.resampler {
            Some(resampler) => resampler.push(&self.mixed)?,
            None => self.samples.extend_from_slice(&self.mixed),
        }
        Ok(())
    }

    fn finish(self) -> Result<Sound, Error> {
        match self.resampler {
            Some(resampler) => Ok(Sound::of_samples(KEPT_RATE, resampler.finish()?)),
            None => Ok(Sound::of_samples(self.rate, self.samples)),
        }
    }
}
