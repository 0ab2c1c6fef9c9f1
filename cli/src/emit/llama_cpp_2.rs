//! The crate llama-cpp-2, as of 0.1.160: Rust that builds its parameters, loads the model and makes the context.

use std::fmt::Write;

use autoplace::memory::{FlashAttention, KvType, Place};
use autoplace::plan::Plan;

use super::{EmitError, Tool, comment, devices, mapped, model_path};

const TOOL: Tool = Tool::LlamaCpp2;

pub(super) fn emit(plan: &Plan) -> Result<String, EmitError> {
    let context = &plan.context;
    let cannot = |what: String| EmitError::Inexpressible { tool: TOOL, what };
    let path = model_path(plan, TOOL)?;
    if plan.gpus().count() > 1 {
        return Err(cannot("how several GPUs share the layers: it has no setter for tensor_split".to_owned()));
    }
    if !context.repack {
        return Err(cannot("not to rearrange weights for the CPU: it has no setter for use_extra_bufts".to_owned()));
    }
    let mut notes = vec![
        "with llama-cpp-2 0.1.160 and its llama-cpp-sys-2; examples/with-llama-cpp-2 of autoplace does it at run time"
            .to_owned(),
    ];
    if context.n_outputs_max != 0 {
        notes.push(
            "llama-cpp-2 has no setter for n_outputs_max: it makes room for the logits of all n_batch tokens, which takes more than was planned; plan with n_outputs_max(0)".to_owned(),
        );
    }

    let mut code = comment("//", plan, &notes);
    let devices = devices(plan);
    let finds = devices.as_ref().is_some_and(|names| !names.is_empty());
    code.push_str("use std::error::Error;\nuse std::num::NonZeroU32;\n");
    if !plan.overrides.is_empty() {
        code.push_str("use std::pin::pin;\n");
    }
    code.push_str("\nuse llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};\n");
    if finds {
        code.push_str("use llama_cpp_2::list_llama_ggml_backend_devices;\n");
    }
    code.push_str(IMPORTS);
    match devices.as_deref() {
        Some([]) => {
            code.push_str(LOAD);
            code.push_str("    // None: without a list llama.cpp takes all GPUs.\n    let devices: [usize; 0] = [];\n");
        }
        Some(names) => {
            code.push_str(LOAD);
            line(&mut code, format_args!("    let names: &[&str] = &{names:?};"));
            code.push_str(FIND_DEVICES);
        }
        None => code.push_str(LOAD_ON),
    }
    code.push_str("    let params = LlamaModelParams::default()\n");
    line(&mut code, format_args!("        .with_n_gpu_layers({})", plan.n_gpu_layers));
    if !mapped(plan) {
        code.push_str("        .with_use_mmap(false)\n");
    }
    code.push_str("        .with_devices(&devices)?;\n");
    if !plan.overrides.is_empty() {
        code.push_str("    let mut params = pin!(params);\n");
    }
    for rule in &plan.overrides {
        let refused = |why| cannot(format!("the tensor override `{}`: {why}", rule.pattern));
        if rule.place != Place::Host {
            return Err(refused("it moves weights to the CPU only"));
        }
        if !rule.pattern.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err(refused("it takes printable ASCII only"));
        }
        line(&mut code, format_args!("    params.as_mut().add_cpu_buft_override(c{:?});", rule.pattern));
    }
    line(&mut code, format_args!("    Ok(LlamaModel::load_from_file(backend, {path:?}, &params)?)\n}}\n"));

    code.push_str("fn context_params() -> LlamaContextParams {\n    LlamaContextParams::default()\n");
    for (setter, value) in [
        ("n_ctx", format!("NonZeroU32::new({})", context.n_ctx)),
        ("n_batch", context.n_batch.to_string()),
        ("n_ubatch", context.n_ubatch.to_string()),
        ("n_seq_max", context.n_seq_max.to_string()),
        ("type_k", kv_type(context.type_k).to_owned()),
        ("type_v", kv_type(context.type_v).to_owned()),
        ("flash_attention_policy", flash_attention(context.flash_attn).to_owned()),
        ("offload_kqv", context.offload_kqv.to_string()),
        ("op_offload", context.op_offload.to_string()),
        ("swa_full", context.swa_full.to_string()),
        ("kv_unified", context.kv_unified.to_string()),
    ] {
        line(&mut code, format_args!("        .with_{setter}({value})"));
    }
    code.push_str("}\n");
    Ok(code)
}

const IMPORTS: &str = "\
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;

";

const LOAD: &str = "fn load(backend: &LlamaBackend) -> Result<LlamaModel, Box<dyn Error>> {\n";

const LOAD_ON: &str = "\
/// The plan's GPU is not here: give the index of yours, from `list_llama_ggml_backend_devices()`.
fn load(backend: &LlamaBackend, devices: [usize; 1]) -> Result<LlamaModel, Box<dyn Error>> {
";

const FIND_DEVICES: &str = "    let all = list_llama_ggml_backend_devices();
    let index = |name: &&str| all.iter().find(|device| device.name == *name).map(|device| device.index);
    let devices: Option<Vec<usize>> = names.iter().map(index).collect();
    let devices = devices.ok_or(\"a GPU of the plan is not here\")?;
";

fn line(code: &mut String, text: std::fmt::Arguments<'_>) {
    // A string takes all that is written.
    let _ = writeln!(code, "{text}");
}

const fn kv_type(ty: KvType) -> &'static str {
    match ty {
        KvType::F32 => "KvCacheType::F32",
        KvType::F16 => "KvCacheType::F16",
        KvType::BF16 => "KvCacheType::BF16",
        KvType::Q8_0 => "KvCacheType::Q8_0",
        KvType::Q5_0 => "KvCacheType::Q5_0",
        KvType::Q5_1 => "KvCacheType::Q5_1",
        KvType::Q4_0 => "KvCacheType::Q4_0",
        KvType::Q4_1 => "KvCacheType::Q4_1",
        KvType::IQ4_NL => "KvCacheType::IQ4_NL",
    }
}

const fn flash_attention(flash_attn: FlashAttention) -> &'static str {
    match flash_attn {
        FlashAttention::Auto => "llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO",
        FlashAttention::On => "llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED",
        FlashAttention::Off => "llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::emit::{Tool, emit};
    use crate::test_plan::{host_plan, plan, two_gpus};
    use autoplace::memory::{FlashAttention, KvType, Place, TensorOverride};
    use autoplace::plan::Plan;

    fn code(plan: &Plan) -> String {
        emit(plan, Tool::LlamaCpp2).unwrap()
    }

    #[track_caller]
    fn has(plan: &Plan, part: &str) {
        let code = code(plan);
        assert!(code.contains(part), "no {part:?} in {code}");
    }

    #[test]
    fn the_setters_are_given_the_plan() {
        let mut plan = plan();
        let context = &mut plan.context;
        context.n_batch = 1024;
        (context.type_k, context.type_v) = (KvType::Q8_0, KvType::BF16);
        context.flash_attn = FlashAttention::On;
        (context.offload_kqv, context.mmap) = (false, false);
        for part in [
            ".with_n_gpu_layers(20)\n",
            ".with_use_mmap(false)\n",
            "&[\"CUDA0\"];\n",
            ".with_n_ctx(NonZeroU32::new(8192))\n",
            ".with_n_batch(1024)\n",
            ".with_n_ubatch(512)\n",
            ".with_type_k(KvCacheType::Q8_0)\n",
            ".with_type_v(KvCacheType::BF16)\n",
            "LLAMA_FLASH_ATTN_TYPE_ENABLED)\n",
            ".with_offload_kqv(false)\n",
            ".with_op_offload(true)\n",
            "load_from_file(backend, \"/models/llama 8b.gguf\", &params)",
            "// llama-cpp-2 has no setter for n_outputs_max",
        ] {
            has(&plan, part);
        }
        plan.context.n_outputs_max = 0;
        assert!(!code(&plan).contains("has no setter for n_outputs_max"));
    }

    #[test]
    fn a_plan_for_the_host_uses_no_device() {
        has(&host_plan(), "let devices: [usize; 0] = [];");
    }

    #[test]
    fn a_gpu_that_is_not_there_is_asked_for() {
        let mut plan = plan();
        plan.placements[0].device = None;
        has(&plan, "fn load(backend: &LlamaBackend, devices: [usize; 1])");
    }

    #[test]
    fn paths_and_patterns_are_rust_literals() {
        let mut plan = plan();
        plan.model.path = Some(PathBuf::from("a\"b\\c\n.gguf"));
        plan.overrides = vec![TensorOverride::new(r"blk\.1\.", Place::Host)];
        has(&plan, r#"backend, "a\"b\\c\n.gguf", "#);
        has(&plan, r#"add_cpu_buft_override(c"blk\\.1\\.");"#);
    }

    #[test]
    fn what_it_has_no_setter_for_is_refused_by_name() {
        let refused = |plan: Plan, word: &str| {
            let error = emit(&plan, Tool::LlamaCpp2).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(two_gpus(), "tensor_split");
        let mut one = plan();
        one.context.repack = false;
        refused(one, "use_extra_bufts");
        let mut one = plan();
        one.overrides = vec![TensorOverride::new("a", Place::Gpu(0))];
        refused(one, "CPU only");
        let mut one = plan();
        one.overrides = vec![TensorOverride::new("\u{e9}", Place::Host)];
        refused(one, "ASCII");
    }
}
