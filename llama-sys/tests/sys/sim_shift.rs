//! Positions are shifted on a card: how much memory this takes, and which types of keys it can rotate.

use crate::support::sim::{MIB, card, context_params, load};
use llama_sys::{Batch, Context, ContextParams, FlashAttention, KvType, Position};

/// Bytes of all buffers together, on host and card.
fn taken(context: &Context) -> u64 {
    let breakdown = context.memory_breakdown().unwrap();
    let rows = breakdown.rows.iter();
    rows.map(|row| row.compute).sum()
}

fn shifted(context: &mut Context) {
    let mut batch = Batch::default();
    for position in 0..12 {
        batch.clear();
        batch.add(300 + position, position, 0, true);
        context.decode(&batch).unwrap();
    }
    assert!(context.kv_seq_remove(0, 2..7).unwrap());
    context.kv_seq_shift(0, 7..Position::MAX, -5).unwrap();
    context.kv_update().unwrap();
    assert_eq!(context.kv_seq_end(0).unwrap(), Some(7));
}

/// How much more memory a context takes after its positions were shifted.
fn growth(of: ContextParams) -> u64 {
    let gpu = card(512 * MIB);
    let model = load(&[&gpu], 3);
    let params = ContextParams { n_outputs_max: of.n_seq_max, ..of };
    let mut context = Context::new(&model, params).unwrap();
    let before = gpu.used() + taken(&context);
    shifted(&mut context);
    (gpu.used() + taken(&context)).abs_diff(before)
}

#[test]
fn plain_keys_are_turned_without_memory_from_four_tokens_for_each_cache_on() {
    own_process!();
    for (n_ctx, n_ubatch, n_seq_max, kv_unified) in
        [(16384, 128, 1, false), (16384, 4, 1, false), (65536, 4, 1, false), (65536, 16, 4, false), (65536, 4, 4, true)]
    {
        for flash_attention in [FlashAttention::Disabled, FlashAttention::Enabled] {
            for type_k in [KvType::F16, KvType::F32] {
                let params = ContextParams {
                    n_ctx,
                    n_ubatch,
                    n_seq_max,
                    kv_unified,
                    flash_attention,
                    type_k,
                    ..context_params()
                };
                let case = format!("{params:?}");
                assert_eq!(growth(params), 0, "{case}");
            }
        }
    }
}

#[test]
fn quantised_keys_and_the_smallest_batches_take_memory_to_turn() {
    own_process!();
    let quantised = ContextParams { type_k: KvType::Q8_0, n_ctx: 65536, ..context_params() };
    assert!(growth(quantised) > 0);
    let small =
        ContextParams { n_ubatch: 1, n_ctx: 65536, flash_attention: FlashAttention::Enabled, ..context_params() };
    assert!(growth(small) > 0);
}
