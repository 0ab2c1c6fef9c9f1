//! The embeddings of a context are equal to those that llama.cpp itself computes. A request that would end the process,
//! or pool only a part of a text, is an error.

use crate::support::{cpu_context, demo_model, refused, tokens};
use llama_sys::{Batch, Context, ContextParams, Pooling, raw};

const TEXTS: [&str; 3] =
    ["In the beginning God created the heaven and the earth", "And the evening and the morning", "unto him"];

fn embedding(pooling: Pooling) -> ContextParams {
    ContextParams {
        n_ctx: 256,
        n_batch: 128,
        n_ubatch: 128,
        n_seq_max: 4,
        kv_unified: true,
        embeddings: true,
        pooling,
        ..ContextParams::default()
    }
}

/// The texts. Each is a sequence, whose number is the text's index. All tokens become outputs, even if their flags are
/// not set.
fn batch(texts: &[&str]) -> Batch {
    let mut batch = Batch::default();
    for (sequence, text) in (0..).zip(texts) {
        for (position, token) in (0..).zip(tokens(text)) {
            batch.add(token, position, sequence, false);
        }
    }
    batch
}

/// The embeddings of one text, computed with llama.cpp's C interface and without our own code: one for the whole text,
/// or one for each token.
fn by_the_c_interface(pooling: raw::llama_pooling_type, text: &str) -> Vec<f32> {
    let mut tokens = tokens(text);
    let path = std::ffi::CString::new(demo_model().path().to_str().unwrap()).unwrap();
    // SAFETY: the calls of llama.cpp's own example `embedding`, in their order. Every handle is freed once, and no more
    // results are read than a batch of this size has.
    unsafe {
        let mut params = raw::llama_model_default_params();
        params.n_gpu_layers = 0;
        let model = raw::llama_model_load_from_file(path.as_ptr(), params);
        assert!(!model.is_null());
        let mut params = raw::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_ubatch) = (256, 128, 128);
        (params.n_threads, params.n_threads_batch) = (1, 1);
        (params.embeddings, params.pooling_type) = (true, pooling);
        let context = raw::llama_init_from_model(model, params);
        assert!(!context.is_null());
        let batch = raw::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32);
        assert_eq!(raw::llama_decode(context, batch), 0);
        let width = raw::llama_model_n_embd_out(model) as usize;
        let (values, rows) = match pooling {
            raw::LLAMA_POOLING_TYPE_NONE => (raw::llama_get_embeddings(context), tokens.len()),
            _ => (raw::llama_get_embeddings_seq(context, 0), 1),
        };
        let values = std::slice::from_raw_parts(values, rows * width).to_vec();
        raw::llama_free(context);
        raw::llama_model_free(model);
        values
    }
}

#[test]
fn a_text_has_the_embedding_that_the_c_interface_gives() {
    for text in TEXTS {
        let computed = |pooling| {
            let mut context = cpu_context(ContextParams { n_seq_max: 1, ..embedding(pooling) });
            context.decode(&batch(&[text])).unwrap();
            context
        };
        for (pooling, raw) in [
            (Pooling::Mean, raw::LLAMA_POOLING_TYPE_MEAN),
            (Pooling::Cls, raw::LLAMA_POOLING_TYPE_CLS),
            (Pooling::Last, raw::LLAMA_POOLING_TYPE_LAST),
        ] {
            let ours = computed(pooling).embeddings_seq(0).unwrap().to_vec();
            assert_eq!(ours, by_the_c_interface(raw, text), "{pooling:?}");
        }
        let mut context = computed(Pooling::None);
        let theirs = by_the_c_interface(raw::LLAMA_POOLING_TYPE_NONE, text);
        let rows: Vec<_> = theirs.chunks_exact(context.embedding_width()).collect();
        assert_eq!(rows.len(), tokens(text).len());
        for (index, row) in (0..).zip(&rows) {
            assert_eq!(context.embeddings_ith(index).unwrap(), *row);
        }
        assert_eq!(Some(&context.embeddings_ith(-1).unwrap()), rows.last());
    }
}

#[test]
fn vectors_that_were_not_computed_are_refused() {
    let mut context = cpu_context(embedding(Pooling::Mean));
    assert_eq!(refused(context.embeddings_seq(0)), "seq_id");
    context.decode(&batch(&TEXTS)).unwrap();
    assert_eq!(refused(context.embeddings_ith(0)), "index");
    assert_eq!(refused(context.logits(-1)), "index");
    for sequence in [3, 4, -1] {
        assert_eq!(refused(context.embeddings_seq(sequence)), "seq_id");
    }

    let mut context = cpu_context(embedding(Pooling::None));
    assert_eq!(refused(context.embeddings_ith(0)), "index");
    context.decode(&batch(&TEXTS[..1])).unwrap();
    let count = tokens(TEXTS[0]).len() as i32;
    assert!(context.embeddings_ith(count - 1).is_ok());
    assert_eq!(refused(context.embeddings_ith(count)), "index");
    assert_eq!(refused(context.embeddings_seq(0)), "seq_id");

    let mut context = cpu_context(ContextParams::default());
    context.decode(&batch(&TEXTS[..1])).unwrap();
    assert_eq!(refused(context.embeddings_ith(-1)), "index");
}

#[test]
fn a_batch_that_llama_cpp_would_pool_in_part_is_refused() {
    // For this text, more than one graph is needed.
    let params = ContextParams { n_ubatch: 8, ..embedding(Pooling::Mean) };
    let mut context = cpu_context(params.clone());
    assert_eq!(refused(context.decode(&batch(&TEXTS[..1]))), "n_tokens");
    let mut unpooled = cpu_context(ContextParams { pooling: Pooling::None, ..params });
    unpooled.decode(&batch(&TEXTS[..1])).unwrap();

    // If sequences have separate caches, one graph computes each of them only up to the length of the shortest.
    let mut context = cpu_context(ContextParams { n_ctx: 1024, kv_unified: false, ..embedding(Pooling::Mean) });
    assert_eq!(refused(context.decode(&batch(&TEXTS))), "kv_unified");
    context.decode(&batch(&TEXTS[..1])).unwrap();
}

#[test]
fn sequences_that_do_not_divide_a_graph_are_not_averaged_or_scored_without_a_head() {
    assert_eq!(refused(Context::new(&demo_model(), embedding(Pooling::Rank))), "pooling_type");
    let params = |pooling| ContextParams { n_seq_max: 5, ..embedding(pooling) };
    assert_eq!(refused(Context::new(&demo_model(), params(Pooling::Mean))), "n_seq_max");
    let mut context = cpu_context(params(Pooling::Last));
    context.reserve(31).unwrap();
    context.reserve(3).unwrap();
    context.decode(&batch(&TEXTS)).unwrap();
}
