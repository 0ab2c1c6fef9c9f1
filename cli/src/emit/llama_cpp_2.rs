//! Translates a plan into Rust code for the crate llama-cpp-2, version 0.1.160. The code builds the model's parameters,
//! loads the model and builds the context's parameters. examples/with-llama-cpp-2 compiles the output.

use autoplace::memory::{FlashAttention, Place};
use autoplace::plan::Plan;

use super::{cannot, comment, devices, mapped};

pub(super) fn emit(plan: &Plan, path: &str) -> Result<String, String> {
    let context = &plan.context;
    if plan.gpus().count() > 1 {
        return cannot("how several GPUs share the layers: there is no setter for tensor_split");
    }
    if !context.repack {
        return cannot("leaving the CPU's weights in the file's layout: there is no setter for use_extra_bufts");
    }
    let mut notes = vec![
        "for llama-cpp-2 0.1.160 and its llama-cpp-sys-2; examples/with-llama-cpp-2 of autoplace does it at run time"
            .to_owned(),
    ];
    if context.n_outputs_max != 0 {
        notes.push(
            "llama-cpp-2 has no setter for n_outputs_max: it allocates the logits of all n_batch tokens, which takes more memory than was planned; plan with n_outputs_max(0)".to_owned(),
        );
    }
    let comment = comment("//", plan, &notes);
    let overrides = overrides(plan)?;
    let (pin, pinned) = match overrides.as_str() {
        "" => ("", ""),
        _ => ("use std::pin::pin;\n", "    let mut params = pin!(params);\n"),
    };
    let devices = devices(plan);
    let list = match devices.as_deref() {
        Some([_, ..]) => "use llama_cpp_2::list_llama_ggml_backend_devices;\n",
        _ => "",
    };
    let load = match devices.as_deref() {
        Some([]) => {
            format!("{LOAD}    // None: without a list llama.cpp takes all GPUs.\n    let devices: [usize; 0] = [];\n")
        }
        Some(names) => format!("{LOAD}    let names: &[&str] = &{names:?};\n{FIND_DEVICES}"),
        None => LOAD_ON.to_owned(),
    };
    let mmap = if mapped(plan) { "" } else { "        .with_use_mmap(false)\n" };
    let flash_attn = match context.flash_attn {
        FlashAttention::Auto => "AUTO",
        FlashAttention::On => "ENABLED",
        FlashAttention::Off => "DISABLED",
    };
    Ok(format!(
        "\
{comment}use std::error::Error;
use std::num::NonZeroU32;
{pin}
use llama_cpp_2::context::params::{{KvCacheType, LlamaContextParams}};
{list}use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;

{load}    let params = LlamaModelParams::default()
        .with_n_gpu_layers({n_gpu_layers})
{mmap}        .with_devices(&devices)?;
{pinned}{overrides}    Ok(LlamaModel::load_from_file(backend, {path:?}, &params)?)
}}

fn context_params() -> LlamaContextParams {{
    LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new({n_ctx}))
        .with_n_batch({n_batch})
        .with_n_ubatch({n_ubatch})
        .with_n_seq_max({n_seq_max})
        .with_type_k(KvCacheType::{type_k})
        .with_type_v(KvCacheType::{type_v})
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_{flash_attn})
        .with_offload_kqv({offload_kqv})
        .with_op_offload({op_offload})
        .with_swa_full({swa_full})
        .with_kv_unified({kv_unified})
}}
",
        n_gpu_layers = plan.n_gpu_layers,
        n_ctx = context.n_ctx,
        n_batch = context.n_batch,
        n_ubatch = context.n_ubatch,
        n_seq_max = context.n_seq_max,
        type_k = context.type_k,
        type_v = context.type_v,
        offload_kqv = context.offload_kqv,
        op_offload = context.op_offload,
        swa_full = context.swa_full,
        kv_unified = context.kv_unified,
    ))
}

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

/// One line of code for each pattern of weights that stay on the CPU.
fn overrides(plan: &Plan) -> Result<String, String> {
    let lines = plan.overrides.iter().map(|rule| {
        let refused = |why: &str| cannot(format_args!("the tensor override `{}`: {why}", rule.pattern));
        if rule.place != Place::Host {
            return refused("it moves weights to the CPU only");
        }
        if !rule.pattern.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return refused("it takes printable ASCII only");
        }
        Ok(format!("    params.as_mut().add_cpu_buft_override(c{:?});\n", rule.pattern))
    });
    lines.collect()
}
