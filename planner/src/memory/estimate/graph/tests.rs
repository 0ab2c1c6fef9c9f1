//! The graph of some blocks against that of all. That it is llama.cpp's is tested in `tests/load/compute_buffers.rs`.

use proptest::prelude::{ProptestConfig, any, prop, prop_assert, prop_assert_eq, proptest};

use super::ComputeGraph;
use crate::gguf::{Builder, TensorType as T};
use crate::machine::{Gpu, gib};
use crate::memory::estimate::{Assignment, Place};
use crate::memory::{ContextParams, FlashAttention, KvType};
use crate::profile::ModelProfile;

/// A model of so many blocks whose matrices are of two types in turns; every third block is of the one, or, with `window`, sees
/// all tokens while the others see 64.
fn model(architecture: &str, n_layer: u32, experts: bool) -> ModelProfile {
    let key = |suffix: &str| format!("{architecture}.{suffix}");
    let mut file = Builder::new(architecture)
        .u32(&key("block_count"), n_layer)
        .u32(&key("context_length"), 4096)
        .u32(&key("embedding_length"), 512)
        .u32(&key("feed_forward_length"), 1024)
        .u32(&key("vocab_size"), 2000)
        .u32(&key("attention.head_count"), 8)
        .u32(&key("attention.head_count_kv"), 2)
        .u32(&key("attention.key_length"), 64)
        .u32(&key("attention.value_length"), 64)
        .u32(&key("attention.sliding_window"), 64)
        .u32(&key("attention.sliding_window_pattern"), 3)
        .tensor("token_embd.weight", T::Q8_0, &[512, 2000])
        .tensor("output_norm.weight", T::F32, &[512])
        .tensor("output.weight", T::Q8_0, &[512, 2000]);
    if experts {
        file = file
            .u32(&key("expert_count"), 8)
            .u32(&key("expert_used_count"), 3);
    }
    for il in 0..n_layer {
        let ty = if il % 3 == 2 { T::Q6_K } else { T::Q4_K };
        let mut tensor = |name: &str, ty, shape: &[u64]| {
            let name = format!("blk.{il}.{name}.weight");
            file = std::mem::replace(&mut file, Builder::empty()).tensor(&name, ty, shape);
        };
        for norm in ["attn_norm", "ffn_norm"] {
            tensor(norm, T::F32, &[512]);
        }
        if architecture == "gemma3" {
            for norm in ["post_attention_norm", "post_ffw_norm"] {
                tensor(norm, T::F32, &[512]);
            }
            for norm in ["attn_q_norm", "attn_k_norm"] {
                tensor(norm, T::F32, &[64]);
            }
        }
        tensor("attn_q", T::Q4_K, &[512, 512]);
        tensor("attn_k", T::Q4_K, &[512, 128]);
        tensor("attn_v", ty, &[512, 128]);
        tensor("attn_output", T::Q4_K, &[512, 512]);
        if experts {
            tensor("ffn_gate_inp", T::F32, &[512, 8]);
            tensor("ffn_gate_exps", T::Q4_K, &[512, 1024, 8]);
            tensor("ffn_up_exps", T::Q4_K, &[512, 1024, 8]);
            tensor("ffn_down_exps", ty, &[1024, 512, 8]);
        } else {
            tensor("ffn_gate", T::Q4_K, &[512, 1024]);
            tensor("ffn_up", T::Q4_K, &[512, 1024]);
            tensor("ffn_down", ty, &[1024, 512]);
        }
    }
    ModelProfile::from_header(&file.header().unwrap()).unwrap()
}

fn graph(profile: &ModelProfile, gpus: &[Gpu], params: &ContextParams) -> ComputeGraph {
    let gpus: Vec<&Gpu> = gpus.iter().collect();
    let sizes = params.sizes().unwrap();
    let pinned = gpus.iter().any(|gpu| gpu.backend != "MTL");
    ComputeGraph::new(profile, &gpus, params, &sizes, 256, pinned).unwrap()
}

fn gpus(backends: &[&str]) -> Vec<Gpu> {
    let gpu = |&backend: &&str| {
        Gpu::new(backend)
            .total(gib(80))
            .backend(backend)
            .alignment(64)
    };
    backends.iter().map(gpu).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn repeated_blocks_change_nothing(
        kind in 0usize..3,
        n_layer in 1u32..70,
        layers_from_the_end in 0u32..72,
        backends in prop::collection::vec(prop::sample::select(vec!["CUDA", "Vulkan", "MTL"]), 0..4),
        shares in prop::collection::vec(1.0f32..4.0, 4),
        n_ubatch in prop::sample::select(vec![4, 31, 32, 256]),
        n_ctx in prop::sample::select(vec![256, 1024, 8192]),
        n_seq_max in 1u32..4,
        n_outputs_max in 0u32..2,
        flash in prop::sample::select(vec![FlashAttention::Auto, FlashAttention::On, FlashAttention::Off]),
        ty in prop::sample::select(vec![KvType::F16, KvType::Q8_0]),
        switches in any::<[bool; 5]>(),
    ) {
        let (architecture, experts) = [("llama", false), ("llama", true), ("gemma3", false)][kind];
        let profile = model(architecture, n_layer, experts);
        let [kv_unified, offload_kqv, op_offload, swa_full, overridden] = switches;
        let params = ContextParams {
            n_ctx,
            n_ubatch,
            n_seq_max,
            n_outputs_max,
            flash_attn: flash,
            type_k: ty,
            type_v: if flash == FlashAttention::Off { KvType::F16 } else { ty },
            kv_unified,
            offload_kqv,
            op_offload,
            swa_full,
            ..ContextParams::default()
        };
        let cards = gpus(&backends);
        let mut graph = graph(&profile, &cards, &params);
        if overridden {
            graph = graph.overridden(|name| name.contains("down").then_some(Place::Host));
        }
        let points = crate::memory::estimate::split_points(&shares[..cards.len()]).unwrap();
        let assignment = Assignment::new(n_layer, layers_from_the_end, &points);
        let some = graph.bytes_by(&assignment, true);
        let all = graph.bytes_by(&assignment, false);
        prop_assert_eq!(&some, &all);
        // Whoever computes has something to compute with.
        prop_assert!(some.host > 0);
    }
}

#[test]
fn a_model_of_unread_architecture_or_with_a_weight_too_many_has_no_graph() {
    let params = ContextParams::default();
    let sizes = params.sizes().unwrap();
    let mut profile = model("llama", 2, false);
    assert!(ComputeGraph::new(&profile, &[], &params, &sizes, 0, true).is_some());
    let mut other = profile.clone();
    other.architecture = "newer".to_owned();
    assert!(ComputeGraph::new(&other, &[], &params, &sizes, 0, true).is_none());
    // llama has no norms of queries.
    let mut extra = profile.weights.blocks[1].weights[0].clone();
    extra.name = "blk.1.attn_sinks_of_another_kind.weight".to_owned();
    profile.weights.blocks[1].weights.push(extra);
    assert!(ComputeGraph::new(&profile, &[], &params, &sizes, 0, true).is_none());
}

#[test]
fn it_says_where_it_cannot_know() {
    let profile = model("llama", 4, false);
    let params = ContextParams::default();
    let full = |cards: usize| Assignment::new(4, 5, &vec![1.0; cards][..]);
    let none = Assignment::new(4, 0, &[1.0]);
    let cuda = graph(&profile, &gpus(&["CUDA"]), &params);
    assert!(cuda.is_exact(&full(1)) && cuda.is_exact(&none));
    // Without pinned memory the CPU may rearrange the host's matrices.
    let metal = graph(&profile, &gpus(&["MTL"]), &params);
    assert!(metal.is_exact(&full(1)) && !metal.is_exact(&none));
    // We do not know what it fuses with such a cache.
    let mut odd = params.clone();
    (odd.type_k, odd.type_v) = (KvType::IQ4_NL, KvType::IQ4_NL);
    assert!(!graph(&profile, &gpus(&["CUDA"]), &odd).is_exact(&full(1)));
    assert!(graph(&profile, &[], &odd).is_exact(&Assignment::new(4, 0, &[])));
    // Not every GPU of another make takes rows as we read it.
    assert!(!graph(&profile, &gpus(&["SomethingNew"]), &params).is_exact(&full(1)));
}
