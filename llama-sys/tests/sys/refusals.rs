//! With these calls, llama.cpp would end the process or read out of bounds. Here they are typed errors, and the process
//! continues.

use std::path::Path;

use crate::support::{batch_of, cpu, cpu_context, demo_model, demo_path, refused};
use llama_sys::{
    Backend, Batch, Context, ContextParams, Error, FlashAttention, KvType, LoadMode, Model, ModelParams, Mtp, Sampler,
};

/// Loads the demo model on the CPU, after `change` has changed the parameters.
fn load(change: impl FnOnce(&mut ModelParams)) -> Result<Model, Error> {
    let mut params = cpu();
    change(&mut params);
    Model::load(demo_path(), params)
}

fn with(change: impl FnOnce(&mut ContextParams)) -> Result<Context, Error> {
    let mut params = ContextParams::default();
    change(&mut params);
    Context::new(&demo_model(), params)
}

/// A batch of one token, which is an output.
fn one(token: i32, position: i32, seq: i32) -> Batch {
    let mut batch = Batch::default();
    batch.add(token, position, seq, true);
    batch
}

#[test]
fn impossible_parameters_of_a_load_are_refused() {
    assert_eq!(refused(load(|p| (p.no_alloc, p.load_mode) = (true, LoadMode::Auto))), "load_mode");
    // These are refused: the CPU as a device to offload to, and sixteen devices in addition to the CPU.
    let cpu_device = Backend::init().unwrap().devices().remove(0);
    for devices in [vec![cpu_device.clone()], vec![cpu_device; 16]] {
        assert_eq!(refused(load(|p| p.devices = Some(devices))), "devices");
    }
    for no_proportion in [vec![f32::NAN], vec![-1.0], vec![f32::INFINITY], vec![1.0; 17]] {
        let split = load(|p| p.tensor_split = no_proportion);
        assert_eq!(refused(split), "tensor_split");
    }
}

#[test]
fn a_path_without_a_file_or_a_model_is_refused() {
    let folder = env!("CARGO_MANIFEST_DIR");
    for path in ["/nonexistent/model.gguf", folder, "a\0b"] {
        assert_matches!(Model::load(path, cpu()), Err(Error::Unreadable { .. }));
    }
    assert_matches!(Model::from_metadata("no such file"), Err(Error::Unreadable { .. }));
    let error = Model::load(Path::new(folder).join("Cargo.toml"), cpu()).unwrap_err();
    assert_matches!(error, Error::ModelLoad { failure, .. } if !failure.log.is_empty());
    assert!(error.to_string().contains("Cargo.toml"), "{error}");
}

#[test]
fn a_progress_callback_may_cancel_a_load_and_its_panic_comes_back_to_the_caller() {
    let cancelled = load(|p| p.progress = Some(Box::new(|_| false)));
    assert_matches!(cancelled, Err(Error::LoadCancelled { .. }));
    let panics = || load(|p| p.progress = Some(Box::new(|_| panic!("from the callback"))));
    let caught = std::panic::catch_unwind(panics).unwrap_err();
    assert_eq!(caught.downcast_ref(), Some(&"from the callback"));
}

#[test]
fn a_missing_rpc_server_is_refused() {
    let backend = Backend::init().unwrap();
    for endpoint in ["", "nonsense", "127.0.0.1:1", "127.0.0.1:99999", "a\0b:1"] {
        let added = backend.add_rpc_server(endpoint);
        assert_eq!(refused(added), "endpoint", "{endpoint:?}");
    }
}

#[test]
fn impossible_parameters_of_a_context_are_refused() {
    type Change = fn(&mut ContextParams);
    let cases: [(Change, &str); 11] = [
        (|p| p.n_batch = 0, "n_batch"),
        (|p| p.n_seq_max = 0, "n_seq_max"),
        (|p| p.n_seq_max = 257, "n_seq_max"),
        // First there are more sequences than tokens, and then fewer outputs than sequences.
        (|p| (p.n_batch, p.n_seq_max) = (4, 8), "n_seq_max"),
        (|p| (p.n_seq_max, p.n_outputs_max) = (4, 2), "n_outputs_max"),
        (|p| (p.n_ctx, p.kv_unified) = (u32::MAX - 10, false), "n_ctx"),
        (|p| (p.n_ctx, p.kv_unified) = (u32::MAX - 10, true), "n_ctx"),
        // With quantised values, flash attention is needed.
        (|p| (p.type_v, p.flash_attention) = (KvType::Q8_0, FlashAttention::Disabled), "type_v"),
        // ggml does not support these numbers of threads.
        (|p| p.n_threads = Some(0), "n_threads"),
        (|p| p.n_threads_batch = Some(513), "n_threads_batch"),
        // The model has no experts, so it cannot have a cache of experts.
        (|p| p.moe_cache_size = 1 << 20, "moe_cache_size"),
    ];
    for (change, name) in cases {
        assert_eq!(refused(with(change)), name);
    }
    for unwritable in ["iq2_xs", "i8"] {
        refused(unwritable.parse::<KvType>());
    }
}

#[test]
fn a_context_larger_than_memory_names_the_bytes() {
    let huge = with(|p| (p.n_ctx, p.type_k, p.type_v) = (1 << 24, KvType::F32, KvType::F32));
    let error = huge.unwrap_err();
    assert_matches!(error, Error::ContextInit { .. });
    let out = error.out_of_memory().unwrap_or_else(|| panic!("{error:?}"));
    assert!(out.bytes > 90 << 30, "{out:?}");
}

#[test]
fn a_model_without_data_cannot_compute_or_be_written() {
    let model = load(|p| (p.no_alloc, p.load_mode) = (true, LoadMode::None)).unwrap();
    let mut context = Context::new(&model, ContextParams::default()).unwrap();
    let rows = context.memory_breakdown().unwrap().rows;
    assert!(rows.iter().any(|row| row.model > 0));
    assert_eq!(refused(context.decode(&one(1, 0, 0))), "no_alloc");
    let folder = tempfile::tempdir().unwrap();
    refused(model.save(folder.path().join("x.gguf")));
}

#[test]
fn batches_that_llama_decode_asserts_against_are_refused() {
    let mut context =
        cpu_context(ContextParams { n_batch: 4, n_ubatch: 4, n_outputs_max: 1, ..ContextParams::default() });
    let mut two_outputs = one(1, 0, 0);
    two_outputs.add(1, 1, 0, true);
    for (wrong, name) in [
        (batch_of(&[1; 5], 0), "n_tokens"),
        (Batch::default(), "n_tokens"),
        (two_outputs, "n_outputs"),
        (one(1 << 20, 0, 0), "token"),
        (one(-1, 0, 0), "token"),
        (one(1, -1, 0), "pos"),
        (one(1, i32::MAX, 0), "pos"),
        (one(1, 0, 1), "seq_id"),
        (one(1, 0, -1), "seq_id"),
    ] {
        assert_eq!(refused(context.decode(&wrong)), name);
    }
    // The context was not harmed by any of these calls.
    context.decode(&one(1, 0, 0)).unwrap();
}

#[test]
fn positions_that_do_not_follow_are_an_error_and_harm_nothing() {
    let mut context = cpu_context(ContextParams::default());
    let mut sampler = Sampler::chain(context.model()).unwrap().greedy().unwrap();
    context.decode(&one(1, 0, 0)).unwrap();
    sampler.sample(&mut context, -1).unwrap();
    let gap = context.decode(&one(1, 7, 0));
    assert_matches!(gap, Err(Error::Decode { .. }));
    // After a batch that failed, the logits of an earlier one are not returned.
    assert_eq!(refused(sampler.sample(&mut context, -1)), "index");
    context.decode(&one(1, 1, 0)).unwrap();
}

#[test]
fn a_full_cache_is_an_error_and_harms_nothing() {
    let mut context = cpu_context(ContextParams { n_ctx: 256, ..ContextParams::default() });
    context.decode(&batch_of(&[5; 256], 0)).unwrap();
    let error = context.decode(&one(5, 256, 0)).unwrap_err();
    let no_slot = Error::NoKvSlot { n_tokens: 1, n_ctx: 256 };
    assert_eq!(error.to_string(), no_slot.to_string());
    context.kv_clear().unwrap();
    context.decode(&one(5, 0, 0)).unwrap();
}

#[test]
fn logits_that_were_not_requested_are_refused() {
    let mut context = cpu_context(ContextParams::default());
    let mut sampler = Sampler::chain(context.model()).unwrap().greedy().unwrap();
    assert_eq!(refused(sampler.sample(&mut context, -1)), "index");
    context.decode(&batch_of(&[1, 5], 0)).unwrap();
    for index in [0, 2, -2, i32::MIN, i32::MAX] {
        let sampled = sampler.sample(&mut context, index);
        assert_eq!(refused(sampled), "index", "{index}");
        assert_eq!(refused(context.logits(index)), "index", "{index}");
    }
    let last = [1, -1].map(|index| sampler.sample(&mut context, index).unwrap());
    assert_eq!(last[0], last[1]);
}

#[test]
fn sampling_parameters_out_of_range_are_refused() {
    let model = demo_model();
    let chain = || Sampler::chain(&model).unwrap();
    let penalties = |n, repeat, freq| chain().penalties(n, repeat, freq, 0.0);
    let bias = |token, bias| chain().logit_bias(&[(token, bias)]);
    let dry = |multiplier, base, allowed_length, last_n, breaker: &str| {
        chain().dry(multiplier, base, allowed_length, last_n, &[breaker])
    };
    let mut cases = vec![
        (chain().top_k(u32::MAX), "top_k"),
        (chain().top_n_sigma(f32::NAN), "top_n_sigma"),
        (chain().temperature(f32::NAN), "temp"),
        (chain().temperature(-1.0), "temp"),
        // These values are beyond the limits of llama.cpp's sorting.
        (chain().temperature(1e-30), "temp"),
        (penalties(64, 1e-30, 0.0), "penalty_repeat"),
        (penalties(64, 0.0, 0.0), "penalty_repeat"),
        (penalties(64, 1.1, f32::NAN), "penalty_freq"),
        // llama.cpp would allocate 8 GiB for these penalties.
        (penalties(i32::MAX as u32, 1.1, 0.0), "penalty_last_n"),
        (bias(1 << 20, 1.0), "token"),
        (bias(1, 1e30), "logit_bias"),
        (bias(1, f32::NAN), "logit_bias"),
        (chain().xtc(0.5, 0.1, u32::MAX), "seed"),
        (dry(-0.5, 1.75, 2, 64, "\n"), "dry_multiplier"),
        // llama.cpp would read this base as "off".
        (dry(0.8, 0.9, 2, 64, "\n"), "dry_base"),
        (dry(0.8, 1.75, u32::MAX, 64, "\n"), "dry_allowed_length"),
        (dry(0.8, 1.75, 2, u32::MAX, "\n"), "dry_penalty_last_n"),
    ];
    for p in [-0.1, 1.1, f32::NAN] {
        cases.extend([
            (chain().top_p(p), "top_p"),
            (chain().min_p(p), "min_p"),
            (chain().typical(p), "typical_p"),
            (chain().xtc(p, 0.1, 1), "xtc_probability"),
            (chain().xtc(0.5, p, 1), "xtc_threshold"),
        ]);
    }
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        cases.push((chain().dynamic_temperature(1.0, bad, 1.0), "dynatemp_range"));
        cases.push((chain().dynamic_temperature(1.0, 0.5, bad), "dynatemp_exponent"));
    }
    // llama.cpp would ignore the first of these breakers, and cut off the others.
    for breaker in ["", &"-".repeat(41), "a\0b"] {
        cases.push((dry(0.8, 1.75, 2, 64, breaker), "dry_sequence_breaker"));
    }
    // llama.cpp would ignore the last breaker. A breaker that occurs twice counts only once.
    let breakers: Vec<String> = (0..=64).map(|number| format!("<{number}>")).collect();
    cases.push((chain().dry(0.8, 1.75, 2, 64, &breakers), "dry_sequence_breaker"));
    let allowed = [&breakers[..64], &breakers[..64]].concat();
    assert!(chain().dry(0.8, 1.75, 2, 64, &allowed).is_ok());
    let completed = [
        // llama.cpp would draw a random seed.
        (chain().dist(u32::MAX), "seed"),
        (chain().mirostat(5.0, 0.1, 9, u32::MAX), "seed"),
        (chain().mirostat_v2(5.0, 0.1, u32::MAX), "seed"),
        (chain().adaptive_p(0.5, 0.9, u32::MAX), "seed"),
        (chain().mirostat(5.0, -1.0, 9, 1), "mirostat_eta"),
        (chain().mirostat(5.0, 0.1, 0, 1), "mirostat_m"),
        (chain().mirostat_v2(f32::NAN, 0.1, 1), "mirostat_tau"),
        (chain().adaptive_p(1.5, 0.9, 1), "adaptive_target"),
        (chain().adaptive_p(0.5, f32::INFINITY, 1), "adaptive_decay"),
    ];
    let cases = cases.into_iter().map(|(result, name)| (result.map(drop), name));
    for (result, name) in cases.chain(completed.map(|(result, name)| (result.map(drop), name))) {
        assert_eq!(refused(result), name);
    }
}

#[test]
fn a_grammar_that_does_not_parse_is_refused() {
    let chain = || Sampler::chain(&demo_model()).unwrap();
    for grammar in ["root ::= undefined", "no rules"] {
        let result = chain().grammar(grammar, "root");
        assert_matches!(result, Err(Error::Call { .. }));
    }
    // llama.cpp reads an empty grammar as "no constraint".
    for grammar in ["a\0b", "", " \n"] {
        assert_eq!(refused(chain().grammar(grammar, "root")), "grammar");
    }
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let vocab = demo_model().vocab();
    for token in [-1, i32::MIN, vocab.n_tokens() as i32, i32::MAX] {
        assert_eq!(refused(vocab.piece(token, true)), "token");
        assert!(!vocab.is_eog(token) && !vocab.is_control(token));
    }
}

#[test]
fn impossible_sequences_and_ranges_are_refused() {
    let mut context = cpu_context(ContextParams { n_seq_max: 2, ..ContextParams::default() });
    for seq in [-1, 2, i32::MAX] {
        assert_eq!(refused(context.kv_seq_remove(seq, 0..1)), "seq_id");
        assert_eq!(refused(context.kv_seq_copy(0, seq, 0..1)), "seq_id");
        assert_eq!(refused(context.kv_seq_shift(seq, 0..1, 1)), "seq_id");
        assert_eq!(refused(context.kv_seq_end(seq)), "seq_id");
        assert_eq!(refused(context.save_state(seq)), "seq_id");
    }
    assert_eq!(refused(context.kv_seq_remove(0, -1..1)), "range");
    let (begin, end) = (3, 1);
    assert_eq!(refused(context.kv_seq_remove(0, begin..end)), "range");
    context.decode(&batch_of(&[5; 8], 0)).unwrap();
    assert_eq!(refused(context.kv_seq_copy(0, 1, 0..4)), "range");
    assert_eq!(refused(context.kv_seq_shift(0, 0..4, -1)), "delta");
    assert_eq!(refused(context.kv_seq_shift(0, 0..8, i32::MAX - 2)), "delta");
}

#[test]
fn states_of_other_caches_are_refused() {
    let mut context = cpu_context(ContextParams::default());
    assert_matches!(context.save_state(0), Err(Error::State { .. }));
    context.decode(&batch_of(&[5; 8], 0)).unwrap();
    let state = context.save_state(0).unwrap();
    let mut small = cpu_context(ContextParams { n_ctx: 256, type_k: KvType::Q8_0, ..ContextParams::default() });
    let other_type = small.restore_state(0, &state);
    assert_matches!(other_type, Err(Error::State { .. }));
    assert_eq!(small.kv_seq_end(0).unwrap(), None);
    small.decode(&batch_of(&[5; 8], 0)).unwrap();
}

#[test]
fn prediction_without_prediction_blocks_is_refused() {
    for mtp in [Mtp::Trunk, Mtp::Heads] {
        assert_eq!(refused(with(|params| params.mtp = mtp)), "mtp");
        let model = load(|p| p.load_mtp = true).unwrap();
        assert_eq!(model.n_layer_nextn(), 0);
        let params = ContextParams { mtp, ..ContextParams::default() };
        assert_eq!(refused(Context::new(&model, params)), "mtp");
    }
}

#[test]
fn more_states_than_tokens_of_a_graph_are_refused() {
    for (n_ubatch, n_rs_seq) in [(4, 3), (64, 63), (64, u32::MAX)] {
        let more = with(|p| (p.n_ubatch, p.n_rs_seq) = (n_ubatch, n_rs_seq));
        assert_eq!(refused(more), "n_rs_seq");
    }
    // If there are no recurrent states, the parameter has no effect.
    let context = with(|params| params.n_rs_seq = 3).unwrap();
    assert_eq!(context.n_rs_seq(), 0);
}

#[test]
fn hidden_states_of_a_context_without_them_are_refused() {
    let mut context = cpu_context(ContextParams::default());
    let batch = one(1, 0, 0);
    assert_eq!(refused(context.decode_heads(&batch, &[0.0; 256])), "mtp");
    context.decode(&batch).unwrap();
    assert_eq!(refused(context.hidden(0)), "index");
}
