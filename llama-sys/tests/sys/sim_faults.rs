//! What llama.cpp does when a GPU fails: a typed error, nothing left behind.

use crate::support::batch_of;
use crate::support::sim::{MIB, are_empty, card, context, greedy, load, try_context, try_load};
use llama_sys::Error;
use llama_sys::sim::SimGpu;

#[test]
fn whichever_allocation_fails_there_is_an_error_and_nothing_is_left() {
    own_process!();
    let cards = [(); 3].map(|()| card(256 * MIB));
    for gpus in [&cards[..1], &cards] {
        let run = || {
            let model = try_load(&gpus.iter().collect::<Vec<_>>(), -1)?;
            try_context(&model).map(drop)
        };
        for gpu in gpus {
            for n in 1.. {
                gpu.fail_allocation(n);
                let before = gpu.allocations();
                let result = run();
                are_empty(gpus);
                let Err(error) = result else {
                    // It was never reached; weights, cache and computation are the least.
                    assert_eq!(gpu.allocations() - before, n - 1);
                    assert!(n > 3, "{n}");
                    break;
                };
                let out = error.out_of_memory();
                let out = out.unwrap_or_else(|| panic!("allocation {n}: {error:?}"));
                assert_eq!(out.buffer_type, gpu.device().name());
                assert!(out.bytes > 0);
            }
            gpu.fail_allocation(0);
            run().unwrap();
        }
    }
}

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

#[test]
fn faults_can_be_ordered_before_the_card_exists() {
    own_process!();
    let gpu = SimGpu::builder("SIM card").fail_allocation(1).fail_graph(1);
    let gpu = gpu.register().unwrap();
    assert!(try_load(&[&gpu], -1).is_err());
    let model = load(&[&gpu], -1);
    let mut context = context(&model);
    let batch = batch_of(&[1], 0);
    assert_matches!(context.decode(&batch), Err(Error::Decode { .. }));
}
