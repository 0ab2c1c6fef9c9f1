//! Sampling parameters do to a text what they say: through the public API, on the demo model.

use crate::native_support::{load_demo, tiny_llama};
use autoplace::Model;
use autoplace::generate::{Error, Generate, Mirostat, SamplerKind, Sampling};
use autoplace::llama_sys::{self, Token};

const PROMPT: &str = "And the king said unto his servants,";

/// Every way of choosing by chance.
fn chances(model: &Model) -> Vec<Generate> {
    let text = || {
        model
            .generate(PROMPT)
            .seed(7)
            .temperature(1.2)
            .max_tokens(24)
    };
    let mut typical = Sampling::default();
    (typical.typical_p, typical.top_n_sigma) = (0.5, 1.5);
    (typical.dynatemp_range, typical.min_keep) = (0.5, 2);
    vec![
        text(),
        text().sampling(typical).seed(7),
        text().xtc(0.5, 0.1),
        text().dry(0.8).presence_penalty(0.2).frequency_penalty(0.1),
        text().mirostat(Mirostat::V1, 4.0),
        text().mirostat(Mirostat::V2, 4.0),
        text().adaptive_p(0.3),
        text().samplers([]),
    ]
}

#[test]
fn the_same_seed_gives_the_same_text_whatever_the_sampler() {
    let model = load_demo();
    for generate in chances(&model) {
        let (text, statistics) = generate.clone().stream().unwrap().into_text().unwrap();
        assert_eq!(statistics.seed, Some(7));
        assert_eq!(generate.clone().text().unwrap(), text);
        let others: Vec<String> = (8..11)
            .map(|seed| generate.clone().seed(seed).text().unwrap())
            .collect();
        assert!(others.iter().any(|other| *other != text), "{text:?}");
    }
}

#[test]
fn a_sampler_keeps_its_state_when_the_model_is_placed_anew() {
    let model = load_demo();
    for generate in chances(&model) {
        let undisturbed = generate.clone().text().unwrap();
        let mut stream = generate.stream().unwrap();
        let mut text = String::new();
        let mut pieces = 0;
        while let Some(piece) = stream.next() {
            text.push_str(&piece.unwrap());
            pieces += 1;
            if pieces % 5 == 0 {
                stream.replace(None).unwrap();
            }
        }
        assert_eq!(text, undisturbed);
    }
}

#[test]
fn samplers_apply_in_the_order_that_was_asked_for() {
    let model = load_demo();
    let text = |samplers: [SamplerKind; 2]| {
        let text = model.generate(PROMPT).seed(5).samplers(samplers);
        let text = text.temperature(3.0).top_p(0.5).max_tokens(40);
        text.text().unwrap()
    };
    let (top_p, temperature) = (SamplerKind::TopP, SamplerKind::Temperature);
    // Half of a distribution that a high temperature has made flat is more.
    assert_ne!(text([top_p, temperature]), text([temperature, top_p]));
}

#[test]
fn without_a_temperature_the_likeliest_is_taken_of_what_is_left() {
    let model = load_demo();
    let greedy = model.generate(PROMPT).temperature(0.0).max_tokens(24);
    let text = greedy.clone().text().unwrap();
    for same in [
        greedy.clone().sampling(Sampling::greedy()),
        greedy.clone().top_k(3).min_p(0.5),
        greedy.clone().mirostat(Mirostat::V2, 4.0),
        greedy.clone().adaptive_p(0.1),
        greedy.clone().seed(3),
    ] {
        let (found, statistics) = same.stream().unwrap().into_text().unwrap();
        assert_eq!(found, text);
        assert_eq!(statistics.seed, None);
    }
    // XTC drops the likeliest, and so leaves something to chance.
    let without = greedy.xtc(1.0, 0.05).stream().unwrap();
    let (found, statistics) = without.into_text().unwrap();
    assert_ne!(found, text);
    assert!(statistics.seed.is_some());
}

#[test]
fn a_bias_forbids_or_forces_a_token() {
    let model = load_demo();
    let vocab = model.native().unwrap().vocab();
    let tokens = |generate: Generate| -> Vec<Token> {
        let mut session = model.session().unwrap();
        session
            .begin(generate.temperature(0.0).max_tokens(20))
            .unwrap();
        let mut tokens = Vec::new();
        while !session.is_empty() {
            tokens.extend(session.step().unwrap().filter_map(|piece| piece.token));
        }
        tokens
    };
    let plain = tokens(model.generate(PROMPT));
    let first = plain[0];
    let without = tokens(model.generate(PROMPT).logit_bias(first, -1000.0));
    assert!(!without.contains(&first));
    let only = tokens(model.generate(PROMPT).logit_bias(first, 1000.0));
    assert!(only.iter().all(|token| *token == first), "{only:?}");
    // By its text: control tokens can be named.
    let eos = vocab.eos().unwrap();
    let name = String::from_utf8(vocab.piece(eos, true).unwrap()).unwrap();
    assert_eq!(
        tokens(model.generate(PROMPT).logit_bias_text(name, 1000.0)),
        [eos]
    );
    let several = model.generate(PROMPT).logit_bias_text(PROMPT, 1.0).stream();
    assert!(matches!(
        several,
        Err(Error::NotOneToken { tokens: 2.., .. })
    ));
}

#[test]
fn parameters_out_of_range_are_refused_even_where_they_have_no_effect() {
    let model = load_demo();
    let changes: [fn(&mut Sampling); 12] = [
        |it| it.typical_p = 1.5,
        |it| it.top_n_sigma = f32::NAN,
        |it| it.dynatemp_range = -1.0,
        |it| it.dynatemp_exponent = -1.0,
        |it| it.xtc_threshold = 2.0,
        |it| it.frequency_penalty = f32::INFINITY,
        |it| it.presence_penalty = 1e9,
        |it| it.dry_base = 0.5,
        |it| it.mirostat_tau = -1.0,
        |it| it.adaptive_decay = 1.0,
        |it| it.logit_bias.push((-1, 1.0)),
        |it| it.seed = Some(u32::MAX),
    ];
    for change in changes {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        let refused = model.generate(PROMPT).sampling(sampling.clone()).stream();
        assert!(
            matches!(
                refused,
                Err(Error::Native(llama_sys::Error::InvalidParameter { .. }))
            ),
            "{sampling:?}"
        );
    }
}

#[test]
fn a_generation_begins_with_what_the_models_makers_want() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let file = tiny_llama()
        .f32("general.sampling.temp", 0.0)
        .i32("general.sampling.top_k", 7);
    file.write_sparse(&path).unwrap();
    let model = Model::builder(&path).threads(1).load().unwrap();
    let mut expected = Sampling::default();
    (expected.temperature, expected.top_k) = (0.0, 7);
    assert_eq!(model.sampling(), expected);
    let seed = |generate: Generate| generate.stream().unwrap().statistics().seed;
    assert_eq!(seed(model.generate("word1")), None);
    // What is asked for counts more.
    assert!(seed(model.generate("word1").temperature(0.5)).is_some());
    assert!(seed(model.generate("word1").sampling(Sampling::default())).is_some());
    assert_eq!(load_demo().sampling(), Sampling::default());
}
