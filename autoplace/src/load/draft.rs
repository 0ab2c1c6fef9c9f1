//! Loads the draft model together with the main model, in the memory that the plan reserves for it.
//!
//! In: a main model that is loaded and judged, and its plan. Out: the same model with a [`Draft`] that is warmed up and
//! whose bytes were compared with the plan. If memory runs short, both models are released and planned again.

use std::path::Path;
use std::sync::Arc;

use llama_sys::{Device, ModelParams};

use super::ceilings;
use super::devices::{by_name, free, of_plan};
use super::error::Stage;
use super::loaded::{Draft, Failure, Loaded, computing_with};
use super::options::{LoadOptions, OnDifference, Verify};
use super::placed::Prepared;
use super::progress::Progress;
use super::warm_up::warm_up;
use super::{Error, native};
use crate::gguf::Header;
use crate::machine::{Bytes, GpuKind};
use crate::memory::companion::CompanionRole;
use crate::memory::{Companion, Footprint};
use crate::plan::{self, Plan, PlannedCompanion};

impl LoadOptions {
    /// Loads the draft model, if one was requested. If the plan has no draft model, there was no room for it.
    pub(super) fn add_draft(
        &self,
        mut loaded: Loaded,
        prepared: &Prepared,
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let Some(path) = &self.draft else { return Ok(loaded) };
        let plan = &prepared.plan;
        let Some(planned) = plan.companions.iter().find(|one| one.role == CompanionRole::Draft) else {
            tracing::warn!("the plan leaves no room for the draft model, so it is not loaded");
            return Ok(loaded);
        };
        let gpus = of_plan(plan).map_err(Failure::at(Stage::Check))?;
        let (draft, taken) = match self.make_draft(path, planned, prepared, progress) {
            Ok(made) => made,
            Err(failure) => {
                // Frees the main model first, so that the memory of both models is free again.
                drop(loaded);
                return Err(failure.freed(plan, &gpus));
            }
        };
        let note = self.judge_companion(planned, plan, taken)?;
        Arc::make_mut(&mut loaded.placed.report).notes.push(note);
        loaded.drafts.model = Some(draft);
        Ok(loaded)
    }

    /// Loads the draft model. Also returns the number of bytes that it took of its GPU.
    fn make_draft(
        &self,
        path: &Path,
        planned: &PlannedCompanion,
        prepared: &Prepared,
        progress: &Progress,
    ) -> Result<(Draft, u64), Box<Failure>> {
        let Prepared { plan, machine, .. } = prepared;
        let header = Header::open(path).map_err(Failure::at(Stage::Check))?;
        let of_plan = |error| Failure::at(Stage::Check)(plan::Error::from(error));
        let companion = Companion::draft(&header).map_err(of_plan)?.draft_options(planned.draft.clone());
        let layers = planned.draft.n_gpu_layers.map_or(i32::MAX, |layers| i32::try_from(layers).unwrap_or(i32::MAX));
        let context = companion.draft_context(&plan.context).map_err(of_plan)?.unwrap_or_else(|| plan.context.clone());
        // A draft model lies entirely on one GPU, which may hold no layer of the main model.
        let names = planned.gpu.iter().map(|gpu| (planned.device.as_deref(), gpu.as_str()));
        let devices = by_name(names).map_err(Failure::at(Stage::Check))?;
        let backends: Vec<String> = devices.iter().map(Device::backend).collect();
        let before = free(&devices);
        let native = native::load(
            &header,
            ModelParams {
                n_gpu_layers: if devices.is_empty() { 0 } else { layers },
                devices: Some(devices.clone()),
                load_mode: native::load_mode(&context, &header, backends.iter().map(String::as_str)),
                use_extra_bufts: context.repack,
                progress: progress.of_weights(Stage::Draft),
                ..ModelParams::default()
            },
        )
        .map_err(Failure::at(Stage::Draft))?;
        let params = computing_with(self.threads_on(machine), native::context(&context));
        let mut draft = Draft::new(&native, params).map_err(Failure::at(Stage::Context))?;
        let run =
            warm_up(&mut draft.context, None, &devices, self.verify, progress).map_err(Failure::at(Stage::WarmUp))?;
        // The bytes that llama.cpp itself counts. If something was computed and the memory belongs to this GPU alone,
        // the decrease of the device's free memory is known too, and the larger number is used.
        let allocated = run.allocated.gpus.first().map_or(0, Footprint::total);
        let gpu = machine.gpus.iter().find(|gpu| gpu.device.is_some() && gpu.device == planned.device);
        let counts = self.verify != Verify::Off && gpu.is_none_or(|gpu| gpu.kind == GpuKind::Discrete);
        let [before, used] = [before, run.used].map(|free| free.first().copied().flatten());
        let shrunk = before.zip(used).filter(|_| counts).map_or(0, |(before, used)| before.saturating_sub(used));
        Ok((draft, allocated.max(shrunk)))
    }

    /// Compares the GPU memory that a draft model or a projector took with the planned bytes. Returns a note about it.
    pub(super) fn judge_companion(
        &self,
        planned: &PlannedCompanion,
        plan: &Plan,
        taken: u64,
    ) -> Result<String, Box<Failure>> {
        let PlannedCompanion { role, name: companion, gpu: name, device, bytes, .. } = planned;
        let Some(name) = name else {
            return Ok(format!("{companion} ({role}) is on the host"));
        };
        let device = device.as_deref().unwrap_or_default();
        // On a GPU without a layer of the main model, the companion may use all of the free memory.
        let own = (bytes.gpu.total().saturating_add(bytes.gpu_uncertainty), u64::MAX);
        let (left, headroom) = ceilings::gpu(plan, device).map_or(own, |gpu| (gpu.companions, gpu.headroom.total()));
        let difference = taken.saturating_sub(left.saturating_add(headroom));
        if difference == 0 || self.on_difference == OnDifference::Accept {
            let (taken, left) = (Bytes(taken), Bytes(left));
            return Ok(format!("{companion} ({role}) is on {name}: it took {taken} of the {left} planned for it"));
        }
        Err(Failure::at(Stage::Verify)(Error::Difference {
            device: device.to_owned(),
            name: name.clone(),
            planned: left,
            headroom,
            taken,
            difference,
        }))
    }
}

/// A plan with a draft model of 1 GiB on a card that has nothing else.
#[cfg(test)]
pub(super) fn beside(device: &str) -> Plan {
    let mut bytes = crate::memory::CompanionBytes::default();
    bytes.gpu.weights = 1 << 30;
    let draft = serde_json::json!([{"role": "draft", "name": "", "gpu": "card", "device": device, "bytes": bytes}]);
    let mut plan = super::test_plan::plan();
    plan.companions = serde_json::from_value(draft).unwrap();
    plan
}
