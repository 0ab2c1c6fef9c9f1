//! Written by a test of autoplace-cli: what `autoplace plan --emit llama-cpp-2` prints for plans of each kind.
#![allow(dead_code, reason = "it is compiled")]

#[rustfmt::skip]
mod on_a_gpu {
// Llama 8B: 20 of 33 layers on RTX 3050, as autoplace planned it
// for llama-cpp-2 0.1.160 and its llama-cpp-sys-2; examples/with-llama-cpp-2 of autoplace does it at run time
// llama-cpp-2 has no setter for n_outputs_max: it allocates the logits of all n_batch tokens, which takes more memory than was planned; plan with n_outputs_max(0)
use std::error::Error;
use std::num::NonZeroU32;

use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::list_llama_ggml_backend_devices;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;

fn load(backend: &LlamaBackend) -> Result<LlamaModel, Box<dyn Error>> {
    let names: &[&str] = &["CUDA0"];
    let all = list_llama_ggml_backend_devices();
    let index = |name: &&str| all.iter().find(|device| device.name == *name).map(|device| device.index);
    let devices: Option<Vec<usize>> = names.iter().map(index).collect();
    let devices = devices.ok_or("a GPU of the plan is not here")?;
    let params = LlamaModelParams::default()
        .with_n_gpu_layers(20)
        .with_devices(&devices)?;
    Ok(LlamaModel::load_from_file(backend, "/models/llama 8b.gguf", &params)?)
}

fn context_params() -> LlamaContextParams {
    LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(8192))
        .with_n_batch(2048)
        .with_n_ubatch(512)
        .with_n_seq_max(1)
        .with_type_k(KvCacheType::F16)
        .with_type_v(KvCacheType::F16)
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO)
        .with_offload_kqv(true)
        .with_op_offload(true)
        .with_swa_full(false)
        .with_kv_unified(false)
}
}

#[rustfmt::skip]
mod overridden {
// Llama 8B: 20 of 33 layers on RTX 3050, as autoplace planned it
// for llama-cpp-2 0.1.160 and its llama-cpp-sys-2; examples/with-llama-cpp-2 of autoplace does it at run time
// llama-cpp-2 has no setter for n_outputs_max: it allocates the logits of all n_batch tokens, which takes more memory than was planned; plan with n_outputs_max(0)
use std::error::Error;
use std::num::NonZeroU32;
use std::pin::pin;

use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::list_llama_ggml_backend_devices;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;

fn load(backend: &LlamaBackend) -> Result<LlamaModel, Box<dyn Error>> {
    let names: &[&str] = &["CUDA0"];
    let all = list_llama_ggml_backend_devices();
    let index = |name: &&str| all.iter().find(|device| device.name == *name).map(|device| device.index);
    let devices: Option<Vec<usize>> = names.iter().map(index).collect();
    let devices = devices.ok_or("a GPU of the plan is not here")?;
    let params = LlamaModelParams::default()
        .with_n_gpu_layers(20)
        .with_use_mmap(false)
        .with_devices(&devices)?;
    let mut params = pin!(params);
    params.as_mut().add_cpu_buft_override(c"blk\\.1\\.ffn");
    Ok(LlamaModel::load_from_file(backend, "/models/llama 8b.gguf", &params)?)
}

fn context_params() -> LlamaContextParams {
    LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(8192))
        .with_n_batch(2048)
        .with_n_ubatch(512)
        .with_n_seq_max(4)
        .with_type_k(KvCacheType::Q8_0)
        .with_type_v(KvCacheType::Q4_0)
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED)
        .with_offload_kqv(false)
        .with_op_offload(false)
        .with_swa_full(true)
        .with_kv_unified(false)
}
}

#[rustfmt::skip]
mod on_the_host {
// Llama 8B: on the host, as autoplace planned it
// for llama-cpp-2 0.1.160 and its llama-cpp-sys-2; examples/with-llama-cpp-2 of autoplace does it at run time
// llama-cpp-2 has no setter for n_outputs_max: it allocates the logits of all n_batch tokens, which takes more memory than was planned; plan with n_outputs_max(0)
use std::error::Error;
use std::num::NonZeroU32;

use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;

fn load(backend: &LlamaBackend) -> Result<LlamaModel, Box<dyn Error>> {
    // None: without a list llama.cpp takes all GPUs.
    let devices: [usize; 0] = [];
    let params = LlamaModelParams::default()
        .with_n_gpu_layers(0)
        .with_devices(&devices)?;
    Ok(LlamaModel::load_from_file(backend, "/models/llama 8b.gguf", &params)?)
}

fn context_params() -> LlamaContextParams {
    LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(8192))
        .with_n_batch(2048)
        .with_n_ubatch(512)
        .with_n_seq_max(1)
        .with_type_k(KvCacheType::F16)
        .with_type_v(KvCacheType::F16)
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO)
        .with_offload_kqv(true)
        .with_op_offload(true)
        .with_swa_full(false)
        .with_kv_unified(false)
}
}

#[rustfmt::skip]
mod elsewhere {
// Llama 8B: 20 of 33 layers on RTX 3050, as autoplace planned it
// for llama-cpp-2 0.1.160 and its llama-cpp-sys-2; examples/with-llama-cpp-2 of autoplace does it at run time
// llama-cpp-2 has no setter for n_outputs_max: it allocates the logits of all n_batch tokens, which takes more memory than was planned; plan with n_outputs_max(0)
use std::error::Error;
use std::num::NonZeroU32;

use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;

/// The plan's GPU is not here: give the index of yours, from `list_llama_ggml_backend_devices()`.
fn load(backend: &LlamaBackend, devices: [usize; 1]) -> Result<LlamaModel, Box<dyn Error>> {
    let params = LlamaModelParams::default()
        .with_n_gpu_layers(20)
        .with_devices(&devices)?;
    Ok(LlamaModel::load_from_file(backend, "/models/llama 8b.gguf", &params)?)
}

fn context_params() -> LlamaContextParams {
    LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(8192))
        .with_n_batch(2048)
        .with_n_ubatch(512)
        .with_n_seq_max(1)
        .with_type_k(KvCacheType::F16)
        .with_type_v(KvCacheType::F16)
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO)
        .with_offload_kqv(true)
        .with_op_offload(true)
        .with_swa_full(false)
        .with_kv_unified(false)
}
}
