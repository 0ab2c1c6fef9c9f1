//! Every cause that a diagnosis names, with a case that has the cause and a similar case that does not. The machines
//! are described, and nothing is loaded.

use std::collections::BTreeSet;

use autoplace::machine::{
    CpuLimit, Gpu, GpuKind, GpuProcess, Host, HostLimit, Machine, PcieLink, PcieRate, ThrottleReason, UnusedGpu,
    UnusedReason, gib, mib,
};
use autoplace::memory::KvType;
use autoplace::plan::Request;
use autoplace_measure::{Evidence, FindingCause, Running, Speed};

use test_support::shapes::{LLAMA_8B, LLAMA_70B, Shape};

/// A present-day machine with a card, and with enough memory for a large model.
fn machine(card: &str) -> Machine {
    let host = Host::new(gib(64)).bandwidth(60_000_000_000).physical_cores(16);
    Machine::new(host).with_gpu(Gpu::named(card).unwrap())
}

fn with_model(machine: Machine, shape: &Shape, request: &Request) -> Evidence {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    shape.builder().write_sparse(&file).unwrap();
    Evidence::new(machine).with_model(&file, request).unwrap()
}

/// The whole model on the card.
fn whole() -> Evidence {
    with_model(machine("RTX 4090"), &LLAMA_8B, &Request::new())
}

/// Some layers on the host.
fn parted() -> Evidence {
    with_model(machine("RTX 4090"), &LLAMA_70B, &Request::new())
}

#[track_caller]
fn finds(cause: FindingCause, case: &Evidence, near_miss: &Evidence) {
    let causes = |evidence: &Evidence| -> Vec<FindingCause> {
        evidence.diagnose().iter().map(|finding| finding.cause).collect()
    };
    let (found, missed) = (causes(case), causes(near_miss));
    assert!(found.contains(&cause) && found.is_sorted(), "{cause:?} is not in {found:?}");
    assert!(!missed.contains(&cause), "{cause:?} is in {missed:?}");
    assert!(case.diagnose().iter().all(|finding| !finding.evidence.is_empty()), "{case:?}");
    // The report of the evidence has the same diagnosis.
    let reported = Evidence::from_json(&format!("words\n{}", case.clone().anonymous().to_json()));
    assert_eq!(causes(&reported.unwrap()), found);
}

fn not_used(gpu: Gpu, reason: UnusedReason) -> UnusedGpu {
    serde_json::from_value(serde_json::json!({ "gpu": gpu, "reason": reason })).unwrap()
}

/// A changed copy of the evidence.
fn but(mut evidence: Evidence, change: impl FnOnce(&mut Evidence)) -> Evidence {
    change(&mut evidence);
    evidence
}

#[test]
fn a_model_that_does_not_fit_is_out_of_reach_until_there_is_room() {
    let small = |ram| {
        let mut machine = machine("RTX 3060 12GB");
        machine.host = Host::new(gib(ram)).bandwidth(60_000_000_000);
        with_model(machine, &LLAMA_70B, &Request::new())
    };
    finds(FindingCause::OutOfReach, &small(16), &small(64));
}

#[test]
fn a_model_beyond_all_memory_is_read_from_disk_if_that_is_allowed() {
    let ram = |ram| {
        let host = Host::new(gib(ram)).bandwidth(60_000_000_000).disk(3_000_000_000);
        with_model(Machine::new(host), &LLAMA_70B, &Request::new().allow_paging(true))
    };
    finds(FindingCause::Paging, &ram(32), &ram(64));
}

#[test]
fn a_card_without_a_backend_is_unused_but_a_card_under_another_name_is_not() {
    let unused = |reason| {
        let card = not_used(Gpu::named("RTX 3090").unwrap(), reason);
        but(Evidence::new(machine("RTX 4090")), |changed| changed.machine.unused_gpus = vec![card])
    };
    let same = UnusedReason::SameAs { device: "Vulkan0".to_owned() };
    finds(FindingCause::UnusedCard, &unused(UnusedReason::NoBackend), &unused(same.clone()));
    let missing = UnusedReason::NoDriver { library: "libnvidia-ml.so.1".to_owned() };
    finds(FindingCause::UnusedCard, &unused(missing), &unused(same));
    let remedy = unused(UnusedReason::NoBackend).diagnose()[0].remedy.clone().unwrap();
    // No registry has the program yet.
    assert!(remedy.contains("--git https://github.com/autoplace/autoplace autoplace-cli --features cuda"), "{remedy}");
}

#[test]
fn a_program_runs_slower_if_a_faster_placement_than_its_own_would_fit() {
    let runs = |layers, predicted| {
        but(whole(), |evidence| {
            let mut running = Running::default();
            running.program = "llama-server b1".to_owned();
            (running.n_gpu_layers, running.predicted) = (Some(layers), predicted);
            running.otherwise = Some("llama-server -ngl 33".to_owned());
            evidence.model.as_mut().unwrap().running = Some(running);
        })
    };
    let plan = whole().model.unwrap().plan.unwrap();
    let (all, speed) = (plan.layers(), plan.speed.unwrap().tokens_per_second);
    finds(FindingCause::RunsSlower, &runs(3, Some(speed / 2.0)), &runs(3, Some(speed / 1.05)));
    // If no speed is known, the layers are compared.
    finds(FindingCause::RunsSlower, &runs(all - 1, None), &runs(all, None));
    assert_eq!(runs(3, None).diagnose()[0].remedy.clone().as_deref(), Some("llama-server -ngl 33"));
    // The program is slower than predicted for its own placement.
    let slow = |factor: f64| {
        but(runs(all, Some(speed)), |evidence| {
            evidence.model.as_mut().unwrap().running.as_mut().unwrap().tokens_per_second = Some(speed * factor);
        })
    };
    finds(FindingCause::Unexplained, &slow(0.5), &slow(0.9));
}

#[test]
fn another_program_matters_if_the_model_needs_its_memory() {
    let held = |bytes| {
        let mut machine = machine("RTX 4090");
        let card = &mut machine.gpus[0];
        card.free -= bytes;
        card.processes = Some(vec![GpuProcess::new(7).name("game").bytes(bytes)]);
        machine
    };
    let model = |bytes| with_model(held(bytes), &LLAMA_8B, &Request::new());
    finds(FindingCause::OtherPrograms, &model(gib(21)), &model(gib(6)));
    let evidence = &model(gib(21)).diagnose()[0].evidence.clone();
    assert!(evidence.contains("game"), "{evidence}");
    finds(FindingCause::OtherPrograms, &Evidence::new(held(gib(6))), &Evidence::new(held(gib(1))));
    let unnamed = but(Evidence::new(held(gib(6))), |changed| changed.machine.gpus[0].processes = None);
    finds(FindingCause::OtherPrograms, &unnamed, &Evidence::new(machine("RTX 4090")));
}

#[test]
fn a_cache_is_too_large_if_a_smaller_one_puts_everything_on_the_card() {
    let at = |n_ctx| with_model(machine("RTX 3060 12GB"), &LLAMA_8B, &Request::new().n_ctx(n_ctx));
    finds(FindingCause::LargeContext, &at(65_536), &at(8192));
    let remedy = at(65_536).diagnose()[0].remedy.clone().unwrap();
    assert!(remedy.starts_with("autoplace plan ") && remedy.contains(" --"), "{remedy}");
    // The advice repeats the arguments that do not change.
    let mut named = at(65_536);
    named.model.as_mut().unwrap().path = "my $(model)'s.gguf".into();
    let remedy = named.diagnose()[0].remedy.clone().unwrap();
    assert!(remedy.starts_with(r"autoplace plan 'my $(model)'\''s.gguf' "), "{remedy}");
    assert!(remedy.contains("--ctx "), "{remedy}");
    // One flag sets both types, so it cannot express two different types.
    let request = Request::new().kv_types(KvType::Q8_0, KvType::F16);
    let spilled = with_model(machine("RTX 4090"), &LLAMA_8B, &request);
    let remedy =
        but(spilled, |changed| changed.conditions.on_host = Some(gib(1))).diagnose()[0].remedy.clone().unwrap();
    assert!(!remedy.contains("--kv") && remedy.contains("keys as Q8_0 and values as F16"), "{remedy}");
    // In this case no smaller cache would help.
    finds(FindingCause::LargeContext, &at(65_536), &parted());
}

#[test]
fn layers_planned_for_the_host_are_reported_as_not_on_the_card() {
    finds(FindingCause::NotOnGpu, &parted(), &whole());
    let mut alone = machine("RTX 4090");
    alone.gpus.clear();
    finds(FindingCause::NotOnGpu, &parted(), &with_model(alone, &LLAMA_70B, &Request::new()));
    // A card that has no memory for a single layer also counts.
    let mut full = machine("RTX 4090");
    full.gpus[0].free = mib(100);
    // A card slower than the host was left out on purpose.
    let mut slow = machine("RTX 4090");
    slow.gpus[0] = slow.gpus[0].clone().bandwidth(10_000_000_000);
    let slow = with_model(slow, &LLAMA_8B, &Request::new());
    finds(FindingCause::NotOnGpu, &with_model(full, &LLAMA_8B, &Request::new()), &slow);
}

#[test]
fn conditions_are_causes_if_they_are_unusual_and_affect_the_model() {
    let on_host = |bytes| but(whole(), |changed| changed.conditions.on_host = Some(bytes));
    let full =
        |wsl, free| but(whole(), |changed| (changed.machine.wsl, changed.conditions.least_free) = (wsl, Some(free)));
    let pages = |n| but(whole(), |changed| changed.conditions.swapped_in = Some(n));
    let limit = |bytes| HostLimit::Cgroup { file: "/sys/fs/cgroup/job/memory.max".to_owned(), bytes };
    let limited = |evidence, bytes| but(evidence, |changed: &mut Evidence| changed.machine.host.limit = limit(bytes));
    let held = |reason| but(whole(), |changed| changed.conditions.throttle = BTreeSet::from([reason]));
    let rate = |generation, lanes| PcieRate::new(generation, lanes).unwrap();
    let link = |evidence, generation, lanes| {
        let link = PcieLink::new(rate(4, 16)).current(rate(generation, lanes));
        but(evidence, |changed: &mut Evidence| changed.machine.gpus[0].pcie = Some(link))
    };
    let busy =
        |evidence, percent| but(evidence, |changed: &mut Evidence| changed.conditions.cpu_pressure = Some(percent));
    let cores = |evidence, quota| {
        but(evidence, |changed: &mut Evidence| {
            changed.machine.host.physical_cores = Some(8);
            changed.machine.host.cpu_limit = Some(CpuLimit::new("/sys/fs/cgroup/job/cpu.max", quota, 100_000));
        })
    };
    let unused =
        |evidence| but(evidence, |changed: &mut Evidence| changed.unused_instructions = vec!["avx512f".to_owned()]);
    for (cause, case, near_miss) in [
        (FindingCause::Spilled, on_host(gib(1)), on_host(mib(100))),
        (FindingCause::Spilled, full(true, mib(90)), full(true, gib(2))),
        // A full card spills only under WSL.
        (FindingCause::Spilled, full(true, mib(90)), full(false, mib(90))),
        (FindingCause::Swapping, pages(1), pages(0)),
        (FindingCause::Limited, limited(parted(), gib(40)), limited(parted(), gib(60))),
        (FindingCause::Limited, limited(parted(), gib(40)), limited(whole(), gib(40))),
        (FindingCause::Limited, cores(parted(), 50_000), cores(parted(), 800_000)),
        (FindingCause::Limited, cores(parted(), 50_000), cores(whole(), 50_000)),
        // Threads under a CPU quota wait for a core even if no other program runs.
        (FindingCause::Limited, busy(cores(parted(), 150_000), 60.0), busy(cores(parted(), 800_000), 5.0)),
        // Busy cards normally run at their power limit.
        (FindingCause::Throttled, held(ThrottleReason::Heat), held(ThrottleReason::PowerLimit)),
        // An idle card lowers its link generation.
        (FindingCause::Link, link(parted(), 4, 4), link(parted(), 1, 16)),
        (FindingCause::Link, link(parted(), 4, 4), link(whole(), 4, 4)),
        (FindingCause::Processor, busy(parted(), 60.0), busy(parted(), 5.0)),
        (FindingCause::Processor, busy(parted(), 60.0), busy(whole(), 60.0)),
        (FindingCause::Instructions, unused(parted()), parted()),
        (FindingCause::Instructions, unused(parted()), unused(whole())),
    ] {
        finds(cause, &case, &near_miss);
    }
    let blamed = busy(cores(parted(), 150_000), 60.0).diagnose();
    assert!(!blamed.iter().any(|finding| finding.cause == FindingCause::Processor), "{blamed:?}");
}

#[test]
fn an_unexplained_slow_speed_is_reported_and_a_predicted_one_is_normal() {
    let measured = |share: f64| {
        but(whole(), |evidence| {
            let model = evidence.model.as_mut().unwrap();
            let mut speed = Speed::default();
            speed.median = model.predicted.unwrap() * share;
            model.measured = Some(speed);
        })
    };
    finds(FindingCause::Unexplained, &measured(0.4), &measured(0.9));
    assert_eq!(measured(0.9).diagnose(), []);
    // A known cause takes precedence.
    let explained = but(measured(0.4), |changed| changed.conditions.swapped_out = Some(9));
    finds(FindingCause::Unexplained, &measured(0.4), &explained);
}

#[test]
fn a_report_identifies_nobody() {
    let mut machine = machine("RTX 4090");
    machine.gpus[0].processes = Some(vec![GpuProcess::new(4711).name("/home/ann/game").bytes(gib(21))]);
    machine.gpus[0].free = gib(3);
    let problem = "ann:50052: no server listens there".to_owned();
    let gone = not_used(Gpu::new("ann:50052").kind(GpuKind::Remote), UnusedReason::NoServer { problem });
    machine.unused_gpus = vec![gone];
    let evidence = with_model(machine, &LLAMA_8B, &Request::new());
    let folder = evidence.model.as_ref().unwrap().path.parent().unwrap().display().to_string();
    assert!(evidence.to_json().contains(&folder));
    let report = evidence.anonymous().to_json();
    for word in ["ann", "4711", folder.as_str()] {
        assert!(!report.contains(word), "{word}: {report}");
    }
    assert!(report.contains("\"model.gguf\""), "{report}");
}

#[test]
fn disturbed_or_old_rates_are_called_stale_and_are_not_a_cause() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let with_rates = |conditions: String| {
        let mut machine = machine("RTX 4090");
        let text = format!(
            r#"{{"weights": [{{"type": "Q4_K", "bytes_per_second": 1{conditions}}},
                {{"type": "Q6_K", "bytes_per_second": 1}}]}}"#
        );
        machine.host.rates = serde_json::from_str(&text).unwrap();
        Evidence::new(machine)
    };
    let taken = |at: u64, others: u32| format!(r#", "conditions": {{"at": {at}, "others": {others}}}"#);
    const DAY: u64 = 24 * 60 * 60;
    for fresh in [String::new(), taken(now, 5), taken(now - 100 * DAY, 5)] {
        assert_eq!(with_rates(fresh).stale_rates(), [""; 0]);
    }
    for (stale, word) in [
        (taken(now, 190), "1 of 2 were measured 20"),
        (taken(now, 190), "beside other work (other programs used 1.9 cores)"),
        (taken(now - 200 * DAY, 5), "1 of 2 are older than 180 days"),
        (taken(now, 190), "`autoplace devices --measure`"),
    ] {
        let evidence = with_rates(stale);
        let lines = evidence.stale_rates();
        assert!(lines.len() == 1 && lines[0].starts_with("host: ") && lines[0].contains(word), "{lines:?}");
        assert!(evidence.diagnose().is_empty());
    }
}
