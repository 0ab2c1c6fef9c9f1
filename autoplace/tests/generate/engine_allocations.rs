//! Texts side by side, in a session and in an engine, cost no allocation but the pieces that are returned.

use std::thread;

use crate::engine_support::{PROMPTS, greedy, load, request};
use autoplace::Model;
use autoplace::generate::Engine;

/// Pieces that are counted, after those that may still grow a buffer.
const PIECES: usize = 256;

fn session(model: &Model) {
    let mut session = model.session().unwrap();
    for prompt in &PROMPTS[..3] {
        session.begin(greedy(model, prompt, 1000)).unwrap();
    }
    for _ in 0..16 {
        session.step().unwrap();
    }
    let before = crate::counting::allocations();
    let mut pieces = 0;
    while pieces < PIECES && !session.is_empty() {
        pieces += session.step().unwrap().count();
    }
    let allocations = crate::counting::allocations() - before;
    assert!(pieces >= PIECES, "they ended after {pieces} pieces");
    assert!(allocations <= pieces, "{allocations} for {pieces} pieces");
}

fn engine(model: &Model) {
    let engine = Engine::new(model).unwrap();
    let submit = |prompt: &&str| engine.submit(greedy(model, prompt, 700)).unwrap();
    let mut answers: Vec<_> = PROMPTS[..3].iter().map(submit).collect();
    // What is computed and what was allocated, after so many tokens.
    let reach = |tokens: u64| {
        while engine.metrics().generated_tokens < tokens {
            thread::yield_now();
        }
        (
            engine.metrics().generated_tokens,
            crate::counting::allocations(),
        )
    };
    let (from, before) = reach(1100);
    let (to, after) = reach(1100 + PIECES as u64);
    // The queues of three readers grow, each by doubling; and a step of three may be under way.
    let most = (to - from) + 3 + 6;
    let allocations = (after - before) as u64;
    assert!(
        allocations <= most,
        "{allocations} for {} tokens",
        to - from
    );
    // Reading costs nothing.
    let before = crate::counting::allocations();
    for answer in &mut answers {
        for _ in 0..100 {
            answer.pieces().next().unwrap().unwrap();
        }
    }
    let after = (
        engine.metrics().generated_tokens,
        crate::counting::allocations(),
    );
    let most = (after.0 - to) + 3 + 6;
    let allocations = (after.1 - before) as u64;
    assert!(
        allocations <= most,
        "{allocations} while 300 pieces were read"
    );
}

// One test: the other's allocations would be counted too.
#[test]
fn a_token_costs_one_allocation_at_most_beside_others_too() {
    own_process!();
    let model = load(request(3 * 1024, 3));
    session(&model);
    engine(&model);
}
