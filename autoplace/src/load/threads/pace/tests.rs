//! Tests on scripted machines: the duration of a step with each number of threads is given, and no clock runs.

use proptest::prelude::*;

use super::*;

/// A machine with two free cores: the nanoseconds that a step takes with these threads, as measured with the demo
/// model.
fn quiet(threads: u32) -> u64 {
    if threads == 1 { 580_000 } else { 390_000 }
}

/// The same machine while two other programs are busy: 33 tokens per second were measured with two threads, and 1,065
/// with one.
fn busy(threads: u32) -> u64 {
    if threads == 1 { 939_000 } else { 30_000_000 }
}

/// A machine that is twelve times slower for a reason unrelated to threads.
fn slow(threads: u32) -> u64 {
    12 * quiet(threads)
}

struct Rig {
    pacer: Pacer,
    /// Threads before and after each change.
    changes: Vec<(u32, u32)>,
    last: Option<GeneratingThreads>,
    /// The number of steps that were made with each number of threads.
    steps: Vec<u64>,
    clock: Duration,
}

impl Rig {
    /// A machine after a load that chose `cores` threads.
    fn on(cores: u32, basis: ThreadBasis) -> Self {
        let chosen = Threads { generation: cores, prompt: cores, basis, prompt_is_asked: false };
        let steps = vec![0; cores as usize + 1];
        // The result must not depend on the present load of this machine.
        let pacer = Pacer { company: Company::Possible, ..Pacer::new(&chosen) };
        Self { pacer, changes: Vec::new(), last: None, steps, clock: Duration::ZERO }
    }

    fn cores(cores: u32) -> Self {
        Self::on(cores, ThreadBasis::PerCore)
    }

    /// A quiet machine with two cores, which has generated for a second.
    fn new() -> Self {
        let mut rig = Self::cores(2);
        assert_eq!(rig.go(seconds(1), quiet), []);
        rig
    }

    fn go_on(&mut self, time: Duration, tokens: usize, mut machine: impl FnMut(u32) -> u64) -> Vec<(u32, u32)> {
        let (end, before) = (self.clock + time, self.changes.len());
        while self.clock < end {
            let threads = self.pacer.threads();
            self.steps[threads as usize] += 1;
            let took = Duration::from_nanos(machine(threads));
            self.clock += took;
            let from = self.pacer.rungs[self.pacer.at];
            let change = self.pacer.step(tokens, took);
            self.changes.extend(change.map(|change| (from, change.threads)));
            self.last = change.or(self.last);
        }
        self.changes[before..].to_vec()
    }

    /// Generates a text for `time`. Returns the changes.
    fn go(&mut self, time: Duration, machine: impl FnMut(u32) -> u64) -> Vec<(u32, u32)> {
        self.go_on(time, 1, machine)
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_threads_that_generate_are_known_with_the_speeds_of_their_last_change() {
    let mut rig = Rig::new();
    let unchanged = GeneratingThreads { threads: 2, most: 2, before: 0.0, after: 0.0 };
    assert_eq!(rig.pacer.generating(), unchanged);
    rig.go(seconds(10), busy);
    let GeneratingThreads { threads, most, before, after } = rig.pacer.generating();
    assert_eq!((threads, most), (1, 2));
    assert!((before - 33.3).abs() < 0.1 && (after - 1065.0).abs() < 0.1, "{before}, {after}");
    rig.go(seconds(100), quiet);
    assert_eq!(rig.pacer.generating().threads, 2);
}

#[test]
fn a_quiet_machine_keeps_its_threads_and_tries_others_once() {
    let mut rig = Rig::cores(2);
    assert_eq!(rig.go(seconds(100), quiet), []);
    // The only trial runs at the beginning.
    assert!(rig.steps[1] * quiet(1) < 200_000_000, "{}", rig.steps[1]);
}

#[test]
fn on_a_quiet_machine_a_short_text_tries_nothing() {
    for cores in [2, 16] {
        let mut rig = Rig::cores(cores);
        rig.pacer.company = Company::Absent;
        rig.go(QUIET_START - WINDOW, |_| 10_000_000);
        assert_eq!(rig.steps[..cores as usize].iter().sum::<u64>(), 0);
        rig.go(seconds(2), |_| 10_000_000);
        assert_ne!(rig.steps[1], 0, "a long text tries once");
    }
}

#[test]
fn other_work_that_comes_to_a_quiet_machine_is_not_waited_out() {
    let mut rig = Rig::cores(2);
    rig.pacer.company = Company::Absent;
    assert_eq!(rig.go(seconds(1), quiet), []);
    assert_eq!(rig.go(Duration::from_millis(500), busy), [(2, 1)]);
}

#[test]
fn a_fall_to_a_third_tries_fewer_and_says_so() {
    let mut rig = Rig::new();
    // The change comes within half a second.
    assert_eq!(rig.go(Duration::from_millis(500), busy), [(2, 1)]);
    let change = rig.last.unwrap();
    assert_eq!(change.to_string(), "1 of 2 threads generate: 1065.0 tokens per second instead of 33.3");
    assert_eq!(rig.pacer.prompt(), 2);
}

#[test]
fn requested_threads_are_kept_and_one_core_leaves_no_choice() {
    for (cores, basis) in [(2, ThreadBasis::Asked), (1, ThreadBasis::PerCore)] {
        let mut rig = Rig::on(cores, basis);
        assert_eq!(rig.go(seconds(10), quiet), []);
        assert_eq!(rig.go(seconds(10), |_| 30_000_000), []);
        assert_eq!(rig.steps.iter().filter(|&&steps| steps > 0).count(), 1);
    }
}

#[test]
fn a_trial_that_shared_its_core_is_not_the_last() {
    let mut rig = Rig::new();
    // Two trials of a single thread, each with four steps, are as slow as two threads.
    let mut left = 8;
    let machine = |threads| match (threads, left) {
        (1, 1..) => {
            left -= 1;
            busy(2)
        }
        _ => busy(threads),
    };
    assert_eq!(rig.go(seconds(5), machine), [(2, 1)]);
}

#[test]
fn a_fall_of_steps_of_several_tokens_is_noticed() {
    let mut rig = Rig::new();
    rig.go_on(seconds(1), 8, |threads| 7 * quiet(threads));
    assert_eq!(rig.go_on(seconds(2), 8, |threads| 7 * busy(threads)), [(2, 1)]);
}

#[test]
fn a_quiet_machine_gets_its_threads_back() {
    let mut rig = Rig::new();
    rig.go(seconds(60), busy);
    assert_eq!(rig.go(MAX_WAIT + seconds(10), quiet), [(1, 2)]);
    // After a long quiet time, the reaction is quick again.
    rig.go(seconds(60), quiet);
    rig.go(Duration::from_millis(500), busy);
    assert_eq!(rig.go(seconds(2), quiet), [(1, 2)]);
}

#[test]
fn a_busy_machine_is_left_alone_for_nearly_all_of_the_time() {
    let mut rig = Rig::new();
    rig.go(seconds(10), busy);
    let before = rig.steps[2];
    assert_eq!(rig.go(seconds(100), busy), []);
    let lost = (rig.steps[2] - before) * busy(2);
    assert!(lost <= 2_000_000_000, "{lost} ns");
}

#[test]
fn a_model_that_fewer_threads_do_not_help_keeps_its_threads() {
    let mut rig = Rig::new();
    let before = rig.steps[1];
    assert_eq!(rig.go(seconds(100), slow), []);
    // Trials are rare.
    let lost = (rig.steps[1] - before) * slow(1);
    assert!(lost <= 2_000_000_000, "{lost} ns");
}

#[test]
fn a_deeper_context_is_not_taken_for_a_busy_machine() {
    let mut rig = Rig::cores(2);
    let mut step = 0;
    let deeper = |threads| {
        step += 1;
        quiet(threads) + quiet(threads) * step / 2_000
    };
    assert_eq!(rig.go(seconds(60), deeper), []);
}

#[test]
fn one_hiccup_changes_nothing() {
    let mut rig = Rig::new();
    assert_eq!(rig.go(seconds(3), |_| 3_000_000_000), []);
    assert_eq!(rig.go(seconds(10), quiet), []);
}

#[test]
fn steps_of_other_sizes_are_not_compared() {
    let mut rig = Rig::new();
    for _ in 0..1000 {
        for (tokens, took) in [(1, 390_000), (8, 3_000_000), (64, 20_000_000)] {
            assert_eq!(rig.pacer.step(tokens, Duration::from_nanos(took)), None);
        }
    }
}

#[test]
fn a_text_that_begins_on_a_busy_machine_tries_fewer_at_once() {
    assert_eq!(Rig::cores(2).go(seconds(1), busy), [(2, 1)]);
}

#[test]
fn one_of_many_cores_is_left_to_one_program_and_half_to_eight() {
    let free = |threads: u32| 16_000_000 / u64::from(threads);
    // ggml's threads wait for the thread that shares its core.
    for (fewest_held_up, slowed, expected) in [(16, 4_000_000, 15), (9, 40_000_000, 8)] {
        let machine = |threads| if threads >= fewest_held_up { slowed } else { free(threads) };
        let mut rig = Rig::cores(16);
        rig.go(seconds(1), free);
        assert_eq!(rig.go(seconds(2), machine), [(16, expected)]);
    }
}

#[test]
fn tokens_of_a_second_are_judged_by_two() {
    let mut rig = Rig::cores(2);
    // There is one window, and a second one in which a single thread is measured.
    rig.go(seconds(6), |threads| 2_000_000_000 / u64::from(threads));
    let busy = |threads| if threads == 1 { 2_000_000_000 } else { 9_000_000_000 };
    // Two windows of two steps each, and two steps with one thread.
    assert_eq!(rig.go(seconds(40), busy), [(2, 1)]);
    assert!(rig.go(seconds(120), |_| 500_000_000).len() <= 1);
}

proptest! {
    /// Whatever the durations of steps are, the number of threads stays on the ladder. Each change of the machine
    /// causes only a few changes of that number.
    #[test]
    fn changes_are_bounded(
        cores in 1u32..20,
        takes in prop::collection::vec((prop::collection::vec(100_000u64..200_000_000, 20), 1u64..60), 1..12),
    ) {
        let mut rig = Rig::cores(cores);
        let rungs = ladder(cores);
        for (nanoseconds, time) in &takes {
            let changes = rig.go(seconds(*time), |threads| nanoseconds[threads as usize]);
            prop_assert!(rungs.contains(&rig.pacer.threads()));
            prop_assert!(changes.len() <= 3, "{changes:?}");
        }
    }
}
