//! The memory of several models as a picture: a bar for each device, with a part for each model.

use autoplace::machine::Bytes;

use super::canvas::{
    Area, BESIDE, CHOSEN, COMPUTE, Drawn, FREE, Ink, KV, LINE, MARGIN, QUIET, TAKEN, TEXT, WEIGHTS, bar, document,
    heading, legend, legend_lines, line,
};

/// The colours of the models. If there are more models than colours, the last models share a colour.
const INKS: [Ink; 6] = [WEIGHTS, KV, COMPUTE, BESIDE, CHOSEN, TAKEN];

const BAR: i32 = 20;
const DEVICE: i32 = 2 * LINE + BAR + 12;
const HEAD: i32 = LINE + 22;
const GAP: i32 = 6;

/// A device that several models share. Sizes in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "callers make it")]
pub struct SharedDevice {
    /// The device's name for people.
    pub name: String,
    /// The bytes that all models may take together.
    pub free: u64,
    /// The models' names and their bytes.
    pub models: Vec<(String, u64)>,
}

/// Draws devices with the models that share them as an SVG document.
///
/// # Errors
///
/// A text with the reason why the picture cannot be drawn.
pub fn svg(title: &str, devices: &[SharedDevice]) -> Result<String, String> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in devices.iter().flat_map(|device| &device.models) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let ink = |name: &str| {
        let place = names.iter().position(|other| *other == name).unwrap_or(0);
        INKS[place.min(INKS.len() - 1)]
    };
    let mut entries: Vec<(String, Ink)> = names.iter().map(|name| ((*name).to_owned(), ink(name))).collect();
    if entries.len() > INKS.len() {
        let others = entries.len() + 1 - INKS.len();
        entries.truncate(INKS.len() - 1);
        entries.push((format!("{others} more models"), TAKEN));
    }
    entries.push(("left".to_owned(), FREE));
    let height = HEAD + LINE * legend_lines(&entries) + GAP + DEVICE * devices.len() as i32 + MARGIN;
    document(title, height as u32, |root| {
        heading(root, title, 10)?;
        let mut y = legend(root, &entries, HEAD)? + GAP;
        for device in devices {
            draw(root, device, &ink, y)?;
            y += DEVICE;
        }
        Ok(())
    })
}

fn draw(area: &Area<'_>, device: &SharedDevice, ink: &impl Fn(&str) -> Ink, y: i32) -> Drawn {
    let taken = device.models.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    let of = format!("{}: {} of {} taken", device.name, Bytes(taken), Bytes(device.free));
    line(area, &of, (MARGIN, y), TEXT)?;
    let each = device.models.iter().filter(|(_, bytes)| *bytes > 0);
    let each: Vec<String> = each.map(|(name, bytes)| format!("{name} {}", Bytes(*bytes))).collect();
    line(area, &each.join(", "), (MARGIN, y + LINE), QUIET)?;
    let mut parts: Vec<(u64, Ink)> = device.models.iter().map(|(name, bytes)| (*bytes, ink(name))).collect();
    parts.push((device.free.saturating_sub(taken), FREE));
    bar(area, &parts, taken.max(device.free), (y + 2 * LINE, BAR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::canvas::tests::texts;

    fn device(name: &str, free: u64, models: &[(&str, u64)]) -> SharedDevice {
        let models = models.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        SharedDevice { name: name.to_owned(), free, models }
    }

    #[test]
    fn each_device_shows_its_models_and_the_remaining_bytes() {
        let devices = [
            device("RTX 4090", 22 << 30, &[("coder", 14 << 30), ("title", 2 << 30)]),
            device("host", 58 << 30, &[("coder", 3 << 30), ("title", 0)]),
        ];
        let picture = svg("Two models", &devices).unwrap();
        assert_eq!(svg("Two models", &devices).unwrap(), picture);
        let texts = texts(&picture);
        for text in [
            "Two models",
            "coder",
            "title",
            "left",
            "RTX 4090: 16.0 GiB of 22.0 GiB taken",
            "coder 14.0 GiB, title 2.0 GiB",
            "coder 3.0 GiB",
        ] {
            assert!(texts.iter().any(|shown| shown == text), "no {text:?} in {texts:#?}");
        }
    }

    #[test]
    fn names_and_numbers_may_be_anything() {
        let many: Vec<(String, u64)> = (0..40).map(|number| (format!("<m{number}>\u{0}"), u64::MAX)).collect();
        let wide = SharedDevice { name: "模型".repeat(200), free: 0, models: many };
        let texts = texts(&svg("</svg><script>", &[wide, SharedDevice::default()]).unwrap());
        assert!(texts.iter().any(|text| text == "35 more models"), "{texts:?}");
        svg("", &[]).unwrap();
    }
}
