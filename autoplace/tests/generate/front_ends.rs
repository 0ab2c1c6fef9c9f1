//! A text of the demo model has the same tokens and the same end in each front end: a stream, a session, an engine, a
//! worker, and the two async forms.

use crate::text_support::{Completion, PROMPT, answered, demo, in_worker, request, text, to_the_end, tokens_of};
use autoplace::Model;
use autoplace::generate::Constraint;
use autoplace::generate::{Engine, Error, FinishReason, GenerateRequest, Metrics, Prompt, WhenFull};
use autoplace::llama_sys::{self, Token};
use serde_json::json;
use test_support::demo_path;

#[derive(Debug, Clone, Copy, PartialEq)]
enum FrontEnd {
    Stream,
    Session,
    Engine,
    Worker,
    EngineInWorker,
    AsyncStream,
    AsyncWorker,
    AsyncAnswer,
}

/// The outcome of a text.
#[derive(Debug, PartialEq)]
struct Outcome {
    completion: Completion,
    /// The error of the text. A session returns no error, because its pieces report how the text has ended.
    error: Option<String>,
    /// How many tokens the prompt has, and how many were generated.
    counts: [usize; 2],
}

/// Runs a text twice in a front end. The first time, it is read as text; the second time, it is read as tokens. In a
/// session, the text runs only once, because its pieces have both. Returns the error if the request is refused.
fn run(front: FrontEnd, model: &Model, generate: &GenerateRequest) -> Result<Outcome, Error> {
    let again = generate.clone();
    let generate = generate.clone().cache_prompt(false);
    let (parts, (reason, counted), completion): (Vec<_>, _, _) = match front {
        FrontEnd::Session => {
            let mut session = model.session()?;
            session.begin(generate)?;
            let completion = to_the_end(&mut session).remove(0);
            let end = completion.end.unwrap();
            (vec![Ok(completion.text.clone())], (Some(end.reason), end.statistics), completion)
        }
        FrontEnd::Stream | FrontEnd::Worker => {
            let mut stream = generate.stream()?;
            let parts = stream.by_ref().collect();
            assert!(stream.next().is_none(), "it stays at its end");
            let end = (stream.finish_reason(), stream.statistics());
            drop(stream);
            let mut stream = again.stream()?;
            let completion = Completion::from_pieces(stream.pieces().map(Result::unwrap));
            assert_eq!(completion.statistics(), stream.statistics());
            (parts, end, completion)
        }
        FrontEnd::Engine | FrontEnd::EngineInWorker => {
            let engine = Engine::new(model)?;
            let submitted = engine.try_submit(generate);
            if submitted.is_err() {
                assert_eq!(engine.metrics(), Metrics::default(), "it was never queued");
            }
            let mut answer = submitted?;
            let parts = Iterator::collect(&mut answer);
            let end = (answer.finish_reason(), answer.statistics());
            let metrics = engine.metrics();
            assert_eq!((metrics.queued, metrics.running), (0, 0));
            (parts, end, answered(engine.submit(again)?))
        }
        #[cfg(not(feature = "async"))]
        _ => unreachable!("there are no tasks"),
        #[cfg(feature = "async")]
        awaited => {
            use crate::async_streams::block_on;
            use futures::StreamExt;
            let engine = match awaited {
                FrontEnd::AsyncAnswer => Some(Engine::new(model)?),
                _ => None,
            };
            let awaited = |generate: GenerateRequest| match &engine {
                Some(engine) => block_on(engine.submit_async(generate)).0?.into_async(),
                None => generate.stream()?.into_async(),
            };
            let mut stream = awaited(generate)?;
            let parts = block_on(stream.by_ref().collect()).0;
            let end = (stream.finish_reason(), stream.statistics());
            drop(stream);
            let mut stream = awaited(again)?;
            let pieces = futures::stream::poll_fn(|context| stream.poll_piece(context));
            let pieces: Vec<_> = block_on(pieces.map(Result::unwrap).collect()).0;
            (parts, end, Completion::from_pieces(pieces))
        }
    };
    let (mut text, mut error) = (String::new(), None);
    for part in parts {
        assert!(error.is_none(), "an error is the last of a text: {error:?}, {part:?}");
        match part {
            Ok(part) => text.push_str(&part),
            Err(failed) => error = Some(format!("{failed:?}")),
        }
    }
    assert_eq!((&text, reason), (&completion.text, completion.end.map(|end| end.reason)), "{front:?}");
    Ok(Outcome { completion, error, counts: [counted.prompt_tokens, counted.generated_tokens] })
}

type Check = fn(&Error) -> bool;

enum Ends {
    By(FinishReason),
    /// After its last piece, the text ends with an error.
    With(FinishReason, Check),
    /// The request is refused, and no text begins.
    Refused(Check),
}

use Ends::{By, Refused, With};
use FinishReason::{ContextFull, EndOfGeneration, MaxTokens, StopString};

const CONTEXT: u32 = 64;

struct Case {
    name: &'static str,
    generate: Box<dyn Fn(&Model) -> GenerateRequest>,
    ends: Ends,
}

fn case(name: &'static str, ends: Ends, describe: impl Fn(GenerateRequest) -> GenerateRequest + 'static) -> Case {
    let generate = move |model: &Model| describe(model.generate(PROMPT).temp(0.0));
    Case { name, generate: Box::new(generate), ends }
}

/// A case with a prompt of `n` tokens.
fn of_tokens(name: &'static str, n: usize, ends: Ends) -> Case {
    let generate = move |model: &Model| {
        let prompt: Vec<Token> = (0..n as Token).map(|number| 300 + number).collect();
        model.generate(Prompt::tokens(prompt)).temp(0.0)
    };
    Case { name, generate: Box::new(generate), ends }
}

fn cases(stop: String) -> Vec<Case> {
    let is_range: Check = |error| matches!(error, Error::Native(llama_sys::Error::InvalidParameter { .. }));
    let is_full: Check = |error| matches!(error, Error::ContextFull { tokens: 65 });
    let too_long: Check = |error| matches!(error, Error::PromptTooLong { tokens: 64, context: 64 });
    let by_chance = |request: GenerateRequest| request.seed(3).temp(0.8).repeat_penalty(1.3).logprobs(3);
    vec![
        case("so many tokens", By(MaxTokens), |request| request.max_tokens(20)),
        case("no token", By(MaxTokens), |request| request.max_tokens(0)),
        case("by chance", By(MaxTokens), move |request| by_chance(request).max_tokens(20)),
        case("to a stop string", By(StopString), move |request| request.stop(&stop)),
        case("to the end of the context", By(ContextFull), |request| request),
        case("which is an error", With(ContextFull, is_full), |request| request.when_full(WhenFull::Error)),
        of_tokens("a prompt of all but one", 63, By(ContextFull)),
        of_tokens("a prompt of all", 64, Refused(too_long)),
        case("no stop string", Refused(|error| matches!(error, Error::EmptyStop)), |request| request.stop("")),
        case("out of range", Refused(is_range), |request| request.top_p(7.0)),
        case("no number", Refused(is_range), |request| request.temp(f32::NAN)),
    ]
}

fn constrained(stop: String) -> Vec<Case> {
    let cut: Check = |error| matches!(error, Error::Incomplete { limit: MaxTokens, .. });
    let stopped: Check = |error| matches!(error, Error::Incomplete { limit: StopString, .. });
    let full: Check = |error| matches!(error, Error::Incomplete { limit: ContextFull, .. });
    let person = Constraint::json_schema(json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": false,
    }));
    let unmeetable: Check = |error| matches!(error, Error::Constraint { .. });
    let deep = (0..400).fold(json!({}), |inner, _| json!({"items": inner}));
    let letters = |request: GenerateRequest| request.constraint(Constraint::regex("[a-z]{30}"));
    vec![
        case("letters", By(EndOfGeneration), letters),
        case("letters cut short", With(MaxTokens, cut), move |request| letters(request).max_tokens(3)),
        case("no letters", With(MaxTokens, cut), move |request| letters(request).max_tokens(0)),
        case("letters to a stop", With(StopString, stopped), move |request| letters(request).stop(&stop)),
        case("too many letters", With(ContextFull, full), |request| {
            request.constraint(Constraint::regex("[a-z]{500}"))
        }),
        // The unfinished text meets the constraint.
        case("cut where it may end", By(MaxTokens), |request| {
            request.constraint(Constraint::regex("[a-z ]+")).max_tokens(5)
        }),
        case("a schema", By(EndOfGeneration), move |request| request.constraint(person.clone())),
        case("a grammar", By(EndOfGeneration), |request| request.constraint(Constraint::lark("start: /[a-z]{9}/"))),
        case("no expression", Refused(unmeetable), |request| request.constraint(Constraint::regex("("))),
        case("too deep", Refused(unmeetable), move |request| request.constraint(Constraint::json_schema(deep.clone()))),
    ]
}

#[test]
fn a_text_and_its_end_are_the_same_in_every_front_end() {
    use FrontEnd::{AsyncAnswer, AsyncStream, AsyncWorker, EngineInWorker, Session, Stream, Worker};
    let here = demo(CONTEXT, 1, false);
    let there = in_worker(&demo_path(), request(CONTEXT, 1, false));
    let whole = text(here.generate(PROMPT).temp(0.0));
    let stop = whole.split_whitespace().nth(5).unwrap().to_owned();
    let constrained = constrained("e".to_owned());
    for Case { name, generate, ends } in cases(stop.clone()).into_iter().chain(constrained) {
        let mut expected: Option<Outcome> = None;
        let tasks = [AsyncStream, AsyncWorker, AsyncAnswer].into_iter().filter(|_| cfg!(feature = "async"));
        for front in [Stream, Session, FrontEnd::Engine, Worker, EngineInWorker].into_iter().chain(tasks) {
            let case = format!("{name}, by {front:?}");
            let is_there = matches!(front, Worker | EngineInWorker | AsyncWorker);
            let model = if is_there { &there } else { &here };
            let mut outcome = match (run(front, model, &generate(model)), &ends) {
                (Err(error), Refused(is)) => {
                    assert!(is(&error), "{case}: {error:?}");
                    continue;
                }
                (Ok(outcome), By(_) | With(..)) => outcome,
                (ran, _) => panic!("{case}: {ran:?}"),
            };
            let end = outcome.completion.end.unwrap();
            let is_cut = outcome.error.as_ref().is_some_and(|error| error.starts_with("Incomplete"));
            assert!(end.meets_constraint != is_cut || front == Session, "{case}");
            if let Some(expected) = &expected {
                if front == Session {
                    outcome.error.clone_from(&expected.error);
                }
                assert_eq!(outcome, *expected, "{case}");
                continue;
            }
            // The stream is compared with the expected outcome. The other front ends are compared with the stream.
            let (reason, fails) = match ends {
                By(reason) => (reason, None),
                With(reason, is) => (reason, Some(is)),
                Refused(_) => unreachable!("it was not refused"),
            };
            assert_eq!((end.reason, outcome.error.is_some()), (reason, fails.is_some()), "{case}: {outcome:?}");
            if let Some(is) = fails {
                let error = generate(model).text().unwrap_err();
                assert!(is(&error), "{case}: {error:?}");
                let said = error.to_string();
                if let Error::Incomplete { limit, text } = error {
                    assert!(said.contains("`maxItems`, `maxLength`"), "{case}: {said}");
                    let end: String = text.chars().rev().take(10).collect();
                    let quoted = format!("{:?}", end.chars().rev().collect::<String>());
                    assert!(said.contains(quoted.trim_matches('"')), "{case}: {said}");
                    assert_eq!(text, outcome.completion.text, "{case}");
                    assert_eq!(said.starts_with("max_tokens ended the text"), limit == MaxTokens, "{case}: {said}");
                }
            }
            let (text, [prompt, generated]) = (&*outcome.completion.text, outcome.counts);
            match name {
                "so many tokens" => assert_eq!((prompt, generated), (tokens_of(model, PROMPT).len(), 20)),
                "no token" => assert_eq!((text, generated), ("", 0)),
                "to a stop string" => assert_eq!(text, whole.split(&stop).next().unwrap()),
                // The last token is chosen, but it needs no cell of the cache.
                "to the end of the context" | "which is an error" => {
                    assert_eq!((text, prompt + generated), (&*whole, CONTEXT as usize + 1));
                }
                _ => {}
            }
            expected = Some(outcome);
        }
    }
}
