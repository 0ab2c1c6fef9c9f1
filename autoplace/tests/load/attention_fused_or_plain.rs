//! A card computes to the bit what the CPU does, and where AUTO leaves attention plain.
//!
//! AUTO keeps attention fused if the scheduler puts it on the device of its layer, for one token of each sequence
//! (llama-context.cpp, `resolve_fused_ops`). Where the cache stays on the host, what follows attention in the graph
//! decides. In a transformer that is the weight of its output, which draws it to the GPU. In a hybrid it is a recurrent
//! state, which is the host's too: attention comes to the CPU, and AUTO turns fused attention off, which the CPU alone
//! keeps. The two round otherwise: fused attention on the CPU sums F16 values in F16.

use std::path::Path;

use crate::rig::Card;
use autoplace::Model;
use autoplace::llama_sys::sim::Rules;
use autoplace::llama_sys::{Batch, Context, ContextParams, FlashAttention};
use autoplace::load::Verify;
use autoplace::machine::{Host, Machine, gib};
use autoplace::plan::{GpuLayers, Request};

const PROMPT: i32 = 20;
const MORE: i32 = 4;

/// The logits after a prompt, and after each of a few tokens: of all layers on the GPU, or of the CPU alone. Several
/// sequences have a cache each, on the host.
fn logits(path: &Path, gpu: Option<&Card>, flash_attention: FlashAttention) -> Vec<Vec<f32>> {
    let mut request = Request::new().n_ctx(512);
    request.params.offload_kqv = false;
    // Repacked weights are multiplied in another order.
    request.params.repack = false;
    request.gpu_layers = GpuLayers::Exactly(if gpu.is_some() { u32::MAX } else { 0 });
    let host = Machine::new(Host::new(gib(16)));
    let machine = gpu.map_or(host.clone(), |card| host.with_gpu(card.gpu.clone()));
    let model = Model::builder(path).request(request).machine(machine).verify(Verify::Off).load().unwrap();
    let params = ContextParams {
        n_ctx: 512,
        n_batch: 32,
        n_ubatch: 16,
        n_seq_max: 2,
        n_threads: Some(1),
        n_threads_batch: Some(1),
        flash_attention,
        offload_kqv: false,
        ..ContextParams::default()
    };
    let mut context = Context::new(&model.native().unwrap(), params).unwrap();
    let mut batch = Batch::default();
    for position in 0..PROMPT {
        batch.add(100 + 7 * position, position, 0, position == PROMPT - 1);
    }
    context.decode(&batch).unwrap();
    let mut all = vec![context.logits(-1).unwrap().to_vec()];
    for n in 0..MORE {
        batch.clear();
        batch.add(60 + 11 * n, PROMPT + n, 0, true);
        context.decode(&batch).unwrap();
        all.push(context.logits(-1).unwrap().to_vec());
    }
    all
}

#[test]
fn a_card_computes_to_the_bit_what_the_cpu_does_and_only_hybrids_are_left_plain() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = Card::of((Rules::Cuda, false), gib(1));
    let mut left_plain = Vec::new();
    for mut sketch in crate::random_weights::all() {
        sketch.vocabulary();
        let path = crate::random_weights::write(&sketch, folder.path());
        let title = sketch.title();
        let of = |gpu, attention| logits(&path, gpu, attention);
        let fused = of(None, FlashAttention::Enabled);
        let plain = of(None, FlashAttention::Disabled);
        let is_finite = fused.iter().flatten().all(|logit| logit.is_finite());
        assert!(is_finite, "{title}");
        // Not `assert_eq`: thousands of numbers say nothing.
        let same = |a: &[Vec<f32>], b: &[Vec<f32>], which| assert!(a == b, "{title}: {which}");
        same(&of(Some(&gpu), FlashAttention::Enabled), &fused, "fused");
        same(&of(Some(&gpu), FlashAttention::Disabled), &plain, "plain");
        same(&of(None, FlashAttention::Auto), &fused, "AUTO on the CPU");
        let auto = of(Some(&gpu), FlashAttention::Auto);
        if auto != fused {
            same(&auto, &plain, "AUTO, no longer fused");
            left_plain.push(title);
        }
    }
    assert_eq!(left_plain, ["jamba 1 of 2 attends", "falcon-h1 both"]);
}
