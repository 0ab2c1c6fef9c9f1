//! Models whose last block predicts further tokens.

use super::Blueprint;
use super::header::keys;
use super::keys::Dims;
use super::lists::NEVER_PREDICTS;

/// A model whose last block predicts.
pub(super) fn predicting(arch: &str, dims: Dims, experts: bool) -> Blueprint {
    let il = dims.n_layer;
    let dims = Dims {
        n_layer: il + 1,
        n_nextn: 1,
        ..dims
    };
    let mut model = Blueprint {
        name: "nextn",
        keys: keys(arch, dims, experts).build(),
        predicts_from: il,
        ..Blueprint::plain(arch)
    };
    if !NEVER_PREDICTS.contains(&arch) {
        return model;
    }
    // llama.cpp makes its tensors only where it is a block as any other.
    let plain = Dims { n_nextn: 0, ..dims };
    model.made_of = Some(keys(arch, plain, experts).build());
    let n_embd = u64::from(dims.n_embd);
    for (name, shape) in [
        ("eh_proj", vec![2 * n_embd, n_embd]),
        ("enorm", vec![n_embd]),
        ("hnorm", vec![n_embd]),
        ("shared_head_norm", vec![n_embd]),
    ] {
        model
            .also
            .push((format!("blk.{il}.nextn.{name}.weight"), shape));
    }
    let (n_ff, n_vocab) = (u64::from(dims.n_ff), u64::from(dims.n_vocab));
    // It is made once for every block, skipped or not, and counted as often.
    model.without.push("rope_freqs.weight".to_owned());
    if arch == "bailingmoe2" {
        model
            .also
            .push((format!("blk.{il}.layer_output_norm.weight"), vec![n_embd]));
    }
    if arch == "exaone-moe" {
        for (name, shape) in [
            ("gate", [n_embd, n_ff]),
            ("up", [n_embd, n_ff]),
            ("down", [n_ff, n_embd]),
        ] {
            model
                .also
                .push((format!("blk.{il}.ffn_{name}.weight"), shape.to_vec()));
        }
    }
    if arch == "dots3note" {
        model.also.push((
            format!("blk.{il}.nextn.embed_tokens.weight"),
            vec![n_embd, n_vocab],
        ));
    }
    if matches!(arch, "dots3note" | "exaone-moe") {
        // There its step forward is dense.
        for name in [
            "gate_inp",
            "gate_exps",
            "up_exps",
            "down_exps",
            "gate_shexp",
            "up_shexp",
            "down_shexp",
        ] {
            model.without.push(format!("blk.{il}.ffn_{name}.weight"));
        }
        model.without.push(format!("blk.{il}.exp_probs_b.bias"));
    }
    model
}
