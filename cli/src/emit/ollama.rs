//! Ollama: a Modelfile, and the environment of `ollama serve` for what a Modelfile has no parameter for.
//!
//! Since 2026 Ollama runs `llama-server` and hands it `num_gpu` as `-ngl`, the output layer counted, `num_ctx` times
//! the number of sequences as `-c`, `num_batch` as both `-b` and `-ub`, and its own environment (ollama,
//! llm/llama_server.go, startLlamaServer, appendBatchArgs and SetupLlamaServerCommandEnv). So flags without a parameter
//! can be given as llama.cpp's variables.

use std::path::Path;

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Plan;

use super::{EmitError, Tool, comment, devices, kv_type, mapped, model_path, n_ubatch, override_tensor, tensor_split};

const TOOL: Tool = Tool::Ollama;

pub(super) fn emit(plan: &Plan) -> Result<String, EmitError> {
    let context = &plan.context;
    let path = path(plan)?;
    // Without a sign of a path it could be the name of a model.
    let here = if Path::new(path).is_relative() && !path.starts_with('.') { "./" } else { "" };
    let mut notes = Vec::new();
    if path.contains("-00001-of-") {
        notes.push("Ollama takes a model of one file: join the parts with llama-gguf-split --merge".to_owned());
    }
    if context.n_batch != n_ubatch(plan) {
        notes.push(format!(
            "Ollama has one size for both kinds of batches: it is the plan's n_ubatch, and n_batch is not {}",
            context.n_batch
        ));
    }
    if context.kv_unified && context.n_seq_max > 1 {
        notes.push("Ollama gives every sequence its own share of the context, the plan one cache to all".to_owned());
    }
    if !context.op_offload {
        notes.push("Ollama cannot be told to keep large batches off the GPU (op_offload)".to_owned());
    }
    notes.push("Ollama before May 2026 places layers by its own rules and may not follow the plan".to_owned());
    let variables = variables(plan)?;
    if !variables.is_empty() {
        notes.push("no parameter says the rest of the plan; start `ollama serve` with these variables, which hold for all its models:".to_owned());
        notes.extend(variables.iter().map(|variable| format!("  {variable}")));
    }
    let sequences = context.n_seq_max.max(1);
    let mut text = comment("#", plan, &notes);
    text.push_str(&format!(
        "FROM {here}{path}\nPARAMETER num_gpu {}\nPARAMETER num_ctx {}\nPARAMETER num_batch {}\n",
        plan.n_gpu_layers,
        context.n_ctx / sequences,
        n_ubatch(plan)
    ));
    if !mapped(plan) {
        text.push_str("PARAMETER use_mmap false\n");
    }
    Ok(text)
}

/// The path, if a line of a Modelfile can hold it: it ends with the line, is trimmed, and may be quoted.
fn path(plan: &Plan) -> Result<&str, EmitError> {
    let path = model_path(plan, TOOL)?;
    let plain = !path.contains(char::is_control) && path.trim() == path && !path.starts_with('"');
    if plain && !path.is_empty() {
        return Ok(path);
    }
    Err(EmitError::Path { tool: TOOL, path: format!("{path:?}"), reason: "a line of a Modelfile cannot hold it" })
}

/// The variables of the server, quoted for a POSIX shell.
fn variables(plan: &Plan) -> Result<Vec<String>, EmitError> {
    let context = &plan.context;
    let mut all: Vec<(&str, String)> = Vec::new();
    if context.n_seq_max > 1 {
        all.push(("OLLAMA_NUM_PARALLEL", context.n_seq_max.to_string()));
    }
    match context.flash_attn {
        FlashAttention::Auto => {}
        FlashAttention::On => all.push(("OLLAMA_FLASH_ATTENTION", "1".to_owned())),
        FlashAttention::Off => all.push(("OLLAMA_FLASH_ATTENTION", "0".to_owned())),
    }
    match (context.type_k, context.type_v) {
        (KvType::F16, KvType::F16) => {}
        // Those that its documentation names.
        (keys @ (KvType::Q8_0 | KvType::Q4_0), values) if keys == values => {
            all.push(("OLLAMA_KV_CACHE_TYPE", kv_type(keys)));
        }
        (keys, values) => {
            all.push(("LLAMA_ARG_CACHE_TYPE_K", kv_type(keys)));
            all.push(("LLAMA_ARG_CACHE_TYPE_V", kv_type(values)));
        }
    }
    if let Some(proportions) = tensor_split(plan, ",") {
        all.push(("LLAMA_ARG_TENSOR_SPLIT", proportions));
        match devices(plan) {
            Some(devices) => all.push(("LLAMA_ARG_DEVICE", devices.join(","))),
            None => all.push(("LLAMA_ARG_DEVICE", "the GPUs in the plan's order".to_owned())),
        }
    }
    if let Some(overrides) = override_tensor(plan, TOOL)? {
        all.push(("LLAMA_ARG_OVERRIDE_TENSOR", overrides));
    }
    for (differs, variable, value) in [
        (!context.offload_kqv, "LLAMA_ARG_KV_OFFLOAD", "off"),
        (!context.repack, "LLAMA_ARG_REPACK", "off"),
        (context.swa_full, "LLAMA_ARG_SWA_FULL", "on"),
    ] {
        if differs {
            all.push((variable, value.to_owned()));
        }
    }
    let quoted = |(variable, value): (&str, String)| match shlex::try_quote(&value) {
        Ok(value) => Ok(format!("{variable}={value}")),
        Err(_) => Err(EmitError::Inexpressible { tool: TOOL, what: format!("a value of {variable} with a NUL") }),
    };
    all.into_iter().map(quoted).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::emit::{Tool, emit};
    use crate::test_plan::{host_plan, plan, two_gpus};
    use autoplace::memory::{FlashAttention, KvType, Place, TensorOverride};
    use autoplace::plan::Plan;

    fn text(plan: &Plan) -> String {
        emit(plan, Tool::Ollama).unwrap()
    }

    /// What Ollama reads: all lines but comments.
    fn settings(plan: &Plan) -> Vec<String> {
        let text = text(plan);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn a_modelfile_counts_the_output_layer_as_llama_cpp_does() {
        assert_eq!(
            settings(&plan()),
            ["FROM /models/llama 8b.gguf", "PARAMETER num_gpu 20", "PARAMETER num_ctx 8192", "PARAMETER num_batch 512",]
        );
        assert!(settings(&host_plan()).contains(&"PARAMETER num_gpu 0".to_owned()));
    }

    #[test]
    fn a_relative_path_is_told_from_the_name_of_a_model() {
        for (path, from) in [("m.gguf", "./m.gguf"), ("../m.gguf", "../m.gguf"), ("/m.gguf", "/m.gguf")] {
            let mut plan = plan();
            plan.model.path = Some(PathBuf::from(path));
            assert_eq!(settings(&plan)[0], format!("FROM {from}"));
        }
    }

    #[test]
    fn the_context_is_that_of_one_sequence() {
        let mut plan = plan();
        plan.context.n_seq_max = 4;
        assert!(settings(&plan).contains(&"PARAMETER num_ctx 2048".to_owned()));
        assert!(text(&plan).contains("#   OLLAMA_NUM_PARALLEL=4\n"));
    }

    #[test]
    fn what_has_no_parameter_is_a_variable_of_the_server() {
        let mut plan = two_gpus();
        plan.overrides = vec![TensorOverride::new(r"blk\.1\.ffn", Place::Host)];
        let context = &mut plan.context;
        context.flash_attn = FlashAttention::On;
        (context.type_k, context.type_v) = (KvType::Q8_0, KvType::Q4_0);
        (context.offload_kqv, context.op_offload) = (false, false);
        (context.mmap, context.repack) = (false, false);
        let text = text(&plan);
        for line in [
            "#   OLLAMA_FLASH_ATTENTION=1\n",
            "#   LLAMA_ARG_CACHE_TYPE_K=q8_0\n",
            "#   LLAMA_ARG_CACHE_TYPE_V=q4_0\n",
            "#   LLAMA_ARG_TENSOR_SPLIT='12,8'\n",
            "#   LLAMA_ARG_DEVICE='CUDA1,CUDA0'\n",
            "#   LLAMA_ARG_OVERRIDE_TENSOR=\"blk\\\\.1\\\\.ffn=CPU\"\n",
            "#   LLAMA_ARG_KV_OFFLOAD=off\n",
            "#   LLAMA_ARG_REPACK=off\n",
            "# Ollama cannot be told to keep large batches off the GPU",
            "\nPARAMETER use_mmap false\n",
        ] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
        plan.context.type_v = KvType::Q8_0;
        assert!(emit(&plan, Tool::Ollama).unwrap().contains("#   OLLAMA_KV_CACHE_TYPE=q8_0\n"));
    }

    #[test]
    fn a_path_that_would_be_read_otherwise_is_refused() {
        for path in ["a\nPARAMETER num_gpu 99", " a.gguf", "a.gguf ", "\"a\".gguf", ""] {
            let mut plan = plan();
            plan.model.path = Some(PathBuf::from(path));
            assert!(emit(&plan, Tool::Ollama).is_err(), "{path:?}");
        }
    }
}
