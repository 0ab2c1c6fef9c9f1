//! Tests of the rules on scripted samples; `laws` covers arbitrary samples.

mod laws;

use std::time::Duration;

use super::Rules;
use crate::load::{Generated, GeneratingThreads};
use crate::machine::{GpuProcess, ThrottleReason, mib};
use crate::watch::depth::DepthCost;
use crate::watch::event::{Cause, Event};
use crate::watch::sample::{DeviceSample, Sample, Watched, WatchedDevice};
use crate::watch::settings::Settings;

const NEEDED: u64 = mib(100);
const HOT: [ThrottleReason; 1] = [ThrottleReason::Heat];

/// A watched model on two GPUs, with one second per step. The driver of the second GPU spills.
struct Rig {
    rules: Rules,
    second: u64,
    generated: Generated,
}

impl Rig {
    fn new() -> Self {
        Self::with_cost(DepthCost::default())
    }

    fn with_cost(cost: DepthCost) -> Self {
        Self::with(cost, Settings::default())
    }

    fn with(cost: DepthCost, settings: Settings) -> Self {
        let device = |name: &str, room, spills| WatchedDevice {
            device: name.to_owned(),
            needed: NEEDED,
            room,
            left: None,
            notable: mib(256),
            spills,
        };
        let watched = Watched {
            devices: vec![device("SIM0", Some(mib(500)), false), device("SIM1", None, true)],
            depth_cost: cost,
            ..Watched::default()
        };
        Self { rules: Rules::new(settings, watched), second: 0, generated: Generated::default() }
    }

    fn step(&mut self, sample: &Sample) -> Vec<Event> {
        let mut events = Vec::new();
        let at = Duration::from_secs(self.second);
        self.rules.step(at, sample, &mut events);
        self.second += 1;
        events
    }

    /// Takes the same sample again each second, for `seconds` seconds.
    fn steps(&mut self, seconds: u64, sample: &Sample) -> Vec<Event> {
        (0..seconds).flat_map(|_| self.step(sample)).collect()
    }

    /// One second of generation with `tokens` tokens at this depth.
    fn generate(&mut self, tokens: u64, depth: u64, mut sample: Sample) -> Vec<Event> {
        self.generated.tokens += tokens;
        self.generated.time += Duration::from_secs(1);
        self.generated.depths += tokens * depth;
        sample.generated = self.generated;
        self.step(&sample)
    }

    fn generate_for(&mut self, seconds: u64, tokens: u64, depth: u64) -> Vec<Event> {
        (0..seconds).flat_map(|_| self.generate(tokens, depth, roomy())).collect()
    }
}

fn sample(devices: [DeviceSample; 2]) -> Sample {
    Sample { devices: devices.to_vec(), ..Sample::default() }
}

fn on_first(device: DeviceSample) -> Sample {
    sample([device, DeviceSample::new(mib(900))])
}

fn roomy() -> Sample {
    on_first(DeviceSample::new(mib(900)))
}

fn slowdown(events: &[Event]) -> (f64, f64, Cause) {
    match events {
        [Event::Slowdown { expected, observed, likely_cause }] => (*expected, *observed, likely_cause.clone()),
        other => panic!("{other:?}"),
    }
}

const fn with_threads(threads: u32, most: u32) -> GeneratingThreads {
    GeneratingThreads { threads, most, before: 33.0, after: 1065.0 }
}

#[test]
fn fewer_threads_are_reported_at_once_and_their_end_after_calm() {
    let mut rig = Rig::new();
    let with = |threads| Sample { threads: Some(with_threads(threads, 2)), ..roomy() };
    assert_eq!(rig.step(&with(2)), []);
    let fewer = Event::FewerThreads { threads: 1, most: 2, before: 33.0, observed: 1065.0 };
    assert_eq!(fewer.to_string(), "1 of 2 threads generate: 1065.0 tokens per second instead of 33.0");
    let from_a_prompt = Event::FewerThreads { threads: 1, most: 2, before: 0.0, observed: 0.0 };
    assert_eq!(from_a_prompt.to_string(), "1 of 2 threads generate, because other programs need cores");
    assert_eq!(rig.step(&with(1)), *std::slice::from_ref(&fewer));
    assert_eq!(rig.steps(10, &with(1)), []);
    // If the value is unknown, for example for a model in a worker, no event ends.
    assert_eq!(rig.steps(10, &roomy()), []);
    let restored = Event::ThreadsRestored { threads: 2 };
    assert_eq!(restored.to_string(), "2 threads generate again");
    assert!(restored.is_end());
    assert_eq!(rig.steps(10, &with(2)), [restored]);
    // When the watching ends, so do all events that have begun.
    assert_eq!(rig.step(&with(1)), [fewer]);
    let mut events = Vec::new();
    rig.rules.end(&mut events);
    assert_eq!(events, [Event::ThreadsRestored { threads: 2 }]);
}

#[test]
fn patience_and_calm_last_as_long_as_requested() {
    let hot = on_first(DeviceSample::new(mib(900)).throttle(HOT, None));
    let cool = on_first(DeviceSample::new(mib(900)).throttle([], None));
    for (patience, calm, samples) in [(None, None, [3, 6]), (Some(0), Some(1), [1, 2]), (Some(7), Some(12), [8, 13])] {
        let [patience, calm] = [patience, calm].map(|seconds| seconds.map(Duration::from_secs));
        let mut rig = Rig::with(DepthCost::default(), Settings { patience, calm, ..Settings::default() });
        let until_event = |sample| (1..).find(|_| !rig.step(sample).is_empty());
        assert_eq!([&hot, &cool].map(until_event), samples.map(Some), "{patience:?}, {calm:?}");
    }
}

#[test]
fn a_model_is_slow_below_the_requested_fraction() {
    let speeds = |settings: Settings, from: u64, to: u64| {
        let mut rig = Rig::with(DepthCost::default(), settings);
        rig.generate_for(10, from, 0);
        rig.generate_for(30, to, 0).len()
    };
    let slow = |slow| Settings { slow, ..Settings::default() };
    let parts = [(0.7, 40), (0.7, 30), (0.9, 40), (0.5, 30), (0.5, 20), (0.0, 1)];
    assert_eq!(parts.map(|(part, to)| speeds(slow(part), 50, to)), [0, 1, 1, 0, 1, 0]);
    // The model's own speed is known after the warm-up and a window.
    let tokens = |warm_up, window| Settings { warm_up, window, ..Settings::default() };
    assert_eq!(speeds(tokens(16, 32), 50, 10), 1);
    assert_eq!([(1000, 32), (16, 1000)].map(|(warm_up, window)| speeds(tokens(warm_up, window), 50, 10)), [0, 0]);
    let mut quick = Rig::with(DepthCost::default(), tokens(0, 1));
    quick.generate_for(2, 50, 0);
    let events: Vec<Event> = quick.generate_for(3, 10, 0);
    assert_eq!(slowdown(&events).1.round(), 10.0);
}

#[test]
fn memory_pressure_is_reported_at_once_and_its_end_after_calm() {
    let mut rig = Rig::new();
    assert_eq!(rig.step(&roomy()), []);
    let low = on_first(DeviceSample::new(NEEDED - 1));
    let expected = Event::MemoryPressure { device: "SIM0".to_owned(), free: NEEDED - 1, needed: NEEDED };
    assert_eq!(rig.step(&low), [expected]);
    assert_eq!(rig.steps(20, &low), []);
    // A little more memory is not enough.
    assert_eq!(rig.steps(20, &on_first(DeviceSample::new(NEEDED + mib(24)))), []);
    let (device, free) = ("SIM0".to_owned(), NEEDED + mib(25));
    let enough = on_first(DeviceSample::new(free));
    assert_eq!(rig.steps(20, &enough), [Event::MemoryRelieved { device, free }]);
}

#[test]
fn more_room_is_reported_again_when_it_lasts() {
    let mut rig = Rig::new();
    let mut gained = |free| rig.steps(20, &on_first(DeviceSample::new(mib(free)))).len();
    // A layer takes 500 MiB.
    assert_eq!([900, 1399, 1400, 1899, 1900, 1500, 2399, 2400, 1100].map(&mut gained), [0, 0, 1, 0, 1, 0, 0, 1, 1]);
}

#[test]
fn heat_is_reported_after_patience_and_the_power_limit_never() {
    let mut rig = Rig::new();
    let busy = DeviceSample::new(mib(900)).throttle([ThrottleReason::PowerLimit], Some(70));
    let busy = on_first(busy);
    assert_eq!(rig.steps(20, &busy), []);
    let reasons = [ThrottleReason::PowerLimit, ThrottleReason::Heat];
    let hot = on_first(DeviceSample::new(mib(900)).throttle(reasons, Some(91)));
    assert_eq!(rig.steps(2, &hot), []);
    let expected = Event::Throttled { device: "SIM0".to_owned(), reasons: HOT.to_vec(), temperature: Some(91) };
    assert_eq!(rig.step(&hot), [expected]);
    let expected = Event::Unthrottled { device: "SIM0".to_owned(), temperature: Some(70) };
    assert_eq!(rig.steps(20, &busy), [expected]);
}

#[test]
fn only_a_program_that_came_or_grew_is_reported() {
    let mut rig = Rig::new();
    let with = |processes: &[(u32, u64)]| {
        let processes = processes.iter().map(|&(pid, bytes)| GpuProcess::new(pid).name("game").bytes(mib(bytes)));
        on_first(DeviceSample::new(mib(900)).processes(processes.collect::<Vec<_>>()))
    };
    let (name, device) = (Some("game".to_owned()), "SIM0".to_owned());
    let came = |pid, bytes| Event::OtherProcess { name: name.clone(), pid, bytes: mib(bytes), device: device.clone() };
    let gone = |pid| Event::OtherProcessGone { name: name.clone(), pid, device: device.clone() };
    assert_eq!(rig.step(&with(&[(1, 2000)])), []);
    assert_eq!(rig.step(&with(&[(1, 2100), (2, 100)])), []);
    assert_eq!(rig.step(&with(&[(1, 2256), (2, 300)])), [came(1, 2256), came(2, 300)]);
    // It is not enough if the program releases half of what it had taken. The memory that the program had at first does
    // not count.
    assert_eq!(rig.steps(20, &with(&[(1, 2200), (2, 128)])), []);
    assert_eq!(rig.steps(20, &with(&[(1, 2000)])), [gone(1), gone(2)]);
    // A program without a byte count is ignored.
    let listed = on_first(DeviceSample::new(mib(900)).processes([GpuProcess::new(7)]));
    assert_eq!(rig.step(&listed), []);
    // When the sentinel ends, open conditions end too.
    rig.step(&with(&[(3, 900)]));
    let mut events = Vec::new();
    rig.rules.end(&mut events);
    assert_eq!(events, [gone(3)]);
}

#[test]
fn no_number_of_programs_floods() {
    let mut rig = Rig::new();
    rig.step(&on_first(DeviceSample::new(mib(900)).processes([])));
    let many = |round: u32| {
        let processes = (0..1000).map(|n| GpuProcess::new(round * 1000 + n).bytes(mib(300)));
        on_first(DeviceSample::new(mib(900)).processes(processes.collect::<Vec<_>>()))
    };
    for round in 0..50 {
        assert!(rig.step(&many(round)).len() <= 32, "{round}");
        assert!(rig.rules.devices[0].takers.len() <= 16, "{round}");
    }
}

#[test]
fn only_a_program_that_came_or_grew_is_a_cause() {
    let with = |processes: &[(u32, u64)]| {
        let processes = processes.iter().map(|&(pid, bytes)| GpuProcess::new(pid).name("game").bytes(mib(bytes)));
        on_first(DeviceSample::new(mib(900)).processes(processes.collect::<Vec<_>>()))
    };
    // A program without a byte count is ignored.
    let listed = on_first(DeviceSample::new(mib(900)).processes([GpuProcess::new(7)]));
    for (seen, expected) in [
        (with(&[(1, 2100), (2, 100)]), None),
        (with(&[(1, 2256), (2, 300)]), Some(2)),
        (with(&[(1, 2400), (2, 300)]), Some(1)),
        (with(&[]), None),
        (listed, None),
    ] {
        let mut rig = Rig::new();
        rig.step(&with(&[(1, 2000)]));
        rig.generate_for(10, 50, 0);
        let mut events: Vec<_> = (0..10).flat_map(|_| rig.generate(20, 0, seen.clone())).collect();
        events.retain(|event| !matches!(event, Event::OtherProcess { .. } | Event::OtherProcessGone { .. }));
        let (_, _, cause) = slowdown(&events);
        let device = "SIM0".to_owned();
        let other = |pid| Cause::OtherProcess { name: Some("game".to_owned()), pid, device };
        assert_eq!(cause, expected.map_or(Cause::Unknown, other), "{seen:?}");
    }
}

#[test]
fn a_slowdown_is_reported_with_both_speeds_and_its_end() {
    let mut rig = Rig::new();
    assert_eq!(rig.generate_for(10, 50, 0), []);
    let (expected, observed, cause) = slowdown(&rig.generate_for(10, 30, 0));
    assert!((expected - 50.0).abs() < 1e-6 && (observed - 30.0).abs() < 3.0);
    assert_eq!(cause, Cause::Unknown);
    // The speed has not recovered enough.
    assert_eq!(rig.generate_for(20, 39, 0), []);
    let events = rig.generate_for(20, 45, 0);
    assert!(matches!(events[..], [Event::SpeedRecovered { .. }]), "{events:?}");
}

#[test]
fn neither_a_hiccup_nor_a_rest_is_a_slowdown() {
    let mut rig = Rig::new();
    rig.generate_for(10, 50, 0);
    for _ in 0..5 {
        assert_eq!(rig.generate_for(1, 10, 0), []);
        assert_eq!(rig.generate_for(4, 50, 0), []);
        let mut rest = roomy();
        rest.generated = rig.generated;
        assert_eq!(rig.steps(20, &rest), []);
    }
}

#[test]
fn one_token_in_three_seconds_is_reported_too() {
    let mut rig = Rig::new();
    rig.generate_for(10, 50, 0);
    let mut events = Vec::new();
    for _ in 0..3 {
        events.extend(rig.generate(0, 0, roomy()));
        events.extend(rig.generate(0, 0, roomy()));
        events.extend(rig.generate(1, 0, roomy()));
    }
    assert!(slowdown(&events).1 < 35.0);
}

#[test]
fn a_deeper_context_is_not_a_slowdown_if_its_cost_is_known() {
    let deep = |rig: &mut Rig| {
        rig.generate_for(10, 50, 100);
        rig.generate_for(10, 25, 20_000)
    };
    assert_eq!(deep(&mut Rig::with_cost(DepthCost::new([(0, 1.0), (20_000, 2.0)]))), []);
    let (_, _, cause) = slowdown(&deep(&mut Rig::new()));
    assert!(matches!(cause, Cause::DeeperContext { before: 100, .. }), "{cause}");
}

#[test]
fn a_faster_speed_becomes_the_models_own_speed() {
    let mut rig = Rig::new();
    rig.generate_for(5, 40, 0);
    rig.generate_for(200, 80, 0);
    let (expected, _, _) = slowdown(&rig.generate_for(10, 45, 0));
    assert!(expected > 75.0, "{expected}");
}

#[test]
fn the_most_certain_cause_is_reported() {
    let device = |free| DeviceSample::new(mib(free));
    let other = GpuProcess::new(7).name("game").bytes(mib(3000));
    let game = device(900).processes([other]);
    let on_host = |bytes| DeviceSample { on_host: Some(mib(bytes)), ..device(900) };
    let busy = |mut sample: Sample| {
        sample.host.cpu_pressure = Some(60.0);
        sample
    };
    let hot = game.clone().throttle(HOT, Some(90));
    let held = device(900).throttle([ThrottleReason::PowerLimit], None);
    // Each case: a sample, and the beginning of the expected cause.
    let causes = [
        (on_first(hot), "SIM0 runs at reduced clocks: heat"),
        (sample([game.clone(), device(1)]), "SIM1 is full"),
        (sample([device(900), on_host(1256)]), "SIM1 is full"),
        // The driver of the first GPU refuses an allocation instead of moving memory.
        (sample([device(1), device(900)]), "no watched condition"),
        (busy(on_first(game)), "game (process 7) uses SIM0"),
        (busy(roomy()), "the processor is busy"),
        (on_first(held), "SIM0 runs at reduced clocks: power limit"),
    ];
    for (when, expected) in causes {
        let mut rig = Rig::new();
        let first = sample([device(900).processes([]), on_host(1000)]);
        rig.step(&first);
        rig.generate_for(10, 50, 0);
        let events = (0..10).flat_map(|_| rig.generate(20, 0, when.clone()));
        let slow = events.filter(|event| matches!(event, Event::Slowdown { .. }));
        let (_, _, cause) = slowdown(&slow.collect::<Vec<_>>());
        assert!(cause.to_string().starts_with(expected), "{cause}");
    }
}
