//! Parameters of vLLM and llama-server. docs/chat-completions.md lists each of them, with what happens to it. These
//! tests check that the API does the same.

use std::collections::{BTreeMap, BTreeSet};

use autoplace::chat::ChatTemplate;
use serde_json::{Value, json};

use crate::api::alone;

/// The parameters of both servers, one on each line, and the servers' versions.
const LISTS: &str = include_str!("parameters.txt");
const DOCUMENT: &str = include_str!("../../../docs/chat-completions.md");

/// The rows of the table: for each parameter, the first word about what happens to it.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let (_, table) = DOCUMENT.split_once("| vLLM's and llama-server's | |\n|---|---|\n").expect("the table");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let (names, what) = (cells.next().expect("names"), cells.next().expect("what is done"));
        let done = what.split([' ', ':', ',', ';']).next().expect("a word");
        names.split(", ").map(move |name| (name.trim_matches('`'), done))
    })
    .collect()
}

fn listed() -> BTreeSet<&'static str> {
    LISTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).flat_map(str::split_whitespace).collect()
}

#[test]
fn each_parameter_of_both_servers_is_in_the_table() {
    let documented = documented();
    let missing: Vec<_> = listed().into_iter().filter(|name| !documented.contains_key(name)).collect();
    assert!(missing.is_empty(), "docs/chat-completions.md does not name {missing:?}");
}

/// For each parameter that is refused, a value that has an effect.
fn asking(name: &str) -> Value {
    match name {
        "length_penalty" => json!(0.5),
        "skip_special_tokens" | "include_reasoning" | "parse_tool_calls" => json!(false),
        "reasoning_format" => json!("none"),
        "prompt_logprobs" | "n_indent" | "n_probs" | "t_max_predict_ms" | "truncate_prompt_tokens" => json!(3),
        "max_repetition_pattern_size" | "min_repetition_pattern_size" | "repetition_min_count" => json!(2),
        "reasoning_budget_tokens" | "thinking_budget_tokens" => json!(0),
        "allowed_token_ids" => json!([5]),
        "bad_words" | "response_fields" | "grammar_triggers" | "logits_processors" => json!(["a"]),
        "mm_processor_kwargs" | "kv_transfer_params" | "vllm_xargs" => json!({"a": 1}),
        "chat_template"
        | "cache_salt"
        | "prompt_embeds"
        | "chat_parser"
        | "generation_prompt"
        | "guided_whitespace_pattern"
        | "suffix" => json!("a"),
        "best_of" => json!(2),
        _ => json!(true),
    }
}

#[test]
fn refused_parameters_of_the_table_are_refused_by_name() {
    let (_, _, api) = alone();
    let api = api.template(ChatTemplate::family("chatml").unwrap());
    for (name, done) in documented() {
        let asked = |value: Value| {
            let mut chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
            let mut text = json!({"prompt": "a", "max_tokens": 1});
            (chat[name], text[name]) = (value.clone(), value);
            [api.chat(chat.to_string().as_bytes()), api.complete(text.to_string().as_bytes())]
        };
        match done {
            "refused" => {
                let outcomes =
                    asked(asking(name)).map(|outcome| outcome.err().map(|error| (error.status, error.param)));
                let refused = Some((400, Some(name.to_owned())));
                assert!(outcomes.contains(&refused), "{name}: {outcomes:?}");
                // Null never has an effect.
                assert!(asked(Value::Null).iter().all(Result::is_ok), "{name}");
            }
            "passed" => assert!(asked(asking(name)).iter().all(Result::is_ok), "{name}"),
            // Every request needs these parameters.
            "done" if matches!(name, "messages" | "prompt") => {}
            "done" => assert!(asked(Value::Null).iter().all(Result::is_ok), "{name}"),
            other => panic!("{name} is {other}"),
        }
    }
}

#[test]
fn other_names_do_what_ours_do_and_errors_have_the_name_that_was_given() {
    let (_, _, api) = alone();
    let complete = |more: Value| {
        let mut body = json!({"prompt": "And it came", "temperature": 0, "cache_prompt": false});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        api.complete(body.to_string().as_bytes())
    };
    let text = |more: Value| {
        let answer = complete(more).unwrap().wait().unwrap();
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), answer["usage"]["completion_tokens"].clone())
    };
    let plain = text(json!({"max_tokens": 12}));
    assert_eq!(text(json!({"n_predict": 12})), plain);
    // A number such as 16.0 counts as an integer.
    assert_eq!(text(json!({"max_tokens": 12.0, "seed": 3.0, "n": 1.0, "top_k": 40.0})), plain);
    assert_ne!(text(json!({"max_tokens": 12, "repetition_penalty": 1.9})), plain);
    // With `min_p` 1, only the most likely token is left, whatever the temperature.
    let warm = |min_p: f64, seed: u32| {
        text(json!({"max_tokens": 12, "temperature": 1.8, "top_k": 0, "top_p": 1, "min_p": min_p, "seed": seed}))
    };
    assert!((1..4).all(|seed| warm(1.0, seed) == plain));
    assert!((1..4).any(|seed| warm(0.0, seed) != plain));
    for (more, param) in [
        (json!({"n_predict": -2}), "n_predict"),
        (json!({"repetition_penalty": -1}), "repetition_penalty"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"guided_json": {"not": {}}}), "guided_json"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs"),
        (
            json!({"structured_outputs": {"json": {"properties": {"p": {"not": {}}}}}}),
            "structured_outputs.json.properties.p",
        ),
        (json!({"structured_outputs": {"structural_tag": "a"}}), "structured_outputs.structural_tag"),
        (json!({"structured_outputs": {"json": {}, "choice": ["a"]}}), "structured_outputs"),
        (json!({"guided_json": {}, "guided_choice": ["a"]}), "guided_choice"),
        (json!({"guided_grammar": "root ::= root"}), "guided_grammar"),
    ] {
        let error = complete(more.clone()).expect_err("it is refused");
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{more}: {error}");
        assert!(!error.message.contains("temp is"), "{error}");
    }
    for (more, expected) in [
        (json!({"guided_choice": ["yes"]}), "yes"),
        (json!({"guided_regex": "a{3}"}), "aaa"),
        (json!({"guided_json": {"const": 3}}), "3"),
        (json!({"guided_json": "{\"const\": 3}"}), "3"),
        (json!({"guided_grammar": "start: \"ab\""}), "ab"),
        (json!({"guided_grammar": "root ::= \"ab\""}), "ab"),
        (json!({"structured_outputs": {"choice": ["no"]}}), "no"),
        (json!({"structured_outputs": {"json": {"const": null}}}), "null"),
        (json!({"structured_outputs": {"regex": "b"}}), "b"),
        (json!({"structured_outputs": {"grammar": "start: \"c\""}}), "c"),
    ] {
        assert_eq!(text(more.clone()).0.trim(), expected, "{more}");
    }
}

#[test]
fn a_text_ends_with_a_token_of_its_own_and_not_before_its_fewest() {
    let (model, _, api) = alone();
    let complete = |more: Value| {
        let mut body = json!({"prompt": "And it came", "temperature": 0, "cache_prompt": false, "max_tokens": 24});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let answer = api.complete(body.to_string().as_bytes()).unwrap().wait().unwrap();
        let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
        (text, answer["choices"][0]["finish_reason"].clone(), answer["usage"]["completion_tokens"].as_u64().unwrap())
    };
    let (text, ..) = complete(json!({}));
    let vocab = model.native().unwrap().vocab();
    let tokens = vocab.tokenize(&format!("And it came{text}"), false, false).unwrap();
    let last = *tokens.last().unwrap();
    let (stopped, reason, count) = complete(json!({"stop_token_ids": [last]}));
    assert!(reason == "stop" && count < 24 && text.starts_with(&stopped), "{text:?} {stopped:?}");
    // Before the minimum length, the token that ends the text is not chosen.
    let (_, _, count) = complete(json!({"stop_token_ids": [last], "min_tokens": 24}));
    assert_eq!(count, 24);
    let eos = vocab.eos().unwrap();
    let wanted = json!({"logit_bias": {eos.to_string(): 1000}});
    let ended = complete(wanted.clone());
    assert_eq!((&*ended.0, ended.2), ("", 0));
    for more in [json!({"min_tokens": 7}), json!({"ignore_eos": true, "max_tokens": 7})] {
        let mut more = more;
        more["logit_bias"] = wanted["logit_bias"].clone();
        assert_eq!(complete(more.clone()).2, 7, "{more}");
    }
}
