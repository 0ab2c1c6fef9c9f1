//! What an engine does between two tokens: texts join, leave, and take turns. With a sampler of this test, the demo
//! model chooses its tokens one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::text_support::{PROMPTS, demo, greedy, likeliest, tokens_of, until};
use autoplace::Model;
use autoplace::generate::{Engine, GenerateRequest};
use test_support::wait;

/// A gate that stops before each token, until the test lets it pass.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    allowed: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

impl Gate {
    /// Lets `tokens` more tokens pass.
    pub(crate) fn leave(&self, tokens: usize) {
        self.allowed.fetch_add(tokens, SeqCst);
    }

    /// How many tokens have asked to pass so far.
    fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    /// Waits until the engine's thread is about to choose its `n`-th token.
    #[track_caller]
    fn stands_before(&self, n: usize) {
        wait("stands there", || self.asked() >= n);
        assert_eq!(self.asked(), n);
    }

    fn pass(&self) {
        let number = self.asked.fetch_add(1, SeqCst) + 1;
        wait("gets leave", || self.allowed.load(SeqCst) >= number);
    }

    /// A text in which the likeliest token is always chosen. Each token must wait for the gate.
    pub(crate) fn generate(&self, model: &Model, prompt: &str) -> GenerateRequest {
        let gate = self.clone();
        let generate = model.generate(prompt).samplers([]).seed(1);
        generate.sampler(move |candidates, so_far| {
            gate.pass();
            likeliest(candidates, so_far)
        })
    }
}

#[test]
fn a_text_whose_reader_goes_ends_with_the_token_that_is_chosen_just_then() {
    let model = demo(1024, 2, false);
    let engine = Engine::new(&model).unwrap();
    let gate = Gate::default();
    let mut answer = engine.submit(gate.generate(&model, PROMPTS[0])).unwrap();
    gate.leave(3);
    for _ in 0..3 {
        answer.pieces().next().unwrap().unwrap();
    }
    gate.stands_before(4);
    drop(answer);
    gate.leave(1000);
    until(&engine, |metrics| metrics.running == 0);
    assert_eq!(gate.asked(), 4, "no token is chosen for nobody");
    assert!(engine.metrics().generated_tokens <= 4);
}

#[test]
fn a_request_joins_at_the_next_token() {
    let model = demo(1024, 2, false);
    let engine = Engine::new(&model).unwrap();
    let gate = Gate::default();
    let long = engine.submit(gate.generate(&model, PROMPTS[0])).unwrap();
    gate.leave(3);
    gate.stands_before(4);
    let quick = engine.submit(greedy(&model, PROMPTS[1]).max_tokens(1)).unwrap();
    // This lets two more tokens of the long text pass. The first is being chosen now, and the new prompt is computed in
    // the same step as the second.
    gate.leave(2);
    until(&engine, |metrics| metrics.running == 1 && metrics.queued == 0);
    assert_eq!(quick.into_text().unwrap().1.generated_tokens, 1);
    assert!(gate.asked() <= 6, "{}", gate.asked());
    gate.leave(1000);
    drop(long);
}

#[test]
fn a_short_prompt_begins_before_a_long_one_that_came_first() {
    let model = demo(1024, 1, false);
    let engine = Engine::new(&model).unwrap();
    let [running, long, short] = [(); 3].map(|()| Gate::default());
    let submit = |gate: &Gate, prompt: &str| engine.submit(gate.generate(&model, prompt).max_tokens(2)).unwrap();
    let mut answers = vec![submit(&running, PROMPTS[0])];
    running.stands_before(1);
    answers.push(submit(&long, &PROMPTS.concat()));
    answers.push(submit(&short, PROMPTS[1]));
    running.leave(2);
    short.stands_before(1);
    assert_eq!(long.asked(), 0);
    short.leave(2);
    long.stands_before(1);
    long.leave(2);
    for answer in answers {
        assert_eq!(answer.into_text().unwrap().1.generated_tokens, 2);
    }
}

#[test]
fn the_first_of_two_equal_prompts_is_answered_while_the_second_is_computed() {
    let model = demo(1024, 2, false);
    let prompt = PROMPTS.concat();
    let steps = tokens_of(&model, &prompt).len().div_ceil(8);
    let engine = Engine::builder(&model).prompt_chunk(8).start().unwrap();
    let [occupied, first, second] = [(); 3].map(|()| Gate::default());
    // Both texts wait, so that they begin in the same step.
    let [a, b] = [(); 2].map(|()| engine.submit(occupied.generate(&model, PROMPTS[0]).max_tokens(1)).unwrap());
    let submit = |gate: &Gate| engine.submit(gate.generate(&model, &prompt).cache_prompt(false)).unwrap();
    let answers = [submit(&first), submit(&second)];
    occupied.leave(2);
    drop((a.into_text().unwrap(), b.into_text().unwrap()));
    first.leave(1000);
    second.stands_before(1);
    // In the last chunk of the first prompt, there is room for the beginning of the second prompt.
    assert!(first.asked() + 1 >= steps, "{} tokens beside {steps} chunks", first.asked());
    second.leave(1000);
    drop(answers);
}

#[test]
fn a_text_gets_a_token_with_every_chunk_of_anothers_prompt() {
    let model = demo(1024, 2, false);
    let long = PROMPTS.concat();
    let tokens = tokens_of(&model, &long).len();
    for chunk in [3, 8, 20] {
        let engine = Engine::builder(&model).prompt_chunk(chunk).start().unwrap();
        let gate = Gate::default();
        let other = engine.submit(gate.generate(&model, PROMPTS[0])).unwrap();
        gate.leave(1);
        gate.stands_before(2);
        let prompt = greedy(&model, &long).max_tokens(1).cache_prompt(false);
        let answer = engine.submit(prompt).unwrap();
        // One token is being chosen, and with each chunk another token is computed.
        let steps = tokens.div_ceil(chunk);
        gate.leave(steps);
        gate.stands_before(2 + steps);
        assert_eq!(engine.metrics().queued, 0);
        assert_eq!(engine.metrics().running, 2, "the prompt has a chunk to go");
        gate.leave(1);
        until(&engine, |metrics| metrics.running == 1);
        assert_eq!(answer.into_text().unwrap().1.generated_tokens, 1);
        gate.leave(1000);
        drop(other);
    }
}

#[test]
fn requests_with_equal_prompts_begin_in_the_order_in_which_they_came() {
    let model = demo(1024, 1, false);
    let engine = Engine::new(&model).unwrap();
    let gates: Vec<Gate> = (0..5).map(|_| Gate::default()).collect();
    let submit = |gate: &Gate| {
        let generate = gate.generate(&model, PROMPTS[0]).max_tokens(2).cache_prompt(false);
        engine.submit(generate).unwrap()
    };
    let answers: Vec<_> = gates.iter().map(submit).collect();
    for (at, gate) in gates.iter().enumerate() {
        gate.stands_before(1);
        assert_eq!(gates[at + 1..].iter().map(Gate::asked).sum::<usize>(), 0, "nobody is before the {at}th");
        gate.leave(2);
    }
    for answer in answers {
        assert_eq!(answer.into_text().unwrap().1.generated_tokens, 2);
    }
}
