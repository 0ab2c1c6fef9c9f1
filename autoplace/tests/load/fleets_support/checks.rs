//! Runs a case: plans, loads, computes and frees, with checks after each step.

use autoplace::Model;
use autoplace::generate::{Statistics, TokenStream};
use autoplace::load::{self, Stage, Verify};
use autoplace::memory::Footprint;
use autoplace::plan::{Error as NoPlan, Plan};

use super::Models;
use super::case::Case;
use crate::rig::{Card, nothing_left};

/// Plans, loads, generates and frees. Returns the plan; `None` if there was no room for the model.
///
/// # Errors
///
/// A description of a violated expectation.
pub(crate) fn run(case: &Case, models: &Models) -> Result<Option<Plan>, String> {
    let fleet = case.fleet(|| 0);
    let outcome = on(&fleet, case, models)?;
    nothing_left("everything is dropped", fleet.iter().map(|card| &card.sim))?;
    Ok(outcome)
}

fn on(fleet: &[Card], case: &Case, models: &Models) -> Result<Option<Plan>, String> {
    let machine = case.machine(fleet);
    // One thread is used, because ggml's threads spin while they wait for each other.
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

    // A full verification is slow, because it computes the whole context.
    let full = planned.context.n_ctx <= 512 && case.number.is_multiple_of(4);
    let verify = if full { Verify::Full } else { Verify::Quick };
    let model = builder().verify(verify).load().map_err(|error| format!("load: {error}"))?;
    let plan = model.placement();
    if *plan != planned {
        // This is the growth in the warm-up; nothing grows later (docs/load-contract.md).
        let report = model.report();
        let mut failures = report.attempts.iter().filter_map(|attempt| attempt.failure.as_ref());
        if case.model(models).title.contains("mla") && failures.all(|failure| failure.stage == Stage::WarmUp) {
            return Ok(Some(Plan::clone(&plan)));
        }
        return Err(format!("planned twice\n{planned}\n{plan}\n{report}"));
    }
    as_planned(fleet, &model)?;
    let mut loaded = Vec::new();
    for Card { sim, gpu } in fleet {
        let device = gpu.device.as_deref();
        let (planned, grown) = (on_card(&plan, device).total(), grown(&model, device));
        loaded.push(sim.used());
        let (name, peak, free) = (&gpu.name, sim.peak(), gpu.free);
        if peak > free || (grown == 0 && peak > planned) {
            return Err(format!(
                "{name} counted {peak} bytes, of which it grew by {grown}, planned {planned} of {free} free\n{plan}"
            ));
        }
    }
    let statistics = generate(&model, case.remainder)?;
    // After a full warm-up, a computation takes no further byte; after a quick one, hardly any.
    let mut more_on_cards = 0;
    for (Card { sim, gpu }, loaded) in fleet.iter().zip(loaded) {
        let (name, used) = (&gpu.name, sim.used());
        more_on_cards += used.saturating_sub(loaded);
        let compute = on_card(&plan, gpu.device.as_deref()).compute;
        let more = if verify == Verify::Full { 0 } else { compute / 8 };
        if !(loaded..=loaded + more).contains(&used) {
            return Err(format!("{name} counts {used} bytes, and had {loaded} after its load\n{plan}"));
        }
    }
    // The statistics also count the host's buffers. If no card computes, a load reserves no more than llama.cpp itself
    // does.
    let grown = statistics.buffer_growth;
    let is_reserved = verify == Verify::Full && plan.gpus().next().is_some();
    if grown < more_on_cards || (is_reserved && grown > 0) {
        return Err(format!("{grown} bytes of growth in {statistics:?}, {more_on_cards} on cards\n{plan}"));
    }
    Ok(Some(Plan::clone(&plan)))
}

/// The plan's footprint on a card.
fn on_card(plan: &Plan, device: Option<&str>) -> Footprint {
    let placement = plan.gpus().find(|placement| placement.device.as_deref() == device);
    placement.map(|placement| placement.footprint).unwrap_or_default()
}

/// Growth of a card's compute buffers in the warm-up.
fn grown(model: &Model, device: Option<&str>) -> u64 {
    model.report().gpus.iter().find(|gpu| Some(gpu.device.as_str()) == device).map_or(0, |gpu| gpu.grown)
}

/// Checks that no device of the plan exceeds its budget.
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

/// Checks that the cards' counts and llama.cpp's account equal the plan.
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
    // Mapped weights count without their alignment, and only the plan includes the buffer of logits.
    let more = allocated.host.compute.saturating_sub(host.compute);
    if allocated.host.kv != host.kv || (more > 0 && plan.gpus().next().is_none()) {
        let said = allocated.host;
        return Err(format!("llama.cpp says {said:?} of the host\n{plan}"));
    }
    Ok(())
}

/// Computes a prompt of `remainder` tokens more than a full computation, but no more than a sequence holds. Then
/// generates three tokens.
fn generate(model: &Model, remainder: usize) -> Result<Statistics, String> {
    const CONTINUATION: usize = 3;
    let context = &model.placement().context;
    let shared_by = if context.kv_unified { 1 } else { context.n_seq_max };
    let room = (context.n_ctx / shared_by) as usize - CONTINUATION;
    let tokens = room.min(context.n_ubatch as usize + remainder);
    // The prompt begins with one token, then come three tokens for the bytes of a space. Each letter is one more token.
    let prompt = "a".repeat(tokens.saturating_sub(4));
    let text = model.generate(prompt).temp(0.0).max_tokens(CONTINUATION).stream().and_then(TokenStream::into_text);
    let (_, statistics) = text.map_err(|error| format!("generating: {error}"))?;
    match statistics.prompt_tokens {
        n if n < tokens => Err(format!("{n} tokens of prompt instead of {tokens}")),
        _ => Ok(statistics),
    }
}
