//! LM Studio: the load configuration of its SDKs (`LLMLoadModelConfig` in lmstudio-js), as JSON under comments.

use serde::Serialize;

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Plan;

use super::{EmitError, Tool, comment, kv_type, mapped, model_path, n_ubatch};

const TOOL: Tool = Tool::LmStudio;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LoadModelConfig {
    gpu: Gpu,
    context_length: u32,
    eval_batch_size: u32,
    flash_attention: bool,
    #[serde(rename = "offloadKVCacheToGpu")]
    offload_kv_cache_to_gpu: bool,
    try_mmap: bool,
    #[serde(rename = "llamaKCacheQuantizationType")]
    keys: Cache,
    #[serde(rename = "llamaVCacheQuantizationType")]
    values: Cache,
}

#[derive(Serialize)]
struct Gpu {
    ratio: f64,
}

/// A type, or `false` for 16-bit floats.
#[derive(Serialize)]
#[serde(untagged)]
enum Cache {
    Plain(bool),
    Quantized(String),
}

pub(super) fn emit(plan: &Plan) -> Result<String, EmitError> {
    let context = &plan.context;
    let cannot = |what: &str| EmitError::Inexpressible { tool: TOOL, what: what.to_owned() };
    model_path(plan, TOOL)?;
    if !plan.overrides.is_empty() {
        return Err(cannot("which tensors of a layer stay on the host"));
    }
    if !plan.tensor_split.is_empty() {
        return Err(cannot("how many layers go to which of several GPUs"));
    }
    let cache = |ty| match ty {
        KvType::F16 => Ok(Cache::Plain(false)),
        // Not among its types (llmLlamaCacheQuantizationTypes).
        KvType::BF16 => Err(cannot("a cache of bf16")),
        ty => Ok(Cache::Quantized(kv_type(ty))),
    };
    let ratio = ratio(plan);
    let config = LoadModelConfig {
        gpu: Gpu { ratio },
        context_length: context.n_ctx,
        eval_batch_size: n_ubatch(plan),
        flash_attention: context.flash_attn != FlashAttention::Off,
        offload_kv_cache_to_gpu: context.offload_kqv,
        try_mmap: mapped(plan),
        keys: cache(context.type_k)?,
        values: cache(context.type_v)?,
    };
    let mut notes = vec![
        "the config of `client.llm.load(KEY, { config })` in LM Studio's SDKs; the same by hand in the model's load settings".to_owned(),
        format!(
            "of it `lms load KEY --gpu {ratio} --context-length {}` sets the first two",
            context.n_ctx
        ),
        format!(
            "LM Studio makes layers of the ratio itself: {} of {} are planned; see that its log says so, and that automatic fitting is off",
            plan.n_gpu_layers,
            plan.layers()
        ),
    ];
    if context.flash_attn == FlashAttention::Auto {
        notes.push("LM Studio has no `auto` for flash attention: turn it off where a device cannot".to_owned());
    }
    for (differs, what) in [
        (context.n_seq_max > 1, "several sequences (a setting of its own in newer versions)"),
        (context.n_batch != n_ubatch(plan), "n_batch apart from n_ubatch"),
        (context.n_outputs_max != 0, "to make room for the logits of few tokens only, which may take more"),
        (!context.op_offload, "to keep large batches off the GPU (op_offload)"),
        (!context.repack, "not to rearrange weights for the CPU (repack)"),
        (context.swa_full, "to keep more than the sliding windows (swa_full), which takes less and goes back less far"),
    ] {
        if differs {
            notes.push(format!("LM Studio cannot be told here: {what}"));
        }
    }
    // Of numbers, flags and short texts: it cannot fail.
    let json = serde_json::to_string_pretty(&config).unwrap_or_default();
    Ok(format!("{}{json}\n", comment("#", plan, &notes)))
}

/// The share of the layers, rounded up to four digits: by too little to become a layer more.
fn ratio(plan: &Plan) -> f64 {
    let layers = u64::from(plan.layers().max(1));
    let parts = (u64::from(plan.n_gpu_layers) * 10_000).div_ceil(layers).min(10_000);
    u32::try_from(parts).map_or(1.0, f64::from) / 10_000.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ratio;
    use crate::emit::{Tool, emit};
    use crate::test_plan::{host_plan, plan, two_gpus};
    use autoplace::memory::{FlashAttention, KvType, Place, TensorOverride};
    use autoplace::plan::Plan;

    fn config(plan: &Plan) -> serde_json::Value {
        let text = emit(plan, Tool::LmStudio).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        serde_json::from_str(&lines.collect::<String>()).unwrap()
    }

    #[test]
    fn the_config_is_that_of_the_sdk() {
        let expected = json!({
            "gpu": { "ratio": 0.6061 },
            "contextLength": 8192,
            "evalBatchSize": 512,
            "flashAttention": true,
            "offloadKVCacheToGpu": true,
            "tryMmap": true,
            "llamaKCacheQuantizationType": false,
            "llamaVCacheQuantizationType": false,
        });
        assert_eq!(config(&plan()), expected);
    }

    #[test]
    fn types_of_the_cache_are_named_or_refused() {
        let mut plan = plan();
        (plan.context.type_k, plan.context.type_v) = (KvType::Q8_0, KvType::IQ4_NL);
        plan.context.flash_attn = FlashAttention::Off;
        let config = config(&plan);
        assert_eq!(config["llamaKCacheQuantizationType"], "q8_0");
        assert_eq!(config["llamaVCacheQuantizationType"], "iq4_nl");
        assert_eq!(config["flashAttention"], false);
        plan.context.type_k = KvType::BF16;
        assert!(emit(&plan, Tool::LmStudio).unwrap_err().to_string().contains("bf16"));
    }

    #[test]
    fn a_ratio_gives_back_the_layers_however_it_is_rounded() {
        for layers in 2..=513_u32 {
            for n in 0..=layers {
                let mut plan = plan();
                (plan.model.blocks, plan.n_gpu_layers) = (layers - 1, n);
                let share = ratio(&plan) * f64::from(layers);
                // To the nearest it is the planned number; cut off it may be one less, and is never one more.
                assert_eq!(share.round(), f64::from(n));
                assert!(share < f64::from(n) + 1.0);
            }
        }
        assert_eq!(ratio(&host_plan()), 0.0);
    }

    #[test]
    fn what_it_cannot_place_is_refused_by_name() {
        let error = emit(&two_gpus(), Tool::LmStudio).unwrap_err().to_string();
        assert!(error.contains("lm-studio cannot be told how many layers"), "{error}");
        let mut plan = plan();
        plan.overrides = vec![TensorOverride::new("exps", Place::Host)];
        let error = emit(&plan, Tool::LmStudio).unwrap_err().to_string();
        assert!(error.contains("which tensors"), "{error}");
    }
}
