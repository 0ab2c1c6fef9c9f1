//! Invariants of the rules, for any samples.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{NEEDED, Rig, on_first, sample, with_threads};
use crate::machine::{GpuProcess, ThrottleReason, mib};
use crate::watch::event::Event;
use crate::watch::sample::{DeviceSample, Sample};
use crate::watch::settings::Settings;

/// The condition of an event.
fn condition(event: &Event) -> String {
    match event {
        Event::MemoryPressure { device, .. } | Event::MemoryRelieved { device, .. } => {
            format!("pressure {device}")
        }
        Event::RoomGained { device, .. } | Event::RoomLost { device, .. } => {
            format!("room {device}")
        }
        Event::Throttled { device, .. } | Event::Unthrottled { device, .. } => {
            format!("clocks {device}")
        }
        Event::OtherProcess { device, pid, .. } | Event::OtherProcessGone { device, pid, .. } => {
            format!("process {pid} {device}")
        }
        Event::Slowdown { .. } | Event::SpeedRecovered { .. } => "speed".to_owned(),
        Event::FewerThreads { .. } | Event::ThreadsRestored { .. } => "threads".to_owned(),
        Event::ExpertMisses { .. } | Event::ExpertHits { .. } => "experts".to_owned(),
        Event::Moving { .. } | Event::Moved { .. } => "depth".to_owned(),
    }
}

/// Whether a sample shows the change that an event reports.
fn is_shown(event: &Event, sample: &Sample) -> bool {
    let seen = |device: &str| &sample.devices[usize::from(device == "SIM1")];
    let is_hot = |device: &str| {
        let reasons = seen(device).throttle.as_deref();
        reasons.map(|reasons| reasons.contains(&ThrottleReason::Heat))
    };
    let held = |device: &str, pid: u32| {
        let processes = seen(device).processes.as_deref().unwrap_or_default();
        processes.iter().filter(|process| process.pid == pid).filter_map(|process| process.bytes).next_back()
    };
    match event {
        Event::OtherProcess { device, pid, bytes, .. } => held(device, *pid) == Some(*bytes) && *bytes >= mib(256),
        Event::OtherProcessGone { device, .. } => seen(device).processes.is_some(),
        Event::MemoryPressure { device, free, .. } => seen(device).free == Some(*free) && *free < NEEDED,
        Event::MemoryRelieved { device, free } => seen(device).free == Some(*free) && *free >= NEEDED,
        Event::RoomGained { device, free, before } => seen(device).free == Some(*free) && free > before,
        Event::RoomLost { device, free } => seen(device).free == Some(*free),
        Event::Throttled { device, .. } => is_hot(device) == Some(true),
        Event::Unthrottled { device, .. } => is_hot(device) == Some(false),
        Event::Slowdown { expected, observed, .. } => *observed < 0.7 * expected,
        Event::SpeedRecovered { expected, observed } => *observed > 0.7 * expected,
        Event::FewerThreads { threads, most, .. } => {
            sample.threads.is_some_and(|seen| (seen.threads, seen.most) == (*threads, *most)) && threads < most
        }
        Event::ThreadsRestored { threads } => sample.threads.is_some_and(|seen| seen.threads == *threads),
        // The sentinel reports moves, and the rules do not. These models have no cache of experts.
        Event::Moving { .. } | Event::Moved { .. } | Event::ExpertMisses { .. } | Event::ExpertHits { .. } => false,
    }
}

fn any_device() -> impl Strategy<Value = DeviceSample> {
    let free = prop::option::weighted(0.9, (0u64..1_000).prop_map(mib));
    let throttle = prop::option::weighted(0.9, prop::collection::vec(any_reason(), 0..2));
    let process = (1u32..4, prop::option::weighted(0.9, (0u64..600).prop_map(mib)));
    let processes = prop::collection::vec(process, 0..3);
    let processes = prop::option::weighted(0.7, processes);
    (free, throttle, processes).prop_map(|(free, throttle, processes)| {
        let process = |(pid, bytes)| {
            let mut process = GpuProcess::new(pid);
            process.bytes = bytes;
            process
        };
        DeviceSample {
            free,
            on_host: None,
            throttle,
            temperature: None,
            clock_mhz: None,
            processes: processes.map(|all| all.into_iter().map(process).collect()),
        }
    })
}

fn any_reason() -> impl Strategy<Value = ThrottleReason> {
    prop_oneof![Just(ThrottleReason::PowerLimit), Just(ThrottleReason::Heat)]
}

/// Samples, each with the number of tokens generated in its second. The observed values last for several samples, as on
/// real machines.
fn any_samples() -> impl Strategy<Value = Vec<(Sample, u64)>> {
    let devices = [any_device(), any_device()];
    let threads = prop::option::of((1u32..4).prop_map(|threads| with_threads(threads, 3)));
    let second = (devices, threads, 0u64..80, 1usize..10);
    prop::collection::vec(second, 0..40).prop_map(|samples| {
        let lasting = samples.into_iter().flat_map(|(devices, threads, tokens, seconds)| {
            std::iter::repeat_n((Sample { threads, ..sample(devices) }, tokens), seconds)
        });
        lasting.collect()
    })
}

proptest! {
    #[test]
    fn events_match_their_samples_and_alternate_and_are_rare(samples in any_samples()) {
        let mut rig = Rig::new();
        let mut begun: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut on: BTreeMap<String, bool> = BTreeMap::new();
        for (sample, tokens) in &samples {
            let second = rig.second;
            for event in rig.generate(*tokens, 0, sample.clone()) {
                prop_assert!(is_shown(&event, sample), "{event} of {sample:?}");
                let of = condition(&event);
                let was_on = on.insert(of.clone(), !event.is_end()).unwrap_or(false);
                let is_more = was_on && matches!(event, Event::RoomGained { .. });
                prop_assert!(was_on == event.is_end() || is_more, "{} twice", event);
                if !event.is_end() {
                    begun.entry(of).or_default().push(second);
                }
            }
        }
        let mut ends = Vec::new();
        rig.rules.end(&mut ends);
        for event in ends {
            prop_assert!(event.is_end(), "{event}");
            prop_assert_eq!(on.insert(condition(&event), false), Some(true), "{} twice", event);
        }
        prop_assert!(on.values().all(|is_on| !is_on), "{on:?}");
        let calm = Settings::default().calm().as_secs();
        for (of, seconds) in begun {
            let apart = seconds.windows(2).all(|pair| pair[1] - pair[0] >= calm);
            prop_assert!(apart, "{} began at {:?}", of, seconds);
        }
    }

    #[test]
    fn every_condition_ends_when_all_stays_well(samples in any_samples()) {
        let mut rig = Rig::new();
        // Later samples are compared with the speed of this generation.
        rig.generate_for(5, 80, 0);
        let mut open = BTreeSet::new();
        let well = || {
            let device = DeviceSample::new(mib(900)).throttle([], None).processes([]);
            (Sample { threads: Some(with_threads(3, 3)), ..sample([device.clone(), device]) }, 80)
        };
        for (sample, tokens) in samples.into_iter().chain((0..20).map(|_| well())) {
            for event in rig.generate(tokens, 0, sample) {
                let of = condition(&event);
                _ = if event.is_end() { open.remove(&of) } else { open.insert(of) };
            }
        }
        prop_assert_eq!(open, BTreeSet::new());
    }

    #[test]
    fn less_free_memory_is_never_less_pressure(
        frees in prop::collection::vec((prop::option::weighted(0.9, 0u64..300), 0u64..100), 0..100),
    ) {
        let (mut less, mut more) = (Rig::new(), Rig::new());
        let (mut pressed_less, mut pressed_more) = (false, false);
        let step = |rig: &mut Rig, free: Option<u64>, pressed: &mut bool| {
            let device = DeviceSample { free: free.map(mib), ..DeviceSample::default() };
            for event in rig.step(&on_first(device)) {
                match event {
                    Event::MemoryPressure { .. } => *pressed = true,
                    Event::MemoryRelieved { .. } => *pressed = false,
                    _ => {}
                }
            }
        };
        for (free, beside) in frees {
            step(&mut less, free, &mut pressed_less);
            step(&mut more, free.map(|free| free + beside), &mut pressed_more);
            prop_assert!(pressed_less || !pressed_more);
        }
    }
}
