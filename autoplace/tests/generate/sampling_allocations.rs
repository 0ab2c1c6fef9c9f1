//! Choosing a token allocates nothing but what is given away with it.

use crate::native_support::load_demo;
use autoplace::llama_sys::{Batch, Candidates, Context, ContextParams, Sampler};

const TOKENS: usize = 64;

// One test: the other's allocations would be counted too.
#[test]
fn masks_candidates_and_log_probabilities_are_made_in_place() {
    own_process!();
    let model = load_demo();
    let native = model.native().unwrap();
    let mut context = Context::new(&native, ContextParams::default()).unwrap();
    let mut batch = Batch::default();
    batch.add(9, 0, 0, true);
    context.decode(&batch).unwrap();
    let chain = Sampler::chain(&native).unwrap().top_p(0.9).unwrap();
    let mut sampler = chain.xtc(0.5, 0.1, 4).unwrap().dist(4).unwrap();
    let mut candidates = Candidates::default();
    // The first allows few, so that room for all is not made only when they come.
    let words = native.vocab().n_tokens().div_ceil(32) as usize;
    let masks = [vec![0b110; words], vec![u32::MAX; words]];
    let mut choose = |mask: &[u32]| {
        sampler.sample_masked(&mut context, -1, mask).unwrap();
        candidates.fill(&mut context, -1).unwrap();
        candidates.retain(|candidate| candidate.token() % 3 == 0);
        candidates.softmax();
        let token = sampler.apply(&mut candidates).unwrap();
        sampler.accept(token).unwrap();
    };
    choose(&masks[0]);
    let before = crate::counting::allocations();
    for mask in masks.iter().cycle().take(TOKENS) {
        choose(mask);
    }
    assert_eq!(crate::counting::allocations() - before, 0);

    let mut session = model.session().unwrap();
    let generate = model.generate("And it came to pass").seed(1);
    session.begin(generate.logprobs(5)).unwrap();
    for _ in 0..8 {
        session.step().unwrap();
    }
    let before = crate::counting::allocations();
    let mut pieces = 0;
    while pieces < TOKENS && !session.is_empty() {
        pieces += session.step().unwrap().count();
    }
    // The text, and the likeliest tokens.
    let allocations = crate::counting::allocations() - before;
    assert!(
        pieces >= 16 && allocations <= 2 * pieces,
        "{allocations} for {pieces}"
    );
}
