//! The verb `plan`: arguments flow in; a plan, its bytes by arithmetic beside it and what took time flow out as text.

use std::cell::Cell;
use std::error::Error;
use std::time::{Duration, Instant};

use autoplace::gguf::Header;
use autoplace::load::{self, NativeProbe};
use autoplace::machine::{Gpu, Machine};
use autoplace::memory::{ContextParams, Estimate, Footprints, Split};
use autoplace::plan::{self, Placement, Plan, Planner, Probe};
use autoplace::profile::ModelProfile;

use crate::args::PlanArgs;
use crate::{gpu, json, machine_file};

/// A plan, with all that is told of it.
pub(crate) struct Answer {
    pub(crate) plan: Plan,
    /// What the arithmetic says of the same placement; `None` where it knows no law for this model.
    pub(crate) estimate: Option<Footprints>,
    pub(crate) took: Took,
}

/// What took time. The plan's own bytes are llama.cpp's where `probe` did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    /// Reading the file's header.
    pub(crate) header: Duration,
    /// The search, by arithmetic.
    pub(crate) estimate: Duration,
    /// Asking llama.cpp; `None` where it was not asked.
    pub(crate) probe: Option<Duration>,
    /// All of it, and looking at the machine.
    pub(crate) total: Duration,
}

/// Plans, and says so in words or in JSON. `begin` is when the program was started.
pub(crate) fn run(args: &PlanArgs, begin: Instant) -> Result<String, Box<dyn Error>> {
    let answer = answer(args, begin)?;
    Ok(if args.json {
        json::text(&answer)?
    } else {
        answer.plan.to_string()
    })
}

fn answer(args: &PlanArgs, begin: Instant) -> Result<Answer, Box<dyn Error>> {
    let probing = !args.no_probe;

    let reading = Instant::now();
    let header = Header::open(&args.model)?;
    let profile = ModelProfile::from_header(&header)?;
    let header_took = reading.elapsed();

    // The cards stay registered until the plan is there.
    let (machine, _cards) = match &args.machine {
        Some(file) => gpu::simulated(machine_file::read(file)?, probing)?,
        None if args.gpu.is_empty() => (load::detect()?, Vec::new()),
        None => gpu::machine(&args.gpu, probing)?,
    };

    let planning = Instant::now();
    let planner = Planner::new(&profile, &machine).request(args.request());
    let (plan, asked) = if probing {
        let probe = Timed::new(&header)?;
        (planner.plan_probed(&probe)?, Some(probe.spent.get()))
    } else {
        (planner.plan()?, None)
    };
    let estimate = planner
        .unknown()
        .is_none()
        .then(|| estimate(&profile, &machine, &plan))
        .transpose()?;
    let planning_took = planning.elapsed();

    Ok(Answer {
        plan,
        estimate,
        took: Took {
            header: header_took,
            estimate: planning_took.saturating_sub(asked.unwrap_or_default()),
            probe: asked,
            total: begin.elapsed(),
        },
    })
}

/// What the arithmetic says of a plan's own placement.
fn estimate(
    profile: &ModelProfile,
    machine: &Machine,
    plan: &Plan,
) -> Result<Footprints, plan::Error> {
    let is = |gpu: &Gpu, placement: &Placement| {
        (&gpu.name, &gpu.device, gpu.total, gpu.free)
            == (
                &placement.name,
                &placement.device,
                placement.total,
                placement.free,
            )
    };
    let gpus: Vec<&Gpu> = plan
        .gpus()
        .filter_map(|placement| machine.gpus.iter().find(|gpu| is(gpu, placement)))
        .collect();
    let estimate =
        Estimate::new(profile, &gpus, &plan.context)?.tensor_split(&plan.tensor_split)?;
    Ok(estimate.footprints(plan.n_gpu_layers))
}

/// llama.cpp as a probe, and the time that it was busy with that.
struct Timed {
    probe: NativeProbe,
    spent: Cell<Duration>,
}

impl Timed {
    /// Writes the model's skeleton, which counts.
    fn new(header: &Header) -> Result<Self, load::Error> {
        let begin = Instant::now();
        let probe = NativeProbe::new(header)?;
        Ok(Self {
            probe,
            spent: Cell::new(begin.elapsed()),
        })
    }
}

impl Probe for Timed {
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn Error + Send + Sync>> {
        let begin = Instant::now();
        let footprints = self.probe.footprints(gpus, params, split);
        self.spent.set(self.spent.get() + begin.elapsed());
        footprints
    }
}
