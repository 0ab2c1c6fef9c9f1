//! Texts begin and end in any order. Up to rounding, each token is the one that a model which was just loaded would
//! choose after the same tokens.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::text_support::{Raw, demo, greedy, tokens_of};
use autoplace::Model;
use autoplace::generate::{Error, GenerateRequest, Piece, SequenceId, Session, TokenLogprobs};
use autoplace::llama_sys::Token;
use proptest::prelude::*;

/// An operation on a session. The numbers choose one of the running texts. `Again` begins a text with the tokens of a
/// running text, except the last.
#[derive(Debug, Clone)]
enum Deed {
    Begin { prompt: usize, cached: bool },
    Step,
    Again { which: usize, less: usize },
    End { which: usize },
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => (0usize..6, any::<bool>()).prop_map(|(prompt, cached)| Deed::Begin { prompt, cached }),
        8 => Just(Deed::Step),
        4 => (0usize..4, 0usize..12).prop_map(|(which, less)| Deed::Again { which, less }),
        1 => (0usize..4).prop_map(|which| Deed::End { which }),
    ]
}

const PROMPTS: [&str; 6] = [
    "And the king said unto his servants,",
    "And the king said unto his servants, Go ye",
    "And the king said unto the people, Behold",
    "The first song of David",
    "In the beginning",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void",
];

/// A maximum number of tokens that no text in this file reaches.
const MAX_TOKENS: usize = 40;

/// The token that a model which was just loaded would choose after these tokens. Each token is computed only once.
fn next(model: &Model, tokens: &[Token]) -> Token {
    thread_local! {
        static KNOWN: RefCell<HashMap<Vec<Token>, Token>> = RefCell::default();
    }
    if let Some(known) = KNOWN.with_borrow(|known| known.get(tokens).copied()) {
        return known;
    }
    let mut text = tokens.to_vec();
    for token in Raw::text(model, tokens, 24) {
        KNOWN.with_borrow_mut(|known| known.insert(text.clone(), token));
        text.push(token);
    }
    KNOWN.with_borrow(|known| known[tokens])
}

/// Carries out these operations one after the other. If there is no place for a new text, the operation that begins it
/// is skipped.
fn carry_out(model: &Model, deeds: &[Deed]) {
    let mut session = model.session().unwrap();
    let mut running: Vec<SequenceId> = Vec::new();
    for deed in deeds {
        let pick = |which: usize| (!running.is_empty()).then(|| running[which % running.len()]);
        match *deed {
            Deed::Begin { prompt, cached } => {
                let generate = greedy(model, tokens_of(model, PROMPTS[prompt])).cache_prompt(cached);
                begin(&mut session, &mut running, generate);
            }
            Deed::Step => step(model, &mut session, &mut running),
            Deed::Again { which, less } => {
                if let Some(sequence) = pick(which) {
                    let mut tokens = session.tokens(sequence).unwrap();
                    tokens.truncate(tokens.len().saturating_sub(less).max(1));
                    begin(&mut session, &mut running, greedy(model, tokens).cache_prompt(true));
                }
            }
            Deed::End { which } => {
                if let Some(sequence) = pick(which) {
                    session.end(sequence);
                    running.retain(|text| *text != sequence);
                }
            }
        }
    }
}

fn begin(session: &mut Session, running: &mut Vec<SequenceId>, generate: GenerateRequest) {
    match session.begin(generate.logprobs(2).max_tokens(MAX_TOKENS)) {
        Ok(sequence) => running.push(sequence),
        Err(Error::SequencesBusy { .. } | Error::ContextTooSmall { .. } | Error::PromptTooLong { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Whether the token is the one that a model which was just loaded would choose. A token that is equally likely, up to
/// rounding, counts too. Fused attention on the CPU adds F16 values in half precision, in the order of the cells in the
/// cache. If the cells of a text are in another order, the log-probabilities of both tokens change by some hundredths.
/// In the recorded cases, they change by up to 0.075.
fn is_as_likely(piece: &Piece, fresh: Token) -> bool {
    let Some(TokenLogprobs { token, logprob, top, .. }) = &piece.logprobs else {
        return false;
    };
    let is_near = |(other, of_it): &(Token, f32)| *other == fresh && logprob - of_it < 0.2;
    *token == fresh || top.iter().any(is_near)
}

/// Takes a step, and checks that every token is the one that a model which was just loaded would choose.
fn step(model: &Model, session: &mut Session, running: &mut Vec<SequenceId>) {
    let before: HashMap<_, _> = running.iter().map(|&text| (text, session.tokens(text).unwrap())).collect();
    for piece in session.step().unwrap() {
        if piece.token.is_some() {
            let before = &before[&piece.sequence];
            let fresh = next(model, before);
            assert!(is_as_likely(&piece, fresh), "{piece:?}, not {fresh} after {before:?}");
        }
        if piece.end.is_some() {
            running.retain(|text| *text != piece.sequence);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn every_text_is_that_of_a_fresh_model(
        deeds in prop::collection::vec(deed(), 1..60),
        sequences in 1u32..5,
        unified: bool,
    ) {
        thread_local! {
            static MODELS: RefCell<HashMap<(u32, bool), Model>> = RefCell::default();
        }
        let model = MODELS.with_borrow_mut(|models| {
            let load = || {
                let n_ctx = if unified { 320 } else { 256 * sequences };
                demo(n_ctx, sequences, unified)
            };
            models.entry((sequences, unified)).or_insert_with(load).clone()
        });
        carry_out(&model, &deeds);
    }
}
