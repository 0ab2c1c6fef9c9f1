//! Tests of texts that are restored between the steps of other texts.

use llama_sys::Token;

use super::LocalSession;
use crate::Model;
use crate::decode::piece::SequenceId;
use crate::decode::request::GenerateRequest;
use crate::decode::sequence::Sequence;
use crate::plan::Request;
use crate::store::PromptStore;

#[test]
fn a_sequence_is_stored_at_once_for_the_next_text_while_nobody_waits_for_a_token() {
    let request = Request::new().n_ctx(1024).n_seq_max(2);
    let builder = Model::builder(test_support::demo_path()).request(request).n_threads(1).without_learning();
    let model = builder.prompt_store(PromptStore::new(64 << 20)).load().unwrap();
    let mut session = LocalSession::open(&model).unwrap();
    let begin = |session: &mut LocalSession, seed: Token| {
        let words: Vec<Token> = (0..100).map(|at| 259 + (at * 7 + seed) % 200).collect();
        session.begin_once(model.generate(&words[..]).temp(0.0).ignore_eos().max_tokens(2)).unwrap();
    };
    begin(&mut session, 1);
    begin(&mut session, 2);
    while !session.is_empty() {
        session.step().unwrap().for_each(drop);
    }
    // The first of the two sequences is stored and displaced. The engine would not admit a further text until it
    // has stored the second one, between steps.
    begin(&mut session, 3);
    assert!(session.cache.is_storing_next(session.room(), session.len()));
    assert!(session.store_next(SequenceId(9)));
    assert!(!session.cache.is_storing_next(session.room(), session.len()));
}
fn words(seed: Token, n: Token) -> Vec<Token> {
    (0..n).map(|at| 259 + (at * 7 + seed) % 200).collect()
}

/// A session of two sequences, in which an earlier text of 400 tokens is stored and displaced, and another text
/// waits for its next token. Also the earlier text with further tokens, which waits to join.
fn waiting(store: &PromptStore, kv_unified: bool) -> (LocalSession, Sequence) {
    waiting_among(2, store, kv_unified)
}

/// As [`waiting`], in a session of more sequences.
fn waiting_among(sequences: u32, store: &PromptStore, kv_unified: bool) -> (LocalSession, Sequence) {
    let mut request = Request::new().n_ctx(1024 * sequences).n_seq_max(sequences);
    request.params.kv_unified = kv_unified;
    request.params.flash_attn = crate::memory::FlashAttention::Off;
    let builder = Model::builder(test_support::demo_path()).request(request).n_threads(1).without_learning();
    let model = builder.prompt_store(store.clone()).load().unwrap();
    let mut session = LocalSession::open(&model).unwrap();
    let begin = |session: &mut LocalSession, prompt: &[Token], n: usize| {
        let generate = model.generate(prompt).temp(0.0).ignore_eos().max_tokens(n).cache_prompt(true);
        session.begin_once(generate).unwrap();
    };
    begin(&mut session, &words(1, 400), 2);
    session.run_all();
    begin(&mut session, &words(2, 100), 2);
    begin(&mut session, &words(3, 100), 2);
    session.run_all();
    begin(&mut session, &words(4, 50), 200);
    session.advance().unwrap();
    let text = session.text_of(&[words(1, 400), words(5, 20)].concat());
    (session, text)
}

impl LocalSession {
    fn text_of(&mut self, prompt: &[Token]) -> Sequence {
        let GenerateRequest { spec, .. } = self.model.generate(prompt).temp(0.0).ignore_eos().max_tokens(20);
        let (id, vocab) = (self.next_id(), &self.lent.as_ref().unwrap().vocab);
        Sequence::new(id, spec, &[], &self.model, vocab, 1024).unwrap()
    }

    /// Generates all texts to their ends. Returns the tokens of each.
    fn run_all(&mut self) -> std::collections::BTreeMap<SequenceId, Vec<Token>> {
        let mut texts: std::collections::BTreeMap<_, Vec<Token>> = Default::default();
        while !self.is_empty() {
            for piece in self.step().unwrap() {
                texts.entry(piece.sequence).or_default().extend(piece.token);
            }
        }
        texts
    }
}

#[test]
fn a_waiting_text_is_restored_in_parts_between_the_steps_of_a_running_text() {
    for kv_unified in [false, true] {
        let store = PromptStore::new(64 << 20);
        let (mut session, text) = waiting(&store, kv_unified);
        let id = text.id;
        let mut parts = 0;
        while !session.prepare(&text) {
            parts += 1;
            session.advance().unwrap();
        }
        // The bytes of a part are those of `UNIT` in tests.
        assert!(parts > 3, "{kv_unified}: {parts}");
        session.join(text, true, false).unwrap();
        let statistics = session.statistics(id).unwrap();
        assert_eq!((statistics.restored_tokens, statistics.cached_tokens), (400, 400), "{kv_unified}");
        let prepared = session.run_all();
        // Nobody waits for a token, so the beginning is restored at once.
        let (mut session, text) = waiting(&PromptStore::new(64 << 20), kv_unified);
        let first = session.run_all();
        assert!(session.prepare(&text));
        session.join(text, true, false).unwrap();
        assert_eq!(session.statistics(id).unwrap().restored_tokens, 400, "{kv_unified}");
        let alone = session.run_all();
        assert_eq!(prepared[&id], alone[&id], "{kv_unified}");
        let (running, other) = (prepared.keys().find(|other| **other != id), first.keys().next());
        let (running, other) = (&prepared[running.unwrap()], &first[other.unwrap()]);
        assert_eq!(running[running.len() - 100..], other[other.len() - 100..], "{kv_unified}");
    }
}

#[test]
fn nothing_is_left_of_a_waiting_text_that_is_cancelled_while_it_is_restored() {
    for kv_unified in [false, true] {
        let store = PromptStore::new(64 << 20);
        let (mut session, text) = waiting(&store, kv_unified);
        assert!(!session.prepare(&text));
        session.advance().unwrap();
        assert!(!session.prepare(&text));
        let incomplete = |session: &LocalSession| (0..2).filter(|seq| session.cache.is_incomplete(*seq)).count();
        session.leave_unless(|_| true);
        assert_eq!((incomplete(&session), session.cache.prepares_for()), (1, Some(text.id)));
        session.leave_unless(|id| id != text.id);
        assert_eq!((incomplete(&session), session.cache.prepares_for()), (0, None));
        assert_eq!(session.cache.len(), 0, "the cells are free");
        assert!(!session.cache.stored.as_ref().unwrap().is_restoring(), "the pieces are free");
        session.run_all();
    }
}

#[test]
fn a_text_that_waits_again_is_prepared_again() {
    for kv_unified in [false, true] {
        let store = PromptStore::new(64 << 20);
        let (mut session, _) = waiting(&store, kv_unified);
        let text = session.text_of(&words(8, 300));
        let id = text.id;
        assert!(session.prepare(&text), "nothing of it is stored");
        session.join(text, true, false).unwrap();
        session.advance().unwrap();
        let text = session.suspend(id).unwrap();
        // The text is stored between the steps, and then another text takes its cells.
        (0..120).for_each(|_| session.advance().unwrap());
        let other = words(6, 300);
        let generate = session.model.generate(&other[..]).temp(0.0).ignore_eos().max_tokens(2);
        let other = session.begin_once(generate.cache_prompt(true)).unwrap();
        session.advance().unwrap();
        session.end(other);
        let mut parts = 0;
        while !session.prepare(&text) {
            parts += 1;
            session.advance().unwrap();
        }
        assert!(parts > 3, "{kv_unified}: {parts}");
    }
}

#[test]
fn a_text_that_needs_nothing_joins_while_another_text_is_restored() {
    let store = PromptStore::new(64 << 20);
    let (mut session, text) = waiting_among(3, &store, false);
    let id = text.id;
    assert!(!session.prepare(&text));
    // One sequence becomes empty.
    let lent = session.lent.as_mut().unwrap();
    session.cache.make_room(&mut lent.context, 400, true).unwrap();
    let short = session.text_of(&words(9, 30));
    assert!(session.prepare(&short));
    session.join(short, true, false).unwrap();
    let mut parts = 0;
    while !session.prepare(&text) {
        parts += 1;
        session.advance().unwrap();
    }
    assert!(parts > 3, "{parts}");
    session.join(text, true, false).unwrap();
    assert_eq!(session.statistics(id).unwrap().restored_tokens, 400);
    session.run_all();
}

#[test]
fn storing_goes_on_while_a_half_restored_text_is_not_admitted() {
    let store = PromptStore::new(64 << 20);
    let (mut session, text) = waiting_among(3, &store, false);
    assert!(!session.prepare(&text));
    // This text ends while the other is half restored. No further part of the other is restored meanwhile.
    let prompt = words(7, 200);
    let generate = session.model.generate(&prompt[..]).temp(0.0).ignore_eos().max_tokens(2);
    session.begin_once(generate.cache_prompt(true)).unwrap();
    let pieces = store.usage().pieces;
    for _ in 0..40 {
        session.advance().unwrap();
    }
    assert!(store.usage().pieces > pieces, "{:?}", store.usage());
}

#[test]
fn a_sequence_that_is_only_partly_restored_is_taken_by_another_text_or_forgotten() {
    for (kv_unified, drops) in [(false, false), (true, false), (false, true), (true, true)] {
        let store = PromptStore::new(64 << 20);
        let (mut session, text) = waiting(&store, kv_unified);
        assert!(!session.prepare(&text));
        session.advance().unwrap();
        assert!(!session.prepare(&text));
        if drops {
            // The next session finds nothing of the sequence.
            let model = session.model.clone();
            drop(session);
            session = LocalSession::open(&model).unwrap();
        } else {
            let other = words(6, 300);
            let generate = session.model.generate(&other[..]).temp(0.0).ignore_eos().max_tokens(2);
            session.begin_once(generate.cache_prompt(true)).unwrap();
            session.run_all();
        }
        let id = text.id;
        session.join(text, true, false).unwrap();
        assert_eq!(session.statistics(id).unwrap().restored_tokens, 400, "{kv_unified}, {drops}");
        assert_eq!(session.run_all()[&id].len(), 20, "{kv_unified}, {drops}");
    }
}
