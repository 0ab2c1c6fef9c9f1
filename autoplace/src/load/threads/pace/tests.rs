//! Tests on scripted machines: the duration of a step with each number of threads is given, and no clock runs.

use std::fs;
use std::path::Path;

use llama_sys::ThreadWait::{Sleep, Spin};
use proptest::prelude::*;

use super::window::WINDOW;
use super::*;
use crate::machine::FreeCoresWatch;

/// Other work runs in the first window of each size that is seen from now on, or none.
const BESIDE_OTHERS: Watch = Watch(|| Company::Possible);
const ALONE: Watch = Watch(|| Company::Absent);

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
    /// The time at which the clock begins, and the time since then.
    origin: Instant,
    clock: Duration,
    /// The number of parts that were done.
    done: usize,
    /// By how many nanoseconds the steps of trials took longer than with the present threads.
    cost: i128,
}

/// A part of the work of a server.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A step that generates this number of tokens.
    Generate(usize),
    /// A step with draft tokens.
    Draft(usize),
    /// A step with tokens of prompts, or a pause: a time in milliseconds that does not depend on the threads.
    Other(u64),
}
use Part::{Draft, Generate, Other};

impl Rig {
    /// A machine after a load that chose `cores` threads.
    fn on(cores: u32, basis: ThreadBasis) -> Self {
        let chosen = Threads { generation: cores, prompt: cores, basis, prompt_is_asked: false };
        let steps = vec![0; cores as usize + 1];
        // The result must not depend on the present load of this machine.
        let (company, looks) = (Company::Possible, Looks::Told(None));
        let pacer = Pacer { company, watch: BESIDE_OTHERS, looks, ..Pacer::new(&chosen) };
        let (origin, clock) = (Instant::now(), Duration::ZERO);
        Self { pacer, changes: Vec::new(), last: None, steps, origin, clock, done: 0, cost: 0 }
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

    /// Repeats the parts for `time`. The machine has the nanoseconds of a step with these threads and tokens. Returns
    /// the changes.
    fn serve(&mut self, time: Duration, parts: &[Part], mut machine: impl FnMut(u32, usize) -> u64) -> Vec<(u32, u32)> {
        let (end, before) = (self.clock + time, self.changes.len());
        while self.clock < end {
            self.done += 1;
            let (measured, tokens) = match parts[self.done % parts.len()] {
                Generate(tokens) => (Some(tokens), tokens),
                Draft(tokens) => (None, tokens),
                Other(milliseconds) => {
                    self.clock += Duration::from_millis(milliseconds);
                    continue;
                }
            };
            let (threads, present) = (self.pacer.threads(measured), self.pacer.rungs[self.pacer.at]);
            self.steps[threads as usize] += 1;
            let nanoseconds = machine(threads, tokens);
            if threads != present {
                self.cost += i128::from(nanoseconds) - i128::from(machine(present, tokens));
            }
            let took = Duration::from_nanos(nanoseconds);
            self.clock += took;
            let change = self.pacer.step(measured, took, self.origin + self.clock);
            self.changes.extend(change.map(|change| (present, change.threads)));
            self.last = change.or(self.last);
        }
        self.changes[before..].to_vec()
    }

    fn go_on(&mut self, time: Duration, tokens: usize, mut machine: impl FnMut(u32) -> u64) -> Vec<(u32, u32)> {
        self.serve(time, &[Generate(tokens)], |threads, _| machine(threads))
    }

    /// The time of this work after which all threads generate, at most `most`.
    fn until_all(&mut self, most: Duration, parts: &[Part], machine: impl Fn(u32, usize) -> u64) -> Duration {
        let begun = self.clock;
        while self.pacer.at > 0 && self.clock < begun + most {
            self.serve(Duration::from_millis(100), parts, &machine);
        }
        self.clock - begun
    }

    /// No other work runs until [`company_comes`](Self::company_comes).
    fn be_alone(&mut self) {
        (self.pacer.company, self.pacer.watch) = (Company::Absent, ALONE);
    }

    /// From now on, other work runs beside the steps, also in first windows that have begun.
    fn company_comes(&mut self) {
        self.pacer.watch = BESIDE_OTHERS;
        let undecided = self.pacer.sizes.iter_mut().filter(|size| !size.is_known());
        undecided.for_each(|size| size.company = Company::Possible);
    }

    /// Other work leaves this number of cores free from now on, or the system does not report it.
    fn free(&mut self, cores: Option<u32>) {
        self.pacer.looks = Looks::Told(cores);
    }

    /// Goes on until the next trial begins. If none begins, there will be none.
    fn until_trial(&mut self, parts: &[Part], machine: impl Fn(u32, usize) -> u64) {
        let end = self.clock + seconds(1000);
        for has_trial in [true, false] {
            while self.pacer.trial.is_some() == has_trial && self.clock < end {
                self.serve(Duration::from_millis(1), parts, &machine);
            }
        }
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
        rig.be_alone();
        rig.go(QUIET_START - WINDOW, |_| 10_000_000);
        assert_eq!(rig.steps[..cores as usize].iter().sum::<u64>(), 0);
        rig.go(seconds(2), |_| 10_000_000);
        assert_ne!(rig.steps[1], 0, "a long text tries once");
    }
}

#[test]
fn other_work_that_comes_to_a_quiet_machine_is_not_waited_out() {
    let mut rig = Rig::cores(2);
    rig.be_alone();
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
    assert_eq!(rig.pacer.batch(false, None).several, 2);
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
    assert_eq!(rig.go(MAX_WAIT_OF_FEWER + seconds(1), quiet), [(1, 2)]);
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

/// Two free cores: the nanoseconds of a step with several tokens.
fn quiet_batch(threads: u32, tokens: usize) -> u64 {
    (10 + 4 * tokens as u64) * 1_000_000 * if threads == 1 { 3 } else { 2 } / 2
}

/// The same two cores beside a compiler.
fn busy_batch(threads: u32, tokens: usize) -> u64 {
    if threads == 1 { 2 * quiet_batch(1, tokens) } else { 10 * quiet_batch(2, tokens) }
}

/// Eight places of a server. Texts end and others begin, and prompts are computed meanwhile.
const SERVER: &[Part] = &[
    Generate(8),
    Generate(8),
    Generate(8),
    Generate(6),
    Other(330),
    Generate(6),
    Generate(5),
    Other(330),
    Generate(6),
    Other(330),
];

#[test]
fn steps_of_other_sizes_are_not_compared() {
    let mut rig = Rig::new();
    let parts = [Generate(1), Generate(8), Generate(64)];
    // A step with 64 tokens takes sixteen times as long as one with a single token.
    assert_eq!(rig.serve(seconds(60), &parts, quiet_batch), []);
}

#[test]
fn a_server_whose_batches_change_their_size_follows_the_machine() {
    let mut rig = Rig::cores(2);
    rig.serve(seconds(30), SERVER, quiet_batch);
    assert_eq!(rig.pacer.at, 0);
    assert_eq!(rig.serve(seconds(30), SERVER, busy_batch), [(2, 1)]);
    rig.serve(seconds(600), SERVER, busy_batch);
    let back = rig.until_all(seconds(600), SERVER, quiet_batch);
    assert!(back < MAX_WAIT_OF_FEWER + seconds(10), "{back:?}");
}

#[test]
fn a_size_that_is_first_seen_beside_other_work_is_tried() {
    let mut rig = Rig::cores(2);
    rig.be_alone();
    assert_eq!(rig.serve(seconds(30), &[Generate(1)], quiet_batch), []);
    // Eight texts at once are slow from their first step on, so no later step is slower than usual.
    rig.company_comes();
    assert_eq!(rig.serve(seconds(3), &[Generate(8)], busy_batch), [(2, 1)]);
}

#[test]
fn a_size_that_is_first_seen_on_a_quiet_machine_is_not_tried() {
    let mut rig = Rig::cores(2);
    rig.be_alone();
    rig.serve(seconds(30), &[Generate(1)], quiet_batch);
    let before = rig.steps[1];
    assert_eq!(rig.serve(seconds(30), SERVER, quiet_batch), []);
    assert_eq!(rig.steps[1], before);
}

#[test]
fn a_prompt_after_each_step_does_not_delay_the_return_to_all_threads() {
    let mut rig = Rig::cores(2);
    let parts = [Generate(8), Other(500)];
    rig.serve(seconds(100), &parts, busy_batch);
    assert_eq!(rig.pacer.at, 1);
    let back = rig.until_all(seconds(600), &parts, quiet_batch);
    assert!(back < MAX_WAIT_OF_FEWER + seconds(10), "{back:?}");
}

#[test]
fn texts_of_three_tokens_with_pauses_get_all_threads_back() {
    let mut rig = Rig::cores(2);
    let parts = [Generate(1), Generate(1), Generate(1), Other(1000)];
    rig.serve(seconds(200), &parts, busy_batch);
    assert_eq!(rig.pacer.at, 1);
    let back = rig.until_all(seconds(600), &parts, quiet_batch);
    assert!(back < MAX_WAIT_OF_FEWER + seconds(15), "{back:?}");
}

#[test]
fn steps_that_are_not_measured_get_all_threads_back() {
    let mut rig = Rig::cores(2);
    rig.serve(seconds(60), &[Generate(1)], busy_batch);
    assert_eq!(rig.pacer.generating().threads, 1);
    let back = rig.until_all(seconds(600), &[Draft(8)], quiet_batch);
    assert!(back < MAX_WAIT_OF_FEWER + OVERDUE + seconds(1), "{back:?}");
    assert_eq!((rig.pacer.generating().threads, rig.pacer.threads(None)), (2, 2));
    // The other work is back, and the texts have no drafts any more.
    assert_eq!(rig.serve(seconds(5), &[Generate(1)], busy_batch), [(2, 1)]);
}

#[test]
fn a_trial_whose_size_never_comes_again_is_given_up() {
    let mut rig = Rig::cores(2);
    rig.serve(seconds(60), &[Generate(8)], busy_batch);
    while rig.pacer.trial.is_none() {
        rig.serve(Duration::from_millis(1), &[Generate(8)], busy_batch);
    }
    let back = rig.until_all(seconds(600), &[Generate(1)], quiet_batch);
    assert!(back < MAX_WAIT_OF_FEWER, "{back:?}");
}

#[test]
fn after_trials_that_cost_seconds_a_much_faster_machine_is_tried_soon() {
    let mut rig = Rig::cores(2);
    // The lowest priority beside many programs: a step with all threads takes five seconds.
    let starved = |threads: u32, tokens: usize| if threads == 1 { 8 * quiet_batch(1, tokens) } else { 5_000_000_000 };
    rig.serve(seconds(300), &[Generate(8)], starved);
    assert_eq!(rig.pacer.at, 1);
    while rig.pacer.trial.is_none() {
        rig.serve(Duration::from_millis(1), &[Generate(8)], starved);
    }
    rig.serve(Duration::from_millis(1), &[Generate(8)], starved);
    assert!(rig.pacer.next_trial > Some(rig.origin + rig.clock + seconds(40)));
    let back = rig.until_all(seconds(600), &[Generate(8)], quiet_batch);
    assert!(back < MAX_WAIT_OF_FEWER + seconds(2), "{back:?}");
}

#[test]
fn a_text_that_begins_on_a_busy_machine_tries_fewer_at_once() {
    assert_eq!(Rig::cores(2).go(seconds(1), busy), [(2, 1)]);
}

#[test]
fn a_short_text_beside_other_work_keeps_the_threads_of_its_first_change() {
    // SmolLM2 beside two busy loops: 16 ms for a token with two threads, 10 ms with one.
    let machine = |threads: u32| if threads == 1 { 10_000_000 } else { 16_000_000 };
    let mut rig = Rig::cores(2);
    assert_eq!(rig.go(Duration::from_millis(400), machine), [(2, 1)]);
    let with_two = rig.steps[2];
    // 60 tokens end before the next trial.
    assert_eq!(rig.go(Duration::from_millis(600), machine), []);
    assert_eq!(rig.steps[2], with_two);
}

/// Writes the counters of a machine on which `others` threads of other programs run, and a thread of this process has
/// waited for a core for `waited` seconds.
fn counters(root: &Path, others: u32, waited: u64) {
    let thread = root.join("proc/self/task/7");
    fs::create_dir_all(&thread).unwrap();
    fs::write(thread.join("schedstat"), format!("1 {} 1\n", waited * 1_000_000_000)).unwrap();
    fs::write(root.join("proc/loadavg"), format!("0.0 0.0 0.0 {}/99 7\n", others + 1)).unwrap();
}

/// The rig after a prompt whose thread waited for a core for `waited` seconds while `others` threads of other programs
/// ran.
fn after_a_prompt(mut rig: Rig, others: u32, waited: u64) -> Rig {
    let now = rig.origin + rig.clock;
    let root = tempfile::tempdir().unwrap();
    counters(root.path(), others, 0);
    rig.pacer.company = Company::Prompt(ConditionsWatch::begin_under(root.path()));
    rig.pacer.begins(false, now);
    counters(root.path(), others, waited);
    rig.pacer.begins(true, now);
    rig
}

#[test]
fn the_threads_of_a_prompt_beside_other_work_sleep_at_once() {
    let wait = |mut rig: Rig, others: u32, free: Option<u32>| {
        let root = tempfile::tempdir().unwrap();
        counters(root.path(), others, 0);
        rig.pacer.company = Company::Prompt(ConditionsWatch::begin_under(root.path()));
        rig.free(free);
        let now = rig.origin + rig.clock;
        rig.pacer.begins(false, now);
        let BatchThreads { several, wait, .. } = rig.pacer.batch(false, None);
        assert_eq!(several, rig.pacer.rungs[0]);
        wait
    };
    // Nothing was generated yet, so nobody has looked; the threads that run when the prompt begins decide.
    assert_eq!([0, 1, 5].map(|others| wait(Rig::cores(2), others, None)), [Spin, Sleep, Sleep]);
    // A look is more certain than one moment.
    assert_eq!(wait(Rig::cores(2), 1, Some(2)), Spin);
    assert_eq!(wait(Rig::cores(2), 0, Some(1)), Sleep);
    let mut asked = Rig::on(2, ThreadBasis::Asked).pacer;
    asked.company = Company::Unwatched;
    asked.begins(false, Instant::now());
    assert_eq!(asked.batch(false, None).wait, Spin, "requested threads do not depend on other work");
    assert_eq!(Rig::cores(2).pacer.batch(false, None).wait, Spin, "the system reports nothing");
}

#[test]
fn a_draft_is_computed_with_the_threads_of_the_text_and_at_most_its_own() {
    let mut rig = Rig::cores(2);
    let threads = |rig: &Rig| {
        let BatchThreads { one, several, wait } = rig.pacer.draft();
        (one, several, wait)
    };
    assert_eq!(threads(&rig), (2, 2, Spin));
    rig.free(Some(1));
    assert_eq!(rig.go(seconds(1), busy), [(2, 1)]);
    assert_eq!(threads(&rig), (1, 2, Sleep));
    let own = rig.pacer.draft().at_most(4, 1);
    assert_eq!(own, BatchThreads { one: 1, several: 1, wait: Sleep });
}

#[test]
fn a_text_whose_prompt_waited_for_cores_begins_with_the_free_ones_or_half() {
    let cases = [
        (2, 0, 2),
        (2, 1, 1),
        (2, 5, 1),
        // A single one of three cores is less than half.
        (3, 1, 3),
        (4, 1, 3),
        (4, 2, 2),
        (6, 2, 3),
        (16, 1, 15),
        (16, 7, 8),
        (16, 40, 8),
    ];
    for (cores, others, expected) in cases {
        let threads = |waited| after_a_prompt(Rig::cores(cores), others, waited).pacer.threads(Some(1));
        // The prompt takes much less than a thousand seconds.
        assert_eq!((threads(0), threads(1000)), (cores, expected), "{others} beside {cores} cores");
    }
    let asked = after_a_prompt(Rig::on(4, ThreadBasis::Asked), 4, 1000);
    assert_eq!(asked.pacer.threads(Some(1)), 4);
}

#[test]
fn a_short_text_whose_prompt_waited_for_cores_tries_no_more_threads() {
    let machine = |threads: u32| if threads == 1 { 10_000_000 } else { 16_000_000 };
    let mut rig = after_a_prompt(Rig::cores(2), 2, 1000);
    assert_eq!(rig.go(Duration::from_millis(600), machine), []);
    assert_eq!(rig.steps, [0, 60, 0]);
    // A long text tries them, and more threads are used as soon as they are faster.
    assert_eq!(rig.go(seconds(10), machine), []);
    assert_ne!(rig.steps[2], 0);
    assert_eq!(rig.go(MAX_WAIT_OF_FEWER + seconds(1), quiet), [(1, 2)]);
}

/// A model of 2 GiB beside two busy loops.
const LONG_WITH_ONE: u64 = 170_000_000;

#[test]
fn a_text_of_long_steps_beside_other_work_tries_more_threads_after_two_windows() {
    let mut rig = after_a_prompt(Rig::cores(2), 2, 1000);
    // The system runs the other work on another core after two steps with two threads.
    let mut with_two = 0;
    let machine = |threads: u32| {
        with_two += u32::from(threads == 2);
        match (threads, with_two) {
            (1, _) => LONG_WITH_ONE,
            (_, ..3) => 200_000_000,
            _ => 110_000_000,
        }
    };
    assert_eq!(rig.go(seconds(3), machine), [(1, 2)]);
    assert_eq!(rig.steps[1], 4, "two windows of two steps");
}

#[test]
fn a_trial_of_more_threads_than_free_cores_ends_after_three_windows_without_a_gain() {
    let mut rig = after_a_prompt(Rig::cores(2), 2, 1000);
    let machine = |threads: u32| if threads == 1 { LONG_WITH_ONE } else { 200_000_000 };
    assert_eq!(rig.go(seconds(3), machine), []);
    assert_eq!(rig.steps[2], 6, "three windows of two steps");
    // The loops run in another session, which gets half of each core.
    let mut rig = after_a_prompt(Rig::cores(2), 2, 1000);
    let machine = |threads: u32| if threads == 1 { LONG_WITH_ONE } else { 255_000_000 };
    assert_eq!(rig.go(seconds(3), machine), []);
    assert_eq!(rig.steps[2], 2, "one window is enough if a step takes half as long again");
}

#[test]
fn a_prompt_after_a_pause_chooses_anew() {
    let mut rig = Rig::new();
    let now = |rig: &Rig| rig.origin + rig.clock;
    let is_watched = |rig: &Rig| matches!(rig.pacer.company, Company::Prompt(_));
    rig.pacer.ends(now(&rig));
    for (pause, generates, is_new) in [(PAUSE / 2, false, false), (PAUSE, true, false), (PAUSE, false, true)] {
        rig.clock += pause;
        rig.pacer.begins(generates, now(&rig));
        assert_eq!(is_watched(&rig), is_new, "{pause:?}, {generates}");
        rig.pacer.ends(now(&rig));
    }
    // Other work has come.
    let mut rig = after_a_prompt(rig, 2, 1000);
    assert_eq!(rig.pacer.threads(Some(1)), 1);
    assert_eq!(rig.go(Duration::from_millis(900), busy), []);
    // It has gone again.
    let mut rig = after_a_prompt(rig, 2, 0);
    assert_eq!(rig.pacer.threads(Some(1)), 2);
    assert_eq!(rig.go(Duration::from_millis(900), quiet), []);
}

#[test]
fn after_a_pause_beside_other_work_fewer_threads_are_kept() {
    let mut rig = Rig::cores(16);
    // Two programs with a thread each, and four threads are the fastest.
    let machine = |threads: u32| if threads > 4 { 100_000_000 } else { 160_000_000 / u64::from(threads) };
    rig.go(seconds(10), machine);
    assert_eq!(rig.pacer.threads(Some(1)), 4);
    let rig = after_a_prompt(rig, 2, 1000);
    assert_eq!(rig.pacer.threads(Some(1)), 4);
}

#[test]
fn a_text_whose_prompt_waited_for_cores_tries_fewer_threads_at_once() {
    let mut rig = after_a_prompt(Rig::cores(16), 1, 1000);
    // Eight threads are the fastest, although a single other thread was seen.
    let machine = |threads: u32| if threads > 8 { 100_000_000 } else { 160_000_000 / u64::from(threads) };
    assert_eq!(rig.go(seconds(1), machine), [(15, 8)]);
}

#[test]
fn more_threads_that_were_fast_by_chance_are_taken_back() {
    let mut rig = after_a_prompt(Rig::cores(2), 2, 1000);
    rig.free(None);
    // Gemma 3 beside two busy loops: after a while with one thread, two threads are fast for 300 ms.
    let mut with_two = 0;
    let machine = |threads: u32| {
        with_two = if threads == 2 { with_two + 1 } else { 0 };
        match (threads, with_two) {
            (1, _) => 19_000_000,
            (_, ..16) => 18_000_000,
            _ => 26_000_000,
        }
    };
    let changes = rig.go(seconds(60), machine);
    assert_eq!(changes[..2], [(1, 2), (2, 1)]);
    let lost = rig.steps[2] * 7_000_000;
    assert!(lost < seconds(4).as_nanos() as u64, "{lost} ns, {changes:?}");
}

/// Gemma 3 beside two busy loops: one thread, and two threads in the windows in which they are fast by chance.
const ONE_BESIDE_LOOPS: u64 = 19_000_000;
const TWO_BY_CHANCE: u64 = 14_000_000;

#[test]
fn more_threads_than_free_cores_are_tried_at_length() {
    let mut rig = Rig::cores(2);
    rig.free(Some(0));
    // The rig also asks for the time with one thread in each step of a trial.
    let (mut with_two, mut with_one) = (0, 0);
    let machine = |threads: u32| {
        with_one = if threads == 1 { with_one + 1 } else { 0 };
        match threads {
            1 => {
                with_two = if with_one > 1 { 0 } else { with_two };
                ONE_BESIDE_LOOPS
            }
            _ => {
                with_two += 1;
                // 300 ms.
                if with_two < 22 { TWO_BY_CHANCE } else { 35_000_000 }
            }
        }
    };
    assert_eq!(rig.go(seconds(1), |threads| if threads == 1 { ONE_BESIDE_LOOPS } else { 35_000_000 }), [(2, 1)]);
    let before = rig.steps[2];
    assert_eq!(rig.go(seconds(60), machine), []);
    // Each trial goes on until the slow steps outweigh the fast ones.
    assert!(rig.steps[2] - before > 5 * 22, "{}", rig.steps[2] - before);
}

#[test]
fn more_threads_than_free_cores_are_used_while_they_are_faster_on_average() {
    let mut rig = Rig::cores(2);
    rig.free(Some(1));
    let crowded = |threads: u32| if threads == 1 { quiet(1) } else { 2 * quiet(1) };
    assert_eq!(rig.go(seconds(20), crowded), [(2, 1)]);
    assert_eq!(rig.pacer.wait(Some(1)), Spin);
    // The other programs have the lowest priority now, so they take no time from this one.
    assert_eq!(rig.go(MAX_WAIT_OF_FEWER + seconds(2), quiet), [(1, 2)]);
    assert_eq!(rig.go(seconds(60), quiet), []);
    assert_eq!(rig.pacer.wait(Some(1)), Sleep);
    // Now each second window is slow: never two in a row, but the average is slower than with one thread.
    let mut clock = 0;
    let alternating = |threads: u32| {
        let took = match (threads, clock / 100_000_000 % 2) {
            (1, _) => quiet(1),
            (_, 0) => quiet(2),
            _ => 3 * quiet(1),
        };
        clock += took;
        took
    };
    assert_eq!(rig.go(seconds(5), alternating), [(2, 1)]);
}

#[test]
fn a_trial_of_a_size_is_compared_with_measured_steps_of_this_size() {
    let mut rig = Rig::cores(2);
    let free = |_: u32, tokens: usize| if tokens == 1 { 10_000_000 } else { 200_000_000 };
    rig.serve(seconds(5), &[Generate(1), Generate(8)], free);
    rig.free(Some(1));
    // A step with one token becomes 33 times as fast as beside the other work. One with eight tokens does not.
    let busy = |threads: u32, tokens: usize| match (tokens, threads) {
        (1, 1) => 9_000_000,
        (1, _) => 300_000_000,
        (_, 1) => 100_000_000,
        _ => 60_000_000,
    };
    assert_eq!(rig.serve(seconds(5), &[Generate(1)], busy), [(2, 1)]);
    assert_eq!(rig.serve(seconds(30), &[Generate(8)], busy), [(1, 2)]);
}

#[test]
fn other_work_that_takes_cores_is_noticed_although_the_steps_become_little_slower() {
    let mut rig = Rig::cores(2);
    rig.be_alone();
    rig.free(Some(2));
    assert_eq!(rig.go(seconds(5), quiet), []);
    let beside = |threads: u32| if threads == 1 { quiet(1) * 9 / 10 } else { quiet(2) * 14 / 10 };
    assert_eq!(rig.go(seconds(5), beside), [], "nobody has looked");
    rig.free(Some(1));
    assert_eq!(rig.go(seconds(1), beside), [(2, 1)]);
    // A tenth is enough for a number of threads for which cores are free.
    let mut rig = Rig::cores(2);
    rig.be_alone();
    rig.free(Some(1));
    assert_eq!(rig.go(seconds(5), |threads| if threads == 1 { 105 } else { 100 } * 4_000), [(2, 1)]);
}

#[test]
fn each_second_a_look_counts_the_cores_that_other_work_leaves_free() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/self")).unwrap();
    let write = |busy: u32, own: u32| {
        let cores = "cpu0\ncpu1\ncpu2\ncpu3\n";
        fs::write(root.path().join("proc/stat"), format!("cpu {busy} 0 0 0 0 0 0 0\n{cores}")).unwrap();
        fs::write(root.path().join("proc/self/stat"), format!("7 (name) R 0 0 0 0 0 0 0 0 0 0 {own} 0")).unwrap();
    };
    write(1000, 0);
    let begin = Instant::now();
    let mut looks = Looks::Watching(FreeCoresWatch::begin_under(root.path()), begin, None);
    let mut free = |milliseconds: u64, busy: u32, own: u32| {
        write(busy, own);
        looks.look(begin + Duration::from_millis(milliseconds));
        looks.free()
    };
    assert_eq!(free(500, 1100, 100), None, "the first look is not over");
    // 290 of 390 hundredths of a second are this process's own.
    assert_eq!(free(1000, 1390, 290), Some(3));
    assert_eq!(free(1900, 1390, 290), Some(3));
    // 150 of 350, in two seconds.
    assert_eq!(free(3000, 1740, 440), Some(3));
    assert_eq!(free(4000, 1800, 500), Some(4), "no other process ran");
    // 79 hundredths of a core are no core.
    assert_eq!(free(5000, 1979, 600), Some(4));
    assert_eq!(free(6000, 2159, 700), Some(3));
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
        free in free_cores(),
        takes in prop::collection::vec((prop::collection::vec(100_000u64..200_000_000, 20), 1u64..60), 1..12),
    ) {
        let mut rig = Rig::cores(cores);
        rig.free(free);
        let rungs = ladder(cores);
        for (nanoseconds, time) in &takes {
            let changes = rig.go(seconds(*time), |threads| nanoseconds[threads as usize]);
            prop_assert!(rungs.contains(&rig.pacer.threads(Some(1))));
            prop_assert!(changes.len() <= 3, "{changes:?}");
        }
    }

    /// Whatever happened before, all threads are used from some time on, if they are the fastest: after twice the
    /// longest pause between trials (a trial that measured the old machine may have been the last), and the time of two
    /// trials.
    #[test]
    fn the_return_to_all_threads_is_bounded(
        cores in 2u32..4,
        history in prop::collection::vec((machines(), works(), free_cores(), 1u64..40), 1..6),
        (nanoseconds, parts) in (1_500_000u64..2_500_000, works()),
    ) {
        let mut rig = Rig::cores(cores);
        for (machine, parts, free, time) in &history {
            rig.free(*free);
            rig.serve(seconds(*time), parts, |threads, tokens| machine[threads as usize] * (4 + tokens as u64));
        }
        let free = |threads: u32, tokens: usize| nanoseconds * (4 + tokens as u64) * u64::from(12 / threads) / 3;
        rig.serve(2 * MAX_WAIT_OF_FEWER + seconds(20), &parts, free);
        for _ in 0..100 {
            rig.serve(seconds(1), &parts, free);
            prop_assert_eq!(rig.pacer.at, 0);
        }
    }

    /// Whatever the quiet machine has computed before, fewer threads generate beside other work if they are faster.
    #[test]
    fn fewer_threads_are_found_beside_other_work(
        cores in 2u32..4,
        nanoseconds in 1_500_000u64..2_500_000,
        history in prop::collection::vec((works(), 1u64..40), 0..6),
        (slower, parts, seen) in (12u64..20, works(), free_cores()),
    ) {
        let mut rig = Rig::cores(cores);
        rig.be_alone();
        let free = |threads: u32, tokens: usize| nanoseconds * (4 + tokens as u64) * u64::from(12 / threads) / 3;
        for (parts, time) in &history {
            prop_assert_eq!(rig.serve(seconds(*time), parts, free), []);
        }
        rig.company_comes();
        rig.free(seen);
        let busy = |threads: u32, tokens: usize| free(threads, tokens) * if threads == 1 { 2 } else { slower };
        // After the longest pause there are two windows and a trial, in which all sizes of steps take their turns.
        rig.serve(MAX_WAIT + seconds(200), &parts, busy);
        prop_assert_eq!(rig.pacer.rungs[rig.pacer.at], 1);
    }

    /// While other work goes on, trials take at most a tenth of the time.
    #[test]
    fn trials_cost_at_most_a_tenth_of_the_time(
        cores in 2u32..9,
        machine in prop::collection::vec(1_000_000u64..2_000_000_000, 9),
        (parts, free) in (works(), free_cores()),
    ) {
        let mut rig = Rig::cores(cores);
        rig.free(free);
        let machine = |threads: u32, tokens: usize| machine[threads as usize] * (4 + size_of(tokens) as u64) / 8;
        // The cost of a trial is repaid by the pause after it.
        rig.serve(seconds(200), &parts, machine);
        rig.until_trial(&parts, machine);
        let (begun, before) = (rig.clock, rig.cost);
        rig.serve(seconds(300), &parts, machine);
        rig.until_trial(&parts, machine);
        let (cost, time) = (rig.cost - before, (rig.clock - begun).as_nanos() as i128);
        prop_assert!(cost * 10 <= time, "{cost} of {time} ns");
    }
}

/// The nanoseconds of a step with each number of threads, for four tokens.
fn machines() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(100_000u64..8_000_000, 5)
}

/// The number of cores that other work leaves free, right or wrong.
fn free_cores() -> impl Strategy<Value = Option<u32>> {
    prop::option::of(0u32..10)
}

/// The work of a server: at least one part is measured.
fn works() -> impl Strategy<Value = Vec<Part>> {
    let part = prop_oneof![
        4 => (1usize..9).prop_map(Generate),
        1 => (1usize..9).prop_map(Draft),
        1 => (1u64..20).prop_map(Other),
    ];
    (1usize..9, prop::collection::vec(part, 0..8)).prop_map(|(tokens, mut parts)| {
        parts.push(Generate(tokens));
        parts
    })
}
