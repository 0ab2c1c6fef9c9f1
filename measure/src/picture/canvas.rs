//! Elements of pictures: a document, lines of text, stacked bars, legends, charts.

use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Failed = DrawingAreaErrorKind<std::io::Error>;
pub(super) type Drawn<T = ()> = Result<T, Failed>;

/// Width of the picture, in units.
pub(super) const WIDTH: u32 = 440;
pub(super) const MARGIN: i32 = 12;
/// Height of a line of text.
pub(super) const LINE: i32 = 19;
/// The height of letters, as it is passed to the library.
const LETTERS: u32 = 16;
/// The height of letters in a heading, as it is passed to the library.
const HEADING: u32 = 19;
/// The factor from a passed height to the font size that the SVG backend writes. For [`LETTERS`] this gives 12.9 units,
/// which are nearly 12 pixels in a picture of 400 pixels.
const WRITTEN: f64 = 1.0 / 1.24;
/// The width of a letter relative to its height, for the wide letters of common sans-serif fonts.
const LETTER_WIDTH: f64 = 0.6;
/// The height of a chart with heading and axes.
pub(super) const CHART: u32 = 230;

/// A colour for a white background, and the corresponding colour for a black background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ink(RGBColor, &'static str);

pub(super) const TEXT: Ink = Ink(RGBColor(0x1f, 0x23, 0x28), "#e6edf3");
pub(super) const QUIET: Ink = Ink(RGBColor(0x59, 0x63, 0x6e), "#9da7b3");
pub(super) const GRID: Ink = Ink(RGBColor(0xd8, 0xde, 0xe4), "#30363d");
pub(super) const WEIGHTS: Ink = Ink(RGBColor(0x1f, 0x6f, 0xeb), "#58a6ff");
pub(super) const KV: Ink = Ink(RGBColor(0xd9, 0x82, 0x2b), "#e3a04f");
pub(super) const COMPUTE: Ink = Ink(RGBColor(0x2d, 0xa4, 0x4e), "#3fb950");
pub(super) const EXPERTS: Ink = Ink(RGBColor(0xbf, 0x39, 0x89), "#f778ba");
pub(super) const BESIDE: Ink = Ink(RGBColor(0x82, 0x50, 0xdf), "#bc8cff");
pub(super) const HEADROOM: Ink = Ink(RGBColor(0x9a, 0xa4, 0xaf), "#6e7681");
pub(super) const FREE: Ink = Ink(RGBColor(0xe7, 0xeb, 0xef), "#21262d");
pub(super) const TAKEN: Ink = Ink(RGBColor(0x57, 0x60, 0x6a), "#484f58");
pub(super) const CHOSEN: Ink = Ink(RGBColor(0xcf, 0x22, 0x2e), "#ff7b72");
const BACK: Ink = Ink(RGBColor(0xff, 0xff, 0xff), "#0d1117");

const INKS: [Ink; 13] = [TEXT, QUIET, GRID, WEIGHTS, KV, COMPUTE, EXPERTS, BESIDE, HEADROOM, FREE, TAKEN, CHOSEN, BACK];

impl Ink {
    /// The colour as the SVG backend writes it.
    fn attribute(self) -> String {
        let RGBColor(red, green, blue) = self.0;
        format!("#{red:02X}{green:02X}{blue:02X}")
    }

    fn filled(self) -> ShapeStyle {
        ShapeStyle::from(&self.0).filled()
    }

    fn line(self, width: u32) -> ShapeStyle {
        self.0.stroke_width(width)
    }
}

/// CSS rules that replace each colour if the reader prefers a dark page. A rule overrides the attribute of the same
/// name.
fn dark() -> String {
    let rule = |ink: &Ink| {
        let (light, dark) = (ink.attribute(), ink.1);
        format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    let rules: String = INKS.iter().map(rule).collect();
    format!("<style>@media (prefers-color-scheme:dark){{{rules}}}</style>")
}

/// A document of this height, with a title for screen readers.
pub(super) fn document(title: &str, height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, String> {
    let mut svg = String::new();
    let drawn = (|| {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&BACK.0)?;
        draw(&root)?;
        root.present()
    })();
    drawn.map_err(|error: Failed| format!("the picture could not be drawn: {error}"))?;
    let title = printable(title).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let head = format!("<title>{title}</title>{}", dark());
    // The rules come directly after the opening tag of the only `svg` element.
    let end = svg.find("<svg").and_then(|begin| Some(begin + svg[begin..].find('>')? + 1));
    svg.insert_str(end.ok_or("the picture has no beginning")?, &head);
    Ok(svg.replacen("<svg ", "<svg role=\"img\" ", 1))
}

/// A line of text that begins at the left edge, or at `x`.
pub(super) fn line(area: &Area<'_>, text: &str, (x, y): (i32, i32), ink: Ink) -> Drawn {
    let width = WIDTH as i32 - MARGIN - x;
    area.draw(&Text::new(cut(text, width, LETTERS), (x, y), style(LETTERS, HPos::Left, ink)))
}

/// A heading.
pub(super) fn heading(area: &Area<'_>, text: &str, y: i32) -> Drawn {
    let text = cut(text, WIDTH as i32 - 2 * MARGIN, HEADING);
    area.draw(&Text::new(text, (MARGIN, y), style(HEADING, HPos::Left, TEXT)))
}

/// Draws names with their colours in as many lines as needed. Returns the position of the next line.
pub(super) fn legend(area: &Area<'_>, names: &[(String, Ink)], mut y: i32) -> Drawn<i32> {
    let mut x = MARGIN;
    for (name, ink) in names {
        let name = cut(name, WIDTH as i32 - 2 * MARGIN - 18, LETTERS);
        let width = 18 + width(&name, LETTERS) + 10;
        if x > MARGIN && x + width > WIDTH as i32 - MARGIN {
            (x, y) = (MARGIN, y + LINE);
        }
        fill(area, (x, y + 1), (12, 12), *ink)?;
        line(area, &name, (x + 18, y), TEXT)?;
        x += width;
    }
    Ok(y + LINE)
}

/// The number of lines of [`legend`].
pub(super) fn legend_lines(names: &[(String, Ink)]) -> i32 {
    let (mut x, mut lines) = (MARGIN, 1);
    for (name, _) in names {
        let width = 18 + width(&cut(name, WIDTH as i32 - 2 * MARGIN - 18, LETTERS), LETTERS) + 10;
        if x > MARGIN && x + width > WIDTH as i32 - MARGIN {
            (x, lines) = (MARGIN, lines + 1);
        }
        x += width;
    }
    lines
}

/// A bar of full width and this height for `whole` bytes, divided into parts.
pub(super) fn bar(area: &Area<'_>, parts: &[(u64, Ink)], whole: u64, (y, height): (i32, i32)) -> Drawn {
    let mut end = 0_u64;
    for &(bytes, ink) in parts {
        let left = at(end, whole);
        end = end.saturating_add(bytes);
        let right = at(end, whole);
        if right > left {
            fill(area, (left, y), (right - left, height), ink)?;
        }
    }
    Ok(())
}

/// A mark on a bar at this number of bytes.
pub(super) fn mark(area: &Area<'_>, bytes: u64, whole: u64, (y, height): (i32, i32)) -> Drawn {
    let x = at(bytes, whole);
    area.draw(&PathElement::new([(x, y - 2), (x, y + height + 2)], CHOSEN.line(2)))
}

/// The horizontal position of this number of bytes in a bar.
fn at(bytes: u64, whole: u64) -> i32 {
    let share = (bytes as f64 / whole.max(1) as f64).clamp(0.0, 1.0);
    MARGIN + (share * f64::from(WIDTH as i32 - 2 * MARGIN)).round() as i32
}

fn fill(area: &Area<'_>, (x, y): (i32, i32), (width, height): (i32, i32), ink: Ink) -> Drawn {
    area.draw(&Rectangle::new([(x, y), (x + width, y + height)], ink.filled()))
}

/// One curve of a chart.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) ink: Ink,
    /// The points, in ascending order of `x`, with their spreads.
    pub(super) points: Vec<Mark>,
    /// Whether a line joins the points (`is_line`), and whether each point is a dot (`has_dots`).
    pub(super) is_line: bool,
    pub(super) has_dots: bool,
}

/// A point of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) y: f64,
    /// The minimum and the maximum of several measurements.
    pub(super) spread: Option<(f64, f64)>,
}

impl Mark {
    pub(super) const fn new(x: f64, y: f64) -> Self {
        Self { x, y, spread: None }
    }

    /// Whether the axes can show the point. The numbers may come from anybody's file.
    pub(super) fn can_be_drawn(&self) -> bool {
        const MAX: f64 = 1e9;
        let (least, most) = self.spread.unwrap_or((self.y, self.y));
        [self.x, self.y, least, most].iter().all(|number| (0.0..MAX).contains(number))
    }
}

/// Draws curves over two axes from 0, below a heading. The area must be [`CHART`] units high, plus the height of the
/// legend.
pub(super) fn chart(area: &Area<'_>, title: &str, x_name: &str, curves: &[Curve]) -> Drawn {
    let names: Vec<(String, Ink)> = curves.iter().map(|curve| (curve.name.clone(), curve.ink)).collect();
    heading(area, title, 8)?;
    let top = legend(area, &names, 8 + LINE + 6)?;
    let marks = || curves.iter().flat_map(|curve| &curve.points).filter(|mark| mark.can_be_drawn());
    let right = marks().map(|mark| mark.x).fold(0.0, f64::max).max(1.0);
    let high = marks().map(|mark| mark.spread.map_or(mark.y, |(_, most)| most.max(mark.y))).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin_top(top)
        .margin_right(24)
        .margin_left(4)
        .margin_bottom(4)
        .x_label_area_size(40)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..right, 0.0..(high * 1.08).max(1e-3))?;
    let labels = || style(LETTERS - 1, HPos::Left, TEXT);
    chart
        .configure_mesh()
        .axis_style(QUIET.line(1))
        .bold_line_style(GRID.line(1))
        .light_line_style(BACK.line(0))
        .max_light_lines(0)
        .x_labels(6)
        .y_labels(5)
        .x_desc(x_name)
        .axis_desc_style(labels())
        .label_style(labels())
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| number(*y))
        .draw()?;
    curves.iter().try_for_each(|curve| draw(chart.plotting_area(), curve))
}

fn draw(plot: &Plot<'_>, curve: &Curve) -> Drawn {
    let points: Vec<&Mark> = curve.points.iter().filter(|mark| mark.can_be_drawn()).collect();
    if curve.is_line {
        let path: Vec<(f64, f64)> = points.iter().map(|mark| (mark.x, mark.y)).collect();
        plot.draw(&PathElement::new(path, curve.ink.line(2)))?;
    }
    for mark in points.into_iter().filter(|_| curve.has_dots) {
        if let Some((least, most)) = mark.spread {
            plot.draw(&PathElement::new([(mark.x, least), (mark.x, most)], curve.ink.line(2)))?;
        }
        plot.draw(&Circle::new((mark.x, mark.y), 4, curve.ink.filled()))?;
    }
    Ok(())
}

/// A number with its significant digits.
pub(super) fn number(number: f64) -> String {
    match number {
        10.0.. => format!("{number:.0}"),
        1.0.. => format!("{number:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{number:.2}"),
    }
}

fn style(size: u32, side: HPos, ink: Ink) -> TextStyle<'static> {
    let mut style = TextStyle::from(("sans-serif", size).into_font()).pos(Pos::new(side, VPos::Top));
    style.color = ink.0.to_backend_color();
    style
}

/// Upper bound of a text's width in units. Letters of Chinese, Japanese and Korean are twice as wide.
fn width(text: &str, size: u32) -> i32 {
    let letters: f64 = text.chars().map(|c| if c < '\u{1100}' { LETTER_WIDTH } else { 1.1 }).sum();
    (letters * f64::from(size) * WRITTEN).ceil() as i32
}

/// The beginning of a text that fits into `room`.
fn cut(text: &str, room: i32, size: u32) -> String {
    let mut text = printable(text);
    if width(&text, size) <= room {
        return text;
    }
    while !text.is_empty() && width(&text, size) + size as i32 > room {
        text.pop();
    }
    text.push('…');
    text
}

/// A curve in one colour, as a line, dots, or both.
pub(super) fn curve(name: &str, ink: Ink, points: Vec<Mark>, is_line: bool, has_dots: bool) -> Curve {
    Curve { name: name.to_owned(), ink, points, is_line, has_dots }
}

/// Replaces the characters that XML 1.0 cannot contain: it has no escapes for control characters. The backend escapes
/// the characters that have a meaning in XML.
pub(super) fn printable(text: &str) -> String {
    let cannot = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.replace(cannot, "\u{fffd}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::{INKS, LETTER_WIDTH, WIDTH};

    /// Returns all texts of a picture. Asserts that the picture is well-formed, that every text lies inside the
    /// picture, that nothing refers to other files, and that each colour has a dark counterpart.
    #[track_caller]
    pub(in crate::picture) fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let root = document.root_element();
        assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        let height: f64 = root.attribute("height").unwrap().parse().unwrap();
        assert_eq!(root.attribute("viewBox"), Some(format!("0 0 {WIDTH} {height}").as_str()));
        let mut texts = Vec::new();
        for node in document.descendants().filter(roxmltree::Node::is_element) {
            let name = node.tag_name().name();
            assert!(!matches!(name, "script" | "image" | "use" | "foreignObject" | "a" | "link"), "{name}");
            for attribute in node.attributes() {
                let (name, value) = (attribute.name(), attribute.value());
                assert!(!name.ends_with("href") && !name.starts_with("on"), "{name}");
                assert!(!value.contains("url(") && !value.contains("://"), "{name}={value}");
                if matches!(name, "fill" | "stroke") && value.starts_with('#') {
                    assert!(INKS.iter().any(|ink| ink.attribute() == value), "{value} has no dark counterpart");
                }
            }
            if name == "text" {
                let of = |name| node.attribute(name).map_or(0.0, |number: &str| number.parse::<f64>().unwrap());
                let text = node.text().unwrap_or_default().trim().to_owned();
                let wide = text.chars().map(|c| if c < '\u{1100}' { LETTER_WIDTH } else { 1.1 }).sum::<f64>();
                let wide = wide * of("font-size");
                let left = of("x")
                    - wide
                        * match node.attribute("text-anchor") {
                            Some("middle") => 0.5,
                            Some("end") => 1.0,
                            _ => 0.0,
                        };
                assert!(left >= -1.0 && left + wide <= f64::from(WIDTH) + 1.0, "{text}: {left} to {}", left + wide);
                assert!((0.0..=height).contains(&of("y")), "{text}");
                texts.push(text);
            }
        }
        let style = document.descendants().find(|node| node.has_tag_name("style")).unwrap().text().unwrap();
        assert!(style.contains("prefers-color-scheme:dark") && !style.contains("url(") && !style.contains("@import"));
        texts
    }
}
