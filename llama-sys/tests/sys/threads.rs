//! `Send` and `Sync` exactly where llama.cpp allows them, and what it does to other threads.

use std::collections::BTreeSet;

use crate::support::{batch_of, cpu_context, demo_model, greedy, tokens};
use llama_sys::{AbortHandle, Backend, Batch, Context, ContextParams, Device, Error, Model, Sampler, State, Vocab};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Model: Send, Sync);
assert_impl_all!(Vocab: Send, Sync);
assert_impl_all!(Device: Send, Sync);
assert_impl_all!(AbortHandle: Send, Sync);
assert_impl_all!(Batch: Send, Sync);
assert_impl_all!(State: Send, Sync);
assert_impl_all!(Error: Send, Sync);
// One thread at a time: llama.cpp's contexts and samplers have no locks.
assert_impl_all!(Context: Send);
assert_not_impl_any!(Context: Sync);
assert_impl_all!(Sampler: Send);
assert_not_impl_any!(Sampler: Sync);

#[test]
fn the_environment_changes_when_the_backends_start_as_they_say_and_never_later() {
    own_process!();
    let names = || std::env::vars_os().map(|(name, _)| name).collect::<BTreeSet<_>>();
    let before = names();
    Backend::init().unwrap();
    let after = names();
    let mut set = after.difference(&before);
    assert!(set.all(|name| name == "KMP_BLOCKTIME"), "{before:?}\n{after:?}");
    greedy(&mut cpu_context(<_>::default()), &tokens("In"), 2);
    assert_eq!(names(), after);
}

#[test]
fn the_number_of_threads_changes_between_two_tokens_and_the_logits_do_not() {
    let model = demo_model();
    let params = ContextParams { n_threads: Some(2), n_threads_batch: Some(3), ..ContextParams::default() };
    let mut context = Context::new(&model, params).unwrap();
    assert_eq!(context.threads(), (2, 3));
    let mut logits = |threads| {
        context.set_threads(threads, threads).unwrap();
        assert_eq!(context.threads(), (threads, threads));
        context.decode(&batch_of(&[1], 0)).unwrap();
        let logits = context.logits(-1).unwrap().to_vec();
        context.kv_clear().unwrap();
        logits
    };
    assert_eq!(logits(2), logits(1));
    for (one, several) in [(0, 1), (1, 0), (1, 100_000)] {
        assert_matches!(context.set_threads(one, several), Err(Error::InvalidParameter { .. }));
    }
    assert_eq!(context.threads(), (1, 1));
}
