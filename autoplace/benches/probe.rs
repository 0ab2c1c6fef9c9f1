//! scratch
#![allow(missing_docs)]
#[path = "../tests/shapes/mod.rs"]
mod shapes;
use autoplace::gguf::Header;
use autoplace::llama_sys::{Context, ContextParams, LoadMode, Model, ModelParams, sim::SimGpu};
use std::time::Instant;
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    s.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
}
fn main() {
    let tokens = (0..128_256).map(|token| format!("token{token}"));
    let builder = shapes::LLAMA_70B
        .builder()
        .array_str("tokenizer.ggml.tokens", tokens);
    let header: Header = builder.header().unwrap();
    let gpu = SimGpu::builder("x").total(400 << 30).register().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.gguf");
    for round in 0..4 {
        let t = Instant::now();
        let c = cpu();
        let s = header.skeleton().unwrap();
        println!("build skeleton {:?} cpu {:.2}", t.elapsed(), cpu() - c);
        let t = Instant::now();
        let c = cpu();
        s.write_sparse(&path).unwrap();
        println!(
            "write skeleton {:?} cpu {:.2} {}",
            t.elapsed(),
            cpu() - c,
            std::fs::metadata(&path).unwrap().len()
        );
        for ngl in [0, 40, 81] {
            let t = Instant::now();
            let c = cpu();
            let m = Model::load(
                &path,
                ModelParams {
                    devices: Some(vec![gpu.device()]),
                    n_gpu_layers: ngl,
                    load_mode: LoadMode::None,
                    no_alloc: true,
                    ..Default::default()
                },
            )
            .unwrap();
            println!("{round} {ngl} model {:?} cpu {:.2}", t.elapsed(), cpu() - c);
            for n_threads in [None, Some(1)] {
                let t = Instant::now();
                let c = cpu();
                let ctx = Context::new(
                    &m,
                    ContextParams {
                        n_ctx: 4096,
                        n_outputs_max: 1,
                        n_threads,
                        n_threads_batch: n_threads,
                        ..Default::default()
                    },
                )
                .unwrap();
                println!("  context {:?} cpu {:.2}", t.elapsed(), cpu() - c);
                let t = Instant::now();
                let c = cpu();
                ctx.memory_breakdown().unwrap();
                println!("  breakdown {:?} cpu {:.2}", t.elapsed(), cpu() - c);
                let t = Instant::now();
                let c = cpu();
                drop(ctx);
                println!("  drop ctx {:?} cpu {:.2}", t.elapsed(), cpu() - c);
            }
            let t = Instant::now();
            let c = cpu();
            drop(m);
            println!("  drop model {:?} cpu {:.2}", t.elapsed(), cpu() - c);
        }
    }
}
