//! Translates a plan into the load configuration of LM Studio's SDKs (`LLMLoadModelConfig` in lmstudio-js), as JSON
//! after some comments.

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Plan;
use serde_json::{Value, json};

use super::{alone, applying, cannot, comment, kv_type, mapped, n_ubatch};

pub(super) fn emit(plan: &Plan) -> Result<String, String> {
    let context = &plan.context;
    if !plan.overrides.is_empty() {
        return cannot("which tensors of a layer stay on the host");
    }
    if !plan.tensor_split.is_empty() {
        return cannot("how many layers go to which of several GPUs");
    }
    let ratio = ratio(plan);
    let config = json!({
        "gpu": { "ratio": ratio },
        "contextLength": context.n_ctx,
        "evalBatchSize": n_ubatch(plan),
        "flashAttention": context.flash_attn != FlashAttention::Off,
        "offloadKVCacheToGpu": context.offload_kqv,
        "tryMmap": mapped(plan),
        "llamaKCacheQuantizationType": cache(context.type_k)?,
        "llamaVCacheQuantizationType": cache(context.type_v)?,
    });
    let mut notes = vec![
        "this is the config of `client.llm.load(KEY, { config })` in LM Studio's SDKs; without an SDK, enter the same values in the model's load settings".to_owned(),
        format!("`lms load KEY --gpu {ratio} --context-length {}` sets the first two values", context.n_ctx),
        format!(
            "LM Studio itself converts the ratio to layers: {} of {} are planned; check in its log that it uses this number, and that automatic fitting is off",
            plan.n_gpu_layers,
            plan.layers()
        ),
    ];
    notes.extend(alone(plan, "LM Studio", |_| "turn the others off in its hardware settings".to_owned()));
    if context.flash_attn == FlashAttention::Auto {
        notes.push(
            "LM Studio has no `auto` for flash attention: turn it off if a device does not support it".to_owned(),
        );
    }
    let lacking = [
        (context.n_seq_max > 1, "several sequences (newer versions have a separate setting)"),
        (context.n_batch != n_ubatch(plan), "an n_batch that differs from n_ubatch"),
        (
            context.n_outputs_max != 0,
            "fewer logits than one per token of a batch: it may allocate more memory than was planned",
        ),
        (!context.op_offload, "keeping large batches off the GPU (op_offload off)"),
        (!context.repack, "leaving the CPU's weights in the file's layout (repack off)"),
        (
            context.swa_full,
            "the whole context of sliding windows (swa_full): its cache keeps the windows alone, so it is smaller, and fewer tokens can be rolled back",
        ),
    ];
    notes.extend(applying(&lacking).map(|what| format!("LM Studio has no setting here for {what}")));
    Ok(format!("{}{config:#}\n", comment("#", plan, &notes)))
}

/// The type of a cache; `false` stands for 16-bit floats.
fn cache(ty: KvType) -> Result<Value, String> {
    match ty {
        KvType::F16 => Ok(false.into()),
        // LM Studio lacks this type (llmLlamaCacheQuantizationTypes).
        KvType::BF16 => cannot("a cache of bf16"),
        ty => Ok(kv_type(ty).into()),
    }
}

/// The share of the layers that are on the GPU, rounded up to four digits. The rounding is too small to add a layer.
fn ratio(plan: &Plan) -> f64 {
    let layers = u64::from(plan.layers().max(1));
    let parts = (u64::from(plan.n_gpu_layers) * 10_000).div_ceil(layers).min(10_000);
    u32::try_from(parts).map_or(1.0, f64::from) / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::{Plan, ratio};
    use test_support::plans::{host_plan, plan};

    #[test]
    fn a_ratio_yields_the_planned_layers_with_any_rounding() {
        let mut plan: Plan = plan();
        for layers in 2..=513_u32 {
            for n in 0..=layers {
                (plan.model.blocks, plan.n_gpu_layers) = (layers - 1, n);
                let share = ratio(&plan) * f64::from(layers);
                // If the program rounds the product, the result is the planned number. If it truncates the product, the
                // result is the planned number or one less, but never one more.
                assert_eq!(share.round(), f64::from(n));
                assert!(share < f64::from(n) + 1.0);
            }
        }
        assert_eq!(ratio(&host_plan()), 0.0);
    }
}
