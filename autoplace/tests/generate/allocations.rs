//! The generation loop allocates nothing per token beyond the piece of text that it returns.

use crate::native_support::load_demo;

#[test]
fn a_token_costs_one_allocation_at_most() {
    own_process!();
    let model = load_demo();
    let mut stream = model
        .generate("And it came to pass")
        .seed(1)
        .stream()
        .unwrap();
    // The first tokens may still grow buffers.
    for _ in 0..8 {
        stream.next().unwrap().unwrap();
    }
    let tokens_before = stream.statistics().generated_tokens;
    let allocations_before = crate::counting::allocations();
    let mut pieces = 0;
    for piece in stream.by_ref().take(64) {
        drop(piece.unwrap());
        pieces += 1;
    }
    let allocations = crate::counting::allocations() - allocations_before;
    let tokens = stream.statistics().generated_tokens - tokens_before;
    assert!(pieces >= 16, "the demo model ended after {pieces} pieces");
    assert!(
        allocations <= pieces,
        "{allocations} allocations for {pieces} pieces of {tokens} tokens"
    );
}
