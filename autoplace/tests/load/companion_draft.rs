//! For a draft model, the planned bytes of weights and cache are exactly llama.cpp's. The compute buffers have at most
//! the planned bytes and their uncertainty. The draft model has the same context as in llama.cpp's programs.

use autoplace::gguf::Header;
use autoplace::llama_sys::sim::Rules;
use autoplace::machine::{Gpu, gib};
use autoplace::memory::companion::DraftOptions;
use autoplace::memory::{Companion, ContextParams, Footprint, KvType, PeakSizes, Split};
use autoplace::profile::ModelProfile;

use crate::rig::{Card, Kind, Loaded};

const MODELS: [&str; 4] = ["llama gqa q4_k", "llama tied f16", "qwen3 qk norms", "gemma3 27B"];

#[test]
fn a_draft_takes_llama_cpps_bytes_in_a_context_of_the_main_models_length() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new((Rules::Cuda, true));
    // The card has no free memory, because free memory must not matter here.
    let gpu = Gpu::new("card").total(gib(24)).free(0).backend("CUDA");
    let mut sketches = test_support::synthetic::all();
    sketches.retain(|sketch| MODELS.contains(&&*sketch.title()));
    assert_eq!(sketches.len(), MODELS.len());
    for sketch in sketches {
        let (path, title) = (sketch.write(folder.path()), sketch.title());
        let header = Header::open(&path).unwrap();
        let profile = ModelProfile::from_header(&header).unwrap();
        let n_vocab = u64::from(profile.hparams.n_vocab);
        let mut main = ContextParams::default();
        (main.n_ctx, main.mmap) = (5000, false);
        // The main model's cache types, and its block for multi-token prediction, have no effect on the draft model.
        (main.type_k, main.type_v, main.mtp) = (KvType::Q8_0, KvType::Q8_0, true);
        main.n_outputs_max = 0;
        let draft = Companion::draft(&header).unwrap();
        let context = draft.draft_context(&main).unwrap().unwrap();
        assert_eq!((context.n_ctx, context.n_outputs_max), (5120, 1));
        assert_eq!(context.type_k, KvType::F16);
        assert_eq!(draft.peak_sizes(&main).unwrap(), PeakSizes::new(&profile, &context.sizes().unwrap()));

        let bytes = draft.bytes(Some(&gpu), &main).unwrap();
        // llama.cpp's count for a load that allocates nothing.
        let probed = |cards: &[&Card], layers| {
            let loaded = Loaded::new(&path, cards, &Split::layers(layers), &context, Kind::Probe).unwrap();
            loaded.footprints(&context).unwrap()
        };
        let theirs = probed(&[&card], 999);
        let of = |footprint: &Footprint| (footprint.weights, footprint.kv);
        assert_eq!(of(&bytes.gpu), of(&theirs.gpus[0]), "{title}");
        assert_eq!(of(&bytes.host), of(&theirs.host), "{title}");
        let most = bytes.gpu.compute + bytes.gpu_uncertainty;
        assert!(theirs.gpus[0].compute <= most, "{title}");
        // llama.cpp's count does not include the row of logits that is returned.
        let most = bytes.host.compute - 4 * n_vocab + bytes.host_uncertainty;
        assert!(theirs.host.compute <= most, "{title}");

        // Some layers of the draft model are on the card, and its cache has another type than the model's.
        let mut options = DraftOptions::default();
        (options.type_k, options.type_v) = (Some(KvType::Q8_0), Some(KvType::Q4_0));
        options.n_gpu_layers = Some(2);
        let stated = draft.clone().draft_options(options);
        let context = stated.draft_context(&main).unwrap().unwrap();
        assert_eq!((context.type_k, context.type_v), (KvType::Q8_0, KvType::Q4_0));
        let bytes = stated.bytes(Some(&gpu), &main).unwrap();
        let loaded = Loaded::new(&path, &[&card], &Split::layers(2), &context, Kind::Probe).unwrap();
        let theirs = loaded.footprints(&context).unwrap();
        assert_eq!(of(&bytes.gpu), of(&theirs.gpus[0]), "{title}");
        assert_eq!(of(&bytes.host), of(&theirs.host), "{title}");
        assert!(theirs.gpus[0].compute <= bytes.gpu.compute + bytes.gpu_uncertainty, "{title}");

        let alone = draft.bytes(None, &main).unwrap();
        let theirs = probed(&[], 0);
        assert_eq!(alone.gpu.total(), 0, "{title}");
        assert_eq!(of(&alone.host), of(&theirs.host), "{title}");
    }
}
