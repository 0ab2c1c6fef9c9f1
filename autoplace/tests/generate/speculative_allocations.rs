//! Guessing by prompt lookup allocates nothing: a token costs the piece of text that is returned, as it does without.

use crate::native_support::demo_path;
use autoplace::Model;
use autoplace::generate::Speculation;

#[test]
fn a_guessed_token_costs_one_allocation_at_most() {
    own_process!();
    let builder = Model::builder(demo_path()).draft_max(8).threads(1);
    let model = builder.without_learning().load().unwrap();
    let repeated = "And he said, Go, and they went; and he said, Come, and they came; and he said,";
    let generate = model.generate(repeated).temperature(0.0);
    let lookup = generate.speculate(Speculation::prompt_lookup());
    let mut stream = lookup.max_tokens(200).stream().unwrap();
    // The first tokens may still grow buffers.
    for _ in 0..60 {
        stream.next().unwrap().unwrap();
    }
    let allocations_before = crate::counting::allocations();
    let mut pieces = 0;
    for piece in stream.by_ref().take(80) {
        drop(piece.unwrap());
        pieces += 1;
    }
    let allocations = crate::counting::allocations() - allocations_before;
    assert!(pieces >= 16, "the demo model ended after {pieces} pieces");
    assert!(stream.statistics().drafted_tokens > 0);
    assert!(
        allocations <= pieces,
        "{allocations} allocations for {pieces} pieces"
    );
}
