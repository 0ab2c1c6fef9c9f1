//! The verb `ps`: lists the models that this user's processes have loaded, with their placements.

use std::time::SystemTime;

use autoplace::load::{Leases, LoadedModel, loaded_models};
use autoplace::machine::Bytes;
use serde_json::json;

use crate::terminal::columns;

/// The arguments of `ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists the loaded models, as text or JSON.
pub(crate) fn run(args: &PsArgs) -> String {
    let models = loaded_models(&Leases::user());
    if args.json { format!("{:#}", json!({ "models": models })) } else { words(&models) }
}

fn words(models: &[LoadedModel]) -> String {
    if models.is_empty() {
        return "no process of this user has a model loaded by autoplace".to_owned();
    }
    let heads =
        ["model", "layers on GPUs", "tok/s, predicted", "measured", "context", "loaded for", "process", "memory"];
    let rows = models.iter().map(row);
    let table: Vec<Vec<String>> = [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    // A file's name may contain control characters.
    let lines = columns(&table, heads.len()).map(|line| line.replace(char::is_control, " ").trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn row(model: &LoadedModel) -> Vec<String> {
    let (on_gpus, layers) = model.layers;
    let speed = |speed: Option<f64>| speed.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.1}"));
    vec![
        model.name.clone(),
        format!("{on_gpus} of {layers}"),
        speed(model.tokens_per_second),
        speed(model.measured_tokens_per_second),
        model.n_ctx.to_string(),
        age(model.since),
        process(model),
        memory(model),
    ]
}

/// The program, and the number of its process. For a worker, also the process of the application.
pub(crate) fn process(model: &LoadedModel) -> String {
    match model.application {
        Some(application) => format!("{} {application}, worker {}", model.program, model.process),
        None => format!("{} {}", model.program, model.process),
    }
}

/// For each device with a part of the model, the bytes of that part.
pub(crate) fn memory(model: &LoadedModel) -> String {
    let devices = model.devices.iter().filter(|device| device.bytes > 0);
    devices.map(|device| format!("{} of {}", Bytes(device.bytes), device.name)).collect::<Vec<_>>().join(", ")
}

fn age(since: SystemTime) -> String {
    match since.elapsed().unwrap_or_default().as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
