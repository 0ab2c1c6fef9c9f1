//! Continues a prompt: places the model, prints the placement, streams the text, and prints the speed.
//!
//!     cargo run --release --example generate -- -m model.gguf -p "Once upon a time" -n 128

use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use autoplace::AbortHandle;
use autoplace::Model;
use autoplace::plan::{Context, GpuLayers, SavedPlan};
use autoplace_examples::DEMO_MODEL;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

/// Continues a prompt with a local model, placed so that it fits.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true)]
struct Args {
    /// GGUF file; for a split model, its first part
    #[arg(short, long, value_name = "FILE", default_value = DEMO_MODEL, hide_default_value = true)]
    model: PathBuf,
    /// Text to continue
    #[arg(short, long, default_value = "And the king said unto his servants,")]
    prompt: String,
    /// Maximum number of tokens to generate
    #[arg(short, default_value_t = 128)]
    n: usize,
    /// Tokens of context [default: 4096 to 32768, the most that moves no layer to the host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
    /// Sampling temperature; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8)]
    temp: f32,
    /// Seed of the random choice [default: a new seed every time]
    #[arg(long)]
    seed: Option<u32>,
    /// Layers on the GPU [default: as many as fit safely]
    #[arg(long, value_name = "N")]
    ngl: Option<u32>,
    /// Follows a plan that `autoplace plan --save` wrote, instead of making one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ctx", "ngl"])]
    plan: Option<PathBuf>,
}

fn main() -> ExitCode {
    autoplace_examples::run(|args: Args| {
        let interrupted = Arc::new(AtomicBool::new(false));
        match run(args, &interrupted) {
            _ if interrupted.load(Relaxed) => Ok(ExitCode::from(130)),
            // It is not an error if the reader of our output has closed it.
            Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
            outcome => outcome.map(|()| ExitCode::SUCCESS),
        }
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error: Option<&std::io::Error> = error.downcast_ref();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(args: Args, interrupted: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let flag = Arc::clone(interrupted);
    let running: Arc<OnceLock<AbortHandle>> = Arc::default();
    let stop = Arc::clone(&running);
    let on_signal = move || match (flag.swap(true, Relaxed), stop.get()) {
        // The first Ctrl-C ends the computation, and the second ends the program.
        (false, Some(computing)) => computing.abort(),
        (false, None) => {}
        (true, _) => std::process::exit(130),
    };
    ctrlc::set_handler(on_signal).context("cannot listen for Ctrl-C")?;

    let flag = Arc::clone(interrupted);
    let bar = progress_bar();
    let mut builder = Model::builder(&args.model)
        .context(args.ctx.map_or(Context::Default, Context::Tokens))
        .n_gpu_layers(args.ngl.map_or(GpuLayers::Auto, GpuLayers::Exactly))
        .progress(move |progress| {
            bar.set_message(progress.stage.doing());
            bar.set_position((progress.done * 100.0) as u64);
            !flag.load(Relaxed)
        });
    if let Some(file) = args.plan {
        builder = builder.follow(SavedPlan::read(file)?);
    }
    let model = builder.load()?;

    let mut generate = model.generate(&args.prompt).max_tokens(args.n).temp(args.temp);
    if let Some(seed) = args.seed {
        generate = generate.seed(seed);
    }
    // Invalid requests fail here, before anything is printed.
    let mut stream = generate.stream()?;
    let _ = running.set(stream.abort_handle());

    let mut out = stdout().lock();
    writeln!(out, "{}\n", model.placement())?;
    write!(out, "{}", args.prompt)?;
    out.flush()?;
    while !interrupted.load(Relaxed)
        && let Some(piece) = stream.next()
    {
        match piece {
            Ok(piece) => write!(out, "{piece}")?,
            Err(_) if interrupted.load(Relaxed) => break,
            Err(error) => return Err(error.into()),
        }
        out.flush()?;
    }
    writeln!(out, "\n\n{}", stream.statistics())?;
    Ok(())
}

/// A progress bar that appears only on a terminal and is erased at the end.
fn progress_bar() -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(100) } else { ProgressBar::hidden() };
    bar.with_style(ProgressStyle::with_template("{msg} {bar:40} {pos}%").expect("a valid template"))
        .with_finish(indicatif::ProgressFinish::AndClear)
}
