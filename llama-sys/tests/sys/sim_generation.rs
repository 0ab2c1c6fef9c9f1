//! A simulated GPU computes what the CPU computes.

use crate::support::sim::{MIB, card, context, context_params, greedy, load, vulkan};
use llama_sys::sim::{Rules, SimGpu};
use llama_sys::{Context, ContextParams, FlashAttention, Token};

const TOKENS: usize = 16;

fn on_the_cpu() -> Vec<Token> {
    greedy(&mut context(&load(&[], 0)), TOKENS)
}

#[test]
fn the_text_is_the_cpus_at_every_number_of_layers_under_the_rules_of_every_backend() {
    own_process!();
    let expected = on_the_cpu();
    let some = &[0, 4, 7][..];
    for (rules, asynchronous, layers) in [
        (Rules::Plain, false, &[0, 1, 2, 3, 4, 5, 6, 7][..]),
        (Rules::Plain, true, some),
        (Rules::Cuda, false, some),
        (Rules::Cuda, true, some),
        (vulkan(64, 2 * MIB), false, some),
        (vulkan(64, 2 * MIB), true, some),
        (Rules::Metal, false, some),
        (Rules::Metal, true, some),
    ] {
        let gpu = SimGpu::builder("SIM rules").total(256 * MIB).rules(rules);
        let gpu = gpu.asynchronous(asynchronous).register().unwrap();
        for &n_gpu_layers in layers {
            let model = load(&[&gpu], n_gpu_layers);
            let text = greedy(&mut context(&model), TOKENS);
            assert_eq!(text, expected, "{rules:?}, {n_gpu_layers} layers");
            assert_eq!(gpu.used() > 0, n_gpu_layers > 0);
        }
        assert!(gpu.graphs() > 0);
    }
}

#[test]
fn the_text_is_the_cpus_on_three_gpus_of_unequal_size() {
    own_process!();
    let expected = on_the_cpu();
    let gpus = [card(8 * MIB), card(24 * MIB), card(16 * MIB)];
    let model = load(&gpus.each_ref(), -1);
    assert_eq!(greedy(&mut context(&model), TOKENS), expected);
    assert!(gpus.iter().all(|gpu| gpu.graphs() > 0));
    // By free memory: the second card holds the most.
    assert!(gpus[1].peak() > gpus[0].peak());
}

#[test]
fn the_text_is_the_cpus_with_four_copies_of_the_graph_in_flight() {
    own_process!();
    let expected = on_the_cpu();
    let pair = |asynchronous| {
        [(); 2].map(|()| {
            let gpu = SimGpu::builder("SIM pair").total(256 * MIB);
            gpu.asynchronous(asynchronous).register().unwrap()
        })
    };
    let peak = |gpus: [SimGpu; 2]| {
        let model = load(&gpus.each_ref(), -1);
        assert_eq!(greedy(&mut context(&model), TOKENS), expected);
        gpus[0].peak() + gpus[1].peak()
    };
    // The copies take memory: that llama.cpp made them is to be seen there.
    assert!(peak(pair(true)) > peak(pair(false)));
}

#[test]
fn without_fused_attention_llama_cpp_does_without() {
    own_process!();
    let unfused = |n_gpu_layers, gpus: &[&SimGpu], flash_attention| {
        let params = ContextParams { flash_attention, ..context_params() };
        let model = load(gpus, n_gpu_layers);
        let mut context = Context::new(&model, params).unwrap();
        let rows = context.memory_breakdown().unwrap().rows;
        let bytes: u64 = rows.iter().map(|row| row.compute).sum();
        (greedy(&mut context, TOKENS), bytes)
    };
    let (expected, _) = unfused(0, &[], FlashAttention::Disabled);
    let gpu = SimGpu::builder("SIM old card").flash_attention(false);
    let gpu = gpu.register().unwrap();
    let (text, automatic) = unfused(-1, &[&gpu], FlashAttention::Auto);
    assert_eq!(text, expected);
    // Without it the graph is another, and so is its memory.
    let able = card(256 * MIB);
    let (_, fused) = unfused(-1, &[&able], FlashAttention::Auto);
    assert_ne!(automatic, fused);
}
