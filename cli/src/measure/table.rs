//! A measurement as a table: text for a terminal, or Markdown for an issue.

use std::fmt::Write as _;

use autoplace::machine::Bytes;
use autoplace_measure::{MeasuredDevice, Measurement, Point, Row};

use crate::terminal::columns;

/// The cells of the table, row by row. The first row is the heading. The output formats differ only in the separators
/// between the cells.
pub(super) fn rows(measurement: &Measurement) -> Vec<Vec<String>> {
    let mut kinds: Vec<String> = Vec::new();
    for row in measurement.points.iter().flat_map(|point| &point.rows) {
        let name = row.name();
        if !kinds.contains(&name) {
            kinds.push(name);
        }
    }
    let head = ["placement", "layers", "GPUs planned", "taken"].map(str::to_owned).into_iter();
    let mut rows = vec![head.chain(kinds.iter().map(|kind| format!("{kind} (predicted)"))).collect()];
    for point in &measurement.points {
        let cell =
            |kind: &String| point.rows.iter().find(|row| row.name() == *kind).map_or_else(|| "-".to_owned(), speed);
        let first = [point.name.clone()].into_iter().chain(placed(point));
        rows.push(first.chain(kinds.iter().map(cell)).collect());
    }
    rows
}

/// The first cells of a row: the number of layers, and the bytes on all GPUs together.
fn placed(point: &Point) -> [String; 3] {
    let Some(placement) = &point.placement else {
        return ["-"; 3].map(str::to_owned);
    };
    let gpus: Vec<&MeasuredDevice> = placement.devices.iter().filter(|device| device.device.is_some()).collect();
    let sum = |bytes: &dyn Fn(&MeasuredDevice) -> Option<u64>| {
        let all = gpus.iter().try_fold(0, |sum: u64, gpu| Some(sum.saturating_add(bytes(gpu)?)));
        all.filter(|_| !gpus.is_empty()).map_or_else(|| "-".to_owned(), |all| Bytes(all).to_string())
    };
    let layers = format!("{} of {}", placement.n_gpu_layers, placement.layers);
    [layers, sum(&|gpu| Some(gpu.planned.total())), sum(&|gpu| gpu.taken)]
}

/// The cells for the median, the spread and the prediction.
fn speed(row: &Row) -> String {
    let speed = row.speed;
    let spread = (speed.most - speed.least) / 2.0 / speed.median.max(f64::MIN_POSITIVE) * 100.0;
    let predicted = row.predicted.map_or(String::new(), |speed| format!(" ({})", number(speed)));
    format!("{} ±{spread:.0} %{predicted}", number(speed.median))
}

/// A speed with as many digits as are significant.
fn number(speed: f64) -> String {
    match speed {
        100.0.. => format!("{speed:.0}"),
        10.0.. => format!("{speed:.1}"),
        _ => format!("{speed:.2}"),
    }
}

/// The lines that come before the table.
fn head(measurement: &Measurement) -> Vec<String> {
    let machine = &measurement.machine;
    let gpus = machine.gpus.iter().map(|gpu| gpu.name.clone());
    let cpu = machine.host.cpu.clone().unwrap_or_else(|| "host".to_owned());
    let on: Vec<String> = gpus.chain([cpu]).collect();
    let model = &measurement.model;
    vec![
        format!("{} · {} · {}", model.identity.name, model.description, on.join(", ")),
        format!("{}; tokens per second, median and half of the spread", measurement.made_by),
    ]
}

fn foot(measurement: &Measurement) -> Vec<String> {
    let mut lines = Vec::new();
    let ratios = measurement.compare("before", "after").unwrap_or_default();
    lines.extend(ratios.iter().map(|ratio| format!("after / before, {ratio}")));
    for point in &measurement.points {
        lines.extend(point.failure.iter().map(|why| format!("{}: {why}", point.name)));
        let conditions = &point.conditions;
        if !conditions.throttle.is_empty() {
            let reasons: Vec<String> = conditions.throttle.iter().map(ToString::to_string).collect();
            lines.push(format!("{}: clocks were held down ({})", point.name, reasons.join(", ")));
        }
        let swapped = conditions.swapped_in.unwrap_or(0).saturating_add(conditions.swapped_out.unwrap_or(0));
        if swapped > 0 {
            lines.push(format!("{}: the system swapped {swapped} pages meanwhile", point.name));
        }
    }
    lines.extend(measurement.notes.iter().cloned());
    lines
}

pub(super) fn text(measurement: &Measurement) -> String {
    let mut text = head(measurement).join("\n");
    // Names are aligned to the left, numbers to the right.
    text.extend(columns(&rows(measurement), 1).map(|row| format!("\n  {row}")));
    text + &foot(measurement).iter().map(|line| format!("\n  {line}")).collect::<String>()
}

pub(super) fn markdown(measurement: &Measurement) -> String {
    let rows = rows(measurement);
    let mut text = head(measurement).join("  \n");
    text.push('\n');
    for (index, row) in rows.iter().enumerate() {
        // A `|` in a model's name would begin a new cell, and control characters may occur in it too.
        let cells: Vec<String> =
            row.iter().map(|cell| cell.replace('|', "\\|").replace(char::is_control, " ")).collect();
        let _ = write!(text, "\n| {} |", cells.join(" | "));
        if index == 0 {
            let _ = write!(text, "\n|---|{}", "--:|".repeat(row.len().saturating_sub(1)));
        }
    }
    text.push('\n');
    text + &foot(measurement).iter().map(|line| format!("\n- {line}")).collect::<String>()
}
