//! A model larger than the host's memory: how many of its mapped weights have no room there, and what it costs to read
//! them again from disk. A chosen placement flows in, [`Paging`] flows out.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Speed;
use super::fit::Chosen;
use super::speed::{Matrices, matrices};
use crate::machine::{Bandwidth, BandwidthSource, Bytes};
use crate::memory::{Error, OverrideRules, Place};
use crate::profile::{ModelProfile, Weight};

/// What is taken for the disk of which nothing is known, in bytes per second: an NVMe drive of the lower class, read
/// where pages are missing and not in long runs.
const UNKNOWN_DISK: u64 = 1_000_000_000;

/// Weights that the host's memory has no room for ([`Request::allow_paging`](super::Request::allow_paging)). The file
/// is mapped, so that the system drops such pages and reads them again when they are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Paging {
    /// Bytes of weights that do not fit.
    pub bytes: u64,
    /// How many of them a generated token reads again at least: of experts those that it uses. A system that drops
    /// pages which are needed soon reads more.
    pub bytes_per_token: u64,
    /// How fast the disk is read.
    pub disk: Bandwidth,
}

impl Paging {
    /// Of this placement; `None` where everything fits.
    pub(super) fn of(profile: &ModelProfile, chosen: &Chosen<'_>) -> Result<Option<Self>, Error> {
        let bytes = chosen.levels.host.paged;
        if bytes == 0 {
            return Ok(None);
        }
        let (used, all) = on_host(profile, chosen)?;
        // What fits is as likely to be needed as what does not.
        let share = u128::from(bytes.min(all)) * u128::from(used) / u128::from(all).max(1);
        let guess = Bandwidth::new(UNKNOWN_DISK, BandwidthSource::Guess);
        Ok(Some(Self {
            bytes,
            bytes_per_token: u64::try_from(share).unwrap_or(u64::MAX),
            disk: chosen.room.host.disk.unwrap_or(guess),
        }))
    }

    /// Seconds that a token waits for the disk, at least.
    pub fn seconds_per_token(&self) -> f64 {
        self.bytes_per_token as f64 / self.disk.bytes_per_second.max(1) as f64
    }

    /// A predicted speed with what the disk takes of the time: of each token, and of each of a prompt's
    /// computations, which need all.
    pub(super) fn slow_down(&self, mut speed: Speed, n_ubatch: u32) -> Speed {
        let slower = |speed: f64, tokens: f64, seconds: f64| (tokens * 1e4 / (tokens / speed + seconds)).round() / 1e4;
        let token = |speed: f64| slower(speed, 1.0, self.seconds_per_token());
        speed.tokens_per_second = token(speed.tokens_per_second);
        for at in &mut speed.generation {
            at.tokens_per_second = token(at.tokens_per_second);
        }
        let prompt = &mut speed.prompt;
        if prompt.tokens > 0 {
            let computations = f64::from(prompt.tokens.div_ceil(n_ubatch.max(1)));
            let each = self.bytes as f64 / self.disk.bytes_per_second.max(1) as f64;
            let tokens = f64::from(prompt.tokens);
            prompt.tokens_per_second = slower(prompt.tokens_per_second, tokens, computations * each);
        }
        speed
    }
}

impl fmt::Display for Paging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, each, disk) = (Bytes(self.bytes), Bytes(self.bytes_per_token), self.disk);
        write!(
            f,
            "{bytes} of weights do not fit in memory and are read from disk again, {each} of them for every token: at most {:.2} tok/s with {disk}",
            1.0 / self.seconds_per_token()
        )
    }
}

/// Bytes of the host's weights that a token uses, and all of them. The embedding is left out: of that a
/// token reads a row.
fn on_host(profile: &ModelProfile, chosen: &Chosen<'_>) -> Result<(u64, u64), Error> {
    let rules = OverrideRules::new(&chosen.split.overrides, chosen.room.gpus.len())?;
    let weights = &profile.weights;
    let tied = weights.output_matrix().filter(|_| weights.tied_output);
    let output: Vec<&Weight> = weights.output.iter().chain(tied).collect();
    let blocks = weights.blocks.iter();
    let blocks = blocks.map(|block| block.weights.iter().collect());
    let layers = blocks.chain([output]).zip(chosen.assignment.layers());
    let mut sums = (0_u64, 0_u64);
    for (weights, place) in layers {
        let stays = |weight: &&&Weight| rules.place(&weight.name).unwrap_or(place) == Place::Host;
        for weight in weights.iter().filter(stays) {
            let used = matrices(profile, [*weight]);
            let used = used.iter().map(Matrices::token_bytes);
            sums.0 = used.fold(sums.0, u64::saturating_add);
            sums.1 = sums.1.saturating_add(weight.bytes);
        }
    }
    Ok(sums)
}
