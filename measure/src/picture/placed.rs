//! A plan as a picture: the memory of each device, the predicted speed by layers on GPUs with the plan's point, and the
//! predicted speed by depth.

use autoplace::machine::Bytes;
use autoplace::plan::{Placement, PlacementKind, Plan, Speed};

use super::canvas::{
    Area, BESIDE, CHART, CHOSEN, COMPUTE, Curve, Drawn, EXPERTS, FREE, HEADROOM, Ink, KV, LINE, MARGIN, Mark, QUIET,
    TAKEN, TEXT, WEIGHTS, bar, chart, curve, document, heading, legend, legend_lines, line, number,
};

/// The height of a bar. The next constant is the height of a device with its lines of text.
const BAR: i32 = 20;
const DEVICE: i32 = 2 * LINE + BAR + 12;
/// The height of the lines above the bars.
const HEAD: i32 = 2 * LINE + 22;
/// Units between the legend and the first device.
const GAP: i32 = 6;

/// Draws a plan as an SVG document: the memory of each device, and the predicted speeds.
///
/// # Errors
///
/// A text with the reason why the picture cannot be drawn.
pub fn svg(plan: &Plan) -> Result<String, String> {
    let names = legend_of(plan);
    let bars = HEAD + LINE * legend_lines(&names) + GAP + DEVICE * plan.placements.len() as i32 + MARGIN;
    let charts = charts(plan);
    let total = bars as u32 + charts.iter().map(|(.., curves)| height(curves)).sum::<u32>();
    document(&format!("Where {} goes", plan.model.name), total, |root| {
        let (top, mut rest) = root.split_vertically(bars);
        draw_bars(&top, plan, &names)?;
        for (title, x_name, curves) in &charts {
            let (area, below) = rest.split_vertically(height(curves));
            chart(&area, title, x_name, curves)?;
            rest = below;
        }
        Ok(())
    })
}

/// Height of a chart with these curves.
fn height(curves: &[Curve]) -> u32 {
    let names: Vec<(String, Ink)> = curves.iter().map(|curve| (curve.name.clone(), curve.ink)).collect();
    CHART + (LINE * legend_lines(&names)) as u32
}

/// The parts of a device's memory in drawing order.
fn parts(placement: &Placement) -> [(&'static str, u64, Ink); 8] {
    let footprint = &placement.footprint;
    let used = [footprint.total(), placement.companions, placement.headroom.total()];
    let used = used.into_iter().fold(0, u64::saturating_add);
    [
        ("weights", footprint.weights, WEIGHTS),
        ("keys and values", footprint.kv, KV),
        ("compute", footprint.compute, COMPUTE),
        ("cache of experts", footprint.experts, EXPERTS),
        ("loaded beside", placement.companions, BESIDE),
        ("headroom", placement.headroom.total(), HEADROOM),
        ("free", placement.free.saturating_sub(used), FREE),
        ("taken by others", placement.total.saturating_sub(placement.free), TAKEN),
    ]
}

/// The parts that at least one device has.
fn legend_of(plan: &Plan) -> Vec<(String, Ink)> {
    let is_somewhere = |index: usize| plan.placements.iter().any(|placement| parts(placement)[index].1 > 0);
    let names = plan.placements.first().map(parts).into_iter().flatten().enumerate();
    names.filter(|(index, _)| is_somewhere(*index)).map(|(_, (name, _, ink))| (name.to_owned(), ink)).collect()
}

fn draw_bars(area: &Area<'_>, plan: &Plan, names: &[(String, Ink)]) -> Drawn {
    let model = &plan.model;
    let file_type = model.file_type.as_deref().unwrap_or("unknown quantisation");
    heading(area, &model.name, 10)?;
    let cache = plan.context.type_k;
    let about = format!("{file_type}, {}, {} tokens, cache in {cache}", Bytes(model.file_bytes), plan.context.n_ctx);
    line(area, &about, (MARGIN, 10 + LINE + 2), QUIET)?;
    let mut y = legend(area, names, HEAD)? + GAP;
    for placement in &plan.placements {
        let parts = parts(placement);
        let (name, footprint) = (&placement.name, placement.footprint.total());
        let of = format!("{name}: {} of {} free", Bytes(footprint), Bytes(placement.free));
        line(area, &of, (MARGIN, y), TEXT)?;
        line(area, &holds(plan, placement), (MARGIN, y + LINE), QUIET)?;
        let drawn = parts.map(|(_, bytes, ink)| (bytes, ink));
        let all = drawn.iter().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes));
        bar(area, &drawn, all.max(placement.total), (y + 2 * LINE, BAR))?;
        y += DEVICE;
    }
    Ok(())
}

/// The parts of the model that are on a device, as text.
fn holds(plan: &Plan, placement: &Placement) -> String {
    let (layers, all) = (placement.layers, plan.layers());
    let parts = match (placement.kind, plan.split_blocks) {
        (PlacementKind::Host, 1) => Some("parts of 1 block".to_owned()),
        (PlacementKind::Host, blocks @ 2..) => Some(format!("parts of {blocks} blocks")),
        _ => None,
    };
    let whole = match layers {
        0 if parts.is_some() => None,
        0 => Some("no layer".to_owned()),
        layers if layers == all => Some(format!("all {all} layers")),
        layers => Some(format!("{layers} of {all} layers")),
    };
    whole.into_iter().chain(parts).collect::<Vec<_>>().join(", ")
}

/// A title, the name of the horizontal axis, and the curves.
type Chart = (String, String, Vec<Curve>);

fn charts(plan: &Plan) -> Vec<Chart> {
    let Some(speed) = &plan.speed else {
        return Vec::new();
    };
    [cliff(plan, speed), by_depth(speed)].into_iter().flatten().collect()
}

/// The predicted speed by layers on GPUs, with the plan's point.
fn cliff(plan: &Plan, speed: &Speed) -> Option<Chart> {
    let points: Vec<Mark> = (0_u32..).zip(&speed.curve).map(|(n, &speed)| Mark::new(n.into(), speed)).collect();
    let chosen = Mark::new(plan.n_gpu_layers.into(), speed.tokens_per_second);
    if points.is_empty() || !chosen.can_be_drawn() {
        return None;
    }
    let said = format!("this plan: {} tok/s", number(speed.tokens_per_second));
    let curves = vec![
        curve("whole layers, predicted", WEIGHTS, points, true, false),
        curve(&said, CHOSEN, vec![chosen], false, true),
    ];
    Some((format!("The cliff: tok/s after {} tokens", speed.depth), "layers on GPUs".to_owned(), curves))
}

/// The predicted speed by depth.
fn by_depth(speed: &Speed) -> Option<Chart> {
    let points = speed.generation.iter().map(|at| Mark::new(at.depth.into(), at.tokens_per_second));
    let points: Vec<Mark> = points.filter(Mark::can_be_drawn).collect();
    // A single point is not a curve.
    (points.len() > 1).then(|| {
        let curves = vec![curve("this plan, predicted", CHOSEN, points, true, true)];
        ("Generation, tok/s by depth".to_owned(), "tokens in the context".to_owned(), curves)
    })
}

#[cfg(test)]
mod tests {
    use super::{Plan, svg};
    use crate::picture::canvas::tests::texts;
    use crate::picture::page;
    use test_support::plans::{host_plan, plan};

    #[test]
    fn a_plan_shows_its_devices_its_cliff_and_its_speed_by_depth() {
        let mut plan: Plan = plan();
        let speed = plan.speed.as_mut().unwrap();
        let mut deeper = speed.generation[0];
        (deeper.depth, deeper.tokens_per_second) = (8192, 8.0);
        speed.generation.push(deeper);
        let picture = svg(&plan).unwrap();
        assert_eq!(svg(&plan).unwrap(), picture);
        let texts = texts(&picture);
        let has = |part: &str| assert!(texts.iter().any(|text| text.contains(part)), "no {part:?} in {texts:#?}");
        for placement in &plan.placements {
            has(&format!("{}: ", placement.name));
        }
        for part in
            ["weights", "keys and values", "compute", "headroom", "free", "The cliff", "this plan: ", "by depth"]
        {
            has(part);
        }
        // There is a dot for the chosen point, and one for each depth.
        assert_eq!(picture.matches("<circle").count(), 1 + plan.speed.as_ref().unwrap().generation.len());
    }

    #[test]
    fn without_a_speed_there_are_only_bars() {
        let plan = host_plan();
        let picture = svg(&plan).unwrap();
        assert!(!picture.contains("<circle") || plan.speed.is_some());
        assert!(texts(&picture).iter().any(|text| text == "all 33 layers"), "{picture}");
    }

    #[test]
    fn names_may_contain_any_characters_and_have_any_length() {
        let mut plan: Plan = plan();
        plan.model.name = "<&\"> 'x' \u{0}\u{1b}[31m\u{ffff}]]> é 模型".to_owned();
        plan.placements[0].name = "</text><script>alert(1)</script>".to_owned();
        plan.placements[1].name = "模型".repeat(200);
        let picture = svg(&plan).unwrap();
        let texts = texts(&picture);
        assert!(texts[0].starts_with("<&\"> 'x' \u{fffd}"), "{texts:?}");
        assert!(texts.iter().any(|text| text.ends_with('…')), "{texts:?}");
        let page = page::html(&plan.model.name, &picture, &page::text(&plan.to_string()));
        assert!(!page.contains("<script") && !page.contains("http") || page.matches("http").count() == 1, "{page}");
    }

    #[test]
    fn numbers_may_be_anything() {
        let mut plan: Plan = plan();
        for wrong in [f64::NAN, f64::INFINITY, 1e300, -1.0] {
            if let Some(speed) = &mut plan.speed {
                (speed.curve[3], speed.tokens_per_second, speed.generation[0].tokens_per_second) =
                    (wrong, wrong, wrong);
            }
            texts(&svg(&plan).unwrap());
        }
        for placement in &mut plan.placements {
            (placement.total, placement.free) = (0, u64::MAX);
            placement.footprint.weights = u64::MAX;
        }
        texts(&svg(&plan).unwrap());
        plan.placements.clear();
        texts(&svg(&plan).unwrap());
    }
}
