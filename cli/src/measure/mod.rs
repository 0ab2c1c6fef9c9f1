//! The verb `measure`. In: a model, and the settings for a measurement. Out: the results, for people or for another
//! tool.

mod bench;
mod ready;
mod table;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use autoplace::ModelBuilder;
use autoplace::gguf::Header;
use autoplace::load::{self, RatesRequest, measure_rates};
use autoplace::machine::Gpu;
use autoplace::plan::{Request, SavedPlan};
use autoplace::profile::ModelProfile;
use autoplace_measure::{Measure, Measurement, Protocol, Steps, Variant};
use clap::{ValueEnum, value_parser};

use crate::ask::AskArgs;
use crate::files::{in_file, parsed, read};
use crate::flags::Flags;
use crate::gpu::{self, Simulated};
use crate::picture::{self, Series};
use crate::stop::Stop;
use crate::talk::here;
use crate::terminal::{bar, line_to_stderr, print};

/// The arguments of `measure`.
#[derive(Debug, clap::Args)]
pub(crate) struct MeasureArgs {
    /// GGUF file, or hf:OWNER/NAME[:QUANT][@REVISION] that was fetched; or a file of `--write` (`.json`) to show again
    model: PathBuf,
    #[command(flatten)]
    ask: AskArgs,
    /// How many values of `n_gpu_layers` to measure, from none to all [default: both ends, and values around the
    /// largest that fits]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(2..), conflicts_with_all = ["full", "before"])]
    steps: Option<u32>,
    /// Measures every value of `n_gpu_layers`
    #[arg(long, conflicts_with = "before")]
    full: bool,
    /// Compares a placement with `--after` instead of a sweep: a plan of `plan --save`, or flags of llama.cpp's
    /// programs such as `'-ngl 58 -ctk q8_0'`
    #[arg(long, value_name = "PLAN|FLAGS", allow_hyphen_values = true, value_parser = placement)]
    before: Option<String>,
    /// The placement to compare `--before` with [default: the plan]
    #[arg(long, value_name = "PLAN|FLAGS", allow_hyphen_values = true, value_parser = placement, requires = "before")]
    after: Option<String>,
    #[command(flatten)]
    ready: ready::ReadyArgs,
    /// Tokens of each prompt; 0 for each prompt's own length [default: 512, or a quarter of the context]
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<u32>,
    /// Tokens to generate after each prompt [default: 256, or a quarter of the context]
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    tokens: Option<u32>,
    /// Tokens in the context before each prompt [default: none, and half of the context]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    at: Vec<u32>,
    /// Rounds over all placements; every placement gets the same prompts [default: 3; 6 for two placements]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Prompts instead of autoplace's twelve: one on each line, or a JSON list of texts
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// CPU threads [default: as chosen by a load]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Uses a simulated GPU with this memory instead of the machine's own; it computes as fast as the CPU; repeat for
    /// several
    #[arg(long, value_name = "NAME[=TOTAL][,free=SIZE]", value_parser = gpu::gpu, allow_hyphen_values = true)]
    pub(crate) gpu: Vec<Gpu>,
    /// Output format
    #[arg(long, value_name = "table|markdown|json|llama-bench", value_enum, default_value_t = Format::Table, hide_possible_values = true)]
    format: Format,
    /// Prints JSON, as `--format json`
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Draws the measurement to a file: measured and predicted speeds with their spread, a published sweep, and the
    /// memory of each placement. `.svg` is the picture, `.html` a self-contained page with the picture
    #[arg(long, value_name = "FILE.svg|FILE.html", value_parser = picture::file)]
    picture: Option<PathBuf>,
    /// Draws another sweep beside this one: a file of `--write`, llama-bench's JSON, or a table of n_gpu_layers and
    /// tokens per second; repeat for several
    #[arg(long, value_name = "FILE", requires = "picture")]
    beside: Vec<PathBuf>,
    /// Writes a file to give to others, without data that identifies the machine, and shows its content
    #[arg(long, value_name = "FILE")]
    submission: Option<PathBuf>,
    /// Writes the JSON to a file too
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// The output format of a measurement.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Table,
    Markdown,
    Json,
    LlamaBench,
}

/// Makes a measurement, or reads one from a file, and prints it. After Ctrl-C it prints the results so far.
pub(crate) fn run(args: &MeasureArgs) -> Result<ExitCode, Box<dyn Error>> {
    let is_read = args.model.extension().is_some_and(|extension| extension == "json");
    if is_read && args.asks_to_measure() {
        return Err(in_file(
            &args.model,
            "a finished measurement is only shown again: leave out the arguments for a new measurement",
        )
        .into());
    }
    let files = [&args.write, &args.picture, &args.submission, args.ready.file()];
    for file in files.into_iter().flatten() {
        if file.is_dir() {
            return Err(in_file(file, "this is a folder: write the name of a file").into());
        }
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            return Err(in_file(folder, "the folder does not exist").into());
        }
    }
    if args.ready.is_asked() {
        return ready::run(args);
    }
    let others: Vec<Series> = args.beside.iter().map(|file| picture::read(file)).collect::<Result<_, _>>()?;
    let (measurement, is_stopped) = if is_read {
        (Measurement::from_json(&read(&args.model)?).map_err(|error| in_file(&args.model, error))?, false)
    } else {
        measured(args)?
    };
    // The measurement took minutes, so it is printed and written to the other files even if a file cannot be written.
    let printed = print(&match args.format() {
        Format::Table => table::text(&measurement),
        Format::Markdown => table::markdown(&measurement),
        Format::Json => measurement.to_json(),
        Format::LlamaBench => bench::jsonl(&measurement),
    });
    let json = args.write.as_ref().map(|file| {
        fs::write(file, measurement.to_json()).map_err(|error| Box::<dyn Error>::from(in_file(file, error)))
    });
    let submission = args.submission.as_ref().map(|file| submit(&measurement, file));
    let rows = || table::rows(&measurement);
    let picture = args.picture.as_ref().map(|file| picture::write_measured(file, &measurement, &others, &rows()));
    [json, submission, picture].into_iter().flatten().collect::<Result<(), _>>()?;
    Ok(if is_stopped { ExitCode::from(130) } else { printed })
}

/// Shows a submission's content and writes it.
fn submit(measurement: &Measurement, file: &Path) -> Result<(), Box<dyn Error>> {
    let submission = measurement.submission();
    if submission.points.is_empty() {
        return Err(in_file(file, "there is nothing to submit: no placement was measured").into());
    }
    line_to_stderr(format_args!("{} contains:", file.display()));
    for line in submission.contents() {
        line_to_stderr(format_args!("  {}", line.replace(char::is_control, " ")));
    }
    fs::write(file, submission.to_json()).map_err(|error| in_file(file, error).into())
}

/// Measures the placements in turn. Also returns whether Ctrl-C ended the measurement.
fn measured(args: &MeasureArgs) -> Result<(Measurement, bool), Box<dyn Error>> {
    with_measure(args, |measure, profile, request| {
        let variants = variants(args, &measure, profile, request)?;
        Ok(measure.run(&variants)?)
    })
}

/// Sets up the measurement, with a progress bar. Also returns whether Ctrl-C ended the measurement.
fn with_measure<T>(
    args: &MeasureArgs,
    run: impl FnOnce(Measure<'_>, &ModelProfile, &Request) -> Result<T, Box<dyn Error>>,
) -> Result<(T, bool), Box<dyn Error>> {
    let request = args.ask.request();
    let model = here(&args.model, &request, || Ok(load::detect()?))?;
    let header = Header::open(&model)?;
    let profile = ModelProfile::from_header(&header)?;
    let texts = args.prompts.as_deref().map(texts).transpose()?.unwrap_or_default();
    // The simulated cards stay registered until this value is dropped.
    let simulated = taught(args, &header, &profile, &request)?;
    let stopped = Stop::listen()?.flag();
    let bar = bar(STEPS, "measuring {msg} {wide_bar} {percent} %, {eta} left");
    let measure = Measure::new(&model)
        .request(request.clone())
        .protocol(|usual| args.protocol(usual, &texts))
        .load_with(|builder| {
            let builder = simulated.iter().fold(builder, |builder, (machine, _)| builder.machine(machine.clone()));
            args.threads.into_iter().fold(builder, ModelBuilder::n_threads)
        })
        .progress(|progress| {
            bar.set_message(progress.name.to_owned());
            bar.set_position((progress.done * STEPS as f64) as u64);
            !stopped.load(Relaxed)
        });
    let measured = run(measure, &profile, &request);
    bar.finish_and_clear();
    Ok((measured?, stopped.load(Relaxed)))
}

/// The placements to compare.
fn variants(
    args: &MeasureArgs,
    measure: &Measure<'_>,
    profile: &ModelProfile,
    request: &Request,
) -> Result<Vec<Variant>, Box<dyn Error>> {
    let Some(before) = &args.before else {
        let steps = match args.steps {
            _ if args.full => Steps::Full,
            Some(steps) => Steps::Even(steps),
            None => Steps::Edge,
        };
        return Ok(measure.variants(steps)?);
    };
    let variant = |name, said: &str| -> Result<Variant, Box<dyn Error>> {
        if is_plan(said) {
            return Ok(Variant::saved(name, SavedPlan::read(said)?));
        }
        Ok(Variant::asked(name, Flags::of_script(said)?.request(request, profile.full_offload())?))
    };
    let after = match &args.after {
        Some(after) => variant("after", after)?,
        None => Variant::asked("after", request.clone()),
    };
    Ok(vec![variant("before", before)?, after])
}

fn is_plan(said: &str) -> bool {
    Path::new(said).extension().is_some_and(|extension| extension == "json")
}

/// Checks the flags of a placement before anything is computed.
fn placement(said: &str) -> Result<String, String> {
    if !is_plan(said) {
        let _ = Flags::of_script(said)?.request(&Request::new(), 0)?;
    }
    Ok(said.to_owned())
}

/// Measures the rates of simulated devices for this model, as a load would. So the first prediction can already use
/// them. Returns the simulated machine, if there is one.
fn taught(
    args: &MeasureArgs,
    header: &Header,
    profile: &ModelProfile,
    request: &Request,
) -> Result<Option<Simulated>, Box<dyn Error>> {
    // For real devices, the load itself measures the rates and stores them.
    if args.gpu.is_empty() {
        return Ok(None);
    }
    let (mut machine, cards) = gpu::as_fast_as_the_host(&args.gpu)?;
    let kv = request.kv_types_of(profile);
    let mut rates = RatesRequest::for_model(header, profile, &kv);
    rates.missing = true;
    measure_rates(&mut machine, &rates, args.threads, |_| ())?;
    Ok(Some((machine, cards)))
}

impl MeasureArgs {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    /// Whether the user gave an argument that is used only for a measurement.
    fn asks_to_measure(&self) -> bool {
        let numbers = [self.steps, self.prompt_tokens, self.tokens, self.rounds, self.threads];
        let is_one_said = numbers.iter().any(Option::is_some) || self.ask.ctx.is_some() || self.prompts.is_some();
        is_one_said
            || self.full
            || self.before.is_some()
            || self.ready.is_asked()
            || !(self.at.is_empty() && self.gpu.is_empty())
    }

    fn protocol(&self, mut protocol: Protocol, texts: &[String]) -> Protocol {
        protocol.n_prompt = self.prompt_tokens.unwrap_or(protocol.n_prompt);
        protocol.n_gen = self.tokens.unwrap_or(protocol.n_gen);
        if !self.at.is_empty() {
            protocol.depths.clone_from(&self.at);
        }
        let usual = if self.before.is_some() { 6 } else { protocol.rounds };
        // If there are fewer texts than rounds, there is one round for each text.
        let most = if texts.is_empty() { usual } else { texts.len() as u32 };
        protocol.rounds = self.rounds.unwrap_or(usual.min(most));
        protocol.prompts(texts)
    }
}

/// Texts from a file: one on each line, or a JSON list.
fn texts(file: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    const EXPECTED: &str = "prompts are a JSON list of texts, or a text with one prompt on each line";
    let text = read(file).map_err(|error| format!("{error}; {EXPECTED}"))?;
    let texts: Vec<String> = match text.trim_start().starts_with('[') {
        true => parsed(file, &text, EXPECTED)?,
        false => text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect(),
    };
    if texts.is_empty() {
        return Err(in_file(file, "it contains no prompt").into());
    }
    Ok(texts)
}

/// Number of steps of the progress bar.
const STEPS: u64 = 10_000;
