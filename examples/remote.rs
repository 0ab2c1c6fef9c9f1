//! Uses the devices of this machine and of other machines. If another machine is lost in the middle of the text, the
//! text continues without it.
//!
//!     cargo run --release --features rpc --example remote -- -m model.gguf 127.0.0.1:50052 127.0.0.1:50053

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use autoplace::plan::GpuLayers;
use autoplace::{Isolation, Model, OnDeath, WorkerProcess};
use autoplace_examples::DEMO_MODEL;
use clap::Parser;

/// Continues a prompt with the devices of other machines.
#[derive(Parser)]
struct Args {
    /// GGUF file
    #[arg(short, long, value_name = "FILE", default_value = DEMO_MODEL, hide_default_value = true)]
    model: PathBuf,
    /// Text to continue
    #[arg(short, long, default_value = "And the king said unto his servants,")]
    prompt: String,
    /// Maximum number of tokens to generate
    #[arg(short, default_value_t = 128)]
    n: usize,
    /// Puts all layers on the servers, even if that is slower
    #[arg(long)]
    all: bool,
    /// rpc-servers: `autoplace-rpc-server` on each machine, through a tunnel
    #[arg(value_name = "HOST:PORT", required = true)]
    servers: Vec<String>,
}

fn main() -> ExitCode {
    // A separate process is connected to the servers, because a lost connection ends the process.
    autoplace::worker_main();
    autoplace_examples::run(|args: Args| {
        let process = WorkerProcess::own_executable().on_death(OnDeath::Resume { attempts: 2 });
        let builder = Model::builder(&args.model)
            .n_gpu_layers(if args.all { GpuLayers::All } else { GpuLayers::Auto })
            .isolation(Isolation::Process(process));
        let model = args.servers.iter().fold(builder, |builder, server| builder.rpc(server)).load()?;
        println!("{}\n", model.placement());

        print!("{}", args.prompt);
        let mut stream = model.generate(&args.prompt).max_tokens(args.n).seed(1).stream()?;
        for piece in &mut stream {
            print!("{}", piece?);
            stdout().flush()?;
        }
        println!("\n\n{}", stream.statistics());
        drop(stream);
        for gone in &model.machine().unused_gpus {
            println!("{gone}\n\nre-placed:\n{}", model.placement());
        }
        Ok(ExitCode::SUCCESS)
    })
}
