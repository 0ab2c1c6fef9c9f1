//! OpenAI's API without HTTP, with the demo model: the JSON of requests, answers and errors.

use std::sync::OnceLock;

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::Engine;
use autoplace::memory::{FlashAttention, Pooling};
use autoplace::plan::Request;
use autoplace_openai::{Api, ApiError, Completion, EmbeddingRequest};
use proptest::prelude::*;
use serde_json::{Value, json};
use test_support::demo_path;

const NAME: &str = "demo";

/// The model and the engine that all tests share. Each test has its own sequences.
fn shared() -> &'static (Model, Engine, Api) {
    static SHARED: OnceLock<(Model, Engine, Api)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let mut request = Request::new().n_seq_max(4).n_ctx(4 * 512);
        request.params.flash_attn = FlashAttention::Off;
        let model = Model::builder(demo_path()).request(request).n_threads(1);
        let model = model.load().expect("the demo model loads");
        let engine = Engine::new(&model).expect("the context is free");
        let template = ChatTemplate::family("chatml").expect("a family");
        let api = Api::new(&model, &engine, NAME).template(template);
        (model, engine, api)
    })
}

/// A model for one test, with one sequence and no template.
pub(crate) fn alone() -> (Model, Engine, Api) {
    let model = Model::builder(demo_path()).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let api = Api::new(&model, &engine, NAME);
    (model, engine, api)
}

pub(crate) fn api() -> &'static Api {
    &shared().2
}

fn chat(body: &Value) -> Result<Completion, ApiError> {
    api().chat(body.to_string().as_bytes())
}

fn complete(body: &Value) -> Result<Completion, ApiError> {
    api().complete(body.to_string().as_bytes())
}

fn with(mut body: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn said(more: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "In the beginning"}]);
    with(json!({"messages": messages, "max_tokens": 12, "seed": 3}), more)
}

#[test]
fn a_stream_that_fails_ends_with_the_error_in_the_form_of_its_api() {
    let error = ApiError::new(500, "the device is gone");
    let answer = chat(&said(&json!({"stream": true}))).unwrap();
    assert_eq!(answer.error_event(&error), error.to_json());
    assert_eq!(error.to_json()["error"]["message"], "the device is gone");
    let message = said(&json!({"stream": true})).to_string();
    let event = api().message(message.as_bytes()).unwrap().error_event(&error);
    let kind = (&event["type"], &event["error"]["type"], &event["error"]["message"]);
    assert_eq!(kind, (&json!("error"), &json!("api_error"), &json!("the device is gone")));
    for (status, code) in [(500, "server_error"), (400, "invalid_prompt")] {
        let body = json!({"input": "In the beginning", "max_output_tokens": 12, "stream": true}).to_string();
        let event = api().respond(body.as_bytes()).unwrap().error_event(&ApiError::new(status, "no"));
        let response = &event["response"];
        assert_eq!((&event["type"], &response["status"]), (&json!("response.failed"), &json!("failed")), "{event}");
        assert_eq!((&response["error"]["code"], &response["error"]["message"]), (&json!(code), &json!("no")));
    }
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    for n in [1, 3] {
        let asked = said(&json!({"n": n, "cache_prompt": false}));
        // While the stream and the whole answer are computed, the same number of texts must be running.
        let whole = chat(&asked).unwrap().wait().unwrap();
        let streamed = with(asked, &json!({"stream": true, "stream_options": {"include_usage": true}}));
        let stream = chat(&streamed).unwrap();
        assert!(stream.is_stream());
        let chunks: Vec<Value> = stream.chunks().map(Result::unwrap).collect();
        assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
        assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
        for index in 0..n {
            let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
            let own = choices.filter(|choice| choice["index"] == index);
            let together: String = own.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
            assert_eq!(whole["choices"][index]["message"]["content"], together);
            let of_it = |chunk: &&Value| chunk["choices"][0]["index"] == index;
            let first = chunks.iter().find(of_it).unwrap();
            assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
            let last = chunks.iter().rfind(of_it).unwrap();
            assert_eq!(last["choices"][0]["finish_reason"], "length");
        }
        let (last, others) = chunks.split_last().unwrap();
        assert_eq!(last["usage"], whole["usage"]);
        assert_eq!(last["choices"], json!([]));
        assert!(others.iter().all(|chunk| chunk["usage"].is_null()));
        assert_eq!(whole["usage"]["completion_tokens"], 12 * n);
    }
}

#[test]
fn an_answer_is_what_the_library_generates() {
    let (model, engine, api) = shared();
    let asked = json!({"prompt": "And it came", "max_tokens": 16, "temperature": 0, "cache_prompt": false});
    // Values that have no effect are not refused.
    let asked = with(asked, &json!({"suffix": "", "echo": false, "best_of": 1, "audio": null}));
    let answer = complete(&asked).unwrap().wait().unwrap();
    let generate = model.generate("And it came").temp(0.0);
    let own = engine.submit(generate.max_tokens(16).cache_prompt(false)).unwrap();
    let (text, statistics) = own.into_text().unwrap();
    assert_eq!(answer["choices"][0]["text"], text);
    assert_eq!(answer["usage"]["prompt_tokens"], statistics.prompt_tokens);
    let listed = api.models(&["other", NAME]);
    let names: Vec<_> =
        listed["data"].as_array().unwrap().iter().map(|entry| (&entry["id"], &entry["aliases"])).collect();
    assert_eq!(names, [(&json!(NAME), &json!([NAME])), (&json!("other"), &json!(["other"]))]);
}

#[test]
fn prompts_come_as_texts_and_tokens_and_each_has_its_answers() {
    let (model, ..) = shared();
    let vocab = model.native().unwrap().vocab();
    let tokens = |text| vocab.tokenize(text, true, true).unwrap();
    let asked = |prompt: Value| json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "cache_prompt": false});
    let answers = |asked: &Value| {
        let answer = complete(asked).unwrap().wait().unwrap();
        let choices = answer["choices"].as_array().unwrap().iter();
        let texts: Vec<String> = choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect();
        (texts, answer["usage"]["prompt_tokens"].clone())
    };
    let texts = |prompt: Value| answers(&asked(prompt)).0;
    let one = texts(json!("And</s> it"));
    assert_eq!(texts(json!(tokens("And</s> it"))), one);
    let other = texts(json!("In the"));
    assert_ne!(one, other);
    assert_eq!(texts(json!([tokens("And</s> it"), tokens("In the")])), [&*one[0], &other[0]]);
    let (both, prompt_tokens) = answers(&with(asked(json!(["And</s> it", "In the"])), &json!({"n": 2})));
    assert_eq!(both, [&*one[0], &one[0], &other[0], &other[0]]);
    assert_eq!(prompt_tokens, tokens("And</s> it").len() + tokens("In the").len());
}

#[test]
fn a_form_is_kept_or_the_answer_says_that_it_was_cut_short() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["a"],
        "properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}}});
    let form = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let asked = said(&json!({"response_format": form, "max_tokens": 100}));
    let answer = chat(&asked).unwrap().wait().unwrap();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!((10..=99).contains(&value["a"].as_i64().unwrap()), "{text}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    let cut = with(asked, &json!({"max_tokens": 3}));
    let answer = chat(&cut).unwrap().wait().unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let held = json!({"prompt": "Yes or no? ", "max_tokens": -1, "grammar": "%llguidance {}\nstart: \"yes\" | \"no\""});
    let answer = complete(&held).unwrap().wait().unwrap();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(["yes", "no"].contains(&text), "{text}");
    let gbnf = "# GBNF, as llama-server takes it\nroot ::= \"yes\" | \"no\"";
    let answer = complete(&with(held, &json!({"grammar": gbnf}))).unwrap().wait().unwrap();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(["yes", "no"].contains(&text), "{text}");
}

#[test]
fn a_given_answer_can_be_continued() {
    let messages = json!([{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "And it came"}]);
    let asked = json!({"messages": messages, "continue_final_message": true, "max_tokens": 5, "temperature": 0});
    let answer = chat(&asked).unwrap().wait().unwrap();
    let again = with(asked, &json!({"continue_final_message": false}));
    let other = chat(&again).unwrap().wait().unwrap();
    assert!(answer["usage"]["prompt_tokens"].as_u64() < other["usage"]["prompt_tokens"].as_u64());
}

#[test]
fn every_token_has_its_probability_in_a_stream_and_in_the_whole() {
    let asked = said(&json!({"logprobs": true, "top_logprobs": 2, "temperature": 0, "cache_prompt": false}));
    let whole = chat(&asked).unwrap().wait().unwrap();
    let expected = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(expected.len(), 12);
    for token in expected {
        let likeliest = json!({"token": token["token"], "logprob": token["logprob"], "bytes": token["bytes"]});
        assert_eq!(token["top_logprobs"][0], likeliest);
    }
    let streamed = chat(&with(asked, &json!({"stream": true}))).unwrap();
    let chunks: Vec<Value> = streamed.chunks().map(Result::unwrap).collect();
    let entries = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    let entries: Vec<&Value> = entries.flatten().collect();
    assert_eq!(entries, expected.iter().collect::<Vec<_>>());
}

#[test]
fn impossible_requests_are_refused_before_anything_is_computed() {
    let (_, engine, api) = alone();
    let api = api.template(ChatTemplate::family("chatml").unwrap());
    let chat = |body: Value| api.chat(body.to_string().as_bytes());
    let complete = |body: Value| api.complete(body.to_string().as_bytes());
    #[track_caller]
    fn refused(outcome: Result<Completion, ApiError>, param: &str) -> ApiError {
        let error = outcome.expect_err("it is refused");
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{error}");
        error
    }
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let unwritable = json!({"type": "json_schema", "json_schema": {"schema": {"not": {}}}});
    for (more, param) in [
        (json!({"temperature": -1}), "temperature"),
        // These numbers are infinite in 32 bits. NaN cannot be written in JSON.
        (json!({"temperature": 1e39}), "temperature"),
        (json!({"top_p": -1e300}), "top_p"),
        (json!({"frequency_penalty": 1e39}), "frequency_penalty"),
        (json!({"dry_multiplier": 1e39}), "dry_multiplier"),
        (json!({"logit_bias": {"1": 1e39}}), "logit_bias.1"),
        (json!({"top_p": "NaN"}), "top_p"),
        (json!({"top_p": "high"}), "top_p"),
        (json!({"mirostat": 3}), "mirostat"),
        (json!({"repeat_last_n": -2}), "repeat_last_n"),
        (json!({"samplers": vec!["top_k"; 65]}), "samplers"),
        (json!({"dry_sequence_breakers": vec!["a"; 65]}), "dry_sequence_breakers"),
        (json!({"min_p": null, "stop": [1]}), "stop[0]"),
        (json!({"stop": vec!["a"; 33]}), "stop"),
        (json!({"stop": "a".repeat(65 << 10)}), "stop"),
        (json!({"n": 1000}), "n"),
        (json!({"n": 0}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"max_tokens": -2}), "max_tokens"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
        (json!({"logit_bias": {"1": "a"}}), "logit_bias.1"),
        (json!({"logprobs": true, "top_logprobs": 1000}), "logprobs"),
        (json!({"tool_choice": function("g"), "tools": [function("f")]}), "tool_choice"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "some"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"grammar": "root ::= a"}), "grammar"),
        (json!({"response_format": "text"}), "response_format"),
        (json!({"response_format": {"type": 3}}), "response_format"),
        (json!({"response_format": {"schema": {"type": "null"}}}), "response_format"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format"),
        (json!({"response_format": {"type": "xml"}}), "response_format"),
        (json!({"response_format": unwritable}), "response_format.json_schema.schema"),
        (json!({"functions": []}), "functions"),
        (json!({"audio": {"voice": "x"}}), "audio"),
    ] {
        refused(chat(said(&more)), param);
    }
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let part = json!({"type": "text", "text": "a"});
    let calls = |arguments: &[Value]| {
        let call = |arguments| json!({"function": {"name": "f", "arguments": arguments}});
        json!([{"role": "assistant", "tool_calls": arguments.iter().map(call).collect::<Value>()}])
    };
    // Half of the values that may become parts of trees. The other half is inside a text.
    let half = json!(vec![0; 1 << 15]);
    for (messages, param) in [
        (Value::Null, "messages"),
        (json!([]), "messages"),
        (json!("Hello"), "messages"),
        (json!(vec![json!({"role": "user"}); 8193]), "messages"),
        (user(json!("word ".repeat(2000))), "messages"),
        (json!([{"content": "a"}]), "messages[0]"),
        (json!([{"role": 3}]), "messages[0].role"),
        (user(json!(3)), "messages[0].content"),
        (user(json!(vec![part.clone(); 1025])), "messages[0].content"),
        (user(json!([part, {"type": "image_url"}])), "messages[0].content[1]"),
        (user(json!([{"type": "text"}])), "messages[0].content[0]"),
        (user(json!([{"type": "text", "text": 1}])), "messages[0].content[0].text"),
        (calls(&["{".into()]), "messages[0].tool_calls[0].function.arguments"),
        (calls(&[half.clone(), half.to_string().into()]), "messages[0].tool_calls[1].function.arguments"),
    ] {
        refused(chat(said(&json!({"messages": messages}))), param);
    }
    let text = |more: Value| complete(with(json!({"prompt": "a"}), &more));
    for (prompt, param) in [
        (Value::Null, "prompt"),
        (json!([]), "prompt"),
        (json!(true), "prompt"),
        (json!(vec!["a"; 129]), "prompt"),
        (json!([1, "a"]), "prompt[1]"),
        (json!(["a", 1]), "prompt[1]"),
        (json!([[1, 1.5]]), "prompt[0][1]"),
    ] {
        refused(text(json!({"prompt": prompt})), param);
    }
    assert_eq!(refused(text(json!({"suffix": "b"})), "suffix").code, Some("unsupported_parameter"));
    refused(text(json!({"best_of": 2})), "best_of");
    refused(text(json!({"echo": true})), "echo");
    assert_eq!(text(json!({"prompt": [-1]})).unwrap_err().status, 400);
    assert_eq!(text(json!({"model": "other"})).unwrap_err().status, 404);
    // These are more texts than the engine accepts, even if it is idle.
    refused(text(json!({"n": 100})), "n");
    refused(text(json!({"prompt": vec!["a"; 100]})), "prompt");
    assert_eq!(engine.metrics().prompt_tokens, 0);
}

#[test]
fn nothing_is_thought_before_a_form_unless_the_client_says_so() {
    let (model, engine, _) = shared();
    let template = ChatTemplate::new("{{ raise_exception('thinks: ' ~ enable_thinking) }}", <_>::default()).unwrap();
    let api = Api::new(model, engine, NAME).template(template);
    let thinks = |more: Value| api.chat(said(&more).to_string().as_bytes()).unwrap_err().message;
    assert!(thinks(json!({"reasoning_effort": "none"})).contains("thinks: False"));
    assert!(thinks(json!({"json_schema": {}})).contains("thinks: False"));
    let told = json!({"json_schema": {}, "chat_template_kwargs": {"enable_thinking": true}});
    assert!(thinks(told).contains("thinks: True"));
}

#[test]
fn what_a_template_refuses_is_the_request_s_fault_and_one_that_is_none_the_model_s() {
    let (model, engine, _) = shared();
    let source = "{% for message in messages %}{% if message.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + message.role) }}{% endif %}{{ message.content }}{% endfor %}";
    let template = ChatTemplate::new(source, <_>::default()).unwrap();
    let body = json!({"messages": [{"role": "alien", "content": ""}]}).to_string();
    let refused = |api: Api| api.chat(body.as_bytes()).unwrap_err();
    let error = refused(Api::new(model, engine, NAME).template(template));
    assert_eq!((error.status, error.param.as_deref()), (400, Some("messages")));
    assert!(error.message.contains("no alien"), "{error}");
    // The demo model has no template of its own.
    let error = refused(Api::new(model, engine, NAME));
    assert_eq!((error.status, error.code), (400, Some("no_chat_template")));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    let broken = test_support::tiny::tiny_llama().str("tokenizer.chat_template", "{{ messages }}\n{% if %}");
    broken.write_sparse(&path).unwrap();
    let model = Model::builder(&path).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let error = refused(Api::new(&model, &engine, NAME));
    assert_eq!((error.status, error.param.as_deref()), (500, None));
    assert!(error.message.contains("wrong in line 2"), "{}", error.message);
}

#[test]
fn a_dropped_answer_is_cancelled_and_an_ended_engine_says_so() {
    let (_, engine, api) = alone();
    let body = json!({"prompt": "a", "stream": true, "max_tokens": 3000, "ignore_eos": true}).to_string();
    let mut chunks = api.complete(body.as_bytes()).unwrap().chunks();
    chunks.next().unwrap().unwrap();
    drop(chunks);
    // The only sequence is free again, so the next request can use it.
    let short = json!({"prompt": "a", "max_tokens": 1}).to_string();
    api.complete(short.as_bytes()).unwrap().wait().unwrap();
    // If generation fails after the request was accepted, the error is the last item of the stream.
    let mut chunks = api.complete(body.as_bytes()).unwrap().chunks();
    chunks.next().unwrap().unwrap();
    engine.close(autoplace::generate::Shutdown::Cancel);
    assert_eq!(chunks.by_ref().last().unwrap().unwrap_err().status, 503);
    assert!(chunks.next().is_none());
    let error = api.complete(short.as_bytes()).unwrap_err();
    assert_eq!((error.status, error.code), (503, Some("shutting_down")));
}

#[test]
fn vectors_come_as_numbers_and_packed() {
    let model = Model::builder(demo_path()).embeddings(Pooling::Mean).n_threads(1).load().unwrap();
    let mut embedder = model.embedder().unwrap();
    let mut answer = |body: Value| {
        EmbeddingRequest::read(body.to_string().as_bytes(), NAME).and_then(|request| request.answer(&mut embedder))
    };
    let plain = answer(json!({"input": ["tide", "the tide comes in"]})).unwrap();
    let packed = answer(json!({"input": ["tide", "the tide comes in"], "encoding_format": "base64"})).unwrap();
    for index in 0..2 {
        let numbers = plain["data"][index]["embedding"].as_array().unwrap();
        let text = packed["data"][index]["embedding"].as_str().unwrap();
        assert_eq!(text.len(), (numbers.len() * 4).div_ceil(3) * 4, "four bytes for each");
        assert_eq!(plain["data"][index]["index"], index);
    }
    assert_eq!(plain["usage"]["prompt_tokens"], plain["usage"]["total_tokens"]);
    let width = plain["data"][0]["embedding"].as_array().unwrap().len();
    // Two of llama-server's ways to scale a vector: so that the largest element is 32760, or not at all.
    let mut largest = |kind: i64| {
        let scaled = answer(json!({"input": "tide", "embd_normalize": kind})).unwrap();
        let values = scaled["data"][0]["embedding"].as_array().unwrap();
        values.iter().map(|value| value.as_f64().unwrap().abs()).fold(0.0, f64::max)
    };
    assert!((largest(0) - 32760.0).abs() < 0.1 && largest(2) < 1.0 && largest(-1) > largest(2));
    let error = answer(json!({"input": "a", "embd_normalize": -2})).unwrap_err();
    assert_eq!((error.status, error.param.as_deref()), (400, Some("embd_normalize")));
    assert!(answer(json!({"input": "a", "dimensions": width})).is_ok());
    let error = answer(json!({"input": "a", "dimensions": 7})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("dimensions"));
    // A text that is too long is cut, if the request permits that. Otherwise it is refused, and the error names the
    // parameter.
    let long = "tide ".repeat(5000);
    let error = answer(json!({"input": ["a", long]})).unwrap_err();
    assert_eq!((error.param.as_deref(), error.code), (Some("input[1]"), Some("context_length_exceeded")));
    for cut in
        [json!({"truncate": true}), json!({"truncate_prompt_tokens": -1}), json!({"truncate": true, "model": ""})]
    {
        let mut asked = json!({"input": ["a", long]});
        asked.as_object_mut().unwrap().extend(cut.as_object().unwrap().clone());
        assert_eq!(answer(asked).unwrap()["data"].as_array().unwrap().len(), 2, "{cut}");
    }
    assert_eq!(answer(json!({"input": "a", "truncate_prompt_tokens": 3})).unwrap_err().status, 400);
    let tokens = answer(json!({"input": [1, 2]})).unwrap_err().message;
    assert!(tokens.contains("check_embedding_ctx_length=False"), "{tokens}");
    for (wrong, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [1, 2]}), "input"),
        (json!({"input": [[1]]}), "input"),
        (json!({"input": ["a", 1]}), "input[1]"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "a", "model": "other"}), "model"),
    ] {
        assert_eq!(answer(wrong).unwrap_err().param.as_deref(), Some(param));
    }
    let long = answer(json!({"input": ["a", "word ".repeat(20_000)]})).unwrap_err();
    assert_eq!((long.param.as_deref(), long.code), (Some("input[1]"), Some("context_length_exceeded")));
    drop(embedder);

    let each = Model::builder(demo_path()).embeddings(Pooling::None).n_threads(1).load().unwrap();
    let request = EmbeddingRequest::read(br#"{"input": "a b"}"#, NAME).unwrap();
    let error = request.answer(&mut each.embedder().unwrap()).unwrap_err();
    assert!(error.message.contains("pooling"), "{error}");
}

const NAMES: &str = "role content type text function name arguments tool_calls json_schema schema 0 7";

/// One of the words in a list.
pub(crate) fn one_of(words: &'static str) -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(words.split_whitespace().collect::<Vec<_>>())
}

/// Any JSON value of limited size.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let names = one_of(NAMES);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..4)
                .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

const PARAMETERS: &str = "model messages prompt stream stream_options n stop max_tokens max_completion_tokens seed \
    temperature top_p frequency_penalty presence_penalty logit_bias logit_bias_text tools \
    tool_choice parallel_tool_calls response_format logprobs top_logprobs reasoning_effort echo \
    top_k min_p samplers mirostat dry_sequence_breakers grammar json_schema cache_prompt \
    chat_template_kwargs add_generation_prompt continue_final_message suffix";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_request_ends_in_an_answer_or_an_error(
        fields in prop::collection::vec((one_of(PARAMETERS), any_json()), 0..4),
        is_chat in any::<bool>(),
    ) {
        let mut body = said(&json!({"prompt": "a", "max_tokens": 2}));
        for (name, value) in fields {
            body[name] = value;
        }
        // A random request may ask for a long text, so the test does not wait for the end of that text.
        let outcome = if is_chat { chat(&body) } else { complete(&body) };
        match outcome {
            Ok(completion) => drop(completion),
            Err(error) => {
                prop_assert!((400..600).contains(&error.status));
                prop_assert!(error.status < 500 || error.status == 503, "{error}: {body}");
                prop_assert_eq!(&error.to_json()["error"]["message"], &json!(error.message));
            }
        }
    }

    #[test]
    fn any_bytes_end_in_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let refused = |outcome: Result<Completion, ApiError>| outcome.is_err_and(|error| error.status == 400);
        prop_assert!(refused(api().chat(&bytes)));
        prop_assert!(refused(api().complete(&bytes)));
    }
}
