//! Tests of texts that are restored between the steps of other texts.

use std::collections::BTreeMap;

use llama_sys::Token;

use super::LocalSession;
use crate::Model;
use crate::decode::cache::Prepared;
use crate::decode::piece::SequenceId;
use crate::decode::request::{GenerateRequest, WhenFull};
use crate::decode::sequence::Sequence;
use crate::memory::FlashAttention;
use crate::plan::Request;
use crate::store::{PromptStore, StoreOptions};

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

type Tokens = BTreeMap<SequenceId, Vec<Token>>;

fn words(seed: Token, n: Token) -> Vec<Token> {
    (0..n).map(|at| 259 + (at * 7 + seed) % 200).collect()
}

fn session(sequences: u32, tokens_each: u32, store: &PromptStore, kv_unified: bool) -> LocalSession {
    let mut request = Request::new().n_ctx(tokens_each * sequences).n_seq_max(sequences);
    request.params.kv_unified = kv_unified;
    request.params.flash_attn = FlashAttention::Off;
    let builder = Model::builder(test_support::demo_path()).request(request).n_threads(1).without_learning();
    LocalSession::open(&builder.prompt_store(store.clone()).load().unwrap()).unwrap()
}

/// A session of two sequences, in which an earlier text of 400 tokens is stored and displaced, and another text
/// waits for its next token. Also the earlier text with further tokens, which waits to join.
fn waiting(store: &PromptStore, kv_unified: bool) -> (LocalSession, Sequence) {
    waiting_among(2, store, kv_unified)
}

/// As [`waiting`], in a session of more sequences.
fn waiting_among(sequences: u32, store: &PromptStore, kv_unified: bool) -> (LocalSession, Sequence) {
    let mut session = session(sequences, 1024, store, kv_unified);
    session.begin_text(&words(1, 400), 2);
    session.run_all();
    session.store_idle();
    session.begin_text(&words(2, 100), 2);
    session.begin_text(&words(3, 100), 2);
    session.run_all();
    session.begin_text(&words(4, 50), 800);
    session.advance().unwrap();
    let text = session.text_of(&[words(1, 400), words(5, 20)].concat());
    (session, text)
}

impl LocalSession {
    fn begin_text(&mut self, prompt: &[Token], max_tokens: usize) -> SequenceId {
        let generate = self.model.generate(prompt).temp(0.0).ignore_eos().max_tokens(max_tokens);
        self.begin_once(generate.cache_prompt(true)).unwrap()
    }

    fn advance_by(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.advance().unwrap());
    }

    fn text_of(&mut self, prompt: &[Token]) -> Sequence {
        let GenerateRequest { spec, .. } = self.model.generate(prompt).temp(0.0).ignore_eos().max_tokens(20);
        let (id, vocab) = (self.next_id(), &self.lent.as_ref().unwrap().vocab);
        Sequence::new(id, spec, &[], &self.model, vocab, 1024).unwrap()
    }

    /// Generates all texts to their ends. Returns the tokens of each.
    fn run_all(&mut self) -> Tokens {
        let mut texts = Tokens::new();
        while !self.is_empty() {
            self.step_into(&mut texts);
        }
        texts
    }

    fn step_into(&mut self, texts: &mut Tokens) {
        for piece in self.step().unwrap() {
            texts.entry(piece.sequence).or_default().extend(piece.token);
        }
    }

    /// Prepares a text between steps, until it joins. Returns the number of steps.
    fn join_prepared(&mut self, text: Sequence, again: bool, texts: &mut Tokens) -> usize {
        let mut steps = 0;
        loop {
            let prepared = self.prepare(&text);
            if prepared.is_some() {
                self.join(text, true, again, prepared).unwrap();
                return steps;
            }
            steps += 1;
            self.step_into(texts);
        }
    }

    fn waits(&mut self, text: &Sequence) -> bool {
        self.prepare(text).is_none()
    }

    /// Goes on until this waiting text has a sequence with a part of its rows.
    fn restore_partly(&mut self, text: &Sequence) {
        while !self.cache.keeps_place_for(text.id) {
            assert!(self.waits(text));
            self.advance().unwrap();
        }
        assert!(self.waits(text));
    }

    /// Stores all that is idle.
    fn store_idle(&mut self) {
        while self.store_part() {}
    }
}

/// The tokens that the waiting text of [`waiting`] generates if it is restored at once.
fn alone(kv_unified: bool) -> Vec<Token> {
    let (mut session, text) = waiting(&PromptStore::new(64 << 20), kv_unified);
    session.run_all();
    let id = text.id;
    assert_eq!(session.join_prepared(text, false, &mut Tokens::new()), 0, "nobody waits for a token");
    assert_eq!(session.statistics(id).unwrap().restored_tokens, 400);
    session.run_all().remove(&id).unwrap()
}

#[test]
fn a_waiting_text_is_restored_in_parts_between_the_steps_of_a_running_text() {
    for kv_unified in [false, true] {
        let running = |session: &LocalSession| session.sequences[0].id;
        let (mut undisturbed, _) = waiting(&PromptStore::new(64 << 20), kv_unified);
        let other = running(&undisturbed);
        let (mut session, text) = waiting(&PromptStore::new(64 << 20), kv_unified);
        let (id, mut texts) = (text.id, Tokens::new());
        let parts = session.join_prepared(text, false, &mut texts);
        // The bytes of a part are those of `UNIT` in tests.
        assert!(parts > 3, "{kv_unified}: {parts}");
        let statistics = session.statistics(id).unwrap();
        assert_eq!((statistics.restored_tokens, statistics.cached_tokens), (400, 400), "{kv_unified}");
        while !session.is_empty() {
            session.step_into(&mut texts);
        }
        assert_eq!(texts[&id], alone(kv_unified), "{kv_unified}");
        assert_eq!(texts[&other], undisturbed.run_all()[&other], "{kv_unified}");
    }
}

#[test]
fn nothing_is_left_of_a_waiting_text_that_is_cancelled_while_it_is_restored() {
    for kv_unified in [false, true] {
        let store = PromptStore::new(64 << 20);
        let (mut session, text) = waiting(&store, kv_unified);
        session.restore_partly(&text);
        session.leave_unless(|_| true);
        assert!(session.cache.incomplete().is_some() && session.cache.prepares_for() == Some(text.id));
        session.leave_unless(|id| id != text.id);
        assert_eq!((session.cache.incomplete(), session.cache.prepares_for()), (None, None));
        assert_eq!(session.cache.len(), 0, "the cells are free");
        assert!(!session.cache.stored.as_ref().unwrap().is_restoring(), "the pieces are free");
        session.run_all();
        let pieces = store.usage().pieces;
        session.store_idle();
        assert!(store.usage().pieces > pieces, "storing goes on");
    }
}

#[test]
fn a_text_that_waits_again_is_prepared_again() {
    for kv_unified in [false, true] {
        let (mut session, text) = waiting(&PromptStore::new(64 << 20), kv_unified);
        let (id, mut texts) = (text.id, Tokens::new());
        session.join_prepared(text, false, &mut texts);
        (0..5).for_each(|_| session.step_into(&mut texts));
        let text = session.suspend(id).unwrap();
        session.store_idle();
        // Another text takes its cells.
        let other = session.begin_text(&words(6, 300), 2);
        session.step_into(&mut texts);
        session.end(other);
        let parts = session.join_prepared(text, true, &mut texts);
        assert!(parts > 3, "{kv_unified}: {parts}");
        while !session.is_empty() {
            session.step_into(&mut texts);
        }
        assert_eq!(texts[&id], alone(kv_unified), "{kv_unified}");
    }
}

#[test]
fn a_text_that_is_not_in_the_store_overtakes_a_text_that_is_being_restored() {
    let (mut session, text) = waiting_among(3, &PromptStore::new(64 << 20), false);
    let (id, mut texts) = (text.id, Tokens::new());
    session.restore_partly(&text);
    // It displaces the last text that is idle. A further text would take the sequence that is being restored.
    let short = session.text_of(&words(9, 30));
    assert!(session.has_sequence_for(short.id) && !session.waits(&short));
    session.join(short, true, false, Some(Prepared::default())).unwrap();
    assert!(session.cache.keeps_place_for(id));
    let further = session.text_of(&words(10, 30));
    assert!(!session.has_sequence_for(further.id) && session.has_sequence_for(id));
    session.join_prepared(text, false, &mut texts);
    assert_eq!(session.statistics(id).unwrap().restored_tokens, 400);
}

#[test]
fn a_sequence_that_is_being_restored_is_displaced_last() {
    for kv_unified in [false, true] {
        let (mut session, text) = waiting_among(3, &PromptStore::new(64 << 20), kv_unified);
        session.restore_partly(&text);
        // This text ends later, so the other sequence is the least recently used one.
        let later = session.begin_text(&words(7, 50), 2);
        while session.position(later).is_some() {
            session.advance().unwrap();
        }
        assert_eq!(session.cache.len(), 400 + 51);
        let lent = session.lent.as_mut().unwrap();
        session.cache.make_room(&mut lent.context, 450, false).unwrap();
        assert!(session.cache.keeps_place_for(text.id) && session.cache.len() == 400, "{kv_unified}");
        // If the running texts need the cells, it is displaced too, and its text is prepared again.
        let lent = session.lent.as_mut().unwrap();
        session.cache.make_room(&mut lent.context, 0, false).unwrap();
        assert_eq!((session.cache.len(), session.cache.prepares_for()), (0, None));
        assert!(session.join_prepared(text, false, &mut Tokens::new()) > 3);
    }
}

#[test]
fn pieces_that_a_thread_reads_are_not_left_for_another_text() {
    let folder = tempfile::tempdir().unwrap();
    let options = || StoreOptions::new(64 << 20).folder(folder.path().join("store"), 1 << 30);
    let store = PromptStore::open(options()).unwrap();
    let mut first = session(2, 1024, &store, false);
    for seed in [1, 2] {
        first.begin_text(&words(seed, 300), 2);
    }
    first.run_all();
    drop(first);
    drop(store);
    let mut session = session(3, 1024, &PromptStore::open(options()).unwrap(), false);
    session.begin_text(&words(3, 50), 800);
    session.advance().unwrap();
    let [one, other] = [1, 2].map(|seed| session.text_of(&[words(seed, 300), words(9, 20)].concat()));
    assert!(session.waits(&one) && session.waits(&other));
    assert_eq!(session.cache.prepares_for(), Some(one.id));
    for text in [one, other] {
        let id = text.id;
        session.join_prepared(text, false, &mut Tokens::new());
        assert_eq!(session.statistics(id).unwrap().restored_from_folder, 300);
    }
}

#[test]
fn a_re_placement_in_the_middle_of_a_restoration_begins_it_again() {
    for kv_unified in [false, true] {
        let (mut session, text) = waiting(&PromptStore::new(64 << 20), kv_unified);
        let (id, mut texts) = (text.id, Tokens::new());
        session.restore_partly(&text);
        session.replace(None).unwrap();
        assert_eq!(session.cache.prepares_for(), None);
        assert!(session.join_prepared(text, false, &mut texts) > 3);
        assert_eq!(session.statistics(id).unwrap().restored_tokens, 400);
        while !session.is_empty() {
            session.step_into(&mut texts);
        }
        assert_eq!(texts[&id], alone(kv_unified), "{kv_unified}");
    }
}

#[test]
fn a_context_shift_in_the_middle_of_a_restoration_changes_neither_text() {
    let begin = |session: &mut LocalSession| {
        session.begin_text(&words(1, 400), 2);
        session.run_all();
        session.store_idle();
        for seed in [2, 3] {
            session.begin_text(&words(seed, 100), 2);
        }
        session.run_all();
        let prompt = words(4, 490);
        let generate = session.model.generate(&prompt[..]).temp(0.0).ignore_eos().max_tokens(100);
        session.begin_once(generate.when_full(WhenFull::Shift { keep: 4 })).unwrap()
    };
    let mut alone = session(2, 512, &PromptStore::new(64 << 20), false);
    let running = begin(&mut alone);
    let alone_texts = alone.run_all();
    let mut session = session(2, 512, &PromptStore::new(64 << 20), false);
    assert_eq!(begin(&mut session), running);
    let mut texts = Tokens::new();
    session.step_into(&mut texts);
    let text = session.text_of(&[words(1, 400), words(5, 20)].concat());
    let id = text.id;
    while session.statistics(running).unwrap().discarded_tokens == 0 {
        if !session.cache.keeps_place_for(id) {
            assert!(session.waits(&text));
        }
        session.step_into(&mut texts);
    }
    assert!(session.cache.keeps_place_for(id), "the shift comes in the middle");
    session.join_prepared(text, false, &mut texts);
    assert_eq!(session.statistics(id).unwrap().restored_tokens, 400);
    while !session.is_empty() {
        session.step_into(&mut texts);
    }
    assert_eq!(texts[&running], alone_texts[&running]);
    assert_eq!(texts[&id], self::alone(false));
}

#[test]
fn storing_goes_on_while_a_half_restored_text_is_not_admitted() {
    let store = PromptStore::new(64 << 20);
    let (mut session, text) = waiting_among(3, &store, false);
    session.restore_partly(&text);
    // This text ends while the other is half restored. No further part of the other is restored meanwhile.
    session.begin_text(&words(7, 200), 2);
    let pieces = store.usage().pieces;
    session.advance_by(40);
    assert!(store.usage().pieces > pieces, "{:?}", store.usage());
}

#[test]
fn a_sequence_that_is_only_partly_restored_is_taken_by_another_text_or_forgotten() {
    for (kv_unified, drops) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut session, text) = waiting(&PromptStore::new(64 << 20), kv_unified);
        session.restore_partly(&text);
        if drops {
            // The next session finds nothing of the sequence.
            let model = session.model.clone();
            drop(session);
            session = LocalSession::open(&model).unwrap();
        } else {
            session.begin_text(&words(6, 300), 2);
            session.run_all();
        }
        let id = text.id;
        session.join(text, true, false, None).unwrap();
        assert_eq!(session.statistics(id).unwrap().restored_tokens, 400, "{kv_unified}, {drops}");
        assert_eq!(session.run_all()[&id].len(), 20, "{kv_unified}, {drops}");
    }
}
