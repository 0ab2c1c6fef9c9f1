//! The flags for the model and its placement.

use std::path::Path;

use super::lists::entries;
use super::{Here, Row, Value};

const VIDEO: &str = "images and sounds are read, but not videos";
const PROJECTOR: &str = "the plan decides where the projector is: on a GPU that has room for it, otherwise on the host";
const ONE_FILE: &str = "a model is a file, or a hub's model with its quantisation: -hf OWNER/NAME:Q4_K_M";

pub(super) const ROWS: &[Row] = &[
    Row::reads(&["-m", "--model"], |path| Ok(vec![path.to_owned()]), "`MODEL`").library("`Model::load`, `Model::builder`"),
    Row::reads(
        &["-hf", "-hfr", "--hf-repo"],
        |name| Ok(vec![format!("hf:{}", name.strip_prefix("hf:").unwrap_or(name)), "--yes".to_owned()]),
        "`hf:OWNER/NAME[:QUANT]`, and `--yes` if files may be fetched. Without a quantisation, the best file for this machine is chosen (`--prefer`), and not Q4_K_M",
    )
    .library("`Model::builder(\"hf:OWNER/NAME:QUANT\")` with the feature `hub`, and `.fetch(true)` of the builder to fetch missing files"),
    Row::flag(&["-hft", "--hf-token"], &["--hf-token"]).library("`.hub(h)` of the builder: another hub, token or cache ([hub.md](hub.md))"),
    Row::switch(&["--offline"], "--offline").library("`.offline(true)` of a `Hub`"),
    Row::refused(&["-mu", "--model-url", "-dr", "--docker-repo", "-hff", "--hf-file"], ONE_FILE),
    Row::refused_switch(&["-cl", "--cache-list"], "`autoplace list` lists the models on this machine"),
    Row::flag(&["-ngl", "--gpu-layers", "--n-gpu-layers"], &["--ngl"]).library("`.n_gpu_layers(n)` of the builder: at most n, and fewer if they do not fit. `GpuLayers::Exactly(n)` is n or an error, `GpuLayers::All` all of them or an error. Default: as many as make it fastest"),
    Row::only(&["-fit", "--fit"], &["on", "enabled", "true", "1"], "every load is planned; stated values (-ngl, -c, -ot, -ts) are not changed").library("always on"),
    Row::reads(&["-fitt", "--fit-target"], fit_target, "`--headroom NMiB`").library("`.headroom(h)` of the builder"),
    Row::reads(&["-fitc", "--fit-ctx"], |tokens| Ok(vec![format!("--ctx={tokens}+")]), "`--ctx N+`").library("`Context::AtLeast(n)`"),
    Row::flag(&["-dev", "--device"], &["--device"]).library("`.machine(m)` of the builder: the GPUs that are left in it are used. `Machine::detect` lists them"),
    Row::refused_switch(&["--list-devices"], "`autoplace devices` lists them"),
    Row::reads(&["-sm", "--split-mode"], split_mode, "`--split-mode none`: one GPU. `layer` is the default. `row` and `tensor` are refused: the memory that they allocate is not known before a load").library("planned: whole layers, over as many GPUs as make it fastest. `none`: `.machine(m)` with one GPU"),
    Row::flag(&["-mg", "--main-gpu"], &["--main-gpu"]).library("`.machine(m)` with this GPU alone; only `none` of the split modes has one"),
    Row::flag(&["-ts", "--tensor-split"], &["--tensor-split"]).library("`tensor_split` of a `Request`"),
    Row::flag(&["-ot", "--override-tensor"], &["--override-tensor"]).library("`overrides` of a `Request`"),
    Row::switch(&["-cmoe", "--cpu-moe"], "--cpu-moe").library("`overrides` of a `Request`; `HostParts` limits what a plan may leave on the host by itself"),
    Row::flag(&["-ncmoe", "--n-cpu-moe"], &["--n-cpu-moe"]).library("the same"),
    Row::flag(&["-ncffn", "--n-cpu-ffn"], &["--n-cpu-ffn"]).library("the same"),
    Row::reads(&["--moe-cache-mib"], moe_cache, "`--moe-cache NMiB`, and `off` for 0. Without either, a plan has a cache if the cache makes the workload faster").library("`.moe_cache(MoeCache::Bytes(n))` of the builder; `MoeCache::Auto` by default"),
    Row::reads(&["-lm", "--load-mode"], load_mode, "`auto`, `mmap`: the default. `none`: `--no-mmap`. `mlock` is refused: a plan leaves enough host memory free, and llama.cpp only warns if the system refuses the lock. `dio` is refused too: it is no faster for a file that is read once").library("`.mmap(false)` of the builder"),
    Row::on_off([&["--mmap"], &["--no-mmap"]], ["", "--no-mmap"]).library("the same; earlier versions of llama.cpp have it"),
    Row::refused_switch(&["--mlock"], "a plan leaves enough host memory free, so nothing is paged out; and llama.cpp only warns if the system refuses the lock"),
    Row::refused_switch(&["-dio", "--direct-io"], "it is no faster for a file that is read once"),
    Row::only(&["-lzm", "--lazy-mode"], &["auto"], "no plan counts the bytes of rows that are read on demand"),
    Row::on_off([&["--repack"], &["-nr", "--no-repack"]], ["", "--no-repack"]).library("`.repack(false)` of the builder"),
    Row::never([&["--no-host"], &[]], "a plan counts the host's weights in llama.cpp's default buffers"),
    // `auto` is a value of our own flag.
    Row::new(&["-kvo", "--kv-offload"], Value::Optional(&["on", "off", "0", "1", "auto"]), Here::Switch("--kv-offload=on", "--kv-offload=off")).off(&["-nkvo", "--no-kv-offload"]).library("`.offload_kqv(false)` of the builder"),
    Row::on_off([&["--op-offload"], &["-nopo", "--no-op-offload"]], ["", "--no-op-offload"]).library("`.op_offload(false)` of the builder"),
    Row::refused_switch(&["--check-tensors"], "headers are always checked; a damaged weight causes a wrong text, not a crash"),
    Row::refused(&["--override-kv"], "a plan is made from the file as it is: correct the file instead"),
    Row::refused(&["--numa"], "the system binds threads to cores (`numactl`)"),
    Row::reads(&["-rpc", "--rpc"], |servers| Ok(each("--rpc", servers)), "`--rpc HOST:PORT` for each").library("feature `rpc`, and `ModelBuilder::rpc` for each server"),
    Row::always([&["--warmup"], &["--no-warmup"]], "every load computes once, to find GPUs that take more memory than was planned").library("`.verify(Verify::Quick)` of the builder"),
    Row::reads(&["--lora"], |files| Ok(each("--lora", files)), "`--lora FILE` for each").library("`.lora(path, scale)` of the builder; `.lora([(name, scale)])` of a request"),
    Row::reads(&["--lora-scaled"], |files| Ok(each("--lora-scaled", files)), "`--lora-scaled FILE:SCALE` for each").library("the same"),
    Row::reads(&["--control-vector"], |files| Ok(each("--control-vector", files)), "`--control-vector FILE` for each").library("`.control_vector(path, scale)` of the builder"),
    Row::reads(&["--control-vector-scaled"], |files| Ok(each("--control-vector-scaled", files)), "`--control-vector-scaled FILE:SCALE` for each").library("the same"),
    Row::new(&["--control-vector-layer-range"], Value::Two, Here::Flag(&["--control-vector-layer-range"])).library("`.control_vector_layers(first..=last)` of the builder"),
    Row::flag(&["-mm", "--mmproj"], &["--with=mmproj=", "--mmproj"]).library("`.mmproj(path)` of the builder with the feature `media`; `load::mmproj_beside` finds a file beside the model, and `hf:OWNER/NAME` one of a repository"),
    Row::flag(&["--image-max-tokens"], &["--image-max-tokens"]).library("`.image_max_tokens(n)` of the builder"),
    Row::reads(&["--image"], |files| Ok(each("--image", files)), "`--image FILE` for each").library("`Part::image(Image::open(path)?)` in a message, `.then_media` of a `Prompt`"),
    Row::reads(&["--audio"], |files| Ok(each("--audio", files)), "`--audio FILE` for each").library("`Part::audio(Sound::open(path)?)`"),
    Row::refused(&["-mmu", "--mmproj-url"], ONE_FILE),
    Row::refused(&["-mmdev", "--mmproj-device"], PROJECTOR),
    Row::refused(&["--image-min-tokens"], "the number of tokens of an image follows from its size and from the projector's file"),
    Row::refused(&["--video", "--video-fps", "--video-timestamp-interval", "--video-ffmpeg-dir"], VIDEO),
    Row::on_off([&["--mmproj-auto"], &["--no-mmproj", "--no-mmproj-auto"]], ["", "--no-mmproj"]).library("without `.mmproj`"),
    Row::always([&["--mmproj-offload"], &["--no-mmproj-offload"]], PROJECTOR),
    Row::refused_switch(&["--vision-gemma-4b-default", "--vision-gemma-12b-default", "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--embd-gemma-default", "--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default"], "the model is named: hf:OWNER/NAME, whose best file for this machine is chosen"),
];

/// Writes one of our flags for each entry of a list. If there is a file whose name is the whole list, the list is a
/// single entry.
fn each(flag: &str, list: &str) -> Vec<String> {
    let entries = if Path::new(list).exists() { vec![list.to_owned()] } else { entries(list) };
    entries.into_iter().map(|entry| format!("{flag}={entry}")).collect()
}

/// Translates the MiB that stay free on each GPU. Only one number for all GPUs is supported.
fn fit_target(list: &str) -> Result<Vec<String>, String> {
    let mut targets: Vec<&str> = list.split([',', '/']).collect();
    targets.dedup();
    match targets[..] {
        [mib] if mib.parse::<u32>().is_ok() => Ok(vec![format!("--headroom={mib}MiB")]),
        [_] => Err(format!("`{list}` is not a number of MiB")),
        _ => Err("the headroom is the same for every GPU: one number of MiB".to_owned()),
    }
}

/// Translates the size in MiB of the cache of experts, on all GPUs together.
fn moe_cache(mib: &str) -> Result<Vec<String>, String> {
    match mib.parse::<u32>() {
        Ok(0) => Ok(vec!["--moe-cache=off".to_owned()]),
        Ok(mib) => Ok(vec![format!("--moe-cache={mib}MiB")]),
        Err(_) => Err(format!("`{mib}` is not a number of MiB")),
    }
}

fn split_mode(mode: &str) -> Result<Vec<String>, String> {
    match mode {
        "layer" => Ok(Vec::new()),
        "none" => Ok(vec!["--split-mode=none".to_owned()]),
        "row" | "tensor" => {
            Err(format!("the memory that `{mode}` allocates is not known before a load: use `layer` or `none`"))
        }
        _ => Err(format!("`{mode}` is not a supported split mode: use `layer` or `none`")),
    }
}

fn load_mode(mode: &str) -> Result<Vec<String>, String> {
    match mode {
        "auto" | "mmap" => Ok(Vec::new()),
        "none" => Ok(vec!["--no-mmap".to_owned()]),
        "mlock" | "mmap+mlock" => {
            Err(format!("`{mode}` is not needed: a plan leaves enough host memory free, so nothing is paged out"))
        }
        "dio" => Err("`dio` is no faster for a file that is read once".to_owned()),
        _ => Err(format!("`{mode}` is not a supported load mode: use auto, mmap or none")),
    }
}
