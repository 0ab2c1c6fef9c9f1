//! A load's report, put together: the plan, what llama.cpp said before and says now, and what the devices told,
//! stand side by side.

use super::Doubt;
use super::headroom::{Judged, LoadReadings, judge};
use super::recipe::Prepared;
use super::report::{GpuReport, HostReport, LoadReport};
use super::terms::Terms;
use super::threads::Threads;
use super::warm_up::WarmedUp;
use crate::machine::Bytes;
use crate::memory::Footprint;

/// The report of a load that was carried out; its attempts are not in it yet. What is learned of the GPUs is kept.
pub(super) fn report(
    prepared: &Prepared,
    readings: &LoadReadings,
    run: &WarmedUp,
    threads: Threads,
    terms: &Terms,
) -> LoadReport {
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
            withheld: placement
                .device
                .as_ref()
                .and_then(|device| prepared.withheld.get(device))
                .copied()
                .unwrap_or(0),
            probed: prepared.probed.gpus.get(index).copied().unwrap_or_default(),
            allocated,
            grown: allocated
                .unwrap_or_default()
                .total()
                .saturating_sub(at_first.unwrap_or(0)),
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
        plan: plan.clone(),
    }
}

/// What is worth a word of a GPU's figures.
fn notes(gpu: &GpuReport) -> Vec<String> {
    let mut notes = Vec::new();
    let device = &gpu.device;
    if gpu.grown > 0 {
        let grown = Bytes(gpu.grown);
        notes.push(format!(
            "{device}: compute buffers take {grown} more than llama.cpp reserves by itself"
        ));
    }
    let beyond_probe = gpu.unplanned().saturating_sub(gpu.grown);
    if beyond_probe > 0 {
        let beyond = Bytes(beyond_probe);
        notes.push(format!(
            "{device}: llama.cpp allocated {beyond} more than was planned"
        ));
    }
    notes
}
