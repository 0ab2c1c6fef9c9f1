//! The verb `list`: lists the models on this machine with their placements.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;

use autoplace::load::{self, Modalities};
use autoplace::machine::{Bytes, Machine};
use autoplace::plan::Request;
use autoplace_hub::{LocalModel, Models, Outcome, Row, unmeasured};
use serde_json::{Value, json};

use crate::files;
use crate::terminal::columns;

/// The arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Folders to search with their subfolders [default: the stores of Hugging Face, llama.cpp, Ollama and LM Studio]
    pub(crate) folders: Vec<PathBuf>,
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
}

/// The headings of all columns but the last, which is the path.
const HEADS: [&str; 5] = ["model", "quantisation", "size", "layers", "tok/s"];

/// Finds the models, makes a plan for each by arithmetic alone, and lists them as text or JSON.
pub(crate) fn run(args: &ListArgs) -> Result<String, Box<dyn Error>> {
    let found = if args.folders.is_empty() { Models::local() } else { Models::in_folders(&args.folders)? };
    let machine = load::detect()?;
    let rows = measured_rows(&found.models, machine);
    let same = found.duplicates();
    Ok(if args.json { document(&found, &rows, &same) } else { words(&found, &rows, &same) })
}

/// Plans each model. For the types of weights that would stay on the host, the host's measured rates are used. If a
/// rate is missing, it is measured.
fn measured_rows(models: &[LocalModel], machine: Machine) -> Vec<Result<Row, String>> {
    let request = Request::new();
    let mut missing = BTreeSet::new();
    let row = |model: &LocalModel, machine: &Machine, missing: &mut BTreeSet<_>| -> Result<Row, String> {
        let file = model.planned_file().map_err(|error| error.to_string())?;
        let row = Row::new(&file, machine, &request);
        missing.extend(unmeasured([(&file, &row)], machine));
        Ok(row)
    };
    let rows: Vec<_> = models.iter().map(|model| row(model, &machine, &mut missing)).collect();
    let rows = if missing.is_empty() {
        rows
    } else {
        let types: Vec<_> = std::mem::take(&mut missing).into_iter().collect();
        let machine = load::with_rates_of(machine, &types);
        models.iter().map(|model| row(model, &machine, &mut missing)).collect()
    };
    // At the end llama.cpp is asked whether it accepts the file, but only for models with a placement.
    let checked = |(model, row): (&LocalModel, Result<Row, String>)| {
        let row = row?;
        if row.placed().is_some() {
            let file = model.planned_file().map_err(|error| error.to_string())?;
            load::check(&file.header).map_err(|error| error.to_string())?;
        }
        Ok(row)
    };
    models.iter().zip(rows).map(checked).collect()
}

fn document(found: &Models, rows: &[Result<Row, String>], same: &[Vec<usize>]) -> String {
    let models = found.models.iter().zip(rows).map(|(model, row)| {
        let projector = load::mmproj_beside(&model.files[0]);
        let mut model = json!(model);
        model["mmproj"] = json!(projector.map(|file| file.to_string_lossy().into_owned()));
        let known = row.as_ref().map_or_else(|error| json!({ "refused": error }), |row| json!(row));
        for (key, value) in known.as_object().into_iter().flatten() {
            // If the name does not contain the quantisation, the header does.
            if key != "label" {
                model[key] = value.clone();
            }
        }
        model
    });
    let skipped = found.skipped.iter().map(|skipped| {
        json!({ "path": skipped.path.to_string_lossy(), "why": skipped.why.to_string(), "problem": skipped.why.is_problem() })
    });
    let (models, skipped): (Vec<Value>, Vec<Value>) = (models.collect(), skipped.collect());
    format!("{:#}", json!({ "models": models, "duplicates": same, "skipped": skipped }))
}

fn words(found: &Models, rows: &[Result<Row, String>], same: &[Vec<usize>]) -> String {
    let mut lines = Vec::new();
    if found.models.is_empty() {
        lines.push("no models".to_owned());
    }
    let models = found.models.iter().zip(rows).map(|(model, row)| cells(model, row));
    let table: Vec<Vec<String>> = [HEADS.map(str::to_owned).into()].into_iter().chain(models).collect();
    let mut table = columns(&table, 2);
    if let (Some(heads), false) = (table.next(), found.models.is_empty()) {
        lines.push(format!("{heads}  where"));
    }
    for (index, (model, row)) in found.models.iter().zip(table).enumerate() {
        let first = same.iter().find(|group| group[1..].contains(&index)).map(|group| &found.models[group[0]]);
        let place = |model: &LocalModel| format!("{}: {}", model.store, model.files[0].display());
        let same = first.map(|first| format!(" (the same as {})", place(first)));
        lines.push(format!("{row}  {}{}{}", place(model), also(model), same.unwrap_or_default()));
        if let Some(projector) = load::mmproj_beside(&model.files[0]) {
            let takes = Modalities::of(&projector).unwrap_or_default();
            lines.push(format!("    takes {takes} through {}", projector.display()));
        }
        if let Ok(Row { outcome: Outcome::Refused(why), .. }) | Err(why) = &rows[index] {
            lines.push(format!("    {why}"));
        } else if let Some(note) = model.header().ok().as_ref().and_then(files::without_vocabulary) {
            lines.push(format!("    {note}"));
        }
    }
    // If any model has a speed, a line says what the speeds are based on.
    let placed = rows.iter().filter_map(|row| row.as_ref().ok()?.placed());
    if let Some(basis) = placed.filter_map(|placed| placed.basis).max() {
        lines.push(String::new());
        lines.push(format!("speeds are predicted, from {basis}; `autoplace plan` asks llama.cpp too"));
    }
    let problems = found.skipped.iter().filter(|skipped| skipped.why.is_problem());
    lines.extend(problems.map(|skipped| format!("note: {skipped}")));
    // A file's name may contain control characters.
    let lines = lines.iter().map(|line| line.replace(char::is_control, " "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The other names of the file: tags, or repositories in which the same blob occurs.
fn also(model: &LocalModel) -> String {
    let mut names: Vec<&str> = model.other_places.iter().map(|place| &place.name[..]).collect();
    names.retain(|name| *name != model.name);
    names.dedup();
    if names.is_empty() { String::new() } else { format!(" (also {})", names.join(", ")) }
}

fn cells(model: &LocalModel, row: &Result<Row, String>) -> Vec<String> {
    let row = row.as_ref().ok();
    let placed = row.and_then(Row::placed);
    let quant = row.and_then(|row| row.quant.clone()).or_else(|| model.quant.clone());
    let layers = placed.map(|placed| format!("{}/{}", placed.n_gpu_layers, placed.layers));
    let speed = placed.and_then(|placed| placed.tokens_per_second).map(|speed| format!("{speed:.1}"));
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    vec![model.name.clone(), or_dash(quant), Bytes(model.bytes).to_string(), or_dash(layers), or_dash(speed)]
}
