//! A text that is held to a constraint meets it, or is an error that says what cut it short, or why it cannot be met;
//! whoever wrote the constraint, and wherever the model is.

use crate::native_support::{demo_path, load_demo};
use autoplace::generate::{Constraint, Error, FinishReason, Generate};
use autoplace::plan::{Context, Request};
use autoplace::{Isolation, Model, OnDeath, WorkerProcess};
use serde_json::{Value, json};

const PROMPT: &str = "And the king said unto his servants,";

fn limit(result: Result<String, Error>) -> (FinishReason, String) {
    match result {
        Err(Error::Incomplete { limit, text }) => (limit, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_text_that_is_cut_short_is_an_error_with_the_text_and_the_limit() {
    let model = load_demo();
    let letters = || {
        let letters = Constraint::regex("[a-z]{50}");
        model.generate(PROMPT).seed(1).constraint(letters)
    };
    let (reason, text) = limit(letters().max_tokens(3).text());
    assert_eq!(reason, FinishReason::MaxTokens);
    assert!(!text.is_empty() && text.len() < 50, "{text}");
    let (reason, none) = limit(letters().max_tokens(0).text());
    assert_eq!((reason, &*none), (FinishReason::MaxTokens, ""));
    let stop = &text[text.len() - 1..];
    let (reason, cut) = limit(letters().stop(stop).text());
    assert_eq!(reason, FinishReason::StopString);
    assert!(!cut.contains(stop), "{cut}");
    let object = Constraint::json_schema(json!({"type": "object"}));
    let object = model.generate(PROMPT).constraint(object).max_tokens(3);
    match object.text() {
        Ok(text) => assert!(serde_json::from_str::<Value>(&text).is_ok()),
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("max_tokens ended the text"), "{said}");
        }
    }
}

#[test]
fn the_end_of_the_context_is_a_limit_too() {
    let request = Request::new().context(Context::Tokens(64));
    let builder = Model::builder(demo_path()).request(request).threads(1);
    let model = builder.load().unwrap();
    let letters = Constraint::regex("[a-z]{200}");
    let (reason, _) = limit(model.generate(PROMPT).constraint(letters).text());
    assert_eq!(reason, FinishReason::ContextFull);
}

#[test]
fn a_limit_after_which_the_text_is_what_was_asked_for_is_none() {
    let model = load_demo();
    let letters = Constraint::regex("[a-z ]+");
    let held = model.generate(PROMPT).constraint(letters).max_tokens(5);
    let mut stream = held.stream().unwrap();
    assert!(stream.by_ref().all(|piece| piece.is_ok()));
    assert_eq!(stream.statistics().generated_tokens, 5);
    assert_eq!(stream.finish_reason(), Some(FinishReason::MaxTokens));
}

#[test]
fn a_stream_tells_the_text_and_then_the_error() {
    let model = load_demo();
    let letters = Constraint::regex("[a-z]{50}");
    let held = model.generate(PROMPT).constraint(letters).max_tokens(4);
    let mut stream = held.stream().unwrap();
    let mut told = String::new();
    let error = loop {
        match stream.next().expect("an error comes before the end") {
            Ok(piece) => told.push_str(&piece),
            Err(error) => break error,
        }
    };
    assert_eq!(limit(Err(error)), (FinishReason::MaxTokens, told));
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::MaxTokens));
}

#[test]
fn a_session_says_of_each_text_whether_it_meets_its_constraint() {
    let request = Request::new().n_seq_max(2);
    let builder = Model::builder(demo_path()).request(request).threads(1);
    let model = builder.load().unwrap();
    let mut session = model.session().unwrap();
    let held = |regex: &str| {
        let held = model.generate(PROMPT).constraint(Constraint::regex(regex));
        held.max_tokens(6).seed(3)
    };
    let long = session.begin(held("[a-z]{90}")).unwrap();
    let short = session.begin(held("[a-z]")).unwrap();
    let mut ends = Vec::new();
    while !session.is_empty() {
        for piece in session.step().unwrap() {
            ends.extend(
                piece
                    .end
                    .map(|end| (piece.sequence, end.reason, end.meets_constraint)),
            );
        }
    }
    ends.sort_unstable_by_key(|(sequence, ..)| *sequence);
    let expected = [
        (long, FinishReason::MaxTokens, false),
        (short, FinishReason::EndOfGeneration, true),
    ];
    assert_eq!(ends, expected);
}

/// What a constraint is refused for, before anything is generated.
fn refusal(model: &Model, constraint: Constraint) -> String {
    let stream = model.generate(PROMPT).constraint(constraint).stream();
    match stream {
        Err(error @ (Error::Constraint { .. } | Error::NoTokenAllowed { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_named() {
    let model = load_demo();
    for (schema, keyword) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"if": {}, "then": {}}), "if"),
        (
            json!({"type": "array", "contains": {"type": "null"}}),
            "contains",
        ),
        (
            json!({"type": "object", "propertyNames": {"maxLength": 3}}),
            "propertyNames",
        ),
        (
            json!({"type": "object", "minProperties": 2}),
            "minProperties",
        ),
        (json!({"type": "string", "format": "no-such"}), "no-such"),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "oneOf",
        ),
        (
            json!({"properties": {"a": {"dependentRequired": {"b": ["c"]}}}}),
            "dependentRequired",
        ),
        (
            json!({"$ref": "https://example.com/schema"}),
            "https://example.com/schema",
        ),
        (json!({"$ref": "#/nowhere"}), "nowhere"),
        (json!({"type": "elephant"}), "elephant"),
        (json!({"const": 1e300}), "1e+300"),
        (json!({"x-guidance": {"lenient": true}, "not": {}}), "not"),
    ] {
        let said = refusal(&model, Constraint::json_schema(schema.clone()));
        assert!(said.contains(keyword), "{schema}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn what_no_text_can_meet_is_refused() {
    let model = load_demo();
    for constraint in [
        Constraint::json_schema(json!(false)),
        Constraint::json_schema(json!({"enum": []})),
        Constraint::json_schema(json!({"type": "integer", "minimum": 5, "maximum": 3})),
        Constraint::json_schema(json!({"type": "string", "minLength": 5, "maxLength": 3})),
        Constraint::json_schema(json!({"allOf": [{"type": "string"}, {"type": "null"}]})),
        Constraint::json_schema(
            json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        ),
        Constraint::json_schema(json!({"$ref": "#"})),
        Constraint::json_schema(json!("text")),
        Constraint::regex("[a&&b]"),
        Constraint::regex("a)(b"),
        Constraint::regex("(?=a)b"),
        Constraint::choices(Vec::<String>::new()),
        Constraint::lark("start: undefined"),
        Constraint::lark("start: a\na: b\nb: a"),
        Constraint::lark("no grammar"),
        Constraint::gbnf("root ::= undefined"),
        Constraint::gbnf("start ::= \"no root\""),
        Constraint::gbnf("root ::= root"),
        Constraint::gbnf("root ::= [a"),
        Constraint::gbnf("root ::= \"\\q\""),
        Constraint::gbnf("root ::= * \"a\""),
        Constraint::gbnf("root ::= <[7]>"),
        Constraint::gbnf(""),
    ] {
        let said = refusal(&model, constraint.clone());
        assert!(
            said.len() < 500 && !said.contains('\n'),
            "{constraint:?}: {said}"
        );
    }
}

fn list(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

/// What nobody in good faith would write. Each is refused or followed, in bounded time and memory: the test ends.
fn hostile() -> Vec<Constraint> {
    let chain: Value = (0..1900)
        .map(|i| {
            let next = format!("#/$defs/d{}", (i + 1) % 1900);
            (
                format!("d{i}"),
                json!({"type": "object", "properties": {"x": {"$ref": next}}}),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let nested = (0..400).fold(json!({}), |inner, _| json!({"items": inner}));
    let optional: Value = (0..900)
        .map(|i| (format!("p{i}"), json!({"type": "string"})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let patterns: Value = (0..24)
        .map(|i| (format!("^x{i}(a|b)*c(a|b){{12}}$"), json!(true)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let either = |key: &str, n: usize| json!({"anyOf": list(n, |i| json!({"type": "object", "required": [format!("{key}{i}")]}))});
    let mut all: Vec<Constraint> = vec![
        json!({"$ref": "#/$defs/d0", "$defs": chain}),
        nested,
        json!({"enum": list(30_000, |i| json!(format!("value {i} of many")))}),
        json!({"enum": list(200_000, |i| json!(i))}),
        json!({"oneOf": list(5000, |i| json!({"const": i}))}),
        json!({"allOf": [either("a", 300), either("b", 300)]}),
        json!({"allOf": list(30, |i| either(&i.to_string(), 2))}),
        json!({"type": "object", "properties": optional}),
        json!({"type": "object", "patternProperties": patterns}),
        json!({"type": "array", "minItems": 1_000_000_000}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "pattern": "^(a|a|b?)*(a+)+(.*)*c{1,500}$"}),
        json!({"type": "number", "multipleOf": 1e-9}),
        json!({"type": "number", "multipleOf": 0}),
        json!({"description": "x".repeat(2 << 20)}),
        json!({"$ref": format!("#/{}", "é".repeat(200)), "enum": ["é".repeat(5000)]}),
    ]
    .into_iter()
    .map(Constraint::json_schema)
    .collect();
    all.extend([
        Constraint::regex("(a|b)*a(a|b){20}(a|b)*b(a|b){20}"),
        Constraint::regex("((((((x{100}){100}){100}){100}){100}){100})"),
        Constraint::regex("(".repeat(100_000)),
        Constraint::regex(format!("{}a{}", "(".repeat(90), ")*".repeat(90))),
        Constraint::regex("a|b".repeat(1 << 20)),
        Constraint::choices((0..100_000).map(|i| i.to_string())),
        Constraint::lark("start: start start | \"a\" | "),
        Constraint::lark("start: (\"a\" | b){1,100000}\nb: (start{1,1000}){1,1000}"),
        Constraint::lark(format!("start: {}", "(".repeat(100_000))),
        Constraint::gbnf(
            "root ::= (a a)* \"b\"\na ::= (\"x\" | \"x\" a | a2)*\na2 ::= \"x\"* \"x\"* \"x\"*",
        ),
        Constraint::gbnf("root ::= ((((\"x\"{40}){40}){40}){40})"),
        Constraint::gbnf("root ::= \"x\"{2000} | \"x\"{3,1} | [^x]{0,99999999999999999999}"),
        Constraint::gbnf(format!("root ::= {}", "(".repeat(100_000))),
        Constraint::gbnf("root ::= \"(\" root root | \"(\" root | \"\""),
        Constraint::gbnf("root ::= \\"),
    ]);
    all
}

#[test]
fn a_hostile_constraint_is_an_error_or_followed() {
    let model = load_demo();
    let mut refused = 0;
    for constraint in hostile() {
        let held = model.generate(PROMPT).seed(1).constraint(constraint);
        match held.max_tokens(8).text() {
            Ok(_) | Err(Error::Incomplete { .. }) => {}
            Err(Error::Constraint { .. } | Error::NoTokenAllowed { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused >= 10, "{refused} were refused");
}

fn worker() -> Model {
    let program = env!("CARGO_BIN_EXE_autoplace-worker");
    let process = WorkerProcess::program(program).on_death(OnDeath::Resume { attempts: 1 });
    let builder = Model::builder(demo_path()).threads(1);
    builder
        .isolation(Isolation::Process(process))
        .load()
        .unwrap()
}

fn person() -> Constraint {
    Constraint::json_schema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    }))
}

#[test]
fn a_worker_gives_the_same_texts_and_the_same_errors() {
    let (here, there) = (load_demo(), worker());
    let same = |describe: &dyn Fn(Generate) -> Generate| {
        let run = |model: &Model| match describe(model.generate(PROMPT)).text() {
            Ok(text) => Ok(text),
            Err(error) => Err(format!("{error:?}")),
        };
        let (ours, theirs) = (run(&here), run(&there));
        assert_eq!(ours, theirs);
        ours
    };
    same(&|it| it.constraint(person()).seed(5)).unwrap();
    same(&|it| it.constraint(person()).seed(5).max_tokens(4)).unwrap_err();
    same(&|it| it.constraint(person()).max_tokens(0)).unwrap_err();
    same(&|it| it.constraint(Constraint::regex("("))).unwrap_err();
    same(&|it| it.constraint(Constraint::gbnf("root ::= [a-z]{9}")).seed(2)).unwrap();
}

#[test]
fn a_text_goes_on_under_its_constraint_when_the_model_is_placed_anew() {
    let model = load_demo();
    let gbnf = Constraint::gbnf("root ::= [a-z]{4} \" \" [A-Z]{30} \" \" [0-9]{4}");
    for constraint in [person(), gbnf] {
        let held = || {
            let held = model.generate(PROMPT).seed(11);
            held.constraint(constraint.clone())
        };
        let expected = held().text().unwrap();
        let mut stream = held().stream().unwrap();
        let mut text = String::new();
        for _ in 0..3 {
            text.extend(stream.next().map(Result::unwrap));
            stream.replace(None).unwrap();
        }
        for piece in stream {
            text.push_str(&piece.unwrap());
        }
        assert_eq!(text, expected);
    }
}
