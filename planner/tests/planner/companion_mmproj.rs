//! Memory of an mmproj that is loaded with the main model: exact bytes of weights, and a compute buffer that is never
//! smaller than clip.cpp's reservation for the largest image.

use autoplace_planner::gguf::{Builder, Tensor, TensorType};
use autoplace_planner::machine::{Gpu, gib, mib};
use autoplace_planner::memory::companion::{CompanionRole, Error};
use autoplace_planner::memory::{Companion, CompanionBytes, ContextParams, FlashAttention};
use proptest::prelude::{prop_assert, proptest};

use test_support::shapes::{Shape, TINY};
use test_support::synthetic::{mmproj, with_axes};
use test_support::table::rows;

/// Bytes that clip.cpp (of the llama.cpp that `vendor/` pins) reserved on a CUDA device for the largest image. The load
/// allocated nothing (`clip_context_params::no_alloc`), on a card that `llama_sys::sim` simulates.
/// `benches/clip-buffers` repeats the measurement. Columns: file, image, bytes of weights, bytes of the device's
/// compute buffer with fused attention, the same without fused attention, bytes of the host's buffer.
const RESERVED: &str = "\
LLaVA 1.5 | 336 x 336 | 625594368 | 22593152 | 34479872 | 1359392
Gemma 3 before 2560 | 896 x 896 | 849873024 | 127139840 | 1186988032 | 9633792
Gemma 3 before 5376 | 896 x 896 | 856361088 | 127139840 | 1186988032 | 9633792
Qwen2-VL 7B | 1792 x 1792 | 1352605696 | 542113792 | 17638096896 | 38797312
Qwen2.5-VL 7B | 1792 x 1792 | 1354132480 | 1984987136 | 18711871488 | 1112571904
Qwen3-VL 8B | 2048 x 2048 | 1159010944 | 755236864 | 17985437696 | 50593792
Pixtral 12B | 512 x 512 | 870055936 | 68820992 | 91889664 | 3153920
Mistral Small 3.1 | 896 x 896 | 878039040 | 270368768 | 1167949824 | 9666560
InternVL3 8B | four of 448 x 448 | 665976832 | 117555200 | 336134400 | 9633792
Ultravox 0.5 | 3000 frames of 128 bins | 1379483648 | 53760000 | 210720000 | 1536000";

fn companion(file: Builder) -> Companion {
    Companion::mmproj(&file.header().unwrap()).unwrap()
}

fn on(backend: &str, companion: &Companion) -> CompanionBytes {
    let card = Gpu::new("card").total(gib(24)).backend(backend);
    companion.bytes(Some(&card), &ContextParams::default()).unwrap()
}

fn on_cuda(companion: &Companion, flash: FlashAttention) -> CompanionBytes {
    let mut params = ContextParams::default();
    params.flash_attn = flash;
    companion.bytes(Some(&Gpu::new("card").total(gib(24))), &params).unwrap()
}

#[test]
fn weights_equal_clip_cpps_and_compute_buffers_slightly_exceed_them() {
    for [name, _, bytes @ ..] in rows::<6>(RESERVED) {
        let [weights, fused, plain, host] = bytes.map(|text| text.parse::<u64>().unwrap());
        let companion = companion(match name.strip_prefix("Gemma 3 before ") {
            Some(width) => mmproj::gemma3(width.parse().unwrap()),
            None => mmproj::named(name),
        });
        for (flash, theirs) in [(FlashAttention::Auto, fused), (FlashAttention::Off, plain)] {
            let ours = on_cuda(&companion, flash);
            let compute = ours.gpu.compute;
            assert_eq!((ours.gpu.weights, ours.gpu.kv, ours.host.weights), (weights, 0, 0), "{name}");
            assert!((theirs..=theirs / 2 * 5 + mib(64)).contains(&compute), "{name}: {compute} of {theirs}");
            assert!(ours.host.compute >= host, "{name}");
            assert_eq!(ours.gpu_uncertainty, compute / 4, "{name}");
        }
    }
}

#[test]
fn without_a_gpu_the_mmproj_is_on_the_host_and_attention_is_fused() {
    let gemma = companion(mmproj::gemma3(2560));
    let bytes = gemma.bytes(None, &ContextParams::default()).unwrap();
    // The CPU aligns tensors to 32 bytes. The number comes from clip.cpp, like the numbers in the table.
    assert_eq!(bytes.host.weights, 849_871_296);
    assert!(bytes.host.compute >= 127_139_840 && bytes.host.compute < 241_000_000);
    assert_eq!((bytes.gpu.total(), bytes.gpu_uncertainty), (0, 0));
}

#[test]
fn a_backend_that_does_not_fuse_attention_needs_memory_for_all_scores() {
    let gemma = companion(mmproj::gemma3(2560));
    let compute = |backend| on(backend, &gemma).gpu.compute;
    // All known backends fuse heads of 72 elements.
    for backend in ["CUDA", "Vulkan", "MTL"] {
        assert!(compute(backend) < mib(230), "{backend}");
    }
    // There are 4096 x 4096 scores for each of 16 heads.
    assert!(compute("SomethingNew") > gib(1));
}

#[test]
fn every_tensor_of_a_quantised_file_is_padded_by_the_rules_of_its_backend() {
    let plain = || mmproj::named("LLaVA 1.5");
    let odd = || plain().tensor("mm.odd.weight", TensorType::Q8_0, &[96, 10]);
    let weights = |file, backend| on(backend, &companion(file)).gpu.weights;
    let extra = |backend| weights(odd(), backend) - weights(plain(), backend);
    // A tensor has 10 rows of 3 blocks of 34 bytes. CUDA pads the last row to 512 elements, which takes 13 more blocks.
    assert_eq!(extra("MTL"), 1024);
    assert_eq!(extra("CUDA"), (1020_u64 + 13 * 34).div_ceil(128) * 128);
}

#[test]
fn image_tokens_may_be_limited_if_a_projector_takes_any_number() {
    let compute = |file: &str, projector: &str, pixels: u32, limit: u32| {
        let mut file = mmproj::named(file).str("clip.projector_type", projector);
        if pixels > 0 {
            file = file.u32("clip.vision.image_max_pixels", pixels);
        }
        on("CUDA", &companion(file).max_image_tokens(limit)).gpu.compute
    };
    let qwen = |limit| compute("Qwen2.5-VL 7B", "qwen2.5vl_merger", 0, limit);
    assert!(qwen(1024) < qwen(0) / 3);
    // Two by two patches of 14 pixels make a token. clip.cpp applies the header's limit last.
    let stated = |projector, limit| compute("Qwen2-VL 7B", projector, 3000 * 28 * 28, limit);
    let unstated = |projector, limit| compute("Qwen2-VL 7B", projector, 0, limit);
    for projector in ["hunyuanvl", "paddleocr"] {
        assert_eq!(stated(projector, 100), unstated("qwen2vl_merger", 3000), "{projector}");
        assert_eq!(stated(projector, 100), stated(projector, 0), "{projector}");
    }
    assert_eq!(unstated("hunyuanvl", 0), unstated("qwen2vl_merger", 16384));
    let named = |name: &str, limit| on("CUDA", &companion(mmproj::named(name)).max_image_tokens(limit)).gpu.compute;
    assert!(named("Small Youtu-VL", 0) == named("Small Youtu-VL", 4096));
    assert!(named("Small Youtu-VL", 4096) < named("Small Youtu-VL", 62_500) / 10);
    // Gemma's images have one size.
    let gemma = |limit| compute("Gemma 3", "gemma3", 0, limit);
    assert_eq!(gemma(8), gemma(0));
}

proptest! {
    #[test]
    fn a_larger_image_never_needs_less_memory_and_never_less_than_the_weights(
        side in 4u32..64,
        more in 1u32..16,
        fused: bool,
    ) {
        let flash = if fused { FlashAttention::Auto } else { FlashAttention::Off };
        let file = |side: u32| mmproj::gemma3_at(side * 14, 2560);
        let weights: u64 = file(side).header().unwrap().tensors().map(Tensor::bytes).sum();
        let [small, large] = [side, side + more].map(|side| on_cuda(&companion(file(side)), flash));
        prop_assert!(small.gpu.weights >= weights);
        prop_assert!(small.gpu.compute <= large.gpu.compute);
        prop_assert!(small.host.total() <= large.host.total());
    }

    #[test]
    fn more_image_tokens_never_need_less_memory(tokens in 1u32..5000, more in 1u32..1000) {
        for file in ["Qwen2.5-VL 7B", "Qwen3-VL 8B", "Pixtral 12B"] {
            for flash in [FlashAttention::Auto, FlashAttention::Off] {
                let limited = |n| on_cuda(&companion(mmproj::named(file)).max_image_tokens(n), flash);
                let (few, many) = (limited(tokens), limited(tokens + more));
                prop_assert!(few.gpu.compute <= many.gpu.compute);
                prop_assert!(few.host.compute <= many.host.compute);
            }
        }
    }
}

#[test]
fn files_that_are_not_known_projectors_are_refused_with_one_line() {
    let mmproj = |builder: Builder| Companion::mmproj(&builder.header().unwrap()).unwrap_err();
    let text = mmproj(Builder::new("llama"));
    assert!(matches!(text, Error::WrongKind { .. }));
    assert_eq!(text.to_string(), "<builder>: the architecture is `llama`, but an mmproj is of `clip`");
    assert!(matches!(mmproj(Builder::new("clip")), Error::Missing { .. }));
    for (file, name) in [("Gemma 3", "gemma3nv"), ("Gemma 3", ""), ("Ultravox 0.5", "gemma4a")] {
        let unread = mmproj(mmproj::named(file).str("clip.projector_type", name));
        assert!(matches!(unread, Error::Unread { .. }), "{name}");
        assert!(unread.to_string().contains(&format!("projector `{name}` is not known")));
    }
    for key in ["patch_size", "image_size", "embedding_length", "attention.head_count"] {
        let bad = mmproj(mmproj::gemma3(2560).u32(&format!("clip.vision.{key}"), 0));
        assert!(matches!(bad, Error::Missing { .. }), "{key}: {bad}");
    }
}

#[test]
fn sizes_beyond_all_reason_saturate() {
    let huge = mmproj::named("Qwen2.5-VL 7B")
        .u32("clip.vision.embedding_length", u32::MAX)
        .u32("clip.vision.feed_forward_length", u32::MAX)
        .u32("clip.vision.spatial_merge_size", u32::MAX);
    let bytes = on_cuda(&companion(huge), FlashAttention::Off);
    assert_eq!((bytes.gpu.compute, bytes.gpu.total()), (u64::MAX, u64::MAX));
}

#[test]
fn an_mmproj_of_another_width_does_not_fit_a_model() {
    let main = |n_embd| Shape { arch: "gemma3", n_embd, ..TINY }.header();
    let gemma = companion(mmproj::gemma3(2560));
    gemma.compatible_with(&main(2560)).unwrap();
    let error = gemma.compatible_with(&main(3840)).unwrap_err();
    assert!(matches!(error, Error::Width { of_mmproj: 2560, of_main: 3840, .. }));
}

#[test]
fn an_mmproj_fits_a_model_of_as_many_deepstack_parts() {
    let parts = |n: u32| with_axes("qwen3vl").builder().u32("qwen3vl.n_deepstack_layers", n).header().unwrap();
    // The projector's rows have one further part.
    let qwen = companion(mmproj::named("Small Qwen3-VL"));
    qwen.compatible_with(&parts(1)).unwrap();
    for (n, width) in [(0, 256), (3, 1024)] {
        let error = qwen.compatible_with(&parts(n)).unwrap_err();
        assert!(matches!(error, Error::Width { of_mmproj: 512, of_main, .. } if of_main == width), "{error}");
    }
    // A row of LLaVA is as wide as the model, but not as wide as its input.
    let error = companion(mmproj::named("Small LLaVA")).compatible_with(&parts(1)).unwrap_err();
    assert!(matches!(error, Error::Width { of_mmproj: 256, of_main: 512, .. }), "{error}");
}

#[test]
fn the_pools_of_an_mmproj_suffice_for_the_widest_step_of_the_largest_image() {
    let gemma = companion(mmproj::gemma3(2560)).peak_sizes(&ContextParams::default()).unwrap();
    // The image has 4096 patches and a class token, each 4304 wide. The largest matrix belongs to the feed-forward
    // step.
    assert_eq!(gemma.activations, 4 * 4304 * 4097);
    assert_eq!(gemma.decoded_matrix, 2 * 1152 * 4304);
    assert_eq!(gemma.vocabulary, 0);
}

#[test]
fn a_companion_is_displayed_by_kind_and_its_bytes_are_plain_data() {
    let gemma = companion(mmproj::gemma3(2560).str("general.name", "Gemma 3 4B It"));
    assert_eq!((gemma.role(), gemma.to_string().as_str()), (CompanionRole::Mmproj, "Gemma 3 4B It (mmproj)"));
    assert!(gemma.draft_context(&ContextParams::default()).unwrap().is_none());
    let bytes = on("CUDA", &gemma);
    let text = serde_json::to_string(&bytes).unwrap();
    assert_eq!(serde_json::from_str::<CompanionBytes>(&text).unwrap(), bytes);
}
