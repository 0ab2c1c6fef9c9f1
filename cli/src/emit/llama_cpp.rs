//! Translates a plan into flags of `llama-server`. They are those of llama.cpp's common/arg.cpp, in the version that
//! this crate builds.

use autoplace::memory::{FlashAttention, Pooling};
use autoplace::plan::Plan;

use super::{
    HostParts, applying, cannot, comment, devices, host_parts, kv_type, mapped, override_tensor, said, tensor_split,
};

const MIB: u64 = 1 << 20;

pub(super) fn emit(plan: &Plan, path: &str) -> Result<String, String> {
    let context = &plan.context;
    let devices = devices(plan);
    if devices.iter().flatten().any(|device| device.contains(',')) {
        return cannot("devices with a comma in their names");
    }
    let flash_attn = match context.flash_attn {
        FlashAttention::Auto => "auto",
        FlashAttention::On => "on",
        FlashAttention::Off => "off",
    };
    let cache = context.moe_cache_size;
    if !cache.is_multiple_of(MIB) {
        return cannot(format_args!("a cache of experts of {cache} bytes: it takes whole MiB"));
    }
    let (several, predicts) = (context.n_seq_max > 1, context.mtp);
    let drafted = (context.n_outputs_max / context.n_seq_max.max(1)).saturating_sub(1).max(1);
    let (parts, patterns) = match host_parts(plan) {
        Some(parts) => (parts, None),
        None => (HostParts::default(), override_tensor(plan)?),
    };
    // Flags and their values. A switch has an empty value.
    let flags = [
        // With this flag, llama.cpp's own fit does not change the plan's values.
        ("-fit", said(true, "off")),
        ("-ngl", said(true, plan.n_gpu_layers)),
        ("--device", devices.as_ref().map(|names| if names.is_empty() { "none".to_owned() } else { names.join(",") })),
        ("-ts", tensor_split(plan)),
        ("--cpu-moe", said(parts.experts, "")),
        ("--n-cpu-moe", said(parts.experts_of > 0, parts.experts_of)),
        ("--n-cpu-ffn", said(parts.dense_of > 0, parts.dense_of)),
        ("-ot", patterns),
        ("--moe-cache-mib", said(cache > 0, cache / MIB)),
        ("-c", said(true, context.n_ctx)),
        ("-b", said(true, context.n_batch)),
        ("-ub", said(true, context.n_ubatch)),
        // The number is always written. Without it, the server would share one cache among four slots.
        ("-np", said(true, context.n_seq_max)),
        ("--kv-unified", said(several && context.kv_unified, "")),
        ("--no-kv-unified", said(several && !context.kv_unified, "")),
        ("-ctk", said(true, kv_type(context.type_k))),
        ("-ctv", said(true, kv_type(context.type_v))),
        ("-fa", said(true, flash_attn)),
        ("--embeddings", said(context.embeddings.is_some(), "")),
        (
            "--pooling",
            context.embeddings.filter(|&pooling| pooling != Pooling::Model).map(|pooling| pooling.to_string()),
        ),
        ("--spec-type", said(predicts, "draft-mtp")),
        ("--spec-draft-n-max", said(predicts, drafted)),
        ("--no-kv-offload", said(!context.offload_kqv, "")),
        ("--no-op-offload", said(!context.op_offload, "")),
        ("--swa-full", said(context.swa_full, "")),
        ("--no-repack", said(!context.repack, "")),
        ("--load-mode", said(!mapped(plan), "none")),
    ];
    let notes = [
        (
            devices.is_none(),
            "the plan's GPUs are not in this machine: if the other machine has further GPUs, name the plan's in this order with --device (llama-server --list-devices)",
        ),
        (
            context.mtp,
            "llama-server sizes the context that predicts further tokens by itself, and may take more for it than the plan does",
        ),
        (
            context.n_outputs_max != 0,
            "llama-server allocates the logits of one token per sequence, as planned; llama-completion, and llama-server from before mid-2026, allocate the logits of a whole batch, which takes more memory",
        ),
        (
            true,
            "in addition to the planned memory, llama-server keeps up to 8 GiB of earlier prompts in the host's memory: --cache-ram 0 turns that off",
        ),
    ];
    let notes: Vec<String> = applying(&notes).map(str::to_owned).collect();
    let words = flags.iter().filter_map(|(flag, value)| Some([*flag, value.as_deref()?]));
    let words = words.flatten().filter(|word| !word.is_empty());
    // The words are quoted for a POSIX shell.
    match shlex::try_join(["llama-server", "-m", path].into_iter().chain(words)) {
        Ok(line) => Ok(format!("{}{line}\n", comment("#", plan, &notes))),
        Err(_) => Err("cannot be given an argument that contains a NUL".to_owned()),
    }
}
