//! The one architecture of which llama.cpp makes no tensors by itself.

use super::Blueprint;
use super::dims::dims;
use super::header::keys;
use super::keys::Dims;

/// A qwen35 with a head that decides.
pub(super) fn head_of_decisions(model: &mut Blueprint, large: Dims) {
    let dims = if matches!(model.name, "dense") {
        dims("clef", false)
    } else {
        large
    };
    model.made_of = Some(keys("qwen35", dims, false).build());
    model
        .without
        .extend(["cls.output.weight", "cls.output.bias"].map(str::to_owned));
    let (n, head, ff) = (u64::from(dims.n_embd), 64, 96);
    let mut also = |name: &str, shape: &[u64]| model.also.push((name.to_owned(), shape.to_vec()));
    let mut norm = |name: &str, width| {
        also(&format!("{name}.weight"), &[width]);
        also(&format!("{name}.bias"), &[width]);
    };
    norm("decision.hidden_norm", n);
    for name in ["option_summary_norm", "field_norm", "option_norm"] {
        norm(&format!("decision.{name}"), head);
    }
    // One block that routes, one that joins.
    norm("dec.blk.0.cross_attn_norm_kv", head);
    norm("dec.blk.1.attn_norm", head);
    for il in 0..2 {
        norm(&format!("dec.blk.{il}.cross_attn_norm"), head);
        norm(&format!("dec.blk.{il}.ffn_norm"), head);
    }
    let mut linear = |name: &str, from, to| {
        also(&format!("{name}.weight"), &[from, to]);
        also(&format!("{name}.bias"), &[to]);
    };
    for name in ["q", "k", "v", "o"] {
        linear(&format!("dec.blk.1.attn_{name}"), head, head);
        for il in 0..2 {
            linear(&format!("dec.blk.{il}.cross_attn_{name}"), head, head);
        }
    }
    for il in 0..2 {
        linear(&format!("dec.blk.{il}.ffn_up"), head, ff);
        linear(&format!("dec.blk.{il}.ffn_down"), ff, head);
    }
    linear("decision.scorer", 4 * head, head);
    linear("decision.scorer_out", head, 1);
    for name in [
        "memory",
        "question",
        "option_question",
        "global",
        "option_context",
        "option_lexical",
    ] {
        also(&format!("decision.proj_{name}.weight"), &[n, head]);
    }
    also("decision.scales", &[3]);
    also("token_types.weight", &[head, 3]);
}
