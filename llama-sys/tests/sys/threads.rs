//! A type is `Send` and `Sync` exactly if llama.cpp allows that. And threads that wait do not disturb other threads.

use std::collections::BTreeSet;

use crate::support::{batch_of, cpu_context, demo_model, greedy, tokens};
use llama_sys::{
    AbortHandle, Backend, Batch, Context, ContextParams, Device, Error, Model, Sampler, State, ThreadWait, Vocab,
    build_info,
};
use static_assertions::{assert_impl_all, assert_not_impl_any};
#[cfg(target_os = "linux")]
use test_support::wait;

assert_impl_all!(Model: Send, Sync);
assert_impl_all!(Vocab: Send, Sync);
assert_impl_all!(Device: Send, Sync);
assert_impl_all!(AbortHandle: Send, Sync);
assert_impl_all!(Batch: Send, Sync);
assert_impl_all!(State: Send, Sync);
assert_impl_all!(Error: Send, Sync);
// These may only be used by one thread at a time, because llama.cpp's contexts and samplers have no locks.
assert_impl_all!(Context: Send);
assert_not_impl_any!(Context: Sync);
assert_impl_all!(Sampler: Send);
assert_not_impl_any!(Sampler: Sync);

#[test]
fn the_environment_changes_only_when_the_backends_start() {
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
    let mut logits = |threads, wait| {
        context.set_threads(threads, threads, wait).unwrap();
        assert_eq!(context.threads(), (threads, threads));
        context.decode(&batch_of(&[1], 0)).unwrap();
        let logits = context.logits(-1).unwrap().to_vec();
        context.kv_clear().unwrap();
        logits
    };
    assert_eq!(logits(2, ThreadWait::Spin), logits(1, ThreadWait::Spin));
    assert_eq!(logits(3, ThreadWait::Sleep), logits(1, ThreadWait::Sleep));
    for (one, several) in [(0, 1), (1, 0), (1, 100_000)] {
        assert_matches!(context.set_threads(one, several, ThreadWait::Spin), Err(Error::InvalidParameter { .. }));
    }
    assert_eq!(context.threads(), (1, 1));
}

#[test]
fn this_build_has_threads_that_sleep_while_they_wait_unless_openmp_has_them() {
    let info = build_info();
    assert_ne!(info.openmp, info.threads_sleep, "native/wait.cmake does not know this llama.cpp's barrier: {info}");
}

/// How often this process has given up a core because it had to wait.
#[cfg(target_os = "linux")]
fn sleeps() -> i64 {
    // SAFETY: plain numbers, which the system overwrites.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

#[test]
#[cfg(target_os = "linux")]
fn threads_sleep_while_they_wait_for_a_thread_without_a_core() {
    own_process!();
    if !build_info().threads_sleep {
        return;
    }
    // There are four threads for each core, as if three other programs were running. So some thread always waits for
    // one that is not running at that time.
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let text = tokens("And it came to pass");
    let alone = greedy(&mut cpu_context(<_>::default()), &text, 20);
    let params = ContextParams { n_threads: Some(4 * cores), n_threads_batch: Some(4 * cores), ..<_>::default() };
    let mut context = Context::new(&demo_model(), params).unwrap();
    let before = sleeps();
    assert_eq!(greedy(&mut context, &text, 20), alone);
    // For one token of the demo model, the threads wait for each other some 150 times.
    let slept = sleeps() - before;
    assert!(slept > 20 * 100, "only {slept} sleeps");
}

#[test]
#[cfg(target_os = "linux")]
fn threads_that_are_told_to_sleep_do_so_between_two_tokens() {
    own_process!();
    if !build_info().threads_sleep {
        return;
    }
    let mut context = Context::new(&demo_model(), ContextParams::default()).unwrap();
    let text = tokens("And it came to pass");
    let alone = greedy(&mut context, &text, 20);
    context.kv_clear().unwrap();
    context.set_threads(2, 2, ThreadWait::Sleep).unwrap();
    let before = sleeps();
    assert_eq!(greedy(&mut context, &text, 20), alone);
    // On a quiet machine, a thread that spins waits for the next token without a sleep.
    let slept = sleeps() - before;
    assert!(slept >= 19, "only {slept} sleeps");
}

#[test]
#[cfg(target_os = "linux")]
fn threads_with_nothing_to_compute_use_no_core() {
    own_process!();
    let params = ContextParams { n_threads: Some(4), n_threads_batch: Some(4), ..<_>::default() };
    let mut context = Context::new(&demo_model(), params).unwrap();
    greedy(&mut context, &tokens("In"), 4);
    let cpu = || {
        // SAFETY: plain numbers, which the system overwrites.
        let mut time: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is writable.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    // Idle threads poll for the next graph, but only for some time. On a busy machine, it takes them longer to use up
    // this time.
    wait("uses no core while nothing is computed", || {
        let before = cpu();
        std::thread::sleep(std::time::Duration::from_millis(500));
        cpu() - before < 0.05
    });
}
