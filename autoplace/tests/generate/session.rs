//! Several texts at once on one context: through the public API, on the demo model.

use std::collections::BTreeMap;

use crate::native_support::{demo_path, load_demo};
use autoplace::Model;
use autoplace::generate::{Error, FinishReason, Session, Statistics};
use autoplace::llama_sys;
use autoplace::plan::{Context, Request};

const PROMPT: &str = "And the king said unto his servants,";

fn load(request: Request) -> Model {
    let builder = Model::builder(demo_path()).request(request).threads(1);
    builder.load().unwrap()
}

/// Runs to the end: texts, reasons and statistics by sequence.
fn run(session: &mut Session) -> Vec<(String, FinishReason, Statistics)> {
    let mut texts: BTreeMap<_, String> = BTreeMap::new();
    let mut ends = BTreeMap::new();
    while !session.is_empty() {
        for piece in session.step().unwrap() {
            let text = texts.entry(piece.sequence).or_default();
            text.push_str(&piece.text);
            if let Some(end) = piece.end {
                assert!(ends.insert(piece.sequence, end).is_none());
            }
        }
    }
    texts
        .into_iter()
        .map(|(id, text)| (text, ends[&id].reason, ends[&id].statistics))
        .collect()
}

#[test]
fn texts_run_side_by_side_and_each_ends_by_itself() {
    let model = load(Request::new().n_seq_max(3));
    let mut session = model.session().unwrap();
    assert_eq!(session.n_seq_max(), 3);
    let generate = model.generate(PROMPT).temperature(0.0);
    for tokens in [4, 0, 12] {
        session.begin(generate.clone().max_tokens(tokens)).unwrap();
    }
    let full = session.begin(generate.clone());
    assert!(
        matches!(full, Err(Error::SequencesBusy { n_seq_max: 3 })),
        "{full:?}"
    );
    let ended = run(&mut session);
    let counted: Vec<_> = ended
        .iter()
        .map(|(_, reason, statistics)| (*reason, statistics.generated_tokens))
        .collect();
    let max = FinishReason::MaxTokens;
    assert_eq!(counted, [(max, 4), (max, 0), (max, 12)]);
    assert!(ended[2].0.starts_with(&ended[0].0) && ended[1].0.is_empty());
    let statistics = ended[2].2;
    assert!(statistics.prompt_tokens > 5 && statistics.tokens_per_second() > 0.0);
    assert!(statistics.first_token_latency.unwrap() >= statistics.prompt_time);
}

#[test]
fn a_session_with_one_text_is_a_stream() {
    let model = load_demo();
    let generate = model.generate(PROMPT).seed(3).max_tokens(30);
    let streamed = generate.clone().text().unwrap();
    let mut session = model.session().unwrap();
    for _ in 0..2 {
        // A text that begins when the one before has ended is not changed by it.
        session.begin(generate.clone()).unwrap();
        assert_eq!(run(&mut session)[0].0, streamed);
    }
}

#[test]
fn a_text_joins_those_that_run_and_leaves_them() {
    let model = load(Request::new().n_seq_max(2).n_batch(16).n_ubatch(8));
    let mut session = model.session().unwrap();
    let long = model.generate(PROMPT.repeat(3)).max_tokens(5);
    let first = session.begin(model.generate(PROMPT).seed(1)).unwrap();
    let mut pieces = 0;
    for _ in 0..4 {
        pieces += session.step().unwrap().count();
    }
    let second = session.begin(long.clone()).unwrap();
    // While a long prompt is computed in parts, the other text goes on.
    let of_both: Vec<_> = session.step().unwrap().map(|it| it.sequence).collect();
    assert_eq!(of_both, [first]);
    let ended = session.end(first).unwrap();
    assert_eq!(ended.generated_tokens, pieces + 1);
    assert!(session.end(first).is_none());
    assert!(session.statistics(first).is_none());
    // Its place is free.
    let third = session.begin(long).unwrap();
    assert!(third > second && session.len() == 2);
    for (_, reason, statistics) in run(&mut session) {
        assert_eq!(reason, FinishReason::MaxTokens);
        assert_eq!(statistics.generated_tokens, 5);
    }
}

#[test]
fn texts_that_share_a_cache_end_when_it_is_full() {
    let mut request = Request::new().n_seq_max(2).context(Context::Tokens(256));
    request.params.kv_unified = true;
    let model = load(request);
    let mut session = model.session().unwrap();
    let first = session.begin(model.generate(PROMPT).seed(1)).unwrap();
    let second = session.begin(model.generate(PROMPT).seed(2)).unwrap();
    let mut room = 256 + 2;
    let mut full = 0;
    for (_, reason, statistics) in run(&mut session) {
        full += usize::from(reason == FinishReason::ContextFull);
        room -= statistics.prompt_tokens + statistics.generated_tokens;
    }
    assert!(second > first);
    // Both fill it up together, unless one has ended by itself.
    assert!(full < 2 || room <= 2, "{room} places are left");
}

#[test]
fn the_context_is_lent_to_one_session_or_stream() {
    let model = load_demo();
    let session = model.session().unwrap();
    assert!(matches!(model.session(), Err(Error::Busy)));
    let stream = model.generate(PROMPT).stream();
    assert!(matches!(stream, Err(Error::Busy)));
    drop(session);
    let other = load_demo();
    let mut session = model.session().unwrap();
    let refused = session.begin(other.generate(PROMPT));
    assert!(matches!(refused, Err(Error::OtherModel)), "{refused:?}");
    assert!(session.step().unwrap().next().is_none());
}

#[test]
fn an_abort_ends_all_texts_and_not_the_session() {
    let model = load(Request::new().n_seq_max(2));
    let mut session = model.session().unwrap();
    for seed in [1, 2] {
        session.begin(model.generate(PROMPT).seed(seed)).unwrap();
    }
    session.step().unwrap();
    session.abort_handle().abort();
    let aborted = session.step().map(Iterator::count);
    assert!(
        matches!(aborted, Err(Error::Native(llama_sys::Error::Aborted))),
        "{aborted:?}"
    );
    assert!(session.is_empty());
    session.begin(model.generate(PROMPT).max_tokens(3)).unwrap();
    assert_eq!(run(&mut session)[0].1, FinishReason::MaxTokens);
}
