//! The inputs of a load, and the placement that results from it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::headroom::{Reading, Work, gpu_reports};
use super::leases::Folder;
use super::report::{GpuReport, HostReport, LoadReport};
use super::threads::Threads;
use super::warm_up::WarmedUp;
use crate::machine::{Bytes, Machine};
use crate::plan::Plan;

/// The plan, the machine and the workload before a load.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) plan: Plan,
    /// The machine with its free bytes. After failed attempts, the plan may count fewer bytes as free.
    pub(super) machine: Machine,
    pub(super) work: Work,
}

/// The placement of a model, in this process or in a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Placed {
    pub(super) plan: Arc<Plan>,
    pub(super) machine: Arc<Machine>,
    pub(super) report: Arc<LoadReport>,
}

impl Placed {
    /// Creates the placement without attempts and lease. Keeps the measurements of the GPUs.
    pub(super) fn new(
        prepared: &Prepared,
        before: &[Reading],
        run: &WarmedUp,
        threads: Threads,
        learn: &Folder,
    ) -> Self {
        let Prepared { plan, machine, .. } = prepared;
        let gpus = gpu_reports(prepared, before, run, learn);
        let report = LoadReport {
            notes: gpus.iter().flat_map(notes).chain(threads.too_many(&machine.host)).collect(),
            gpus,
            host: HostReport {
                planned: plan.host().map(|host| host.footprint).unwrap_or_default(),
                allocated: run.allocated.host,
            },
            projector: None,
            warm_up: run.warm_up.clone(),
            threads,
            attempts: Vec::new(),
            unleased: None,
            plan: plan.clone(),
            time: Duration::ZERO,
            moved: None,
        };
        Self { plan: Arc::new(plan.clone()), machine: Arc::new(machine.clone()), report: Arc::new(report) }
    }
}

/// The notes about a GPU for the report.
fn notes(gpu: &GpuReport) -> Vec<String> {
    let GpuReport { device, grown, .. } = gpu;
    let beyond = gpu.unplanned().saturating_sub(*grown);
    let mut notes = Vec::new();
    if *grown > 0 {
        notes.push(format!("{device}: compute buffers take {} more than llama.cpp itself reserves", Bytes(*grown)));
    }
    if beyond > 0 {
        notes.push(format!("{device}: llama.cpp allocated {} more than planned", Bytes(beyond)));
    }
    notes
}
