//! What llama.cpp does when a GPU fails: a typed error, nothing left behind.

use crate::sim_support::{MIB, card, context, greedy, load, try_context, try_load};
use llama_sys::sim::SimGpu;
use llama_sys::{Batch, Error};

#[test]
fn whichever_allocation_fails_there_is_an_error_and_nothing_is_left() {
    own_process!();
    let gpu = card(256 * MIB);
    let run = || -> Result<(), Error> {
        let model = try_load(&[&gpu], -1)?;
        try_context(&model).map(drop)
    };
    let mut n = 1;
    loop {
        gpu.fail_allocation(n);
        let before = gpu.allocations();
        match run() {
            Ok(()) => {
                // It was never reached.
                assert_eq!(gpu.allocations() - before, n - 1);
                break;
            }
            Err(error) => {
                let out = error.out_of_memory();
                let out = out.unwrap_or_else(|| panic!("allocation {n}: {error:?}"));
                assert_eq!(out.buffer_type, gpu.device().name());
                assert!(out.bytes > 0);
            }
        }
        assert_eq!((gpu.used(), gpu.buffers()), (0, 0), "allocation {n}");
        n += 1;
    }
    // Weights, cache and computation at the least.
    assert!(n > 3, "{n}");
    gpu.fail_allocation(0);
    run().unwrap();
}

#[test]
fn whichever_allocation_fails_on_three_cards_nothing_is_left() {
    own_process!();
    let gpus = [card(256 * MIB), card(256 * MIB), card(256 * MIB)];
    for gpu in &gpus {
        for n in 1.. {
            gpu.fail_allocation(n);
            let result =
                try_load(&gpus.each_ref(), -1).and_then(|model| try_context(&model).map(drop));
            assert!(gpus.iter().all(|gpu| gpu.used() == 0 && gpu.buffers() == 0));
            match result {
                Ok(()) => break,
                Err(error) => assert_eq!(
                    error.out_of_memory().map(|out| out.buffer_type.clone()),
                    Some(gpu.device().name())
                ),
            }
        }
        gpu.fail_allocation(0);
    }
}

#[test]
fn a_refusal_says_what_was_free() {
    own_process!();
    let gpu = SimGpu::builder("SIM card")
        .total(MIB)
        .taken(MIB / 2)
        .register()
        .unwrap();
    let error = try_load(&[&gpu], -1).unwrap_err();
    let Error::ModelLoad { failure, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(
        failure
            .log
            .iter()
            .any(|line| line.contains("524288 of 1048576 free")),
        "{failure:?}"
    );
}

#[test]
fn a_failed_computation_is_a_decode_error_and_poisons_the_context() {
    own_process!();
    let gpu = card(256 * MIB);
    let model = load(&[&gpu], -1);
    let mut first = context(&model);
    greedy(&mut first, 3);
    gpu.fail_graph(1);
    let mut batch = Batch::default();
    batch.add(1, 0, 0, true);
    first.kv_clear().unwrap();
    let error = first.decode(&batch).unwrap_err();
    assert_matches!(error, Error::Decode { .. });
    assert!(!first.is_usable());
    assert_matches!(first.decode(&batch), Err(Error::Poisoned { .. }));
    // The model is not to blame.
    greedy(&mut context(&model), 3);
    drop((first, model));
    assert_eq!((gpu.used(), gpu.buffers()), (0, 0));
}

#[test]
fn faults_can_be_ordered_before_the_card_exists() {
    own_process!();
    let gpu = SimGpu::builder("SIM card")
        .fail_allocation(1)
        .fail_graph(1)
        .register()
        .unwrap();
    assert!(try_load(&[&gpu], -1).is_err());
    let model = load(&[&gpu], -1);
    let mut context = context(&model);
    let mut batch = Batch::default();
    batch.add(1, 0, 0, true);
    assert_matches!(context.decode(&batch), Err(Error::Decode { .. }));
}
