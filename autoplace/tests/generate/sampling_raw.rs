//! Each sampling parameter gives the text of llama.cpp's own chain with that parameter, put together as its programs do
//! (common/sampling.cpp, common_sampler_init). On the demo model.

use crate::native_support::demo_path;
use crate::session_support::{Raw, request, tokens_of, told};
use autoplace::Model;
use autoplace::generate::{Generate, Mirostat, SamplerKind, Sampling};
use autoplace::llama_sys::{Sampler, SamplerChain, Token};

const PROMPT: &str =
    "And he said, Go, and they went; and he said, Come, and they came; and he said,";
const TOKENS: usize = 40;
const SEEDS: std::ops::Range<u32> = 1..6;

/// What llama.cpp's programs are told, with their defaults.
#[derive(Clone)]
struct Params {
    bias: Vec<(Token, f32)>,
    /// Repeat, frequency, presence.
    penalties: (u32, f32, f32, f32),
    /// Multiplier, base, allowed length, last n.
    dry: (f32, f32, u32, u32),
    breakers: Vec<&'static str>,
    top_n_sigma: f32,
    top_k: u32,
    typical: f32,
    top_p: f32,
    min_p: f32,
    min_keep: usize,
    xtc: (f32, f32),
    /// Temperature, range, exponent.
    temperature: (f32, f32, f32),
    last: Last,
}

#[derive(Clone, Copy)]
enum Last {
    Dist,
    Greedy,
    Mirostat(f32, f32),
    MirostatV2(f32, f32),
    AdaptiveP(f32, f32),
}

impl Default for Params {
    fn default() -> Self {
        Self {
            bias: Vec::new(),
            penalties: (64, 1.0, 0.0, 0.0),
            dry: (0.0, 1.75, 2, 64),
            breakers: vec!["\n", ":", "\"", "*"],
            top_n_sigma: -1.0,
            top_k: 40,
            typical: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            min_keep: 0,
            xtc: (0.0, 0.1),
            temperature: (0.8, 0.0, 1.0),
            last: Last::Dist,
        }
    }
}

impl Params {
    fn chain(&self, model: &Model, seed: u32) -> Sampler {
        self.build(model, seed).unwrap()
    }

    fn build(&self, model: &Model, seed: u32) -> Result<Sampler, llama_sys::Error> {
        let mut chain = Sampler::chain(&model.native().unwrap())?;
        if !self.bias.is_empty() {
            chain = chain.logit_bias(&self.bias)?;
        }
        if let Last::Mirostat(..) | Last::MirostatV2(..) = self.last {
            chain = chain.temperature(self.temperature.0)?;
            return match self.last {
                Last::Mirostat(tau, eta) => chain.mirostat(tau, eta, 100, seed),
                Last::MirostatV2(tau, eta) => chain.mirostat_v2(tau, eta, seed),
                _ => unreachable!("it is one of them"),
            };
        }
        chain = self.filters(chain.min_keep(self.min_keep), seed)?;
        match self.last {
            Last::AdaptiveP(target, decay) => chain.adaptive_p(target, decay, seed),
            Last::Greedy => chain.greedy(),
            _ => chain.dist(seed),
        }
    }

    /// In the order of `common_params_sampling::samplers`.
    fn filters(&self, chain: SamplerChain, seed: u32) -> Result<SamplerChain, llama_sys::Error> {
        let (last_n, repeat, frequency, presence) = self.penalties;
        let (multiplier, base, allowed, dry_last_n) = self.dry;
        let (temperature, range, exponent) = self.temperature;
        let chain = chain
            .penalties(last_n, repeat, frequency, presence)?
            .dry(multiplier, base, allowed, dry_last_n, &self.breakers)?
            .top_n_sigma(self.top_n_sigma)?
            .top_k(self.top_k)?
            .typical(self.typical)?
            .top_p(self.top_p)?
            .min_p(self.min_p)?
            .xtc(self.xtc.0, self.xtc.1, seed)?;
        match self.last {
            Last::Greedy => Ok(chain),
            _ => chain.dynamic_temperature(temperature, range, exponent),
        }
    }
}

/// What the same is called here and there.
struct Case {
    name: &'static str,
    ours: fn(Generate) -> Generate,
    theirs: fn(&mut Params),
}

fn sampling(generate: Generate, change: impl FnOnce(&mut Sampling)) -> Generate {
    let mut sampling = Sampling::default();
    change(&mut sampling);
    generate.sampling(sampling)
}

fn cases() -> Vec<Case> {
    let case = |name, ours, theirs| Case { name, ours, theirs };
    vec![
        case(
            "temperature",
            |it| it.temperature(1.7),
            |it| it.temperature.0 = 1.7,
        ),
        case(
            "dynamic temperature",
            |it| {
                sampling(it, |it| {
                    (it.temperature, it.dynatemp_range, it.dynatemp_exponent) = (1.2, 1.0, 0.7);
                })
            },
            |it| it.temperature = (1.2, 1.0, 0.7),
        ),
        case("top-k", |it| it.top_k(3), |it| it.top_k = 3),
        case(
            "no top-k",
            |it| it.top_k(0).top_p(1.0).min_p(0.0),
            |it| {
                (it.top_k, it.top_p, it.min_p) = (0, 1.0, 0.0);
            },
        ),
        case("top-p", |it| it.top_p(0.4), |it| it.top_p = 0.4),
        case("min-p", |it| it.min_p(0.4), |it| it.min_p = 0.4),
        case(
            "min-keep",
            |it| sampling(it, |it| (it.min_p, it.min_keep) = (0.9, 7)),
            |it| (it.min_p, it.min_keep) = (0.9, 7),
        ),
        case(
            "typical",
            |it| sampling(it, |it| it.typical_p = 0.3),
            |it| it.typical = 0.3,
        ),
        case(
            "top-n-sigma",
            |it| sampling(it, |it| it.top_n_sigma = 0.6),
            |it| it.top_n_sigma = 0.6,
        ),
        case("XTC", |it| it.xtc(0.6, 0.07), |it| it.xtc = (0.6, 0.07)),
        case(
            "repeat penalty",
            |it| sampling(it, |it| (it.repeat_penalty, it.repeat_last_n) = (1.6, 20)),
            |it| it.penalties = (20, 1.6, 0.0, 0.0),
        ),
        case(
            "frequency penalty",
            |it| it.frequency_penalty(0.9),
            |it| it.penalties.2 = 0.9,
        ),
        case(
            "presence penalty",
            |it| it.presence_penalty(1.5),
            |it| it.penalties.3 = 1.5,
        ),
        case("DRY", |it| it.dry(3.0), |it| it.dry.0 = 3.0),
        case(
            "DRY with its numbers",
            |it| {
                sampling(it, |it| {
                    (it.dry_multiplier, it.dry_base) = (2.0, 2.5);
                    (it.dry_allowed_length, it.dry_penalty_last_n) = (1, 30);
                    it.dry_sequence_breakers = vec![";".to_owned()];
                })
            },
            |it| {
                it.dry = (2.0, 2.5, 1, 30);
                it.breakers = vec![";"];
            },
        ),
        case(
            "Mirostat",
            |it| it.mirostat(Mirostat::V1, 3.0),
            |it| it.last = Last::Mirostat(3.0, 0.1),
        ),
        case(
            "Mirostat 2.0",
            |it| {
                sampling(it, |it| {
                    (it.mirostat, it.mirostat_tau, it.mirostat_eta) = (Mirostat::V2, 2.0, 0.3);
                })
            },
            |it| it.last = Last::MirostatV2(2.0, 0.3),
        ),
        case(
            "adaptive-p",
            |it| it.adaptive_p(0.25),
            |it| it.last = Last::AdaptiveP(0.25, 0.9),
        ),
        case(
            "logit bias",
            |it| {
                it.logit_bias(300, 4.0)
                    .logit_bias(301, -7.0)
                    .logit_bias(40, 3.0)
            },
            |it| it.bias = vec![(300, 4.0), (301, -7.0), (40, 3.0)],
        ),
        case(
            "greedy",
            |it| it.temperature(0.0),
            |it| it.last = Last::Greedy,
        ),
        case(
            "greedy with penalties",
            |it| it.temperature(0.0).repeat_penalty(1.5).dry(1.0),
            |it| {
                it.last = Last::Greedy;
                it.penalties.1 = 1.5;
                it.dry.0 = 1.0;
            },
        ),
        case(
            "all at once",
            |it| {
                let it = sampling(it, |it| (it.typical_p, it.top_n_sigma) = (0.9, 2.0));
                let it = it.temperature(1.4).top_k(30).top_p(0.9).min_p(0.02);
                let it = it.xtc(0.4, 0.15).repeat_penalty(1.2).dry(0.5);
                it.presence_penalty(0.2).frequency_penalty(0.1)
            },
            |it| {
                (it.typical, it.top_n_sigma, it.temperature.0) = (0.9, 2.0, 1.4);
                (it.top_k, it.top_p, it.min_p, it.xtc) = (30, 0.9, 0.02, (0.4, 0.15));
                (it.penalties, it.dry.0) = ((64, 1.2, 0.1, 0.2), 0.5);
            },
        ),
    ]
}

fn load() -> Model {
    crate::session_support::load(&demo_path(), request(512, 1, false))
}

/// llama.cpp's text by a sampler.
fn raw(model: &Model, sampler: Sampler) -> Vec<Token> {
    let prompt = tokens_of(model, PROMPT);
    let raw = Raw::new(&model.native().unwrap(), 512, false);
    raw.by(sampler, &prompt).go_on(&prompt, TOKENS)
}

#[test]
fn every_parameter_gives_the_text_of_llama_cpps_chain_with_it() {
    let model = load();
    let plain: Vec<_> = SEEDS
        .map(|seed| raw(&model, Params::default().chain(&model, seed)))
        .collect();
    for (seed, plain) in SEEDS.zip(&plain) {
        let ours = model.generate(PROMPT).seed(seed).max_tokens(TOKENS);
        assert_eq!(told(ours, &model).tokens, *plain, "by default, {seed}");
    }
    for Case { name, ours, theirs } in cases() {
        let mut params = Params::default();
        theirs(&mut params);
        let mut differs = false;
        for (seed, plain) in SEEDS.zip(&plain) {
            let expected = raw(&model, params.chain(&model, seed));
            let generate = ours(model.generate(PROMPT)).seed(seed).max_tokens(TOKENS);
            assert_eq!(told(generate, &model).tokens, expected, "{name}, {seed}");
            differs |= expected != *plain;
        }
        assert!(differs, "{name} does nothing to these texts");
    }
}

#[test]
fn samplers_apply_in_any_order_and_those_that_are_left_out_do_not() {
    use SamplerKind::{MinP, Temperature, TopK, TopP};
    let model = load();
    let generate = |seed: u32, order: &[SamplerKind]| {
        let generate = model.generate(PROMPT).seed(seed).max_tokens(TOKENS);
        let generate = generate.temperature(2.5).top_k(9).top_p(0.7).min_p(0.1);
        told(generate.samplers(order.iter().copied()), &model).tokens
    };
    let orders: [&[SamplerKind]; 5] = [
        &[],
        &[TopK],
        &[Temperature, TopP],
        &[TopP, Temperature],
        &[MinP, TopK, Temperature, TopP],
    ];
    let mut all = Vec::new();
    for order in orders {
        for seed in SEEDS {
            let mut chain = Sampler::chain(&model.native().unwrap()).unwrap();
            for kind in order {
                chain = match kind {
                    MinP => chain.min_p(0.1),
                    TopK => chain.top_k(9),
                    TopP => chain.top_p(0.7),
                    _ => chain.temperature(2.5),
                }
                .unwrap();
            }
            let expected = raw(&model, chain.dist(seed).unwrap());
            assert_eq!(generate(seed, order), expected, "{order:?}");
            all.push(expected);
        }
    }
    all.sort();
    all.dedup();
    assert!(all.len() > 4 * orders.len(), "they are all alike");
}
