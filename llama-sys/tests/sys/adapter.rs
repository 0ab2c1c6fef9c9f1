//! LoRA adapters and control vectors: they change what is computed, and nothing else; wrong ones are errors.

use crate::adapter_support::{Lora, random};
use crate::sim_support::{MIB, accounted, context, demo_path, load, params};
use llama_sys::sim::{Rules, SimGpu};
use llama_sys::{Batch, Context, Error, LoadMode, LoraAdapter, Model};

/// The demo model on the host.
fn demo() -> Model {
    Model::load(demo_path(), params(&[], 0)).unwrap()
}

/// The demo model's width, and its blocks.
const WIDTH: usize = 256;
const BLOCKS: usize = 6;

/// The logits after a short prompt in an empty cache.
fn logits(context: &mut Context) -> Vec<f32> {
    context.kv_clear().unwrap();
    let prompt = context
        .model()
        .vocab()
        .tokenize("In the beginning", true, false);
    let prompt = prompt.unwrap();
    let mut batch = Batch::default();
    for (position, &token) in (0..).zip(&prompt) {
        batch.add(token, position, 0, position as usize + 1 == prompt.len());
    }
    context.decode(&batch).unwrap();
    context.logits(-1).unwrap().to_vec()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    match result {
        Err(Error::InvalidParameter { name, .. }) => name,
        other => panic!("expected a refused parameter, got {other:?}"),
    }
}

/// Why llama.cpp did not load this adapter for the demo model.
#[track_caller]
fn reason(file: &crate::adapter_support::File) -> String {
    match LoraAdapter::load(&demo(), file.path()) {
        Err(Error::AdapterLoad { failure, .. }) => failure.reason,
        other => panic!("expected a refused adapter, got {other:?}"),
    }
}

#[test]
fn an_adapter_changes_the_logits_by_its_scale_and_leaves_no_trace() {
    let model = demo();
    let mut context = context(&model);
    let plain = logits(&mut context);
    let file = Lora::of_attention(1, 8).write();
    let adapter = LoraAdapter::load(&model, file.path()).unwrap();
    // Loaded and not set: nothing.
    assert_eq!(logits(&mut context), plain);
    let mut at = |scale| {
        context.set_lora(&[(adapter.clone(), scale)]).unwrap();
        furthest(&logits(&mut context), &plain)
    };
    let (half, whole) = (at(0.5), at(1.0));
    assert!(half > 0.0 && whole > half, "{half} {whole}");
    assert_eq!(at(0.0), 0.0);
    context.set_lora(&[(adapter, 1.0)]).unwrap();
    context.set_lora(&[]).unwrap();
    assert_eq!(logits(&mut context), plain);
}

#[test]
fn two_adapters_are_each_other_s_sum_and_their_order_makes_no_difference() {
    let model = demo();
    let mut context = context(&model);
    // The same adapter in two files: half of each is one of it, but for the order of the sums.
    let files = [
        Lora::of_attention(3, 4).write(),
        Lora::of_attention(3, 4).write(),
    ];
    let [one, two] = files
        .each_ref()
        .map(|file| LoraAdapter::load(&model, file.path()).unwrap());
    context.set_lora(&[(one.clone(), 1.0)]).unwrap();
    let whole = logits(&mut context);
    context
        .set_lora(&[(one.clone(), 0.5), (two.clone(), 0.5)])
        .unwrap();
    let halves = logits(&mut context);
    assert!(
        furthest(&whole, &halves) < 1e-2,
        "{}",
        furthest(&whole, &halves)
    );
    context.set_lora(&[(two, 0.5), (one, 0.5)]).unwrap();
    assert!(furthest(&logits(&mut context), &halves) < 1e-2);
}

#[test]
fn adapters_and_their_model_may_be_dropped_in_any_order() {
    let file = Lora::of_attention(1, 4).write();
    let model = demo();
    let adapter = LoraAdapter::load(&model, file.path()).unwrap();
    assert_eq!(adapter.metadata("adapter.type").as_deref(), Some("lora"));
    assert_eq!(adapter.metadata("no.such.key"), None);
    assert_eq!(adapter.invocation_tokens(), []);
    let mut context = context(&model);
    context.set_lora(&[(adapter.clone(), 1.0)]).unwrap();
    let changed = logits(&mut context);
    // The context keeps both.
    drop((adapter, model));
    assert_eq!(logits(&mut context), changed);
    drop(context);
    let model = demo();
    let adapter = LoraAdapter::load(&model, file.path()).unwrap();
    drop(model);
    drop(adapter);
}

#[test]
fn an_adapter_of_another_load_and_one_that_is_there_twice_are_refused() {
    let file = Lora::of_attention(1, 4).write();
    let (model, other) = (demo(), demo());
    let mut context = context(&model);
    let adapter = LoraAdapter::load(&model, file.path()).unwrap();
    let foreign = LoraAdapter::load(&other, file.path()).unwrap();
    assert_eq!(refused(context.set_lora(&[(foreign, 1.0)])), "adapters");
    let twice = [(adapter.clone(), 1.0), (adapter.clone(), 0.5)];
    assert_eq!(refused(context.set_lora(&twice)), "adapters");
    for scale in [f32::NAN, f32::INFINITY] {
        assert_eq!(
            refused(context.set_lora(&[(adapter.clone(), scale)])),
            "scales"
        );
    }
    assert!(context.is_usable() && context.lora().is_empty());
}

#[test]
fn a_wrong_file_is_an_error_that_names_the_reason() {
    assert_matches!(
        LoraAdapter::load(&demo(), "/nonexistent/adapter.gguf"),
        Err(Error::Unreadable { .. })
    );
    let error = LoraAdapter::load(&demo(), demo_path()).unwrap_err();
    assert!(error.to_string().contains("general.type"), "{error}");
    let lora = || Lora::of_attention(1, 4);
    assert!(reason(&lora().with("general.architecture", "qwen2").write()).contains("arch"));
    assert!(reason(&lora().with("adapter.type", "control").write()).contains("adapter.type"));
    let without_b = lora().without("blk.0.attn_q.weight.lora_b").write();
    assert!(reason(&without_b).contains("blk.0.attn_q.weight"));
    let unknown = lora()
        .pair("blk.77.attn_q.weight", [WIDTH, WIDTH], 4, 1)
        .write();
    assert!(reason(&unknown).contains("blk.77"));
    let misshapen = lora()
        .pair("blk.1.attn_k.weight", [WIDTH, WIDTH], 4, 1)
        .write();
    assert!(reason(&misshapen).contains("blk.1.attn_k.weight"));
    assert!(reason(&lora().truncated(64)).contains("file bounds"));
    // A text where a number belongs: an assertion of ggml's.
    let text = lora().with("adapter.lora.alpha", "eight").write();
    assert!(!reason(&text).is_empty());
}

#[test]
fn what_no_graph_can_be_built_with_is_an_error_and_no_abort() {
    // The demo's output is its own matrix, so take a pair of three dimensions: ggml refuses the product.
    let file = Lora::of_attention(1, 4)
        .tensor("blk.0.ffn_up.weight.lora_a", &[WIDTH, 4, 3], 1)
        .tensor("blk.0.ffn_up.weight.lora_b", &[4, 512, 3], 2)
        .write();
    let model = demo();
    let adapter = LoraAdapter::load(&model, file.path()).unwrap();
    let mut context = context(&model);
    let error = context.set_lora(&[(adapter, 1.0)]).unwrap_err();
    assert_matches!(error, Error::Call { .. });
    assert!(!context.is_usable());
}

#[test]
fn a_control_vector_of_zeros_changes_nothing_and_another_one_does() {
    let model = demo();
    let mut context = context(&model);
    let plain = logits(&mut context);
    let length = WIDTH * (BLOCKS - 1);
    context
        .set_control_vector(&vec![0.0; length], 1..=99)
        .unwrap();
    assert_eq!(logits(&mut context), plain);
    let vector = random(7, length, 0.5);
    context.set_control_vector(&vector, 1..=99).unwrap();
    let changed = logits(&mut context);
    assert!(furthest(&changed, &plain) > 0.0);
    // A range and what is left out beyond the data change other layers.
    context.set_control_vector(&vector, 2..=3).unwrap();
    let within = logits(&mut context);
    context
        .set_control_vector(&vector[..WIDTH], 1..=99)
        .unwrap();
    let first = logits(&mut context);
    assert!(furthest(&within, &changed) > 0.0 && furthest(&first, &changed) > 0.0);
    context.set_control_vector(&[], 1..=1).unwrap();
    assert_eq!(logits(&mut context), plain);
    assert_eq!(
        refused(context.set_control_vector(&vector[1..], 1..=9)),
        "len"
    );
    let long = vec![0.0; WIDTH * BLOCKS];
    assert_eq!(refused(context.set_control_vector(&long, 1..=9)), "len");
    assert_eq!(
        refused(context.set_control_vector(&vector, 0..=9)),
        "layers"
    );
    assert_eq!(
        refused(context.set_control_vector(&vec![f32::NAN; WIDTH], 1..=9)),
        "data"
    );
    assert!(context.is_usable());
}

#[test]
fn cards_hold_what_the_breakdown_says_with_data_and_without() {
    own_process!();
    let file = Lora::of_attention(1, 8)
        .pair("output.weight", [WIDTH, 1024], 8, 1)
        .write();
    let vulkan = Rules::Vulkan {
        alignment: 256,
        max_alloc: MIB,
    };
    for rules in [Rules::Plain, Rules::Cuda, vulkan, Rules::Metal] {
        let gpus = [24, 8].map(|mib| {
            let card = SimGpu::builder("SIM card").total(mib * MIB).rules(rules);
            card.register().unwrap()
        });
        for n_gpu_layers in [0, 1, 4, 7] {
            let said = |model: &Model| {
                let adapter = LoraAdapter::load(model, file.path()).unwrap();
                let mut context = context(model);
                context.set_lora(&[(adapter, 1.0)]).unwrap();
                context
                    .set_control_vector(&vec![0.1; WIDTH], 1..=5)
                    .unwrap();
                let breakdown = context.memory_breakdown().unwrap();
                (breakdown, context)
            };
            let model = load(&gpus.each_ref(), n_gpu_layers);
            let (loaded, mut context) = said(&model);
            for gpu in &gpus {
                let adapters: u64 = loaded.on(&gpu.device()).map(|row| row.adapters).sum();
                assert_eq!(accounted(&loaded, gpu) + adapters, gpu.used(), "{rules:?}");
            }
            logits(&mut context);
            drop((context, model));
            assert!(gpus.iter().all(|gpu| gpu.used() == 0));

            let devices = gpus.each_ref().map(SimGpu::device);
            let mut bare = params(&devices, n_gpu_layers);
            (bare.no_alloc, bare.load_mode) = (true, LoadMode::None);
            let bare = Model::load(demo_path(), bare).unwrap();
            let (said, _context) = said(&bare);
            for device in &devices {
                // By device: where the file is mapped, its buffer type has another name.
                let of = |all: &llama_sys::MemoryBreakdown| {
                    let rows = all.on(device).map(|row| (row.adapters, row.compute));
                    rows.fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1))
                };
                assert_eq!(of(&said), of(&loaded), "{rules:?} {n_gpu_layers}");
            }
        }
    }
}
