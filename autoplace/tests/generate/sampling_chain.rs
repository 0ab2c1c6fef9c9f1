//! What sampling parameters do to texts, through the public API, on the demo model.

use crate::native_support::load_demo;
use crate::text_support::{PROMPT, complete, text, text_and_statistics};
use autoplace::Model;
use autoplace::generate::{Constraint, Error, GenerateRequest, Mirostat, SamplerKind, Sampling};
use autoplace::llama_sys;
use test_support::tiny::tiny_llama;

#[test]
fn samplers_and_constraints_keep_their_state_when_the_model_is_re_placed() {
    let model = load_demo();
    let by_chance = || model.generate(PROMPT).seed(7).temp(1.2).max_tokens(24);
    let mut typical = Sampling::default();
    (typical.typical_p, typical.top_n_sigma) = (0.5, 1.5);
    (typical.dynatemp_range, typical.min_keep) = (0.5, 2);
    let held = |constraint| model.generate(PROMPT).seed(11).constraint(constraint);
    let all = [
        by_chance(),
        by_chance().sampling(typical).seed(7),
        by_chance().xtc(0.5, 0.1),
        by_chance().dry(0.8).presence_penalty(0.2).frequency_penalty(0.1),
        by_chance().mirostat(Mirostat::V1, 4.0),
        by_chance().mirostat(Mirostat::V2, 4.0),
        by_chance().adaptive_p(0.3),
        by_chance().samplers([]),
        held(Constraint::regex("[a-z]{4} [A-Z]{30} [0-9]{4}")),
        held(Constraint::json_schema(serde_json::json!({
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
            "required": ["name", "age"],
            "additionalProperties": false,
        }))),
        model.generate(PROMPT).temp(0.0).max_tokens(20),
    ];
    for generate in all {
        let undisturbed = text(generate.clone());
        let disturbed = crate::replace_support::text_of(generate, |stream, index| {
            if index % 5 == 3 {
                stream.replace(None).unwrap();
            }
        });
        assert_eq!(disturbed, undisturbed);
    }
}

#[test]
fn without_a_temperature_the_likeliest_remaining_token_is_chosen() {
    let greedy = load_demo().generate(PROMPT).temp(0.0).max_tokens(24);
    let expected = text(greedy.clone());
    for same in [
        greedy.clone().sampling(Sampling::greedy()),
        greedy.clone().top_k(3).min_p(0.5),
        greedy.clone().top_k(1).repeat_penalty(1.5).samplers([SamplerKind::TopK, SamplerKind::Penalties]),
        greedy.clone().mirostat(Mirostat::V2, 4.0),
        greedy.clone().adaptive_p(0.1),
        greedy.clone().seed(3),
    ] {
        let (found, statistics) = text_and_statistics(same);
        assert_eq!((found, statistics.seed), (expected.clone(), None));
    }
    // XTC drops the likeliest token, so there is a random choice.
    let (found, statistics) = text_and_statistics(greedy.xtc(1.0, 0.05));
    assert_ne!(found, expected);
    assert!(statistics.seed.is_some());
}

#[test]
fn a_bias_names_a_token_by_its_text_control_tokens_too() {
    let model = load_demo();
    let vocab = model.native().unwrap().vocab();
    let eos = vocab.eos().unwrap();
    let name = String::from_utf8(vocab.piece(eos, true).unwrap()).unwrap();
    let named = model.generate(PROMPT).temp(0.0).logit_bias_text(name, 1000.0);
    assert_eq!(complete(named.clone(), &model).tokens, [eos]);
    assert_eq!(complete(named.ignore_eos().max_tokens(7), &model).tokens, [eos; 7]);
    let several = model.generate(PROMPT).logit_bias_text(PROMPT, 1.0).stream();
    assert_matches!(several, Err(Error::NotOneToken { tokens: 2.., .. }));
}

#[test]
fn parameters_out_of_range_are_refused_even_where_they_have_no_effect() {
    let model = load_demo();
    let changes: [fn(&mut Sampling); 17] = [
        |sampling| sampling.temperature = f32::NAN,
        |sampling| sampling.temperature = -0.5,
        |sampling| sampling.top_p = 1.5,
        |sampling| sampling.min_p = -0.1,
        |sampling| sampling.repeat_penalty = 0.0,
        |sampling| sampling.typical_p = 1.5,
        |sampling| sampling.top_n_sigma = f32::NAN,
        |sampling| sampling.dynatemp_range = -1.0,
        |sampling| sampling.dynatemp_exponent = -1.0,
        |sampling| sampling.xtc_threshold = 2.0,
        |sampling| sampling.frequency_penalty = f32::INFINITY,
        |sampling| sampling.presence_penalty = 1e9,
        |sampling| sampling.dry_base = 0.5,
        |sampling| sampling.mirostat_tau = -1.0,
        |sampling| sampling.adaptive_decay = 1.0,
        |sampling| sampling.logit_bias.push((-1, 1.0)),
        |sampling| sampling.seed = Some(u32::MAX),
    ];
    for change in changes {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        let refused = model.generate(PROMPT).sampling(sampling.clone()).stream();
        let is_refused = matches!(refused, Err(Error::Native(llama_sys::Error::InvalidParameter { .. })));
        assert!(is_refused, "{sampling:?}: {refused:?}");
    }
}

#[test]
fn a_generation_begins_with_the_parameters_of_the_model_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let file = tiny_llama().f32("general.sampling.temp", 0.0).i32("general.sampling.top_k", 7);
    file.write_sparse(&path).unwrap();
    let model = Model::builder(&path).n_threads(1).load().unwrap();
    let mut expected = Sampling::default();
    (expected.temperature, expected.top_k) = (0.0, 7);
    assert_eq!(model.sampling(), expected);
    let seed = |generate: GenerateRequest| generate.stream().unwrap().statistics().seed;
    assert_eq!(seed(model.generate("word1")), None);
    // A setting in the request replaces the model's own.
    assert!(seed(model.generate("word1").temp(0.5)).is_some());
    assert!(seed(model.generate("word1").sampling(Sampling::default())).is_some());
    assert_eq!(load_demo().sampling(), Sampling::default());
}
