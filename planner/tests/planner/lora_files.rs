//! Files of adapters and control vectors: the models that they belong to, and the errors of invalid files. None of
//! these tests calls llama.cpp.

use autoplace_planner::gguf::{Builder, Header, TensorType};
use autoplace_planner::machine::{Gpu, gib};
use autoplace_planner::memory::{ContextParams, Estimate};
use autoplace_planner::profile::{AdapterError, ControlVector, Lora, ModelProfile};
use test_support::lora::Adapter;
use test_support::shapes::{Shape, TINY};

const F32: TensorType = TensorType::F32;

/// A model with two blocks and a width of 64.
const MODEL: Shape = Shape { n_ff: 96, n_vocab: 128, rope_freqs: false, types: (F32, F32, F32), ..TINY };

/// An adapter of rank 4 for the first block's keys.
fn keys() -> Adapter {
    Adapter::new("llama").pair("blk.0.attn_k.weight", [64, 32, 1, 1], 4, F32)
}

#[track_caller]
fn refused(adapter: &Adapter) -> String {
    let changed =
        Lora::from_header(&adapter.header()).and_then(|lora| MODEL.profile::<ModelProfile>().with_lora(&lora));
    changed.expect_err("a wrong adapter").to_string()
}

#[test]
fn an_adapter_is_read_from_its_header() {
    let lora = Lora::from_header(&keys().header()).unwrap();
    assert_eq!(lora.architecture, "llama");
    let [pair] = &lora.pairs[..] else { panic!("{lora:?}") };
    assert_eq!(&*pair.a.name, "blk.0.attn_k.weight");
    assert_eq!((pair.a.shape, pair.b.shape), ([64, 4, 1, 1], [4, 32, 1, 1]));
    let profile = MODEL.profile::<ModelProfile>().with_lora(&lora).unwrap();
    assert_eq!(profile.adapters.lora, ["<builder>"]);
    assert_eq!(profile.adapters.bytes(), 4 * (64 * 4 + 4 * 32));
    // A norm is ignored, as in llama.cpp.
    let normed = keys().tensor("blk.0.attn_norm.weight", F32, &[64]);
    assert_eq!(Lora::from_header(&normed.header()).unwrap().pairs, lora.pairs);
}

#[test]
fn a_file_of_another_kind_is_refused_with_the_key_that_shows_it() {
    let error = Lora::from_header(&MODEL.header()).unwrap_err();
    assert!(error.to_string().contains("`general.type` is missing instead of `adapter`"), "{error}");
    let other = Builder::new("llama").str("general.type", "adapter").str("adapter.type", "control_vector");
    let error = Lora::from_header(&other.header().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "<builder> is not a LoRA adapter: `adapter.type` is `control_vector` instead of `lora`"
    );
    let activated = keys().with(|builder| builder.array_u32("adapter.alora.invocation_tokens", &[1, 2]));
    assert!(refused(&activated).contains("aLoRA"));
    assert!(refused(&Adapter::new("llama")).contains("no tensor"));
}

#[test]
fn every_tensor_is_checked_against_its_weight_and_its_other_half() {
    let pair = |arch: &str, weight: &str, high, ty| Adapter::new(arch).pair(weight, [64, high, 1, 1], 4, ty);
    let half = |suffix: &str, shape: &[u64]| {
        Adapter::new("llama").tensor(&format!("blk.1.attn_k.weight.{suffix}"), F32, shape)
    };
    let with_b = |a: &[u64]| half("lora_a", a).tensor("blk.1.attn_k.weight.lora_b", F32, &[4, 32]);
    for (adapter, words) in [
        (pair("qwen2", "blk.0.attn_k.weight", 32, F32), "adapter for `qwen2`"),
        (pair("llama", "blk.2.attn_k.weight", 32, F32), "`blk.2.attn_k.weight`, which"),
        (
            pair("llama", "blk.1.attn_k.weight", 64, F32),
            "<builder>: the tensor `blk.1.attn_k.weight.lora_b` is 4 x 64 x 1 x 1, but 4 x 32 x 1 x 1 is needed",
        ),
        (half("lora_a", &[64, 4]), "has no `blk.1.attn_k.weight.lora_b`"),
        (half("lora_b", &[4, 32]), "has no `blk.1.attn_k.weight.lora_a`"),
        (with_b(&[64, 8]), "is 64 x 8"),
        (with_b(&[64, 4, 2]), "is 64 x 4 x 2"),
        (keys().tensor("blk.0.attn_k.weight", F32, &[64, 32]), "is not an adapter tensor"),
        (pair("llama", "blk.0.attn_k.weight", 32, TensorType::I32), "is I32"),
    ] {
        let error = refused(&adapter);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn the_factors_of_an_embedding_swap_roles_and_a_tied_embedding_is_refused() {
    let embedding = |a: &[u64], b: &[u64]| {
        Adapter::new("llama").tensor("token_embd.weight.lora_a", F32, a).tensor("token_embd.weight.lora_b", F32, b)
    };
    let lora = Lora::from_header(&embedding(&[4, 128], &[4, 64]).header()).unwrap();
    MODEL.profile::<ModelProfile>().with_lora(&lora).unwrap();
    assert!(refused(&embedding(&[64, 4], &[4, 128])).contains("token_embd"));
    assert!(refused(&embedding(&[8, 128], &[4, 64])).contains("is 8 x 128"));
    let error = Shape { tied: true, ..MODEL }.profile::<ModelProfile>().with_lora(&lora).unwrap_err();
    assert!(error.to_string().contains("is also the output matrix"), "{error}");
}

#[test]
fn an_adapter_lies_with_the_weights_that_it_changes() {
    let gpu = Gpu::new("card").backend("CUDA").total(gib(24)).free(gib(22));
    let lora = Lora::from_header(&keys().header()).unwrap();
    let weights = |profile: &ModelProfile, layers| {
        let footprints = Estimate::new(profile, &[&gpu], &ContextParams::default()).unwrap().footprints(layers);
        (footprints.gpus[0].weights, footprints.host.weights)
    };
    let (plain, with) = (MODEL.profile::<ModelProfile>(), MODEL.profile::<ModelProfile>().with_lora(&lora).unwrap());
    // The first block is the last one to move to a GPU. The tensors have 1024 and 512 bytes, which are multiples of any
    // alignment.
    for layers in 0..=3 {
        let (before, after) = (weights(&plain, layers), weights(&with, layers));
        let more = if layers == 3 { (1536, 0) } else { (0, 1536) };
        assert_eq!((after.0 - before.0, after.1 - before.1), more, "{layers}");
    }
}

#[test]
fn a_control_vector_has_directions_only_for_existing_layers() {
    let file = |name: &str, ty, shape: &[u64]| {
        let builder = Builder::new("controlvector").tensor(name, ty, shape);
        ControlVector::from_header(&builder.header().unwrap(), &MODEL.profile())
    };
    file("direction.1", F32, &[64]).unwrap();
    for (name, ty, shape) in [
        ("direction.0", F32, &[64][..]),
        ("direction.2", F32, &[64]),
        ("direction.x", F32, &[64]),
        ("other.1", F32, &[64]),
        ("direction.1", TensorType::F16, &[64]),
        ("direction.1", F32, &[32]),
        ("direction.1", F32, &[64, 2]),
    ] {
        let error = file(name, ty, shape).unwrap_err();
        assert!(matches!(error, AdapterError::Tensor { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let empty = Builder::new("controlvector").header().unwrap();
    let error = ControlVector::from_header(&empty, &MODEL.profile()).unwrap_err();
    assert!(matches!(error, AdapterError::Unfit { .. }), "{error}");
}

#[test]
fn a_control_vector_lies_on_the_devices_of_its_layers_despite_overrides() {
    let gpu = Gpu::new("card").backend("CUDA").total(gib(24)).free(gib(22));
    let weights = |profile: &ModelProfile, layers| {
        let estimate = Estimate::new(profile, &[&gpu], &ContextParams::default()).unwrap();
        let footprints = estimate.footprints(layers);
        (footprints.gpus[0].weights, footprints.host.weights)
    };
    // Of the two blocks, only the second has a direction; the direction has 64 floats. The second block moves to a GPU
    // directly after the output layer.
    let (plain, with) = (MODEL.profile::<ModelProfile>(), MODEL.profile::<ModelProfile>().with_control_vector());
    for layers in 0..=3 {
        let (before, after) = (weights(&plain, layers), weights(&with, layers));
        let more = if layers >= 2 { (256, 0) } else { (0, 256) };
        assert_eq!((after.0 - before.0, after.1 - before.1), more, "{layers}");
    }
}

#[test]
fn the_numbers_of_control_vectors_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let directions = Builder::new("controlvector").tensor("direction.1", F32, &[64]);
    let path = test_support::lora::write_random(&directions, folder.path(), "vector", 1, 1.0);
    let values = test_support::lora::values(&path, "direction.1");
    let vector = ControlVector::from_header(&Header::open(&path).unwrap(), &MODEL.profile()).unwrap();
    let mut sum = Vec::new();
    vector.add_to(&mut sum, 2.0).unwrap();
    vector.add_to(&mut sum, -1.0).unwrap();
    assert_eq!(sum, values);
    std::fs::remove_file(&path).unwrap();
    let error = vector.add_to(&mut sum, 1.0).unwrap_err();
    assert!(matches!(error, AdapterError::Unreadable { .. }), "{error}");
}
