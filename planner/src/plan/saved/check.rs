//! Whether a plan that was read can be one: a file may say anything, and llama.cpp ends the process over some of it.

use crate::memory::OverrideRules;
use crate::plan::search::MOST_GPUS;
use crate::plan::{PlacementKind, Plan};
use crate::profile::MAX_LAYERS;

use super::{SavedPlan, SavedPlanError, invalid};

/// The longest name that a device may have. ggml's have a dozen characters; those of RPC servers hold an address.
const LONGEST_NAME: usize = 256;

impl SavedPlan {
    /// Whether all that it says can be. One that was read has been checked.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::Invalid`] names the first field that cannot be, or that contradicts another.
    pub fn check(&self) -> Result<(), SavedPlanError> {
        self.problem().map_err(invalid)
    }

    fn problem(&self) -> Result<(), String> {
        let hash = &self.model.header;
        let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(is_hash, "model.header is not 32 hexadecimal digits");
        let has_file = !self.model.file_bytes.is_empty();
        ensure!(has_file, "model.file_bytes is empty: a model has a file");
        check_plan(&self.plan).map_err(|problem| format!("plan.{problem}"))?;
        let mut params = self.request.params.clone();
        if params.n_ctx == 0 {
            // As the request's `context` said, which is what the plan has.
            params.n_ctx = self.plan.context.n_ctx;
        }
        params.sizes().map_err(|error| format!("request.params.{error}"))?;
        Ok(())
    }
}

fn check_plan(plan: &Plan) -> Result<(), String> {
    let (blocks, parted) = (plan.model.blocks, plan.parted_blocks);
    let (layers, n) = (plan.layers(), plan.n_gpu_layers);
    ensure!(blocks <= MAX_LAYERS, "model.blocks is {blocks}, more than {MAX_LAYERS}");
    ensure!(blocks > 0, "model.blocks is 0: a model has at least 1");
    ensure!(n <= layers, "n_gpu_layers is {n}, more than {layers}");
    ensure!(parted <= blocks, "parted_blocks is {parted}, more than {blocks}");
    plan.context.sizes().map_err(|error| format!("context.{error}"))?;
    check_placements(plan)?;
    check_split(plan)?;
    // What a speed predicts is only shown; the points of its curve are looked up by the number of layers.
    let curve = plan.speed.as_ref().map_or(0, |speed| speed.curve.len());
    ensure!(curve == 0 || curve == layers as usize + 1, "speed.curve has {curve} points for {layers} layers");
    Ok(())
}

fn check_placements(plan: &Plan) -> Result<(), String> {
    let Some((host, gpus)) = plan.placements.split_last() else {
        return Err("placements is empty: every plan has a host".to_owned());
    };
    let last = host.kind == PlacementKind::Host;
    ensure!(last, "placements ends with a GPU: the host is the last");
    let (n, count) = (plan.n_gpu_layers, gpus.len());
    ensure!(count <= MOST_GPUS, "placements has {count} GPUs: llama.cpp takes at most {MOST_GPUS}");
    for (index, gpu) in gpus.iter().enumerate() {
        let place = format!("placements[{index}]");
        let is_gpu = gpu.kind != PlacementKind::Host;
        ensure!(is_gpu, "{place}.kind is the host's, which comes last");
        ensure!(gpu.layers > 0, "{place}.layers is 0: a GPU without layers is none of the plan");
        let Some(device) = &gpu.device else { continue };
        let printable = device.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        let is_name = (1..=LONGEST_NAME).contains(&device.len()) && printable;
        ensure!(is_name, "{place}.device is no name of a device");
        let twice = gpus[..index].iter().any(|other| other.device == gpu.device);
        ensure!(!twice, "{place}.device is {device}, which is there twice");
    }
    let layers: u64 = gpus.iter().map(|gpu| u64::from(gpu.layers)).sum();
    ensure!(layers == u64::from(n), "placements have {layers} layers on GPUs, and n_gpu_layers is {n}");
    let (paged, weights) = (plan.paging.map_or(0, |it| it.bytes), host.footprint.weights);
    ensure!(paged <= weights, "paging.bytes is {paged}, more than the host's weights, which are {weights}");
    for (index, placement) in plan.placements.iter().enumerate() {
        let (free, total) = (placement.free, placement.total);
        ensure!(free <= total, "placements[{index}].free is {free}, more than total, which is {total}");
    }
    Ok(())
}

fn check_split(plan: &Plan) -> Result<(), String> {
    let gpus = plan.gpus().count();
    let split = &plan.tensor_split;
    let count = split.len();
    // Without proportions llama.cpp would share the layers out by the bytes that are free at the moment.
    let fits = if gpus > 1 { count == gpus } else { count <= gpus };
    ensure!(fits, "tensor_split has {count} proportions for {gpus} GPUs");
    for (index, share) in split.iter().enumerate() {
        ensure!((0.0..=1e9).contains(share), "tensor_split[{index}] is {share}: a share is finite and not negative");
    }
    ensure!(
        count == 0 || split.iter().any(|&share| share > 0.0),
        "tensor_split is 0 everywhere: llama.cpp divides by its sum"
    );
    OverrideRules::new(&plan.overrides, gpus).map_err(|error| format!("overrides: {error}"))?;
    Ok(())
}
