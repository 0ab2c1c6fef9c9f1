//! A mask lets no forbidden token through, whatever the chain and the logits.

use std::sync::OnceLock;

use crate::native_support::{demo_path, native};
use autoplace::llama_sys::{Batch, Candidates, Context, ContextParams, Error, Model, Sampler, Token};
use proptest::prelude::*;

fn model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| native(&demo_path()).unwrap()).clone()
}

/// A context that has computed a token.
fn context() -> Context {
    let params = ContextParams { n_threads: Some(1), n_threads_batch: Some(1), ..ContextParams::default() };
    let mut context = Context::new(&model(), params).unwrap();
    let mut batch = Batch::default();
    batch.add(9, 0, 0, true);
    context.decode(&batch).unwrap();
    context
}

/// Samplers by number, in this order, and one that chooses.
fn chain(filters: &[u8], last: u8) -> Sampler {
    let mut chain = Sampler::chain(&model()).unwrap();
    for filter in filters {
        chain = match filter % 9 {
            0 => chain.top_k(20),
            1 => chain.top_p(0.7),
            2 => chain.min_p(0.1),
            3 => chain.typical(0.6),
            4 => chain.top_n_sigma(1.0),
            5 => chain.xtc(0.8, 0.05, 3),
            6 => chain.penalties(64, 1.5, 0.5, 0.5),
            7 => chain.dynamic_temperature(1.0, 0.9, 1.5),
            _ => chain.logit_bias(&[(1, 9.0), (2, f32::NEG_INFINITY)]),
        }
        .unwrap();
    }
    match last % 5 {
        0 => chain.greedy(),
        1 => chain.dist(5),
        2 => chain.mirostat(3.0, 0.2, 100, 5),
        3 => chain.mirostat_v2(3.0, 0.2, 5),
        _ => chain.adaptive_p(0.3, 0.9, 5),
    }
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_forbidden_token_is_chosen(
        filters in prop::collection::vec(any::<u8>(), 0..5),
        last in any::<u8>(),
        words in prop::collection::vec(prop_oneof![3 => Just(0u32), 2 => any::<u32>(), 1 => Just(u32::MAX)], 1..300),
    ) {
        let mut context = context();
        let n_tokens = model().vocab().n_tokens() as usize;
        let allows = |token: Token| words[token as usize / 32] >> (token % 32) & 1 == 1;
        let any = (0..n_tokens.min(words.len() * 32)).any(|token| allows(token as Token));
        let mut sampler = chain(&filters, last);
        for _ in 0..6 {
            match sampler.sample_masked(&mut context, -1, &words) {
                Ok(token) => prop_assert!(any && allows(token), "{token} by {sampler:?}"),
                Err(Error::NoCandidates { .. }) => prop_assert!(!any),
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_mask_that_allows_all_is_no_mask(
        filters in prop::collection::vec(any::<u8>(), 0..5),
        last in any::<u8>(),
    ) {
        let mut context = context();
        let all = vec![u32::MAX; model().vocab().n_tokens().div_ceil(32) as usize];
        let (mut plain, mut masked) = (chain(&filters, last), chain(&filters, last));
        let (mut by_hand, mut candidates) = (chain(&filters, last), Candidates::default());
        for _ in 0..6 {
            let token = plain.sample(&mut context, -1).unwrap();
            prop_assert_eq!(masked.sample_masked(&mut context, -1, &all).unwrap(), token);
            candidates.fill(&mut context, -1).unwrap();
            prop_assert_eq!(by_hand.apply(&mut candidates).unwrap(), token);
            by_hand.accept(token).unwrap();
        }
    }
}
