//! A model in another quantisation, against published files.

use autoplace_planner::gguf::TensorType as T;
use autoplace_planner::profile::{ModelProfile, Quantisation as Q};

use crate::shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape};

fn bytes(profile: &ModelProfile) -> u64 {
    profile.weights.loaded().map(|weight| weight.bytes).sum()
}

fn ty(profile: &ModelProfile, name: &str) -> T {
    profile.weights.loaded().find(|weight| &*weight.name == name).unwrap().ty
}

/// Bytes of published files (those of `bartowski` on Hugging Face, made with an importance matrix), in units of 10 MB
/// (1000-based).
const PUBLISHED: [(&Shape, &str); 3] = [
    (
        &LLAMA_8B,
        "Q8_0 854 Q6_K 660 Q5_K_M 573 Q5_K_S 560 Q4_K_M 492 Q4_K_S 469 IQ4_XS 445 Q3_K_L 432 Q3_K_M 402 IQ3_M 378 \
         Q3_K_S 366 IQ3_XS 352 Q2_K 318 IQ2_M 295",
    ),
    (
        &LLAMA_70B,
        "Q8_0 7498 Q6_K 5789 Q5_K_M 4995 Q5_K_S 4866 Q4_K_M 4252 Q4_K_S 4035 IQ4_XS 3790 Q3_K_L 3714 Q3_K_M 3427 \
         IQ3_M 3194 Q3_K_S 3091",
    ),
    (&QWEN3_30B_A3B, "Q8_0 3248 Q6_K 2510 Q5_K_M 2174 Q5_K_S 2110"),
];

#[test]
fn quantised_a_model_has_the_bytes_of_the_published_files() {
    for (shape, files) in PUBLISHED {
        let profile = shape.profile();
        let words: Vec<&str> = files.split_whitespace().collect();
        for pair in words.chunks(2) {
            let quantisation = Q::ALL.iter().find(|it| it.to_string() == pair[0]);
            let published = pair[1].parse::<u64>().unwrap() * 10_000_000;
            // The tensors alone: a file's vocabulary is some megabytes.
            let ours = bytes(&profile.quantised(*quantisation.expect(pair[0])));
            let off = ours.abs_diff(published);
            assert!(off * 100 <= published, "{} {pair:?}: {ours}", shape.name);
        }
    }
}

#[test]
fn quantised_as_it_is_it_stays_as_it_is() {
    let profile = LLAMA_8B.profile();
    let again = profile.quantised(Q::Q4_K_M);
    assert_eq!(again.weights, profile.weights);
    assert_eq!(again.file_bytes, profile.file_bytes);
}

#[test]
fn norms_and_routers_stay_and_ties_go_by_the_output() {
    let experts = QWEN3_30B_A3B.profile().quantised(Q::Q2_K);
    assert_eq!(ty(&experts, "blk.0.ffn_gate_inp.weight"), T::F32);
    assert_eq!(ty(&experts, "blk.0.attn_q_norm.weight"), T::F32);
    assert_eq!(ty(&experts, "blk.0.ffn_gate_exps.weight"), T::Q2_K);
    assert_eq!(experts.file_type, Some("Q2_K"));
    let tied = LLAMA_1B.profile().quantised(Q::Q2_K);
    assert_eq!(ty(&tied, "token_embd.weight"), T::Q6_K);
    let untied = LLAMA_8B.profile().quantised(Q::Q2_K);
    assert_eq!(ty(&untied, "token_embd.weight"), T::Q2_K);
    assert_eq!(ty(&untied, "output.weight"), T::Q6_K);
}
