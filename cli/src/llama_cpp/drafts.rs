//! The flags for speculative decoding.

use super::Row;

const FOLLOWS: &str = "the number of draft tokens follows from the number of accepted ones";
const PLACED: &str = "a draft model is on one device, in whole layers: --draft-ngl, --draft-device";

pub(super) const ROWS: &[Row] = &[
    Row::flag(&["--spec-draft-model", "-md", "--model-draft"], &["--draft-model", "--with=draft="])
        .library("`.draft(path)` of the builder"),
    Row::reads(
        &["--spec-type"],
        spec_type,
        "`draft-simple`: `--draft-model`. `draft-mtp`: `--mtp`. `ngram-simple`: `--prompt-lookup`. Others are refused",
    )
    .library("`.speculate(s)` of a request: a draft model, the model's own blocks (MTP), or the prompt's n-grams"),
    Row::switch(&["--spec-default"], "--prompt-lookup").library("the same"),
    Row::switch(&["--mtp"], "--mtp").library("`.mtp(true)` of the builder"),
    Row::flag(&["--spec-draft-n-max"], &["--draft-max"]).library("`.draft_max(n)` of the builder"),
    Row::flag(&["--spec-draft-p-min", "--draft-p-min"], &["--draft-p-min"])
        .library("`p_min` of `Speculation::DraftModel`"),
    Row::refused(&["--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m"], FOLLOWS)
        .library("`ngram_max` and `draft_max` of `Speculation::PromptLookup`"),
    Row::refused(
        &[
            "--spec-draft-n-min",
            "--spec-draft-p-split",
            "--draft-p-split",
            "--spec-draft-sampling",
            "--spec-ngram-mod-n-min",
            "--spec-ngram-mod-n-max",
            "--spec-ngram-mod-n-match",
            "--spec-ngram-simple-min-hits",
            "--spec-ngram-map-k-size-n",
            "--spec-ngram-map-k-size-m",
            "--spec-ngram-map-k-min-hits",
            "--spec-ngram-map-k4v-size-n",
            "--spec-ngram-map-k4v-size-m",
            "--spec-ngram-map-k4v-min-hits",
        ],
        FOLLOWS,
    ),
    Row::never(
        [&["--spec-draft-backend-sampling"], &["--no-spec-draft-backend-sampling"]],
        "samplers on a device take memory that no plan counts",
    ),
    Row::flag(&["--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"], &["--draft-cache-type-k"])
        .library("`.draft_kv_types(keys, values)` of the builder"),
    Row::flag(&["--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"], &["--draft-cache-type-v"]).library("the same"),
    Row::flag(&["--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"], &["--draft-ngl"])
        .library("`.draft_n_gpu_layers(n)` of the builder"),
    Row::flag(&["--spec-draft-device", "-devd", "--device-draft"], &["--draft-device"])
        .library("`.draft_device(name)` of the builder. A draft is on one device"),
    Row::refused(
        &[
            "--spec-draft-override-tensor",
            "-otd",
            "--override-tensor-draft",
            "--spec-draft-n-cpu-moe",
            "--spec-draft-ncmoe",
            "-ncmoed",
            "--n-cpu-moe-draft",
        ],
        PLACED,
    ),
    Row::only(&["--spec-draft-n-ubatch"], &["0"], "a draft computes as many tokens at once as the model (-ub)"),
    Row::refused_switch(&["--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft"], PLACED),
    Row::refused(
        &[
            "--spec-draft-threads",
            "-td",
            "--threads-draft",
            "--spec-draft-threads-batch",
            "-tbd",
            "--threads-batch-draft",
        ],
        "a draft computes with the model's threads",
    ),
    Row::refused(
        &[
            "--spec-draft-cpu-mask",
            "-Cd",
            "--cpu-mask-draft",
            "--spec-draft-cpu-range",
            "-Crd",
            "--cpu-range-draft",
            "--spec-draft-cpu-strict",
            "--cpu-strict-draft",
            "--spec-draft-prio",
            "--prio-draft",
            "--spec-draft-poll",
            "--poll-draft",
            "--spec-draft-cpu-mask-batch",
            "-Cbd",
            "--cpu-mask-batch-draft",
            "--spec-draft-cpu-range-batch",
            "-Crbd",
            "--cpu-range-batch-draft",
            "--spec-draft-cpu-strict-batch",
            "--cpu-strict-batch-draft",
            "--spec-draft-prio-batch",
            "--prio-batch-draft",
            "--spec-draft-poll-batch",
            "--poll-batch-draft",
        ],
        "a draft computes with the model's threads",
    ),
    Row::refused(&["--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"], "a draft model is a file: -md FILE"),
    Row::refused(&["--spec-synth-len", "--spec-synth-rates"], "for benchmarks of llama.cpp"),
    Row::refused(
        &[
            "--draft",
            "--draft-n",
            "--draft-max",
            "--draft-min",
            "--draft-n-min",
            "--spec-ngram-size-n",
            "--spec-ngram-size-m",
            "--spec-ngram-min-hits",
        ],
        "llama.cpp has removed it: --spec-draft-n-max N",
    ),
];

fn spec_type(list: &str) -> Result<Vec<String>, String> {
    let words = list.split(',').map(|kind| match kind {
        "none" | "draft-simple" => Ok(None),
        "draft-mtp" => Ok(Some("--mtp".to_owned())),
        "ngram-simple" => Ok(Some("--prompt-lookup".to_owned())),
        _ => Err(format!("`{kind}` is not supported: use draft-simple, draft-mtp or ngram-simple")),
    });
    words.filter_map(Result::transpose).collect()
}
