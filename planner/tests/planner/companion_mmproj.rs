//! What an mmproj takes beside the main model: weights to the byte, and a compute buffer that is never less than what
//! clip.cpp reserves for the largest image.

use autoplace_planner::gguf::{Builder, Tensor, TensorType};
use autoplace_planner::machine::{Gpu, gib, mib};
use autoplace_planner::memory::companion::{Error, Role};
use autoplace_planner::memory::{Companion, CompanionBytes, ContextParams, FlashAttention};
use proptest::prelude::{prop_assert, proptest};

use crate::synthetic::mmproj::{self, Mmproj};

/// What clip.cpp (llama.cpp as `vendor/` pins it) reserved of a CUDA device for an image as large as it is handed any,
/// by a load that allocates nothing (`clip_context_params::no_alloc`), on a card simulated by `llama_sys::sim`: bytes
/// of weights, of the device's compute buffer with fused attention and without, and of the host's buffer.
/// `benches/clip-buffers` asks it anew.
struct Reserved {
    file: fn() -> Mmproj,
    weights: u64,
    fused: u64,
    plain: u64,
    host: u64,
}

const RESERVED: [Reserved; 10] = [
    // 336 x 336
    Reserved {
        file: mmproj::llava_15,
        weights: 625_594_368,
        fused: 22_593_152,
        plain: 34_479_872,
        host: 1_359_392,
    },
    // 896 x 896
    Reserved {
        file: || mmproj::gemma3(2560),
        weights: 849_873_024,
        fused: 127_139_840,
        plain: 1_186_988_032,
        host: 9_633_792,
    },
    Reserved {
        file: || mmproj::gemma3(5376),
        weights: 856_361_088,
        fused: 127_139_840,
        plain: 1_186_988_032,
        host: 9_633_792,
    },
    // 1792 x 1792
    Reserved {
        file: mmproj::qwen2_vl,
        weights: 1_352_605_696,
        fused: 542_113_792,
        plain: 17_638_096_896,
        host: 38_797_312,
    },
    Reserved {
        file: mmproj::qwen25_vl,
        weights: 1_354_132_480,
        fused: 1_984_987_136,
        plain: 18_711_871_488,
        host: 1_112_571_904,
    },
    // 2048 x 2048
    Reserved {
        file: mmproj::qwen3_vl,
        weights: 1_159_010_944,
        fused: 755_236_864,
        plain: 17_985_437_696,
        host: 50_593_792,
    },
    // 512 x 512
    Reserved {
        file: mmproj::pixtral,
        weights: 870_055_936,
        fused: 68_820_992,
        plain: 91_889_664,
        host: 3_153_920,
    },
    // 896 x 896
    Reserved {
        file: mmproj::mistral_31,
        weights: 878_039_040,
        fused: 270_368_768,
        plain: 1_167_949_824,
        host: 9_666_560,
    },
    // four of 448 x 448
    Reserved {
        file: mmproj::internvl3,
        weights: 665_976_832,
        fused: 117_555_200,
        plain: 336_134_400,
        host: 9_633_792,
    },
    // 3000 frames of 128 bins
    Reserved {
        file: mmproj::ultravox,
        weights: 1_379_483_648,
        fused: 53_760_000,
        plain: 210_720_000,
        host: 1_536_000,
    },
];

fn companion(file: Mmproj) -> Companion {
    Companion::mmproj(&file.builder().header().unwrap()).unwrap()
}

fn card(backend: &str) -> Gpu {
    Gpu::new("card").total(gib(24)).backend(backend)
}

fn with(flash: FlashAttention) -> ContextParams {
    let mut params = ContextParams::default();
    params.flash_attn = flash;
    params
}

fn on_cuda(companion: &Companion, flash: FlashAttention) -> CompanionBytes {
    companion.bytes(Some(&card("CUDA")), &with(flash)).unwrap()
}

#[test]
fn weights_are_clips_to_the_byte_and_compute_buffers_at_most_half_as_much_again() {
    for reserved in RESERVED {
        let companion = companion((reserved.file)());
        let name = companion.encoders()[0].projector();
        for (flash, theirs) in [
            (FlashAttention::Auto, reserved.fused),
            (FlashAttention::Off, reserved.plain),
        ] {
            let ours = on_cuda(&companion, flash);
            assert_eq!(ours.gpu.weights, reserved.weights, "{name}");
            assert_eq!(ours.gpu.kv, 0, "{name}");
            let compute = ours.gpu.compute;
            assert!(compute >= theirs, "{name}: {compute} of {theirs}");
            assert!(compute <= theirs / 2 * 3, "{name}: {compute} of {theirs}");
            assert!(ours.host.compute >= reserved.host, "{name}");
            assert_eq!(ours.host.weights, 0, "{name}");
            assert_eq!(ours.gpu_uncertainty, compute / 8, "{name}");
        }
    }
}

#[test]
fn without_a_gpu_all_of_it_is_on_the_host_and_attention_is_fused() {
    let gemma = companion(mmproj::gemma3(2560));
    let bytes = gemma.bytes(None, &ContextParams::default()).unwrap();
    // By the CPU's alignment of 32 bytes: read from clip.cpp as the others were.
    assert_eq!(bytes.host.weights, 849_871_296);
    assert!(bytes.host.compute >= 127_139_840 && bytes.host.compute < 190_000_000);
    assert_eq!((bytes.gpu.total(), bytes.gpu_uncertainty), (0, 0));
}

#[test]
fn a_backend_that_does_not_fuse_attention_holds_all_scores() {
    let gemma = companion(mmproj::gemma3(2560));
    let compute = |backend| {
        let params = ContextParams::default();
        gemma
            .bytes(Some(&card(backend)), &params)
            .unwrap()
            .gpu
            .compute
    };
    // Heads of 72 elements are fused by all that we know.
    for backend in ["CUDA", "Vulkan", "MTL"] {
        assert!(compute(backend) < mib(200), "{backend}");
    }
    // 4096 x 4096 scores for each of 16 heads
    assert!(compute("SomethingNew") > gib(1));
}

#[test]
fn every_tensor_of_a_quantised_file_is_padded_as_its_backend_does() {
    let file = || {
        mmproj::llava_15()
            .builder()
            .tensor("mm.odd.weight", TensorType::Q8_0, &[96, 10])
    };
    let bytes = |builder: Builder, backend| {
        let companion = Companion::mmproj(&builder.header().unwrap()).unwrap();
        let params = ContextParams::default();
        let bytes = companion.bytes(Some(&card(backend)), &params).unwrap();
        bytes.gpu.weights
    };
    let extra = |backend| bytes(file(), backend) - bytes(mmproj::llava_15().builder(), backend);
    // 10 rows of 3 blocks of 34 bytes; CUDA fills the last row up to 512 elements, which is 13 blocks more.
    assert_eq!(extra("MTL"), 1024);
    assert_eq!(extra("CUDA"), (1020_u64 + 13 * 34).div_ceil(128) * 128);
}

#[test]
fn image_tokens_may_be_limited_where_a_projector_takes_any_number() {
    let qwen = companion(mmproj::qwen25_vl());
    assert_eq!(qwen.encoders()[0].tokens(None), 4096);
    let all = on_cuda(&qwen, FlashAttention::Auto);
    let limited = on_cuda(&qwen.clone().max_image_tokens(1024), FlashAttention::Auto);
    assert!(limited.gpu.compute < all.gpu.compute / 4);
    assert_eq!(limited.gpu.weights, all.gpu.weights);
    assert_eq!(
        on_cuda(&qwen.max_image_tokens(0), FlashAttention::Auto),
        all
    );
    // Gemma's image is of one size.
    let gemma = companion(mmproj::gemma3(2560));
    assert_eq!(gemma.encoders()[0].tokens(None), 256);
    let limited = on_cuda(&gemma.clone().max_image_tokens(8), FlashAttention::Auto);
    assert_eq!(limited, on_cuda(&gemma, FlashAttention::Auto));
}

#[test]
fn a_limit_of_image_tokens_is_heard_as_llama_cpp_hears_it() {
    let tokens = |projector: &str, pixels: Option<u32>, limit| {
        let file = mmproj::qwen2_vl()
            .builder()
            .str("clip.projector_type", projector);
        let file = match pixels {
            Some(pixels) => file.u32("clip.vision.image_max_pixels", pixels),
            None => file,
        };
        let companion = Companion::mmproj(&file.header().unwrap()).unwrap();
        companion.encoders()[0].tokens(limit)
    };
    let (all, few) = (None, Some(100));
    // Two by two patches of 14 pixels are a token.
    let pixels = |tokens: u32| Some(tokens * 28 * 28);
    assert_eq!(tokens("hunyuanvl", all, all), 16384);
    assert_eq!(tokens("hunyuanvl", all, few), 100);
    // The header's limit is heard last.
    assert_eq!(tokens("hunyuanvl", pixels(3000), few), 3000);
    assert_eq!(tokens("paddleocr", pixels(3000), few), 3000);
    // Tiles of 512 pixels stay: 36 x 36 patches.
    assert_eq!(tokens("lfm2", all, few), 36 * 36);
}

proptest! {
    #[test]
    fn a_larger_image_never_takes_less_and_nothing_less_than_the_weights(
        side in 4u32..64,
        more in 1u32..16,
        fused: bool,
    ) {
        let flash = if fused { FlashAttention::Auto } else { FlashAttention::Off };
        let at = |side: u32| {
            let file = mmproj::gemma3_at(side * 14, 2560).builder().header().unwrap();
            let weights: u64 = file.tensors().map(Tensor::bytes).sum();
            (weights, on_cuda(&Companion::mmproj(&file).unwrap(), flash))
        };
        let ((weights, small), (_, large)) = (at(side), at(side + more));
        prop_assert!(small.gpu.weights >= weights);
        prop_assert!(small.gpu.compute < large.gpu.compute);
        prop_assert!(small.host.total() <= large.host.total());
    }

    #[test]
    fn more_image_tokens_never_take_less(tokens in 1u32..5000, more in 1u32..1000) {
        for file in [mmproj::qwen25_vl, mmproj::qwen3_vl, mmproj::pixtral] {
            for flash in [FlashAttention::Auto, FlashAttention::Off] {
                let limited = |n| on_cuda(&companion(file()).max_image_tokens(n), flash);
                let (few, many) = (limited(tokens), limited(tokens + more));
                prop_assert!(few.gpu.compute <= many.gpu.compute);
                prop_assert!(few.host.compute <= many.host.compute);
            }
        }
    }
}

#[test]
fn what_no_projector_is_or_none_that_we_know_is_refused_with_one_line() {
    let mmproj = |builder: Builder| Companion::mmproj(&builder.header().unwrap());
    let text = mmproj(Builder::new("llama")).unwrap_err();
    assert!(matches!(text, Error::WrongKind { .. }));
    assert_eq!(
        text.to_string(),
        "<builder>: the architecture is `llama`, but an mmproj is of `clip`"
    );
    let nothing = mmproj(Builder::new("clip")).unwrap_err();
    assert!(matches!(nothing, Error::Missing { .. }));
    let named = |name| {
        mmproj(
            mmproj::gemma3(2560)
                .builder()
                .str("clip.projector_type", name),
        )
    };
    for name in ["gemma3nv", "deepseekocr", "tomorrow", ""] {
        let unread = named(name).unwrap_err();
        assert!(matches!(unread, Error::Unread { .. }), "{name}");
        assert!(unread.to_string().contains(name));
    }
    let heard = mmproj::ultravox()
        .builder()
        .str("clip.projector_type", "gemma4a");
    assert_eq!(
        mmproj(heard).unwrap_err().to_string(),
        "<builder>: the memory of an audio projector `gemma4a` is not known"
    );
    for (key, value) in [
        ("clip.vision.patch_size", 0),
        ("clip.vision.image_size", 8193),
        ("clip.vision.embedding_length", 0),
        ("clip.vision.attention.head_count", 0),
    ] {
        let bad = mmproj(mmproj::gemma3(2560).builder().u32(key, value)).unwrap_err();
        assert!(matches!(bad, Error::Value { .. }), "{key}: {bad}");
    }
}

#[test]
fn a_projector_we_only_read_is_as_uncertain_as_it_is_large() {
    let janus = mmproj::gemma3(2560)
        .builder()
        .str("clip.projector_type", "janus_pro");
    let janus = Companion::mmproj(&janus.header().unwrap()).unwrap();
    assert!(!janus.encoders()[0].is_checked());
    let bytes = on_cuda(&janus, FlashAttention::Auto);
    assert_eq!(bytes.gpu_uncertainty, bytes.gpu.compute);
}

#[test]
fn sizes_beyond_all_reason_saturate() {
    let huge = mmproj::qwen25_vl()
        .builder()
        .u32("clip.vision.embedding_length", u32::MAX)
        .u32("clip.vision.feed_forward_length", u32::MAX)
        .u32("clip.vision.spatial_merge_size", u32::MAX);
    let huge = Companion::mmproj(&huge.header().unwrap()).unwrap();
    let bytes = on_cuda(&huge, FlashAttention::Off);
    assert_eq!(bytes.gpu.compute, u64::MAX);
    assert_eq!(bytes.gpu.total(), u64::MAX);
}

#[test]
fn an_mmproj_of_another_width_does_not_go_with_a_model() {
    let main = |n_embd| {
        Builder::new("gemma3")
            .u32("gemma3.block_count", 1)
            .u32("gemma3.embedding_length", n_embd)
            .u32("gemma3.feed_forward_length", 10240)
            .u32("gemma3.context_length", 8192)
            .u32("gemma3.attention.head_count", 8)
            .u32("gemma3.vocab_size", 1000)
            .tensor(
                "token_embd.weight",
                TensorType::F16,
                &[u64::from(n_embd), 1000],
            )
            .header()
            .unwrap()
    };
    let gemma = companion(mmproj::gemma3(2560));
    gemma.compatible_with(&main(2560)).unwrap();
    let error = gemma.compatible_with(&main(3840)).unwrap_err();
    assert!(matches!(
        error,
        Error::Width {
            of_mmproj: 2560,
            of_main: 3840,
            ..
        }
    ));
}

#[test]
fn its_pools_hold_the_widest_step_of_the_largest_image() {
    let params = ContextParams::default();
    let gemma = companion(mmproj::gemma3(2560)).workload(&params).unwrap();
    // 4096 patches, 4304 wide; the largest matrix is one of the feed-forward step's.
    assert_eq!(gemma.activations, 4 * 4304 * 4096);
    assert_eq!(gemma.decoded_matrix, 2 * 1152 * 4304);
    assert_eq!(gemma.vocabulary, 0);
    let qwen = companion(mmproj::qwen25_vl());
    let all = qwen.workload(&params).unwrap().activations;
    let limited = qwen.max_image_tokens(1024).workload(&params).unwrap();
    assert_eq!(limited.activations, all / 4);
}

#[test]
fn a_companion_says_what_it_is_and_its_bytes_are_plain_data() {
    let named = mmproj::gemma3(2560)
        .builder()
        .str("general.name", "Gemma 3 4B It");
    let gemma = Companion::mmproj(&named.header().unwrap()).unwrap();
    assert_eq!(gemma.role(), Role::Mmproj);
    assert_eq!(gemma.to_string(), "Gemma 3 4B It (mmproj)");
    assert!(
        gemma
            .draft_context(&ContextParams::default())
            .unwrap()
            .is_none()
    );
    let bytes = on_cuda(&gemma, FlashAttention::Auto);
    let text = serde_json::to_string(&bytes).unwrap();
    assert_eq!(
        serde_json::from_str::<CompanionBytes>(&text).unwrap(),
        bytes
    );
}
