//! Whether a plan that was read can be one: a file may say anything, and llama.cpp ends the process over some of it.

use crate::memory::Place;
use crate::plan::{PlacementKind, Plan};

use super::{SavedPlan, SavedPlanError, invalid};

/// `LLAMA_MAX_LAYERS` (llama-hparams.h), and so many layers at most with the output layer.
const MOST_BLOCKS: u32 = 512;

/// The most GPUs that llama.cpp schedules beside the CPU (ggml-backend.cpp, `GGML_SCHED_MAX_BACKENDS`).
const MOST_GPUS: usize = 15;

/// `llama_max_tensor_buft_overrides` (llama.cpp): a list of so many, its end included.
const MOST_OVERRIDES: usize = 4095;

/// The longest name that a device may have. ggml's have a dozen characters; those of RPC servers hold an address.
const LONGEST_NAME: usize = 256;

impl SavedPlan {
    /// Whether all that it says can be. One that was read has been checked.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::Invalid`] names the first field that cannot be, or that contradicts another.
    pub fn check(&self) -> Result<(), SavedPlanError> {
        let hash = &self.model.header;
        if hash.len() != 32 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid("model.header is not 32 hexadecimal digits"));
        }
        if self.model.file_bytes.is_empty() {
            return Err(invalid("model.file_bytes is empty: a model has a file"));
        }
        self.machine
            .check()
            .map_err(|error| invalid(format!("machine.{error}")))?;
        check_plan(&self.plan).map_err(|problem| invalid(format!("plan.{problem}")))?;
        let depth = self.request.params.sizes();
        depth.map_err(|error| invalid(format!("request.params.{error}")))?;
        Ok(())
    }
}

fn check_plan(plan: &Plan) -> Result<(), String> {
    let blocks = plan.model.blocks;
    at_most("model.blocks", blocks, MOST_BLOCKS)?;
    if blocks == 0 {
        return Err("model.blocks is 0: a model has at least 1".to_owned());
    }
    at_most("n_gpu_layers", plan.n_gpu_layers, plan.layers())?;
    at_most("parted_blocks", plan.parted_blocks, blocks)?;
    let context = &plan.context;
    context
        .sizes()
        .map_err(|error| format!("context.{error}"))?;
    check_placements(plan)?;
    check_split(plan)?;
    check_speed(plan)
}

fn check_placements(plan: &Plan) -> Result<(), String> {
    let Some((host, gpus)) = plan.placements.split_last() else {
        return Err("placements is empty: every plan has a host".to_owned());
    };
    if host.kind != PlacementKind::Host {
        return Err("placements ends with a GPU: the host is the last".to_owned());
    }
    if gpus.len() > MOST_GPUS {
        let count = gpus.len();
        return Err(format!(
            "placements has {count} GPUs: llama.cpp takes at most {MOST_GPUS}"
        ));
    }
    let mut layers = 0_u64;
    for (index, gpu) in gpus.iter().enumerate() {
        let place = format!("placements[{index}]");
        if gpu.kind == PlacementKind::Host {
            return Err(format!("{place}.kind is the host's, which comes last"));
        }
        if gpu.layers == 0 {
            return Err(format!(
                "{place}.layers is 0: a GPU without layers is none of the plan"
            ));
        }
        layers += u64::from(gpu.layers);
        let Some(device) = &gpu.device else { continue };
        let printable = device.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        if device.is_empty() || device.len() > LONGEST_NAME || !printable {
            return Err(format!("{place}.device is no name of a device"));
        }
        if gpus[..index].iter().any(|other| other.device == gpu.device) {
            return Err(format!("{place}.device is {device}, which is there twice"));
        }
    }
    if layers != u64::from(plan.n_gpu_layers) {
        let n = plan.n_gpu_layers;
        return Err(format!(
            "placements have {layers} layers on GPUs, and n_gpu_layers is {n}"
        ));
    }
    let paged = plan.paging.map_or(0, |paging| paging.bytes);
    if paged > host.footprint.weights {
        let weights = host.footprint.weights;
        return Err(format!(
            "paging.bytes is {paged}, more than the host's weights, which are {weights}"
        ));
    }
    for (index, placement) in plan.placements.iter().enumerate() {
        if placement.free > placement.total {
            let (free, total) = (placement.free, placement.total);
            return Err(format!(
                "placements[{index}].free is {free}, more than total, which is {total}"
            ));
        }
    }
    Ok(())
}

fn check_split(plan: &Plan) -> Result<(), String> {
    let gpus = plan.gpus().count();
    let split = &plan.tensor_split;
    // Without proportions llama.cpp would share the layers out by the bytes that are free at the moment.
    let wanted = if gpus > 1 { gpus } else { 0 };
    if split.len() != wanted && !(gpus == 1 && split.len() == 1) {
        let count = split.len();
        return Err(format!(
            "tensor_split has {count} proportions for {gpus} GPUs"
        ));
    }
    for (index, share) in split.iter().enumerate() {
        if !(share.is_finite() && *share >= 0.0 && *share <= 1e9) {
            return Err(format!(
                "tensor_split[{index}] is {share}: a share is finite and not negative"
            ));
        }
    }
    if !split.is_empty() && split.iter().all(|&share| share == 0.0) {
        return Err("tensor_split is 0 everywhere: llama.cpp divides by its sum".to_owned());
    }
    if plan.overrides.len() > MOST_OVERRIDES {
        let count = plan.overrides.len();
        return Err(format!(
            "overrides are {count}: llama.cpp takes {MOST_OVERRIDES}"
        ));
    }
    for (index, rule) in plan.overrides.iter().enumerate() {
        rule.check()
            .map_err(|error| format!("overrides[{index}]: {error}"))?;
        if let Place::Gpu(gpu) = rule.place
            && gpu >= gpus
        {
            return Err(format!("overrides[{index}].place is GPU {gpu} of {gpus}"));
        }
    }
    Ok(())
}

fn check_speed(plan: &Plan) -> Result<(), String> {
    let Some(speed) = &plan.speed else {
        return Ok(());
    };
    let curve = speed.curve.len();
    if curve > 0 && curve != plan.layers() as usize + 1 {
        let layers = plan.layers();
        return Err(format!(
            "speed.curve has {curve} points for {layers} layers"
        ));
    }
    let ends = [
        Some(speed.tokens_per_second),
        Some(speed.all_on_host),
        speed.all_on_gpus,
    ];
    let generation = speed.generation.iter().map(|at| at.tokens_per_second);
    let mut all = ends
        .into_iter()
        .flatten()
        .chain([speed.prompt.tokens_per_second])
        .chain(generation)
        .chain(speed.curve.iter().copied());
    if all.any(|speed| !(speed.is_finite() && (0.0..=1e9).contains(&speed))) {
        return Err("speed has tokens per second that cannot be".to_owned());
    }
    let mut rates = speed.gpu_rates.iter().chain([&speed.host_rate]);
    if rates.any(|rate| !(rate.is_finite() && *rate >= 0.0)) {
        return Err("speed has bytes per second that cannot be".to_owned());
    }
    Ok(())
}

fn at_most(field: &str, value: u32, limit: u32) -> Result<(), String> {
    if value > limit {
        return Err(format!("{field} is {value}, more than {limit}"));
    }
    Ok(())
}
