//! Paging of a model larger than the host's memory: the mapped weights that do not fit, and the time to read them from
//! disk again. In: a chosen placement. Out: [`Paging`].

use serde::{Deserialize, Serialize};

use super::Speed;
use super::fit::Chosen;
use crate::machine::{Bytes, DiskRate};
use crate::memory::{Error, OverrideRules, Place};
use crate::profile::{ModelProfile, Weight, WeightRole};

/// Weights that do not fit in the host's memory ([`Request::allow_paging`](super::Request::allow_paging)). Their file
/// is mapped: the system drops pages that do not fit, and reads them again when they are used.
///
/// The order of use decides how much a token reads, because Linux drops the least recently used pages. Every token uses
/// the dense weights in the same order. If they do not all fit, each is dropped before its next use, and every token
/// reads all of them (benches/results: 400 MiB of a file in 360 MiB of memory are read whole in every pass). The use of
/// experts is random: a token reads from disk only that share of its experts that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "{} of weights do not fit in memory and are read from disk again, {} for every token: {:.2} s with {disk}",
    Bytes(*bytes), Bytes(*bytes_per_token), self.seconds_per_token()
)]
#[non_exhaustive]
pub struct Paging {
    /// Bytes of weights that do not fit.
    pub bytes: u64,
    /// Bytes read for each generated token. Of the experts, only those that the token uses are counted.
    pub bytes_per_token: u64,
    /// Bytes read for each computation of a prompt (one ubatch).
    pub bytes_per_batch: u64,
    /// The disk's read speed.
    pub disk: DiskRate,
}

/// Bytes of the host's weights, by how a token uses them. The token embedding is excluded, because a token reads only
/// one row of it.
#[derive(Debug, Clone, Copy, Default)]
struct OnHost {
    /// Weights that every token uses.
    always: u64,
    /// All experts, and the experts that one token uses.
    experts: u64,
    used: u64,
}

impl Paging {
    /// The paging of a placement; `None` if everything fits.
    pub(super) fn for_placement(profile: &ModelProfile, chosen: &Chosen<'_>) -> Result<Option<Self>, Error> {
        let host = &chosen.levels.host;
        if host.paged == 0 {
            return Ok(None);
        }
        let room = host.footprint.weights.saturating_sub(host.paged);
        let on_host = OnHost::new(profile, chosen)?;
        Ok(Some(Self {
            bytes: host.paged,
            bytes_per_token: on_host.read(on_host.used, room),
            bytes_per_batch: on_host.read(on_host.experts, room),
            disk: chosen.room.host.disk.unwrap_or(DiskRate::UNKNOWN),
        }))
    }

    /// Seconds that a token waits for the disk.
    pub fn seconds_per_token(&self) -> f64 {
        self.seconds(self.bytes_per_token)
    }

    fn seconds(&self, bytes: u64) -> f64 {
        bytes as f64 / self.disk.bytes_per_second.max(1) as f64
    }

    /// The predicted speed, reduced by the time of the disk.
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
            let seconds = computations * self.seconds(self.bytes_per_batch);
            prompt.tokens_per_second = slower(prompt.tokens_per_second, f64::from(prompt.tokens), seconds);
        }
        // Other points of the curve have other numbers of layers, and would read a different number of bytes.
        speed.curve.clear();
        speed
    }
}

impl OnHost {
    fn new(profile: &ModelProfile, chosen: &Chosen<'_>) -> Result<Self, Error> {
        let rules = OverrideRules::new(&chosen.split.overrides, chosen.room.gpus.len())?;
        let weights = &profile.weights;
        let tied = weights.output_matrix().filter(|_| weights.tied_output);
        let output: Vec<&Weight> = weights.output.iter().chain(tied).collect();
        let blocks = weights.blocks.iter().map(|block| block.iter().collect());
        let mut sums = Self::default();
        for (weights, place) in blocks.chain([output]).zip(chosen.assignment.layers()) {
            let weights: Vec<&Weight> = weights;
            let stays = |weight: &&Weight| rules.place(&weight.name).unwrap_or(place) == Place::Host;
            for weight in weights.into_iter().filter(stays) {
                match &profile.hparams.experts {
                    Some(experts) if weight.role == WeightRole::Experts => {
                        let (used, count) = (experts.used.min(experts.count), experts.count.max(1));
                        let share = u128::from(weight.bytes) * u128::from(used) / u128::from(count);
                        sums.experts = sums.experts.saturating_add(weight.bytes);
                        sums.used = sums.used.saturating_add(u64::try_from(share).unwrap_or(u64::MAX));
                    }
                    _ => sums.always = sums.always.saturating_add(weight.bytes),
                }
            }
        }
        Ok(sums)
    }

    /// Bytes that a computation reads if it uses `used` bytes of experts and memory has room for `room` bytes of
    /// weights.
    fn read(&self, used: u64, room: u64) -> u64 {
        let in_order = self.always.saturating_add(used);
        if in_order > room {
            return in_order;
        }
        let of_experts = room - self.always;
        let lacking = self.experts.saturating_sub(of_experts);
        let share = u128::from(used) * u128::from(lacking) / u128::from(self.experts.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::OnHost;
    use crate::machine::gib;

    #[test]
    fn dense_weights_are_read_whole_if_any_are_missing_and_experts_by_the_missing_share() {
        let dense = OnHost { always: gib(40), ..OnHost::default() };
        assert_eq!(dense.read(0, gib(24)), gib(40));
        assert_eq!(dense.read(0, gib(39)), gib(40));
        assert_eq!(dense.read(0, gib(40)), 0);
        // A token uses 8 of 128 experts. Memory has room for the dense weights and half of the experts.
        let mixture = OnHost { always: gib(4), experts: gib(64), used: gib(4) };
        assert_eq!(mixture.read(mixture.used, gib(36)), gib(2));
        assert_eq!(mixture.read(mixture.used, gib(68)), 0);
        // A prompt uses all experts, in order.
        assert_eq!(mixture.read(mixture.experts, gib(36)), gib(68));
        // The weights of a single token do not fit, so nothing stays in memory.
        assert_eq!(mixture.read(mixture.used, gib(7)), gib(8));
    }
}
