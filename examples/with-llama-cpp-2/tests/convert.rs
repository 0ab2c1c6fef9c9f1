//! Converts plans of several kinds, and inspects llama-cpp-2's own parameters.

use std::path::{Path, PathBuf};

use autoplace_planner::gguf::Header;
use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use autoplace_planner::memory::{FlashAttention, KvType, Place, TensorOverride};
use autoplace_planner::plan::{Plan, Planner, Request};
use autoplace_planner::profile::ModelProfile;
use convert::Error;
use llama_cpp_2::context::params::KvCacheType;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaSplitMode;
use llama_cpp_2::{LlamaBackendDevice, LlamaBackendDeviceType, list_llama_ggml_backend_devices};

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/autoplace-demo-q8_0.gguf")
}

fn profile() -> ModelProfile {
    let header = Header::open(demo_model()).expect("the demo model is in the repository");
    ModelProfile::from_header(&header).expect("it is a model")
}

fn plan_on(machine: &Machine, request: Request) -> Plan {
    let profile = profile();
    let planner = Planner::new(&profile, machine).request(request);
    planner.plan().expect("it fits")
}

fn host() -> Machine {
    Machine::new(Host::new(gib(16)))
}

fn card(device: &str) -> Gpu {
    Gpu::new("NVIDIA GeForce RTX 4090").total(gib(24)).free(gib(22)).device(device)
}

fn host_plan() -> Plan {
    plan_on(&host(), convert::request())
}

fn gpu_plan(card: Gpu) -> Plan {
    plan_on(&host().with_gpu(card), convert::request())
}

/// A card in llama-cpp-2's list. The index is the CPU's, because the CPU is the only device that always exists.
fn listed(name: &str, description: &str) -> LlamaBackendDevice {
    LlamaBackendDevice {
        index: cpu().index,
        name: name.to_owned(),
        description: description.to_owned(),
        backend: "CUDA".to_owned(),
        memory_total: 24 << 30,
        memory_free: 22 << 30,
        device_type: LlamaBackendDeviceType::Gpu,
    }
}

fn cpu() -> LlamaBackendDevice {
    list_llama_ggml_backend_devices()
        .into_iter()
        .find(|device| device.device_type == LlamaBackendDeviceType::Cpu)
        .expect("every build has the CPU")
}

/// The parameter for which the error says that there is no setter.
#[track_caller]
fn no_setter<T: std::fmt::Debug>(converted: Result<T, Error>) -> &'static str {
    match converted {
        Err(Error::NoSetter { parameter, .. }) => parameter,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plan_on_the_host_is_given_no_devices() {
    let plan = host_plan();
    let params = convert::model_params(&plan, &[cpu(), listed("CUDA0", "a card")]).unwrap();
    assert_eq!(params.n_gpu_layers(), 0);
    assert!(params.devices().is_empty());
    assert!(params.tensor_buft_override_patterns().is_empty());
    assert!(params.use_mmap());
    assert!(!params.use_mlock());
}

#[test]
fn a_plan_on_a_gpu_names_its_device_and_its_layers() {
    let plan = gpu_plan(card("CUDA1"));
    assert_eq!(plan.n_gpu_layers, plan.layers());
    let mut other = listed("CUDA0", "NVIDIA GeForce RTX 4090");
    other.index = 77;
    let one = listed("CUDA1", "NVIDIA GeForce RTX 4090");
    let params = convert::model_params(&plan, &[other, one.clone()]).unwrap();
    assert_eq!(params.n_gpu_layers(), i32::try_from(plan.layers()).unwrap());
    assert_eq!(params.devices(), [one.index]);
    assert_eq!(params.split_mode(), Ok(LlamaSplitMode::Layer));
}

#[test]
fn a_plan_for_a_card_without_a_device_finds_it_by_its_name() {
    let mut plan = gpu_plan(card("CUDA0"));
    plan.placements[0].device = None;
    let card = listed("CUDA3", "NVIDIA GeForce RTX 4090");
    let mut other = listed("CUDA0", "NVIDIA GeForce RTX 3060");
    other.index = 77;
    let params = convert::model_params(&plan, &[other.clone(), card.clone()]).unwrap();
    assert_eq!(params.devices(), [card.index]);

    let error = convert::model_params(&plan, &[card.clone(), card]).unwrap_err();
    assert!(matches!(error, Error::SeveralDevices { .. }), "{error}");
    let error = convert::model_params(&plan, &[other]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plan is for RTX 4090 (CUDA), but llama-cpp-2 has CUDA0 (NVIDIA GeForce RTX 3060)"
    );
}

#[test]
fn a_device_that_llama_cpp_2_does_not_have_is_an_error() {
    let error = convert::model_params(&gpu_plan(card("CUDA0")), &[]).unwrap_err();
    assert_eq!(error.to_string(), "the plan is for CUDA0 (CUDA), but llama-cpp-2 has no device");
}

#[test]
fn a_plan_on_two_gpus_is_refused_and_never_split_otherwise() {
    let mut plan = gpu_plan(card("CUDA0"));
    let mut second = plan.placements[0].clone();
    second.device = Some("CUDA1".to_owned());
    plan.placements.insert(1, second);
    plan.tensor_split = vec![3.0, 4.0];
    let devices = [listed("CUDA0", "a card"), listed("CUDA1", "a card")];
    let error = convert::model_params(&plan, &devices).unwrap_err();
    assert_eq!(
        error.to_string(),
        "llama-cpp-2 has no setter for tensor_split = [3.0, 4.0]: plan on one GPU, as `convert::plan` does"
    );
}

#[test]
fn of_two_gpus_the_better_one_is_planned_on_and_the_plan_says_so() {
    let crowded = card("CUDA0").free(0);
    let machine = host().with_gpu(crowded).with_gpu(card("CUDA1"));
    let plan = convert::plan(&profile(), &machine, &convert::request()).unwrap();
    let used: Vec<_> = plan.gpus().map(|gpu| gpu.device.as_deref()).collect();
    assert_eq!(used, [Some("CUDA1")]);
    assert_eq!(plan.n_gpu_layers, plan.layers());
    assert!(plan.notes.iter().any(|note| note.contains("tensor_split")));
    assert!(convert::model_params(&plan, &[listed("CUDA1", "a card")]).is_ok());
}

#[test]
fn overrides_keep_their_order_and_go_to_the_cpu() {
    let mut plan = gpu_plan(card("CUDA0"));
    plan.overrides = vec![
        TensorOverride::new(r"blk\.0\.ffn_.*_exps", Place::Host),
        TensorOverride::new(r"blk\.1\.ffn_up", Place::Host),
    ];
    let devices = [listed("CUDA0", "a card")];
    let params = convert::model_params(&plan, &devices).unwrap();
    assert_eq!(params.tensor_buft_override_patterns(), [r"blk\.0\.ffn_.*_exps", r"blk\.1\.ffn_up"]);

    for refused in [
        TensorOverride::new("blk", Place::Gpu(0)),
        TensorOverride::new("blk\0", Place::Host),
        TensorOverride::new("bl\u{e4}k", Place::Host),
    ] {
        plan.overrides = vec![refused];
        let converted = convert::model_params(&plan, &devices);
        assert_eq!(no_setter(converted), "tensor_buft_overrides");
    }
}

#[test]
fn a_file_that_is_to_be_read_is_not_mapped() {
    let mut plan = host_plan();
    plan.context.mmap = false;
    assert!(!convert::model_params(&plan, &[]).unwrap().use_mmap());

    let mut metal = gpu_plan(card("MTL0").backend("MTL"));
    metal.context.mmap = true;
    let devices = [listed("MTL0", "Apple M3")];
    assert!(!convert::model_params(&metal, &devices).unwrap().use_mmap());
}

#[test]
fn what_has_no_setter_is_refused() {
    let mut plan = host_plan();
    plan.context.repack = false;
    assert_eq!(no_setter(convert::model_params(&plan, &[])), "use_extra_bufts");
    let plan = plan_on(&host(), Request::new());
    assert_eq!(no_setter(convert::context_params(&plan)), "n_outputs_max");
}

#[test]
fn every_parameter_of_the_context_arrives() {
    let mut plan = host_plan();
    let context = &mut plan.context;
    context.n_ctx = 1536;
    context.n_batch = 384;
    context.n_ubatch = 96;
    context.n_seq_max = 3;
    context.type_k = KvType::Q8_0;
    context.type_v = KvType::Q5_1;
    context.flash_attn = FlashAttention::On;
    context.offload_kqv = false;
    context.op_offload = false;
    context.swa_full = false;
    context.kv_unified = true;
    let params = convert::context_params(&plan).unwrap();
    assert_eq!(params.n_ctx().map(u32::from), Some(1536));
    assert_eq!(params.n_batch(), 384);
    assert_eq!(params.n_ubatch(), 96);
    assert_eq!(params.n_seq_max(), 3);
    assert_eq!(params.type_k(), KvCacheType::Q8_0);
    assert_eq!(params.type_v(), KvCacheType::Q5_1);
    assert_eq!(params.flash_attention_policy(), llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED);
    assert!(!params.offload_kqv());
    assert!(!params.op_offload());
    assert!(!params.swa_full());
    assert!(params.kv_unified());

    let context = &mut plan.context;
    context.offload_kqv = true;
    context.op_offload = true;
    context.swa_full = true;
    context.kv_unified = false;
    let params = convert::context_params(&plan).unwrap();
    assert!(params.offload_kqv());
    assert!(params.op_offload());
    assert!(params.swa_full());
    assert!(!params.kv_unified());
}

#[test]
fn cache_types_and_attention_keep_their_names() {
    let mut plan = host_plan();
    for ty in KvType::ALL {
        plan.context.type_k = ty;
        let converted = convert::context_params(&plan).unwrap().type_k();
        assert_eq!(format!("{converted:?}"), ty.to_string().to_uppercase());
    }
    for (policy, number) in [(FlashAttention::Off, 0), (FlashAttention::On, 1), (FlashAttention::Auto, -1)] {
        plan.context.flash_attn = policy;
        let params = convert::context_params(&plan).unwrap();
        assert_eq!(params.flash_attention_policy(), number, "{policy:?}");
    }
}

#[test]
fn a_context_that_would_end_the_process_is_refused() {
    let mut plan = host_plan();
    plan.context.n_batch = 0;
    let error = convert::context_params(&plan).unwrap_err();
    assert!(matches!(error, Error::Context(_)), "{error}");
}

#[test]
fn the_machine_has_the_gpus_of_the_list_and_nothing_else() {
    let mut integrated = listed("Vulkan0", "Intel(R) Graphics");
    integrated.backend = "Vulkan".to_owned();
    integrated.device_type = LlamaBackendDeviceType::IntegratedGpu;
    let machine = convert::machine(&[cpu(), listed("ROCm0", "AMD Radeon RX 7900 XTX"), integrated]);
    let names: Vec<_> = machine.gpus.iter().map(|gpu| gpu.device.as_deref()).collect();
    assert_eq!(names, [Some("ROCm0"), Some("Vulkan0")]);
    assert_eq!(machine.gpus[0].total, gib(24));
    assert!(machine.gpus[1].shares_host_memory());
}

#[test]
fn a_converted_plan_loads_as_it_says() {
    let mut plan = host_plan();
    // llama.cpp reads the patterns during the load, so they must still exist at that time.
    plan.overrides = vec![TensorOverride::new(r"blk\.1\.ffn", Place::Host)];
    let mut backend = LlamaBackend::init().unwrap();
    backend.void_logs();
    let params = convert::model_params(&plan, &list_llama_ggml_backend_devices()).unwrap();
    let model = LlamaModel::load_from_file(&backend, demo_model(), &params).unwrap();
    let params = convert::context_params(&plan).unwrap();
    let context = model.new_context(&backend, params).unwrap();
    assert_eq!(model.n_layer(), plan.model.blocks);
    assert_eq!(u64::from(context.n_ctx()), plan.context.sizes().unwrap().n_ctx);
    assert_eq!(context.n_batch(), plan.context.n_batch);
    assert_eq!(context.n_ubatch(), plan.context.n_ubatch);
}
