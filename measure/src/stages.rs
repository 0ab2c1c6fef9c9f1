//! A placement from before its load to the last position of its context: the free bytes of each GPU at every stage.
//!
//! The request of a [`Measure`] and some [`Step`]s flow in. [`Stages`] flows out, with the planned and the allocated
//! bytes of each device, and with a reading of each GPU after the load and after each step.

use autoplace::generate::{self, FinishReason, Prompt};
use autoplace::gguf::Header;
use autoplace::llama_sys::Token;
use autoplace::load::{self, LoadReport, Model};
use autoplace::memory::Footprint;
use autoplace::plan::Plan;
use autoplace::profile::ModelProfile;
use autoplace::worker;
use serde::{Deserialize, Serialize};

use super::Error;
use super::run::{Measure, Progress, Variant};

/// The number of tokens to generate at the end of a text that fills its context.
const LAST: usize = 8;

/// A computation with a loaded model, in an empty context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// A prompt that fills one ubatch, and the first token after it.
    Ubatch,
    /// A prompt of one token, and this many generated tokens.
    Generate(u32),
    /// A prompt that fills the context except for a few tokens, and these tokens.
    Fill,
}

/// The memory of one placement at each stage, from before its load to its last step. Sizes in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stages {
    /// Layers on GPUs, the output layer included; 0 if the model was not loaded.
    pub n_gpu_layers: u32,
    /// All layers, the output layer included; 0 if the model was not loaded.
    pub layers: u32,
    /// The GPUs of the plan, in its order.
    pub gpus: Vec<StagedGpu>,
    /// The bytes that the plan needs on the host.
    pub host_planned: Footprint,
    /// The bytes that llama.cpp reports as allocated on the host.
    pub host_allocated: Footprint,
    /// The attempts to load the model that failed before one succeeded.
    #[serde(default)]
    pub failed_attempts: usize,
    /// How the last stage ended.
    #[serde(rename = "end")]
    pub outcome: Outcome,
}

/// A GPU of a placement, with its planned and its allocated bytes, and a reading for each stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StagedGpu {
    /// The device's name in ggml: `CUDA0`.
    pub device: String,
    /// The bytes that the plan needs.
    pub planned: Footprint,
    /// The bytes that the plan leaves free.
    pub headroom: u64,
    /// The bytes that llama.cpp reports as allocated after the load.
    pub allocated: Footprint,
    /// The readings, in the order of the stages.
    pub stages: Vec<Reading>,
}

/// The free memory of a GPU at one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reading {
    /// The stage: `unopened` and `opened` (before the load), `loaded`, and then `prompt`, `decoded` or `full` after a
    /// [`Step`].
    pub stage: String,
    /// Tokens of the text: the prompt and the generated tokens. The last generated token is not computed.
    pub depth: usize,
    /// The free memory.
    pub free: FreeBytes,
}

/// The free memory of a GPU in bytes, as each source reports it. `None` means that the source reports nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FreeBytes {
    /// The backend's report (`cudaMemGetInfo`).
    pub ggml: Option<u64>,
    /// The report of NVIDIA's driver.
    pub nvml: Option<u64>,
}

/// How a load, or a computation after it, ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// It succeeded.
    #[default]
    Completed,
    /// No plan was found, so nothing was tried.
    Refused(String),
    /// Memory ran out although a plan had promised enough.
    OutOfMemory(String),
    /// Any other failure.
    Failed(String),
}

impl Measure<'_> {
    /// Loads the placement of the request, computes these steps, and reads the free memory of each GPU after each of
    /// them.
    ///
    /// The readings show whether the planned bytes are the allocated bytes, and how many bytes a driver and its pools
    /// take besides them. A failure is an [`Outcome`], and the readings before it are kept. If the driver may end the
    /// process, [isolate](autoplace::ModelBuilder::isolation) the load: then only the worker dies, and the readings are
    /// those of this process.
    pub fn stages(mut self, steps: &[Step]) -> Stages {
        let mut stages = Stages::default();
        if let Err(error) = self.staged(steps, &mut stages) {
            stages.outcome = Outcome::from_error(&error);
        }
        stages
    }

    fn staged(&mut self, steps: &[Step], stages: &mut Stages) -> Result<(), Error> {
        let model = self.builder(&Variant::asked("", self.request.clone())).load()?;
        *stages = Stages::loaded(&model.report());
        stages.read("loaded", 0)?;
        for (index, step) in steps.iter().enumerate() {
            let done = index as f64 / steps.len() as f64;
            if !(self.progress)(&Progress { name: step.stage(), done }) {
                return Err(Error::Stopped);
            }
            let depth = step.compute(&model)?;
            stages.read(step.stage(), depth)?;
        }
        Ok(())
    }
}

impl Step {
    /// The name of the stage after this step.
    const fn stage(self) -> &'static str {
        match self {
            Self::Ubatch => "prompt",
            Self::Generate(_) => "decoded",
            Self::Fill => "full",
        }
    }

    /// The tokens of the prompt, and the maximum number of tokens after it.
    fn sizes(self, plan: &Plan) -> (usize, usize) {
        let (n_ctx, n_ubatch) = (plan.context.n_ctx_seq() as usize, plan.context.n_ubatch as usize);
        match self {
            Self::Ubatch => (n_ubatch.min(n_ctx.saturating_sub(1)), 1),
            Self::Generate(tokens) => (1, tokens as usize),
            Self::Fill => (n_ctx.saturating_sub(LAST).max(1), n_ctx),
        }
    }

    /// Computes this step. Returns the tokens of the text.
    fn compute(self, model: &Model) -> Result<usize, Error> {
        let (prompt, generated) = self.sizes(&model.placement());
        let prompt = words(model, prompt)?;
        let request = model.generate(prompt).temp(0.0).cache_prompt(false).ignore_eos();
        let mut stream = request.max_tokens(generated).stream()?;
        for piece in &mut stream {
            piece?;
        }
        let (statistics, reason) = (stream.statistics(), stream.finish_reason());
        let depth = statistics.prompt_tokens + statistics.generated_tokens;
        if self == Self::Fill && reason != Some(FinishReason::ContextFull) {
            return Err(Error::Failed(format!("the text ended with {reason:?} after {depth} tokens")));
        }
        Ok(depth)
    }
}

/// A prompt of this many tokens. All tokens of the vocabulary may occur in it, so that the router of a mixture of
/// experts chooses all kinds of experts.
fn words(model: &Model, n: usize) -> Result<Prompt, Error> {
    let header: &Header = model.header().map_err(load::Error::from)?;
    let n_vocab = ModelProfile::from_header(header).map_err(load::Error::from)?.hparams.n_vocab.max(1) as usize;
    // The distance between the tokens is a prime number.
    let tokens = (0..n).map(|index| ((index * 7919 + 13) % n_vocab) as Token);
    Ok(Prompt::tokens(tokens.collect::<Vec<_>>()))
}

impl Stages {
    /// The placement right after its load.
    fn loaded(report: &LoadReport) -> Self {
        let gpus = report.gpus.iter().map(|gpu| StagedGpu {
            device: gpu.device.clone(),
            planned: gpu.planned,
            headroom: gpu.headroom.total(),
            allocated: gpu.allocated.unwrap_or_default(),
            stages: vec![Reading {
                stage: StagedGpu::OPENED.to_owned(),
                depth: 0,
                free: FreeBytes { ggml: gpu.before, nvml: None },
            }],
        });
        Self {
            n_gpu_layers: report.plan.n_gpu_layers,
            layers: report.plan.layers(),
            gpus: gpus.collect(),
            host_planned: report.host.planned,
            host_allocated: report.host.allocated,
            failed_attempts: report.tries().saturating_sub(1),
            outcome: Outcome::Completed,
        }
    }

    /// Reads the free memory of each GPU.
    fn read(&mut self, stage: &str, depth: usize) -> Result<(), Error> {
        let machine = load::detect()?;
        for gpu in &mut self.gpus {
            let now = machine.gpus.iter().find(|now| now.device.as_deref() == Some(&gpu.device));
            let free = now.map(FreeBytes::new).unwrap_or_default();
            gpu.stages.push(Reading { stage: stage.to_owned(), depth, free });
        }
        Ok(())
    }

    /// The first fault, in words: the last stage failed, a GPU's allocated bytes are not the planned bytes, or a GPU
    /// lost more memory in addition to these bytes than the plan had left free. A [refusal](Outcome::Refused) is no
    /// fault, because nothing was promised.
    pub fn fault(&self) -> Option<String> {
        let failure = self.outcome.failure().map(str::to_owned);
        failure.or_else(|| self.gpus.iter().find_map(StagedGpu::fault))
    }

    /// The smallest free memory that the backend reported for the plan's first GPU, from the load on.
    pub fn least_free(&self) -> Option<u64> {
        let readings = self.gpus.first()?.stages.iter().filter(|reading| !StagedGpu::is_before_load(reading));
        readings.filter_map(|reading| reading.free.ggml).min()
    }
}

impl StagedGpu {
    /// The stage before any process has opened the GPU.
    pub const UNOPENED: &str = "unopened";
    /// The stage after a process has opened the GPU, and before the load.
    pub const OPENED: &str = "opened";

    fn is_before_load(reading: &Reading) -> bool {
        [Self::UNOPENED, Self::OPENED].contains(&reading.stage.as_str())
    }

    /// Adds the reports of NVIDIA's driver from before and after a process opened this GPU.
    pub fn opened_between(&mut self, unopened: Option<u64>, opened: Option<u64>) {
        for reading in self.stages.iter_mut().filter(|reading| reading.stage == Self::OPENED) {
            reading.free.nvml = opened;
        }
        let free = FreeBytes { ggml: None, nvml: unopened };
        self.stages.insert(0, Reading { stage: Self::UNOPENED.to_owned(), depth: 0, free });
    }

    /// Bytes that the driver's context took when the GPU was opened. `None` if no driver reports it.
    pub fn context(&self) -> Option<u64> {
        let at = |stage: &str| self.stages.iter().find(|reading| reading.stage == stage)?.free.nvml;
        Some(at(Self::UNOPENED)?.saturating_sub(at(Self::OPENED)?))
    }

    /// Bytes that disappeared since the GPU was opened, without the buffers that llama.cpp counts. The first number is
    /// for the time after the load, and the second for the last stage. `None` if the GPU does not report its free
    /// memory.
    pub fn beyond(&self) -> Option<(u64, u64)> {
        let opened = self.stages.iter().position(|reading| reading.stage == Self::OPENED)?;
        let stages = &self.stages[opened..];
        let first = stages[0].free.ggml?;
        let beyond = |reading: &Reading| {
            let gone = first.saturating_sub(reading.free.ggml?);
            Some(gone.saturating_sub(self.allocated.total()))
        };
        Some((beyond(stages.get(1)?)?, beyond(stages.last()?)?))
    }

    fn fault(&self) -> Option<String> {
        let Self { device, planned, allocated, headroom, .. } = self;
        if planned != allocated {
            return Some(format!("{device}: planned {planned:?}, allocated {allocated:?}"));
        }
        let (_, beyond) = self.beyond()?;
        (beyond > *headroom).then(|| format!("{device}: {beyond} bytes beyond the footprint, {headroom} were left"))
    }
}

impl FreeBytes {
    /// The free memory of this GPU.
    pub fn new(gpu: &autoplace::machine::Gpu) -> Self {
        Self { ggml: gpu.ggml.map(|reading| reading.free), nvml: gpu.nvml.map(|reading| reading.free) }
    }
}

impl Outcome {
    /// The outcome of a load or a computation with this error. If a computation fails after a load, that counts as a
    /// lack of memory, because llama.cpp does not always give the reason.
    pub fn from_error(error: &Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Load(error) => Self::of_load(error, text),
            Error::Generate(generate::Error::Native(_)) => Self::OutOfMemory(text),
            Error::Generate(generate::Error::Load(error)) => Self::of_load(error, text),
            Error::Generate(generate::Error::Worker(error)) => Self::of_worker(error, text),
            _ => Self::Failed(text),
        }
    }

    fn of_load(error: &load::Error, text: String) -> Self {
        use load::Error::{AllAttempts, Difference, Native, OutOfMemory, Plan, Worker};
        match error {
            Plan(_) => Self::Refused(text),
            OutOfMemory { .. } | Difference { .. } | AllAttempts { .. } => Self::OutOfMemory(text),
            Native(native) if native.out_of_memory().is_some() => Self::OutOfMemory(text),
            Worker(error) => Self::of_worker(error, text),
            _ => Self::Failed(text),
        }
    }

    fn of_worker(error: &worker::Error, text: String) -> Self {
        match error {
            worker::Error::Died { log, .. } | worker::Error::Silent { log, .. } => {
                Self::of_death(&text, &log.join("\n"))
            }
            _ => Self::Failed(text),
        }
    }

    /// The outcome of a process that ended in this way, after it had printed these lines. The reason has the last
    /// lines.
    pub fn of_death(how: &str, said: &str) -> Self {
        /// Messages of CUDA (`cudaGetErrorString`), of cuBLAS, and of ggml for a pool.
        const MEMORY: [&str; 3] = ["out of memory", "ALLOC_FAILED", "failed to allocate"];
        /// The number of lines that tell why a process died.
        const TOLD: usize = 6;
        let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
        let reason = format!("{how}: {}", lines[lines.len().saturating_sub(TOLD)..].join("; "));
        if MEMORY.iter().any(|words| said.contains(words)) { Self::OutOfMemory(reason) } else { Self::Failed(reason) }
    }

    /// The reason for a failure; `None` without a failure. A refusal is no failure, because nothing was promised.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::OutOfMemory(why) | Self::Failed(why) => Some(why),
            Self::Completed | Self::Refused(_) => None,
        }
    }

    /// The reason why the work was not done; `None` if it was.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Completed => None,
            Self::Refused(why) | Self::OutOfMemory(why) | Self::Failed(why) => Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(stage: &str, [ggml, nvml]: [Option<u64>; 2]) -> Reading {
        Reading { stage: stage.to_owned(), depth: 0, free: FreeBytes { ggml, nvml } }
    }

    /// A GPU with 1000 free bytes, of which a plan needs 300 and leaves 50 free.
    fn gpu(loaded: u64, full: u64) -> StagedGpu {
        let footprint = Footprint::new(200, 60, 40);
        StagedGpu {
            device: "CUDA0".to_owned(),
            planned: footprint,
            headroom: 50,
            allocated: footprint,
            stages: vec![
                reading("opened", [Some(1000), None]),
                reading("loaded", [Some(loaded), None]),
                reading("full", [Some(full), None]),
            ],
        }
    }

    #[test]
    fn bytes_besides_the_buffers_are_counted_after_the_load_and_at_the_end() {
        let mut gpu = gpu(690, 660);
        assert_eq!(gpu.beyond(), Some((10, 40)));
        assert_eq!(gpu.context(), None);
        gpu.opened_between(Some(1500), Some(1070));
        assert_eq!(gpu.context(), Some(430));
        assert_eq!(gpu.beyond(), Some((10, 40)));
        let stages = Stages { gpus: vec![gpu], ..Stages::default() };
        assert_eq!((stages.fault(), stages.least_free()), (None, Some(660)));
    }

    #[test]
    fn other_bytes_than_planned_and_more_than_the_headroom_are_faults() {
        let fault = |gpu: StagedGpu| Stages { gpus: vec![gpu], ..Stages::default() }.fault();
        assert_eq!(fault(gpu(700, 650)), None);
        assert_eq!(fault(gpu(700, 649)).as_deref(), Some("CUDA0: 51 bytes beyond the footprint, 50 were left"));
        let mut other = gpu(700, 650);
        other.allocated.compute += 1;
        assert!(fault(other).is_some_and(|fault| fault.contains("planned") && fault.contains("allocated")));
        let failed = Stages { outcome: Outcome::Failed("signal: 6".to_owned()), ..Stages::default() };
        assert_eq!(failed.fault().as_deref(), Some("signal: 6"));
        let refused = Stages { outcome: Outcome::Refused("no room".to_owned()), ..Stages::default() };
        assert_eq!(refused.fault(), None);
    }

    #[test]
    fn a_process_that_ran_out_of_memory_is_distinguished_from_other_deaths() {
        let cuda = "CUDA error: out of memory\n  current device: 0";
        let lacking = Outcome::of_death("the process ended with signal: 6", cuda);
        assert!(matches!(lacking, Outcome::OutOfMemory(reason) if reason.contains("current device")));
        let other = Outcome::of_death("the process ended with signal: 11", "");
        assert_eq!(other, Outcome::Failed("the process ended with signal: 11: ".to_owned()));
    }
}
