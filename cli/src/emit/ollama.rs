//! Translates a plan for Ollama, into a Modelfile and environment variables of `ollama serve`. The variables are for
//! settings that a Modelfile does not have.
//!
//! Since 2026 Ollama runs `llama-server`. To that program it passes `num_gpu` as `-ngl` (with the output layer),
//! `num_ctx` times the number of sequences as `-c`, `num_batch` as both `-b` and `-ub`, and Ollama's own environment
//! (ollama, llm/llama_server.go, startLlamaServer, appendBatchArgs and SetupLlamaServerCommandEnv). So other settings
//! can be passed through llama.cpp's environment variables.

use std::path::Path;

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Plan;

use super::{alone, applying, comment, devices, kv_type, mapped, n_ubatch, override_tensor, said, tensor_split};

pub(super) fn emit(plan: &Plan, path: &str) -> Result<String, String> {
    let context = &plan.context;
    // In a Modelfile, a path extends to the end of its line. Ollama removes white space and quotes around it.
    if path.is_empty() || path.contains(char::is_control) || path.trim() != path || path.starts_with('"') {
        return Err(format!("cannot be given the path {path:?}: a line of a Modelfile cannot contain it"));
    }
    // Ollama could take a path without a folder for the name of a model. So `./` is put before it. `has_root` also
    // covers `/m.gguf` on Windows, which is relative to a drive.
    let here = if !Path::new(path).has_root() && !path.starts_with('.') { "./" } else { "" };
    let one_size = format!(
        "Ollama has only one batch size: it is set to the plan's n_ubatch, so n_batch is no longer {}",
        context.n_batch
    );
    let notes = [
        (
            path.contains("-00001-of-"),
            "Ollama loads models from a single file: join the parts with llama-gguf-split --merge",
        ),
        (context.n_batch != n_ubatch(plan), &*one_size),
        (
            context.kv_unified && context.n_seq_max > 1,
            "Ollama gives every sequence its own share of the context, but the plan has one cache for all",
        ),
        (!context.op_offload, "Ollama has no setting to keep large batches off the GPU (op_offload off)"),
        (true, "Ollama before May 2026 places layers by its own rules and may not follow the plan"),
    ];
    let mut notes: Vec<String> = applying(&notes).map(str::to_owned).collect();
    notes.extend(alone(plan, "Ollama", |gpu| format!("start `ollama serve` with LLAMA_ARG_DEVICE={gpu}")));
    let variables = variables(plan)?;
    if !variables.is_empty() {
        notes.push("no parameter expresses the rest of the plan; start `ollama serve` with these variables, which apply to all its models:".to_owned());
        notes.extend(variables.iter().map(|variable| format!("  {variable}")));
    }
    let mmap = if mapped(plan) { "" } else { "PARAMETER use_mmap false\n" };
    Ok(format!(
        "{}FROM {here}{path}\nPARAMETER num_gpu {}\nPARAMETER num_ctx {}\nPARAMETER num_batch {}\n{mmap}",
        comment("#", plan, &notes),
        plan.n_gpu_layers,
        context.n_ctx / context.n_seq_max.max(1),
        n_ubatch(plan)
    ))
}

/// Environment variables for the server, quoted for a POSIX shell.
fn variables(plan: &Plan) -> Result<Vec<String>, String> {
    let context = &plan.context;
    let flash_attn = match context.flash_attn {
        FlashAttention::Auto => None,
        FlashAttention::On => Some("1"),
        FlashAttention::Off => Some("0"),
    };
    let (of_both, of_keys, of_values) = match (context.type_k, context.type_v) {
        (KvType::F16, KvType::F16) => (None, None, None),
        // The cache types that Ollama documents.
        (keys @ (KvType::Q8_0 | KvType::Q4_0), values) if keys == values => (Some(kv_type(keys)), None, None),
        (keys, values) => (None, Some(kv_type(keys)), Some(kv_type(values))),
    };
    let split = tensor_split(plan);
    let devices = devices(plan).map_or_else(|| "the GPUs in the plan's order".to_owned(), |names| names.join(","));
    let all = [
        ("OLLAMA_NUM_PARALLEL", said(context.n_seq_max > 1, context.n_seq_max)),
        ("OLLAMA_FLASH_ATTENTION", flash_attn.map(str::to_owned)),
        ("OLLAMA_KV_CACHE_TYPE", of_both),
        ("LLAMA_ARG_CACHE_TYPE_K", of_keys),
        ("LLAMA_ARG_CACHE_TYPE_V", of_values),
        ("LLAMA_ARG_TENSOR_SPLIT", split.clone()),
        ("LLAMA_ARG_DEVICE", split.map(|_| devices)),
        ("LLAMA_ARG_OVERRIDE_TENSOR", override_tensor(plan)?),
        ("LLAMA_ARG_KV_OFFLOAD", said(!context.offload_kqv, "off")),
        ("LLAMA_ARG_REPACK", said(!context.repack, "off")),
        ("LLAMA_ARG_SWA_FULL", said(context.swa_full, "on")),
    ];
    let quoted = |(variable, value): (&str, String)| match shlex::try_quote(&value) {
        Ok(value) => Ok(format!("{variable}={value}")),
        Err(_) => Err(format!("cannot be given a value of {variable} that contains a NUL")),
    };
    all.into_iter().filter_map(|(variable, value)| Some(quoted((variable, value?)))).collect()
}
