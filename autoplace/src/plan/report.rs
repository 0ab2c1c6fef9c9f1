//! A plan as people read it.

use std::fmt;

use crate::machine::Bytes;

use super::{Placement, PlacementKind, Plan};

/// The columns' heads.
const HEADS: [&str; 5] = ["weights", "KV", "compute", "headroom", "free"];

impl fmt::Display for Plan {
    /// The model in a line, a table with a line per device, what decided, and a line per further note.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = &self.model;
        write!(f, "{}", model.name)?;
        if let Some(file_type) = &model.file_type {
            write!(f, " · {file_type}")?;
        }
        writeln!(
            f,
            " · {} · {} layers + output",
            Bytes(model.file_bytes),
            model.blocks
        )?;
        let width = self
            .placements
            .iter()
            .map(|placement| placement.name.chars().count())
            .max()
            .unwrap_or(0)
            .max(16);
        let cells: Vec<[String; 5]> = self.placements.iter().map(cells).collect();
        let widths: Vec<usize> = (0..HEADS.len())
            .map(|column| {
                let widest = cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
                widest.max(HEADS[column].len())
            })
            .collect();
        let line = |f: &mut fmt::Formatter<'_>, name: &str, row: &[&str]| {
            write!(f, "  {name:<width$}")?;
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "  {cell:>width$}")?;
            }
            Ok(())
        };
        line(f, "", &HEADS)?;
        for (placement, row) in self.placements.iter().zip(&cells) {
            writeln!(f)?;
            let row: Vec<&str> = row.iter().map(String::as_str).collect();
            line(f, &placement.name, &row)?;
            match placement.kind {
                PlacementKind::Host if placement.layers == 0 => {}
                PlacementKind::Host if placement.layers == self.layers() => {
                    write!(f, "   all {} layers", placement.layers)?;
                }
                PlacementKind::Host => write!(f, "   {} layers", placement.layers)?,
                _ => write!(f, "   {} of {} layers", placement.layers, self.layers())?,
            }
        }
        for (index, note) in self.notes.iter().enumerate() {
            let label = if index == 0 { "why " } else { "note" };
            write!(f, "\n  {label}  {note}")?;
        }
        Ok(())
    }
}

fn cells(placement: &Placement) -> [String; 5] {
    // Nothing is nothing, not "0 B".
    let bytes = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    [
        bytes(placement.footprint.weights),
        bytes(placement.footprint.kv),
        bytes(placement.footprint.compute),
        bytes(placement.headroom.total()),
        Bytes(placement.free).to_string(),
    ]
}
