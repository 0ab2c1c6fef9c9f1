//! Beside what llama.cpp's users have: its benchmark's loop on the same split, and its own fit on the same card.

use anyhow::Result;
use autoplace::machine::{Bytes, Machine, gib, mib};
use autoplace::memory::Split;
use autoplace::plan::{Context, GpuLayers, Request};
use serde::{Deserialize, Serialize};

use crate::child::{self, Ballast, End};
use crate::job::{self, Step};
use crate::measured::{self, median, medians};
use crate::models::{self, Written};
use crate::peer::{Question, Side, Stage, Work};
use crate::rig::{Free, Rig};
use crate::setting::{SIM_HEADROOM, Setting, Size, Verdict};

/// What llama.cpp's fit leaves free of each device, unless told otherwise (common/common.h, `fit_params_target`).
const MARGIN: u64 = mib(1024);

/// Processes of each side that only ask for a split.
const ASKED: usize = 3;
/// Times that each of them asks again.
const AGAIN: usize = 3;

/// The session beside llama.cpp's loop, on one split. Speeds in tokens per second.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Loop {
    model: String,
    model_bytes: u64,
    n_gpu_layers: u32,
    layers: u32,
    threads: u32,
    work: Work,
    end: End,
    /// A pair of speeds for each round: prompt, generation.
    ours: Vec<(f64, f64)>,
    theirs: Vec<(f64, f64)>,
    /// The median over the rounds of ours by theirs: prompt, generation.
    ours_by_theirs: Option<(f64, f64)>,
}

/// Our plan beside llama.cpp's fit, on one card.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Fit {
    model: String,
    model_bytes: u64,
    n_ctx: u32,
    /// Bytes that llama.cpp's fit was told to leave free of each card.
    margin: u64,
    ours: Found,
    theirs: Found,
}

/// What a side came to. Times in milliseconds, from the question to the split, the devices being open; sizes in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Found {
    end: End,
    split: Option<Split>,
    /// The first question of a process.
    fresh_ms: Vec<f64>,
    /// Those after it.
    warm_ms: Vec<f64>,
    /// Free of each card before the load, after it, and when the context was full.
    opened: Vec<Free>,
    loaded: Vec<Free>,
    full: Vec<Free>,
    /// Tokens in the context at the end.
    depth: usize,
    /// A pair of speeds for each round: prompt, generation.
    speeds: Vec<(f64, f64)>,
    medians: Option<(f64, f64)>,
}

/// How much is computed.
struct Shape {
    /// As llama-bench's defaults on a real card: pp512 and tg128.
    bench: Work,
    fit: Work,
    n_ctx: u32,
    n_ubatch: u32,
}

const fn shape(size: Size) -> Shape {
    match size {
        Size::Small => Shape {
            bench: Work {
                prompt: 64,
                generated: 24,
                rounds: 5,
            },
            fit: Work {
                prompt: 64,
                generated: 16,
                rounds: 3,
            },
            n_ctx: 512,
            n_ubatch: 64,
        },
        Size::Real => Shape {
            bench: Work {
                prompt: 512,
                generated: 128,
                rounds: 5,
            },
            fit: Work {
                prompt: 512,
                generated: 32,
                rounds: 3,
            },
            n_ctx: 8192,
            n_ubatch: 512,
        },
    }
}

/// How much of a card a model finds free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// More than it needs.
    All,
    /// Less.
    Part,
}

pub(crate) fn run(setting: &Setting) -> Result<Verdict> {
    let shape = shape(setting.size);
    let mut found = Peers::default();
    let model = measured::model(setting, 2)?;
    found.beside_loop(setting, &model, 1, shape.bench)?;
    for room in [Room::Part, Room::All] {
        found.fit(setting, &shape, &model, room)?;
    }
    // What the CPU takes part in takes its time.
    found.beside_loop(setting, &model, 2, shape.fit)?;
    drop(model);
    let of_experts = match setting.size {
        Size::Small => models::small(),
        Size::Real => models::of_real_size(),
    };
    let of_experts = of_experts.iter().find(|sketch| sketch.arch == "qwen3moe");
    if let Some(sketch) = of_experts {
        if setting.is_late() {
            found.skipped.push(format!("{}: no time left", sketch.name));
        } else {
            match Written::new(sketch, &setting.scratch) {
                Ok(model) => found.fit(setting, &shape, &model, Room::Part)?,
                Err(error) => found.skipped.push(format!("{}: {error:#}", sketch.name)),
            }
        }
    }
    Ok(found.verdict(&shape))
}

/// Both are given as many, whatever either would choose.
fn threads(setting: &Setting) -> u32 {
    setting.threads.unwrap_or_else(|| {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let cores = Machine::detect().host.physical_cores;
        cores.map_or(processors, |cores| cores.min(processors))
    })
}

/// Ours by theirs, round by round.
fn by_pairs(ours: &[(f64, f64)], theirs: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let pairs = ours.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| (ours.0 / theirs.0, ours.1 / theirs.1))
        .collect()
}

fn request(setting: &Setting, shape: &Shape) -> Request {
    setting.request().n_ubatch(shape.n_ubatch)
}

#[derive(Default)]
struct Peers {
    loops: Vec<Loop>,
    fits: Vec<Fit>,
    skipped: Vec<String>,
}

impl Peers {
    /// The session beside llama.cpp's loop, with all layers on the card by 1, or half of them by 2, if there is time for it.
    fn beside_loop(
        &mut self,
        setting: &Setting,
        model: &Written,
        by: u32,
        work: Work,
    ) -> Result<()> {
        if setting.is_late() {
            let name = &model.name;
            self.skipped
                .push(format!("{name}, layers by {by}: no time left"));
            return Ok(());
        }
        let threads = threads(setting);
        // The weights are there twice.
        let rig = setting.rig(&format!("loop-{by}"), model.bytes * 3 + mib(64));
        let layers = models::layers(&model.path)?;
        let Work {
            prompt,
            generated,
            rounds,
        } = work;
        let step = Step::Beside {
            prompt,
            generated,
            rounds,
        };
        let request = setting
            .request()
            .context(Context::Tokens(u32::try_from(prompt + generated)?))
            .gpu_layers(GpuLayers::Exactly(layers / by));
        let mut job = setting.job(&rig, &model.path, request, vec![step]);
        job.threads = Some(threads);
        let outcome = child::drive(&job, &setting.cache())?;
        let mut row = Loop {
            model: model.name.clone(),
            model_bytes: model.bytes,
            n_gpu_layers: layers / by,
            layers,
            threads,
            work,
            end: outcome.end,
            ours: Vec::new(),
            theirs: Vec::new(),
            ours_by_theirs: None,
        };
        for stage in outcome.stages {
            if let job::Stage::Done { speeds, plain, .. } = stage {
                (row.ours, row.theirs) = (speeds, plain);
            }
        }
        row.ours_by_theirs = medians(&by_pairs(&row.ours, &row.theirs));
        self.loops.push(row);
        Ok(())
    }

    /// A model beside llama.cpp's fit, if there is time for it.
    fn fit(&mut self, setting: &Setting, shape: &Shape, model: &Written, room: Room) -> Result<()> {
        let name = &model.name;
        if setting.is_late() {
            self.skipped.push(format!("{name}, fit: no time left"));
            return Ok(());
        }
        // Six tenths of the weights, and what is to be left free.
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
        self.fits.push(beside_fit(setting, shape, model, &rig)?);
        drop(ballast);
        Ok(())
    }

    fn verdict(&self, shape: &Shape) -> Verdict {
        let ours = self
            .loops
            .iter()
            .map(|row| (&row.model, &row.end))
            .chain(self.fits.iter().map(|row| (&row.model, &row.ours.end)));
        let wrong: Vec<String> = ours
            .filter_map(|(model, end)| match end {
                End::Completed => None,
                End::Refused(why) | End::OutOfMemory(why) | End::Failed(why) => {
                    Some(format!("{model}: {why}"))
                }
            })
            .collect();
        let loops = self.loops.iter().filter_map(|row| {
            let (prompt, generation) = row.ours_by_theirs?;
            Some(format!(
                "{prompt:.3} and {generation:.3} on {} of {} layers ({} pairs)",
                row.n_gpu_layers, row.layers, row.work.rounds
            ))
        });
        let loops: Vec<String> = loops.collect();
        let fits: Vec<String> = self.fits.iter().map(Fit::words).collect();
        let first = wrong
            .first()
            .map_or(String::new(), |first| format!("; {first}"));
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

/// What the numbers are of.
const LOOP: &str = "llama.cpp's packaged source has no llama-bench: its protocol (test_prompt, test_gen, a warm-up, an empty memory for \
each) is carried out by the same library calls, in the same process, in turns with the session, on the same split, threads, batches and \
types. It chooses no tokens; the session looks for the likeliest.";
const FIT: &str = "llama.cpp's fit is common/fit.cpp of the same source, asked for the same context and one row of logits, with its own \
default margin on a real card and our headroom on a simulated one. Both splits are loaded and computed with by llama.cpp's own calls. Times \
to a split begin when the devices are open.";

impl Fit {
    fn words(&self) -> String {
        let (ours, theirs) = (&self.ours, &self.theirs);
        let fresh = |found: &Found| median(found.fresh_ms.iter().copied());
        let told = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        let speed = |found: &Found| told(found.medians.map(|(_, tg)| format!("{tg:.1}")));
        let time = |found: &Found| told(fresh(found).map(|ms| format!("{ms:.0}")));
        let spare = |found: &Found| told(found.unused().map(|bytes| Bytes(bytes).to_string()));
        let layers = |found: &Found| told(found.split.as_ref().map(|s| s.n_gpu_layers.to_string()));
        format!(
            "{}: {} and {} layers, {} and {} tok/s, {} and {} unused, {} and {} ms",
            self.model,
            layers(ours),
            layers(theirs),
            speed(ours),
            speed(theirs),
            spare(ours),
            spare(theirs),
            time(ours),
            time(theirs),
        )
    }
}

impl Found {
    /// Bytes that nobody used when the context was full, over all cards; `None` where one does not tell.
    fn unused(&self) -> Option<u64> {
        if self.full.is_empty() {
            return None;
        }
        self.full.iter().map(|free| free.ggml).sum()
    }

    /// Adds what a process has said.
    fn hear(&mut self, stages: Vec<Stage>, end: End) {
        // One failure is not made good by another's success.
        if self.end == End::Completed {
            self.end = end;
        }
        for stage in stages {
            match stage {
                Stage::Opened { free } => self.opened = free,
                Stage::Asked {
                    milliseconds,
                    split,
                    ..
                } => {
                    let mut times = milliseconds.into_iter();
                    self.fresh_ms.extend(times.next());
                    self.warm_ms.extend(times);
                    self.split = Some(split);
                }
                Stage::Loaded { free } => self.loaded = free,
                Stage::Measured { speeds } => {
                    self.speeds.extend(speeds);
                    self.medians = medians(&self.speeds);
                }
                Stage::Full { free, depth } => (self.full, self.depth) = (free, depth),
                Stage::Failed { .. } => {}
            }
        }
    }
}

/// Both sides, in turns: first the questions alone, then with what they lead to.
fn beside_fit(setting: &Setting, shape: &Shape, model: &Written, rig: &Rig) -> Result<Fit> {
    let margin = if setting.simulated {
        SIM_HEADROOM
    } else {
        MARGIN
    };
    let nothing = Found {
        end: End::Completed,
        split: None,
        fresh_ms: Vec::new(),
        warm_ms: Vec::new(),
        opened: Vec::new(),
        loaded: Vec::new(),
        full: Vec::new(),
        depth: 0,
        speeds: Vec::new(),
        medians: None,
    };
    let (mut ours, mut theirs) = (nothing.clone(), nothing);
    for round in 0..=ASKED {
        let mut sides = [(Side::Ours, &mut ours), (Side::Theirs, &mut theirs)];
        if round % 2 == 1 {
            sides.reverse();
        }
        for (side, found) in sides {
            let loads = round == ASKED;
            let question = Question {
                side,
                rig: rig.clone(),
                model: model.path.clone(),
                request: request(setting, shape),
                n_ctx: shape.n_ctx,
                margin,
                threads: threads(setting),
                again: if loads { 0 } else { AGAIN },
                work: loads.then_some(shape.fit),
            };
            let (stages, end) = child::peer(&question, &setting.cache())?;
            found.hear(stages, end);
        }
    }
    Ok(Fit {
        model: model.name.clone(),
        model_bytes: model.bytes,
        n_ctx: shape.n_ctx,
        margin,
        ours,
        theirs,
    })
}

#[cfg(test)]
mod tests {
    use super::by_pairs;
    use crate::measured::medians;

    #[test]
    fn rounds_are_compared_in_pairs_so_that_a_slow_moment_hits_both() {
        let ours = [(100.0, 10.0), (50.0, 5.0), (100.0, 9.0)];
        let theirs = [(100.0, 10.0), (50.0, 5.0), (80.0, 10.0)];
        let pairs = by_pairs(&ours, &theirs);
        assert_eq!(pairs, [(1.0, 1.0), (1.0, 1.0), (1.25, 0.9)]);
        assert_eq!(medians(&pairs), Some((1.0, 1.0)));
    }
}
