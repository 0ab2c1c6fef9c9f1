//! The flags for the context and for threads.

use super::{Here, Row, Value};

const FLASH: &[&str] = &["on", "off", "auto", "0", "1", "-1", "enabled", "disabled", "true", "false"];
const AFFINITY: &str = "threads keep the process's own affinity and priority (`taskset`, `nice`); the default number of threads counts the cores that the process may use";

pub(super) const ROWS: &[Row] = &[
    Row::flag(&["-c", "--ctx-size"], &["--ctx"]).library("`.n_ctx(n)` of the builder. 0 is `Context::Model`, as trained"),
    Row::flag(&["-b", "--batch-size"], &["--batch-size"]).library("`.n_batch(n)` of the builder"),
    Row::flag(&["-ub", "--ubatch-size"], &["--ubatch"]).library("`.n_ubatch(n)` of the builder"),
    Row::flag(&["-np", "--parallel"], &["--parallel"]).usual(&["1", "-1"]).library("`.parallel(sequences, tokens_each)` of the builder"),
    Row::on_off([&["-kvu", "--kv-unified"], &["-no-kvu", "--no-kv-unified"]], ["--kv-unified", ""]).library("`.kv_unified(true)` of the builder"),
    Row::switch(&["--swa-full"], "--swa-full").library("`.swa_full(true)` of the builder"),
    Row::new(&["-fa", "--flash-attn"], Value::Optional(FLASH), Here::Flag(&["--flash-attn"])).library("`.flash_attn(FlashAttention::On)` of the builder"),
    Row::flag(&["-ctk", "--cache-type-k"], &["--cache-type-k"]).library("`.type_k(t)` of the builder"),
    Row::flag(&["-ctv", "--cache-type-v"], &["--cache-type-v"]).library("`.type_v(t)` of the builder"),
    Row::only(&["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"], &[], "checkpoints are limited by bytes and not by number: the library's `checkpoints`").library("`.checkpoints(bytes)` of the builder"),
    Row::reads(&["-cram", "--cache-ram"], cache_ram, "`--cache-ram`: `NMiB`, for 0 `off`, for -1 `auto`").library("`.prompt_store(PromptStore::new(bytes))` of the builder"),
    Row::on_off([&["--context-shift"], &["--no-context-shift"]], ["--context-shift", ""]).library("`.when_full(WhenFull::Shift { keep })` of a request; a chat drops its oldest turns by itself"),
    Row::flag(&["--keep"], &["--keep"]).usual(&["0"]).library("`keep` of the same"),
    Row::flag(&["--rope-scaling"], &["--rope-scaling"]).library("`.rope(set)` of the builder: `scaling`"),
    Row::reads(&["--rope-scale"], rope_scale, "`--rope-freq-scale 1/N`").library("`freq_scale` of the same is 1 / scale"),
    Row::flag(&["--rope-freq-base"], &["--rope-freq-base"]).library("`freq_base` of the same"),
    Row::flag(&["--rope-freq-scale"], &["--rope-freq-scale"]).library("`freq_scale` of the same"),
    Row::flag(&["--yarn-orig-ctx"], &["--yarn-orig-ctx"]).library("`yarn_orig_ctx` of the same"),
    Row::flag(&["--yarn-ext-factor"], &["--yarn-ext-factor"]).library("`yarn_ext_factor` of the same"),
    Row::flag(&["--yarn-attn-factor"], &["--yarn-attn-factor"]).library("`yarn_attn_factor` of the same"),
    Row::flag(&["--yarn-beta-slow"], &["--yarn-beta-slow"]).library("`yarn_beta_slow` of the same"),
    Row::flag(&["--yarn-beta-fast"], &["--yarn-beta-fast"]).library("`yarn_beta_fast` of the same"),
    Row::refused(&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"], "YaRN is what models are trained for (--rope-scaling yarn)"),
    Row::refused(&["-dt", "--defrag-thold"], "llama.cpp ignores it"),
    Row::flag(&["-t", "--threads"], &["--threads"]).usual(&["-1"]).library("`.n_threads(n)` of the builder. Default: one per physical core, and fewer to generate if fewer turn out to be faster"),
    Row::flag(&["-tb", "--threads-batch"], &["--threads-batch"]).usual(&["-1"]).library("`.n_threads_batch(n)` of the builder"),
    Row::refused(&["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--prio", "--poll", "-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch", "--cpu-strict-batch", "--prio-batch", "--poll-batch"], AFFINITY),
];

/// Translates a size. A number means mebibytes, as in llama.cpp; sizes in our own notation are accepted too.
fn cache_ram(size: &str) -> Result<Vec<String>, String> {
    let ours = match size.parse::<i64>() {
        Ok(0) => "off".to_owned(),
        // To llama.cpp, this means that there is no limit. Here a store always has a limit.
        Ok(-1) => "auto".to_owned(),
        Ok(mib @ 1..) => format!("{mib}MiB"),
        Ok(_) => return Err(format!("`{size}` is not a size in MiB")),
        Err(_) => size.to_owned(),
    };
    Ok(vec![format!("--cache-ram={ours}")])
}

fn rope_scale(scale: &str) -> Result<Vec<String>, String> {
    match scale.parse::<f32>() {
        Ok(scale) if scale > 0.0 => Ok(vec![format!("--rope-freq-scale={}", 1.0 / scale)]),
        _ => Err(format!("`{scale}` is not a factor above 0")),
    }
}
