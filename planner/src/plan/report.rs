//! The text form of a plan.

use std::fmt;

use crate::machine::Bytes;
use crate::memory::Footprint;

use super::reasons::counted;
use super::{Placement, PlacementKind, Plan, Speed};

impl fmt::Display for Plan {
    /// One line for the model, a table with a line for each device, the reason, the notes, the predicted speed, the
    /// placements by depth, and the flags with which other programs make the same placement.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = &self.model;
        write!(f, "{}", model.name)?;
        if let Some(file_type) = &model.file_type {
            write!(f, " · {file_type}")?;
        }
        writeln!(f, " · {} · {} + output", Bytes(model.file_bytes), counted(model.blocks, "layer"))?;
        let width = self.placements.iter().map(|placement| placement.name.chars().count()).fold(16, usize::max);
        // Few plans have a cache of experts. The table of any other plan has no column for the cache.
        let has_cache = self.placements.iter().any(|placement| placement.footprint.experts > 0);
        let cells: Vec<Vec<String>> = self.placements.iter().map(|placement| cells(placement, has_cache)).collect();
        let heads = ["weights", "KV", "compute", "experts", "headroom", "free"];
        let heads = heads.into_iter().filter(|head| has_cache || *head != "experts");
        let heads: Vec<String> = heads.map(str::to_owned).collect();
        let widest = |column: usize| cells.iter().map(|row| row[column].len()).fold(heads[column].len(), usize::max);
        let widths: Vec<usize> = (0..heads.len()).map(widest).collect();
        let line = |f: &mut fmt::Formatter<'_>, name: &str, row: &[String]| {
            write!(f, "  {name:<width$}")?;
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "  {cell:>width$}")?;
            }
            Ok(())
        };
        line(f, "", &heads)?;
        for (placement, row) in self.placements.iter().zip(&cells) {
            writeln!(f)?;
            line(f, &placement.name, row)?;
            match placement.kind {
                PlacementKind::Host if placement.layers == 0 => match self.split_blocks {
                    0 => {}
                    blocks => write!(f, "   parts of {}", counted(blocks, "block"))?,
                },
                PlacementKind::Host if placement.layers == self.layers() => {
                    write!(f, "   all {} layers", placement.layers)?;
                }
                PlacementKind::Host => write!(f, "   {}", counted(placement.layers, "layer"))?,
                _ => write!(f, "   {} of {} layers", placement.layers, self.layers())?,
            }
            if placement.of_host > 0 {
                let of_host = Bytes(placement.of_host);
                write!(f, ", {of_host} of its bytes in the host's memory")?;
            }
        }
        if let Some(bytes) = self.host().map(|host| host.headroom.prompt_store).filter(|bytes| *bytes > 0) {
            write!(f, ", {} kept free for stored prompts", Bytes(bytes))?;
        }
        for (index, note) in self.notes.iter().enumerate() {
            let label = if index == 0 { "why  " } else { "note " };
            write!(f, "\n  {label}  {note}")?;
        }
        if let Some(speed) = &self.speed {
            write!(f, "\n  speed  {}", self.speed_in_words(speed))?;
        }
        if let Some(by_depth) = self.by_depth_in_words() {
            write!(f, "\n  depth  {by_depth}")?;
        }
        if let Some(elsewhere) = self.elsewhere() {
            write!(f, "\n  as     {elsewhere}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// The predicted speed, and the cost of the layers on the host.
    fn speed_in_words(&self, speed: &Speed) -> String {
        let mut depths = speed.generation.iter();
        let middle = (speed.depth, speed.tokens_per_second);
        let (depth, first) = depths.next().map_or(middle, |at| (at.depth, at.tokens_per_second));
        let mut begin = format!("about {} tok/s after {depth} tokens", rounded(first));
        for at in depths {
            begin += &format!(", {} after {}", rounded(at.tokens_per_second), at.depth);
        }
        if speed.prompt.tokens > 0 {
            begin += &format!("; prompts {} tok/s", rounded(speed.prompt.tokens_per_second));
            if speed.workload.before > 0 {
                begin += &format!(" after {}", speed.workload.before);
            }
        }
        begin += &format!("; by {}", speed.basis);
        let Some(all) = speed.all_on_gpus else {
            return begin;
        };
        let on_host = rounded(speed.all_on_host);
        let all_on_gpus = self.n_gpu_layers == self.layers();
        if all_on_gpus && self.moe_cache.is_some() {
            // With a cache of experts, the GPUs compute with all experts, so the host computes nothing.
            return format!("{begin} (all on GPUs: {}, all on the host: {on_host})", rounded(all));
        }
        if all_on_gpus && self.split_blocks == 0 {
            return format!("{begin} (all on the host: {on_host})");
        }
        let slow = match self.layers() - self.n_gpu_layers {
            0 => format!("parts of {}", counted(self.split_blocks, "block")),
            n => counted(n, "layer"),
        };
        let fastest = speed.gpu_rates.iter().copied().fold(0.0, f64::max);
        let rates = [speed.host_rate, fastest].map(|rate| rounded(rate / 1e9));
        // The host reads the layers that are wholly on it. If there is a cache, the host does not read the experts of
        // other layers.
        let missed =
            if self.moe_cache.is_some() { ", and experts that the cache lacks come over the link" } else { "" };
        format!(
            "{begin} (all on GPUs: {}, all on the host: {on_host}); the cliff: {slow} read at {} GB/s instead of {}{missed}",
            rounded(all),
            rates[0],
            rates[1]
        )
    }

    /// The placement as flags of other programs, if the number of layers describes it completely.
    fn elsewhere(&self) -> Option<String> {
        let n = self.n_gpu_layers;
        let simple = self.overrides.is_empty() && self.tensor_split.is_empty();
        (simple && self.gpus().next().is_some())
            // The largest value of LM Studio's slider is the number of blocks.
            .then(|| format!("llama.cpp -ngl {n} · Ollama num_gpu {n} · LM Studio {}", n.min(self.model.blocks)))
    }
}

/// Rounds to about three digits, the precision of a prediction.
pub(super) fn rounded(number: f64) -> String {
    let digits = usize::from(number < 99.5) + usize::from(number < 9.95);
    format!("{number:.digits$}")
}

fn cells(placement: &Placement, has_cache: bool) -> Vec<String> {
    // An empty cell is easier to see than `0 B`.
    let bytes = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    let Footprint { weights, kv, compute, experts } = placement.footprint;
    let mut cells: Vec<String> = [weights, kv, compute].map(bytes).into();
    cells.extend(has_cache.then(|| bytes(experts)));
    cells.extend([bytes(placement.headroom.total()), Bytes(placement.free).to_string()]);
    cells
}
