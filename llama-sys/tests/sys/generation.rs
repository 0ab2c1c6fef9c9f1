//! A context copies, stops and skips: on the demo model, CPU only.

use crate::support::{batch_of, cpu_context, greedy, tokens};
use llama_sys::{ContextParams, Sampler, Token};

const PROMPT: &str = "In the beginning God created";

#[test]
fn a_copied_sequence_stays_when_its_source_goes() {
    let mut context = cpu_context(ContextParams { n_seq_max: 2, n_ctx: 1024, ..ContextParams::default() });
    let prompt = tokens(PROMPT);
    greedy(&mut context, &prompt, 0, 1);
    let end = context.kv_seq_end(0).unwrap().unwrap();
    context.kv_seq_copy(0, 1, 0..end).unwrap();
    context.kv_seq_remove(0, 0..end).unwrap();
    assert_eq!((context.kv_seq_end(0).unwrap(), context.kv_seq_end(1).unwrap()), (None, Some(end)));
}

#[test]
fn an_aborted_decode_says_so_and_the_context_stays_usable() {
    let mut context = cpu_context(ContextParams::default());
    let prompt = tokens(PROMPT);
    context.abort_handle().abort();
    let batch = batch_of(&prompt, 0);
    assert_matches!(context.decode(&batch), Err(llama_sys::Error::Aborted));
    context.kv_clear().unwrap();
    assert_eq!(greedy(&mut context, &prompt, 0, 4).len(), 4);
}

#[test]
fn a_sampler_that_skips_chooses_on_as_one_that_chose() {
    const CHOSEN: usize = 6;
    let mut context = cpu_context(ContextParams::default());
    let model = context.model().clone();
    let prompt = tokens(PROMPT);
    let batch = batch_of(&prompt, 0);
    context.decode(&batch).unwrap();
    // The same logits again and again: what differs is the random number and what the penalty remembers.
    let chain = || {
        let chain = Sampler::chain(&model).unwrap();
        let chain = chain.penalties(64, 1.3, 0.0, 0.0).unwrap();
        let chain = chain.top_k(40).unwrap().temperature(1.5).unwrap();
        chain.dist(11).unwrap()
    };
    let mut undisturbed = chain();
    let mut choose = |sampler: &mut Sampler| sampler.sample(&mut context, -1).unwrap();
    let all: Vec<Token> = (0..2 * CHOSEN).map(|_| choose(&mut undisturbed)).collect();
    let mut resumed = chain();
    resumed.skip(CHOSEN).unwrap();
    for &token in &all[..CHOSEN] {
        resumed.accept(token).unwrap();
    }
    let rest: Vec<Token> = (0..CHOSEN).map(|_| choose(&mut resumed)).collect();
    assert_eq!(rest, all[CHOSEN..]);
    let mut from_the_start = chain();
    for &token in &all[..CHOSEN] {
        from_the_start.accept(token).unwrap();
    }
    let other: Vec<Token> = (0..CHOSEN).map(|_| choose(&mut from_the_start)).collect();
    assert_ne!(other, rest);
}
