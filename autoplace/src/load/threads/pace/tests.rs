//! The pace on scripted machines: what a step takes with each number of threads is known, and no clock runs.

use proptest::prelude::*;

use super::*;
use crate::load::threads::ladder;

const CORES: u32 = 2;

/// A machine: nanoseconds of a step by threads.
type Machine = fn(u32) -> u64;

/// Two cores that nobody else uses: 0.39 and 0.58 ms, as of the demo model.
fn quiet(threads: u32) -> u64 {
    if threads == 1 { 580_000 } else { 390_000 }
}

/// The same beside two busy programs, as they were measured: 33 and 1,065 tokens per second.
fn busy(threads: u32) -> u64 {
    if threads == 1 { 939_000 } else { 30_000_000 }
}

/// Twelve times as slow for a reason that has nothing to do with threads.
fn slow(threads: u32) -> u64 {
    12 * quiet(threads)
}

struct Rig {
    pace: Pace,
    changes: Vec<Change>,
    /// Steps with each number of threads.
    steps: Vec<u64>,
    clock: Duration,
}

impl Rig {
    fn on(rungs: Vec<u32>, threads: u32) -> Self {
        Self {
            steps: vec![0; rungs[0] as usize + 1],
            pace: Pace::new(rungs, threads, |_| None),
            changes: Vec::new(),
            clock: Duration::ZERO,
        }
    }

    /// As a load on a quiet machine has left it.
    fn new() -> Self {
        let mut rig = Self::on(ladder(CORES), CORES);
        rig.pace = Pace::new(ladder(CORES), CORES, |threads| Some(quiet(threads) as f64 * 1e-9));
        rig
    }

    /// Generates for so long. Returns the changes.
    fn go(&mut self, time: Duration, machine: impl Fn(u32) -> u64) -> Vec<(u32, u32)> {
        let (end, before) = (self.clock + time, self.changes.len());
        while self.clock < end {
            let threads = self.pace.threads();
            self.steps[threads as usize] += 1;
            let took = Duration::from_nanos(machine(threads));
            self.clock += took;
            self.changes.extend(self.pace.step(took));
        }
        let changes = self.changes[before..].iter();
        changes.map(|change| (change.from, change.to)).collect()
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_quiet_machine_keeps_its_threads_and_tries_nothing() {
    let mut rig = Rig::new();
    assert_eq!(rig.go(seconds(100), quiet), []);
    assert_eq!(rig.steps[1], 0);
}

#[test]
fn a_fall_to_a_third_tries_fewer_and_says_so() {
    let mut rig = Rig::new();
    rig.go(seconds(1), quiet);
    // Found within half a second.
    assert_eq!(rig.go(Duration::from_millis(500), busy), [(2, 1)]);
    let change = rig.changes[0];
    assert!(change.before > 0.02 && change.after < 0.001, "{change:?}");
    assert_eq!(rig.pace.usual(), 2);
}

#[test]
fn a_trial_that_shared_its_core_is_not_the_last() {
    let mut rig = Rig::new();
    rig.go(seconds(1), quiet);
    // Two trials of one thread, four steps each, are as slow as two threads.
    let left = std::cell::Cell::new(8);
    let machine = |threads| match (threads, left.get()) {
        (1, 1..) => {
            left.set(left.get() - 1);
            busy(2)
        }
        _ => busy(threads),
    };
    assert_eq!(rig.go(seconds(5), machine), [(2, 1)]);
}

#[test]
fn a_fall_is_noticed_where_nothing_was_measured_at_the_load() {
    let mut rig = Rig::on(ladder(CORES), CORES);
    rig.go(seconds(1), quiet);
    assert_eq!(rig.go(seconds(1), busy), [(2, 1)]);
}

#[test]
fn a_quiet_machine_gets_its_threads_back() {
    let mut rig = Rig::new();
    rig.go(seconds(1), quiet);
    rig.go(seconds(60), busy);
    assert_eq!(rig.go(LONGEST_REPAY + LONGEST_WAIT, quiet), [(1, 2)]);
    // And once it has been quiet for long, soon.
    rig.go(2 * QUIET, quiet);
    rig.go(Duration::from_millis(500), busy);
    assert_eq!(rig.go(2 * WAIT, quiet), [(1, 2)]);
}

#[test]
fn a_busy_machine_is_left_alone_for_nearly_all_of_the_time() {
    let mut rig = Rig::new();
    rig.go(seconds(1), quiet);
    rig.go(seconds(10), busy);
    let before = rig.steps.clone();
    assert_eq!(rig.go(seconds(100), busy), []);
    let steps = |threads: usize| rig.steps[threads] - before[threads];
    let lost = steps(2) * busy(2);
    assert!(lost <= 2_000_000_000, "{lost} ns in {} steps", steps(2));
}

#[test]
fn what_threads_do_not_help_keeps_its_threads() {
    let mut rig = Rig::new();
    rig.go(seconds(1), quiet);
    assert_eq!(rig.go(seconds(100), slow), []);
    // And is seldom tried again.
    let lost = rig.steps[1] * slow(1);
    assert!(lost <= 2_000_000_000, "{lost} ns");
}

#[test]
fn a_context_that_grows_deeper_is_no_busy_machine() {
    for known in [false, true] {
        let mut rig = if known { Rig::new() } else { Rig::on(ladder(CORES), CORES) };
        let mut step = 0;
        let mut deeper = |threads| {
            step += 1;
            quiet(threads) + quiet(threads) * step / 2_000
        };
        let end = seconds(60);
        while rig.clock < end {
            let took = Duration::from_nanos(deeper(rig.pace.threads()));
            rig.clock += took;
            assert_eq!(rig.pace.step(took), None);
        }
    }
}

#[test]
fn one_hiccup_changes_nothing() {
    let mut rig = Rig::new();
    rig.go(seconds(1), quiet);
    assert_eq!(rig.go(seconds(3), |_| 3_000_000_000), []);
    assert_eq!(rig.go(seconds(10), quiet), []);
}

#[test]
fn a_load_that_found_the_machine_busy_comes_to_all_threads_later() {
    let known = |threads| Some(busy(threads) as f64 * 1e-9);
    let mut rig = Rig::on(ladder(CORES), 1);
    rig.pace = Pace::new(ladder(CORES), 1, known);
    assert_eq!(rig.go(seconds(5), busy), []);
    assert_eq!(rig.go(LONGEST_REPAY + LONGEST_WAIT, quiet), [(1, 2)]);
}

#[test]
fn a_load_onto_a_busy_machine_that_measured_nothing_tries_fewer_once() {
    let mut rig = Rig::on(ladder(CORES), CORES);
    assert_eq!(rig.go(seconds(1), busy), [(2, 1)]);
    // On a quiet machine it costs a window, and is not tried again.
    let mut rig = Rig::on(ladder(CORES), CORES);
    assert_eq!(rig.go(seconds(100), quiet), []);
    assert!(rig.steps[1] * quiet(1) < 200_000_000, "{}", rig.steps[1]);
}

#[test]
fn of_many_cores_one_is_left_to_one_other_program() {
    // ggml's threads wait for the one whose core is shared.
    let machine = |threads: u32| match threads {
        16 => 4_000_000,
        threads => 16_000_000 / u64::from(threads),
    };
    let mut rig = Rig::on(ladder(16), 16);
    rig.go(seconds(1), |threads| 16_000_000 / u64::from(threads));
    assert_eq!(rig.go(seconds(2), machine), [(16, 15)]);
    // Where half of the cores are taken, one less is not enough.
    let half = |threads: u32| match threads {
        9.. => 40_000_000,
        threads => 16_000_000 / u64::from(threads),
    };
    let mut rig = Rig::on(ladder(16), 16);
    rig.go(seconds(1), |threads| 16_000_000 / u64::from(threads));
    assert_eq!(rig.go(seconds(2), half), [(16, 8)]);
}

#[test]
fn a_machine_with_one_core_has_no_choice() {
    let mut rig = Rig::on(ladder(1), 1);
    assert_eq!(rig.go(seconds(10), |_| 1_000_000), []);
    assert_eq!(rig.go(seconds(10), |_| 9_000_000), []);
}

#[test]
fn a_token_of_a_second_is_judged_by_two() {
    let mut rig = Rig::on(ladder(CORES), CORES);
    // A window, and one to see what one thread takes.
    rig.go(seconds(6), |threads| 2_000_000_000 / u64::from(threads));
    let busy = |threads| {
        if threads == 1 { 2_000_000_000 } else { 9_000_000_000 }
    };
    // Two windows of two steps each, and two steps with one thread.
    assert_eq!(rig.go(seconds(40), busy), [(2, 1)]);
    let few: Machine = |_| 500_000_000;
    assert!(rig.go(seconds(120), few).len() <= 1);
}

proptest! {
    /// Whatever steps take, threads are of the ladder, and changes stay few: at most a few at first, and two
    /// per longest wait.
    #[test]
    fn changes_are_bounded(
        cores in 1u32..20,
        start in 1u32..20,
        takes in prop::collection::vec((prop::collection::vec(100_000u64..200_000_000, 20), 1u64..20), 1..12),
    ) {
        let rungs = ladder(cores);
        let mut rig = Rig::on(rungs.clone(), start.min(cores));
        for (nanoseconds, time) in &takes {
            rig.go(seconds(*time), |threads| nanoseconds[threads as usize]);
            prop_assert!(rungs.contains(&rig.pace.threads()));
        }
        let ups = rig.changes.iter().filter(|change| change.to > change.from).count() as u64;
        let all = rig.changes.len() as u64;
        // Each rung that is gone up is one that can be gone down again.
        prop_assert!(all <= 2 * ups + rungs.len() as u64 * (ups + 1), "{:?}", rig.changes);
        let waits = rig.clock.as_secs() / LONGEST_WAIT.as_secs();
        // Waits of 1, 2, 4 and 8 seconds, once more after every quiet time.
        let quiet = rig.clock.as_secs() / QUIET.as_secs();
        prop_assert!(ups <= waits + 4 * (quiet + 1) + 1, "{ups} in {:?}", rig.clock);
    }
}
