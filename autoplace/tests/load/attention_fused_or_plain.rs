//! A card computes the same bits as the CPU. AUTO turns fused attention off only in known cases.
//!
//! AUTO looks at a graph with one token of each sequence. Attention stays fused if the scheduler puts it on the device
//! of its layer (llama-context.cpp, `resolve_fused_ops`). If the cache is on the host, the next operation in the graph
//! decides about the device. In a transformer, that operation uses the output weight of the attention, so attention is
//! put on the GPU. In a hybrid, it uses a recurrent state on the host. So attention is put on the CPU, and AUTO turns
//! fused attention off. If there is only a CPU, AUTO keeps attention fused. Fused and plain attention are rounded in
//! different ways: on the CPU, fused attention adds F16 values in F16.

use std::path::Path;

use crate::real_loads_support::decode;
use crate::rig::{Card, Kind, Loaded};
use autoplace::llama_sys::sim::Rules;
use autoplace::machine::gib;
use autoplace::memory::{ContextParams, FlashAttention, Split};

/// The logits after prompts of two sequences, and after one more token. The caches are on the host. Either all layers
/// are on the GPU, or there is only the CPU.
fn logits(path: &Path, gpu: &[&Card], flash_attn: FlashAttention) -> Vec<f32> {
    let mut params = ContextParams::default();
    (params.n_ctx, params.n_batch, params.n_ubatch) = (512, 32, 16);
    (params.n_seq_max, params.n_outputs_max) = (2, 2);
    // Weights that were repacked are multiplied in another order.
    (params.offload_kqv, params.repack, params.flash_attn) = (false, false, flash_attn);
    let split = Split::layers(if gpu.is_empty() { 0 } else { 999 });
    let loaded = Loaded::new(path, gpu, &split, &params, Kind::Real).unwrap();
    decode(&mut loaded.context(&params).unwrap()).unwrap()
}

#[test]
fn a_card_computes_the_cpus_bits_and_only_hybrids_use_plain_attention() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = Card::with_memory((Rules::Cuda, false), gib(1));
    let mut left_plain = Vec::new();
    for sketch in test_support::random_weights::all() {
        let path = test_support::random_weights::write(&sketch, folder.path());
        let title = sketch.title();
        let [fused, plain] = [FlashAttention::On, FlashAttention::Off].map(|attention| {
            let on_the_cpu = logits(&path, &[], attention);
            // `assert_eq` would print thousands of numbers if it failed.
            assert!(logits(&path, &[&gpu], attention) == on_the_cpu, "{title}: {attention:?}");
            on_the_cpu
        });
        assert!(logits(&path, &[], FlashAttention::Auto) == fused, "{title}: AUTO on the CPU");
        let auto = logits(&path, &[&gpu], FlashAttention::Auto);
        if auto != fused {
            assert!(auto == plain, "{title}: AUTO, no longer fused");
            left_plain.push(title);
        }
    }
    assert_eq!(left_plain, ["jamba 1 of 2 attends", "falcon-h1 both"]);
}
