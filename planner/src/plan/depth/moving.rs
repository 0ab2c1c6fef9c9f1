//! The time of a move to another placement: the weights are read again, the states of the texts are copied, and
//! everything else of a load follows. The figures were measured with this file, or are stated constants.

use crate::machine::{MoveFigure, MoveRates, RateConditions};
use crate::plan::Plan;
use crate::plan::fit::Chosen;
use crate::plan::speed::Rates;

/// Assumed bytes per second at which a load reads a file from the page cache, into buffers of the host or on the way to
/// a GPU. Once a load of this model was timed, its time is used instead of this figure.
const WARM_FILE: f64 = 2e9;
/// The assumed seconds of everything in a load except reading: contexts, compute buffers and the warm-up.
const LOAD_BESIDE_READING: f64 = 1.0;
/// Assumed bytes per second of saving and restoring the states of texts; the time covers both copies. This is used if
/// no move was measured.
const STATE: f64 = 4e9;

/// Predicted seconds of a move to this placement, from the stated figures: all weights are read from the page cache,
/// and the state of `tokens` tokens is copied to the host and back.
pub(super) fn stated_seconds(to: &Chosen<'_>, tokens: u32) -> f64 {
    let levels = || to.levels.gpus.iter().chain([&to.levels.host]);
    let weights: u64 = levels().map(|level| level.footprint.weights).fold(0, u64::saturating_add);
    let kv: u64 = levels().map(|level| level.footprint.kv).fold(0, u64::saturating_add);
    let rates = Rates::for_devices(&to.room.gpus, to.room.host);
    let link = rates.gpus.iter().map(|gpu| gpu.upload).fold(f64::INFINITY, f64::min);
    let state = state_bytes(kv, tokens, to.params.n_ctx);
    let copies = if link.is_finite() { 2.0 * state / link.max(1.0) } else { 0.0 };
    weights as f64 / WARM_FILE + copies + LOAD_BESIDE_READING
}

/// Seconds of a move to this placement, from measured figures, and the conditions of the most disturbed figure. `None`
/// if no load of the file was measured.
pub(super) fn measured_seconds(to: &Plan, tokens: u32, known: &MoveRates) -> Option<(f64, RateConditions)> {
    let (warm, rest) = known.warm_file.as_ref().zip(known.rest_ns.as_ref())?;
    let bytes = |of: fn(&crate::memory::Footprint) -> u64| {
        to.placements.iter().map(|placement| of(&placement.footprint)).fold(0, u64::saturating_add)
    };
    let per_second = |figure: &MoveFigure| figure.value.max(1) as f64;
    let state = state_bytes(bytes(|footprint| footprint.kv), tokens, to.context.n_ctx);
    let copies = state / known.state.as_ref().map_or(STATE, per_second);
    let seconds = bytes(|footprint| footprint.weights) as f64 / per_second(warm) + copies + rest.value as f64 * 1e-9;
    let figures = [warm, rest].into_iter().chain(&known.state);
    let conditions = figures.map(|figure| &figure.conditions).max_by_key(|conditions| conditions.disturbance())?;
    Some((seconds, conditions.clone()))
}

/// Bytes of the state of `tokens` tokens in a context with `kv` bytes for `n_ctx` tokens.
fn state_bytes(kv: u64, tokens: u32, n_ctx: u32) -> f64 {
    kv as f64 * f64::from(tokens) / f64::from(n_ctx.max(1))
}

impl Plan {
    /// The same plan, with the time of a move predicted from earlier loads and moves of this file. A plan with one
    /// placement does not change, nor does any plan if no load was measured.
    #[must_use]
    pub fn with_move_rates(mut self, known: &MoveRates) -> Self {
        if let Some(by_depth) = &mut self.by_depth
            && let Some((seconds, conditions)) = measured_seconds(&by_depth.plan, by_depth.crossing, known)
        {
            (by_depth.moving_seconds, by_depth.moving_measured) = (seconds, Some(conditions));
        }
        self
    }
}
