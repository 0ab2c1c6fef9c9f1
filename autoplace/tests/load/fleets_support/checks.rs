//! Runs a case: plans, loads, computes and frees. There are checks after each step.

use autoplace::Model;
use autoplace::generate::{Statistics, TokenStream};
use autoplace::load::{self, Stage, Verify};
use autoplace::memory::Footprint;
use autoplace::plan::{Error as NoPlan, Plan};

use super::Models;
use super::case::Case;
use crate::rig::{Card, nothing_left};

/// Plans, loads, generates and frees. Returns the plan; `None` if there was not enough room for the model.
///
/// # Errors
///
/// An error that describes which expectation was violated.
pub(crate) fn run(case: &Case, models: &Models) -> Result<Option<Plan>, String> {
    let fleet = case.fleet(|| 0);
    let outcome = on(&fleet, case, models)?;
    nothing_left("everything is dropped", fleet.iter().map(|card| &card.sim))?;
    Ok(outcome)
}

fn on(fleet: &[Card], case: &Case, models: &Models) -> Result<Option<Plan>, String> {
    let machine = case.machine(fleet);
    // There is only one thread. If there were more, ggml's threads would spin while they wait for each other.
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

    // A full verification computes the whole context, so it is slow.
    let full = planned.context.n_ctx <= 512 && case.number.is_multiple_of(4);
    let verify = if full { Verify::Full } else { Verify::Quick };
    let model = builder().verify(verify).load().map_err(|error| format!("load: {error}"))?;
    let plan = model.placement();
    if *plan != planned {
        // With MLA, buffers can grow by more than the headroom in the warm-up, and the model is planned again
        // (docs/load-contract.md). Any other difference is a fault.
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
    // After a full warm-up, a computation takes no further memory. After a quick warm-up, it takes hardly any.
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
    // In the statistics, the buffers of the host are counted too. If no card computes, a load reserves no more than
    // llama.cpp itself does.
    let grown = statistics.buffer_growth;
    let is_reserved = verify == Verify::Full && plan.gpus().next().is_some();
    if grown < more_on_cards || (is_reserved && grown > 0) {
        return Err(format!("{grown} bytes of growth in {statistics:?}, {more_on_cards} on cards\n{plan}"));
    }
    Ok(Some(Plan::clone(&plan)))
}

/// The bytes that the plan takes on a card.
fn on_card(plan: &Plan, device: Option<&str>) -> Footprint {
    let placement = plan.gpus().find(|placement| placement.device.as_deref() == device);
    placement.map(|placement| placement.footprint).unwrap_or_default()
}

/// By how much the compute buffers of a card have grown in the warm-up.
fn grown(model: &Model, device: Option<&str>) -> u64 {
    model.report().gpus.iter().find(|gpu| Some(gpu.device.as_str()) == device).map_or(0, |gpu| gpu.grown)
}

/// Checks that the plan exceeds no device's budget.
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

/// Checks that the bytes that the cards count, and the bytes that llama.cpp counts, are equal to the plan.
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
    // Weights that are mapped are counted without their alignment. And only the plan contains the buffer for logits.
    let more = allocated.host.compute.saturating_sub(host.compute);
    if allocated.host.kv != host.kv || (more > 0 && plan.gpus().next().is_none()) {
        let said = allocated.host;
        return Err(format!("llama.cpp says {said:?} of the host\n{plan}"));
    }
    Ok(())
}

/// Computes a prompt that is `remainder` tokens longer than one full computation, but fits into a sequence. After that,
/// generates three tokens.
fn generate(model: &Model, remainder: usize) -> Result<Statistics, String> {
    const CONTINUATION: usize = 3;
    let context = &model.placement().context;
    let shared_by = if context.kv_unified { 1 } else { context.n_seq_max };
    let room = (context.n_ctx / shared_by) as usize - CONTINUATION;
    let tokens = room.min(context.n_ubatch as usize + remainder);
    // The prompt begins with one token, and then with three tokens for the bytes of a space. After these, each letter
    // is one token.
    let prompt = "a".repeat(tokens.saturating_sub(4));
    let text = model.generate(prompt).temp(0.0).max_tokens(CONTINUATION).stream().and_then(TokenStream::into_text);
    let (_, statistics) = text.map_err(|error| format!("generating: {error}"))?;
    match statistics.prompt_tokens {
        n if n < tokens => Err(format!("{n} tokens of prompt instead of {tokens}")),
        _ => Ok(statistics),
    }
}
