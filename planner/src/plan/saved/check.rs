//! Validation of a plan read from a file. A file may contain anything, and some values would make llama.cpp abort the
//! process.

use crate::memory::{ContextParams, OverrideRules};
use crate::plan::search::MAX_GPUS;
use crate::plan::{PlacementKind, Plan};
use crate::profile::MAX_LAYERS;

use super::{SavedPlan, SavedPlanError, invalid};

/// Maximum bytes of a device's name. ggml's names have a dozen characters; names of RPC servers contain an address.
const MAX_NAME_BYTES: usize = 256;

impl SavedPlan {
    /// Validates all fields. The functions that read a plan have already called this function.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::Invalid`] names the first field that is invalid or contradicts another.
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
        check_by_depth(&self.plan).map_err(|problem| format!("plan.by_depth.{problem}"))?;
        let mut params = self.request.params.clone();
        if params.n_ctx == 0 {
            // In the request, `n_ctx` is 0 and `context` decides, so the number in the plan is checked.
            params.n_ctx = self.plan.context.n_ctx;
        }
        params.sizes().map_err(|error| format!("request.params.{error}"))?;
        Ok(())
    }
}

fn check_plan(plan: &Plan) -> Result<(), String> {
    let (blocks, split_blocks) = (plan.model.blocks, plan.split_blocks);
    let (layers, n) = (plan.layers(), plan.n_gpu_layers);
    ensure!(blocks <= MAX_LAYERS, "model.blocks is {blocks}, more than {MAX_LAYERS}");
    ensure!(blocks > 0, "model.blocks is 0: a model has at least 1");
    ensure!(n <= layers, "n_gpu_layers is {n}, more than {layers}");
    ensure!(split_blocks <= blocks, "split_blocks is {split_blocks}, more than {blocks}");
    plan.context.sizes().map_err(|error| format!("context.{error}"))?;
    let (cache, planned) = (plan.context.moe_cache_size, plan.moe_cache.map_or(0, |cache| cache.bytes));
    ensure!(cache == planned, "context.moe_cache_size is {cache}, but moe_cache has {planned} bytes");
    ensure!(cache == 0 || plan.gpus().next().is_some(), "context.moe_cache_size is {cache}, but the plan has no GPU");
    check_placements(plan)?;
    check_split(plan)?;
    // A predicted speed is only displayed, but an element of its curve is accessed by the number of layers.
    let curve = plan.speed.as_ref().map_or(0, |speed| speed.curve.len());
    ensure!(curve == 0 || curve == layers as usize + 1, "speed.curve has {curve} points for {layers} layers");
    Ok(())
}

/// Checks the other placement of a plan. A text must be able to move between both placements unchanged.
fn check_by_depth(plan: &Plan) -> Result<(), String> {
    let Some(by_depth) = plan.by_depth.as_deref() else { return Ok(()) };
    by_depth.problem(plan.context.n_ctx)?;
    let other = &by_depth.plan;
    check_plan(other).map_err(|problem| format!("plan.{problem}"))?;
    let blocks = (other.model.blocks, plan.model.blocks);
    ensure!(blocks.0 == blocks.1, "plan.model.blocks is {}, but the plan has {}", blocks.0, blocks.1);
    // Whether the file is mapped depends on the devices in use.
    let like_here = |context: &ContextParams| ContextParams { mmap: plan.context.mmap, ..context.clone() };
    ensure!(like_here(&other.context) == plan.context, "plan.context is not that of the plan");
    Ok(())
}

fn check_placements(plan: &Plan) -> Result<(), String> {
    let Some((host, gpus)) = plan.placements.split_last() else {
        return Err("placements is empty: every plan has a host".to_owned());
    };
    let last = host.kind == PlacementKind::Host;
    ensure!(last, "placements ends with a GPU: the host is the last");
    let (n, count) = (plan.n_gpu_layers, gpus.len());
    ensure!(count <= MAX_GPUS, "placements has {count} GPUs: llama.cpp takes at most {MAX_GPUS}");
    for (index, gpu) in gpus.iter().enumerate() {
        let place = format!("placements[{index}]");
        let is_gpu = gpu.kind != PlacementKind::Host;
        ensure!(is_gpu, "{place}.kind is the host's, which comes last");
        ensure!(gpu.layers > 0, "{place}.layers is 0: a plan lists only GPUs with layers");
        let Some(device) = &gpu.device else { continue };
        let printable = device.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        let is_name = (1..=MAX_NAME_BYTES).contains(&device.len()) && printable;
        ensure!(is_name, "{place}.device is not a valid device name");
        let twice = gpus[..index].iter().any(|other| other.device == gpu.device);
        ensure!(!twice, "{place}.device is {device}, which occurs twice");
    }
    let layers: u64 = gpus.iter().map(|gpu| u64::from(gpu.layers)).sum();
    ensure!(layers == u64::from(n), "placements have {layers} layers on GPUs, but n_gpu_layers is {n}");
    let (paged, weights) = (plan.paging.map_or(0, |paging| paging.bytes), host.footprint.weights);
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
    // Without proportions, llama.cpp would divide the layers in proportion to the bytes that are free during the load.
    let fits = if gpus > 1 { count == gpus } else { count <= gpus };
    ensure!(fits, "tensor_split has {count} proportions for {gpus} GPUs");
    for (index, share) in split.iter().enumerate() {
        ensure!((0.0..=1e9).contains(share), "tensor_split[{index}] is {share}: a share is finite and not negative");
    }
    ensure!(
        count == 0 || split.iter().any(|&share| share > 0.0),
        "tensor_split is 0 everywhere, so that llama.cpp would split by the bytes that are free during the load"
    );
    OverrideRules::new(&plan.overrides, gpus).map_err(|error| format!("overrides: {error}"))?;
    Ok(())
}
