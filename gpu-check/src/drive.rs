//! The process that runs a [`Job`].

use anyhow::{Context as _, Result, bail};
use autoplace::generate::{self, FinishReason, Sampling, Session, Statistics};
use autoplace::llama_sys::Token;
use autoplace::load::{self, Verify};
use autoplace::{Model, ModelBuilder};
use bare_llama::Bare;

use crate::job::{Job, Stage, Step, say};
use crate::rig::Opened;

/// The number of tokens to generate at the end of a text that fills its context.
const LAST: usize = 8;

/// Reads a job from stdin and writes its stages to stdout. A failure is also a stage.
pub(crate) fn main() -> Result<()> {
    let job: Job = serde_json::from_reader(std::io::stdin().lock()).context("no job on stdin")?;
    if let Err(error) = carry_out(&job) {
        let judged = Failed::from_error(&error);
        say(&Stage::Failed {
            error: format!("{error:#}"),
            out_of_memory: judged.out_of_memory,
            refused: judged.refused,
        })?;
    }
    Ok(())
}

fn carry_out(job: &Job) -> Result<()> {
    let rig = job.rig.open()?;
    say(&Stage::Opened { free: rig.free()? })?;
    let model = builder(job, &rig)?.load()?;
    say(&Stage::Loaded { report: (*model.report()).clone(), free: rig.free()? })?;
    let mut driver = Driver::new(&model, job)?;
    for step in &job.steps {
        let done = driver.take(step).with_context(|| format!("{step:?}"))?;
        say(&Stage::Done {
            step: step.clone(),
            free: rig.free()?,
            depth: driver.depth,
            speeds: done.speeds,
            plain: done.plain,
            tokens: done.tokens,
        })?;
    }
    Ok(())
}

fn builder(job: &Job, rig: &Opened) -> Result<ModelBuilder> {
    let verify = if job.warm_up { Verify::default() } else { Verify::Off };
    let mut builder = Model::builder(&job.model)
        .request(job.request.clone())
        .machine(rig.machine()?)
        .attempts(job.attempts)
        .verify(verify)
        .on_difference(job.on_difference);
    if let Some(threads) = job.threads {
        builder = builder.n_threads(threads);
    }
    Ok(builder)
}

/// A loaded model that runs the steps of a job.
struct Driver<'a> {
    job: &'a Job,
    model: &'a Model,
    session: Session,
    /// Tokens that may occur in a prompt: all but the end-of-text tokens.
    words: Vec<Token>,
    /// End-of-text tokens. No text here may contain them.
    ends: Vec<Token>,
    /// Tokens in the context.
    depth: usize,
}

#[derive(Default)]
struct Done {
    speeds: Vec<(f64, f64)>,
    plain: Vec<(f64, f64)>,
    tokens: Vec<Token>,
}

impl<'a> Driver<'a> {
    fn new(model: &'a Model, job: &'a Job) -> Result<Self> {
        let native = model.native()?;
        let vocab = native.vocab();
        let all = 0..i32::try_from(vocab.n_tokens())?;
        let (ends, words) = all.partition(|&token| vocab.is_eog(token));
        Ok(Self { job, model, session: model.session()?, words, ends, depth: 0 })
    }

    fn take(&mut self, step: &Step) -> Result<Done> {
        let params = &self.model.placement().context;
        let (n_ctx, n_ubatch) = (params.n_ctx as usize, params.n_ubatch as usize);
        let mut done = Done::default();
        match *step {
            Step::Ubatch => {
                self.run(self.prompt(n_ubatch.min(n_ctx - 1)), 1)?;
            }
            Step::Decode(tokens) => {
                self.run(self.prompt(1), tokens)?;
            }
            Step::ToTheEnd => {
                let text = self.run(self.prompt(n_ctx.saturating_sub(LAST).max(1)), n_ctx)?;
                if text.reason != FinishReason::ContextFull {
                    bail!("the text ended with {:?} at {}", text.reason, self.depth);
                }
            }
            Step::Beside { prompt, generated, rounds } => {
                let mut bare = self.bare()?;
                for round in 0..=rounds {
                    // From round to round, the other side goes first.
                    let (ours, theirs) = if round % 2 == 0 {
                        let ours = self.bench(prompt, generated)?;
                        (ours, bench(&mut bare, prompt, generated)?)
                    } else {
                        let theirs = bench(&mut bare, prompt, generated)?;
                        (self.bench(prompt, generated)?, theirs)
                    };
                    if round > 0 {
                        done.speeds.push(ours);
                        done.plain.push(theirs);
                    }
                }
            }
            Step::Greedy { ref prompt, tokens } => {
                let generate = self.model.generate(prompt.as_str());
                done.tokens = self.finish(generate, tokens)?.tokens;
            }
        }
        Ok(done)
    }

    /// Loads the model a second time with the plan's placement, through llama.cpp's own functions.
    fn bare(&self) -> Result<Bare> {
        let plan = self.model.placement();
        let devices: Vec<String> = plan.gpus().filter_map(|gpu| gpu.device.clone()).collect();
        let threads = self.job.threads.context("only with stated threads both have as many")?;
        Bare::with_split(&self.job.model, &devices, &plan.split(), &plan.context, threads)
    }

    /// The speed of a prompt and of a generation, each in an empty context, in tokens per second. Sampling is greedy.
    fn bench(&mut self, prompt: usize, generated: usize) -> Result<(f64, f64)> {
        let mut run = |prompt: usize, tokens: usize| {
            let generate = greedy(self.model.generate(self.prompt(prompt)));
            self.end_of(generate.max_tokens(tokens))
        };
        let of_prompt = run(prompt, 1)?.statistics.prompt_tokens_per_second();
        // The first token is computed with the prompt, so it does not count.
        let of_text = run(1, generated + 1)?.statistics.tokens_per_second();
        Ok((of_prompt, of_text))
    }

    /// A prompt with this many tokens. All prompts are different.
    fn prompt(&self, tokens: usize) -> generate::Prompt {
        let words = &self.words;
        // The step between the tokens is a prime number, so that the router of a mixture of experts gets all kinds of
        // tokens.
        let tokens = (0..tokens).map(|n| words[(n * 7919 + 13) % words.len()]);
        generate::Prompt::tokens(tokens.collect::<Vec<_>>())
    }

    fn run(&mut self, prompt: generate::Prompt, tokens: usize) -> Result<Text> {
        self.finish(self.model.generate(prompt), tokens)
    }

    /// Generates one text in an empty context, up to the end of the text.
    fn finish(&mut self, generate: generate::GenerateRequest, tokens: usize) -> Result<Text> {
        let mut generate = greedy(generate).max_tokens(tokens);
        for &end in &self.ends {
            generate = generate.logit_bias(end, f32::NEG_INFINITY);
        }
        self.end_of(generate)
    }

    /// Runs a request to its end.
    fn end_of(&mut self, generate: generate::GenerateRequest) -> Result<Text> {
        self.session.begin(generate)?;
        let mut text = Vec::new();
        loop {
            for piece in self.session.step()? {
                text.extend(piece.token);
                if let Some(end) = piece.end {
                    self.depth = end.statistics.prompt_tokens + text.len();
                    return Ok(Text { tokens: text, reason: end.reason, statistics: end.statistics });
                }
            }
        }
    }
}

struct Text {
    tokens: Vec<Token>,
    reason: FinishReason,
    statistics: Statistics,
}

/// Changes the request to greedy sampling without a cached prompt.
fn greedy(generate: generate::GenerateRequest) -> generate::GenerateRequest {
    generate.sampling(Sampling::greedy()).cache_prompt(false)
}

/// The speed of a prompt and of a generation in llama.cpp's own loop, in tokens per second.
fn bench(bare: &mut Bare, prompt: usize, generated: usize) -> Result<(f64, f64)> {
    Ok((bare.prompt(prompt)?, bare.generation(generated)?))
}

/// The kind of a failure. If a computation fails after a verified load, that counts as a lack of memory, because
/// llama.cpp does not always give the reason.
#[derive(Debug, PartialEq, Eq)]
struct Failed {
    out_of_memory: bool,
    refused: bool,
}

impl Failed {
    fn from_error(error: &anyhow::Error) -> Self {
        let load = error.downcast_ref::<load::Error>();
        let generation = error.downcast_ref::<generate::Error>();
        let refused = load.is_some_and(|error| matches!(error, load::Error::Plan(_)));
        Self {
            out_of_memory: load.is_some_and(lacks_memory)
                || generation.is_some_and(|error| matches!(error, generate::Error::Native(_))),
            refused,
        }
    }
}

/// Whether any attempt of a load failed for lack of memory.
fn lacks_memory(error: &load::Error) -> bool {
    match error {
        load::Error::OutOfMemory { .. } | load::Error::Difference { .. } | load::Error::AllAttempts { .. } => true,
        load::Error::Native(native) => native.out_of_memory().is_some(),
        _ => false,
    }
}
