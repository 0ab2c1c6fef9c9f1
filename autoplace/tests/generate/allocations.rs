//! Generating a token costs one allocation: that of the piece of text that is returned. This is checked in a stream,
//! with drafts by prompt lookup, in a session, and in an engine. Choosing the token costs none.

use std::thread;
use std::time::Duration;

use crate::text_support::{PROMPTS, REPEATED, SYSTEM, request, text_and_statistics};
use autoplace::Model;
use autoplace::generate::{Engine, GenerateRequest, Session, Speculation};
use autoplace::llama_sys::{Batch, Candidates, Context, ContextParams, Sampler};
use autoplace::load::Leases;
use autoplace::plan::Request;
use test_support::counting::allocations;
use test_support::demo_path;

/// The demo model. It is not announced to other processes, because a thread that writes its speed allocates too.
fn unnoticed(request: Request) -> Model {
    let builder = Model::builder(demo_path()).request(request).n_threads(1).leases(Leases::none());
    builder.without_learning().load().unwrap()
}

/// Checks the allocations for `pieces` pieces of a text. Allocations for the first `first` pieces do not count, because
/// a buffer may still grow.
fn of_stream(generate: GenerateRequest, first: usize, pieces: usize) {
    let mut stream = generate.stream().unwrap();
    for _ in 0..first {
        stream.next().unwrap().unwrap();
    }
    let before = allocations();
    let read = stream.by_ref().take(pieces).map(|piece| drop(piece.unwrap())).count();
    let allocations = allocations() - before;
    assert!(read >= 16, "the demo model ended after {read} pieces");
    assert!(allocations <= read, "{allocations} for {read} pieces: {stream:?}");
}

#[test]
fn a_piece_of_a_stream_costs_one_allocation_at_most_and_so_does_a_draft_token() {
    own_process!();
    of_stream(unnoticed(Request::new()).generate("And it came to pass").seed(1), 8, 64);
    let model = unnoticed(Request::new().draft_max(8));
    let lookup = Speculation::prompt_lookup();
    let generate = model.generate(REPEATED).temp(0.0).speculate(lookup).max_tokens(200);
    of_stream(generate.clone(), 60, 80);
    assert!(text_and_statistics(generate).1.drafted_tokens > 0);
}

/// Runs the session. Returns the number of pieces in its steps, and the number of allocations for them.
fn steps(session: &mut Session, first: usize, pieces: usize) -> (usize, usize) {
    for _ in 0..first {
        drop(session.step().unwrap());
    }
    let before = allocations();
    let mut read = 0;
    while read < pieces && !session.is_empty() {
        read += session.step().unwrap().count();
    }
    (read, allocations() - before)
}

#[test]
fn a_token_costs_one_allocation_at_most_beside_others_too() {
    own_process!();
    const PIECES: usize = 256;
    let model = unnoticed(request(3 * 1024, 3, false));
    let endless = |prompt: &str, n| model.generate(prompt).temp(0.0).max_tokens(n);
    {
        let mut session = model.session().unwrap();
        for prompt in &PROMPTS[..3] {
            session.begin(endless(prompt, 1000)).unwrap();
        }
        let (pieces, allocations) = steps(&mut session, 16, PIECES);
        assert!(pieces >= PIECES, "they ended after {pieces} pieces");
        assert!(allocations <= pieces, "{allocations} for {pieces} pieces");
    }
    let engine = Engine::new(&model).unwrap();
    let submit = |prompt: &&str| engine.submit(endless(prompt, 700)).unwrap();
    let mut answers: Vec<_> = PROMPTS[..3].iter().map(submit).collect();
    let generated = || engine.metrics().generated_tokens;
    let reach = |tokens: u64| {
        while generated() < tokens {
            thread::sleep(Duration::from_micros(50));
        }
    };
    // How many tokens were computed so far, and how many allocations were made. The engine goes on between the two
    // numbers, so at the beginning the tokens are read first, and at the end last.
    let begun = || (generated(), allocations());
    let ended = || {
        let allocations = allocations();
        (generated(), allocations)
    };
    // There are three readers, whose queues double their size when they are full. And a step of three texts may be
    // running.
    let most = |tokens: u64| tokens + 3 + 6;
    reach(1100);
    let (from, before) = begun();
    reach(from + PIECES as u64);
    let (to, after) = ended();
    let allocated = (after - before) as u64;
    assert!(allocated <= most(to - from), "{allocated} for {} tokens", to - from);
    // The reader itself allocates nothing.
    let (from, before) = begun();
    for answer in &mut answers {
        for _ in 0..100 {
            answer.pieces().next().unwrap().unwrap();
        }
    }
    let (to, after) = ended();
    let allocated = (after - before) as u64;
    assert!(allocated <= most(to - from), "{allocated} while 300 pieces were read");
}

#[test]
fn masks_candidates_and_log_probabilities_are_made_in_place() {
    own_process!();
    const TOKENS: usize = 64;
    let model = unnoticed(Request::new());
    let native = model.native().unwrap();
    let mut context = Context::new(&native, ContextParams::default()).unwrap();
    let mut batch = Batch::default();
    batch.add(9, 0, 0, true);
    context.decode(&batch).unwrap();
    let chain = Sampler::chain(&native).unwrap().top_p(0.9).unwrap();
    let mut sampler = chain.xtc(0.5, 0.1, 4).unwrap().dist(4).unwrap();
    let mut candidates = Candidates::default();
    // The first mask allows few tokens, and the second allows all. So the buffer must be large enough for all tokens
    // from the start.
    let words = native.vocab().n_tokens().div_ceil(32) as usize;
    let masks = [vec![0b110; words], vec![u32::MAX; words]];
    let mut choose = |mask: &[u32]| {
        sampler.sample_masked(&mut context, -1, mask).unwrap();
        candidates.fill(&mut context, -1).unwrap();
        candidates.retain(|candidate| candidate.token() % 3 == 0);
        candidates.softmax();
        let token = sampler.apply(&mut candidates).unwrap();
        sampler.accept(token).unwrap();
    };
    choose(&masks[0]);
    let before = allocations();
    masks.iter().cycle().take(TOKENS).for_each(|mask| choose(mask));
    assert_eq!(allocations() - before, 0);

    let mut session = model.session().unwrap();
    session.begin(model.generate(SYSTEM).seed(1).logprobs(5)).unwrap();
    let (pieces, allocations) = steps(&mut session, 8, TOKENS);
    // One allocation for the text, and one for the likeliest tokens.
    assert!(pieces >= 16 && allocations <= 2 * pieces, "{allocations} for {pieces}");
}
