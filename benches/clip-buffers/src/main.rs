//! Compares the bound of an mmproj's compute buffer with the buffer that clip.cpp reserves. The encoders have published
//! sizes. The images have from 4 tokens up to the maximum. The devices are the CPU and simulated cards of three
//! families, with and without fused attention. The program prints the lowest and the highest ratio for each encoder. It
//! fails if a bound is too low or if the bytes of the weights differ.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use autoplace_planner::gguf::Builder;
use autoplace_planner::machine::Gpu;
use autoplace_planner::memory::{Companion, ContextParams, FlashAttention};
use llama_sys::sim::{Rules, SimGpu};
use test_support::synthetic::mmproj;

/// The struct of the same name in `native/reserve.cpp`.
#[repr(C)]
#[derive(Default)]
struct Reserved {
    weights: u64,
    device: u64,
    host: u64,
}

unsafe extern "C" {
    fn clip_reserve(
        path: *const c_char,
        device: *mut c_void,
        sound: bool,
        fused: bool,
        width: c_int,
        height: c_int,
        images: c_int,
        out: *mut Reserved,
    ) -> c_int;
    fn ggml_backend_dev_by_name(name: *const c_char) -> *mut c_void;
}

/// Images of equal size: the size, the number of images, and the limit of tokens for which this size is the largest.
struct Input {
    width: c_int,
    height: c_int,
    images: c_int,
    max_tokens: u32,
}

/// The input for an encoder that accepts only one image size.
fn only(width: c_int, height: c_int, images: c_int) -> Vec<Input> {
    vec![Input { width, height, images, max_tokens: 0 }]
}

/// Images of up to `most` tokens in different shapes. A token covers `pixels` x `pixels` pixels.
fn tokens(pixels: u32, most: u32, frames: c_int) -> Vec<Input> {
    let squares = [2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 46, 50, 56, 64].map(|n| (n, n));
    let others = [(4, 2), (32, 16), (30, 34), (16, 64), (8, 128), (64, 32), (128, 32)];
    let all = squares.into_iter().chain(others);
    let all = all.filter(|(x, y)| x * y <= most);
    let input = |(x, y): (u32, u32)| {
        (1..=frames).map(move |images| Input {
            width: (x * pixels).cast_signed(),
            height: (y * pixels).cast_signed(),
            images,
            max_tokens: x * y,
        })
    };
    all.flat_map(input).collect()
}

fn files() -> Vec<(&'static str, Builder, Vec<Input>)> {
    let named = |name, inputs| (name, mmproj::named(name), inputs);
    vec![
        named("LLaVA 1.5", only(336, 336, 1)),
        ("Gemma 3 4B", mmproj::gemma3(2560), only(896, 896, 1)),
        ("Gemma 3 27B", mmproj::gemma3(5376), only(896, 896, 1)),
        ("Gemma 3 at 448", mmproj::gemma3_at(448, 2560), only(448, 448, 1)),
        named("Qwen2-VL 7B", tokens(28, 4096, 2)),
        named("Qwen2.5-VL 7B", tokens(28, 4096, 2)),
        named("Qwen3-VL 8B", tokens(32, 4096, 2)),
        named("Pixtral 12B", tokens(16, 1024, 1)),
        named("Mistral Small 3.1", tokens(28, 1024, 1)),
        named("InternVL3 8B", only(448, 448, 4)),
        named("SmolVLM2", only(378, 378, 1)),
        named("Ultravox 0.5", only(3000, 128, 1)),
    ]
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    println!("| mmproj | on | attention | inputs | bound / reserved |\n|---|---|---|---|---|");
    for (name, builder, inputs) in files() {
        let path = folder.path().join("mmproj.gguf");
        builder.write_sparse(&path)?;
        let companion = Companion::mmproj(&builder.header()?)?;
        let vulkan = Rules::Vulkan { alignment: 256, max_alloc: 1 << 40 };
        for (backend, rules) in
            [("CUDA", Some(Rules::Cuda)), ("Vulkan", Some(vulkan)), ("MTL", Some(Rules::Metal)), ("CPU", None)]
        {
            for fused in [true, false] {
                let hears = name.starts_with("Ultravox");
                let ratios = compare(&companion, &path, &inputs, hears, backend, rules, fused)
                    .with_context(|| format!("{name} on {backend}"))?;
                let (low, high) = ratios;
                let attention = if fused { "fused" } else { "plain" };
                let n = inputs.len();
                println!("| {name} | {backend} | {attention} | {n} | {low:.3} to {high:.3} |");
            }
        }
    }
    Ok(())
}

/// The lowest and the highest ratio over all inputs.
fn compare(
    companion: &Companion,
    path: &Path,
    inputs: &[Input],
    hears: bool,
    backend: &str,
    rules: Option<Rules>,
    fused: bool,
) -> Result<(f64, f64)> {
    let sim = rules.map(|rules| {
        SimGpu::builder("SIM").total(400 << 30).rules(rules).backend(backend).asynchronous(true).register()
    });
    let sim = sim.transpose()?;
    let gpu = Gpu::new("card").total(400 << 30).backend(backend);
    let gpu = sim.as_ref().map(|_| &gpu);
    let device = match &sim {
        None => std::ptr::null_mut(),
        Some(sim) => {
            let name = CString::new(sim.device().name())?;
            // SAFETY: a C string that outlives the call; the registry has the card while `sim` lives.
            unsafe { ggml_backend_dev_by_name(name.as_ptr()) }
        }
    };
    let path = CString::new(path.to_string_lossy().as_bytes())?;
    let mut params = ContextParams::default();
    if !fused {
        params.flash_attn = FlashAttention::Off;
    }
    let (mut low, mut high) = (f64::INFINITY, 0_f64);
    for input in inputs {
        let mut theirs = Reserved::default();
        // SAFETY: the path is a C string; the device is null or one of ggml's; `theirs` has the layout of the callee's
        // struct; the callee catches all exceptions.
        let failed = unsafe {
            clip_reserve(path.as_ptr(), device, hears, fused, input.width, input.height, input.images, &raw mut theirs)
        };
        ensure!(failed == 0, "clip.cpp refuses the file");
        let limited = companion.clone().max_image_tokens(input.max_tokens);
        let bytes = limited.bytes(gpu, &params)?;
        let (ours, reserved) = if gpu.is_some() {
            ensure!(bytes.host.compute >= theirs.host, "the host's {} of {}", bytes.host.compute, theirs.host);
            (bytes.gpu, theirs.device)
        } else {
            (bytes.host, theirs.host)
        };
        ensure!(ours.weights == theirs.weights, "weights: {} of {}", ours.weights, theirs.weights);
        #[allow(clippy::cast_precision_loss)] // a ratio for people
        let ratio = ours.compute as f64 / reserved as f64;
        ensure!(ours.compute >= reserved, "{} x {}: {} of {reserved} bytes", input.width, input.height, ours.compute);
        (low, high) = (low.min(ratio), high.max(ratio));
    }
    Ok((low, high))
}
