//! `ledger`: adds measured speeds as rows to `docs/ledger/speeds.csv`. A file of `measure --submission` flows in, every
//! field is checked, and rows flow out.

mod fields;
mod table;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::selected::run_tests;
use crate::workspace::Workspace;
use fields::Field;
use table::{EMPTY_IN_SUBMISSIONS, check, line};

const LEDGER: &str = "docs/ledger/speeds.csv";

/// The values of a submission's first fields, as `measure` writes them.
const FORM: &str = "autoplace measurement for others";
const VERSION: f64 = 1.0;

/// Checks the ledger. Adds and prints the rows of these submissions. Without submissions, prints each row with the
/// prediction of the speed model.
pub(crate) fn ledger(workspace: &Workspace, files: &[String]) -> Result<()> {
    let path = workspace.root.join(LEDGER);
    let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    check(&text).with_context(|| path.display().to_string())?;
    for file in files {
        let rows = read(Path::new(file)).with_context(|| file.clone())?;
        let source = rows.first().map(|row| row[0].clone()).unwrap_or_default();
        ensure!(!text.contains(&source), "{file}: the ledger already contains this submission, as {source}");
        for row in rows {
            let line = line(&row);
            println!("{line}");
            text += &format!("{line}\n");
        }
    }
    check(&text).with_context(|| path.display().to_string())?;
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: {} rows", path.display(), text.lines().count() - 1);
    if files.is_empty() { print_predictions(workspace) } else { Ok(()) }
}

/// Prints the table of measured and predicted speeds, which a test of the planner makes.
fn print_predictions(workspace: &Workspace) -> Result<()> {
    let test = ["test", "--quiet", "--package=autoplace-planner", "--test=planner", "ledger::", "--", "--nocapture"];
    run_tests(&mut workspace.cargo(&test))
}

/// The rows of a submission's file.
fn read(file: &Path) -> Result<Vec<Vec<String>>> {
    /// The longest accepted file. A sweep over all numbers of layers takes only some hundred kilobytes.
    const MAX_BYTES: u64 = 16 << 20;
    let length = fs::metadata(file)?.len();
    ensure!(length <= MAX_BYTES, "it has {length} bytes, and a submission has at most {MAX_BYTES}");
    rows(&fs::read_to_string(file)?)
}

/// The rows of a submission, if every field is valid.
fn rows(text: &str) -> Result<Vec<Vec<String>>> {
    let value: Value = serde_json::from_str(text)?;
    let root = Field::root(&value);
    root.has_only(&["form", "version", "made_by", "date", "model", "machine", "points", "failed"])?;
    ensure!(
        root.get("form").text()? == FORM,
        "form: this is not a submission: `autoplace measure --submission` writes one"
    );
    ensure!(root.get("version").number(0.0..=1e6)? == VERSION, "version: only version {VERSION} is supported");
    root.get("failed").number(0.0..=1e6)?;
    let source = format!("submission {:016x}", digest(text));
    let (made_by, date) = (root.get("made_by").text()?, root.get("date").date()?);

    let model = root.get("model");
    model.has_only(&["name", "description", "header", "tensor_bytes", "n_params"])?;
    model.get("header").hexadecimal(32)?;
    let bytes = model.get("tensor_bytes").whole(1.0..=1e14)?;
    let params = model.get("n_params").whole(1.0..=1e14)?;
    let of_model = [model.get("name").text()?, model.get("description").text()?, params, bytes];

    let machine = root.get("machine");
    machine.has_only(&["system", "cpu", "cores", "memory", "bandwidth", "gpus"])?;
    machine.get("system").text()?;
    let gpus = machine.get("gpus").list(16)?;
    let gpus = gpus.iter().map(gpu).collect::<Result<Vec<_>>>()?.join("; ");
    let of_machine = [
        machine.get("cpu").or_none(Field::text)?,
        machine.get("cores").or_none(|value| value.whole(1.0..=4096.0))?,
        machine.get("memory").whole(1e8..=1e14)?,
        bandwidth(&machine.get("bandwidth"))?,
        if gpus.is_empty() { "none".to_owned() } else { gpus },
    ];

    let mut rows = Vec::new();
    for point in root.get("points").list(1024)? {
        let placed = placement(&point)?;
        for row in point.get("rows").list(1024)? {
            let computed = computed(&row)?;
            let head = [source.clone(), date.clone(), made_by.clone()];
            let empty = vec![String::new(); EMPTY_IN_SUBMISSIONS];
            rows.push([&head[..], &of_model, &of_machine, &placed, &computed, &empty].concat());
        }
    }
    ensure!(!rows.is_empty(), "points: nothing was measured");
    Ok(rows)
}

/// A GPU as a text: name, bytes, bandwidth and link.
fn gpu(gpu: &Field<'_>) -> Result<String> {
    gpu.has_only(&["name", "backend", "kind", "memory", "driver", "bandwidth", "link", "measured_link"])?;
    gpu.get("kind").one_of(&["discrete", "integrated", "remote"])?;
    let driver = gpu.get("driver").or_none(Field::text)?;
    let memory = gpu.get("memory").whole(1e6..=1e14)?;
    let mut words = vec![gpu.get("name").text()?, gpu.get("backend").text()?, format!("{memory} bytes")];
    words.extend(Some(driver).filter(|text| !text.is_empty()).map(|text| format!("driver {text}")));
    let rate = bandwidth(&gpu.get("bandwidth"))?;
    words.extend(Some(rate).filter(|text| !text.is_empty()).map(|text| format!("{text} bytes/s")));
    if let Some(link) = gpu.get("link").is_some() {
        link.has_only(&["max", "current"])?;
        let rate = |field: Field<'_>| -> Result<String> {
            field.has_only(&["generation", "lanes"])?;
            Ok(format!(
                "PCIe {}.0 x{}",
                field.get("generation").whole(1.0..=6.0)?,
                field.get("lanes").whole(1.0..=32.0)?
            ))
        };
        words.push(rate(link.get("max"))?);
        link.get("current").is_some().map(rate).transpose()?;
    }
    if let Some(link) = gpu.get("measured_link").is_some() {
        link.has_only(&["upload", "download", "crossing_ns"])?;
        link.get("download").whole(0.0..=1e13)?;
        let crossing = link.get("crossing_ns").whole(0.0..=1e12)?;
        words.push(format!("{} bytes/s to it, a crossing {crossing} ns", link.get("upload").whole(0.0..=1e13)?));
    }
    Ok(words.join(", "))
}

/// Bytes per second; empty if unknown.
fn bandwidth(field: &Field<'_>) -> Result<String> {
    let Some(bandwidth) = field.is_some() else {
        return Ok(String::new());
    };
    bandwidth.has_only(&["bytes_per_second", "source"])?;
    bandwidth.get("source").text()?;
    bandwidth.get("bytes_per_second").whole(1e6..=1e14)
}

/// The model's placement and settings.
fn placement(point: &Field<'_>) -> Result<[String; 9]> {
    point.has_only(&[
        "name",
        "n_gpu_layers",
        "layers",
        "tensor_split",
        "overrides",
        "settings",
        "threads",
        "threads_batch",
        "gpus",
        "conditions",
        "rows",
    ])?;
    point.get("name").text()?;
    let layers = point.get("layers").whole(1.0..=4096.0)?;
    let most: f64 = layers.parse()?;
    let n_gpu_layers = point.get("n_gpu_layers").whole(0.0..=most)?;
    point.get("threads_batch").whole(1.0..=4096.0)?;
    for share in point.get("tensor_split").list(16)? {
        share.number(0.0..=1e9)?;
    }
    for gpu in point.get("gpus").list(16)? {
        gpu.has_only(&["layers", "planned", "taken"])?;
        gpu.get("layers").whole(0.0..=most)?;
        gpu.get("planned").whole(0.0..=1e14)?;
        gpu.get("taken").or_none(|value| value.whole(0.0..=1e14))?;
    }
    conditions(&point.get("conditions"))?;
    let mut elsewhere = Vec::new();
    for rule in point.get("overrides").list(4096)? {
        rule.has_only(&["pattern", "place"])?;
        let place = rule.get("place");
        let place = match place.text() {
            Ok(place) => place,
            Err(_) => format!("gpu {}", place.get("gpu").whole(0.0..=15.0)?),
        };
        elsewhere.push(format!("{}={place}", rule.get("pattern").text()?));
    }
    let settings = point.get("settings");
    let size = |name: &str| settings.get(name).whole(0.0..=2_147_483_648.0);
    Ok([
        n_gpu_layers,
        layers,
        elsewhere.join(" "),
        settings.get("type_k").text()?,
        settings.get("type_v").text()?,
        size("n_ctx")?,
        size("n_batch")?,
        size("n_ubatch")?,
        point.get("threads").whole(1.0..=4096.0)?,
    ])
}

/// Checks that the machine's conditions are plausible numbers.
fn conditions(field: &Field<'_>) -> Result<()> {
    field.has_only(&["temperature", "clock_mhz", "throttle", "cpu_pressure", "memory_pressure", "swapped"])?;
    field.get("temperature").or_none(|value| value.whole(0.0..=200.0))?;
    field.get("clock_mhz").or_none(|value| value.whole(0.0..=20_000.0))?;
    field.get("swapped").or_none(|value| value.whole(0.0..=1e15))?;
    for share in ["cpu_pressure", "memory_pressure"] {
        field.get(share).or_none(|value| Ok(value.number(0.0..=100.0)?.to_string()))?;
    }
    field.get("throttle").list(32)?.iter().try_for_each(|reason| reason.text().map(drop))
}

/// The numbers of computed tokens, and the median, minimum and maximum of the samples in tokens per second.
fn computed(row: &Field<'_>) -> Result<[String; 7]> {
    row.has_only(&["n_prompt", "n_gen", "n_depth", "predicted", "ns"])?;
    let tokens = |name: &str| row.get(name).whole(0.0..=2_147_483_648.0);
    let (prompt, generated) = (tokens("n_prompt")?, tokens("n_gen")?);
    let count = prompt.parse::<f64>()? + generated.parse::<f64>()?;
    ensure!(count > 0.0, "{}: no token was computed", row.path());
    row.get("predicted").or_none(|value| Ok(value.number(0.0..=1e9)?.to_string()))?;
    let samples = row.get("ns").list(100_000)?;
    ensure!(!samples.is_empty(), "{}: there is no sample", row.path());
    let speeds = samples.iter().map(|sample| Ok(count * 1e9 / sample.number(1.0..=1e16)?));
    let mut speeds = speeds.collect::<Result<Vec<f64>>>()?;
    speeds.sort_by(f64::total_cmp);
    let of = |index: usize| format!("{:.2}", speeds[index]);
    let (middle, last) = (speeds.len() / 2, speeds.len() - 1);
    Ok([prompt, generated, tokens("n_depth")?, of(middle), of(0), of(last), speeds.len().to_string()])
}

/// A hash of the file: FNV-1a over its bytes. It distinguishes files, but does not protect against forgery.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::table::{COLUMNS, cells};
    use super::{check, line, rows};

    /// A submission of `measure`. A test of `measure` keeps this file current.
    const FILE: &str = include_str!("../../tests/submission.json");

    fn changed(change: impl FnOnce(&mut Value)) -> Result<Vec<Vec<String>>, String> {
        let mut value: Value = serde_json::from_str(FILE).unwrap();
        change(&mut value);
        rows(&value.to_string()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_submission_becomes_rows_of_the_ledger() {
        let rows = rows(FILE).unwrap();
        assert_eq!(rows.len(), 2);
        let of = |row: &[String], column: &str| row[COLUMNS.iter().position(|name| *name == column).unwrap()].clone();
        let tg = &rows[1];
        for (column, value) in [
            ("date", "2026-11-28"),
            ("model", "Llama 3.1 8B"),
            ("cores", "16"),
            ("n_gpu_layers", "33"),
            ("layers", "33"),
            ("type_k", "F16"),
            ("n_gen", "256"),
            ("n_depth", "512"),
            ("median", "80.00"),
            ("least", "77.58"),
            ("most", "82.58"),
            ("samples", "3"),
        ] {
            assert_eq!(of(tg, column), value, "{column}");
        }
        assert!(of(tg, "gpus").contains("RTX 4090") && of(tg, "gpus").contains("PCIe 4.0 x16"));
        let ledger = format!("{}\n{}\n{}\n", COLUMNS.join(","), line(&rows[0]), line(tg));
        check(&ledger).unwrap();
        assert_eq!(cells(&line(tg)), *tg);
    }

    #[test]
    fn every_field_is_checked_and_named_if_it_is_wrong() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 18] = [
            (|document| document["form"] = json!("other"), "form"),
            (|document| document["version"] = json!(2), "version"),
            (|document| document["hostname"] = json!("pc"), "hostname"),
            (|document| document["date"] = json!("yesterday"), "date"),
            (|document| document["model"]["name"] = json!("/home/zoe/m.gguf"), "model.name"),
            (|document| document["model"]["name"] = json!("x".repeat(1000)), "model.name"),
            (|document| document["model"]["header"] = json!("xyz"), "model.header"),
            (|document| document["model"]["path"] = json!("m.gguf"), "path"),
            (|document| document["machine"]["cpu"] = json!("zoe@pc"), "machine.cpu"),
            (|document| document["machine"]["memory"] = json!(-1), "machine.memory"),
            (|document| document["machine"]["gpus"][0]["uuid"] = json!("GPU-1"), "uuid"),
            (
                |document| document["machine"]["gpus"][0]["link"]["max"]["lanes"] = json!(99),
                "machine.gpus[0].link.max.lanes",
            ),
            (|document| document["points"][0]["n_gpu_layers"] = json!(34), "points[0].n_gpu_layers"),
            (|document| document["points"][0]["settings"]["type_k"] = json!(7), "points[0].settings.type_k"),
            (|document| document["points"][0]["rows"][0]["ns"] = json!([]), "points[0].rows[0]"),
            (|document| document["points"][0]["rows"][0]["ns"][1] = json!(0), "points[0].rows[0].ns[1]"),
            (
                |document| document["points"][0]["conditions"]["temperature"] = json!(1000),
                "points[0].conditions.temperature",
            ),
            (|document| document["points"] = json!([]), "points"),
        ];
        for (change, named) in cases {
            let error = changed(change).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
        assert!(changed(|_| {}).is_ok());
    }
}
