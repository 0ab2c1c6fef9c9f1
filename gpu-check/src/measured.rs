//! Speeds: the model to measure, and medians over rounds.

use anyhow::{Result, bail};
use autoplace::machine::{Machine, gib};
use bare_llama::median;

use crate::models::{self, Written};
use crate::setting::{Setting, Size, Verdict};

/// Models of real size, the preferred one first.
const PREFERRED: [&str; 3] = ["8B Q4_K", "1B Q4_K", "0.1 GB Q8_0"];

/// The approximate bytes that a card needs in addition to the weights: for a context and its buffers.
const BESIDE: u64 = gib(3);

/// Writes the first preferred model that fits on the disk and of which `copies` copies fit on the emptiest card.
pub(crate) fn model(setting: &Setting, copies: u64) -> Result<Written> {
    let names = match setting.size {
        Size::Small => vec!["small Q4_K"],
        Size::Real => PREFERRED.to_vec(),
    };
    let sketches = models::of_size(setting.size);
    // The free memory comes from NVIDIA's driver. If the driver does not answer, the load shows whether the memory is
    // enough.
    let free = || {
        let gpus = Machine::detect().gpus.into_iter();
        gpus.filter_map(|gpu| Some(gpu.nvml?.free)).max()
    };
    let room = match setting.size {
        Size::Small => None,
        Size::Real => free(),
    };
    let mut why = Vec::new();
    for name in names {
        let Some(sketch) = sketches.iter().find(|sketch| sketch.name == name) else {
            continue;
        };
        let blank = Written::blank(sketch, &setting.scratch)?;
        let needed = blank.bytes * copies + BESIDE;
        if let Some(free) = room.filter(|&room| needed > room) {
            why.push(format!("{name}: {needed} bytes needed on a card, {free} free"));
            continue;
        }
        match blank.filled() {
            Ok(model) => return Ok(model),
            Err(error) => why.push(format!("{name}: {error:#}")),
        }
    }
    bail!("no model to measure speeds with: {}", why.join("; "))
}

/// The verdict if no model can be written.
pub(crate) fn nothing(error: &anyhow::Error) -> Verdict {
    Verdict { passed: false, line: format!("{error:#}"), json: serde_json::json!({ "wrong": [format!("{error:#}")] }) }
}

/// The medians of the first and of the second members of the pairs.
pub(crate) fn medians(pairs: &[(f64, f64)]) -> Option<(f64, f64)> {
    Some((median(pairs.iter().map(|pair| pair.0))?, median(pairs.iter().map(|pair| pair.1))?))
}

#[cfg(test)]
mod tests {
    use super::medians;

    #[test]
    fn both_members_of_the_pairs_have_separate_medians() {
        assert_eq!(medians(&[(1.0, 30.0), (2.0, 10.0), (3.0, 20.0)]), Some((2.0, 20.0)));
        assert_eq!(medians(&[]), None);
    }
}
