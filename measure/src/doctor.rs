//! The diagnosis of a slow model. There is one rule for each cause, with the evidence that the rule needs.

use autoplace::machine::{Bytes, Gpu, HostLimit, Machine, UnusedReason};
use autoplace::memory::{KvType, WSL_HEADROOM};
use autoplace::plan::speed::{Rate, Rates};
use autoplace::plan::{Change, ChangeKind, Effect, Plan};
use serde::{Deserialize, Serialize};

use super::evidence::{Evidence, ModelEvidence};

/// The command that installs the program with a feature. Until the first release, only the repository has it.
macro_rules! install {
    ($feature:literal) => {
        concat!("cargo install --git https://github.com/autoplace/autoplace autoplace-cli --features ", $feature)
    };
}

/// A reason why a model is slower than it could be on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// The cause.
    pub cause: FindingCause,
    /// The evidence, in a sentence.
    pub evidence: String,
    /// A way to remove the cause, as a command if possible.
    pub remedy: Option<String>,
}

/// The reason why a model is slow. The variants are in order of severity, and the worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingCause {
    /// The model does not fit.
    #[error("the model fits nowhere on this machine")]
    OutOfReach,
    /// A card cannot be used.
    #[error("a card is not used")]
    UnusedCard,
    /// A driver has moved memory of a GPU to the host.
    #[error("the driver has moved memory of the GPU to the host")]
    Spilled,
    /// The system reads memory back from swap, or writes it there.
    #[error("the system is swapping")]
    Swapping,
    /// Weights are read from disk again for every token.
    #[error("weights are read from disk for every token")]
    Paging,
    /// A limit on the process denies it a part of the machine's memory or processor time.
    #[error("a limit keeps this process from using the whole machine")]
    Limited,
    /// A GPU's clocks are held down.
    #[error("a GPU runs below its clocks")]
    Throttled,
    /// A program runs the model with a placement that is slower than one that would fit.
    #[error("the model runs slower than it could on this machine")]
    RunsSlower,
    /// Other programs use memory of a GPU, and more of the model would fit without them.
    #[error("other programs hold the GPU's memory")]
    OtherPrograms,
    /// The context takes memory that the remaining layers need.
    #[error("the context takes the room that further layers need")]
    LargeContext,
    /// Not everything is on GPUs.
    #[error("not everything is on the GPU")]
    NotOnGpu,
    /// A card's link uses fewer lanes than it has.
    #[error("a card's link runs with fewer lanes than it has")]
    Link,
    /// Other programs keep the processor busy.
    #[error("other programs keep the processor busy")]
    Processor,
    /// This build does not use all of the processor's instructions.
    #[error("this build does not use all of the processor's instructions")]
    Instructions,
    /// The model is slower than predicted, and no other rule explains it.
    #[error("the model is slower than predicted, and nothing that is watched explains why")]
    Unexplained,
}

/// The share of the predicted speed that counts as normal. It allows for the accuracy of the predictions
/// (docs/speed-model.md) and for the noise of a few seconds.
const MIN_NORMAL_SHARE: f64 = 0.75;
/// Bytes that a driver usually keeps on the host for a card.
const USUAL_ON_HOST: u64 = 256 << 20;
/// If there is no model, other programs are reported if they use more than this fraction (one part in 10) of a card's
/// memory.
const NOTABLE_PART: u64 = 10;
/// The processor counts as busy if some thread waits for a core during more than this percentage of ten seconds.
const BUSY_PRESSURE: f32 = 25.0;

fn finding(cause: FindingCause, evidence: String, remedy: impl Into<String>) -> Finding {
    Finding { cause, evidence, remedy: Some(remedy.into()) }
}

impl Evidence {
    /// The findings, the worst first; empty if there are none.
    pub fn diagnose(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.unused_cards().chain(self.links()).collect();
        let rules = [
            Self::spilled,
            Self::swapping,
            Self::limited,
            Self::limited_processors,
            Self::throttled,
            Self::processor,
            Self::instructions,
        ];
        findings.extend(rules.iter().filter_map(|rule| rule(self)));
        findings.extend(self.other_programs());
        if let Some(model) = &self.model {
            let rules = [out_of_reach, paging, runs_slower, large_context];
            findings.extend(rules.iter().filter_map(|rule| rule(model)));
            findings.extend(not_on_gpu(model, &self.machine));
            if findings.is_empty() {
                findings.extend(unexplained(model));
            }
        }
        findings.sort_by_key(|finding| finding.cause);
        findings
    }

    fn plan(&self) -> Option<&Plan> {
        self.model.as_ref()?.plan.as_ref()
    }

    /// Whether the host computes a part of the model. Without a model, this is assumed.
    fn uses_host(&self) -> bool {
        self.plan().is_none_or(|plan| !plan.full_offload)
    }

    fn unused_cards(&self) -> impl Iterator<Item = Finding> {
        self.machine.unused_gpus.iter().filter_map(|unused| {
            let remedy = match &unused.reason {
                // The card is in use under another name.
                UnusedReason::SameAs { .. } => return None,
                UnusedReason::NoBackend if unused.gpu.backend == "ROCm" => install!("hip"),
                UnusedReason::NoBackend => install!("cuda"),
                UnusedReason::NoDriver { .. } => {
                    "nvidia-smi    # in a container: `docker run --gpus all`; else install the driver"
                }
                UnusedReason::Hidden | UnusedReason::PerhapsHidden => "unset CUDA_VISIBLE_DEVICES",
                UnusedReason::NoSlice => "sudo nvidia-smi mig -cgi 0 -C",
                UnusedReason::Mig => "nvidia-smi -L    # the slices that there are, for CUDA_VISIBLE_DEVICES=MIG-...",
                // CUDA gives a process only one slice, and no setting changes that.
                UnusedReason::OtherSlice { .. } => return None,
                _ => "nvidia-smi    # shows whether the driver or the card is too old for this build's CUDA",
            };
            Some(finding(FindingCause::UnusedCard, unused.to_string(), remedy))
        })
    }

    fn spilled(&self) -> Option<Finding> {
        let on_host = self.conditions.on_host.unwrap_or(0);
        if on_host > USUAL_ON_HOST {
            let evidence = format!("the driver keeps {} of it in the host's memory", Bytes(on_host));
            return Some(finding(FindingCause::Spilled, evidence, self.smaller()));
        }
        let free = self.conditions.least_free.filter(|_| self.machine.wsl && self.plan().is_some())?;
        let (now_free, least) = (Bytes(free), Bytes(WSL_HEADROOM));
        let evidence =
            format!("{now_free} are free on the GPU, and Windows begins to move memory to the host below {least}");
        (free < WSL_HEADROOM).then(|| finding(FindingCause::Spilled, evidence, self.smaller()))
    }

    fn smaller(&self) -> String {
        let model = self.model.as_ref().map(|model| model.asking(&["--headroom cautious".to_owned()]));
        model.unwrap_or_else(|| "autoplace plan MODEL --headroom cautious".to_owned())
    }

    fn swapping(&self) -> Option<Finding> {
        let [pages_in, pages_out] = [self.conditions.swapped_in, self.conditions.swapped_out];
        let [pages_in, pages_out] = [pages_in.unwrap_or(0), pages_out.unwrap_or(0)];
        let evidence = format!("{pages_in} pages were read back meanwhile, {pages_out} written");
        let remedy = "ps aux --sort=-rss | head    # programs that hold memory, to be closed";
        (pages_in.max(pages_out) > 0).then(|| finding(FindingCause::Swapping, evidence, remedy))
    }

    fn limited(&self) -> Option<Finding> {
        let host = &self.machine.host;
        let (bytes, remedy) = match &host.limit {
            HostLimit::Cgroup { bytes, .. } => (*bytes, "docker update --memory SIZE CONTAINER"),
            HostLimit::MemoryNodes { bytes, .. } => (*bytes, "docker update --cpuset-mems NODES CONTAINER"),
            HostLimit::AddressSpace { bytes } => (*bytes, "ulimit -v unlimited"),
            HostLimit::DataSegment { bytes } => (*bytes, "ulimit -d unlimited"),
            _ => return None,
        };
        // A limit does not matter if it leaves at least three quarters of the memory, or if nothing is on the host.
        let is_less = bytes < host.total / 4 * 3;
        let matters = self.model.as_ref().is_none_or(|model| model.refused.is_some() || self.uses_host());
        let evidence = format!("{} of the machine's {}", Bytes(bytes), Bytes(host.total));
        (is_less && matters).then(|| finding(FindingCause::Limited, evidence, remedy))
    }

    /// A limit on the time or number of processors.
    fn limited_processors(&self) -> Option<Finding> {
        let host = &self.machine.host;
        let cores = host.usable_cores.or(host.physical_cores)?;
        let limit = host.cpu_limit.as_ref().filter(|limit| limit.cpus() < f64::from(cores))?;
        let evidence = format!("{limit}, of the machine's {cores}");
        let remedy = "docker update --cpus NUMBER CONTAINER";
        self.uses_host().then(|| finding(FindingCause::Limited, evidence, remedy))
    }

    fn throttled(&self) -> Option<Finding> {
        let held = self.conditions.throttle.iter().filter(|reason| reason.is_fault());
        let held: Vec<String> = held.map(ToString::to_string).collect();
        let celsius = self.conditions.temperature.map_or(String::new(), |degrees| format!(", {degrees} °C"));
        let evidence = format!("held down by {}{celsius}", held.join(", "));
        let remedy = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER";
        (!held.is_empty()).then(|| finding(FindingCause::Throttled, evidence, remedy))
    }

    fn other_programs(&self) -> Vec<Finding> {
        if let Some(model) = &self.model {
            let change = model.change(|kind| matches!(kind, ChangeKind::CloseProcess { .. }));
            let finding = |change: &Change| Finding {
                cause: FindingCause::OtherPrograms,
                evidence: change.to_string(),
                remedy: None,
            };
            return change.map(finding).into_iter().collect();
        }
        let gpus = self.machine.gpus.iter().filter_map(|gpu: &Gpu| {
            let programs = gpu.processes.iter().flatten().filter_map(|program| program.bytes);
            // If the known programs use fewer bytes than are taken, all taken bytes count.
            let rest = gpu.total.saturating_sub(gpu.free);
            let bytes = programs.fold(0, u64::saturating_add).max(rest);
            let evidence = format!("{} of {}'s {}", Bytes(bytes), gpu.name, Bytes(gpu.total));
            let remedy = "autoplace devices    # lists them";
            (bytes > gpu.total / NOTABLE_PART).then(|| finding(FindingCause::OtherPrograms, evidence, remedy))
        });
        gpus.collect()
    }

    fn links(&self) -> impl Iterator<Item = Finding> {
        // A single card with the whole model sends little over its link.
        let matters = self.machine.gpus.len() > 1 || self.uses_host();
        self.machine.gpus.iter().filter(move |_| matters).filter_map(|gpu| {
            let link = gpu.pcie?;
            // An idle card lowers the generation of its link, but not the number of lanes.
            let now = link.current.filter(|now| now.lanes < link.max.lanes)?;
            let evidence = format!("{} has {} lanes of {}", gpu.name, now.lanes, link.max.lanes);
            let remedy = "sudo lspci -vv | grep -A40 VGA | grep LnkSta    # then try another slot, or reseat the card";
            Some(finding(FindingCause::Link, evidence, remedy))
        })
    }

    fn processor(&self) -> Option<Finding> {
        // The kernel also counts threads that a limit stops as waiting for a core.
        if self.limited_processors().is_some() {
            return None;
        }
        let pressure = self.conditions.cpu_pressure.filter(|&pressure| pressure > BUSY_PRESSURE && self.uses_host())?;
        let evidence = format!("threads waited for a core in {pressure:.0} % of ten seconds");
        Some(finding(FindingCause::Processor, evidence, "top    # lists the programs that compute beside it"))
    }

    fn instructions(&self) -> Option<Finding> {
        let unused = &self.unused_instructions;
        let evidence = format!("{} are available and not used", unused.join(", "));
        let remedy = install!("native");
        (!unused.is_empty() && self.uses_host()).then(|| finding(FindingCause::Instructions, evidence, remedy))
    }
}

impl ModelEvidence {
    /// The file name, quoted for a shell if necessary.
    fn file(&self) -> String {
        let path = self.path.display().to_string().replace(char::is_control, "?");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-+=:@%".contains(c);
        if !path.is_empty() && path.chars().all(is_plain) {
            return path;
        }
        format!("'{}'", path.replace('\'', r"'\''"))
    }

    /// A command that plans the model again, with these flags in place of the corresponding settings. A comment in the
    /// command lists the settings that no flag can express.
    fn asking(&self, flags: &[String]) -> String {
        let (mut command, mut unsaid) = (format!("autoplace plan {}", self.file()), String::new());
        let is_said = |flag: &str| flags.iter().any(|given| given.starts_with(flag));
        if let Some(plan) = &self.plan {
            let (keys, values) = (plan.context.type_k, plan.context.type_v);
            if !is_said("--ctx ") {
                command += &format!(" --ctx {}", plan.context.n_ctx);
            }
            // The flag sets both types to the same value. The default types need no flag.
            if !is_said("--kv ") && keys != values {
                unsaid = format!("    # which takes f16; it was planned with keys as {keys} and values as {values}");
            } else if !is_said("--kv ") && keys != KvType::F16 {
                command += &format!(" --kv {keys}").to_lowercase();
            }
        }
        format!("{command} {}{unsaid}", flags.join(" "))
    }

    /// The cheapest change that consists of this kind alone.
    fn change(&self, is: impl Fn(&ChangeKind) -> bool) -> Option<&Change> {
        self.advice.changes.iter().find(|change| change.kinds.iter().all(&is))
    }

    /// The change as a command, if this program's flags can express the change.
    fn command(&self, change: &Change) -> Option<String> {
        let flags = change.kinds.iter().map(|kind| match kind {
            ChangeKind::KvType(ty) => Some(format!("--kv {}", ty.to_string().to_lowercase())),
            ChangeKind::Context(tokens) => Some(format!("--ctx {tokens}")),
            ChangeKind::SwaFull(true) => Some("--swa-full".to_owned()),
            ChangeKind::Ubatch(tokens) => Some(format!("--ubatch {tokens}")),
            _ => None,
        });
        let flags: Vec<String> = flags.collect::<Option<_>>()?;
        Some(self.asking(&flags))
    }

    /// A finding with a remedy: a command and its result, or words.
    fn finding(&self, cause: FindingCause, evidence: String, change: Option<&Change>) -> Finding {
        let remedy = change.map(|change| match self.command(change) {
            Some(command) => format!("{command}    # {change}"),
            None => change.to_string(),
        });
        Finding { cause, evidence, remedy }
    }

    /// The cheapest change that puts everything on GPUs. If there is none, the cheapest change.
    fn best(&self) -> Option<&Change> {
        let changes = &self.advice.changes;
        changes.iter().find(|change| change.effect == Effect::Fits).or(changes.first())
    }
}

fn out_of_reach(model: &ModelEvidence) -> Option<Finding> {
    Some(model.finding(FindingCause::OutOfReach, model.refused.clone()?, model.best()))
}

fn paging(model: &ModelEvidence) -> Option<Finding> {
    let paging = model.plan.as_ref()?.paging?;
    Some(model.finding(FindingCause::Paging, paging.to_string(), model.best()))
}

/// Smaller speed-ups are within the error of the predictions.
const MIN_SPEEDUP: f64 = 1.1;

fn runs_slower(model: &ModelEvidence) -> Option<Finding> {
    let (running, plan) = (model.running.as_ref()?, model.plan.as_ref()?);
    let theirs = running.n_gpu_layers?;
    let planned = plan.speed.as_ref().map(|speed| speed.tokens_per_second);
    let is_slower = match (running.predicted, planned) {
        (Some(runs), Some(planned)) => runs * MIN_SPEEDUP < planned,
        _ => theirs < plan.n_gpu_layers,
    };
    let about = running.predicted.map_or(String::new(), |speed| format!(", about {speed:.1} tok/s"));
    let (program, all) = (&running.program, plan.layers());
    let evidence = format!("{program}: {theirs} of {all} layers on GPUs{about}; there is room for {}", summary(plan));
    is_slower.then(|| Finding { cause: FindingCause::RunsSlower, evidence, remedy: running.otherwise.clone() })
}

/// The finding that the context is too large, because a smaller cache alone would put everything on the GPU.
fn large_context(model: &ModelEvidence) -> Option<Finding> {
    let plan = model.plan.as_ref()?;
    let is_cache =
        |kind: &ChangeKind| matches!(kind, ChangeKind::KvType(_) | ChangeKind::Context(_) | ChangeKind::SwaFull(_));
    let mut changes = model.advice.changes.iter();
    let change = changes.find(|change| change.effect == Effect::Fits && change.kinds.iter().all(is_cache))?;
    let kv = plan.placements.iter().fold(0_u64, |sum, placement| sum.saturating_add(placement.footprint.kv));
    let evidence = format!("its cache of {} tokens takes {}: {}", plan.context.n_ctx, Bytes(kv), summary(plan));
    Some(model.finding(FindingCause::LargeContext, evidence, Some(change)))
}

fn not_on_gpu(model: &ModelEvidence, machine: &Machine) -> Option<Finding> {
    let plan = model.plan.as_ref()?;
    let on_gpus = plan.gpus().next().is_some();
    // Cards slower than the host are left out on purpose.
    let rates = Rates::for_devices(&machine.gpus.iter().collect::<Vec<_>>(), &machine.host);
    let is_slow = |gpu: &Rate| gpu.bytes_per_second <= rates.host.bytes_per_second;
    let is_worse = !on_gpus && rates.gpus.iter().all(is_slow);
    // A large context has its own finding.
    let is_said = is_worse || plan.full_offload || large_context(model).is_some();
    (!is_said).then(|| model.finding(FindingCause::NotOnGpu, summary(plan), model.best()))
}

/// A summary such as `58 of 81 layers on GPUs, parts of 12 blocks on the host, about 3.9 tok/s, 20.1 if all were`.
fn summary(plan: &Plan) -> String {
    let speed = plan.speed.as_ref().map_or(String::new(), |speed| {
        let all = speed.all_on_gpus.filter(|_| !plan.full_offload);
        let all = all.map_or(String::new(), |all| format!(", {all:.1} if all were"));
        format!(", about {:.1} tok/s{all}", speed.tokens_per_second)
    });
    let parts = match plan.split_blocks {
        0 => String::new(),
        blocks => format!(", parts of {blocks} blocks on the host"),
    };
    format!("{} of {} layers on GPUs{parts}{speed}", plan.n_gpu_layers, plan.layers())
}

fn unexplained(model: &ModelEvidence) -> Option<Finding> {
    let (measured, predicted) = match &model.running {
        Some(running) => (running.tokens_per_second?, running.predicted?),
        None => (model.measured?.median, model.predicted?),
    };
    let evidence = format!("{measured:.1} tok/s measured, {predicted:.1} predicted");
    let remedy = format!("autoplace measure {}", model.file());
    (measured < predicted * MIN_NORMAL_SHARE).then(|| finding(FindingCause::Unexplained, evidence, remedy))
}
