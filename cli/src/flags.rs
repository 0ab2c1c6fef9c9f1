//! Parses flags of llama.cpp's programs into a [`Request`] that leads to the same placement. The flags come from a
//! script or from a running server.

use std::collections::BTreeMap;

use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{Context, GpuLayers, HostParts, Request};

use crate::llama_cpp::{self, Row, Value, is_no, is_yes};

/// A flag that affects placement, from the [table](llama_cpp), and the flag's environment variable without the prefix
/// `LLAMA_ARG_`.
struct Setting {
    /// The spelling that stands for the flag in this module.
    name: &'static str,
    variable: &'static str,
}

const fn setting(name: &'static str, variable: &'static str) -> Setting {
    Setting { name, variable }
}

impl Setting {
    fn is_switch(&self) -> bool {
        llama_cpp::find(self.name).is_some_and(|row| self.name != "-fa" && !matches!(row.value, Value::One))
    }
}

/// A flag's value, and the words that follow it. The value is empty if the flag has none.
fn value<'w>(row: &Row, behind: &'w [String]) -> (&'w str, &'w [String]) {
    match (row.value, behind) {
        (Value::One, [value, behind @ ..]) => (value, behind),
        (Value::Two, [value, _, behind @ ..]) => (value, behind),
        (Value::One | Value::Two, _) => ("", &[]),
        (Value::Optional(_), [value, behind @ ..]) if row.takes(value) => (value, behind),
        (Value::None | Value::Optional(_), _) => ("on", behind),
    }
}

/// Flags that a request can express.
const SAID: [Setting; 10] = [
    setting("-ngl", "N_GPU_LAYERS"),
    setting("-c", "CTX_SIZE"),
    setting("-b", "BATCH"),
    setting("-ub", "UBATCH"),
    setting("-ctk", "CACHE_TYPE_K"),
    setting("-ctv", "CACHE_TYPE_V"),
    setting("-fa", "FLASH_ATTN"),
    setting("-fit", "FIT"),
    setting("-kvo", "KV_OFFLOAD"),
    setting("--swa-full", "SWA_FULL"),
];

/// Flags with which a server sets its model and its number of sequences.
const SERVED: [Setting; 3] = [setting("-m", "MODEL"), setting("-np", "N_PARALLEL"), setting("-kvu", "KV_UNIFIED")];

/// Flags that no request can express.
const OTHERS: [Setting; 22] = [
    setting("-ot", "OVERRIDE_TENSOR"),
    setting("-cmoe", "CPU_MOE"),
    setting("-ncmoe", "N_CPU_MOE"),
    setting("-ncffn", "N_CPU_FFN"),
    setting("--moe-cache-mib", "MOE_CACHE_MIB"),
    setting("-ts", "TENSOR_SPLIT"),
    setting("-sm", "SPLIT_MODE"),
    setting("-mg", "MAIN_GPU"),
    setting("-dev", "DEVICE"),
    setting("--rpc", "RPC"),
    setting("-mm", "MMPROJ"),
    setting("-mmu", "MMPROJ_URL"),
    setting("-md", "SPEC_DRAFT_MODEL"),
    setting("-hfd", "SPEC_DRAFT_HF_REPO"),
    setting("--spec-type", "SPEC_TYPE"),
    setting("--lora", ""),
    setting("--lora-scaled", ""),
    setting("--control-vector", ""),
    setting("--embedding", "EMBEDDINGS"),
    setting("--rerank", "RERANKING"),
    setting("-nr", ""),
    setting("--no-op-offload", ""),
];

/// The values that were given, by the main spelling of each setting. If a setting is given twice, the later word
/// counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    said: BTreeMap<&'static str, String>,
    /// Settings that were given and that affect placement, but that no request can express.
    pub(crate) others: Vec<&'static str>,
}

impl Flags {
    /// Parses a script, which must contain only known flags. The error contains the unknown word, or says that a
    /// quotation mark is missing.
    pub(crate) fn of_script(text: &str) -> Result<Self, String> {
        let words = shlex::split(text).ok_or("a quotation mark is missing")?;
        let mut flags = Self::default();
        let mut rest = words.as_slice();
        while let [word, behind @ ..] = rest {
            rest = flags.take(&SAID, word, behind).ok_or_else(|| {
                format!("{word} is not a known flag; the known ones are -ngl, -c, -b, -ub, -ctk, -ctv, -fa, -fit, -nkvo and --swa-full")
            })?;
        }
        Ok(flags)
    }

    /// Finds the known flags among a server's arguments and environment variables. If both set a value, the argument
    /// counts.
    pub(crate) fn of_server<'a>(words: &[String], variable: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut flags = Self::default();
        let all = || SAID.iter().chain(&SERVED).chain(&OTHERS);
        for setting in all().filter(|setting| !setting.variable.is_empty()) {
            if let Some(value) = variable(&format!("LLAMA_ARG_{}", setting.variable)) {
                let is_off = setting.is_switch() && is_no(value);
                let value = if is_off { "off" } else { value };
                flags.put(setting, value);
            }
        }
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            let taken = flags.take(all(), word, behind);
            // A value of another flag is skipped, even if the value looks like a flag.
            rest = taken.unwrap_or_else(|| llama_cpp::find(word).map_or(behind, |row| value(row, behind).1));
        }
        flags
    }

    /// Reads one word and its value, and returns the words after them; `None` if the word is not one of these settings.
    fn take<'w>(
        &mut self,
        settings: impl IntoIterator<Item = &'static Setting>,
        word: &str,
        behind: &'w [String],
    ) -> Option<&'w [String]> {
        let row = llama_cpp::find(word)?;
        let setting = settings.into_iter().find(|setting| row.spellings().any(|spelling| spelling == setting.name))?;
        let (value, behind) = value(row, behind);
        let turns_off = |name: &str| row.off.contains(&name);
        // `-nr` turns something off, but the table lists it as a separate setting. So it is not inverted.
        let is_off =
            setting.is_switch() && (turns_off(&word.replace('_', "-")) != turns_off(setting.name)) != is_no(value);
        self.put(setting, if is_off { "off" } else { value });
        Some(behind)
    }

    fn put(&mut self, setting: &Setting, value: &str) {
        let name = setting.name;
        if !OTHERS.iter().any(|other| other.name == name) {
            self.said.insert(name, value.to_owned());
        } else if value != "off" && !self.others.contains(&name) {
            self.others.push(name);
        }
    }

    /// Sets a setting.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.said.insert(name, value.into());
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.said.get(name).map(String::as_str)
    }

    /// The request `asked` with these flags set. As in llama.cpp, only whole layers are placed. `all` is the number of
    /// the model's layers. The error contains the setting whose value is missing or invalid.
    pub(crate) fn request(&self, asked: &Request, all: u32) -> Result<Request, String> {
        let mut request = asked.clone().host_parts(HostParts::None);
        for (&flag, value) in &self.said {
            if value.is_empty() {
                return Err(format!("the value of {flag} is missing"));
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
                        // People write 99 if they mean all layers.
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
                // `-fit`, and the settings of a server, are read elsewhere.
                _ => {}
            }
        }
        // If llama.cpp's fit is off, all layers go to the GPU unless a number is set.
        if request.gpu_layers == GpuLayers::Auto && self.get("-fit").is_some_and(is_no) {
            request.gpu_layers = GpuLayers::All;
        }
        Ok(request)
    }
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
    fn only_flags_that_affect_placement_are_read_from_a_server() {
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
        // The error for a missing value comes only when the setting is read.
        let missing = server("-m a -ngl", &[]).request(&Request::new(), 1);
        assert!(missing.unwrap_err().contains("-ngl is missing"));
    }
}
