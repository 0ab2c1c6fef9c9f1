//! The output for each tool and for different plans. llama.cpp's flags are looked up in the source that this workspace
//! builds.

use autoplace::memory::{FlashAttention, KvType, Place, Pooling, TensorOverride};
use autoplace::plan::Plan;
use clap::ValueEnum;
use serde_json::json;

use super::Tool::{self, KoboldCpp, LlamaCpp, LlamaCpp2, LmStudio, Ollama, Vllm};
use super::{comment, emit};
use test_support::plans::{host_plan, plan, two_gpus};

fn changed(mut plan: Plan, change: impl FnOnce(&mut Plan)) -> Plan {
    change(&mut plan);
    plan
}

/// A plan with this override, on one GPU.
fn overridden(pattern: &str, place: Place) -> Plan {
    changed(plan(), |plan| plan.overrides = vec![TensorOverride::new(pattern, place)])
}

fn of_file(path: &str) -> Plan {
    changed(plan(), |plan| plan.model.path = Some(path.into()))
}

/// A plan on one GPU in which no setting has its default.
fn unusual() -> Plan {
    let mut plan = overridden(r"blk\.1\.ffn", Place::Host);
    let context = &mut plan.context;
    (context.n_seq_max, context.n_outputs_max) = (4, 4);
    (context.type_k, context.type_v) = (KvType::Q8_0, KvType::Q4_0);
    context.flash_attn = FlashAttention::On;
    (context.offload_kqv, context.op_offload) = (false, false);
    (context.mmap, context.repack) = (false, false);
    context.swa_full = true;
    plan
}

/// Asserts that the output contains all texts in `all` and no text in `none`.
#[track_caller]
fn says(tool: Tool, plan: &Plan, all: &[&str], none: &[&str]) {
    let text = emit(plan, tool).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    for part in all {
        assert!(text.contains(part), "{tool}: no {part:?} in {text}");
    }
    for part in none {
        assert!(!text.contains(part), "{tool}: {part:?} in {text}");
    }
}

#[track_caller]
fn refuses(tools: &[Tool], plan: &Plan, why: &str) {
    for &tool in tools {
        let error = emit(plan, tool).unwrap_err();
        assert!(error.starts_with(&tool.to_string()) && error.contains(why), "{error}");
    }
}

#[test]
fn llama_server_is_given_a_flag_for_each_part() {
    let usual = "\nllama-server -m '/models/llama 8b.gguf' -fit off -ngl 20 --device CUDA0 -c 8192 -b 2048 -ub 512 -np 1 \
                 -ctk f16 -ctv f16 -fa auto\n";
    says(LlamaCpp, &plan(), &[usual], &[]);
    says(LlamaCpp, &two_gpus(), &["--device 'CUDA1,CUDA0' -ts '12,8' "], &[]);
    says(LlamaCpp, &host_plan(), &["-ngl 0 --device none "], &[]);
    let elsewhere = changed(plan(), |plan| plan.placements[0].device = None);
    says(LlamaCpp, &elsewhere, &["# the plan's GPUs are not in this machine"], &["--device CUDA"]);
    let differs = "-np 4 --no-kv-unified -ctk q8_0 -ctv q4_0 -fa on --no-kv-offload --no-op-offload --swa-full \
                   --no-repack --load-mode none\n";
    says(LlamaCpp, &unusual(), &[differs], &[]);
    says(LlamaCpp, &changed(unusual(), |plan| plan.context.kv_unified = true), &["-np 4 --kv-unified "], &[]);
    says(LlamaCpp, &overridden(r"blk\.(1|2)\.x", Place::Host), &[r#"-ot "blk\\.(1|2)\\.x=CPU" "#], &[]);
    says(LlamaCpp, &overridden("output", Place::Gpu(0)), &["-ot 'output=CUDA0' "], &[]);
    for (pattern, flag) in [
        (r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", "--cpu-moe "),
        (r"blk\.(0|1|2)\.ffn_(up|down|gate|gate_up)_(ch|)exps", "--n-cpu-moe 3 "),
        (r"blk\.(0)\.ffn_(up|down|gate)\.", "--n-cpu-ffn 1 "),
        (r"^blk\.(0|1)\.(ffn_down|ffn_gate|ffn_up)\.", "--n-cpu-ffn 2 "),
        (r"^blk\.0\.(ffn_down|ffn_gate|ffn_up)\.", "--n-cpu-ffn 1 "),
    ] {
        says(LlamaCpp, &overridden(pattern, Place::Host), &[flag], &["-ot"]);
    }
    // There is no flag for these patterns: they are for blocks other than the first ones, or for only some parts of a
    // block.
    for pattern in [r"^blk\.(1|2)\.(ffn_down|ffn_gate|ffn_up)\.", r"^blk\.0\.(ffn_down|ffn_gate)\."] {
        says(LlamaCpp, &overridden(pattern, Place::Host), &["-ot "], &["--n-cpu"]);
    }
    says(LlamaCpp, &changed(plan(), |plan| plan.placements[0].backend = "MTL".to_owned()), &["--load-mode none"], &[]);
    let embeds = |pooling| changed(plan(), |plan| plan.context.embeddings = Some(pooling));
    says(LlamaCpp, &embeds(Pooling::Mean), &["--embeddings --pooling mean\n"], &[]);
    says(LlamaCpp, &embeds(Pooling::Model), &["--embeddings\n"], &[]);
    let predicts = changed(plan(), |plan| {
        plan.context.mtp = true;
        (plan.context.n_seq_max, plan.context.n_outputs_max) = (2, 8);
    });
    says(LlamaCpp, &predicts, &["--spec-type draft-mtp --spec-draft-n-max 3"], &[]);
}

#[test]
fn ollama_has_a_modelfile_and_variables_for_the_rest() {
    let usual = "\nFROM /models/llama 8b.gguf\nPARAMETER num_gpu 20\nPARAMETER num_ctx 8192\nPARAMETER num_batch 512\n";
    says(Ollama, &plan(), &[usual, "serve` with LLAMA_ARG_DEVICE=CUDA0\n"], &["use_mmap", "#   LLAMA", "OLLAMA_"]);
    says(Ollama, &host_plan(), &["\nPARAMETER num_gpu 0\n"], &[]);
    let differs = [
        // This is the context of one sequence.
        "\nPARAMETER num_ctx 2048\n",
        "\nPARAMETER use_mmap false\n",
        "#   OLLAMA_NUM_PARALLEL=4\n",
        "#   OLLAMA_FLASH_ATTENTION=1\n",
        "#   LLAMA_ARG_CACHE_TYPE_K=q8_0\n",
        "#   LLAMA_ARG_CACHE_TYPE_V=q4_0\n",
        "#   LLAMA_ARG_OVERRIDE_TENSOR=\"blk\\\\.1\\\\.ffn=CPU\"\n",
        "#   LLAMA_ARG_KV_OFFLOAD=off\n",
        "#   LLAMA_ARG_REPACK=off\n",
        "# Ollama has no setting to keep large batches off the GPU",
    ];
    says(Ollama, &unusual(), &differs, &[]);
    let both = changed(unusual(), |plan| plan.context.type_v = KvType::Q8_0);
    says(Ollama, &both, &["#   OLLAMA_KV_CACHE_TYPE=q8_0\n"], &["CACHE_TYPE_K"]);
    let split = ["#   LLAMA_ARG_TENSOR_SPLIT='12,8'\n", "#   LLAMA_ARG_DEVICE='CUDA1,CUDA0'\n"];
    says(Ollama, &two_gpus(), &split, &[]);
}

#[test]
fn the_config_of_lm_studio_is_that_of_its_sdk() {
    let config = |plan: &Plan| -> serde_json::Value {
        let text = emit(plan, LmStudio).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.collect::<String>().parse().unwrap()
    };
    let mut expected = json!({
        "gpu": { "ratio": 0.6061 },
        "contextLength": 8192,
        "evalBatchSize": 512,
        "flashAttention": true,
        "offloadKVCacheToGpu": true,
        "tryMmap": true,
        "llamaKCacheQuantizationType": false,
        "llamaVCacheQuantizationType": false,
    });
    assert_eq!(config(&plan()), expected);
    expected["llamaKCacheQuantizationType"] = "q8_0".into();
    expected["llamaVCacheQuantizationType"] = "iq4_nl".into();
    expected["flashAttention"] = false.into();
    let quantised = changed(plan(), |plan| {
        (plan.context.type_k, plan.context.type_v) = (KvType::Q8_0, KvType::IQ4_NL);
        plan.context.flash_attn = FlashAttention::Off;
    });
    assert_eq!(config(&quantised), expected);
}

#[test]
fn each_tool_is_told_that_attention_is_not_fused() {
    let plain = changed(plan(), |plan| plan.context.flash_attn = FlashAttention::Off);
    says(LlamaCpp, &plain, &["-fa off\n"], &[]);
    says(LlamaCpp2, &plain, &["LLAMA_FLASH_ATTN_TYPE_DISABLED"], &["LLAMA_FLASH_ATTN_TYPE_ENABLED"]);
    says(Ollama, &plain, &["OLLAMA_FLASH_ATTENTION=0\n"], &[]);
    says(KoboldCpp, &plain, &[], &["--flashattention"]);
}

#[test]
fn koboldcpp_is_given_its_own_flags() {
    let usual = "\nkoboldcpp --model '/models/llama 8b.gguf' --usecuda 0 --gpulayers 20 --contextsize 8192 \
                 --batchsize 512 --flashattention --usemmap\n";
    says(KoboldCpp, &plan(), &[usual], &[]);
    let vulkan = changed(plan(), |plan| {
        let gpu = &mut plan.placements[0];
        (gpu.backend, gpu.device) = ("Vulkan".to_owned(), Some("Vulkan2".to_owned()));
    });
    says(KoboldCpp, &vulkan, &["--usevulkan 2 "], &[]);
    says(KoboldCpp, &two_gpus(), &["--tensor_split 12 8 ", "CUDA_VISIBLE_DEVICES=1,0\n"], &[]);
    says(KoboldCpp, &host_plan(), &["--usecpu --gpulayers 0 "], &[]);
    let smallest = changed(plan(), |plan| (plan.context.type_k, plan.context.type_v) = (KvType::Q4_0, KvType::Q4_0));
    says(KoboldCpp, &smallest, &["--quantkv 2 "], &[]);
    let differs = changed(overridden("exps", Place::Host), |plan| {
        plan.model.sliding_window = true;
        (plan.context.type_k, plan.context.type_v) = (KvType::Q8_0, KvType::Q8_0);
        plan.context.flash_attn = FlashAttention::Off;
        (plan.context.offload_kqv, plan.context.mmap, plan.context.n_ubatch) = (false, false, 700);
    });
    let said = [
        "--overridetensors 'exps=CPU' --contextsize 8192 --batchsize 512 --quantkv 1 --lowvram --useswa\n",
        "# KoboldCpp accepts only powers of two as batch sizes: the batch has 512 tokens instead of 700",
    ];
    says(KoboldCpp, &differs, &said, &[]);
}

#[test]
fn llama_cpp_2_is_rust_with_its_setters() {
    let differs = changed(unusual(), |plan| (plan.context.repack, plan.context.type_v) = (true, KvType::BF16));
    let said = [
        ".with_n_gpu_layers(20)\n        .with_use_mmap(false)\n",
        "&[\"CUDA0\"];\n",
        ".with_n_ctx(NonZeroU32::new(8192))\n        .with_n_batch(2048)\n        .with_n_ubatch(512)\n",
        ".with_type_k(KvCacheType::Q8_0)\n        .with_type_v(KvCacheType::BF16)\n",
        "LLAMA_FLASH_ATTN_TYPE_ENABLED)\n        .with_offload_kqv(false)\n        .with_op_offload(false)\n",
        r#"add_cpu_buft_override(c"blk\\.1\\.ffn");"#,
        "load_from_file(backend, \"/models/llama 8b.gguf\", &params)",
        "// llama-cpp-2 has no setter for n_outputs_max",
    ];
    says(LlamaCpp2, &differs, &said, &[]);
    let all_logits = changed(plan(), |plan| plan.context.n_outputs_max = 0);
    says(LlamaCpp2, &all_logits, &[], &["has no setter for n_outputs_max", "pin!"]);
    says(LlamaCpp2, &host_plan(), &["let devices: [usize; 0] = [];"], &[]);
    let elsewhere = changed(plan(), |plan| plan.placements[0].device = None);
    says(LlamaCpp2, &elsewhere, &["fn load(backend: &LlamaBackend, devices: [usize; 1])"], &[]);
    says(LlamaCpp2, &of_file("a\"b\\c\n.gguf"), &[r#"backend, "a\"b\\c\n.gguf", "#], &[]);
}

/// `cargo xtask interop` compiles this output with llama-cpp-2, for each kind of plan.
#[test]
fn the_output_for_llama_cpp_2_equals_the_code_of_its_example() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/with-llama-cpp-2/tests/emitted.rs");
    let overridden = changed(unusual(), |plan| plan.context.repack = true);
    let elsewhere = changed(plan(), |plan| plan.placements[0].device = None);
    let mut expected =
        "//! Written by a test of autoplace-cli: what `autoplace plan --emit llama-cpp-2` prints for plans of \
        each kind.\n#![allow(dead_code, reason = \"it is compiled\")]\n"
            .to_owned();
    for (name, plan) in
        [("on_a_gpu", plan()), ("overridden", overridden), ("on_the_host", host_plan()), ("elsewhere", elsewhere)]
    {
        expected += &format!("\n#[rustfmt::skip]\nmod {name} {{\n{}}}\n", emit(&plan, LlamaCpp2).unwrap());
    }
    if std::env::var_os("AUTOPLACE_WRITE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected, "AUTOPLACE_WRITE=1 writes it");
}

/// The tools for which a plan can be translated.
fn placing() -> Vec<Tool> {
    Tool::value_variants().iter().copied().filter(|tool| *tool != Vllm).collect()
}

#[test]
fn a_setting_that_a_tool_lacks_is_refused_by_name() {
    refuses(&[Vllm], &plan(), "takes no placement");
    let all = &placing()[..];
    refuses(all, &changed(plan(), |plan| plan.model.path = None), "loads a file");
    refuses(all, &of_file("a\0b"), "cannot be given the path");
    let others = &[Ollama, LmStudio, KoboldCpp, LlamaCpp2];
    refuses(others, &changed(plan(), |plan| plan.context.embeddings = Some(Pooling::Mean)), "a context for embeddings");
    refuses(others, &changed(plan(), |plan| plan.context.mtp = true), "for predicting further tokens");
    for pattern in ["a{1,2}", "a=b"] {
        refuses(&[LlamaCpp, KoboldCpp, Ollama], &overridden(pattern, Place::Host), pattern);
    }
    let elsewhere = changed(overridden("^output", Place::Gpu(0)), |plan| plan.placements[0].device = None);
    refuses(&[LlamaCpp], &elsewhere, "buffer type");
    refuses(&[LmStudio], &two_gpus(), "lm-studio has no setting for how many layers");
    refuses(&[LmStudio], &overridden("exps", Place::Host), "which tensors");
    refuses(&[LmStudio], &changed(plan(), |plan| plan.context.type_k = KvType::BF16), "bf16");
    let mixed = changed(two_gpus(), |plan| plan.placements[1].backend = "Vulkan".to_owned());
    refuses(&[KoboldCpp], &mixed, "several backends");
    let values = changed(plan(), |plan| plan.context.type_v = KvType::Q5_1);
    refuses(&[KoboldCpp], &values, "keys of F16 and values of Q5_1");
    refuses(&[KoboldCpp], &changed(plan(), |plan| plan.context.n_ctx = 255), "a context of 255 tokens");
    refuses(&[LlamaCpp2], &two_gpus(), "tensor_split");
    refuses(&[LlamaCpp2], &changed(plan(), |plan| plan.context.repack = false), "use_extra_bufts");
    refuses(&[LlamaCpp2], &overridden("a", Place::Gpu(0)), "CPU only");
    refuses(&[LlamaCpp2], &overridden("\u{e9}", Place::Host), "ASCII");
    // Ollama would read these paths from a Modelfile as other paths.
    for path in ["a\nPARAMETER num_gpu 99", " a.gguf", "a.gguf ", "\"a\".gguf", ""] {
        refuses(&[Ollama], &of_file(path), "Modelfile");
    }
}

#[test]
fn a_path_is_read_back_as_it_is() {
    for path in ["/a b/it's.gguf", "$(rm -rf ~).gguf", "a\"b`c\\d!.gguf", "two\nlines", "-x", ""] {
        let text = emit(&of_file(path), LlamaCpp).unwrap();
        let command = text.split_inclusive('\n').skip_while(|line| line.starts_with('#'));
        assert_eq!(shlex::split(&command.collect::<String>()).unwrap()[2], path);
    }
    // A relative path must not look like the name of a model.
    for (path, from) in [("m.gguf", "./m.gguf"), ("../m.gguf", "../m.gguf"), ("/m.gguf", "/m.gguf")] {
        says(Ollama, &of_file(path), &[&format!("\nFROM {from}\n")], &[]);
    }
}

#[test]
fn a_name_cannot_end_its_comment() {
    let mut plan: Plan = plan();
    plan.model.name = "a\nrm -rf /".to_owned();
    plan.placements[0].name = "b\r\nc".to_owned();
    assert_eq!(comment("#", &plan, &[]).lines().count(), 1);
    for tool in placing() {
        says(tool, &plan, &[], &["\nrm"]);
    }
}

#[test]
fn every_flag_variable_and_type_is_in_llama_cpps_source() {
    let source = test_support::llama_source::read("common/arg.cpp");
    let plan = |unified| {
        changed(unusual(), |plan| {
            plan.context.kv_unified = unified;
            plan.tensor_split = vec![12.0, 8.0];
        })
    };
    let embeds = |unified| changed(plan(unified), |plan| plan.context.embeddings = Some(Pooling::Mean));
    for unified in [false, true] {
        let text = emit(&embeds(unified), LlamaCpp).unwrap();
        let flags: Vec<&str> = text.lines().last().unwrap().split(' ').filter(|word| word.starts_with('-')).collect();
        assert!(flags.len() >= 19, "{flags:?}");
        for flag in flags {
            assert!(source.contains(&format!("\"{flag}\"")), "no {flag}");
        }
    }
    let text = emit(&plan(false), Ollama).unwrap();
    let names = text.split_whitespace().filter_map(|word| Some(word.split_once('=')?.0));
    let names: Vec<&str> = names.filter(|name| name.starts_with("LLAMA_ARG_")).collect();
    assert!(names.len() >= 7, "{names:?}");
    assert!(names.iter().all(|name| source.contains(&format!("\"{name}\""))), "{names:?}");
    let types = source.split("kv_cache_types = {").nth(1).unwrap().split('}').next().unwrap();
    for ty in KvType::ALL {
        assert!(types.contains(&format!("GGML_TYPE_{}", ty.to_string().to_uppercase())), "{ty}");
    }
}
