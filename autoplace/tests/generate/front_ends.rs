//! A text is the same, and ends the same, whoever runs it: a stream, a session, an engine, a worker, and the two that
//! tasks await. On the demo model.

use crate::native_support::demo_path;
use crate::text_support::{PROMPT, Told, answered, demo, in_worker, request, text, to_the_end, tokens_of};
use autoplace::Model;
#[cfg(feature = "constraints")]
use autoplace::generate::Constraint;
use autoplace::generate::{Engine, Error, FinishReason, Generate, Metrics, Prompt, Statistics, WhenFull};
use autoplace::llama_sys::{self, Token};
#[cfg(feature = "constraints")]
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq)]
enum FrontEnd {
    Stream,
    Session,
    Engine,
    Worker,
    EngineInWorker,
    #[cfg(feature = "async")]
    AsyncStream,
    #[cfg(feature = "async")]
    AsyncWorker,
    #[cfg(feature = "async")]
    AsyncAnswer,
}

const FRONT_ENDS: &[FrontEnd] = &[
    FrontEnd::Stream,
    FrontEnd::Session,
    FrontEnd::Engine,
    FrontEnd::Worker,
    FrontEnd::EngineInWorker,
    #[cfg(feature = "async")]
    FrontEnd::AsyncStream,
    #[cfg(feature = "async")]
    FrontEnd::AsyncWorker,
    #[cfg(feature = "async")]
    FrontEnd::AsyncAnswer,
];

/// What became of a text.
#[derive(Debug, PartialEq)]
struct Outcome {
    text: String,
    /// Not of a session, whose pieces say why each text ended.
    error: Option<String>,
    reason: Option<FinishReason>,
    /// Tokens of the prompt, and generated.
    counts: [usize; 2],
}

impl Outcome {
    fn new(
        pieces: impl IntoIterator<Item = Result<String, Error>>,
        end: impl FnOnce() -> (Option<FinishReason>, Statistics),
    ) -> Self {
        let (mut text, mut error) = (String::new(), None);
        for piece in pieces {
            assert!(error.is_none(), "an error is the last of a text: {error:?}, {piece:?}");
            match piece {
                Ok(piece) => text.push_str(&piece),
                Err(failed) => error = Some(format!("{failed:?}")),
            }
        }
        let (reason, it) = end();
        let counts = [it.prompt_tokens, it.generated_tokens];
        Self { text, error, reason, counts }
    }
}

/// A text by a front end, and the same by the tokens of another of its kind; or why it was refused.
fn run(front: FrontEnd, model: &Model, generate: &Generate) -> Result<(Outcome, Told), Error> {
    let again = generate.clone();
    let generate = generate.clone().cache_prompt(false);
    let end = |reason, statistics| move || (reason, statistics);
    match front {
        FrontEnd::Session => {
            let mut session = model.session()?;
            session.begin(generate)?;
            let told = to_the_end(&mut session).remove(0);
            let it = told.end.unwrap();
            let text = [Ok(told.text.clone())];
            Ok((Outcome::new(text, end(Some(it.reason), it.statistics)), told))
        }
        FrontEnd::Stream | FrontEnd::Worker => {
            let mut stream = generate.stream()?;
            let pieces: Vec<_> = stream.by_ref().collect();
            assert!(stream.next().is_none(), "it stays at its end");
            let outcome = Outcome::new(pieces, end(stream.finish_reason(), stream.statistics()));
            drop(stream);
            let mut stream = again.stream()?;
            let told = Told::of(stream.pieces().map(Result::unwrap));
            assert_eq!(told.statistics(), stream.statistics());
            Ok((outcome, told))
        }
        FrontEnd::Engine | FrontEnd::EngineInWorker => {
            let engine = Engine::new(model)?;
            let submitted = engine.try_submit(generate);
            if submitted.is_err() {
                assert_eq!(engine.metrics(), Metrics::default(), "it was never queued");
            }
            let mut answer = submitted?;
            let pieces: Vec<_> = Iterator::collect(&mut answer);
            let outcome = Outcome::new(pieces, end(answer.finish_reason(), answer.statistics()));
            let metrics = engine.metrics();
            assert_eq!((metrics.queued, metrics.running), (0, 0));
            Ok((outcome, answered(engine.submit(again)?)))
        }
        #[cfg(feature = "async")]
        awaited => {
            use crate::async_streams::block_on;
            use futures::StreamExt;
            let engine = match awaited {
                FrontEnd::AsyncAnswer => Some(Engine::new(model)?),
                _ => None,
            };
            let awaited = |generate: Generate| match &engine {
                Some(engine) => engine.submit(generate)?.into_async(),
                None => generate.stream()?.into_async(),
            };
            let mut stream = awaited(generate)?;
            let pieces: Vec<_> = block_on(stream.by_ref().collect()).0;
            let outcome = Outcome::new(pieces, end(stream.finish_reason(), stream.statistics()));
            drop(stream);
            let mut stream = awaited(again)?;
            let pieces = futures::stream::poll_fn(|context| stream.poll_piece(context));
            let pieces: Vec<_> = block_on(pieces.map(Result::unwrap).collect()).0;
            Ok((outcome, Told::of(pieces)))
        }
    }
}

type Check = fn(&Error) -> bool;

enum Ends {
    By(FinishReason),
    /// With an error after its last piece.
    With(FinishReason, Check),
    /// Before it began.
    Refused(Check),
}

use Ends::{By, Refused, With};
use FinishReason::{ContextFull, EndOfGeneration, MaxTokens, StopString};

const CONTEXT: u32 = 64;

struct Case {
    name: &'static str,
    generate: Box<dyn Fn(&Model) -> Generate>,
    ends: Ends,
}

fn case(name: &'static str, ends: Ends, describe: impl Fn(Generate) -> Generate + 'static) -> Case {
    let generate = move |model: &Model| describe(model.generate(PROMPT).temp(0.0));
    Case { name, generate: Box::new(generate), ends }
}

/// A case of a prompt of so many tokens.
fn of_tokens(name: &'static str, n: usize, ends: Ends) -> Case {
    let generate = move |model: &Model| {
        let prompt: Vec<Token> = (0..n as Token).map(|it| 300 + it).collect();
        model.generate(Prompt::tokens(prompt)).temp(0.0)
    };
    Case { name, generate: Box::new(generate), ends }
}

fn cases(stop: String) -> Vec<Case> {
    let is_range: Check = |it| matches!(it, Error::Native(llama_sys::Error::InvalidParameter { .. }));
    let is_full: Check = |it| matches!(it, Error::ContextFull { tokens: 65 });
    let too_long: Check = |it| matches!(it, Error::PromptTooLong { tokens: 64, context: 64 });
    let by_chance = |it: Generate| it.seed(3).temp(0.8).repeat_penalty(1.3);
    vec![
        case("so many tokens", By(MaxTokens), |it| it.max_tokens(20)),
        case("no token", By(MaxTokens), |it| it.max_tokens(0)),
        case("by chance", By(MaxTokens), move |it| by_chance(it).max_tokens(20)),
        case("to a stop string", By(StopString), move |it| it.stop(&stop)),
        case("to the end of the context", By(ContextFull), |it| it),
        case("which is an error", With(ContextFull, is_full), |it| it.when_full(WhenFull::Error)),
        of_tokens("a prompt of all but one", 63, By(ContextFull)),
        of_tokens("a prompt of all", 64, Refused(too_long)),
        case("no stop string", Refused(|it| matches!(it, Error::EmptyStop)), |it| it.stop("")),
        case("out of range", Refused(is_range), |it| it.top_p(7.0)),
    ]
}

#[cfg(feature = "constraints")]
fn constrained(stop: String) -> Vec<Case> {
    let cut: Check = |it| matches!(it, Error::Incomplete { limit: MaxTokens, .. });
    let stopped: Check = |it| matches!(it, Error::Incomplete { limit: StopString, .. });
    let full: Check = |it| matches!(it, Error::Incomplete { limit: ContextFull, .. });
    let person = Constraint::json_schema(json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": false,
    }));
    let letters = |it: Generate| it.constraint(Constraint::regex("[a-z]{30}"));
    vec![
        case("letters", By(EndOfGeneration), letters),
        case("letters cut short", With(MaxTokens, cut), move |it| letters(it).max_tokens(3)),
        case("no letters", With(MaxTokens, cut), move |it| letters(it).max_tokens(0)),
        case("letters to a stop", With(StopString, stopped), move |it| letters(it).stop(&stop)),
        case("too many letters", With(ContextFull, full), |it| it.constraint(Constraint::regex("[a-z]{500}"))),
        // What is there is what was asked for.
        case("cut where it may end", By(MaxTokens), |it| it.constraint(Constraint::regex("[a-z ]+")).max_tokens(5)),
        case("a schema", By(EndOfGeneration), move |it| it.constraint(person.clone())),
        case("a grammar", By(EndOfGeneration), |it| it.constraint(Constraint::lark("start: /[a-z]{9}/"))),
        case("no expression", Refused(|it| matches!(it, Error::Constraint { .. })), |it| {
            it.constraint(Constraint::regex("("))
        }),
    ]
}

#[cfg(not(feature = "constraints"))]
fn constrained(_: String) -> Vec<Case> {
    Vec::new()
}

#[test]
fn a_text_is_the_same_and_ends_the_same_whoever_runs_it() {
    let here = demo(CONTEXT, 1, false);
    let there = in_worker(&demo_path(), request(CONTEXT, 1, false));
    let whole = text(here.generate(PROMPT).temp(0.0));
    let stop = whole.split_whitespace().nth(5).unwrap().to_owned();
    let letter = "e".to_owned();
    let mut cases = cases(stop.clone());
    cases.extend(constrained(letter));
    for Case { name, generate, ends } in cases {
        let mut expected: Option<(Outcome, Told)> = None;
        for &front in FRONT_ENDS {
            let case = format!("{name}, by {front:?}");
            let model = match front {
                FrontEnd::Worker | FrontEnd::EngineInWorker => &there,
                #[cfg(feature = "async")]
                FrontEnd::AsyncWorker => &there,
                _ => &here,
            };
            let ran = run(front, model, &generate(model));
            let (mut outcome, by_tokens) = match (ran, &ends) {
                (Err(error), Refused(is)) => {
                    assert!(is(&error), "{case}: {error:?}");
                    continue;
                }
                (Ok(ran), By(_) | With(..)) => ran,
                (ran, _) => panic!("{case}: {ran:?}"),
            };
            let is_met = by_tokens.end.unwrap().meets_constraint;
            let is_cut = outcome.error.as_ref().is_some_and(|it| it.starts_with("Incomplete"));
            assert!(is_met != is_cut || front == FrontEnd::Session, "{case}");
            let Some((expected, by_stream)) = &expected else {
                // As it should be by a stream, and by all others as by that.
                let reason = match ends {
                    By(reason) | With(reason, _) => reason,
                    Refused(_) => unreachable!("it was not refused"),
                };
                assert_eq!(outcome.reason, Some(reason), "{case}: {outcome:?}");
                assert_eq!(outcome.error.is_some(), matches!(ends, With(..)), "{case}");
                if let With(_, is) = ends {
                    let error = text_error(generate(model));
                    assert!(is(&error), "{case}: {error:?}");
                    let said = error.to_string();
                    if let Error::Incomplete { limit, text } = error {
                        assert_eq!(text, outcome.text, "{case}");
                        let names_it = said.starts_with("max_tokens ended the text");
                        assert_eq!(names_it, limit == MaxTokens, "{case}: {said}");
                    }
                }
                let prompt = outcome.counts[0];
                match name {
                    "so many tokens" => {
                        assert_eq!(prompt, tokens_of(model, PROMPT).len());
                        assert_eq!(outcome.counts[1], 20);
                    }
                    "no token" => assert_eq!((&*outcome.text, outcome.counts[1]), ("", 0)),
                    "to a stop string" => {
                        assert_eq!(outcome.text, whole.split(&stop).next().unwrap());
                    }
                    // The last token is chosen and needs no place any more.
                    "to the end of the context" | "which is an error" => {
                        assert_eq!(prompt + outcome.counts[1], CONTEXT as usize + 1);
                        assert_eq!(outcome.text, whole);
                    }
                    _ => {}
                }
                expected = Some((outcome, by_tokens));
                continue;
            };
            if front == FrontEnd::Session {
                outcome.error.clone_from(&expected.error);
            }
            assert_eq!(outcome, *expected, "{case}");
            assert_eq!(by_tokens.tokens, by_stream.tokens, "{case}");
            assert_eq!(by_tokens.text, by_stream.text, "{case}");
            assert_eq!(is_met, by_stream.end.unwrap().meets_constraint, "{case}");
        }
    }
}

fn text_error(generate: Generate) -> Error {
    generate.text().unwrap_err()
}
