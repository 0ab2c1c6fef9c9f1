//! A process that takes memory of every GPU, so that other processes find little free memory.

use std::io::{BufRead, Read, Write};

use anyhow::{Context as _, Result, ensure};
use bare_llama::Buffer;

use crate::rig::{Opened, Rig};

/// The line that the process prints after it has taken the memory.
pub(crate) const HELD: &str = "held";

/// The largest piece to allocate at once. If a backend's maximum buffer is smaller, that size is used.
const PIECE: u64 = 4 << 30;
/// The smallest piece: CUDA's allocation granularity (`cuMemGetAllocationGranularity`).
const GRAIN: u64 = 2 << 20;

/// Reads `[rig, leave]`, takes memory of each GPU until `leave` bytes are free, prints a line, and keeps the memory
/// until stdin closes. Without `leave`, the GPUs are only open.
pub(crate) fn main() -> Result<()> {
    let mut line = String::new();
    let mut stdin = std::io::stdin().lock();
    stdin.read_line(&mut line)?;
    let (rig, leave): (Rig, Option<u64>) = serde_json::from_str(&line).context("no ballast on stdin")?;
    let opened = rig.open()?;
    let grain = match rig {
        Rig::Real => GRAIN,
        Rig::Simulated(_) => 1 << 16,
    };
    let mut held = Vec::new();
    // The first question for a card's memory opens the card.
    opened.free()?;
    if let Some(leave) = leave {
        for index in 0..opened.devices.len() {
            held.extend(take(&opened, index, leave, grain)?);
        }
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{HELD}")?;
    out.flush()?;
    // The parent closes stdin to end this process.
    stdin.read_to_end(&mut Vec::new())?;
    drop(held);
    Ok(())
}

/// Takes memory of one GPU until the free memory exceeds `leave` by less than `grain`.
fn take(opened: &Opened, index: usize, leave: u64, grain: u64) -> Result<Vec<Buffer>> {
    let device = &opened.devices[index];
    let mut pieces = Vec::new();
    let mut most = PIECE;
    loop {
        let free = opened.free()?[index].ggml;
        let free = free.with_context(|| format!("{device} does not report what is free"))?;
        ensure!(
            !pieces.is_empty() || free >= leave,
            "{device} has {free} bytes free, fewer than the {leave} that are to be left"
        );
        let surplus = free.saturating_sub(leave) / grain * grain;
        if surplus == 0 || most < grain {
            return Ok(pieces);
        }
        match Buffer::allocate(device, surplus.min(most))? {
            Some(piece) => pieces.push(piece),
            // The free memory is fragmented into smaller pieces, so smaller pieces are tried.
            None => most /= 2,
        }
    }
}
