//! Flags of llama.cpp's programs, as somebody has them in a script: a [`Request`] that places the model as they would.

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{GpuLayers, HostParts, Request};

/// What these flags ask for, and `asked` for the rest, whole layers as llama.cpp places them; `all` are there.
pub(super) fn request(text: &str, asked: &Request, all: u32) -> Result<Request, String> {
    let words = shlex::split(text).ok_or("a quotation mark is missing")?;
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
                    "auto" => GpuLayers::Auto,
                    "all" => GpuLayers::All,
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
    use super::request;
    use autoplace::memory::{FlashAttention, KvType};
    use autoplace::plan::{Context, GpuLayers, Request};

    #[test]
    fn what_is_in_a_script_is_asked_for() {
        let request = |flags| request(flags, &Request::new().n_ctx(512), 81).unwrap();
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
            let error = request(flags, &Request::new(), 81).unwrap_err();
            assert!(error.contains(word), "{flags}: {error}");
        }
    }
}
