//! Texts of a session by their tokens, and the same by llama.cpp alone.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::Path;

use autoplace::Model;
use autoplace::generate::{End, Generate, Prompt, SequenceId, Session, Statistics};
use autoplace::llama_sys::{
    self, Batch, Context, ContextParams, FlashAttention, Position, Sampler, Token,
};
use autoplace::memory;
use autoplace::plan::{self, Request};

pub(crate) const SYSTEM: &str =
    "And the king said unto his servants, Go ye now unto the house of my father, and bring ";

/// A request for a context whose texts have the same rounding in batches of any shape: the CPU's fused attention has
/// another for 64 tokens and more than for fewer, the plain one has not.
pub(crate) fn request(n_ctx: u32, n_seq_max: u32, kv_unified: bool) -> Request {
    let context = plan::Context::Tokens(n_ctx);
    let mut request = Request::new().n_seq_max(n_seq_max).context(context);
    request.params.kv_unified = kv_unified;
    request.params.flash_attn = memory::FlashAttention::Off;
    request
}

pub(crate) fn load(path: &Path, request: Request) -> Model {
    let builder = Model::builder(path).request(request).threads(1);
    builder.load().unwrap()
}

pub(crate) fn greedy(model: &Model, prompt: impl Into<Prompt>) -> Generate {
    model.generate(prompt).temperature(0.0).max_tokens(24)
}

/// Evens out the tokens that come into question: which of them comes depends on the order and the nearness of all.
const HOT: f32 = 12.0;

/// By chance, so that a text tells of every token before it, of models with random weights too.
pub(crate) fn sampled(model: &Model, prompt: impl Into<Prompt>, seed: u32) -> Generate {
    let generate = model.generate(prompt).temperature(HOT).seed(seed);
    generate.top_k(40).top_p(1.0).min_p(0.0)
}

/// What became of a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    pub(crate) end: Option<End>,
}

/// What the steps of a session add to its texts.
#[derive(Debug, Default)]
pub(crate) struct Texts(BTreeMap<SequenceId, Told>);

impl Texts {
    pub(crate) fn step(&mut self, session: &mut Session) {
        for piece in session.step().unwrap() {
            let told = self.0.entry(piece.sequence).or_default();
            told.tokens.extend(piece.token);
            told.text.push_str(&piece.text);
            told.end = piece.end;
        }
    }

    pub(crate) fn steps(&mut self, session: &mut Session, n: usize) {
        (0..n).for_each(|_| self.step(session));
    }

    pub(crate) fn run(&mut self, session: &mut Session) {
        while !session.is_empty() {
            self.step(session);
        }
    }

    pub(crate) fn of(&mut self, sequence: SequenceId) -> &mut Told {
        self.0.entry(sequence).or_default()
    }
}

/// Runs a session to its end: texts and statistics in the order of their beginnings.
pub(crate) fn to_the_end(session: &mut Session) -> Vec<(String, Statistics)> {
    let mut texts = Texts::default();
    texts.run(session);
    let told = texts.0.into_values();
    let end = |told: Told| (told.text, told.end.unwrap().statistics);
    told.map(end).collect()
}

/// All of one text.
pub(crate) fn told(generate: Generate, model: &Model) -> Told {
    let mut session = model.session().unwrap();
    let sequence = session.begin(generate).unwrap();
    let mut texts = Texts::default();
    texts.run(&mut session);
    texts.of(sequence).clone()
}

pub(crate) fn tokens_of(model: &Model, text: &str) -> Vec<Token> {
    let vocab = model.native().unwrap().vocab();
    vocab.tokenize(text, true, false).unwrap()
}

/// llama.cpp's own loop, which takes the likeliest token.
pub(crate) struct Raw {
    context: Context,
    sampler: Sampler,
    batch: Batch,
    /// Where the next token comes.
    pub(crate) position: Position,
}

impl Raw {
    pub(crate) fn new(model: &llama_sys::Model, n_ctx: u32, swa_full: bool) -> Self {
        Self::of(model, n_ctx, swa_full, llama_sys::KvType::F16)
    }

    /// With keys and values of this type.
    pub(crate) fn of(
        model: &llama_sys::Model,
        n_ctx: u32,
        swa_full: bool,
        kv: llama_sys::KvType,
    ) -> Self {
        let params = ContextParams {
            n_ctx,
            n_threads: Some(1),
            n_threads_batch: Some(1),
            flash_attention: FlashAttention::Disabled,
            type_k: kv,
            type_v: kv,
            swa_full,
            ..ContextParams::default()
        };
        Self {
            context: Context::new(model, params).unwrap(),
            sampler: Sampler::chain(model).unwrap().greedy().unwrap(),
            batch: Batch::default(),
            position: 0,
        }
    }

    /// The same, which chooses by chance as [`sampled`] does, after so many choices.
    pub(crate) fn by_chance(mut self, seed: u32, after: usize) -> Self {
        let chain = Sampler::chain(self.context.model()).unwrap();
        let chain = chain.top_k(40).unwrap().temperature(HOT).unwrap();
        self.sampler = chain.dist(seed).unwrap();
        self.sampler.skip(after).unwrap();
        self
    }

    /// The same, which chooses by a sampler of its own, after it was shown these tokens.
    pub(crate) fn by(mut self, mut sampler: Sampler, shown: &[Token]) -> Self {
        for &token in shown {
            sampler.accept(token).unwrap();
        }
        self.sampler = sampler;
        self
    }

    /// The context, to be told what to add to the weights.
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

    /// The token after those.
    pub(crate) fn choose(&mut self) -> Token {
        self.sampler.sample(&mut self.context, -1).unwrap()
    }

    /// llama.cpp's context shift: takes `discard` positions after the first `keep` out.
    pub(crate) fn shift(&mut self, keep: Position, discard: Position) {
        let end = keep + discard;
        assert!(self.context.kv_seq_remove(0, keep..end).unwrap());
        self.context
            .kv_seq_shift(0, end..Position::MAX, -discard)
            .unwrap();
        self.position -= discard;
    }

    /// The text of so many tokens after a prompt, or to its end.
    pub(crate) fn text(model: &Model, prompt: &[Token], n: usize) -> Vec<Token> {
        let native = &model.native().unwrap();
        let swa_full = model.placement().context.swa_full;
        Self::new(native, (prompt.len() + n + 8) as u32, swa_full).go_on(prompt, n)
    }

    /// So many tokens after these, or to the end.
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
