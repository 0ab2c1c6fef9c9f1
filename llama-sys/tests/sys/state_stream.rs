//! The state of a sequence goes through a writer and a reader; what is pending is carried out before.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::{batch_of, cpu_context, tokens};
use llama_sys::{Batch, Context, ContextParams, Error, Position};

/// Two sequences with caches of their own, the first of which holds a text.
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

fn written(context: &mut Context, seq: i32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = context.write_state(seq, &mut bytes).unwrap();
    assert_eq!(count, bytes.len() as u64);
    bytes
}

fn read(context: &mut Context, seq: i32, state: &[u8]) -> Result<(), Error> {
    let mut reader = state;
    context.read_state(seq, state.len() as u64, &mut reader)
}

#[test]
fn a_state_comes_back_as_it_was() {
    let (mut context, end) = with_text();
    let expected = context.state_bytes(0).unwrap();
    let state = written(&mut context, 0);
    assert_eq!(state.len() as u64, expected);
    let (mut other, _) = with_text();
    other.kv_clear().unwrap();
    read(&mut other, 1, &state).unwrap();
    assert_eq!(other.kv_seq_end(1).unwrap(), Some(end));
    let here = logits_after(&mut context, 0, end);
    assert!(here == logits_after(&mut other, 1, end));
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
fn what_is_restored_is_not_what_a_pending_copy_copies() {
    let (mut context, end) = with_text();
    let state = written(&mut context, 0);
    let expected = logits_after(&mut context, 0, end);
    let (mut other, _) = with_text();
    // Another text takes the place of the one that is to be copied.
    other.kv_seq_copy(0, 1, 0..Position::MAX).unwrap();
    let mut shorter = with_text().0;
    shorter.kv_seq_remove(0, 3..Position::MAX).unwrap();
    let short = written(&mut shorter, 0);
    read(&mut other, 0, &short).unwrap();
    assert_eq!(written(&mut other, 1).len(), state.len());
    assert!(expected == logits_after(&mut other, 1, end));
}

#[test]
fn a_state_that_is_cut_short_or_too_long_leaves_its_sequence_empty_and_the_other_as_it_was() {
    let (mut context, end) = with_text();
    let state = written(&mut context, 0);
    let expected = {
        let mut fresh = with_text().0;
        logits_after(&mut fresh, 0, end)
    };
    let lengths = (0..state.len()).step_by(state.len() / 20);
    for length in lengths {
        let cut = &state[..length];
        for said in [length as u64, state.len() as u64] {
            let error = context.read_state(1, said, &mut &*cut).unwrap_err();
            assert!(matches!(error, Error::State { .. }), "{length}: {error}");
            assert_eq!(context.kv_seq_end(1).unwrap(), None, "{length}");
        }
    }
    let longer = state.iter().copied().chain([0; 9]).collect::<Vec<u8>>();
    assert_matches!(read(&mut context, 1, &longer), Err(Error::State { .. }));
    assert!(expected == logits_after(&mut context, 0, end));
}

#[test]
fn what_a_reader_or_writer_says_is_the_reason() {
    let (mut context, _) = with_text();
    let error = context.write_state(0, &mut &mut [0; 9][..]).unwrap_err();
    assert!(error.to_string().contains("whole buffer"), "{error}");
    let broken = io::Error::other("the disk is gone");
    struct Broken(Option<io::Error>);
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(self.0.take().unwrap_or_else(|| io::Error::other("again")))
        }
    }
    let error = context.read_state(1, 1000, &mut Broken(Some(broken)));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the disk is gone"), "{error}");
    let refused = context.write_state(2, &mut Vec::new());
    assert_matches!(refused, Err(Error::InvalidParameter { name: "seq_id", .. }));
}

#[test]
fn a_panic_of_a_reader_or_writer_is_the_callers_and_not_the_end() {
    struct Panics;
    impl Read for Panics {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("on purpose")
        }
    }
    impl Write for Panics {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("on purpose")
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (mut context, end) = with_text();
    context.kv_seq_copy(0, 1, 0..Position::MAX).unwrap();
    let mut panics = |call: fn(&mut Context)| {
        let caught = catch_unwind(AssertUnwindSafe(|| call(&mut context))).unwrap_err();
        assert_eq!(caught.downcast_ref(), Some(&"on purpose"));
    };
    panics(|context| drop(context.write_state(0, &mut Panics)));
    panics(|context| drop(context.read_state(1, 1000, &mut Panics)));
    assert_eq!(context.kv_seq_end(1).unwrap(), None);
    let expected = logits_after(&mut with_text().0, 0, end);
    assert!(expected == logits_after(&mut context, 0, end));
}

#[test]
fn attention_that_goes_back_by_itself_has_no_partial_state() {
    let (mut context, _) = with_text();
    assert!(!context.has_partial_state());
    let refused = context.save_partial_state(0).unwrap_err();
    assert_matches!(refused, Error::InvalidParameter { .. });
}
