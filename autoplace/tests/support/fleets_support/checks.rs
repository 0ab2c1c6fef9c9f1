//! One case made so: planned, loaded, computed with and freed again, and looked at after each step.

use autoplace::Model;
use autoplace::generate::TokenStream;
use autoplace::load::{self, Stage, Verify};
use autoplace::memory::Footprint;
use autoplace::plan::{Error as NoPlan, Plan};

use super::Models;
use super::case::Case;
use crate::rig::{Card, nothing_left};

/// Plans, loads, generates and frees. The plan; none of a case that had no room.
///
/// # Errors
///
/// What is not as it should be.
pub(crate) fn run(case: &Case, models: &Models) -> Result<Option<Plan>, String> {
    let fleet = case.fleet(|| 0);
    let outcome = on(&fleet, case, models)?;
    nothing_left("everything is dropped", fleet.iter().map(|card| &card.sim))?;
    Ok(outcome)
}

fn on(fleet: &[Card], case: &Case, models: &Models) -> Result<Option<Plan>, String> {
    let machine = case.machine(fleet);
    // One thread: ggml's threads spin while they wait for each other.
    let builder =
        || Model::builder(&case.model(models).path).request(case.request.clone()).machine(machine.clone()).n_threads(1);
    let planned = match builder().plan() {
        Ok(plan) => plan,
        Err(load::Error::Plan(NoPlan::DoesNotFit { devices, .. }))
            if devices.iter().any(|device| device.missing > 0) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(format!("plan: {error}")),
    };
    within_budget(&planned)?;
    // What the probe made cards count: recurrent state is really allocated while it answers.
    let probe_peaks: Vec<u64> = fleet.iter().map(|card| card.sim.peak()).collect();

    // A full one computes the whole context.
    let full = planned.context.n_ctx <= 512 && case.number.is_multiple_of(4);
    let verify = if full { Verify::Full } else { Verify::Quick };
    let model = builder().verify(verify).load().map_err(|error| format!("load: {error}"))?;
    let plan = model.placement();
    if *plan != planned {
        // Which the warm-up finds, and nothing later (docs/load-contract.md).
        let report = model.report();
        let mut failures = report.attempts.iter().filter_map(|it| it.failure.as_ref());
        if case.model(models).title.contains("mla") && failures.all(|it| it.stage == Stage::WarmUp) {
            return Ok(Some(Plan::clone(&plan)));
        }
        return Err(format!("planned twice\n{planned}\n{plan}\n{report}"));
    }
    as_planned(fleet, &model)?;
    let mut loaded = Vec::new();
    for (Card { sim, gpu }, probe_peak) in fleet.iter().zip(probe_peaks) {
        let device = gpu.device.as_deref();
        let (planned, grown) = (on_card(&plan, device).total(), grown(&model, device));
        loaded.push(sim.used());
        let (name, peak, free) = (&gpu.name, sim.peak(), gpu.free);
        if peak > free || (grown == 0 && peak > planned.max(probe_peak)) {
            return Err(format!(
                "{name} counted {peak} bytes, of which it grew by {grown}, planned {planned} of {free} free\n{plan}"
            ));
        }
    }
    generate(&model, case.remainder)?;
    // Whatever is computed after a full warm-up takes no byte more; after a quick one, hardly one.
    for (Card { sim, gpu }, loaded) in fleet.iter().zip(loaded) {
        let (name, used) = (&gpu.name, sim.used());
        let compute = on_card(&plan, gpu.device.as_deref()).compute;
        let more = if verify == Verify::Full { 0 } else { compute / 8 };
        if !(loaded..=loaded + more).contains(&used) {
            return Err(format!("{name} counts {used} bytes, and had {loaded} after its load\n{plan}"));
        }
    }
    Ok(Some(Plan::clone(&plan)))
}

/// What the plan takes of a card.
fn on_card(plan: &Plan, device: Option<&str>) -> Footprint {
    let placement = plan.gpus().find(|placement| placement.device.as_deref() == device);
    placement.map(|placement| placement.footprint).unwrap_or_default()
}

/// What the compute buffers of a card grew by in the warm-up.
fn grown(model: &Model, device: Option<&str>) -> u64 {
    model.report().gpus.iter().find(|gpu| Some(gpu.device.as_str()) == device).map_or(0, |gpu| gpu.grown)
}

/// No device of the plan gives more than it may.
fn within_budget(plan: &Plan) -> Result<(), String> {
    for placement in &plan.placements {
        let (needed, budget) = (placement.footprint.total(), placement.budget);
        let fits = needed <= budget && budget + placement.headroom.total() <= placement.free;
        if !fits {
            return Err(format!("{} is over its budget\n{plan}", placement.name));
        }
    }
    Ok(())
}

/// What cards count, and what llama.cpp says of them, is what the plan says.
fn as_planned(fleet: &[Card], model: &Model) -> Result<(), String> {
    let plan = model.placement();
    for Card { sim, gpu } in fleet {
        let device = gpu.device.as_deref();
        let planned = on_card(&plan, device).total() + grown(model, device);
        let (name, used) = (&gpu.name, sim.used());
        if used != planned {
            return Err(format!("{name} counts {used} bytes, planned {planned}\n{plan}"));
        }
    }
    let allocated = model.allocated();
    let planned = plan.gpus().map(|gpu| {
        let mut footprint = gpu.footprint;
        footprint.compute += grown(model, gpu.device.as_deref());
        footprint
    });
    if allocated.gpus != planned.collect::<Vec<_>>() {
        return Err(format!("llama.cpp says {:?}\n{plan}", allocated.gpus));
    }
    let host = plan.host().map(|host| host.footprint).unwrap_or_default();
    // Weights count with their span where they are mapped; the buffer of logits is in the plan only.
    let more = allocated.host.compute.saturating_sub(host.compute);
    if allocated.host.kv != host.kv || (more > 0 && plan.gpus().next().is_none()) {
        let said = allocated.host;
        return Err(format!("llama.cpp says {said:?} of the host\n{plan}"));
    }
    Ok(())
}

/// A prompt of so many tokens more than are computed at once, or as many as a sequence holds, and three of
/// its continuation.
fn generate(model: &Model, remainder: usize) -> Result<(), String> {
    const CONTINUATION: usize = 3;
    let context = &model.placement().context;
    let shared_by = if context.kv_unified { 1 } else { context.n_seq_max };
    let room = (context.n_ctx / shared_by) as usize - CONTINUATION;
    let tokens = room.min(context.n_ubatch as usize + remainder);
    // A token begins the text, three are the bytes of a space before it, the others are of a letter each.
    let prompt = "a".repeat(tokens.saturating_sub(4));
    let text = model.generate(prompt).temp(0.0).max_tokens(CONTINUATION).stream().and_then(TokenStream::into_text);
    let (_, statistics) = text.map_err(|error| format!("generating: {error}"))?;
    match statistics.prompt_tokens {
        n if n < tokens => Err(format!("{n} tokens of prompt instead of {tokens}")),
        _ => Ok(()),
    }
}
