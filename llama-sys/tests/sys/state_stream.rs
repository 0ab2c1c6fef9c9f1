//! The state of a sequence is restored exactly. Operations that are pending are carried out before it is saved.

use crate::support::{batch_of, cpu_context, tokens};
use llama_sys::{Batch, Context, ContextParams, Position};

/// A context with two sequences. Each has a separate cache. The first sequence contains a text.
fn with_text() -> (Context, Position) {
    let mut context = cpu_context(ContextParams { n_ctx: 512, n_seq_max: 2, ..ContextParams::default() });
    let tokens = tokens("In the beginning God created");
    context.decode(&batch_of(&tokens, 0)).unwrap();
    (context, tokens.len() as i32)
}

/// The logits after one more token of a sequence.
fn logits_after(context: &mut Context, seq: i32, position: Position) -> Vec<f32> {
    let mut batch = Batch::default();
    batch.add(300, position, seq, true);
    context.decode(&batch).unwrap();
    context.logits(-1).unwrap().to_vec()
}

#[test]
fn a_copy_that_is_pending_is_in_the_state() {
    let (mut context, end) = with_text();
    context.kv_seq_copy(0, 1, 0..Position::MAX).unwrap();
    let state = context.save_state(1).unwrap();
    assert_eq!(state.end(), end);
    let here = logits_after(&mut context, 0, end);
    let (mut other, _) = with_text();
    other.kv_clear().unwrap();
    other.restore_state(0, &state).unwrap();
    assert!(here == logits_after(&mut other, 0, end));
}

#[test]
fn a_pending_copy_does_not_copy_the_restored_state() {
    let (mut context, end) = with_text();
    let state = context.save_state(0).unwrap();
    let expected = logits_after(&mut context, 0, end);
    let (mut other, _) = with_text();
    // Before the copy is carried out, another text replaces the text.
    other.kv_seq_copy(0, 1, 0..Position::MAX).unwrap();
    let mut shorter = with_text().0;
    shorter.kv_seq_remove(0, 3..Position::MAX).unwrap();
    let short = shorter.save_state(0).unwrap();
    other.restore_state(0, &short).unwrap();
    assert_eq!(other.save_state(1).unwrap().len(), state.len());
    assert!(expected == logits_after(&mut other, 1, end));
}
