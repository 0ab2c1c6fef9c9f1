//! A plan as a picture: a bar per device, and below them the predicted speed over `n_gpu_layers` with the chosen point.
//!
//! SVG with texts as texts: no font is needed to draw it, and whoever shows it brings one. The same plan gives
//! the same picture.

use std::io;

use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::{RangedCoordf64, RangedCoordu32};
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle, WHITE};

use autoplace::machine::Bytes;

use autoplace::plan::{Placement, PlacementKind, Plan, Speed};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Plot<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordu32, RangedCoordf64>>;
pub(crate) type DrawingError = DrawingAreaErrorKind<io::Error>;
pub(crate) type Drawn = Result<(), DrawingError>;

pub(crate) const WIDTH: u32 = 960;
pub(crate) const MARGIN: i32 = 24;
/// From the top to the first device: the title and the legend.
const HEAD: i32 = 88;
/// A device: its name, its bar, a line of numbers, and air.
const DEVICE: i32 = 88;
const BAR: i32 = 26;
const CURVE: u32 = 320;

/// Colours that differ in lightness too, and for every kind of colour blindness (Okabe and Ito, 2008).
pub(crate) const WEIGHTS: RGBColor = RGBColor(0, 114, 178);
pub(crate) const KV: RGBColor = RGBColor(230, 159, 0);
pub(crate) const COMPUTE: RGBColor = RGBColor(0, 158, 115);
pub(crate) const HEADROOM: RGBColor = RGBColor(204, 121, 167);
pub(crate) const FREE: RGBColor = RGBColor(233, 233, 233);
const TAKEN: RGBColor = RGBColor(120, 120, 120);
pub(crate) const CHOSEN: RGBColor = RGBColor(213, 94, 0);
pub(crate) const INK: RGBColor = RGBColor(34, 34, 34);

/// The plan as an SVG document: a bar per device with weights, keys and values, compute buffers, headroom and what
/// stays free, and, where the plan has a predicted speed, its curve over `n_gpu_layers`.
/// Fails with a line where it cannot be drawn.
pub(crate) fn svg(plan: &Plan) -> Result<String, String> {
    let speed = plan.speed.as_ref().filter(|speed| can_be_drawn(speed));
    let devices = i32::try_from(plan.placements.len()).unwrap_or(i32::MAX);
    let bars = u32::try_from(HEAD.saturating_add(DEVICE.saturating_mul(devices))).unwrap_or_default();
    let height = bars + speed.map_or(0, |_| CURVE);
    document(&format!("the plan of {}", plan.model.name), height, |root| {
        let (top, bottom) = root.split_vertically(bars);
        draw_head(plan, &top)?;
        for (placement, y) in plan.placements.iter().zip((HEAD..).step_by(DEVICE as usize)) {
            draw_device(plan, &top, placement, y)?;
        }
        speed.map_or(Ok(()), |speed| draw_curve(plan, &bottom, speed))
    })
}

/// A document of this height; `what` it shows is named where that cannot be drawn.
pub(crate) fn document(what: &str, height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, String> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let drawn = root.fill(&WHITE).and_then(|()| draw(&root)).and_then(|()| root.present());
    drop(root);
    drawn.map(|()| svg).map_err(|error| format!("{what} cannot be drawn: {error}"))
}

fn draw_head(plan: &Plan, area: &Area<'_>) -> Drawn {
    let model = &plan.model;
    let kind = model.file_type.as_deref().unwrap_or(&model.architecture);
    let title = format!("{} · {kind} · {}", model.name, Bytes(model.file_bytes));
    write(area, &title, (MARGIN, 16), 24, HPos::Left)?;
    let mut x = MARGIN;
    for (name, color) in [
        ("weights", WEIGHTS),
        ("KV", KV),
        ("compute", COMPUTE),
        ("headroom", HEADROOM),
        ("free", FREE),
        ("in use by others", TAKEN),
    ] {
        fill(area, x, 54, 14, 14, color)?;
        write(area, name, (x + 20, 52), 16, HPos::Left)?;
        x += 110;
    }
    Ok(())
}

fn draw_device(plan: &Plan, area: &Area<'_>, placement: &Placement, y: i32) -> Drawn {
    let whole = WIDTH as i32 - 2 * MARGIN;
    let layers = match placement.kind {
        PlacementKind::Host if placement.layers == 0 => String::new(),
        _ => format!(", {} of {} layers", placement.layers, plan.layers()),
    };
    let total = Bytes(placement.total);
    let name = format!("{} ({total}){layers}", placement.name);
    write(area, &name, (MARGIN, y), 18, HPos::Left)?;
    let taken = placement.total.saturating_sub(placement.free);
    let footprint = &placement.footprint;
    let headroom = placement.headroom.total();
    let rest = placement.free.saturating_sub(footprint.total()).saturating_sub(headroom);
    let parts = [
        ("weights", footprint.weights, WEIGHTS),
        ("KV", footprint.kv, KV),
        ("compute", footprint.compute, COMPUTE),
        ("headroom", headroom, HEADROOM),
        ("free", rest, FREE),
        ("in use by others", taken, TAKEN),
    ];
    // Each bar is as long as its device is large: what counts is how full that is.
    let at = |bytes: u64| {
        let share = u128::from(bytes.min(placement.total)) * whole.unsigned_abs() as u128;
        let pixels = share / u128::from(placement.total.max(1));
        MARGIN + i32::try_from(pixels).unwrap_or(whole)
    };
    stack(area, parts.map(|(_, bytes, color)| (bytes, color)), at, (y + 24, BAR))?;
    let frame = Rectangle::new([(MARGIN, y + 24), (MARGIN + whole, y + 24 + BAR)], INK.stroke_width(1));
    area.draw(&frame)?;
    let numbers = parts.iter().filter(|(_, bytes, _)| *bytes > 0);
    let numbers: Vec<String> = numbers.map(|(name, bytes, _)| format!("{name} {}", Bytes(*bytes))).collect();
    write(area, &numbers.join(" · "), (MARGIN, y + 56), 15, HPos::Left)
}

fn draw_curve(plan: &Plan, area: &Area<'_>, speed: &Speed) -> Drawn {
    let layers = plan.layers();
    let chosen = (plan.n_gpu_layers.min(layers), speed.tokens_per_second);
    let highest = speed.curve.iter().copied().fold(chosen.1, f64::max);
    let digits = |speed: &f64| match highest {
        10.0.. => format!("{speed:.0}"),
        _ => format!("{speed:.1}"),
    };
    let axes = Axes { layers, most: highest * 1.15, top: MARGIN, left: 56, unit: "tokens per second" };
    let plot = axes.draw(area, &digits)?;
    let points: Vec<(u32, f64)> = (0..).zip(speed.curve.iter().copied()).collect();
    plot.draw(&PathElement::new(points, WEIGHTS.stroke_width(2)))?;
    plot.draw(&Circle::new(chosen, 6, CHOSEN.filled()))?;
    let parted = match plan.parted_blocks {
        0 => String::new(),
        // Such a point is beside the curve, which is of whole layers.
        1 => ", 1 block in part on the host".to_owned(),
        blocks => format!(", {blocks} blocks in part on the host"),
    };
    let label = format!("{} of {layers} layers{parted}: {} tok/s", chosen.0, number(chosen.1));
    // Above the point and before it, where the curve is lower; behind it where there is no room before.
    let (side, at) = if chosen.0 > layers / 3 { (HPos::Right, (-10, -8)) } else { (HPos::Left, (4, -24)) };
    let style = style(16, side, VPos::Bottom).color(&INK);
    let label = Text::new(label, at, style);
    plot.draw(&(plotters::element::EmptyElement::at(chosen) + label))
}

/// Speeds over `n_gpu_layers`: from none to all, and up to the most.
pub(crate) struct Axes {
    pub(crate) layers: u32,
    pub(crate) most: f64,
    /// Pixels above the axes, and for the numbers beside them.
    pub(crate) top: i32,
    pub(crate) left: u32,
    pub(crate) unit: &'static str,
}

impl Axes {
    /// Draws them; what is returned takes points of the curve.
    pub(crate) fn draw<'a>(&self, area: &Area<'a>, number: &dyn Fn(&f64) -> String) -> Result<Plot<'a>, DrawingError> {
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN)
            .margin_top(self.top)
            .x_label_area_size(44)
            .y_label_area_size(self.left)
            .build_cartesian_2d(0..self.layers, 0.0..self.most)?;
        let small = ("sans-serif", 15).into_font().color(&INK);
        chart
            .configure_mesh()
            .x_desc("n_gpu_layers")
            .y_desc(self.unit)
            .y_label_formatter(&number)
            .x_labels(12)
            .y_labels(6)
            .label_style(small.clone())
            .axis_desc_style(small)
            .light_line_style(WHITE)
            .bold_line_style(FREE)
            .axis_style(INK)
            .draw()?;
        Ok(chart.plotting_area().clone())
    }
}

/// Whether the numbers are such that axes can be drawn: a plan may come from a file.
fn can_be_drawn(speed: &Speed) -> bool {
    let finite = |speed: &f64| (0.0..=1e9).contains(speed);
    let highest = speed.curve.iter().copied().fold(0.0, f64::max);
    speed.curve.len() > 1 && highest > 0.0 && speed.curve.iter().all(finite) && finite(&speed.tokens_per_second)
}

/// With as many digits as say something.
fn number(speed: f64) -> String {
    if speed < 10.0 { format!("{speed:.1}") } else { format!("{speed:.0}") }
}

/// Parts of a bar, one behind the other; `at` is where so many bytes end.
pub(crate) fn stack(
    area: &Area<'_>,
    parts: impl IntoIterator<Item = (u64, RGBColor)>,
    at: impl Fn(u64) -> i32,
    (y, height): (i32, i32),
) -> Drawn {
    let mut end = 0_u64;
    for (bytes, color) in parts {
        let left = at(end);
        end = end.saturating_add(bytes);
        let right = at(end);
        if right > left {
            fill(area, left, y, right - left, height, color)?;
        }
    }
    Ok(())
}

pub(crate) fn fill(area: &Area<'_>, x: i32, y: i32, width: i32, height: i32, color: RGBColor) -> Drawn {
    let style = ShapeStyle::from(&color).filled();
    area.draw(&Rectangle::new([(x, y), (x + width, y + height)], style))
}

pub(crate) fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: u32, side: HPos) -> Drawn {
    let style = style(size, side, VPos::Top).color(&INK);
    area.draw(&Text::new(printable(text), at, style))
}

fn style(size: u32, side: HPos, vertical: VPos) -> TextStyle<'static> {
    let style = TextStyle::from(("sans-serif", size).into_font());
    style.pos(Pos::new(side, vertical))
}

/// A text that XML 1.0 can hold. The backend escapes what has a meaning in XML; control characters have
/// no escape there.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use crate::test_plan::{host_plan, plan};
    use autoplace::plan::Plan;

    use super::svg;

    /// All texts of the picture, which is well-formed XML.
    #[track_caller]
    fn texts(plan: &Plan) -> Vec<String> {
        let picture = svg(plan).unwrap();
        assert_eq!(svg(plan).unwrap(), picture);
        let document = roxmltree::Document::parse(&picture).unwrap();
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), "svg");
        assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect()
    }

    #[track_caller]
    fn has(texts: &[String], wanted: &str) {
        assert!(texts.iter().any(|text| text == wanted), "no {wanted:?} in {texts:#?}");
    }

    #[test]
    fn a_point_beside_the_curve_is_said_to_be_one() {
        let mut plan = plan();
        plan.parted_blocks = 12;
        plan.n_gpu_layers = 33;
        if let Some(speed) = &mut plan.speed {
            speed.tokens_per_second = 14.0;
        }
        has(&texts(&plan), "33 of 33 layers, 12 blocks in part on the host: 14 tok/s");
    }

    #[test]
    fn without_a_speed_there_are_only_bars() {
        let svg = svg(&host_plan()).unwrap();
        assert!(!svg.contains("<circle"), "{svg}");
        has(&texts(&host_plan()), "host (32.0 GiB), 33 of 33 layers");
    }

    #[test]
    fn names_may_hold_anything() {
        let mut plan = plan();
        plan.model.name = "<&\"> 'x' \u{0}\u{1b}[31m\u{ffff}]]> é 模型".to_owned();
        plan.placements[0].name = "</text><script>alert(1)</script>".to_owned();
        let texts = texts(&plan);
        assert!(texts[0].starts_with("<&\"> 'x' \u{fffd}"), "{texts:?}");
        assert!(!svg(&plan).unwrap().contains("<script>"));
    }

    #[test]
    fn numbers_may_be_anything() {
        let mut plan = plan();
        for wrong in [f64::NAN, f64::INFINITY, 1e300, -1.0] {
            if let Some(speed) = &mut plan.speed {
                speed.curve[3] = wrong;
            }
            assert!(!svg(&plan).unwrap().contains("<circle"), "{wrong}");
        }
        for placement in &mut plan.placements {
            (placement.total, placement.free) = (0, u64::MAX);
            placement.footprint.weights = u64::MAX;
        }
        texts(&plan);
        plan.placements.clear();
        texts(&plan);
    }

    #[test]
    fn a_partial_offload_with_its_cliff() {
        insta::assert_snapshot!(svg(&plan()).unwrap());
    }
}
