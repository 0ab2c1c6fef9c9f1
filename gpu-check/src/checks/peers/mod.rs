//! Comparisons with llama.cpp: with its benchmark's loop on the same split, and with its own fit on the same card.

mod bench;
mod fit;

use anyhow::Result;
use autoplace::machine::{Machine, gib, mib};

use crate::child::Ballast;
use crate::measured;
use crate::models::{self, Written};
use crate::peer::Work;
use crate::setting::{SIM_HEADROOM, Setting, Size, Verdict, first};

use bench::{LOOP, Loop};
use fit::{FIT, Fit, MARGIN};

/// The amount of work.
struct Shape {
    /// The defaults of llama-bench on a real card: pp512 and tg128.
    bench: Work,
    fit: Work,
    n_ctx: u32,
    n_ubatch: u32,
}

const fn shape(size: Size) -> Shape {
    match size {
        Size::Small => Shape {
            bench: Work { prompt: 64, generated: 24, rounds: 5 },
            fit: Work { prompt: 64, generated: 16, rounds: 3 },
            n_ctx: 512,
            n_ubatch: 64,
        },
        Size::Real => Shape {
            bench: Work { prompt: 512, generated: 128, rounds: 5 },
            fit: Work { prompt: 512, generated: 32, rounds: 3 },
            n_ctx: 8192,
            n_ubatch: 512,
        },
    }
}

/// The memory of a card, compared with the memory that a model needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// More than the model needs.
    All,
    /// Less than the model needs.
    Part,
}

pub(crate) fn run(setting: &Setting) -> Result<Verdict> {
    let shape = shape(setting.size);
    let mut found = Peers::default();
    let model = match measured::model(setting, 2) {
        Ok(model) => model,
        Err(error) => return Ok(measured::nothing(&error)),
    };
    found.beside_loop(setting, &model, 1, shape.bench)?;
    for room in [Room::Part, Room::All] {
        found.fit(setting, &shape, &model, room)?;
    }
    // The second loop has half of the layers on the CPU, so its work is shorter.
    found.beside_loop(setting, &model, 2, shape.fit)?;
    drop(model);
    let sketches = models::of_size(setting.size);
    let of_experts = sketches.iter().find(|sketch| sketch.arch == "qwen3moe");
    if let Some(sketch) = of_experts
        && let Some(model) = models::written(setting, sketch, found.cases(), &mut found.skipped)
    {
        found.fit(setting, &shape, &model, Room::Part)?;
    }
    Ok(found.verdict(&shape))
}

/// The number of threads, which is the same for both sides.
fn threads(setting: &Setting) -> u32 {
    setting.threads.unwrap_or_else(|| {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let cores = Machine::detect().host.physical_cores;
        cores.map_or(processors, |cores| cores.min(processors))
    })
}

#[derive(Default)]
struct Peers {
    loops: Vec<Loop>,
    fits: Vec<Fit>,
    skipped: Vec<String>,
}

impl Peers {
    fn cases(&self) -> usize {
        self.loops.len() + self.fits.len()
    }

    /// Compares a session with llama.cpp's loop, with all layers on the card (`by` 1) or half of them (`by` 2). The
    /// first case always runs.
    fn beside_loop(&mut self, setting: &Setting, model: &Written, by: u32, work: Work) -> Result<()> {
        let ends = setting.ends(self.cases());
        if let Some(why) = ends.filter(|_| !self.loops.is_empty()) {
            let name = &model.name;
            self.skipped.push(format!("{name}, layers by {by}: {why}"));
            return Ok(());
        }
        self.loops.push(Loop::new(setting, model, by, work)?);
        Ok(())
    }

    /// Compares a model's plan with llama.cpp's fit. The first case always runs.
    fn fit(&mut self, setting: &Setting, shape: &Shape, model: &Written, room: Room) -> Result<()> {
        let name = &model.name;
        let ends = setting.ends(self.cases());
        if let Some(why) = ends.filter(|_| !self.fits.is_empty()) {
            self.skipped.push(format!("{name}, fit: {why}"));
            return Ok(());
        }
        // The card has memory for six tenths of the weights, plus the headroom.
        let part = model.bytes / 10 * 6;
        let total = match room {
            Room::All => model.bytes * 2 + mib(32),
            Room::Part => part + SIM_HEADROOM + mib(1),
        };
        let rig = setting.rig(&format!("fit-{}", self.fits.len()), total);
        let mut ballast = None;
        if room == Room::Part && !setting.simulated {
            match Ballast::hold(&rig, part + MARGIN + gib(1), &setting.cache()) {
                Ok(held) => ballast = Some(held),
                Err(error) => {
                    self.skipped.push(format!("{name}, fit: {error:#}"));
                    return Ok(());
                }
            }
        }
        self.fits.push(Fit::new(setting, shape, model, &rig)?);
        drop(ballast);
        Ok(())
    }

    fn verdict(&self, shape: &Shape) -> Verdict {
        let ours = self
            .loops
            .iter()
            .map(|row| (&row.model, &row.outcome))
            .chain(self.fits.iter().map(|row| (&row.model, &row.ours.outcome)));
        let wrong: Vec<String> =
            ours.filter_map(|(model, outcome)| Some(format!("{model}: {}", outcome.reason()?))).collect();
        let loops = self.loops.iter().filter_map(|row| {
            let (prompt, generation) = row.ours_by_theirs?;
            Some(format!(
                "{prompt:.3} and {generation:.3} on {} of {} layers ({} pairs)",
                row.n_gpu_layers, row.layers, row.work.rounds
            ))
        });
        let loops: Vec<String> = loops.collect();
        let fits: Vec<String> = self.fits.iter().map(Fit::words).collect();
        let first = first(&wrong);
        Verdict {
            passed: wrong.is_empty() && !self.loops.is_empty() && !self.fits.is_empty(),
            line: format!(
                "speed of prompt and generation by that of llama-bench's loop: {}; beside llama.cpp's fit: {}{first}",
                loops.join(", "),
                fits.join(", "),
            ),
            json: serde_json::json!({
                "fit": shape.fit,
                "n_ctx": shape.n_ctx,
                "loops": self.loops,
                "fits": self.fits,
                "wrong": wrong,
                "skipped": self.skipped,
                "notes": [LOOP, FIT],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use autoplace_measure::Outcome;

    use super::fit::{Fit, Found};
    use super::{Loop, Peers, Size, shape};

    fn peers(ours: Outcome, theirs: Outcome) -> Peers {
        let of = |outcome| Found { outcome, ..Found::nothing() };
        Peers {
            loops: vec![Loop {
                model: "a model".to_owned(),
                model_bytes: 1,
                n_gpu_layers: 9,
                layers: 9,
                threads: 1,
                work: shape(Size::Small).bench,
                outcome: Outcome::Completed,
                ours: Vec::new(),
                theirs: Vec::new(),
                ours_by_theirs: Some((1.0, 0.875)),
            }],
            fits: vec![Fit {
                model: "a model".to_owned(),
                model_bytes: 1,
                n_ctx: 512,
                margin: 1,
                ours: of(ours),
                theirs: of(theirs),
            }],
            skipped: Vec::new(),
        }
    }

    #[test]
    fn a_failure_of_a_peer_is_reported_but_fails_no_check() {
        let died = || Outcome::Failed("signal: 6".to_owned());
        let judged = peers(Outcome::Completed, died()).verdict(&shape(Size::Small));
        assert!(judged.passed && judged.line.contains("0.875") && judged.line.contains("signal: 6"));
        let judged = peers(died(), Outcome::Completed).verdict(&shape(Size::Small));
        assert!(!judged.passed && judged.line.contains("signal: 6"));
    }

    #[test]
    fn a_check_that_compared_nothing_has_not_passed() {
        assert!(!Peers::default().verdict(&shape(Size::Small)).passed);
    }
}
