//! The checks of one placement. They compare its runs, GPUs and host with limits.

use autoplace::machine::{Bytes, RateConditions};
use autoplace::plan::Plan;

use super::host::HostSeen;
use super::{Aspect, Check};
use crate::conditions::Conditions;
use crate::measurement::{Row, Speed};

/// The percentage of the time that threads of this process may wait for a core. The value is below 1 on a quiet
/// machine, and 30 to 50 on two cores if another program keeps one thread busy.
const MAX_WAITED: u32 = 8;
/// The percentage of one core that other programs may use. This limit applies if the system does not report how long
/// threads waited.
const MAX_OTHERS: u32 = 40;
/// The percentage of the cores' time that the hypervisor may give to other machines.
const MAX_STEAL: u32 = 5;
/// The percentage of ten seconds in which some thread may wait for a core.
const MAX_CPU_PRESSURE: f32 = 25.0;
/// The percentage of ten seconds in which some thread may wait for memory.
const MAX_MEMORY_PRESSURE: f32 = 5.0;
/// The percentage of the time in which a quota may stop this process.
const MAX_THROTTLED: u32 = 10;
/// The share by which the host's available memory may shrink while nothing new is loaded.
const MAX_SHRUNK: f64 = 0.10;

/// The observations of one trial.
pub(super) struct Seen<'a> {
    pub(super) runs: &'a Row,
    pub(super) conditions: &'a Conditions,
    pub(super) host: &'a HostSeen,
    /// For each GPU of the plan, the fewest free bytes during the trial; `None` if they are unknown.
    pub(super) free: &'a [Option<u64>],
}

/// All checks of a trial.
pub(super) fn all(plan: &Plan, most_drift: f64, seen: &Seen<'_>) -> Vec<Check> {
    let mut checks = vec![drift(seen.runs, most_drift)];
    if plan.gpus().next().is_some() {
        checks.push(headroom(plan, seen.free));
        checks.push(clocks(seen.conditions));
    }
    checks.push(swap(seen.conditions, seen.host));
    checks.push(host_memory(plan, seen.host));
    checks.push(memory_pressure(seen.conditions));
    checks.push(processor(seen.host));
    checks.push(quota(seen.host));
    checks.push(heat(&seen.host.each));
    checks
}

/// The largest number of bytes by which a GPU misses its margin.
pub(super) fn shortfall(plan: &Plan, free: &[Option<u64>]) -> u64 {
    let missing = plan.gpus().zip(free).map(|(gpu, free)| gpu.headroom.margin.saturating_sub(free.unwrap_or(u64::MAX)));
    missing.max().unwrap_or_default()
}

/// The number of runs that may be exceptions, because a system job that starts once is not typical of the machine.
fn exceptions(runs: usize) -> usize {
    if runs < 4 { 0 } else { (runs / 10).max(1) }
}

fn check(aspect: Aspect, passed: bool, found: String) -> Check {
    Check { aspect, passed, found }
}

/// The check of an aspect that the system does not report. This check passes.
fn unknown(aspect: Aspect) -> Check {
    check(aspect, true, "not reported".to_owned())
}

/// Compares the median of the last third of the runs with the median of the first third, and also each run with the
/// median of the first third. One run in ten may differ.
pub(super) fn drift(runs: &Row, most: f64) -> Check {
    let speeds: Vec<f64> = runs.speeds().collect();
    let third = (speeds.len() / 3).max(1);
    let median = |speeds: &[f64]| Speed::from_samples(speeds.iter().copied()).median;
    let first = median(&speeds[..third]).max(f64::MIN_POSITIVE);
    let change = |speed: f64| speed / first - 1.0;
    let last = change(median(&speeds[speeds.len() - third..]));
    let off = speeds.iter().filter(|&&speed| change(speed).abs() > most).count();
    let farthest = speeds.iter().map(|&speed| change(speed)).max_by(|one, other| one.abs().total_cmp(&other.abs()));
    let may = exceptions(speeds.len());
    let found = format!(
        "{:+.1} % from the first third to the last, single runs {:+.1} % at the farthest; {:.0} % at most, {off} of {} runs beyond that (allowed: {may}); {:.1} tok/s",
        last * 100.0,
        farthest.unwrap_or_default() * 100.0,
        most * 100.0,
        speeds.len(),
        runs.speed.median
    );
    check(Aspect::Drift, last.abs() <= most && off <= may, found)
}

fn headroom(plan: &Plan, free: &[Option<u64>]) -> Check {
    let reported = plan.gpus().zip(free).filter_map(|(gpu, free)| {
        let (free, margin) = ((*free)?, gpu.headroom.margin);
        let used = (gpu.total.saturating_sub(free) as f64 / gpu.total.max(1) as f64 * 100.0).round();
        let (free_of, least) = (Bytes(free), Bytes(margin));
        let found = format!("{free_of} of {} free ({used} % used), {least} at least", gpu.name);
        Some((found, free >= margin))
    });
    let (found, passed): (Vec<String>, Vec<bool>) = reported.unzip();
    if found.is_empty() {
        return unknown(Aspect::Headroom);
    }
    check(Aspect::Headroom, passed.iter().all(|passed| *passed), found.join("; "))
}

fn clocks(conditions: &Conditions) -> Check {
    let faults = conditions.throttle.iter().filter(|reason| reason.is_fault());
    let faults: Vec<String> = faults.map(ToString::to_string).collect();
    let clock = conditions.clock_mhz.map_or(String::new(), |mhz| format!(", {mhz} MHz at least"));
    let celsius = conditions.temperature.map_or(String::new(), |degrees| format!(", {degrees} °C at most"));
    let found =
        if faults.is_empty() { "not held down".to_owned() } else { format!("held down by {}", faults.join(", ")) };
    check(Aspect::Clocks, faults.is_empty(), format!("{found}{clock}{celsius}"))
}

fn swap(conditions: &Conditions, host: &HostSeen) -> Check {
    let pages = conditions.swapped_in.zip(conditions.swapped_out);
    let of_system = pages.map(|(into, out)| format!("{into} pages in, {out} out, 0 at most"));
    let of_process = host.swapped.map(|bytes| format!("{} of this process in swap", Bytes(bytes)));
    let found: Vec<String> = of_system.into_iter().chain(of_process).collect();
    if found.is_empty() {
        return unknown(Aspect::Swap);
    }
    let is_quiet = pages.is_none_or(|pages| pages == (0, 0)) && host.swapped.unwrap_or(0) == 0;
    check(Aspect::Swap, is_quiet, found.join("; "))
}

/// Checks that the plan's margin is available and that the available memory does not shrink. If there is a container
/// with a limit, memory within the limit counts.
fn host_memory(plan: &Plan, host: &HostSeen) -> Check {
    let Some([first, least]) = host.available else { return unknown(Aspect::HostMemory) };
    let margin = plan.host().map_or(0, |host| host.headroom.margin);
    let shrunk = first.saturating_sub(least);
    let share = shrunk as f64 / first.max(1) as f64;
    let found = format!(
        "{} available ({}), {} at least; {} less than before the first run ({:.0} %), {:.0} % at most",
        Bytes(least),
        host.limit,
        Bytes(margin),
        Bytes(shrunk),
        share * 100.0,
        MAX_SHRUNK * 100.0
    );
    check(Aspect::HostMemory, least >= margin && share <= MAX_SHRUNK, found)
}

fn memory_pressure(conditions: &Conditions) -> Check {
    let Some(waited) = conditions.memory_pressure else { return unknown(Aspect::MemoryPressure) };
    let found = format!("threads waited for memory {waited:.1} % of ten seconds, {MAX_MEMORY_PRESSURE} % at most");
    check(Aspect::MemoryPressure, waited <= MAX_MEMORY_PRESSURE, found)
}

/// Checks the processor. If the system reports how long this process's threads waited, this time decides, because
/// programs on other cores do no harm.
pub(super) fn processor(host: &HostSeen) -> Check {
    let each = &host.each;
    let is_disturbed = |(run, pressure): &(&RateConditions, &Option<f32>)| {
        let is_crowded = match run.waited {
            Some(waited) => waited >= MAX_WAITED,
            None => run.others.is_some_and(|others| others >= MAX_OTHERS),
        };
        let is_pressed = pressure.is_some_and(|waited| waited > MAX_CPU_PRESSURE);
        // Threads that a quota stops also count as waiting. If no other program computes, the quota is the only cause.
        let is_stopped = run.throttled.is_some_and(|share| share >= MAX_THROTTLED);
        let is_alone = run.others.is_some_and(|others| others < MAX_OTHERS);
        (is_crowded || is_pressed) && !(is_stopped && is_alone) || run.steal.is_some_and(|steal| steal >= MAX_STEAL)
    };
    let disturbed = each.iter().zip(&host.pressure).filter(is_disturbed).count();
    let may = exceptions(each.len());
    let most = |of: fn(&RateConditions) -> Option<u32>| each.iter().filter_map(of).max();
    let parts = [
        most(|run| run.waited).map(|waited| {
            format!("threads of this process waited for a core {waited} % of a run (allowed: less than {MAX_WAITED} %)")
        }),
        host.pressure.iter().flatten().copied().reduce(f32::max).map(|waited| {
            format!("some thread of the system waited {waited:.1} % of ten seconds (allowed: {MAX_CPU_PRESSURE} %)")
        }),
        most(|run| run.others).map(|percent| {
            let cores = f64::from(percent) / 100.0;
            format!("other programs used {cores:.1} cores")
        }),
        most(|run| run.steal).filter(|steal| *steal > 0).map(|steal| {
            format!("other virtual machines took {steal} % of the cores (allowed: less than {MAX_STEAL} %)")
        }),
    ];
    let found: Vec<String> = parts.into_iter().flatten().collect();
    if found.is_empty() {
        return unknown(Aspect::Processor);
    }
    let found = format!("at worst {}; {disturbed} of {} runs disturbed (allowed: {may})", found.join(", "), each.len());
    check(Aspect::Processor, disturbed <= may, found)
}

pub(super) fn quota(host: &HostSeen) -> Check {
    let stopped: Vec<u32> = host.each.iter().filter_map(|run| run.throttled).collect();
    let limit = host.cpu_limit.as_ref().map_or_else(|| "none is set".to_owned(), ToString::to_string);
    let Some(most) = stopped.iter().max() else {
        return check(Aspect::Quota, true, limit);
    };
    let beyond = stopped.iter().filter(|&&share| share >= MAX_THROTTLED).count();
    let found = format!("{limit}; stopped this process {most} % of a run, {MAX_THROTTLED} % at most");
    check(Aspect::Quota, beyond <= exceptions(host.each.len()), found)
}

pub(super) fn heat(each: &[RateConditions]) -> Check {
    let known = each.iter().filter_map(|run| run.overheated);
    let (mut runs, mut hot) = (0, 0);
    for times in known {
        runs += 1;
        hot += usize::from(times > 0);
    }
    let celsius = each.iter().filter_map(|run| run.temperature).max();
    let celsius = celsius.map_or(String::new(), |degrees| format!(", {degrees} °C at most"));
    if runs == 0 {
        return check(Aspect::Heat, true, format!("not reported{celsius}"));
    }
    let found = format!("the processor lowered its clock for heat in {hot} of {runs} runs{celsius}");
    check(Aspect::Heat, hot <= exceptions(each.len()), found)
}

#[cfg(test)]
mod tests {
    use autoplace::machine::ThrottleReason::{Heat, Overheating, PowerBrake, PowerLimit};

    use super::*;

    #[test]
    fn clocks_fail_by_the_reason_that_lowers_them_but_not_by_a_power_limit() {
        let seen = |throttle: &[_]| {
            let throttle = throttle.iter().copied().collect();
            clocks(&Conditions { throttle, clock_mhz: Some(1500), temperature: Some(83), ..Conditions::default() })
        };
        for (throttle, passed, found) in [
            (&[][..], true, "not held down, 1500 MHz at least, 83 °C at most"),
            (&[PowerLimit], true, "not held down, 1500 MHz at least, 83 °C at most"),
            (&[PowerLimit, Heat], false, "held down by heat, 1500 MHz at least, 83 °C at most"),
            (
                &[PowerBrake, Overheating],
                false,
                "held down by overheating, power brake, 1500 MHz at least, 83 °C at most",
            ),
        ] {
            let check = seen(throttle);
            assert_eq!((check.aspect, check.passed, &*check.found), (Aspect::Clocks, passed, found));
        }
    }
}
