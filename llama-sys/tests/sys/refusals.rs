//! What would end the process (or read out of bounds) inside llama.cpp is a typed error here, and the process lives on.

use std::path::{Path, PathBuf};

use crate::support::{cpu_context, demo_model, demo_path};
use llama_sys::{
    Backend, Batch, Cause, Context, ContextParams, Error, FlashAttention, KvType, LoadMode, Model,
    ModelParams, Mtp, Sampler, State,
};

/// The parameter that an error names.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    match result {
        Err(Error::InvalidParameter { name, .. }) => name,
        other => panic!("expected a refused parameter, got {other:?}"),
    }
}

fn cpu() -> ModelParams {
    ModelParams {
        devices: Some(Vec::new()),
        ..ModelParams::default()
    }
}

fn with(change: impl FnOnce(&mut ContextParams)) -> Result<Context, Error> {
    let mut params = ContextParams::default();
    change(&mut params);
    Context::new(&demo_model(), params)
}

fn batch(tokens: &[(i32, i32, i32)]) -> Batch {
    let mut batch = Batch::default();
    for (index, &(token, position, seq)) in tokens.iter().enumerate() {
        batch.add(token, position, seq, index + 1 == tokens.len());
    }
    batch
}

// Loading

#[test]
fn no_alloc_with_a_mapped_file() {
    for load_mode in [LoadMode::Auto, LoadMode::Mmap] {
        let params = ModelParams {
            no_alloc: true,
            load_mode,
            ..cpu()
        };
        assert_eq!(refused(Model::load(demo_path(), params)), "load_mode");
    }
}

#[test]
fn sixteen_devices_besides_the_cpu() {
    let cpu_device = Backend::init().unwrap().devices().remove(0);
    let params = ModelParams {
        devices: Some(vec![cpu_device; 16]),
        ..ModelParams::default()
    };
    assert_eq!(refused(Model::load(demo_path(), params)), "devices");
}

#[test]
fn a_cpu_as_a_device_to_offload_to() {
    let params = ModelParams {
        devices: Some(vec![Backend::init().unwrap().devices().remove(0)]),
        ..ModelParams::default()
    };
    assert_eq!(refused(Model::load(demo_path(), params)), "devices");
}

#[test]
fn a_tensor_split_that_is_no_proportion() {
    for split in [
        vec![f32::NAN],
        vec![-1.0],
        vec![f32::INFINITY],
        vec![1.0; 17],
    ] {
        let params = ModelParams {
            tensor_split: split,
            ..cpu()
        };
        assert_eq!(refused(Model::load(demo_path(), params)), "tensor_split");
    }
}

#[test]
fn a_path_without_a_file() {
    for path in [
        "/nonexistent/model.gguf",
        env!("CARGO_MANIFEST_DIR"),
        "a\0b",
    ] {
        let error = Model::load(path, cpu()).unwrap_err();
        assert_matches!(error, Error::Unreadable { .. });
    }
}

#[test]
fn a_file_that_is_no_model_names_llama_cpps_reason() {
    let error = Model::load(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"),
        cpu(),
    )
    .unwrap_err();
    let Error::ModelLoad { failure, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(!failure.log.is_empty(), "{failure:?}");
    assert!(error.to_string().contains("Cargo.toml"), "{error}");
}

/// The demo model with the 32-bit value of one key changed.
fn patched(key: &str, value: u32) -> (tempfile::TempDir, PathBuf) {
    const UINT32: u32 = 4;
    let mut bytes = std::fs::read(demo_path()).unwrap();
    let needle = [key.as_bytes(), &UINT32.to_le_bytes()].concat();
    let at = bytes
        .windows(needle.len())
        .position(|window| window == needle)
        .expect("the key is there")
        + needle.len();
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("patched.gguf");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

#[test]
#[cfg_attr(
    target_env = "msvc",
    ignore = "MSVC cannot unwind through C: the product layer checks the file before"
)]
fn a_file_that_fails_an_assertion_is_an_error_with_the_assertion_in_it() {
    for blocks in [0, 513] {
        let (_dir, path) = patched("llama.block_count", blocks);
        let error = Model::load(&path, cpu()).unwrap_err();
        let Error::ModelLoad { failure, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(failure.cause, Cause::Assertion, "{failure:?}");
        assert!(failure.reason.contains("n_layer_all"), "{failure:?}");
    }
    // And llama.cpp works on.
    Model::load(demo_path(), cpu()).unwrap();
}

#[test]
fn a_cancelled_load_says_so() {
    let params = ModelParams {
        progress: Some(Box::new(|_| false)),
        ..cpu()
    };
    assert_matches!(
        Model::load(demo_path(), params),
        Err(Error::LoadCancelled { .. })
    );
}

#[test]
fn a_panic_in_the_progress_callback_comes_back_to_the_caller() {
    let params = ModelParams {
        progress: Some(Box::new(|_| panic!("from the callback"))),
        ..cpu()
    };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Model::load(demo_path(), params)
    }));
    assert_eq!(
        *caught.unwrap_err().downcast_ref::<&str>().unwrap(),
        "from the callback"
    );
}

// Other machines

#[test]
fn an_rpc_server_that_is_not_there() {
    let backend = Backend::init().unwrap();
    for endpoint in ["", "nonsense", "127.0.0.1:1", "127.0.0.1:99999", "a\0b:1"] {
        assert_eq!(
            refused(backend.add_rpc_server(endpoint)),
            "endpoint",
            "{endpoint:?}"
        );
    }
}

#[test]
#[cfg_attr(target_env = "msvc", ignore = "MSVC cannot unwind through C")]
fn something_else_at_an_rpc_servers_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        // Takes whoever comes and hangs up: with the RPC backend that is an assertion in the handshake.
        for stream in listener.incoming().take(4) {
            drop(stream);
        }
    });
    let result = Backend::init().unwrap().add_rpc_server(&address);
    assert_matches!(result, Err(Error::Call { .. }));
}

// Contexts

#[test]
fn batches_and_sequences_that_cannot_be() {
    assert_eq!(refused(with(|p| p.n_batch = 0)), "n_batch");
    assert_eq!(refused(with(|p| p.n_seq_max = 0)), "n_seq_max");
    assert_eq!(refused(with(|p| p.n_seq_max = 257)), "n_seq_max");
    let more_sequences_than_tokens = |p: &mut ContextParams| {
        p.n_batch = 4;
        p.n_seq_max = 8;
    };
    assert_eq!(refused(with(more_sequences_than_tokens)), "n_seq_max");
    let fewer_outputs_than_sequences = |p: &mut ContextParams| {
        p.n_seq_max = 4;
        p.n_outputs_max = 2;
    };
    assert_eq!(refused(with(fewer_outputs_than_sequences)), "n_outputs_max");
}

#[test]
fn a_context_near_2_to_the_32() {
    for kv_unified in [false, true] {
        let huge = |p: &mut ContextParams| {
            p.n_ctx = u32::MAX - 10;
            p.kv_unified = kv_unified;
        };
        assert_eq!(refused(with(huge)), "n_ctx");
    }
}

#[test]
fn a_context_larger_than_memory_names_the_bytes() {
    let error = with(|p| {
        p.n_ctx = 1 << 24;
        p.type_k = KvType::F32;
        p.type_v = KvType::F32;
    })
    .unwrap_err();
    assert_matches!(error, Error::ContextInit { .. });
    let out = error.out_of_memory().unwrap_or_else(|| panic!("{error:?}"));
    assert!(out.bytes > 90 << 30, "{out:?}");
}

#[test]
fn cache_types_that_cannot_be_written_or_divided() {
    assert_matches!(
        "iq2_xs".parse::<KvType>(),
        Err(Error::InvalidParameter { .. })
    );
    assert_matches!("i8".parse::<KvType>(), Err(Error::InvalidParameter { .. }));
    let quantised_v_without_flash_attention = |p: &mut ContextParams| {
        p.type_v = KvType::Q8_0;
        p.flash_attention = FlashAttention::Disabled;
    };
    assert_eq!(refused(with(quantised_v_without_flash_attention)), "type_v");
}

#[test]
fn threads_that_ggml_does_not_have() {
    assert_eq!(refused(with(|p| p.n_threads = Some(0))), "n_threads");
    assert_eq!(
        refused(with(|p| p.n_threads_batch = Some(513))),
        "n_threads_batch"
    );
}

#[test]
fn computing_with_a_model_that_has_no_data() {
    let params = ModelParams {
        no_alloc: true,
        load_mode: LoadMode::None,
        ..cpu()
    };
    let model = Model::load(demo_path(), params).unwrap();
    let mut context = Context::new(&model, ContextParams::default()).unwrap();
    assert!(
        context
            .memory_breakdown()
            .unwrap()
            .rows
            .iter()
            .any(|row| row.model > 0)
    );
    assert_eq!(refused(context.decode(&batch(&[(1, 0, 0)]))), "no_alloc");
}

// Decoding

#[test]
fn batches_that_llama_decode_asserts_against() {
    let mut context = cpu_context(ContextParams {
        n_batch: 4,
        n_ubatch: 4,
        n_outputs_max: 1,
        ..ContextParams::default()
    });
    let too_many: Vec<_> = (0..5).map(|position| (1, position, 0)).collect();
    assert_eq!(refused(context.decode(&batch(&too_many))), "n_tokens");
    assert_eq!(refused(context.decode(&Batch::default())), "n_tokens");
    let mut two_outputs = Batch::default();
    two_outputs.add(1, 0, 0, true);
    two_outputs.add(1, 1, 0, true);
    assert_eq!(refused(context.decode(&two_outputs)), "n_outputs");
    assert_eq!(refused(context.decode(&batch(&[(1 << 20, 0, 0)]))), "token");
    assert_eq!(refused(context.decode(&batch(&[(-1, 0, 0)]))), "token");
    assert_eq!(refused(context.decode(&batch(&[(1, -1, 0)]))), "pos");
    assert_eq!(refused(context.decode(&batch(&[(1, 0, 1)]))), "seq_id");
    assert_eq!(refused(context.decode(&batch(&[(1, 0, -1)]))), "seq_id");
    assert_eq!(refused(context.decode(&batch(&[(1, i32::MAX, 0)]))), "pos");
    let mut twice = Batch::default();
    twice.add_shared(1, 0, &[0, 0], true);
    assert_eq!(refused(context.decode(&twice)), "seq_id");
    let mut no_sequence = Batch::default();
    no_sequence.add_shared(1, 0, &[], true);
    assert_eq!(refused(context.decode(&no_sequence)), "n_seq_id");
    // Nothing of that harmed the context.
    context.decode(&batch(&[(1, 0, 0)])).unwrap();
}

#[test]
fn positions_that_do_not_follow_are_an_error_and_harm_nothing() {
    let mut context = cpu_context(ContextParams::default());
    context.decode(&batch(&[(1, 0, 0)])).unwrap();
    assert_matches!(
        context.decode(&batch(&[(1, 7, 0)])),
        Err(Error::Decode { .. })
    );
    context.decode(&batch(&[(1, 1, 0)])).unwrap();
}

#[test]
fn logits_of_an_earlier_batch_are_not_taken_for_those_of_a_failed_one() {
    let mut context = cpu_context(ContextParams::default());
    let mut sampler = Sampler::chain(context.model()).unwrap().greedy().unwrap();
    context.decode(&batch(&[(1, 0, 0)])).unwrap();
    sampler.sample(&mut context, -1).unwrap();
    assert!(context.decode(&batch(&[(1, 7, 0)])).is_err());
    assert_eq!(refused(sampler.sample(&mut context, -1)), "index");
}

#[test]
fn a_full_cache_is_an_error_and_harms_nothing() {
    let mut context = cpu_context(ContextParams {
        n_ctx: 256,
        ..ContextParams::default()
    });
    let full: Vec<_> = (0..256).map(|position| (5, position, 0)).collect();
    context.decode(&batch(&full)).unwrap();
    let error = context.decode(&batch(&[(5, 256, 0)])).unwrap_err();
    assert_matches!(
        error,
        Error::NoKvSlot {
            n_tokens: 1,
            n_ctx: 256
        }
    );
    context.kv_clear().unwrap();
    context.decode(&batch(&[(5, 0, 0)])).unwrap();
}

// Sampling

#[test]
fn logits_that_were_not_asked_for() {
    let mut context = cpu_context(ContextParams::default());
    let mut sampler = Sampler::chain(context.model()).unwrap().greedy().unwrap();
    assert_eq!(refused(sampler.sample(&mut context, -1)), "index");
    context.decode(&batch(&[(1, 0, 0), (5, 1, 0)])).unwrap();
    for index in [0, 2, -2, i32::MIN, i32::MAX] {
        assert_eq!(
            refused(sampler.sample(&mut context, index)),
            "index",
            "{index}"
        );
        assert_eq!(
            refused(context.logits(index).map(<[f32]>::len)),
            "index",
            "{index}"
        );
    }
    assert_eq!(
        sampler.sample(&mut context, 1).unwrap(),
        sampler.sample(&mut context, -1).unwrap()
    );
}

#[test]
fn sampling_parameters_out_of_range() {
    let model = demo_model();
    let chain = || Sampler::chain(&model).unwrap();
    assert_eq!(refused(chain().top_k(u32::MAX)), "top_k");
    for p in [-0.1, 1.1, f32::NAN] {
        assert_eq!(refused(chain().top_p(p)), "top_p");
        assert_eq!(refused(chain().min_p(p)), "min_p");
        assert_eq!(refused(chain().typical(p)), "typical_p");
    }
    assert_eq!(refused(chain().temperature(f32::NAN)), "temp");
    assert_eq!(refused(chain().temperature(-1.0)), "temp");
    assert_eq!(
        refused(chain().penalties(64, 0.0, 0.0, 0.0)),
        "penalty_repeat"
    );
    assert_eq!(
        refused(chain().penalties(64, 1.1, f32::NAN, 0.0)),
        "penalty_freq"
    );
    assert_eq!(refused(chain().logit_bias(&[(1 << 20, 1.0)])), "token");
    // llama.cpp would set 8 GiB aside for this one, and draw a seed of its own for that.
    assert_eq!(
        refused(chain().penalties(i32::MAX as u32, 1.1, 0.0, 0.0)),
        "penalty_last_n"
    );
    assert_eq!(refused(chain().dist(u32::MAX)), "seed");
    // What llama.cpp's sorting has no room for.
    assert_eq!(refused(chain().temperature(1e-30)), "temp");
    assert_eq!(
        refused(chain().penalties(64, 1e-30, 0.0, 0.0)),
        "penalty_repeat"
    );
    assert_eq!(refused(chain().logit_bias(&[(1, 1e30)])), "logit_bias");
    assert_eq!(refused(chain().logit_bias(&[(1, f32::NAN)])), "logit_bias");
}

#[test]
fn parameters_of_the_rarer_samplers_out_of_range() {
    let model = demo_model();
    let chain = || Sampler::chain(&model).unwrap();
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let range = chain().dynamic_temperature(1.0, bad, 1.0);
        assert_eq!(refused(range), "dynatemp_range");
        let exponent = chain().dynamic_temperature(1.0, 0.5, bad);
        assert_eq!(refused(exponent), "dynatemp_exponent");
        assert_eq!(refused(chain().xtc(bad, 0.1, 1)), "xtc_probability");
        assert_eq!(refused(chain().xtc(0.5, bad, 1)), "xtc_threshold");
        assert_eq!(refused(chain().mirostat_v2(bad, 0.1, 1)), "mirostat_tau");
        assert_eq!(refused(chain().mirostat(5.0, bad, 9, 1)), "mirostat_eta");
        assert_eq!(refused(chain().adaptive_p(0.5, bad, 1)), "adaptive_decay");
    }
    assert_eq!(refused(chain().top_n_sigma(f32::NAN)), "top_n_sigma");
    assert_eq!(refused(chain().mirostat(5.0, 0.1, 0, 1)), "mirostat_m");
    assert_eq!(refused(chain().adaptive_p(1.5, 0.9, 1)), "adaptive_target");
    assert_eq!(refused(chain().xtc(0.5, 0.1, u32::MAX)), "seed");
    assert_eq!(refused(chain().mirostat(5.0, 0.1, 9, u32::MAX)), "seed");
    assert_eq!(refused(chain().mirostat_v2(5.0, 0.1, u32::MAX)), "seed");
    assert_eq!(refused(chain().adaptive_p(0.5, 0.9, u32::MAX)), "seed");
    let dry = |multiplier, base, allowed_length, last_n, breaker: &str| {
        chain().dry(multiplier, base, allowed_length, last_n, &[breaker])
    };
    assert_eq!(refused(dry(-0.5, 1.75, 2, 64, "\n")), "dry_multiplier");
    // llama.cpp would take it for "off".
    assert_eq!(refused(dry(0.8, 0.9, 2, 64, "\n")), "dry_base");
    let allowed = dry(0.8, 1.75, u32::MAX, 64, "\n");
    assert_eq!(refused(allowed), "dry_allowed_length");
    let last_n = dry(0.8, 1.75, 2, u32::MAX, "\n");
    assert_eq!(refused(last_n), "dry_penalty_last_n");
    // llama.cpp would leave the first out and cut the others off.
    for breaker in ["", &"-".repeat(41), "a\0b"] {
        let dry = dry(0.8, 1.75, 2, 64, breaker);
        assert_eq!(refused(dry), "dry_sequence_breaker");
    }
}

#[test]
fn a_grammar_that_does_not_parse() {
    let chain = || Sampler::chain(&demo_model()).unwrap();
    for grammar in ["root ::= undefined", "no rules"] {
        let result = chain().grammar(grammar, "root");
        assert!(
            matches!(result, Err(Error::Call { .. })),
            "{grammar:?}: {result:?}"
        );
    }
    // llama.cpp takes an empty one for "no constraint at all".
    for grammar in ["a\0b", "", " \n"] {
        assert_eq!(refused(chain().grammar(grammar, "root")), "grammar");
    }
}

// Text

#[test]
fn tokens_outside_the_vocabulary() {
    let vocab = demo_model().vocab();
    for token in [-1, i32::MIN, vocab.n_tokens() as i32, i32::MAX] {
        assert_eq!(refused(vocab.piece(token, true)), "token");
        assert!(!vocab.is_eog(token) && !vocab.is_control(token));
    }
}

// The KV cache and saved states

#[test]
fn sequences_and_ranges_that_cannot_be() {
    let mut context = cpu_context(ContextParams {
        n_seq_max: 2,
        ..ContextParams::default()
    });
    for seq in [-1, 2, i32::MAX] {
        assert_eq!(refused(context.kv_seq_remove(seq, 0..1)), "seq_id");
        assert_eq!(refused(context.kv_seq_copy(0, seq, 0..1)), "seq_id");
        assert_eq!(refused(context.kv_seq_keep(seq)), "seq_id");
        assert_eq!(refused(context.kv_seq_shift(seq, 0..1, 1)), "seq_id");
        assert_eq!(refused(context.kv_seq_end(seq)), "seq_id");
        assert_eq!(refused(context.save_state(Some(seq))), "seq_id");
    }
    assert_eq!(refused(context.kv_seq_remove(0, -1..1)), "range");
    #[allow(clippy::reversed_empty_ranges, reason = "that is the point")]
    let reversed = 3..1;
    assert_eq!(refused(context.kv_seq_remove(0, reversed)), "range");
    let tokens: Vec<_> = (0..8).map(|position| (5, position, 0)).collect();
    context.decode(&batch(&tokens)).unwrap();
    assert_eq!(refused(context.kv_seq_copy(0, 1, 0..4)), "range");
    assert_eq!(refused(context.kv_seq_shift(0, 0..4, -1)), "delta");
    assert_eq!(
        refused(context.kv_seq_shift(0, 0..8, i32::MAX - 2)),
        "delta"
    );
}

#[test]
fn states_that_were_altered_or_belong_elsewhere() {
    let mut context = cpu_context(ContextParams::default());
    let tokens: Vec<_> = (0..8).map(|position| (5, position, 0)).collect();
    context.decode(&batch(&tokens)).unwrap();
    let state = context.save_state(Some(0)).unwrap();
    let good = state.to_bytes();
    assert_eq!(State::from_bytes(&good).unwrap(), state);
    for at in [0, 8, 12, 24, 32, 40, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        // The flag at 12 and the fingerprint at 16 are checked against the context, the rest here.
        let restored =
            State::from_bytes(&bad).and_then(|state| context.restore_state(&state, Some(0)));
        if at != 12 {
            assert!(
                matches!(restored, Err(Error::State { .. })),
                "byte {at}: {restored:?}"
            );
        }
    }
    for length in [0, 7, 39, good.len() - 1] {
        assert_matches!(State::from_bytes(&good[..length]), Err(Error::State { .. }));
    }
    assert_matches!(
        context.restore_state(&state, None),
        Err(Error::State { .. })
    );
    let mut small = cpu_context(ContextParams {
        n_ctx: 256,
        type_k: KvType::Q8_0,
        ..ContextParams::default()
    });
    let restored = small.restore_state(&state, Some(0));
    assert!(
        matches!(restored, Err(Error::State { .. })),
        "another cache type: {restored:?}"
    );
    small.kv_clear().unwrap();
    small.decode(&batch(&tokens)).unwrap();
}

// Predicting further tokens

#[test]
fn a_context_that_predicts_of_a_model_without_blocks_for_that() {
    for mtp in [Mtp::Trunk, Mtp::Heads] {
        assert_eq!(refused(with(|params| params.mtp = mtp)), "mtp");
        let load_mtp = ModelParams {
            load_mtp: true,
            ..cpu()
        };
        let model = Model::load(demo_path(), load_mtp).unwrap();
        assert_eq!(model.n_layer_nextn(), 0);
        let params = ContextParams {
            mtp,
            ..ContextParams::default()
        };
        assert_eq!(refused(Context::new(&model, params)), "mtp");
    }
}

#[test]
fn states_to_go_back_to_of_more_tokens_than_a_graph_has() {
    for (n_ubatch, n_rs_seq) in [(4, 3), (64, 63), (64, u32::MAX)] {
        let more = |params: &mut ContextParams| {
            (params.n_ubatch, params.n_rs_seq) = (n_ubatch, n_rs_seq);
        };
        assert_eq!(refused(with(more)), "n_rs_seq");
    }
    // Of a memory that has no states it means nothing.
    let context = with(|params| params.n_rs_seq = 3).unwrap();
    assert_eq!(context.n_rs_seq(), 0);
}

#[test]
fn hidden_states_of_a_context_that_has_none() {
    let mut context = cpu_context(ContextParams::default());
    let batch = batch(&[(1, 0, 0)]);
    assert_eq!(refused(context.decode_heads(&batch, &[0.0; 256])), "mtp");
    context.decode(&batch).unwrap();
    assert_eq!(refused(context.hidden(0)), "index");
}
