//! Models, texts as tokens, and texts that llama.cpp itself generates. The tests that generate share them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use autoplace::chat::ChatTemplate;
use autoplace::generate::{
    Chat, End, Engine, GenerateRequest, Metrics, Piece, Prompt, SequenceId, Session, Statistics, TokenLogprobs,
    TokenStream,
};
use autoplace::llama_sys::{
    self, Batch, Candidate, Candidates, Context, ContextParams, FlashAttention, Position, Sampler, Token,
};
use autoplace::plan::{self, Request};
use autoplace::{Isolation, Model, ModelBuilder, OnDeath, WorkerProcess, memory};

use test_support::{demo_path, wait};

pub(crate) const PROMPT: &str = "And the king said unto his servants,";

pub(crate) const SYSTEM: &str =
    "And the king said unto his servants, Go ye now unto the house of my father, and bring ";

pub(crate) const REPEATED: &str = "And he said, Go, and they went; and he said, Come, and they came; and he said,";

pub(crate) const PROMPTS: [&str; 8] = [
    PROMPT,
    "In the beginning God created",
    "And it came to pass in those days that",
    "The first song of David, when he",
    "Blessed is the man that",
    "And Moses went up from the plains of Moab unto the mountain of",
    "Now these are the names of the children of",
    "Praise ye the LORD.",
];

/// A request for a context in which the demo model computes the same bits, whatever the shape of the batch. This is
/// true even on CPUs without AVX-512. Products with 8-bit weights have this property, and so has fused attention of up
/// to 63 tokens. In plain attention, values are added in another order for one token than for several. When a result is
/// later rounded to 8 bits, it may then be one step higher or lower.
pub(crate) fn request(n_ctx: u32, n_seq_max: u32, kv_unified: bool) -> Request {
    let context = plan::Context::Tokens(n_ctx);
    let mut request = Request::new().n_seq_max(n_seq_max).context(context).n_ubatch(32);
    request.params.kv_unified = kv_unified;
    request.params.flash_attn = memory::FlashAttention::On;
    request
}

pub(crate) fn load(path: &Path, request: Request) -> Model {
    Model::builder(path).request(request).n_threads(1).load().unwrap()
}

/// The demo model, in a context for which [`request`] asks.
pub(crate) fn demo(n_ctx: u32, n_seq_max: u32, kv_unified: bool) -> Model {
    load(&demo_path(), request(n_ctx, n_seq_max, kv_unified))
}

pub(crate) fn worker() -> WorkerProcess {
    WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"))
}

/// A model in a worker, which is replaced when it dies.
pub(crate) fn in_worker(path: &Path, request: Request) -> Model {
    let builder = Model::builder(path).request(request).n_threads(1);
    let worker = worker().on_death(OnDeath::Resume { attempts: 2 });
    builder.isolation(Isolation::Process(worker)).load().unwrap()
}

pub(crate) fn greedy(model: &Model, prompt: impl Into<Prompt>) -> GenerateRequest {
    model.generate(prompt).temp(0.0).max_tokens(24)
}

/// A conversation whose answers are short, with a template of this family.
pub(crate) fn chat(model: &Model, family: &str) -> Chat {
    model.chat_with(ChatTemplate::family(family).unwrap()).with(|generate| generate.temp(0.0).max_tokens(12))
}

/// The temperature for models with random weights. In such a model, the logits are close together. So no token is
/// likely, and each choice depends on all tokens before it. No `top_k` is set, because the last bits would decide which
/// token is the 40th.
pub(crate) const COLD: f32 = 0.3;

pub(crate) fn sampled(model: &Model, prompt: impl Into<Prompt>, seed: u32) -> GenerateRequest {
    model.generate(prompt).temp(COLD).seed(seed).top_k(0).top_p(1.0).min_p(0.0)
}

/// A sampler as an application may supply one: it chooses the likeliest token.
pub(crate) fn likeliest(candidates: &mut Candidates, _: &[Token]) -> Token {
    candidates.iter().max_by(|a, b| a.logit().total_cmp(&b.logit())).map_or(-1, Candidate::token)
}

/// A text that was generated, and how it ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Completion {
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    logprobs: Vec<TokenLogprobs>,
    pub(crate) end: Option<End>,
}

/// The statistics are not compared.
impl PartialEq for Completion {
    fn eq(&self, other: &Self) -> bool {
        let end = |completion: &Self| completion.end.map(|end| (end.reason, end.meets_constraint));
        let is_said = self.tokens == other.tokens && self.text == other.text && self.logprobs == other.logprobs;
        is_said && end(self) == end(other)
    }
}

impl Completion {
    pub(crate) fn from_pieces(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut completion = Self::default();
        pieces.into_iter().for_each(|piece| completion.push(&piece));
        completion
    }

    fn push(&mut self, piece: &Piece) {
        assert!(self.end.is_none(), "nothing comes after the end: {piece:?}");
        self.tokens.extend(piece.token);
        self.text.push_str(&piece.text);
        self.logprobs.extend(piece.logprobs.clone());
        self.end = piece.end;
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.end.expect("it has ended").statistics
    }
}

/// The texts of a session, which are collected from its steps.
#[derive(Debug, Default)]
pub(crate) struct Texts(BTreeMap<SequenceId, Completion>);

impl Texts {
    pub(crate) fn step(&mut self, session: &mut Session) {
        for piece in session.step().unwrap() {
            self.0.entry(piece.sequence).or_default().push(&piece);
        }
    }

    /// Takes steps until a text has `n` generated tokens.
    pub(crate) fn generate_to(&mut self, session: &mut Session, sequence: SequenceId, n: usize) {
        while session.statistics(sequence).unwrap().generated_tokens < n {
            self.step(session);
        }
    }

    pub(crate) fn run(&mut self, session: &mut Session) {
        while !session.is_empty() {
            self.step(session);
        }
    }

    pub(crate) fn of(&mut self, sequence: SequenceId) -> &mut Completion {
        self.0.entry(sequence).or_default()
    }
}

/// Runs a session to its end. Before each step, `before_step` is called. Returns the texts, in the order in which they
/// began.
pub(crate) fn texts_of(session: &mut Session, mut before_step: impl FnMut(&mut Session, usize)) -> Vec<Completion> {
    let mut texts = Texts::default();
    for step in 0.. {
        if session.is_empty() {
            break;
        }
        before_step(session, step);
        texts.step(session);
    }
    texts.0.into_values().collect()
}

pub(crate) fn to_the_end(session: &mut Session) -> Vec<Completion> {
    texts_of(session, |_, _| {})
}

/// Generates one text in a session, to its end.
pub(crate) fn complete(generate: GenerateRequest, model: &Model) -> Completion {
    let mut session = model.session().unwrap();
    session.begin(generate).unwrap();
    to_the_end(&mut session).remove(0)
}

/// Reads a text from an engine to its end.
pub(crate) fn answered(mut answer: TokenStream) -> Completion {
    Completion::from_pieces(answer.pieces().map(Result::unwrap))
}

pub(crate) fn text(generate: GenerateRequest) -> String {
    generate.text().unwrap()
}

pub(crate) fn text_and_statistics(generate: GenerateRequest) -> (String, Statistics) {
    generate.stream().unwrap().into_text().unwrap()
}

/// Waits until `holds` is true for the metrics of the engine.
#[track_caller]
pub(crate) fn until(engine: &Engine, holds: impl Fn(Metrics) -> bool) {
    wait("comes", || holds(engine.metrics()));
}

/// A number from the system's status of this process, if there is one.
pub(crate) fn status(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

/// The resident memory and the data of this process in KiB, and its numbers of open files and of threads, if the system
/// reports them.
pub(crate) fn held() -> Option<[u64; 4]> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some([status("VmRSS")?, status("VmData")?, files, status("Threads")?])
}

pub(crate) fn tokens_of(model: &Model, text: &str) -> Vec<Token> {
    model.native().unwrap().vocab().tokenize(text, true, false).unwrap()
}

/// Random tokens. In the vocabulary of every small model, they are words.
pub(crate) fn words(seed: u32, n: usize) -> Vec<Token> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        259 + (state >> 16) as Token % 200
    };
    (0..n).map(next).collect()
}

/// The first model with this architecture. Its random weights have 32 bits, and so has the cache in [`small`]. In other
/// cells or batches, sums are added in another order. With quantised numbers, this would change a result much more.
pub(crate) fn random(arch: &str, window: Option<u64>, folder: &Path) -> PathBuf {
    let mut sketch = test_support::random_weights::all().into_iter().find(|sketch| sketch.arch == arch).unwrap();
    if let Some(window) = window {
        sketch.u32("attention.sliding_window", window);
    }
    let mut sketch = sketch.in_floats();
    sketch.vocabulary();
    test_support::random_weights::write(&sketch, folder)
}

/// Loads a model with plain attention in 32 bits. Its batches are so small that the cache of a window has room for 256
/// tokens (llama-kv-cache-iswa.cpp). `checkpoints` is the maximum number of bytes for checkpoints.
pub(crate) fn small(path: &Path, request: Request, checkpoints: u64) -> Model {
    small_builder(path, request, checkpoints).load().unwrap()
}

/// A builder for the model that [`small`] loads.
pub(crate) fn small_builder(path: &Path, request: Request, checkpoints: u64) -> ModelBuilder {
    let mut request = request.n_batch(64);
    request.params.flash_attn = memory::FlashAttention::Off;
    request.params.swa_full = false;
    request.params.type_k = memory::KvType::F32;
    request.params.type_v = memory::KvType::F32;
    Model::builder(path).request(request).n_threads(1).checkpoints(checkpoints)
}

/// The seed for texts of models with random weights.
pub(crate) const SEED: u32 = 1;

/// The text that llama.cpp itself generates with a model of random weights after these tokens. The sampling is the same
/// as for our texts, so that one token is not repeated forever.
pub(crate) fn raw_by_chance(model: &Model, prompt: &[Token], n: usize) -> Vec<Token> {
    let native = &model.native().unwrap();
    let raw = Raw::with(native, plain((prompt.len() + n + 8) as u32, llama_sys::KvType::F32));
    let by_chance = Sampler::chain(native).unwrap().temperature(COLD).unwrap().dist(SEED);
    let raw = raw.by(by_chance.unwrap(), &[]).go_on(prompt, n);
    let different: std::collections::BTreeSet<_> = raw.iter().collect();
    assert!(raw.len() < n || different.len() > n / 4, "{raw:?}");
    raw
}

/// Parameters for plain attention as in [`small`]. Keys and values have this type.
pub(crate) fn plain(n_ctx: u32, kv: llama_sys::KvType) -> ContextParams {
    let flash_attention = FlashAttention::Disabled;
    ContextParams { flash_attention, type_k: kv, type_v: kv, swa_full: false, ..params(n_ctx) }
}

/// The parameters that [`request`] sets, with one thread.
fn params(n_ctx: u32) -> ContextParams {
    ContextParams {
        n_ctx,
        n_ubatch: 32,
        n_threads: Some(1),
        n_threads_batch: Some(1),
        flash_attention: FlashAttention::Enabled,
        ..ContextParams::default()
    }
}

/// llama.cpp's own greedy loop.
pub(crate) struct Raw {
    context: Context,
    sampler: Sampler,
    batch: Batch,
    /// The position that the next token gets.
    position: Position,
}

impl Raw {
    pub(crate) fn new(model: &llama_sys::Model, n_ctx: u32) -> Self {
        Self::with(model, params(n_ctx))
    }

    pub(crate) fn with(model: &llama_sys::Model, params: ContextParams) -> Self {
        Self {
            context: Context::new(model, params).unwrap(),
            sampler: Sampler::chain(model).unwrap().greedy().unwrap(),
            batch: Batch::default(),
            position: 0,
        }
    }

    /// Sets the sampler of the loop, after it has accepted the tokens `shown`.
    pub(crate) fn by(mut self, mut sampler: Sampler, shown: &[Token]) -> Self {
        for &token in shown {
            sampler.accept(token).unwrap();
        }
        self.sampler = sampler;
        self
    }

    /// The context, to set adapters or to read logits.
    pub(crate) fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Computes tokens.
    pub(crate) fn compute(&mut self, tokens: &[Token]) {
        self.batch.clear();
        for (number, &token) in (1..).zip(tokens) {
            let last = number == tokens.len();
            self.batch.add(token, self.position, 0, last);
            self.position += 1;
        }
        self.context.decode(&self.batch).unwrap();
    }

    /// Computes rows of an encoder. The rows take `n_positions` positions.
    pub(crate) fn compute_rows(&mut self, rows: &[f32], positions: &[Position], n_positions: Position, at_once: bool) {
        let rows = llama_sys::Rows { values: rows, positions, seq: 0, is_non_causal: at_once, output_last: false };
        self.context.decode_rows(&rows).unwrap();
        self.position += n_positions;
    }

    /// The position of the next token.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    pub(crate) fn choose(&mut self) -> Token {
        self.sampler.sample(&mut self.context, -1).unwrap()
    }

    /// llama.cpp's context shift: removes `discard` positions after the first `keep`.
    pub(crate) fn shift(&mut self, keep: Position, discard: Position) {
        let end = keep + discard;
        assert!(self.context.kv_seq_remove(0, keep..end).unwrap());
        self.context.kv_seq_shift(0, end..Position::MAX, -discard).unwrap();
        self.position -= discard;
    }

    /// The next `n` tokens after a prompt, or fewer at the end of the text.
    pub(crate) fn text(model: &Model, prompt: &[Token], n: usize) -> Vec<Token> {
        Self::new(&model.native().unwrap(), (prompt.len() + n + 8) as u32).go_on(prompt, n)
    }

    /// The next `n` tokens after `prompt`, or fewer at the end of the text.
    pub(crate) fn go_on(mut self, prompt: &[Token], n: usize) -> Vec<Token> {
        let vocab = self.context.model().vocab();
        self.compute(prompt);
        let mut tokens = Vec::new();
        while tokens.len() < n {
            let token = self.choose();
            tokens.push(token);
            if vocab.is_eog(token) {
                break;
            }
            self.compute(&[token]);
        }
        tokens
    }
}
