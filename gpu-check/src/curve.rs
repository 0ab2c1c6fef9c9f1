//! Measured and predicted speeds over `n_gpu_layers`, as a CSV table and as a picture.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::drawing::IntoDrawingArea;
use plotters::element::Circle;
use plotters::series::LineSeries;
use plotters::style::{Color, IntoFont, RGBColor, WHITE};
use serde::{Deserialize, Serialize};

use crate::child::End;

/// A point of the curve. Speeds are in tokens per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) n_gpu_layers: u32,
    pub(crate) end: End,
    /// Median prompt speed of the rounds.
    pub(crate) prompt: Option<f64>,
    /// Median generation speed of the rounds.
    pub(crate) generation: Option<f64>,
    /// The plan's prediction of generation.
    pub(crate) predicted: Option<f64>,
    /// All rounds: prompt, generation.
    pub(crate) rounds: Vec<(f64, f64)>,
}

impl Point {
    /// Measured generation speed divided by predicted.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.generation? / self.predicted?)
    }
}

/// One line for each point.
pub(crate) fn csv(points: &[Point]) -> String {
    let mut table = "n_gpu_layers,end,prompt_tokens_per_second,tokens_per_second,predicted_tokens_per_second,measured_by_predicted\n".to_owned();
    let cell = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    for point in points {
        let end = match point.end {
            End::Completed => "completed",
            End::Refused(_) => "refused",
            End::OutOfMemory(_) => "out_of_memory",
            End::Failed(_) => "failed",
        };
        let _ = writeln!(
            table,
            "{},{end},{},{},{},{}",
            point.n_gpu_layers,
            cell(point.prompt),
            cell(point.generation),
            cell(point.predicted),
            cell(point.ratio())
        );
    }
    table
}

/// Colours that also differ in lightness (Okabe and Ito, 2008).
const PREDICTED: RGBColor = RGBColor(0, 114, 178);
const MEASURED: RGBColor = RGBColor(213, 94, 0);
const INK: RGBColor = RGBColor(34, 34, 34);
const GRID: RGBColor = RGBColor(233, 233, 233);

/// Draws the predicted curve as a line and the measurements as circles. `predicted` is indexed by `n_gpu_layers`, from
/// 0.
pub(crate) fn svg(title: &str, points: &[Point], predicted: &[f64]) -> Result<String> {
    let mut picture = String::new();
    draw(&mut picture, title, points, predicted).map_err(|error| anyhow!("the curve cannot be drawn: {error}"))?;
    Ok(picture)
}

fn draw(
    picture: &mut String,
    title: &str,
    points: &[Point],
    predicted: &[f64],
) -> Result<(), Box<dyn std::error::Error>> {
    let drawable = |speed: &f64| (0.0..=1e9).contains(speed);
    let measured: Vec<(u32, f64)> =
        points.iter().filter_map(|point| Some((point.n_gpu_layers, point.generation.filter(drawable)?))).collect();
    let line: Vec<(u32, f64)> = (0..).zip(predicted.iter().copied()).filter(|(_, speed)| drawable(speed)).collect();
    let both = || measured.iter().chain(&line);
    let layers = both().map(|(layers, _)| *layers).max().unwrap_or(0).max(1);
    let highest = both().map(|(_, speed)| *speed).fold(1.0, f64::max);

    let root = SVGBackend::with_string(picture, (960, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let small = ("sans-serif", 15).into_font().color(&INK);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20).into_font().color(&INK))
        .margin(24)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0..layers, 0.0..highest * 1.1)?;
    chart
        .configure_mesh()
        .x_desc(if line.is_empty() {
            "n_gpu_layers (circles: measured; nothing is predicted)"
        } else {
            "n_gpu_layers (line: predicted, circles: measured)"
        })
        .y_desc("tokens per second")
        .x_labels(12)
        .y_labels(6)
        .label_style(small.clone())
        .axis_desc_style(small)
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .draw()?;
    chart.draw_series(LineSeries::new(line, PREDICTED.stroke_width(2)))?;
    chart.draw_series(measured.iter().map(|&point| Circle::new(point, 5, MEASURED.filled())))?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Point, csv, svg};
    use crate::child::End;

    fn point(n_gpu_layers: u32, generation: f64) -> Point {
        Point {
            n_gpu_layers,
            end: End::Completed,
            prompt: Some(1000.0),
            generation: Some(generation),
            predicted: Some(50.0),
            rounds: vec![(1000.0, generation)],
        }
    }

    #[test]
    fn a_point_that_was_refused_has_a_line_without_speeds() {
        let refused =
            Point { end: End::Refused("no room, none".to_owned()), prompt: None, generation: None, ..point(33, 0.0) };
        let table = csv(&[point(32, 100.0), refused]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "32,completed,1000.000,100.000,50.000,2.000");
        assert_eq!(lines[2], "33,refused,,,50.000,");
    }

    #[test]
    fn each_measured_point_is_a_circle_and_the_prediction_a_line() {
        let picture = svg("a <model>", &[point(0, 10.0), point(2, 90.0)], &[8.0, 20.0, 80.0]);
        let picture = picture.unwrap();
        assert_eq!(picture.matches("<circle").count(), 2);
        assert!(picture.contains("<polyline") && picture.contains("a &lt;model&gt;"));
    }

    #[test]
    fn numbers_may_be_anything() {
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let picture = svg("", &[point(0, wrong)], &[wrong]).unwrap();
            assert!(!picture.contains("<circle"), "{wrong}");
        }
    }
}
