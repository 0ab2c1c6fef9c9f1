//! What is known before a load, and where its model went: the plan, what llama.cpp said before and says now, and what
//! the devices told, side by side.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::headroom::{Judged, LoadReadings, Work, judge};
use super::recipe::Terms;
use super::report::{Doubt, GpuReport, HostReport, LoadReport};
use super::threads::Threads;
use super::warm_up::WarmedUp;
use crate::machine::{Bytes, Machine};
use crate::memory::{Footprint, Footprints};
use crate::plan::Plan;
use crate::profile::ModelProfile;

/// All that is known before the load.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) machine: Machine,
    /// What llama.cpp says that the plan takes.
    pub(super) probed: Footprints,
    /// Bytes that are free and did not count as such, because earlier attempts taught so; by ggml's name of the device.
    pub(super) withheld: BTreeMap<String, u64>,
    pub(super) work: Work,
}

impl Prepared {
    pub(super) fn new(plan: Plan, machine: Machine, probed: Footprints, profile: &ModelProfile) -> Self {
        // A plan has sizes that llama.cpp takes.
        let sizes = plan.context.sizes().ok();
        let work = sizes.map(|sizes| Work::of(profile, &sizes));
        Self { plan, machine, probed, withheld: BTreeMap::new(), work: work.unwrap_or_default() }
    }
}

#[derive(Debug)]
pub(super) struct Placed {
    pub(super) plan: Arc<Plan>,
    pub(super) machine: Arc<Machine>,
    pub(super) allocated: Footprints,
    pub(super) report: Arc<LoadReport>,
}

impl Placed {
    pub(super) fn new(
        prepared: &Prepared,
        readings: &LoadReadings,
        run: &WarmedUp,
        threads: Threads,
        terms: &Terms,
    ) -> Self {
        Self {
            plan: Arc::new(prepared.plan.clone()),
            machine: Arc::new(prepared.machine.clone()),
            allocated: run.allocated.clone(),
            report: Arc::new(report(prepared, readings, run, threads, terms)),
        }
    }

    /// Of a model in a worker.
    pub(super) fn told(machine: Machine, allocated: Footprints, report: LoadReport) -> Self {
        Self { plan: Arc::new(report.plan.clone()), machine: Arc::new(machine), allocated, report: Arc::new(report) }
    }
}

/// The report of a load that was carried out, without its attempts and its lease. What is learned of the GPUs is kept.
fn report(prepared: &Prepared, readings: &LoadReadings, run: &WarmedUp, threads: Threads, terms: &Terms) -> LoadReport {
    let Prepared { plan, machine, .. } = prepared;
    let judged = judge(plan, machine, readings, run, &terms.learn);
    let at = |values: &[Option<u64>], index| values.get(index).copied().flatten();
    let gpus = plan.gpus().zip(judged).enumerate();
    let gpus = gpus.map(|(index, (placement, judged))| {
        let Judged { doubt, learned } = judged;
        let (before, used) = (at(&readings.before, index), at(&run.used, index));
        let allocated = run.allocated.gpus.get(index).copied();
        let at_first = run.at_first.gpus.get(index).map(Footprint::total);
        GpuReport {
            device: placement.device.clone().unwrap_or_default(),
            name: placement.name.clone(),
            layers: placement.layers,
            planned: placement.footprint,
            headroom: placement.headroom,
            withheld: placement.device.as_ref().and_then(|device| prepared.withheld.get(device)).copied().unwrap_or(0),
            probed: prepared.probed.gpus.get(index).copied().unwrap_or_default(),
            allocated,
            grown: allocated.unwrap_or_default().total().saturating_sub(at_first.unwrap_or(0)),
            before,
            loaded: at(&run.loaded, index),
            used,
            doubt: doubt.or((before.is_none() || used.is_none()).then_some(Doubt::NotTold)),
            learned,
        }
    });
    let gpus: Vec<GpuReport> = gpus.collect();
    LoadReport {
        notes: gpus.iter().flat_map(notes).collect(),
        gpus,
        host: HostReport {
            planned: plan.host().map(|host| host.footprint).unwrap_or_default(),
            allocated: run.allocated.host,
        },
        warm_up: run.warm_up.clone(),
        threads,
        attempts: Vec::new(),
        unleased: None,
        plan: plan.clone(),
    }
}

/// What is worth a word of a GPU's figures.
fn notes(gpu: &GpuReport) -> Vec<String> {
    let mut notes = Vec::new();
    let device = &gpu.device;
    if gpu.grown > 0 {
        let grown = Bytes(gpu.grown);
        notes.push(format!("{device}: compute buffers take {grown} more than llama.cpp reserves by itself"));
    }
    let beyond_probe = gpu.unplanned().saturating_sub(gpu.grown);
    if beyond_probe > 0 {
        let beyond = Bytes(beyond_probe);
        notes.push(format!("{device}: llama.cpp allocated {beyond} more than was planned"));
    }
    notes
}
