//! A simulated GPU counts bytes as llama.cpp does, refuses buffers that do not fit, and fails when it is told to.

use std::time::Duration;

use crate::support::batch_of;
use crate::support::sim::{MIB, are_empty, card, card_by, context, context_params, greedy, load, try_load};
use llama_sys::sim::{Rules, SimGpu};
use llama_sys::{Backend, Bench, Context, ContextParams, DeviceKind, Error, FlashAttention, Operation, tensor_types};

#[test]
fn a_failed_allocation_names_device_and_bytes_and_the_model_stays() {
    own_process!();
    let roomy = card(256 * MIB);
    let model = load(&[&roomy], -1);
    let weights = roomy.used();
    let all = {
        let _context = context(&model);
        roomy.used()
    };
    let gpu = card(weights - 1);
    let error = try_load(&[&gpu], -1).unwrap_err();
    let out = error.out_of_memory().unwrap_or_else(|| panic!("{error:?}"));
    assert_eq!((&out.buffer_type, out.bytes), (&gpu.device().name(), weights));
    are_empty([&gpu]);
    // There is room on the cards for only the weights, for weights and cache, and for everything except one byte.
    for total in [weights, weights + MIB, all - 1] {
        let gpu = card(total);
        let model = load(&[&gpu], -1);
        let error = Context::new(&model, context_params()).unwrap_err();
        assert_matches!(error, Error::ContextInit { .. });
        let out = error.out_of_memory().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!(out.buffer_type, gpu.device().name());
        // The failed allocation is larger than the free memory at that time.
        assert!(out.bytes > gpu.total() - gpu.peak(), "{out:?}");
        assert_eq!(gpu.used(), weights);
    }
    let gpu = card(all);
    let model = load(&[&gpu], -1);
    greedy(&mut context(&model), 2);
}

#[test]
fn a_failed_computation_is_a_decode_error_and_poisons_the_context() {
    own_process!();
    let gpu = card(256 * MIB);
    let model = load(&[&gpu], -1);
    let mut first = context(&model);
    greedy(&mut first, 3);
    gpu.fail_graph(1);
    let batch = batch_of(&[1], 0);
    first.kv_clear().unwrap();
    assert_matches!(first.decode(&batch), Err(Error::Decode { .. }));
    assert!(!first.is_usable());
    assert_matches!(first.decode(&batch), Err(Error::Poisoned { .. }));
    // The model can still be used.
    greedy(&mut context(&model), 3);
    drop((first, model));
    are_empty([&gpu]);
}

#[test]
fn a_reserved_computation_takes_no_further_bytes() {
    own_process!();
    let gpu = card_by(Rules::Cuda, 64 * MIB);
    // Only some layers are on the card. For batches of 32 tokens or more, it computes with the host's weights too.
    let model = load(&[&gpu], 3);
    let mut context = context(&model);
    let at_first = gpu.used();
    context.reserve(31).unwrap();
    context.reserve(1).unwrap();
    assert!(gpu.used() >= at_first, "nothing shrinks");
    let reserved = gpu.used();
    for n_tokens in [1, 2, 7, 30, 31, 32, 33] {
        context.kv_clear().unwrap();
        context.decode(&batch_of(&vec![1; n_tokens], 0)).unwrap();
        assert_eq!(gpu.used(), reserved, "{n_tokens} tokens");
    }
    // A number of tokens that no computation can have is refused.
    for n_tokens in [0, context.n_ubatch() + 1] {
        let refused = context.reserve(n_tokens);
        assert_matches!(refused, Err(Error::InvalidParameter { .. }));
    }
    context.reserve(context.n_ubatch()).unwrap();
}

#[test]
fn llama_cpp_runs_without_fused_attention_on_a_card_that_lacks_it() {
    own_process!();
    let unfused = |n_gpu_layers, gpus: &[&SimGpu], flash_attention| {
        let params = ContextParams { flash_attention, ..context_params() };
        let model = load(gpus, n_gpu_layers);
        let mut context = Context::new(&model, params).unwrap();
        let rows = context.memory_breakdown().unwrap().rows;
        let bytes: u64 = rows.iter().map(|row| row.compute).sum();
        (greedy(&mut context, 16), bytes)
    };
    let (expected, _) = unfused(0, &[], FlashAttention::Disabled);
    let gpu = SimGpu::builder("SIM old card").flash_attention(false);
    let gpu = gpu.register().unwrap();
    let (text, automatic) = unfused(-1, &[&gpu], FlashAttention::Auto);
    assert_eq!(text, expected);
    // Without fused attention, the graph has other operations and needs a different amount of memory.
    let able = card(256 * MIB);
    let (_, fused) = unfused(-1, &[&able], FlashAttention::Auto);
    assert_ne!(automatic, fused);
}

/// ggml's number of a type.
fn type_id(name: &str) -> u32 {
    let types = tensor_types().unwrap();
    types.iter().find(|info| info.name == name).unwrap().id
}

fn matrix(type_id: u32, n_in: u32, n_out: u32) -> Operation {
    Operation::Matrix { type_id, n_in, n_out, n_tokens: 1 }
}

fn attention(type_id: u32, n_head: u32) -> Operation {
    Operation::Attention { type_id, head_size: 64, n_head, n_head_kv: 2, n_kv: 256, n_tokens: 1 }
}

/// One small operation of each kind, for weights of this type.
fn operations(name: &str) -> [Operation; 5] {
    let (n_embd, n_expert, n_used, n_tokens) = (256, 8, 2, 1);
    let (n_ff, head_size, n_head, n_head_kv) = (512, 64, 4, 2);
    [
        matrix(type_id(name), n_embd, 64),
        Operation::Experts { type_id: type_id(name), n_in: n_embd, n_out: 64, n_expert, n_used, n_tokens },
        attention(type_id("q8_0"), 4),
        Operation::Block { type_id: type_id("f16"), n_embd, n_ff, head_size, n_head, n_head_kv, n_tokens },
        Operation::Routing { n_embd, n_expert, n_used, n_tokens },
    ]
}

#[test]
fn a_measurement_takes_time_and_gives_its_memory_back() {
    own_process!();
    let gpu = card(64 * MIB);
    let backend = Backend::init().unwrap();
    let cpu = (backend.devices().into_iter()).find(|device| device.kind() == DeviceKind::Cpu);
    for device in [gpu.device(), cpu.unwrap()] {
        let mut bench = Bench::new(&device, 2, true).unwrap();
        // Among them are Q4_0, which the CPU rearranges, and IQ2_XS, for which there is no quick quantisation.
        for name in "f32 f16 bf16 q8_0 q4_0 q4_K iq2_xs mxfp4".split(' ') {
            for operation in operations(name) {
                let timing = bench.time(&operation, 3, Duration::ZERO).unwrap().unwrap();
                assert!(timing.graph > Duration::ZERO, "{operation:?}");
                let reads = !matches!(operation, Operation::Block { .. } | Operation::Routing { .. });
                assert_eq!(timing.bytes > 0, reads, "{operation:?}");
                are_empty([&gpu]);
            }
        }
    }
    let mut bench = Bench::new(&gpu.device(), 1, true).unwrap();
    let link = bench.link(1 << 20, 256, Duration::ZERO).unwrap().unwrap();
    assert!(link.upload > Duration::ZERO && link.crossing > Duration::ZERO);
    are_empty([&gpu]);
}

#[test]
fn an_operation_without_support_or_memory_is_not_measured() {
    own_process!();
    let gpu = SimGpu::builder("SIM card").total(8 * MIB);
    let gpu = gpu.flash_attention(false).register().unwrap();
    let mut bench = Bench::new(&gpu.device(), 1, true).unwrap();
    let [matrix, _, attention, ..] = operations("f16");
    assert_eq!(bench.time(&attention, 1, Duration::ZERO).unwrap(), None);
    assert!(bench.time(&matrix, 1, Duration::ZERO).unwrap().is_some());
    // The graph has 300 matrices of 32 KiB, which do not fit.
    assert_eq!(bench.time(&matrix, 300, Duration::ZERO).unwrap(), None);
    assert_eq!(bench.link(16 << 20, 256, Duration::ZERO).unwrap(), None);
    are_empty([&gpu]);
}

#[test]
fn a_measurement_that_ggml_would_abort_is_refused() {
    own_process!();
    let gpu = card(8 * MIB);
    let mut bench = Bench::new(&gpu.device(), 1, true).unwrap();
    let (f16, q4_k) = (type_id("f16"), type_id("q4_K"));
    let wrong = [
        (matrix(q4_k, 128, 64), 1),
        (matrix(f16, 0, 64), 1),
        (matrix(f16, 64, u32::MAX), 1),
        (matrix(4, 64, 64), 1),
        (matrix(u32::MAX, 64, 64), 1),
        (matrix(f16, 64, 64), 0),
        (matrix(f16, 64, 64), 1 << 20),
        (attention(f16, 5), 1),
    ];
    for (operation, n_repeat) in wrong {
        let measured = bench.time(&operation, n_repeat, Duration::ZERO);
        assert!(matches!(measured, Err(Error::InvalidParameter { .. })), "{operation:?}: {measured:?}");
    }
    assert!(Bench::new(&gpu.device(), 0, true).is_err());
    assert!(bench.link(0, 1, Duration::ZERO).is_err());
}
