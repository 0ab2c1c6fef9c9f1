//! Each flag that is emitted for llama.cpp's programs is one of theirs: the source of the llama.cpp that this workspace
//! builds is asked.

use autoplace::memory::{KvType, Place, Pooling, TensorOverride};
use autoplace::plan::Plan;

use super::{Tool, emit};
use crate::test_plan;

#[path = "../../../autoplace/tests/support/llama_source/mod.rs"]
mod llama_source;

/// The source of the arguments of llama.cpp's programs.
fn arguments() -> String {
    llama_source::read("common/arg.cpp")
}

/// A plan that differs from every default.
fn plan() -> Plan {
    let mut plan = test_plan::two_gpus();
    plan.overrides = vec![TensorOverride::new("ffn", Place::Host)];
    let context = &mut plan.context;
    (context.n_seq_max, context.n_outputs_max) = (2, 2);
    (context.type_k, context.type_v) = (KvType::Q8_0, KvType::Q5_1);
    (context.offload_kqv, context.op_offload) = (false, false);
    (context.mmap, context.repack) = (false, false);
    context.swa_full = true;
    plan
}

#[test]
fn every_flag_of_llama_server_is_in_its_source() {
    let source = arguments();
    let mut plan = plan();
    let mut seen = 0;
    plan.context.embeddings = Some(Pooling::Mean);
    for unified in [false, true] {
        plan.context.kv_unified = unified;
        let text = emit(&plan, Tool::LlamaCpp).unwrap();
        let words = text.lines().last().unwrap().split(' ');
        for flag in words.filter(|word| word.starts_with('-')) {
            assert!(source.contains(&format!("\"{flag}\"")), "no {flag}");
            seen += 1;
        }
    }
    assert!(seen >= 2 * 19, "{seen} flags");
}

#[test]
fn every_type_of_the_cache_is_in_its_source() {
    let source = arguments();
    for ty in KvType::ALL {
        let name = format!("GGML_TYPE_{}", ty.to_string().to_uppercase());
        let list = source.split("kv_cache_types = {").nth(1).unwrap();
        let list = list.split('}').next().unwrap();
        assert!(list.contains(&name), "no {name} in {list}");
    }
}

#[test]
fn every_variable_for_ollama_is_in_its_source() {
    let source = arguments();
    let text = emit(&plan(), Tool::Ollama).unwrap();
    let mut seen = 0;
    for word in text.split_whitespace() {
        if let Some((variable, _)) = word.split_once('=')
            && variable.starts_with("LLAMA_ARG_")
        {
            assert!(source.contains(&format!("\"{variable}\"")), "no {variable}");
            seen += 1;
        }
    }
    assert!(seen >= 7, "{seen} variables in {text}");
}
