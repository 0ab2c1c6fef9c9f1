//! Each term is 0 if its cause is absent, and has the expected bytes if its cause is present.

#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method is of one lifetime, and `term` calls with any"
)]

use super::{Buffers, MIB, PlacementView, Uncertainty};
use crate::memory::backend::Family;
use crate::memory::estimate::Assignment;
use crate::memory::estimate::cost::Cost;

/// A model and a placement whose only uncertainty is the formula's own error.
struct Case {
    buffers: Buffers,
    cost: Cost,
    family: Family,
    copies: bool,
    on_host: bool,
}

const STREAM: u128 = 1000;
const INPUTS: u128 = 50;
const LOGITS: u128 = 400;
const FFN_STEP: u128 = 3000;
/// 2 bytes for each of 2 tokens and 10 cells.
const MASK: u128 = 40;
/// 4 bytes for each of 2 tokens, 3 heads and 10 cells.
const SCORES: u128 = 240;
/// The number of elements of keys and values.
const CACHE: u128 = 12;
const BYTES: u128 = 256 * MIB;

impl Case {
    fn new() -> Self {
        let buffers = Buffers {
            tokens: 2,
            cells: 10,
            heads: 3,
            stream: STREAM,
            inputs: INPUTS,
            logits: LOGITS,
            ffn_step: FFN_STEP,
            offload_kqv: true,
            fitted: true,
            gpus: vec![Family::Cuda],
            ..Buffers::default()
        };
        let cost = Cost { largest_elements: (7, 5), largest_on_host: 90, ..Cost::default() };
        Self { buffers, cost, family: Family::Cuda, copies: false, on_host: false }
    }

    /// The bytes of a term for a buffer of `bytes` bytes.
    fn term(&self, bytes: u128, term: fn(&Uncertainty<'_>) -> u128) -> u128 {
        let assignment = Assignment::by_counts(1, &[2]);
        let view =
            PlacementView { assignment: &assignment, cost: &self.cost, on_host: self.on_host, copies: self.copies };
        term(&Uncertainty::new(&self.buffers, &view, self.family, bytes))
    }
}

/// Checks that the term is 0 without the change, that it has the expected bytes with the change, and that the sum
/// includes it.
#[track_caller]
fn holds(term: fn(&Uncertainty<'_>) -> u128, change: impl FnOnce(&mut Case), expected: u128) {
    let mut case = Case::new();
    assert_eq!(case.term(BYTES, term), 0, "without the cause");
    assert_eq!(case.term(BYTES, |terms| terms.total()), case.term(BYTES, |terms| terms.formula()));
    change(&mut case);
    assert_eq!(case.term(BYTES, term), expected, "with the cause");
    assert!(case.term(BYTES, |terms| terms.total()) >= case.term(BYTES, |terms| terms.formula()) + expected);
}

#[test]
fn the_formula_errs_by_an_eighth_or_8_mib_and_two_streams() {
    let case = Case::new();
    let more = 2 * STREAM + INPUTS + MIB;
    assert_eq!(case.term(BYTES, |terms| terms.formula()), (BYTES + LOGITS) / 8 + more);
    assert_eq!(case.term(0, |terms| terms.formula()), 8 * MIB + more);
}

#[test]
fn a_buffer_near_vulkans_chunk_may_need_another_chunk() {
    let mut case = Case::new();
    let large = 1000 * MIB;
    assert_eq!(case.term(large, |terms| terms.chunks()), 0);
    case.family = Family::Vulkan;
    assert_eq!(case.term(large, |terms| terms.chunks()), 625 * MIB);
    assert_eq!(case.term(768 * MIB, |terms| terms.chunks()), 0);
}

#[test]
fn copies_of_the_inputs_have_no_certain_place() {
    holds(|terms| terms.copied_inputs(), |case| case.copies = true, 5 * STREAM + INPUTS);
}

#[test]
fn an_index_over_the_keys_is_copied_with_the_inputs() {
    let copied = |case: &mut Case| (case.copies, case.buffers.indexed) = (true, true);
    holds(|terms| terms.copied_index(), copied, 3 * BYTES);
}

#[test]
fn a_model_without_a_cache_has_a_mask_for_each_batch_in_flight() {
    holds(|terms| terms.masks_without_cache(), |case| case.buffers.cacheless = true, MASK);
    let copied = |case: &mut Case| (case.copies, case.buffers.cacheless) = (true, true);
    holds(|terms| terms.masks_without_cache(), copied, 4 * MASK);
}

#[test]
fn a_cache_that_another_device_uses_may_be_copied() {
    holds(|terms| terms.reused_caches(), |case| case.buffers.reuses_caches = true, 4 * CACHE);
}

#[test]
fn inputs_of_their_own_for_each_block_may_lie_beside_everything_else() {
    holds(|terms| terms.per_layer_inputs(), |case| case.buffers.per_layer = 70, 140);
}

#[test]
fn attention_without_fusion_may_be_divided_between_a_gpu_and_the_host() {
    let divided = SCORES + 2 * MASK + 90;
    let off = |buffers: &mut Buffers| (buffers.unfused, buffers.offload_kqv) = (true, false);
    holds(|terms| terms.divided_attention(), |case| off(&mut case.buffers), divided);
    let weights = |buffers: &mut Buffers| (buffers.unfused, buffers.has_attention_weights) = (true, true);
    holds(|terms| terms.divided_attention(), |case| weights(&mut case.buffers), divided);
    let borrowed = |case: &mut Case| {
        (case.buffers.unfused, case.buffers.offloads_blocks) = (true, true);
        case.cost.host.largest.up = 1;
    };
    holds(|terms| terms.divided_attention(), borrowed, divided);
}

#[test]
fn a_backend_may_not_fuse_although_fusion_is_requested() {
    let attention = MASK + 2 * STREAM + INPUTS + CACHE;
    let change = |case: &mut Case| case.buffers.may_be_unfused = true;
    holds(|terms| terms.backend_without_fusion(), change, 2 * SCORES + 4 * attention);
}

#[test]
fn fusion_may_be_given_up_where_overrides_and_a_cache_on_the_host_divide_a_layer() {
    let change = |case: &mut Case| {
        (case.buffers.overridden, case.buffers.offload_kqv) = (true, false);
        case.buffers.has_experts = true;
    };
    holds(|terms| terms.fusion_given_up(), change, 2 * SCORES);
}

#[test]
fn adapters_have_products_and_copies_of_their_factors() {
    let change = |case: &mut Case| (case.buffers.adapter_products, case.buffers.adapter_bytes) = (1, 30);
    holds(|terms| terms.adapters(), change, BYTES + 30);
}

#[test]
fn adapters_of_the_embedding_may_be_copied_for_each_batch_in_flight() {
    let change = |case: &mut Case| (case.copies, case.buffers.adapter_embedding_bytes) = (true, 30);
    holds(|terms| terms.copied_adapters(), change, 90);
}

#[test]
fn inputs_of_later_blocks_and_logits_of_no_layer_may_lie_beside_everything_else() {
    holds(|terms| terms.added_inputs(), |case| case.buffers.deepstack = 3, 6 * STREAM);
    holds(|terms| terms.added_inputs(), |case| case.buffers.further_logits = 500, 500);
}

#[test]
fn a_moved_weight_may_bring_the_computation_of_its_block_along() {
    let block = FFN_STEP + LOGITS + (MASK + 6 * STREAM + INPUTS + CACHE) + 2 * SCORES;
    holds(|terms| terms.moved_weights(), |case| case.cost.weights_moved = true, block);
}

#[test]
fn a_buffer_of_unfitted_blocks_may_be_twice_as_large() {
    let change = |case: &mut Case| (case.buffers.fitted, case.buffers.unfused) = (false, true);
    holds(|terms| terms.unfitted_blocks(), change, BYTES);
}

#[test]
fn metal_does_not_fuse_attention_over_a_cache_on_the_host() {
    let change = |case: &mut Case| (case.buffers.gpus, case.on_host) = (vec![Family::Metal], true);
    holds(|terms| terms.metal_without_fusion(), change, 2 * SCORES);
}

#[test]
fn a_relative_position_bias_is_added_to_the_scores_of_each_block() {
    let biases = 4 * 6 * 2 * 10;
    holds(|terms| terms.relative_bias(), |case| case.buffers.relative_bias_blocks = 6, 3 * SCORES + biases);
}

#[test]
fn fusion_may_be_given_up_for_unfitted_blocks() {
    holds(|terms| terms.unfitted_scores(), |case| case.buffers.fitted = false, 2 * SCORES);
}
