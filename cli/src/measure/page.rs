//! A measurement as a picture and as a page: tokens per second over `n_gpu_layers` beside what was predicted, and what
//! each placement takes of each GPU.

use plotters::element::{Circle, PathElement};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, RGBColor};

use autoplace::machine::Bytes;
use autoplace::measure::{MeasuredDevice, Measurement, Point};

use super::beside::{self, Series};
use super::{gpus, table};
use crate::picture::{
    Area, Axes, CHOSEN, COMPUTE, Drawn, HEADROOM, KV, MARGIN, WEIGHTS, WIDTH, document, fill, stack, write,
};

const CURVE: u32 = 420;
/// From the top of the second part to its first bar.
const HEAD: i32 = 64;
/// A bar and its line of numbers.
const ROW: i32 = 52;
/// Of the curves beside ours; more of them begin again.
const OTHERS: [RGBColor; 3] = [KV, COMPUTE, HEADROOM];

/// The picture as an SVG document.
pub(super) fn svg(measurement: &Measurement, others: &[Series]) -> Result<String, String> {
    let bars = bars(measurement);
    let height = CURVE + u32::try_from(HEAD + ROW * bars.len() as i32).unwrap_or_default();
    document(&format!("the measurement of {}", measurement.model.identity.name), height, |root| {
        let (top, bottom) = root.split_vertically(CURVE);
        draw_curve(&top, measurement, others)?;
        draw_bars(&bottom, &bars)
    })
}

/// A page with the picture and the table, which needs no other file.
pub(super) fn html(measurement: &Measurement, others: &[Series]) -> Result<String, String> {
    let svg = svg(measurement, others)?;
    let rows = table::rows(measurement);
    let rows = rows.iter().enumerate().map(|(index, row)| {
        let tag = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    });
    let rows: String = rows.collect();
    let paragraphs =
        |lines: Vec<String>| -> String { lines.iter().map(|line| format!("<p>{}</p>\n", escaped(line))).collect() };
    let (head, foot) = (paragraphs(table::head(measurement)), paragraphs(table::foot(measurement)));
    let title = escaped(&measurement.model.identity.name);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<style>\nbody {{ font-family: sans-serif; max-width: 64em; margin: 2em auto; color: #222 }}\nsvg {{ max-width: 100%; height: auto }}\ntable {{ border-collapse: collapse }}\nth, td {{ padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: right }}\nth:first-child, td:first-child {{ text-align: left }}\n</style>\n{head}{svg}\n<table>\n{rows}</table>\n{foot}</html>"
    ))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn draw_curve(area: &Area<'_>, measurement: &Measurement, others: &[Series]) -> Drawn {
    let title = table::head(measurement).swap_remove(0);
    write(area, &title, (MARGIN, 12), 20, HPos::Left)?;
    let measured = beside::of(measurement);
    let placements = || measurement.points.iter().filter_map(|point| point.placement.as_ref());
    let layers = placements().map(|it| it.layers).max().unwrap_or(1).max(1);
    let predicted: Vec<(u32, f64)> =
        (0..=layers).zip(measurement.predicted.iter().copied()).filter(beside::can_be_drawn).collect();
    let chosen = measurement.point("plan").and_then(|point| {
        let at = (point.placement.as_ref()?.n_gpu_layers, point.generation()?.speed.median);
        Some(at).filter(beside::can_be_drawn)
    });
    let names = [("measured, and predicted (line)", WEIGHTS), ("the plan", CHOSEN)];
    let colored = others.iter().map(|it| it.name.as_str()).zip(OTHERS.into_iter().cycle());
    legend(area, &names.into_iter().chain(colored).collect::<Vec<_>>(), 48)?;
    // 99 is what people write for all.
    let others: Vec<Vec<(u32, f64)>> =
        others.iter().map(|it| it.points.iter().map(|&(n, speed)| (n.min(layers), speed)).collect()).collect();
    let speeds = measured.iter().chain(&predicted).chain(others.iter().flatten()).chain(&chosen);
    let highest = speeds.map(|(_, speed)| *speed).fold(1e-3, f64::max);
    let axes = Axes { layers, most: highest * 1.1, top: 72, left: 64, unit: "tokens per second, generation" };
    let plot = axes.draw(area, &|speed| table::number(*speed))?;
    plot.draw(&PathElement::new(predicted, WEIGHTS.stroke_width(2)))?;
    for (points, color) in others.into_iter().zip(OTHERS.iter().cycle()) {
        for point in &points {
            plot.draw(&Circle::new(*point, 3, color.filled()))?;
        }
        plot.draw(&PathElement::new(points, color.stroke_width(1)))?;
    }
    let circles = measured.into_iter().map(|point| (point, 5, WEIGHTS));
    for ((n, speed), size, color) in circles.chain(chosen.map(|point| (point, 6, CHOSEN))) {
        plot.draw(&Circle::new((n.min(layers), speed), size, color.filled()))?;
    }
    Ok(())
}

/// The names of the curves, with their colours, in one line.
fn legend(area: &Area<'_>, names: &[(&str, RGBColor)], y: i32) -> Drawn {
    let mut x = MARGIN;
    for (name, color) in names {
        fill(area, x, y, 14, 14, *color)?;
        write(area, name, (x + 20, y - 2), 16, HPos::Left)?;
        x += 48 + 8 * name.chars().count() as i32;
    }
    Ok(())
}

/// The GPUs of each placement.
fn bars(measurement: &Measurement) -> Vec<(&Point, &MeasuredDevice)> {
    let placed = measurement.points.iter().filter_map(|point| Some((point, point.placement.as_ref()?)));
    placed.flat_map(|(point, placement)| gpus(placement).map(move |gpu| (point, gpu))).collect()
}

fn draw_bars(area: &Area<'_>, bars: &[(&Point, &MeasuredDevice)]) -> Drawn {
    let whole = WIDTH as i32 - 2 * MARGIN;
    let total = |(_, gpu): &(&Point, &MeasuredDevice)| gpu.planned.total().max(gpu.taken.unwrap_or(0));
    let Some(most) = bars.iter().map(total).max().filter(|&most| most > 0) else {
        return Ok(());
    };
    let names = [("weights", WEIGHTS), ("KV", KV), ("compute", COMPUTE), ("taken", CHOSEN)];
    legend(area, &names, 20)?;
    let at = |bytes: u64| MARGIN + (bytes as f64 / most as f64 * f64::from(whole)) as i32;
    for ((point, gpu), y) in bars.iter().zip((HEAD - 16..).step_by(ROW as usize)) {
        let planned = gpu.planned;
        let taken = gpu.taken.map_or_else(|| "not told".to_owned(), |it| Bytes(it).to_string());
        let label = format!("{} on {}: {} planned, {taken} taken", point.name, gpu.name, Bytes(planned.total()));
        write(area, &label, (MARGIN, y), 15, HPos::Left)?;
        let parts = [(planned.weights, WEIGHTS), (planned.kv, KV), (planned.compute, COMPUTE)];
        stack(area, parts, at, (y + 20, 18))?;
        if let Some(x) = gpu.taken.map(at) {
            area.draw(&PathElement::new([(x, y + 17), (x, y + 41)], CHOSEN.stroke_width(2)))?;
        }
    }
    Ok(())
}
