//! What a program runs beside what autoplace would do with the same card: the program as it was found flows in, the
//! evidence of both placements flows out.

use std::error::Error;
use std::path::Path;

use autoplace::gguf::Header;
use autoplace::measure::{Evidence, Running};
use autoplace::memory::{Headroom, KvType};
use autoplace::plan::{GpuLayers, HostParts, Plan, Planner, Request};
use autoplace::profile::ModelProfile;

use super::Found;
use crate::args::{AskArgs, Kv};
use crate::{emit, flags};

/// Adds the model that the program runs, as it places it and as it would be planned, to a machine on which the program
/// runs. What is not asked for here is as the program has it.
///
/// # Errors
///
/// A line that says what is missing: the file, or a setting that cannot be read.
pub(crate) fn compare(
    mut evidence: Evidence,
    found: &Found,
    model: Option<&Path>,
    ask: &AskArgs,
) -> Result<Evidence, Box<dyn Error>> {
    let (seen, tool) = (&found.seen, found.tool);
    let Some(model) = model.or(seen.model.as_deref()) else {
        let name = &seen.name;
        return Err(format!(
            "{tool} runs `{name}` and does not tell its file: say `doctor FILE --watch ...`"
        )
        .into());
    };
    let header = Header::open(model)?;
    let profile = ModelProfile::from_header(&header)?;
    let held = found.given_back(&mut evidence.machine);

    let mut theirs = flags::request(&seen.words, &ask.request(), profile.full_offload())?;
    if let Some((sequences, unified)) = seen.sequences {
        (theirs.params.n_seq_max, theirs.params.kv_unified) = (sequences, unified);
    }
    let ours = planned(&theirs, ask);
    // It runs, so it fits.
    let theirs = theirs.host_parts(HostParts::None).headroom(Headroom::Tight);
    let machine = evidence.machine.clone();
    let placed = |layers| {
        let request = theirs.clone().n_gpu_layers(GpuLayers::Exactly(layers));
        Planner::new(&profile, &machine).request(request).plan()
    };

    let mut running = Running::default();
    running.program = match &seen.version {
        Some(version) => format!("{} {version}", called(tool)),
        None => called(tool).to_owned(),
    };
    running.pid = found.pids.first().copied();
    running.notes.clone_from(&seen.notes);
    running.on_gpus = seen.on_gpus.map(|(bytes, _)| bytes).or((held > 0).then_some(held));
    running.tokens_per_second = seen.speed;
    let all = profile.full_offload();
    running.n_gpu_layers = match (theirs.gpu_layers, seen.on_gpus, running.on_gpus) {
        (GpuLayers::Exactly(layers), ..) => Some(layers),
        (GpuLayers::All, ..) => Some(all),
        (_, Some((on_gpus, bytes)), _) if on_gpus >= bytes => Some(all),
        (_, _, Some(0)) => Some(0),
        (_, _, Some(held)) => {
            // The most that it has room for, as the program may count its buffers otherwise.
            let plans = (0..=all).filter_map(|layers| Some((layers, taken(&placed(layers).ok()?))));
            plans.min_by_key(|(_, bytes)| bytes.abs_diff(held)).map(|(layers, _)| layers)
        }
        _ => {
            running.notes.push("how many layers it has on GPUs cannot be told".to_owned());
            None
        }
    };
    match running.n_gpu_layers.map(placed) {
        Some(Ok(plan)) => running.predicted = plan.speed.map(|speed| speed.tokens_per_second),
        Some(Err(error)) => {
            running.notes.push(format!("as it runs it could not be planned: {error}"));
        }
        None => {}
    }

    let mut evidence = evidence.with_model(model, &ours)?;
    let added = evidence.model.as_mut();
    if let Some(added) = added {
        if let Some(mut plan) = added.plan.clone() {
            plan.model.path = Some(model.to_owned());
            match emit::emit(&plan, tool) {
                // What `plan --emit` says of it beside.
                Ok(text) => {
                    let lines = text.lines().filter(|line| !line.starts_with('#'));
                    running.otherwise = Some(lines.collect::<Vec<_>>().join("\n"));
                }
                Err(error) => running.notes.push(error.to_string()),
            }
        }
        added.running = Some(running);
    }
    Ok(evidence)
}

/// What is planned: the program's context and cache, where no other is asked for.
fn planned(theirs: &Request, ask: &AskArgs) -> Request {
    let asked = ask.request();
    let mut ours = theirs.clone();
    ours.gpu_layers = asked.gpu_layers;
    ours.host_parts = asked.host_parts;
    if ask.ctx.is_some() {
        (ours.context, ours.params.n_ctx) = (asked.context, 0);
    }
    if !matches!(ask.kv, Kv::One(KvType::F16)) {
        ours.kv_cache = asked.kv_cache;
        (ours.params.type_k, ours.params.type_v) = (asked.params.type_k, asked.params.type_v);
    }
    ours
}

/// Bytes on GPUs, with what the driver takes.
fn taken(plan: &Plan) -> u64 {
    let gpus = plan.gpus().filter(|gpu| gpu.layers > 0);
    let bytes = gpus.map(|gpu| gpu.footprint.total().saturating_add(gpu.headroom.driver));
    bytes.fold(0, u64::saturating_add)
}

/// The program as people call it.
const fn called(tool: emit::Tool) -> &'static str {
    match tool {
        emit::Tool::LlamaCpp | emit::Tool::LlamaCpp2 => "llama-server",
        emit::Tool::Ollama => "Ollama",
        emit::Tool::LmStudio => "LM Studio",
        emit::Tool::KoboldCpp => "KoboldCpp",
    }
}
