//! What llama.cpp does when a GPU fails: a typed error, nothing left behind.

use crate::support::batch_of;
use crate::support::sim::{MIB, are_empty, card, context, greedy, load, try_load};
use llama_sys::Error;

#[test]
fn a_refusal_says_what_was_free() {
    own_process!();
    let gpu = card(MIB);
    gpu.set_taken(MIB / 2);
    let error = try_load(&[&gpu], -1).unwrap_err();
    let Error::ModelLoad { failure, .. } = &error else {
        panic!("{error:?}");
    };
    let log = failure.log.join("\n");
    assert!(log.contains("524288 of 1048576 free"), "{log}");
}

#[test]
fn a_failed_computation_is_a_decode_error_and_poisons_the_context() {
    own_process!();
    let gpu = card(256 * MIB);
    let model = load(&[&gpu], -1);
    let mut first = context(&model);
    greedy(&mut first, 3);
    gpu.fail_graph(1);
    let batch = batch_of(&[1], 0);
    first.kv_clear().unwrap();
    let error = first.decode(&batch).unwrap_err();
    assert_matches!(error, Error::Decode { .. });
    assert!(!first.is_usable());
    assert_matches!(first.decode(&batch), Err(Error::Poisoned { .. }));
    // The model is not to blame.
    greedy(&mut context(&model), 3);
    drop((first, model));
    are_empty([&gpu]);
}
