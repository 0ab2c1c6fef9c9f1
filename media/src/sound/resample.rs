//! Converts samples to another rate with rubato, chunk by chunk.

use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{
    Async, FixedAsync, Indexing, Resampler as _, SincInterpolationParameters, SincInterpolationType, WindowFunction,
};

use super::NAME;
use crate::Error;

/// The rates that a sound may have before and after it is resampled, in Hz.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=384_000;

/// The number of samples that are resampled at once.
const CHUNK: usize = 1024;

/// The length of the filter in samples of the lower rate, as rubato recommends it.
const TAPS: usize = 256;

/// Maximum length of a filter, as a multiple of [`TAPS`]. If one rate is more than this many times the other, the
/// filter also removes some frequencies below half of the new rate.
const MAX_FACTOR: u32 = 8;

/// Fails if the rate is not in [`RATES`].
pub(super) fn check_rate(rate: u32) -> Result<(), Error> {
    if RATES.contains(&rate) {
        return Ok(());
    }
    let problem = format!("{rate} Hz is not from {} to {} Hz", RATES.start(), RATES.end());
    Err(Error::Values { name: NAME, problem })
}

/// Converts samples from one rate to another, while they arrive.
pub(super) struct Resampler {
    rubato: Async<f32>,
    from: u32,
    to: u32,
    /// Samples that are not enough for a chunk yet.
    waiting: Vec<f32>,
    /// The number of samples that have arrived.
    pushed: u64,
    /// The result of one chunk.
    chunk: Vec<f32>,
    /// The delay of the filter, in samples. This many samples are dropped at the beginning.
    delay: usize,
    resampled: Vec<f32>,
}

impl Resampler {
    pub(super) fn new(from: u32, to: u32) -> Result<Self, Error> {
        let taps = TAPS * from.div_ceil(to).min(MAX_FACTOR) as usize;
        let parameters = SincInterpolationParameters::new(taps, WindowFunction::BlackmanHarris2)
            .oversampling_factor(256)
            .interpolation(SincInterpolationType::Linear);
        let ratio = f64::from(to) / f64::from(from);
        let rubato = Async::new_sinc(ratio, 1.0, &parameters, CHUNK, 1, FixedAsync::Input);
        let rubato = rubato.map_err(|error| fault(from, to, &error))?;
        let (chunk, delay) = (vec![0.0; rubato.output_frames_max()], rubato.output_delay());
        Ok(Self {
            rubato,
            from,
            to,
            waiting: Vec::with_capacity(CHUNK),
            pushed: 0,
            chunk,
            delay,
            resampled: Vec::new(),
        })
    }

    /// Takes the next samples.
    pub(super) fn push(&mut self, mut samples: &[f32]) -> Result<(), Error> {
        self.pushed += samples.len() as u64;
        while self.waiting.len() + samples.len() >= CHUNK {
            let (now, rest) = samples.split_at(CHUNK - self.waiting.len());
            self.waiting.extend_from_slice(now);
            self.run()?;
            samples = rest;
        }
        self.waiting.extend_from_slice(samples);
        Ok(())
    }

    /// The resampled sound.
    pub(super) fn finish(mut self) -> Result<Vec<f32>, Error> {
        let needed = (self.pushed * u64::from(self.to)).div_ceil(u64::from(self.from)) as usize;
        while self.resampled.len() < needed {
            self.run()?;
        }
        self.resampled.truncate(needed);
        Ok(self.resampled)
    }

    /// Resamples one chunk: the waiting samples, with silence after them.
    fn run(&mut self) -> Result<(), Error> {
        let (from, to, waiting) = (self.from, self.to, self.waiting.len());
        self.waiting.resize(CHUNK, 0.0);
        let input = SequentialSlice::new(&self.waiting, 1, CHUNK).map_err(|error| fault(from, to, &error))?;
        let frames = self.chunk.len();
        let mut output =
            SequentialSlice::new_mut(&mut self.chunk, 1, frames).map_err(|error| fault(from, to, &error))?;
        let indexing = Indexing::new().partial_len(waiting);
        let done = self.rubato.process_into_buffer(&input, &mut output, Some(&indexing));
        let (_, written) = done.map_err(|error| fault(from, to, &error))?;
        self.waiting.clear();
        let skipped = self.delay.min(written);
        self.delay -= skipped;
        self.resampled.extend_from_slice(&self.chunk[skipped..written]);
        Ok(())
    }
}

fn fault(from: u32, to: u32, error: &dyn std::fmt::Display) -> Error {
    Error::Values { name: NAME, problem: format!("cannot be resampled from {from} to {to} Hz: {error}") }
}
