//! A model's predicted size in another quantisation, compared with published files.

use autoplace_planner::gguf::TensorType as T;
use autoplace_planner::profile::{ModelProfile, Quantisation as Q};

use test_support::shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape};

fn bytes(profile: &ModelProfile) -> u64 {
    profile.weights.loaded().map(|weight| weight.bytes).sum()
}

fn ty(profile: &ModelProfile, name: &str) -> T {
    profile.weights.loaded().find(|weight| &*weight.name == name).unwrap().ty
}

/// Sizes of published files (by `bartowski` on Hugging Face, made with an importance matrix), in units of 10 MB (1 MB
/// is 1,000,000 bytes).
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
fn a_quantised_model_has_the_bytes_of_the_published_files() {
    for (shape, files) in PUBLISHED {
        let profile = shape.profile::<ModelProfile>();
        let words: Vec<&str> = files.split_whitespace().collect();
        for pair in words.chunks(2) {
            let quantisation = Q::ALL.iter().find(|quantisation| quantisation.to_string() == pair[0]);
            let published = pair[1].parse::<u64>().unwrap() * 10_000_000;
            // Our sizes count only the tensors. The vocabulary adds some megabytes to a file.
            let ours = bytes(&profile.quantised(*quantisation.expect(pair[0])));
            let off = ours.abs_diff(published);
            assert!(off * 100 <= published, "{} {pair:?}: {ours}", shape.name);
        }
    }
}

/// SmolLM2-135M-Instruct. Its rows of 576 elements are not divisible by 256.
const SMOLLM2_135M: Shape = Shape {
    name: "SmolLM2 135M Instruct",
    n_layer: 30,
    n_embd: 576,
    n_ff: 1536,
    n_head: 9,
    n_head_kv: 3,
    head_dim: 64,
    n_vocab: 49_152,
    tied: true,
    rope_freqs: false,
    types: (T::Q4_1, T::Q4_1, T::Q8_0),
    ..LLAMA_8B
};

/// Bytes before the first tensor of the model's files: vocabulary and other metadata.
const SMOLLM2_HEADER: u64 = 1_785_664;

/// Sizes of the files that llama.cpp's quantiser made from the Q4_1 file on 2026-11-28 (the pinned source, without an
/// importance matrix). IQ3_XS and IQ2_M are missing because they require an importance matrix.
const SMOLLM2_FILES: [(Q, u64); 12] = [
    (Q::Q8_0, 144_811_072),
    (Q::Q6_K, 138_382_912),
    (Q::Q5_K_M, 112_103_488),
    (Q::Q5_K_S, 109_974_592),
    (Q::Q4_K_M, 105_454_144),
    (Q::Q4_K_S, 102_039_616),
    (Q::IQ4_XS, 91_312_192),
    (Q::Q3_K_L, 97_532_992),
    (Q::Q3_K_M, 93_510_208),
    (Q::IQ3_M, 90_213_184),
    (Q::Q3_K_S, 88_201_792),
    (Q::Q2_K, 88_201_792),
];

#[test]
fn rows_that_are_not_whole_blocks_get_the_fallback_types_of_llama_cpp() {
    let mut profile = SMOLLM2_135M.profile::<ModelProfile>();
    profile.file_type = Some("Q4_1");
    let header = profile.file_bytes - bytes(&profile);
    for (quantisation, measured) in SMOLLM2_FILES {
        let quantised = profile.quantised(quantisation);
        assert_eq!(bytes(&quantised) + SMOLLM2_HEADER, measured, "{quantisation}");
        assert_eq!(quantised.file_bytes, bytes(&quantised) + header, "{quantisation}");
    }
    let small = profile.quantised(Q::Q4_K_M);
    for (name, expected) in [
        ("token_embd.weight", T::Q8_0),
        ("blk.5.attn_q.weight", T::Q5_0),
        ("blk.0.attn_v.weight", T::Q8_0),
        ("blk.5.ffn_down.weight", T::Q6_K),
        ("blk.5.ffn_norm.weight", T::F32),
    ] {
        assert_eq!(ty(&small, name), expected, "{name}");
    }
    assert_eq!(ty(&profile.quantised(Q::Q5_K_S), "blk.9.ffn_up.weight"), T::Q5_1);
    assert_eq!(ty(&profile.quantised(Q::Q2_K), "blk.9.attn_k.weight"), T::Q4_0);
    assert_eq!(ty(&profile.quantised(Q::IQ4_XS), "blk.9.attn_k.weight"), T::IQ4_NL);
}

#[test]
fn a_model_of_floats_is_quantised_except_for_the_tensors_that_are_kept() {
    let floats = Shape { types: (T::F32, T::F32, T::F32), ..LLAMA_1B }.profile::<ModelProfile>();
    let mut floats = floats;
    floats.file_type = Some("F32");
    let small = floats.quantised(Q::Q8_0);
    assert_eq!(ty(&small, "blk.0.attn_q.weight"), T::Q8_0);
    assert_eq!(ty(&small, "blk.0.attn_norm.weight"), T::F32);
    assert_eq!(small.weights.matrix_types(), [(T::Q8_0, false)]);
}

#[test]
fn quantising_to_the_same_type_changes_nothing() {
    let profile = LLAMA_8B.profile::<ModelProfile>();
    let again = profile.quantised(Q::Q4_K_M);
    assert_eq!(again.weights, profile.weights);
    assert_eq!(again.file_bytes, profile.file_bytes);
}

#[test]
fn norms_and_routers_are_kept_and_tied_embeddings_get_the_output_type() {
    let experts = QWEN3_30B_A3B.profile::<ModelProfile>().quantised(Q::Q2_K);
    assert_eq!(ty(&experts, "blk.0.ffn_gate_inp.weight"), T::F32);
    assert_eq!(ty(&experts, "blk.0.attn_q_norm.weight"), T::F32);
    assert_eq!(ty(&experts, "blk.0.ffn_gate_exps.weight"), T::Q2_K);
    assert_eq!(experts.file_type, Some("Q2_K"));
    let tied = LLAMA_1B.profile::<ModelProfile>().quantised(Q::Q2_K);
    assert_eq!(ty(&tied, "token_embd.weight"), T::Q6_K);
    let untied = LLAMA_8B.profile::<ModelProfile>().quantised(Q::Q2_K);
    assert_eq!(ty(&untied, "token_embd.weight"), T::Q2_K);
    assert_eq!(ty(&untied, "output.weight"), T::Q6_K);
}
