//! Memory of a placement, compared with numbers that were counted by hand and with llama.cpp's numbers.

use autoplace_planner::gguf::{Builder, TensorType};
use autoplace_planner::machine::{Gpu, gib};
use autoplace_planner::memory::{ContextParams, Estimate, FlashAttention, Footprints, KvType, Place, TensorOverride};
use autoplace_planner::profile::ModelProfile;

use test_support::shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape, TINY};

fn card() -> Gpu {
    Gpu::new("card").total(gib(80))
}

fn params(n_ctx: u32) -> ContextParams {
    let mut params = ContextParams::default();
    params.n_ctx = n_ctx;
    params
}

fn footprints(profile: &ModelProfile, params: &ContextParams, n_gpu_layers: u32) -> Footprints {
    Estimate::new(profile, &[&card()], params).unwrap().footprints(n_gpu_layers)
}

/// The bytes of the tiny model, counted by hand. A block has two norms of 64 floats; q and attn_output of 64 x 64
/// floats; k of 64 x 32 floats; gate and up of 64 x 128 floats; and, in Q8_0 (34 bytes per 32 elements), v of 64 x 32
/// and down of 128 x 64.
const TINY_BLOCK_HOST: u64 = 2 * 256 + 2 * 16384 + 8192 + 2 * 32768 + 32 * 68 + 64 * 136;
/// CUDA pads the rows of v and down to 512 elements. The further 448 elements of v take 476 bytes, and the further 384
/// elements of down take 408 bytes. Then CUDA aligns each tensor to 128 bytes.
const TINY_BLOCK_CUDA: u64 = TINY_BLOCK_HOST - (2176 + 8704) + 2688 + 9216;
/// 100 rows of 64 floats.
const TINY_EMBEDDING: u64 = 25600;
/// The norm before the output.
const TINY_NORM: u64 = 256;

#[test]
fn weights_go_layer_by_layer_from_the_end() {
    let profile = TINY.profile();
    let weights = |n| {
        let footprints = footprints(&profile, &params(512), n);
        (footprints.gpus[0].weights, footprints.host.weights)
    };
    let output = TINY_EMBEDDING + TINY_NORM;
    // `rope_freqs` has 8 floats. Each device with a block has a copy, which CUDA aligns to 128 bytes.
    assert_eq!(weights(0), (0, TINY_EMBEDDING + 2 * TINY_BLOCK_HOST + 32 + output));
    assert_eq!(weights(1), (output, TINY_EMBEDDING + 2 * TINY_BLOCK_HOST + 32));
    assert_eq!(weights(2), (output + TINY_BLOCK_CUDA + 128, TINY_EMBEDDING + TINY_BLOCK_HOST + 32));
    assert_eq!(weights(3), (output + 2 * TINY_BLOCK_CUDA + 128, TINY_EMBEDDING));
    assert_eq!(weights(99), weights(3));
}

#[test]
fn a_cache_has_two_bytes_per_element_and_cell_on_the_device_of_its_block() {
    let profile = TINY.profile();
    // A token has 32 elements of keys and 32 of values, 2 bytes each. There are 512 cells.
    let block = 2 * 32 * 2 * 512;
    let partial = footprints(&profile, &params(512), 2);
    assert_eq!((partial.gpus[0].kv, partial.host.kv), (block, block));
    let mut params = params(512);
    params.offload_kqv = false;
    let kept = footprints(&profile, &params, 3);
    assert_eq!((kept.gpus[0].kv, kept.host.kv), (0, 2 * block));
}

#[test]
fn weights_that_no_gpu_multiplies_by_stay_on_the_host() {
    let matrix = |builder: Builder, name: &str, ty, rows| builder.tensor(&format!("{name}.weight"), ty, &[64, rows]);
    let builder = Builder::new("llama")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 1024)
        .u32("llama.embedding_length", 64)
        .u32("llama.attention.head_count", 4);
    let builder = matrix(builder, "token_embd", TensorType::F8_E4M3, 10);
    let builder = matrix(builder, "output", TensorType::F32, 10);
    let builder = matrix(builder, "blk.0.attn_q", TensorType::F8_E4M3, 64);
    let builder = matrix(builder, "blk.0.attn_k", TensorType::F32, 64);
    let profile = ModelProfile::from_header(&builder.header().unwrap()).unwrap();
    let footprints = footprints(&profile, &params(512), 3);
    let (embedding, query) = (64 * 10, 64 * 64);
    assert_eq!(footprints.gpus[0].weights, 4 * (64 * 64 + 64 * 10));
    assert_eq!(footprints.host.weights, embedding + query);
}

#[test]
fn a_quantised_cache_keeps_separate_rotation_matrices_for_keys_and_values() {
    // The cache has 8 heads of 128 elements in 512 cells. An element takes 2 bytes; 32 quantised elements take 34 or 18
    // bytes.
    let elements = 8 * 128 * 512;
    let (f16, q8_0, q4_0) = (2 * elements, elements / 32 * 34, elements / 32 * 18);
    // The matrices contain floats. 128 is the largest power of two that divides the heads; for values, the width is
    // always 64.
    let (of_keys, of_values) = (4 * 128 * 128, 4 * 64 * 64);
    let profile = LLAMA_8B.profile();
    for (type_k, type_v, block) in [
        (KvType::F16, KvType::F16, 2 * f16),
        (KvType::Q8_0, KvType::F16, q8_0 + of_keys + f16),
        (KvType::F16, KvType::Q4_0, f16 + q4_0 + of_values),
        (KvType::Q8_0, KvType::Q4_0, q8_0 + of_keys + q4_0 + of_values),
    ] {
        let mut params = params(512);
        (params.type_k, params.type_v) = (type_k, type_v);
        for (n_gpu_layers, on_gpu) in [(0, 0), (3, 2), (33, 32)] {
            let kv = footprints(&profile, &params, n_gpu_layers);
            let found = (kv.gpus[0].kv, kv.host.kv);
            assert_eq!(found, (on_gpu * block, (32 - on_gpu) * block), "{type_k} {type_v} {n_gpu_layers}");
        }
    }
    // No power of two from 64 on divides heads of 96 elements.
    let odd = Shape { head_dim: 96, n_head_kv: 16, ..LLAMA_8B }.profile();
    let mut params = params(512);
    (params.type_k, params.type_v) = (KvType::Q8_0, KvType::Q8_0);
    assert_eq!(footprints(&odd, &params, 33).gpus[0].kv, 32 * 2 * (16 * 96 * 512 / 32 * 34));
}

#[test]
fn keys_on_another_gpu_are_copied_once_for_all_blocks_that_read_them() {
    // Blocks 1 and 3 keep compressed keys. Block 2 reads block 1's keys, and blocks 4 and 5 read block 3's.
    let header = Builder::new("deepseek41")
        .u32("deepseek41.block_count", 6)
        .u32("deepseek41.context_length", 1024)
        .u32("deepseek41.embedding_length", 64)
        .u32("deepseek41.attention.head_count", 4)
        .u32("deepseek41.attention.head_count_kv", 1)
        .u32("deepseek41.attention.key_length", 32)
        .u32("deepseek41.attention.sliding_window", 100)
        .u32("deepseek41.attention.indexer.key_length", 16)
        .array_u32("deepseek41.attention.compress_ratios", &[0, 2, 2, 1, 1, 1])
        .array_u32("deepseek41.attention.kv_source_layers", &[1, 3])
        .array_u32("deepseek41.attention.indexer.source_layers", &[1, 3])
        .header()
        .unwrap();
    let profile = ModelProfile::from_header(&header).unwrap();
    // The window has 512 cells with keys of 32 elements of 2 bytes. Keys and index keys together have 48 elements. The
    // two states consist of floats.
    let window = 32 * 2 * 512;
    let (halves, ones) = (48 * 2 * 256, 48 * 2 * 512);
    let (pending_halves, pending_ones) = (2 * 4 * 32 * 2, 2 * 4 * 32);
    let before = 4 * window + halves + pending_halves + ones + pending_ones;
    let kv = |proportions: &[f32], offload_kqv| {
        let mut params = params(512);
        params.offload_kqv = offload_kqv;
        let estimate = Estimate::new(&profile, &[&card(), &card()], &params).unwrap();
        let footprints = estimate.tensor_split(proportions).unwrap().footprints(7);
        (footprints.gpus[0].kv, footprints.gpus[1].kv, footprints.host.kv)
    };
    assert_eq!(kv(&[1.0, 0.0], true), (before + 2 * window, 0, 0));
    // Blocks 0 to 3 are on the first card, blocks 4 and 5 on the second one.
    assert_eq!(kv(&[4.0, 3.0], true), (before, 2 * window + ones, 0));
    assert_eq!(kv(&[4.0, 3.0], false), (0, 0, before + 2 * window));
}

#[test]
fn the_buffer_of_logits_is_on_the_host() {
    let mut params = params(4096);
    params.n_outputs_max = 7;
    let footprints = footprints(&LLAMA_8B.profile(), &params, 33);
    assert_eq!(footprints.output, 4 * 128_256 * 7);
    assert!(footprints.host.compute > footprints.output);
}

#[test]
fn a_cache_type_that_does_not_divide_a_head_is_an_error() {
    let odd = Shape { head_dim: 80, ..LLAMA_8B }.profile();
    let mut params = params(512);
    params.type_k = KvType::Q8_0;
    let error = Estimate::new(&odd, &[], &params).unwrap_err();
    assert_eq!(error.to_string(), "type_k Q8_0 stores blocks of 32 elements, which do not divide heads of 80");
    params.type_k = KvType::F16;
    params.type_v = KvType::Q4_0;
    params.flash_attn = FlashAttention::Off;
    assert!(Estimate::new(&LLAMA_8B.profile(), &[], &params).is_err());
}

/// The tiny model on a CUDA card and a Metal card. The Metal card has twice as many free bytes.
fn two() -> Estimate {
    let (cuda, metal) = (card().free(gib(10)), card().backend("MTL").free(gib(20)));
    Estimate::new(&TINY.profile(), &[&cuda, &metal], &params(512)).unwrap()
}

#[test]
fn two_gpus_share_layers_by_free_memory_with_the_rules_of_each_backend() {
    let weights = |n| {
        let footprints = two().footprints(n);
        (footprints.gpus[0].weights, footprints.gpus[1].weights, footprints.host.weights)
    };
    // The CUDA card has a third of the free bytes, so it takes the first of three layers.
    let cuda = TINY_BLOCK_CUDA + 128;
    let metal = TINY_BLOCK_HOST + 32 + TINY_EMBEDDING + TINY_NORM;
    assert_eq!(weights(3), (cuda, metal, TINY_EMBEDDING));
    // With two layers on the cards, the host has a block, and therefore also `rope_freqs`.
    let output = TINY_EMBEDDING + TINY_NORM;
    let host = TINY_EMBEDDING + TINY_BLOCK_HOST + 32;
    assert_eq!(weights(2), (cuda, output, host));
}

#[test]
fn an_override_that_cannot_be_followed_is_an_error_that_names_it() {
    let error = |pattern: &str, place| two().overrides(&[TensorOverride::new(pattern, place)]).unwrap_err().to_string();
    assert_eq!(error("ffn", Place::Gpu(2)), "tensor_buft_overrides `ffn`: there is no GPU 2: there are 2");
    for pattern in ["ffn(", "(?=ffn)", r"(a)\1"] {
        let refused = error(pattern, Place::Host);
        assert!(refused.starts_with(&format!("tensor_buft_overrides `{pattern}`: ")), "{refused}");
    }
}

#[test]
fn the_alignment_of_vulkan_is_that_of_the_device_if_known() {
    let profile = TINY.profile();
    let of = |card: &Gpu| {
        let estimate = Estimate::new(&profile, &[card], &params(512)).unwrap();
        (estimate.is_exact(), estimate.footprints(3).gpus[0].weights)
    };
    let vulkan = card().backend("Vulkan");
    let (exact, bound) = of(&vulkan);
    let (known, aligned) = of(&vulkan.alignment(32));
    assert!(!exact && known);
    // The bytes of every tensor are a multiple of 32, so this alignment adds nothing.
    let plain = 2 * TINY_BLOCK_HOST + 32 + TINY_EMBEDDING + TINY_NORM;
    assert_eq!(aligned, plain);
    assert!(bound > aligned && bound < aligned + 20 * 256);
    assert!(of(&card()).0);
    assert!(!of(&card().backend("SomethingNew")).0);
}

#[test]
fn more_tokens_context_and_outputs_never_need_less_memory() {
    for shape in [LLAMA_8B, QWEN3_30B_A3B] {
        let profile = shape.profile::<ModelProfile>();
        for layers in [0, 1, 8, profile.full_offload()] {
            let mut least = [0; 2];
            for step in 0..6 {
                let mut params = params(4096 << step);
                (params.n_batch, params.n_ubatch, params.n_outputs_max) = (64 << step, 64 << step, 1 << step);
                let footprints = footprints(&profile, &params, layers);
                let bytes = [footprints.gpus[0].compute, footprints.host.compute];
                assert!(bytes[0] >= least[0] && bytes[1] >= least[1], "{layers} {step}");
                least = bytes;
            }
        }
    }
}

/// Counts the allocations of one estimate, with half of the model on three GPUs and some weights placed elsewhere.
fn allocations(shape: &Shape) -> usize {
    let profile = shape.profile();
    let cards = [24, 12, 48].map(|size| Gpu::new("card").total(gib(size)));
    let estimate = Estimate::new(&profile, &cards.each_ref(), &ContextParams::default()).unwrap();
    let estimate = estimate.overrides(&[TensorOverride::new(r"ffn_(up|down)", Place::Host)]).unwrap();
    let before = test_support::counting::allocations();
    let assignment = estimate.assignment(profile.n_layer() / 2);
    let stored = estimate.stored(&assignment);
    let after = test_support::counting::allocations();
    assert!(stored.host.weights > 0 && stored.gpus.iter().all(|gpu| gpu.weights > 0));
    after - before
}

/// This matters because a search makes hundreds of estimates.
#[test]
fn a_placement_costs_no_allocation_per_layer() {
    own_process!();
    assert_eq!((LLAMA_1B.n_layer, LLAMA_70B.n_layer), (16, 80));
    let few = allocations(&LLAMA_1B);
    assert_eq!(few, allocations(&LLAMA_70B));
    assert!(few <= 8, "{few} allocations");
}
