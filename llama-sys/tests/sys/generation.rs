//! A context decodes, samples, forgets, copies, saves and restores: on the demo model, CPU only.

use crate::support::{batch_of, cpu_context, demo_model, greedy, tokens};
use llama_sys::{Context, ContextParams, Sampler, Token};

const PROMPT: &str = "In the beginning God created";

fn text(context: &Context, tokens: &[Token]) -> String {
    let vocab = context.model().vocab();
    let mut bytes = Vec::new();
    for &token in tokens {
        vocab.append_piece(token, false, &mut bytes).unwrap();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn the_demo_model_continues_an_english_sentence_in_english() {
    let mut context = cpu_context(ContextParams::default());
    let prompt = tokens(PROMPT);
    let chosen = greedy(&mut context, &prompt, 0, 24);
    let text = text(&context, &chosen);
    let english = "the and of to in his was unto shall that God earth";
    let words = text.split_whitespace();
    let words = words.filter(|word| english.split(' ').any(|it| it == *word));
    assert!(words.count() >= 3, "not recognisable as English: {text:?}");
}

#[test]
fn tokens_read_back_as_the_text_they_came_from() {
    let vocab = demo_model().vocab();
    let foreign = "na\u{ef}ve \u{1f600} \u{4f60}\u{597d}";
    for sample in ["And God said", foreign, "tabs\tand\nlines", ""] {
        let tokens = vocab.tokenize(sample, false, false).unwrap();
        let mut bytes = Vec::new();
        for token in tokens {
            vocab.append_piece(token, false, &mut bytes).unwrap();
        }
        // A SentencePiece vocabulary puts a space in front.
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.trim_start_matches(' '), sample);
    }
}

#[test]
fn a_saved_state_continues_with_the_same_tokens() {
    let mut context = cpu_context(ContextParams::default());
    let prompt = tokens(PROMPT);
    let mut first = greedy(&mut context, &prompt, 0, 8);
    let last = first.pop().unwrap();
    let end = context.kv_seq_end(0).unwrap().unwrap();
    let state = context.save_state(Some(0)).unwrap();
    let undisturbed = greedy(&mut context, &[last], end, 12);

    let mut other = cpu_context(ContextParams::default());
    let state = llama_sys::State::from_bytes(&state.to_bytes()).unwrap();
    other.restore_state(&state, Some(0)).unwrap();
    assert_eq!(other.kv_seq_end(0).unwrap(), Some(end));
    assert_eq!(greedy(&mut other, &[last], end, 12), undisturbed);
}

#[test]
fn rolling_back_gives_the_same_tokens_again() {
    let mut context = cpu_context(ContextParams::default());
    let prompt = tokens(PROMPT);
    let first = greedy(&mut context, &prompt, 0, 10);
    let kept = prompt.len() as i32 - 1;
    assert!(context.kv_seq_remove(0, kept..i32::MAX).unwrap());
    assert_eq!(context.kv_seq_end(0).unwrap(), Some(kept));
    let again = greedy(&mut context, &prompt[kept as usize..], kept, 10);
    assert_eq!(again, first);
}

#[test]
fn a_copied_sequence_continues_like_its_source() {
    let mut context = cpu_context(ContextParams { n_seq_max: 2, n_ctx: 1024, ..ContextParams::default() });
    let prompt = tokens(PROMPT);
    greedy(&mut context, &prompt, 0, 1);
    let end = context.kv_seq_end(0).unwrap().unwrap();
    context.kv_seq_copy(0, 1, 0..end).unwrap();
    assert_eq!(context.kv_seq_end(1).unwrap(), Some(end));
    context.kv_seq_keep(1).unwrap();
    assert_eq!(context.kv_seq_end(0).unwrap(), None);
}

#[test]
fn an_aborted_decode_says_so_and_the_context_stays_usable() {
    let mut context = cpu_context(ContextParams::default());
    let prompt = tokens(PROMPT);
    context.abort_handle().abort();
    let batch = batch_of(&prompt, 0);
    assert_matches!(context.decode(&batch), Err(llama_sys::Error::Aborted));
    context.kv_clear().unwrap();
    assert_eq!(greedy(&mut context, &prompt, 0, 4).len(), 4);
}

#[test]
fn a_grammar_binds_the_output() {
    let mut context = cpu_context(ContextParams::default());
    let model = context.model().clone();
    let grammar = "root ::= [0-9] [0-9] [0-9]";
    let chain = Sampler::chain(&model).unwrap().grammar(grammar, "root");
    let mut sampler = chain.unwrap().greedy().unwrap();
    let prompt = tokens(PROMPT);
    let mut batch = batch_of(&prompt, 0);
    let mut digits = Vec::new();
    for position in prompt.len() as i32.. {
        context.decode(&batch).unwrap();
        let token = sampler.sample(&mut context, -1).unwrap();
        if model.vocab().is_eog(token) {
            break;
        }
        digits.push(token);
        batch = batch_of(&[token], position);
    }
    let text = text(&context, &digits);
    let digits = text.trim();
    let is_bound = digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit());
    assert!(is_bound, "{text:?}");
}

#[test]
fn every_byte_of_weights_is_accounted_for() {
    let context = cpu_context(ContextParams::default());
    let breakdown = context.memory_breakdown().unwrap();
    let weights: u64 = breakdown.rows.iter().map(|row| row.model).sum();
    assert!(weights >= context.model().bytes(), "{breakdown:?}");
    let kv: u64 = breakdown.rows.iter().map(|row| row.context).sum();
    // 6 layers x 512 cells x (K + V) x 2 heads x 64 x 2 bytes.
    assert_eq!(kv, 6 * 512 * 2 * 2 * 64 * 2);
    assert!(breakdown.on_host().count() >= 1);
}

#[test]
fn a_sampler_that_skips_chooses_on_as_one_that_chose() {
    const CHOSEN: usize = 6;
    let mut context = cpu_context(ContextParams::default());
    let model = context.model().clone();
    let prompt = tokens(PROMPT);
    let batch = batch_of(&prompt, 0);
    context.decode(&batch).unwrap();
    // The same logits again and again: what differs is the random number and what the penalty remembers.
    let chain = || {
        let chain = Sampler::chain(&model).unwrap();
        let chain = chain.penalties(64, 1.3, 0.0, 0.0).unwrap();
        let chain = chain.top_k(40).unwrap().temperature(1.5).unwrap();
        chain.dist(11).unwrap()
    };
    let mut undisturbed = chain();
    let mut choose = |sampler: &mut Sampler| sampler.sample(&mut context, -1).unwrap();
    let all: Vec<Token> = (0..2 * CHOSEN).map(|_| choose(&mut undisturbed)).collect();
    let mut resumed = chain();
    resumed.skip(CHOSEN).unwrap();
    for &token in &all[..CHOSEN] {
        resumed.accept(token).unwrap();
    }
    let rest: Vec<Token> = (0..CHOSEN).map(|_| choose(&mut resumed)).collect();
    assert_eq!(rest, all[CHOSEN..]);
    let mut from_the_start = chain();
    for &token in &all[..CHOSEN] {
        from_the_start.accept(token).unwrap();
    }
    let other: Vec<Token> = (0..CHOSEN).map(|_| choose(&mut from_the_start)).collect();
    assert_ne!(other, rest);
}
