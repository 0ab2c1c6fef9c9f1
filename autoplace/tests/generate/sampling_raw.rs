//! For each sampling parameter: the demo model's text is the same as with llama.cpp's own chain for this parameter. The
//! chain is built as in llama.cpp's programs (common/sampling.cpp, common_sampler_init).

use std::collections::BTreeSet;

use crate::text_support::{REPEATED, Raw, complete, demo, tokens_of};
use autoplace::Model;
use autoplace::generate::{GenerateRequest, Mirostat, SamplerKind, Sampling};
use autoplace::llama_sys::{self, Sampler, Token};

const TOKENS: usize = 40;
const SEEDS: std::ops::Range<u32> = 1..4;

/// llama.cpp's chain, in the order of `common_params_sampling::samplers`. `llama_source` compares the defaults with the
/// source of llama.cpp.
fn chain(model: &Model, sampling: &Sampling, seed: u32) -> Result<Sampler, llama_sys::Error> {
    let mut chain = Sampler::chain(&model.native().unwrap())?;
    if !sampling.logit_bias.is_empty() {
        chain = chain.logit_bias(&sampling.logit_bias)?;
    }
    let (tau, eta) = (sampling.mirostat_tau, sampling.mirostat_eta);
    match sampling.mirostat {
        Mirostat::V1 => return chain.temperature(sampling.temperature)?.mirostat(tau, eta, 100, seed),
        Mirostat::V2 => return chain.temperature(sampling.temperature)?.mirostat_v2(tau, eta, seed),
        _ => {}
    }
    let (frequency, presence) = (sampling.frequency_penalty, sampling.presence_penalty);
    let breakers: Vec<&str> = sampling.dry_sequence_breakers.iter().map(|breaker| &**breaker).collect();
    let (allowed, last_n) = (sampling.dry_allowed_length, sampling.dry_penalty_last_n);
    let chain = chain
        .min_keep(sampling.min_keep)
        .penalties(sampling.repeat_last_n, sampling.repeat_penalty, frequency, presence)?
        .dry(sampling.dry_multiplier, sampling.dry_base, allowed, last_n, &breakers)?
        .top_n_sigma(sampling.top_n_sigma)?
        .top_k(sampling.top_k)?
        .typical(sampling.typical_p)?
        .top_p(sampling.top_p)?
        .min_p(sampling.min_p)?
        .xtc(sampling.xtc_probability, sampling.xtc_threshold, seed)?;
    if sampling.temperature <= 0.0 {
        return chain.greedy();
    }
    let (range, exponent) = (sampling.dynatemp_range, sampling.dynatemp_exponent);
    let chain = chain.dynamic_temperature(sampling.temperature, range, exponent)?;
    match sampling.samplers.contains(&SamplerKind::AdaptiveP) {
        true => chain.adaptive_p(sampling.adaptive_target, sampling.adaptive_decay, seed),
        false => chain.dist(seed),
    }
}

type Change = fn(&mut Sampling);
type Method = fn(GenerateRequest) -> GenerateRequest;

const FIELDS: &[Change] = &[
    |sampling| sampling.temperature = 1.7,
    |sampling| (sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent) = (1.2, 1.0, 0.7),
    |sampling| sampling.top_k = 3,
    |sampling| (sampling.top_k, sampling.top_p, sampling.min_p) = (0, 1.0, 0.0),
    |sampling| sampling.top_p = 0.4,
    |sampling| sampling.min_p = 0.4,
    |sampling| (sampling.min_p, sampling.min_keep) = (0.9, 7),
    |sampling| sampling.typical_p = 0.3,
    |sampling| sampling.top_n_sigma = 0.6,
    |sampling| (sampling.xtc_probability, sampling.xtc_threshold) = (0.6, 0.07),
    |sampling| (sampling.repeat_penalty, sampling.repeat_last_n) = (1.6, 20),
    |sampling| sampling.frequency_penalty = 0.9,
    |sampling| sampling.presence_penalty = 1.5,
    |sampling| sampling.dry_multiplier = 3.0,
    |sampling| {
        (sampling.dry_multiplier, sampling.dry_base) = (2.0, 2.5);
        (sampling.dry_allowed_length, sampling.dry_penalty_last_n) = (1, 30);
        sampling.dry_sequence_breakers = vec![";".to_owned()];
    },
    |sampling| (sampling.mirostat, sampling.mirostat_tau) = (Mirostat::V1, 3.0),
    |sampling| (sampling.mirostat, sampling.mirostat_tau, sampling.mirostat_eta) = (Mirostat::V2, 2.0, 0.3),
    |sampling| sampling.logit_bias = vec![(300, 4.0), (301, -7.0), (40, 3.0)],
    |sampling| sampling.temperature = 0.0,
    |sampling| (sampling.temperature, sampling.repeat_penalty, sampling.dry_multiplier) = (0.0, 1.5, 1.0),
];

/// The methods of a request, and which field each of them sets.
const METHODS: &[(Method, Change)] = &[
    (
        |request| {
            let request =
                request.temp(1.4).top_k(30).top_p(0.9).min_p(0.02).xtc(0.4, 0.15).repeat_penalty(1.2).dry(0.5);
            request.presence_penalty(0.2).frequency_penalty(0.1).logit_bias(300, 1.0)
        },
        |sampling| {
            (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) = (1.4, 30, 0.9, 0.02);
            (sampling.xtc_probability, sampling.xtc_threshold) = (0.4, 0.15);
            (sampling.repeat_penalty, sampling.dry_multiplier) = (1.2, 0.5);
            (sampling.presence_penalty, sampling.frequency_penalty) = (0.2, 0.1);
            sampling.logit_bias = vec![(300, 1.0)];
        },
    ),
    (
        |sampling| sampling.mirostat(Mirostat::V1, 3.0),
        |sampling| (sampling.mirostat, sampling.mirostat_tau) = (Mirostat::V1, 3.0),
    ),
    (
        |sampling| sampling.adaptive_p(0.25),
        |sampling| {
            sampling.adaptive_target = 0.25;
            sampling.samplers.push(SamplerKind::AdaptiveP);
        },
    ),
];

/// The text that llama.cpp generates with a sampler.
fn raw(model: &Model, sampler: Sampler) -> Vec<Token> {
    let prompt = tokens_of(model, REPEATED);
    let raw = Raw::new(&model.native().unwrap(), 512);
    raw.by(sampler, &prompt).go_on(&prompt, TOKENS)
}

#[test]
fn every_parameter_gives_the_text_of_llama_cpps_chain_with_it() {
    let model = demo(512, 1, false);
    let texts = |ours: GenerateRequest, sampling: &Sampling| {
        SEEDS
            .map(|seed| {
                let expected = raw(&model, chain(&model, sampling, seed).unwrap());
                let generate = ours.clone().seed(seed).max_tokens(TOKENS);
                assert_eq!(complete(generate, &model).tokens, expected, "{seed}: {sampling:?}");
                expected
            })
            .collect::<Vec<_>>()
    };
    let default = Sampling::default();
    let plain = texts(model.generate(REPEATED), &default);
    let fields = FIELDS.iter().map(|change| (None, *change));
    let methods = METHODS.iter().map(|(method, change)| (Some(*method), *change));
    for (method, change) in fields.chain(methods) {
        let mut sampling = default.clone();
        change(&mut sampling);
        let ours = model.generate(REPEATED);
        let ours = match method {
            Some(method) => method(ours),
            None => ours.sampling(sampling.clone()),
        };
        assert_ne!(texts(ours, &sampling), plain, "it does nothing: {sampling:?}");
    }
}

#[test]
fn samplers_apply_in_any_order_and_those_that_are_left_out_do_not() {
    use SamplerKind::{MinP, Temperature, TopK, TopP};
    let model = demo(512, 1, false);
    let generate = |seed: u32, order: &[SamplerKind]| {
        let generate = model.generate(REPEATED).seed(seed).max_tokens(TOKENS);
        let generate = generate.temp(2.5).top_k(9).top_p(0.7).min_p(0.1);
        complete(generate.samplers(order.iter().copied()), &model).tokens
    };
    let orders: [&[SamplerKind]; 5] =
        [&[], &[TopK], &[Temperature, TopP], &[TopP, Temperature], &[MinP, TopK, Temperature, TopP]];
    let mut all = BTreeSet::new();
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
            all.insert(expected);
        }
    }
    assert!(all.len() > 2 * orders.len(), "they are all alike");
}
