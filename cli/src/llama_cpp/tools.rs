//! The flags of llama.cpp's other tools. They have no equivalent here.

use super::{Here, Row, Value};

const MEASURE: &str = "`autoplace measure` measures";
const PERPLEXITY: &str = "llama-perplexity measures quality: this program does not";
const IMATRIX: &str = "llama-imatrix quantises: this program does not";
const CVECTOR: &str = "llama-cvector-generator makes control vectors: this program does not";
const DIFFUSION: &str = "diffusion models are not supported";
const FINETUNE: &str = "models are not trained here";
const RETRIEVAL: &str = "llama-retrieval and llama-embedding do this";
const TOKENIZE: &str = "llama-tokenize does this";
const QUANTIZE: &str = "llama-quantize does this: this program does not quantise";
const SPLIT: &str = "llama-gguf-split does this: the shards of a model are read as they are";
const TUNING: &str = "llama.cpp's tuning tool does this: a load measures what its plan needs";
const BENCH: &[&str] = &["0", "1"];

pub(super) const ROWS: &[Row] = &[
    Row::refused(
        &[
            "--n-prompt",
            "--n-gen",
            "-pg",
            "-d",
            "--n-depth",
            "--repetitions",
            "--delay",
            "-oe",
            "--output-err",
            "-npp",
            "-ntg",
            "-npl",
            "-ns",
            "--sequences",
        ],
        MEASURE,
    ),
    Row::new(&["-pps", "-tgs", "--progress"], Value::Optional(BENCH), Here::Refused(MEASURE)),
    Row::only(&["-fitp", "--fit-print"], &["off"], "`autoplace plan` prints the memory that is taken on each device"),
    Row::refused(
        &[
            "--hellaswag-tasks",
            "--winogrande-tasks",
            "--multiple-choice-tasks",
            "--save-all-logits",
            "--kl-divergence-base",
            "--ppl-stride",
            "--ppl-output-type",
            "--chunks",
        ],
        PERPLEXITY,
    ),
    Row::refused_switch(&["--hellaswag", "--winogrande", "--multiple-choice", "--kl-divergence"], PERPLEXITY),
    Row::refused(
        &[
            "--in-file",
            "-ofreq",
            "--output-frequency",
            "--output-format",
            "--save-frequency",
            "--chunk",
            "--from-chunk",
        ],
        IMATRIX,
    ),
    Row::refused_switch(
        &["--process-output", "--nextn", "--ppl", "--no-ppl", "--show-statistics", "--parse-special"],
        IMATRIX,
    ),
    Row::refused_switch(&["--ids", "--stdin", "--no-bos", "--no-parse-special", "--show-count"], TOKENIZE),
    Row::refused(
        &[
            "--context-file",
            "--chunk-size",
            "--chunk-separator",
            "--embd-output-format",
            "--embd-separator",
            "--cls-separator",
        ],
        RETRIEVAL,
    ),
    Row::refused(&["--junk", "--pos"], "llama-passkey and llama-parallel test contexts: this program does not"),
    Row::refused(&["--positive-file", "--negative-file", "--pca-batch", "--pca-iter", "--method"], CVECTOR),
    Row::refused(&["--tts-lang", "--tts-voice", "--tts-speaker-file"], "sound is not generated"),
    Row::refused(
        &[
            "--diffusion-steps",
            "--diffusion-eps",
            "--diffusion-algorithm",
            "--diffusion-alg-temp",
            "--diffusion-block-length",
            "--diffusion-cfg-scale",
            "--diffusion-add-gumbel-noise",
        ],
        DIFFUSION,
    ),
    Row::refused_switch(&["--diffusion-visual"], DIFFUSION),
    Row::refused(
        &[
            "-lr",
            "--learning-rate",
            "-lr-min",
            "--learning-rate-min",
            "-decay-epochs",
            "--learning-rate-decay-epochs",
            "-wd",
            "--weight-decay",
            "-val-split",
            "--val-split",
            "-epochs",
            "--epochs",
            "-opt",
            "--optimizer",
        ],
        FINETUNE,
    ),
    Row::refused_switch(
        &["--dflash", "--eagle3"],
        "such drafts are not supported: use -md, --spec-type draft-mtp or ngram-simple",
    ),
    Row::refused(
        &[
            "--imatrix",
            "--include-weights",
            "--exclude-weights",
            "--output-tensor-type",
            "--token-embedding-type",
            "--tensor-type",
            "--tensor-type-file",
            "--prune-layers",
            "--max-buffer-size",
        ],
        QUANTIZE,
    ),
    Row::refused_switch(&["--allow-requantize", "--leave-output-tensor", "--pure", "--keep-split"], QUANTIZE),
    Row::refused(&["--split-max-size", "--split-max-tensors"], SPLIT),
    Row::refused_switch(&["--split", "--merge", "--no-tensor-first-split", "--delete-splits"], SPLIT),
    Row::refused_switch(&["--dry-run"], "`autoplace plan` loads nothing"),
    Row::refused(&["-H"], "`autoplace-rpc-server` listens for another machine (docs/rpc.md)"),
    Row::refused_switch(&["--cache"], "`autoplace-rpc-server` listens for another machine (docs/rpc.md)"),
    Row::refused(
        &["--cool-drift", "--cool-eps", "--cool-max-retry", "--cool-max-wait", "--dk", "--dtype", "--reps"],
        TUNING,
    ),
    Row::refused_switch(&["--no-cooldown"], TUNING),
    Row::refused_switch(&["--check", "--save-logits"], "llama-results and llama-debug test llama.cpp itself"),
    Row::refused(&["--logits-output-dir", "--tensor-filter"], "llama-results and llama-debug test llama.cpp itself"),
];
