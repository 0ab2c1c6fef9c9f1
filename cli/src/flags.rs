//! Flags of llama.cpp's programs, in a script or as one of them runs: a [`Request`] that places the model as they do.

use std::collections::BTreeMap;

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{Context, GpuLayers, HostParts, Request};

/// What places a model, by the names of common/arg.cpp.
struct Setting {
    /// The first is what it is called here.
    names: &'static [&'static str],
    /// Of one without a value: what turns it off again.
    off: &'static [&'static str],
    has_value: bool,
    /// Behind `LLAMA_ARG_`.
    variable: &'static str,
}

const fn valued(names: &'static [&'static str], variable: &'static str) -> Setting {
    Setting { names, off: &[], has_value: true, variable }
}

const fn switch(names: &'static [&'static str], off: &'static [&'static str], variable: &'static str) -> Setting {
    Setting { names, off, has_value: false, variable }
}

/// Those that a request says.
const SAID: [Setting; 10] = [
    valued(&["-ngl", "--gpu-layers", "--n-gpu-layers"], "N_GPU_LAYERS"),
    valued(&["-c", "--ctx-size"], "CTX_SIZE"),
    valued(&["-b", "--batch-size"], "BATCH"),
    valued(&["-ub", "--ubatch-size"], "UBATCH"),
    valued(&["-ctk", "--cache-type-k"], "CACHE_TYPE_K"),
    valued(&["-ctv", "--cache-type-v"], "CACHE_TYPE_V"),
    valued(&["-fa", "--flash-attn"], "FLASH_ATTN"),
    valued(&["-fit", "--fit"], "FIT"),
    switch(&["-kvo", "--kv-offload"], &["-nkvo", "--no-kv-offload"], "KV_OFFLOAD"),
    switch(&["--swa-full"], &[], "SWA_FULL"),
];

/// Those of a server, which say which model it is and for how many at once.
const SERVED: [Setting; 3] = [
    valued(&["-m", "--model"], "MODEL"),
    valued(&["-np", "--parallel"], "N_PARALLEL"),
    switch(&["-kvu", "--kv-unified"], &["-no-kvu", "--no-kv-unified"], "KV_UNIFIED"),
];

/// Those that no request says.
const OTHERS: [Setting; 18] = [
    valued(&["-ot", "--override-tensor"], "OVERRIDE_TENSOR"),
    switch(&["-cmoe", "--cpu-moe"], &[], "CPU_MOE"),
    valued(&["-ncmoe", "--n-cpu-moe"], "N_CPU_MOE"),
    valued(&["-ncffn", "--n-cpu-ffn"], "N_CPU_FFN"),
    valued(&["-ts", "--tensor-split"], "TENSOR_SPLIT"),
    valued(&["-sm", "--split-mode"], "SPLIT_MODE"),
    valued(&["-mg", "--main-gpu"], "MAIN_GPU"),
    valued(&["-dev", "--device"], "DEVICE"),
    valued(&["--rpc"], "RPC"),
    valued(&["-mm", "--mmproj"], "MMPROJ"),
    valued(&["-mmu", "--mmproj-url"], "MMPROJ_URL"),
    valued(&["-md", "--model-draft", "--spec-draft-model"], "SPEC_DRAFT_MODEL"),
    valued(&["-hfd", "-hfrd", "--hf-repo-draft"], "SPEC_DRAFT_HF_REPO"),
    valued(&["--spec-type"], "SPEC_TYPE"),
    valued(&["--lora", "--lora-scaled"], ""),
    valued(&["--control-vector", "--control-vector-scaled"], ""),
    switch(&["--embedding", "--embeddings", "--rerank", "--reranking"], &[], "EMBEDDINGS"),
    switch(&["-nr", "--no-repack", "--no-op-offload"], &[], ""),
];

/// What was said, by the first name of each setting; a later word overrides an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    said: BTreeMap<&'static str, String>,
    /// What places the model too, and no request says.
    pub(crate) others: Vec<&'static str>,
}

impl Flags {
    /// A script's, which are all known. Fails with the word that is not, or for want of a quotation mark.
    pub(crate) fn of_script(text: &str) -> Result<Self, String> {
        let words = shlex::split(text).ok_or("a quotation mark is missing")?;
        let mut flags = Self::default();
        let mut rest = words.as_slice();
        while let [word, behind @ ..] = rest {
            rest = flags.take(&SAID, word, behind).ok_or_else(|| {
                format!("{word} is not known; known are -ngl, -c, -b, -ub, -ctk, -ctv, -fa, -fit, -nkvo and --swa-full")
            })?;
        }
        Ok(flags)
    }

    /// Those among a server's arguments, and its variables, which the arguments override.
    pub(crate) fn of_server<'a>(words: &[String], variable: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut flags = Self::default();
        let all = || SAID.iter().chain(&SERVED).chain(&OTHERS);
        for setting in all().filter(|setting| !setting.variable.is_empty()) {
            if let Some(value) = variable(&format!("LLAMA_ARG_{}", setting.variable)) {
                let is_off = !setting.has_value && is_no(value);
                let value = if is_off { "off" } else { value };
                flags.put(setting, value);
            }
        }
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            let taken = flags.take(all(), word, behind);
            rest = taken.unwrap_or(behind);
        }
        flags
    }

    /// Takes one word and its value, and gives what is behind them; `None`: it is none of these.
    fn take<'w>(
        &mut self,
        settings: impl IntoIterator<Item = &'static Setting>,
        word: &str,
        behind: &'w [String],
    ) -> Option<&'w [String]> {
        // common/arg.cpp takes both.
        let name = match word.strip_prefix("--") {
            Some(name) => format!("--{}", name.replace('_', "-")),
            None => word.to_owned(),
        };
        let has = |names: &[&str]| names.contains(&name.as_str());
        let setting = settings.into_iter().find(|it| has(it.names) || has(it.off))?;
        if !setting.has_value {
            self.put(setting, if has(setting.off) { "off" } else { "on" });
            return Some(behind);
        }
        // Once it had no value.
        let is_bare =
            setting.names[0] == "-fa" && behind.first().is_none_or(|next| next.starts_with('-') && next != "-1");
        let (value, behind) = match behind {
            _ if is_bare => ("on", behind),
            [value, behind @ ..] => (value.as_str(), behind),
            [] => ("", behind),
        };
        self.put(setting, value);
        Some(behind)
    }

    fn put(&mut self, setting: &Setting, value: &str) {
        let name = setting.names[0];
        if !OTHERS.iter().any(|other| other.names[0] == name) {
            self.said.insert(name, value.to_owned());
        } else if value != "off" && !self.others.contains(&name) {
            self.others.push(name);
        }
    }

    /// Says a setting, which is one of these.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.said.insert(name, value.into());
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.said.get(name).map(String::as_str)
    }

    /// What these ask for, and `asked` for the rest, whole layers as llama.cpp places them; `all` are there.
    /// Fails with the setting whose value is missing or none of its values.
    pub(crate) fn request(&self, asked: &Request, all: u32) -> Result<Request, String> {
        let mut request = asked.clone().host_parts(HostParts::None);
        for (&flag, value) in &self.said {
            if value.is_empty() {
                return Err(format!("the value behind {flag} is missing"));
            }
            let wrong = || format!("{flag} {value}: no such value");
            let number = || value.parse::<u32>().map_err(|_| wrong());
            let ty = || value.parse::<KvType>().map_err(|_| wrong());
            match flag {
                "-ngl" => {
                    request.gpu_layers = match value.as_str() {
                        "auto" | "-1" => GpuLayers::Auto,
                        "all" => GpuLayers::All,
                        n if n.parse().is_ok_and(|n: i32| n < 0) => GpuLayers::All,
                        // 99 is what people write for all.
                        _ => GpuLayers::Exactly(number()?.min(all)),
                    }
                }
                "-c" => {
                    request.context = match number()? {
                        0 => Context::Model,
                        tokens => Context::Tokens(tokens),
                    }
                }
                "-b" => request.params.n_batch = number()?,
                "-ub" => request = request.n_ubatch(number()?),
                "-ctk" => request.params.type_k = ty()?,
                "-ctv" => request.params.type_v = ty()?,
                "-fa" => {
                    request.params.flash_attn = match value.as_str() {
                        "auto" | "-1" => FlashAttention::Auto,
                        yes if is_yes(yes) => FlashAttention::On,
                        no if is_no(no) => FlashAttention::Off,
                        _ => return Err(wrong()),
                    }
                }
                "-kvo" => request.params.offload_kqv = value != "off",
                "--swa-full" => request.params.swa_full = value != "off",
                // `-fit`, and what a server is asked for.
                _ => {}
            }
        }
        // What nobody chooses is all.
        if request.gpu_layers == GpuLayers::Auto && self.get("-fit").is_some_and(is_no) {
            request.gpu_layers = GpuLayers::All;
        }
        Ok(request)
    }
}

/// common/arg.cpp, `is_truthy`.
fn is_yes(value: &str) -> bool {
    ["on", "enabled", "true", "1"].contains(&value)
}

/// The same, `is_falsey`.
fn is_no(value: &str) -> bool {
    ["off", "disabled", "false", "0"].contains(&value)
}

#[cfg(test)]
mod tests {
    use super::Flags;
    use autoplace::memory::{FlashAttention, KvType};
    use autoplace::plan::{Context, GpuLayers, Request};

    fn server(line: &str, environment: &[(&str, &'static str)]) -> Flags {
        let variable = |name: &str| Some(environment.iter().find(|(key, _)| *key == name)?.1);
        Flags::of_server(&shlex::split(line).unwrap(), variable)
    }

    #[test]
    fn values_mean_what_they_mean_to_llama_cpp() {
        let request = |line: &str| server(line, &[]).request(&Request::new().n_ctx(512), 81).unwrap();
        let asked = request("-ngl 58 -c 8192 -ub 1024 -ctk q8_0 -ctv q4_0 -fa on -nkvo");
        assert_eq!((asked.gpu_layers, asked.context), (GpuLayers::Exactly(58), Context::Tokens(8192)));
        let params = &asked.params;
        assert_eq!((params.type_k, params.type_v, params.n_ubatch), (KvType::Q8_0, KvType::Q4_0, 1024));
        assert!(!params.offload_kqv && !params.swa_full);
        assert_eq!(request("").context, Context::Tokens(512));
        for (line, layers) in [
            ("", GpuLayers::Auto),
            ("-ngl 99", GpuLayers::Exactly(81)),
            ("-ngl -1", GpuLayers::Auto),
            ("-ngl -3", GpuLayers::All),
            ("-ngl auto -fit off", GpuLayers::All),
            ("-fit off", GpuLayers::All),
            ("-fit off -ngl 3", GpuLayers::Exactly(3)),
        ] {
            assert_eq!(request(line).gpu_layers, layers, "{line}");
        }
        for (line, flash) in [
            ("-fa", FlashAttention::On),
            ("-fa on", FlashAttention::On),
            ("-fa -m a", FlashAttention::On),
            ("-fa 0", FlashAttention::Off),
            ("-fa enabled", FlashAttention::On),
            ("-fa -1", FlashAttention::Auto),
        ] {
            assert_eq!(request(line).params.flash_attn, flash, "{line}");
        }
        assert!(request("-nkvo -kvo").params.offload_kqv);
    }

    #[test]
    fn of_all_that_a_server_was_started_with_what_places_its_model_is_taken() {
        let line = "-m a.gguf --temp -1 --n_gpu_layers 4 --host ::1 -ot exps=CPU --swa-full -np 2 -kvu --no-kv-unified";
        let environment = [
            ("LLAMA_ARG_N_GPU_LAYERS", "9"),
            ("LLAMA_ARG_CTX_SIZE", "2048"),
            ("LLAMA_ARG_KV_OFFLOAD", "false"),
            ("LLAMA_ARG_CPU_MOE", "0"),
            ("LLAMA_ARG_TENSOR_SPLIT", "1,1"),
        ];
        let flags = server(line, &environment);
        let said = ["-m", "-ngl", "-c", "--swa-full", "-np", "-kvu", "-kvo"].map(|name| flags.get(name).unwrap());
        assert_eq!(said, ["a.gguf", "4", "2048", "on", "2", "off", "off"]);
        assert_eq!(flags.others, ["-ts", "-ot"]);
        // One whose value is missing says so where it is read.
        let missing = server("-m a -ngl", &[]).request(&Request::new(), 1);
        assert!(missing.unwrap_err().contains("-ngl is missing"));
    }
}
