//! The page that a server of several models shows in a browser at `/`. It contains the models with their states, the
//! devices, and the pool's last decision. It is a single HTML document without a script.

use autoplace::machine::Bytes;
use autoplace_measure::picture::page;
use autoplace_pool::{ModelStatus, Pool, Residence};

pub(super) fn html(pool: &Pool) -> String {
    let heads = ["model", "state", "layers on GPUs", "memory", "tok/s, predicted", "in use", "waiting", "process"];
    let models = pool.status();
    let rows = models.iter().map(row).collect::<Vec<_>>();
    let table: Vec<Vec<String>> = [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    let failure = |model: &ModelStatus| Some(format!("{}: {}", model.name, model.failure.as_ref()?));
    let failures: Vec<String> = models.iter().filter_map(failure).collect();
    let mut below = String::new();
    if !failures.is_empty() {
        below += &page::text(&format!("failed:\n{}", failures.join("\n")));
    }
    let notes: Vec<String> =
        models.iter().flat_map(|model| model.notes.iter().map(|note| format!("{}: {note}", model.name))).collect();
    if !notes.is_empty() {
        below += &page::text(&format!("notes:\n{}", notes.join("\n")));
    }
    if let Some(plan) = pool.last_plan() {
        // If the decision cannot be drawn, the page still shows its text.
        below += &plan.picture().unwrap_or_default();
        below += &page::text(&format!("the last decision:\n{plan}"));
    }
    page::html(&format!("autoplace serve {}", env!("CARGO_PKG_VERSION")), &page::table(&table), &below)
}

fn row(model: &ModelStatus) -> Vec<String> {
    let state = match model.residence {
        Residence::Unloaded if model.failure.is_some() => "failed",
        Residence::Unloaded => "unloaded",
        Residence::Parked => "parked: another program has its memory",
        Residence::Loading => "loading",
        Residence::Loaded => "loaded",
        Residence::Moving => "moving",
        _ => "unknown",
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        model.name.clone(),
        state.to_owned(),
        or_dash(model.layers.map(|(on_gpus, layers)| format!("{on_gpus} of {layers}"))),
        or_dash(model.held.as_ref().map(|held| Bytes(held.total()).to_string())),
        or_dash(model.tokens_per_second.map(|speed| format!("{speed:.1}"))),
        model.in_use.to_string(),
        model.waiting.to_string(),
        or_dash(model.process.map(|process| process.to_string())),
    ]
}
