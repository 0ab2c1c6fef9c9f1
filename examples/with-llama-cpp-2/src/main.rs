//! Continues a prompt with llama-cpp-2, with a placement from autoplace. The program reads the file's header, plans,
//! prints the placement, loads the model, generates greedily, and prints the speed.
//!
//!     cargo run --release -- model.gguf "Once upon a time" -n 128
//!
//! Your own program needs only `convert.rs`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use autoplace_planner::gguf::Header;
use autoplace_planner::profile::ModelProfile;
use clap::Parser;
use llama_cpp_2::list_llama_ggml_backend_devices;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::sampling::LlamaSampler;

/// Continues a prompt with llama-cpp-2, placed so that it fits.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// GGUF file; for a split model, its first part
    model: PathBuf,
    /// Text to continue
    #[arg(default_value = "Once upon a time")]
    prompt: String,
    /// Maximum number of tokens to generate
    #[arg(short, default_value_t = 128)]
    n: usize,
    /// Show llama.cpp's own log
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let mut backend = LlamaBackend::init()?;
    if !args.verbose {
        backend.void_logs();
    }

    // The plan is computed from the file's header and the devices' free memory.
    let devices = list_llama_ggml_backend_devices();
    let machine = convert::machine(&devices);
    let profile = ModelProfile::from_header(&Header::open(&args.model)?)?;
    let plan = convert::plan(&profile, &machine, &convert::request())?;
    println!("{plan}\n");

    // The model is loaded as planned.
    let params = convert::model_params(&plan, &devices)?;
    let model = LlamaModel::load_from_file(&backend, &args.model, &params)
        .context("llama.cpp does not load the model; --verbose shows why")?;
    // There is one thread for each physical core. A second thread on a core would only wait for the memory that both
    // threads read.
    let cores = machine.host.usable_cores.or(machine.host.physical_cores);
    let threads = cores.map_or(4, |cores| i32::try_from(cores).unwrap_or(i32::MAX));
    let params = convert::context_params(&plan)?.with_n_threads(threads).with_n_threads_batch(threads);
    let mut context = model.new_context(&backend, params).context("llama.cpp makes no context; --verbose shows why")?;

    // Computes the prompt in batches of the planned size, with logits only for its last token.
    let vocab = model.vocab();
    let prompt = vocab.tokenize(args.prompt.as_bytes(), true, true);
    let n_ctx = context.n_ctx() as usize;
    ensure!(!prompt.is_empty(), "the prompt is empty");
    ensure!(
        prompt.len() < n_ctx,
        "the prompt has {} tokens, which leaves no room in a context of {n_ctx}",
        prompt.len()
    );
    let n_batch = context.n_batch() as usize;
    let mut batch = LlamaBatch::new(n_batch, 1);
    let mut positions = 0..;
    let mut left = prompt.len();
    for tokens in prompt.chunks(n_batch) {
        batch.clear();
        for (&token, position) in tokens.iter().zip(&mut positions) {
            left -= 1;
            batch.add(token, position, &[0], left == 0)?;
        }
        context.decode(&mut batch)?;
    }

    // Generates one token after another, always the likeliest.
    let mut out = stdout().lock();
    write!(out, "{}", args.prompt)?;
    let mut sampler = LlamaSampler::greedy();
    let started = Instant::now();
    let mut generated = 0_u32;
    for position in positions.take(args.n.min(n_ctx - prompt.len())) {
        let token = sampler.sample(&context, -1);
        if vocab.is_eog(token) {
            break;
        }
        out.write_all(&vocab.token_to_piece(token, false, None))?;
        out.flush()?;
        batch.clear();
        batch.add(token, position, &[0], true)?;
        context.decode(&mut batch)?;
        generated += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    let speed = f64::from(generated) / seconds;
    writeln!(out, "\n\n{generated} tokens, {speed:.1} tok/s")?;
    Ok(())
}
