//! How fast a mixture of experts would generate where llama.cpp's own fit puts it, beside our plan, on cards too small for it: both
//! leave the same bytes of the card free and are scored by the speed model of plans.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use autoplace::gguf::Header;
use autoplace::machine::{Bytes, gib};
use autoplace::memory::Split;
use autoplace::profile::ModelProfile;

use crate::experts_support::{CASES, Case, Score};
use crate::{files, fit};

/// Prints the comparison.
///
/// # Errors
///
/// Where a plan of ours is slower, or does not leave free what it says by llama.cpp's own reckoning; and where the fit chooses
/// something else than is recorded for the tests.
pub(crate) fn compare(folder: &Path) -> Result<()> {
    let path = files::QWEN3_30B_A3B.write(folder);
    let profile = ModelProfile::from_header(&Header::open(&path)?)?;
    println!(
        "| card | tokens | left free | ours, tok/s | llama.cpp's fit | ours / fit | weights on the card, MiB: ours | fit | spare: ours | fit |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut wrong = Vec::new();
    for case in &CASES {
        let both = Both::of(case, &path, &profile)?;
        println!("{}", both.row(case));
        wrong.extend(
            both.wrong(case)
                .map(|what| format!("{} with {} tokens: {what}", case.card, case.context)),
        );
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A placement, and what it comes to.
struct Side {
    split: Split,
    score: Score,
    /// Whether it leaves the margin free by llama.cpp's own reckoning.
    leaves_free: bool,
}

struct Both {
    ours: Side,
    theirs: Side,
}

impl Both {
    fn of(case: &Case, path: &Path, profile: &ModelProfile) -> Result<Self> {
        fit::set_card(usize::try_from(gib(case.gib))?);
        let plan = case.plan(profile);
        let side = |split: Split| {
            anyhow::Ok(Side {
                score: case.score(profile, &plan, &split),
                leaves_free: fit::leaves_free(path, case.context, case.margin, &split)?,
                split,
            })
        };
        let fitted = fit::fit(path, case.context, case.margin)?;
        let layers = u32::try_from(fitted.layers).unwrap_or(profile.full_offload());
        let both = Self {
            ours: side(plan.split())?,
            theirs: side(Split::layers(layers).overrides(fitted.overrides))?,
        };
        let said = plan.speed.as_ref().context("a speed")?.tokens_per_second;
        let scored = both.ours.score.tokens_per_second;
        // What is said may be rounded.
        if (scored / said - 1.0).abs() > 1e-4 {
            bail!("our plan says {said} tok/s and is scored with {scored}");
        }
        Ok(both)
    }

    fn wrong(&self, case: &Case) -> impl Iterator<Item = String> {
        let (ours, theirs) = (&self.ours.score, &self.theirs.score);
        let slower = (!ours.is_as_fast_as(theirs)).then(|| "our plan is the slower one".to_owned());
        let over = (!self.ours.leaves_free)
            .then(|| "our plan takes more of the card than it says".to_owned());
        let split = &self.theirs.split;
        let other = (*split != case.fitted.split()).then(|| {
            let patterns: Vec<&str> = split
                .overrides
                .iter()
                .map(|one| one.pattern.as_str())
                .collect();
            format!(
                "record in autoplace/tests/experts_support what the fit chooses now: {} layers, {}",
                split.n_gpu_layers,
                patterns.join(" ")
            )
        });
        [slower, over, other].into_iter().flatten()
    }

    fn row(&self, case: &Case) -> String {
        let spare = |side: &Side| {
            let budget = gib(case.gib).saturating_sub(case.margin);
            match budget.checked_sub(side.score.card.total()) {
                _ if !side.leaves_free => "too little".to_owned(),
                Some(spare) => Bytes(spare).to_string(),
                None => "none, by the estimate".to_owned(),
            }
        };
        let (ours, theirs) = (&self.ours, &self.theirs);
        let speed = |side: &Side| side.score.tokens_per_second;
        format!(
            "| {} | {} | {} | {:.2} | {:.2} | {:.3} | {} | {} | {} | {} |",
            case.card,
            case.context,
            Bytes(case.margin),
            speed(ours),
            speed(theirs),
            speed(ours) / speed(theirs),
            ours.score.card.weights >> 20,
            theirs.score.card.weights >> 20,
            spare(ours),
            spare(theirs),
        )
    }
}
