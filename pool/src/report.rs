//! The text form of a pool's plan.

use std::fmt;

use autoplace::machine::Bytes;

use crate::plan::{PoolPlan, Step};

impl fmt::Display for PoolPlan {
    /// A table with a row for each model and a column for each device, a row of the bytes that are left, the steps, and
    /// the reasons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = self.devices.iter().map(|device| device.name.clone());
        let mut rows: Vec<Vec<String>> = vec![[String::new()].into_iter().chain(heads).collect()];
        let cell = |bytes: u64| if bytes == 0 { "-".to_owned() } else { Bytes(bytes).to_string() };
        for model in &self.models {
            let bytes = model.held.gpus.iter().copied().chain([model.held.host]);
            let mut row = vec![model.name.clone()];
            row.extend(bytes.map(cell));
            row.push(format!("{} of {} layers on GPUs", model.plan.n_gpu_layers, model.plan.layers()));
            rows.push(row);
        }
        let mut left = vec!["left".to_owned()];
        left.extend(self.devices.iter().map(|device| cell(device.left)));
        rows.push(left);
        let width =
            |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let columns = self.devices.len() + 1;
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "  {:<width$}", row[0], width = widths[0])?;
            for (text, width) in row[1..].iter().zip(&widths[1..]) {
                write!(f, "  {text:>width$}")?;
            }
            if let Some(layers) = row.get(columns) {
                write!(f, "   {layers}")?;
            }
        }
        for (index, step) in self.steps.iter().enumerate() {
            write!(f, "\n  {}. {step}", index + 1)?;
        }
        for (index, reason) in self.reasons.iter().enumerate() {
            let label = if index == 0 { "why  " } else { "     " };
            write!(f, "\n  {label}{reason}")?;
        }
        Ok(())
    }
}

#[cfg(feature = "pictures")]
impl PoolPlan {
    /// Draws the devices with the bytes that each model takes after the plan, as an SVG document.
    ///
    /// # Errors
    ///
    /// A text that says why the picture cannot be drawn.
    pub fn picture(&self) -> Result<String, String> {
        use autoplace_measure::picture::{SharedDevice, shared};

        let devices = self.devices.iter().enumerate().map(|(index, device)| {
            // The host is the last device.
            let bytes = |held: &crate::HeldBytes| held.gpus.get(index).copied().unwrap_or(held.host);
            SharedDevice {
                name: device.name.clone(),
                free: device.free,
                models: self.models.iter().map(|model| (model.name.clone(), bytes(&model.held))).collect(),
            }
        });
        let title = match &self.wanted {
            Some(wanted) => format!("After {wanted} was requested"),
            None => "What is loaded".to_owned(),
        };
        shared(&title, &devices.collect::<Vec<_>>())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitForTexts { model, time } => {
                write!(f, "wait for the texts of {model} ({:.1} s)", time.as_secs_f64())
            }
            Self::HoldOff { time } => write!(f, "wait {:.0} s", time.as_secs_f64()),
            Self::Unload { model } => write!(f, "unload {model}"),
            Self::Shrink { model } => write!(f, "shrink {model}"),
            Self::Load { model } => write!(f, "load {model}"),
            Self::Grow { model } => write!(f, "grow {model}"),
        }
    }
}
