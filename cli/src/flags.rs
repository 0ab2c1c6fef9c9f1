//! Flags of llama.cpp's programs, in a script or as one of them runs: a [`Request`] that places the model as they do.

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{GpuLayers, HostParts, Request};

/// A script's words; `None` where a quotation mark is missing.
pub(crate) fn words(text: &str) -> Result<Vec<String>, String> {
    shlex::split(text).ok_or_else(|| "a quotation mark is missing".to_owned())
}

/// Flags that place a model and have a value.
const VALUED: [&[&str]; 7] = [
    &["-ngl", "--gpu-layers", "--n-gpu-layers"],
    &["-c", "--ctx-size"],
    &["-b", "--batch-size"],
    &["-ub", "--ubatch-size"],
    &["-ctk", "--cache-type-k"],
    &["-ctv", "--cache-type-v"],
    &["-fa", "--flash-attn"],
];
/// Those without.
const SWITCHES: [&str; 3] = ["-nkvo", "--no-kv-offload", "--swa-full"];
/// Those that place it too, and that no request says.
const OTHERS: [&str; 19] = [
    "-ot",
    "--override-tensor",
    "-cmoe",
    "--cpu-moe",
    "-ncmoe",
    "--n-cpu-moe",
    "-ts",
    "--tensor-split",
    "-sm",
    "--split-mode",
    "-dev",
    "--device",
    "--rpc",
    "-mm",
    "--mmproj",
    "-md",
    "--model-draft",
    "--lora",
    "--control-vector",
];

/// Of a program's arguments those that [`request`] takes, and the names of those that place the model beside them.
pub(crate) fn placing(arguments: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut known, mut others) = (Vec::new(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        // common/arg.cpp takes both.
        let flag = match argument.strip_prefix("--") {
            Some(name) => format!("--{}", name.replace('_', "-")),
            None => argument.clone(),
        };
        if VALUED.iter().any(|names| names.contains(&flag.as_str())) {
            known.push(flag);
            known.extend(arguments.next().cloned());
        } else if SWITCHES.contains(&flag.as_str()) {
            known.push(flag);
        } else if OTHERS.contains(&flag.as_str()) {
            others.push(flag);
        }
    }
    (known, others)
}

/// What these words ask for, and `asked` for the rest, whole layers as llama.cpp places them; `all` are there.
pub(crate) fn request(words: &[String], asked: &Request, all: u32) -> Result<Request, String> {
    let mut words = words.iter();
    let mut request = asked.clone().host_parts(HostParts::None);
    let mut layers = request.gpu_layers;
    let (mut keys, mut values) = (request.params.type_k, request.params.type_v);
    while let Some(flag) = words.next() {
        let mut value = || words.next().ok_or(format!("the value behind {flag} is missing"));
        let wrong = |value: &str| format!("{flag} {value}: no such value");
        let number = |value: &String| value.parse::<u32>().map_err(|_| wrong(value));
        let ty = |value: &String| value.parse::<KvType>().map_err(|_| wrong(value));
        match flag.as_str() {
            "-ngl" | "--gpu-layers" | "--n-gpu-layers" => {
                layers = match value()?.as_str() {
                    "auto" | "-1" => GpuLayers::Auto,
                    "all" | "-2" => GpuLayers::All,
                    // 99 is what people write for all.
                    n => GpuLayers::Exactly(number(&n.to_owned())?.min(all)),
                };
            }
            "-c" | "--ctx-size" => request = request.n_ctx(number(value()?)?),
            "-b" | "--batch-size" => request = request.n_batch(number(value()?)?),
            "-ub" | "--ubatch-size" => request = request.n_ubatch(number(value()?)?),
            "-ctk" | "--cache-type-k" => keys = ty(value()?)?,
            "-ctv" | "--cache-type-v" => values = ty(value()?)?,
            "-fa" | "--flash-attn" => {
                request = request.flash_attention(match value()?.as_str() {
                    "auto" => FlashAttention::Auto,
                    "on" => FlashAttention::On,
                    "off" => FlashAttention::Off,
                    other => return Err(wrong(other)),
                });
            }
            "-nkvo" | "--no-kv-offload" => request = request.offload_kqv(false),
            "--swa-full" => request = request.swa_full(true),
            other => {
                return Err(format!(
                    "{other} is not known; known are -ngl, -c, -b, -ub, -ctk, -ctv, -fa, -nkvo and --swa-full"
                ));
            }
        }
    }
    Ok(request.n_gpu_layers(layers).kv_types(keys, values))
}

#[cfg(test)]
mod tests {
    use super::{placing, request, words};
    use autoplace::memory::{FlashAttention, KvType};
    use autoplace::plan::{Context, GpuLayers, Request};

    #[test]
    fn what_is_in_a_script_is_asked_for() {
        let request =
            |flags| request(&words(flags).unwrap(), &Request::new().n_ctx(512), 81).unwrap();
        let asked = request("-ngl 58 -c 8192 -ub 1024 -ctk q8_0 -ctv q4_0 -fa on -nkvo");
        assert_eq!(asked.gpu_layers, GpuLayers::Exactly(58));
        assert_eq!(asked.context, Context::Tokens(8192));
        let params = &asked.params;
        assert_eq!((params.type_k, params.type_v), (KvType::Q8_0, KvType::Q4_0));
        assert_eq!((params.n_ubatch, params.flash_attn), (1024, FlashAttention::On));
        assert!(!params.offload_kqv && !params.swa_full);
        assert_eq!(request("-ngl 99").gpu_layers, GpuLayers::Exactly(81));
        let nothing = request("");
        assert_eq!((nothing.gpu_layers, nothing.context), (GpuLayers::Auto, Context::Tokens(512)));
    }

    #[test]
    fn nothing_is_dropped_in_silence() {
        for (flags, word) in [
            ("-ngl", "value behind -ngl"),
            ("-ngl many", "-ngl many"),
            ("-ctk q9", "-ctk q9"),
            ("-fa maybe", "-fa maybe"),
            ("--mlock", "--mlock is not known"),
            ("-ngl '5", "quotation mark"),
        ] {
            let error = words(flags).and_then(|it| request(&it, &Request::new(), 81));
            let error = error.unwrap_err();
            assert!(error.contains(word), "{flags}: {error}");
        }
    }

    #[test]
    fn of_all_that_a_server_was_started_with_what_places_its_model_is_taken() {
        let line =
            "-m a.gguf --temp -1 --n_gpu_layers 4 -c 2048 --host ::1 -ot exps=CPU --swa-full -np 2";
        let (known, others) = placing(&words(line).unwrap());
        assert_eq!(known, ["--n-gpu-layers", "4", "-c", "2048", "--swa-full"]);
        assert_eq!(others, ["-ot"]);
        // One whose value is missing says so where it is read.
        let (known, _) = placing(&words("-m a -ngl").unwrap());
        assert!(request(&known, &Request::new(), 1).unwrap_err().contains("-ngl is missing"));
    }
}
