//! The variables of the environment that llama.cpp's programs read in place of flags, such as `LLAMA_ARG_CTX_SIZE`.
//! Many containers with `llama-server` set nothing else.
//!
//! As in llama.cpp, a flag on the command line takes precedence over its variable, and each program reads only the
//! variables of its own flags. A test compares the list with common/arg.cpp.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{ArgAction, Command};

use super::words::{Own, Words};
use super::{Row, Value, find, is_no};

/// A variable, and the flag in whose place llama.cpp reads it.
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// One of the flag's spellings.
    pub(super) flag: &'static str,
    pub(super) readers: Readers,
}

/// The programs of llama.cpp that read a variable, as the verbs of ours that correspond to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    /// `llama-server`, and `llama-cli` or `llama-completion`.
    All,
    /// Only `llama-server`.
    Serve,
    /// Only `llama-cli` or `llama-completion`.
    Talk,
    /// Neither of them, so none of our verbs.
    None,
    /// The variable is read where its value is used, because other variables or files take precedence over it.
    Elsewhere,
}

impl Readers {
    fn include(self, verb: &str) -> bool {
        match verb {
            "plan" => !matches!(self, Self::None | Self::Elsewhere),
            "serve" => matches!(self, Self::All | Self::Serve),
            "run" | "chat" => matches!(self, Self::All | Self::Talk),
            _ => false,
        }
    }
}

const fn variable(name: &'static str, flag: &'static str, readers: Readers) -> Variable {
    Variable { name, flag, readers }
}

const fn both(name: &'static str, flag: &'static str) -> Variable {
    variable(name, flag, Readers::All)
}

const fn served(name: &'static str, flag: &'static str) -> Variable {
    variable(name, flag, Readers::Serve)
}

/// The variables of the version of llama.cpp that this workspace builds.
pub(super) const VARIABLES: &[Variable] = &[
    both("LLAMA_ARG_THREADS", "-t"),
    both("LLAMA_ARG_CTX_SIZE", "-c"),
    both("LLAMA_ARG_N_PREDICT", "-n"),
    both("LLAMA_ARG_BATCH", "-b"),
    both("LLAMA_ARG_UBATCH", "-ub"),
    both("LLAMA_ARG_SWA_FULL", "--swa-full"),
    both("LLAMA_ARG_CTX_CHECKPOINTS", "-ctxcp"),
    both("LLAMA_ARG_CACHE_RAM", "-cram"),
    both("LLAMA_ARG_CONTEXT_SHIFT", "--context-shift"),
    both("LLAMA_ARG_FLASH_ATTN", "-fa"),
    both("LLAMA_ARG_PERF", "--perf"),
    both("LLAMA_ARG_TEMPERATURE", "--temp"),
    both("LLAMA_ARG_TOP_K", "--top-k"),
    both("LLAMA_ARG_TOP_P", "--top-p"),
    both("LLAMA_ARG_MIN_P", "--min-p"),
    both("LLAMA_ARG_REPEAT_PENALTY", "--repeat-penalty"),
    both("LLAMA_ARG_PRESENCE_PENALTY", "--presence-penalty"),
    both("LLAMA_ARG_FREQUENCY_PENALTY", "--frequency-penalty"),
    both("LLAMA_ARG_BACKEND_SAMPLING", "-bs"),
    both("LLAMA_ARG_ROPE_SCALING_TYPE", "--rope-scaling"),
    both("LLAMA_ARG_ROPE_SCALE", "--rope-scale"),
    both("LLAMA_ARG_ROPE_FREQ_BASE", "--rope-freq-base"),
    both("LLAMA_ARG_ROPE_FREQ_SCALE", "--rope-freq-scale"),
    both("LLAMA_ARG_YARN_ORIG_CTX", "--yarn-orig-ctx"),
    both("LLAMA_ARG_YARN_EXT_FACTOR", "--yarn-ext-factor"),
    both("LLAMA_ARG_YARN_ATTN_FACTOR", "--yarn-attn-factor"),
    both("LLAMA_ARG_YARN_BETA_SLOW", "--yarn-beta-slow"),
    both("LLAMA_ARG_YARN_BETA_FAST", "--yarn-beta-fast"),
    both("LLAMA_ARG_KV_OFFLOAD", "-kvo"),
    both("LLAMA_ARG_REPACK", "--repack"),
    both("LLAMA_ARG_NO_HOST", "--no-host"),
    both("LLAMA_ARG_CACHE_TYPE_K", "-ctk"),
    both("LLAMA_ARG_CACHE_TYPE_V", "-ctv"),
    both("LLAMA_ARG_DEFRAG_THOLD", "-dt"),
    both("LLAMA_ARG_MMPROJ", "-mm"),
    both("LLAMA_ARG_MMPROJ_URL", "-mmu"),
    both("LLAMA_ARG_MMPROJ_AUTO", "--mmproj-auto"),
    both("LLAMA_ARG_MMPROJ_OFFLOAD", "--mmproj-offload"),
    both("MTMD_BACKEND_DEVICE", "-mmdev"),
    both("LLAMA_ARG_IMAGE_MIN_TOKENS", "--image-min-tokens"),
    both("LLAMA_ARG_IMAGE_MAX_TOKENS", "--image-max-tokens"),
    both("LLAMA_ARG_VIDEO_FPS", "--video-fps"),
    both("LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", "--video-timestamp-interval"),
    both("LLAMA_ARG_VIDEO_FFMPEG_DIR", "--video-ffmpeg-dir"),
    both("LLAMA_ARG_RPC", "--rpc"),
    both("LLAMA_ARG_LOAD_MODE", "-lm"),
    both("LLAMA_ARG_LAZY_MODE", "-lzm"),
    both("LLAMA_ARG_NUMA", "--numa"),
    both("LLAMA_ARG_DEVICE", "-dev"),
    both("LLAMA_ARG_OVERRIDE_TENSOR", "-ot"),
    both("LLAMA_ARG_CPU_MOE", "-cmoe"),
    both("LLAMA_ARG_N_CPU_MOE", "-ncmoe"),
    both("LLAMA_ARG_MOE_CACHE_MIB", "--moe-cache-mib"),
    both("LLAMA_ARG_N_CPU_FFN", "-ncffn"),
    both("LLAMA_ARG_N_GPU_LAYERS", "-ngl"),
    both("LLAMA_ARG_SPLIT_MODE", "-sm"),
    both("LLAMA_ARG_MAIN_GPU", "-mg"),
    both("LLAMA_ARG_FIT", "-fit"),
    both("LLAMA_ARG_FIT_CTX", "-fitc"),
    both("LLAMA_ARG_MODEL", "-m"),
    both("LLAMA_ARG_MODEL_URL", "-mu"),
    both("LLAMA_ARG_DOCKER_REPO", "-dr"),
    both("LLAMA_ARG_HF_REPO", "-hf"),
    both("LLAMA_ARG_HF_FILE", "-hff"),
    both("LLAMA_ARG_CHAT_TEMPLATE_KWARGS", "--chat-template-kwargs"),
    both("LLAMA_ARG_JINJA", "--jinja"),
    both("LLAMA_ARG_THINK", "--reasoning-format"),
    both("LLAMA_ARG_REASONING", "-rea"),
    both("LLAMA_ARG_REASONING_EFFORT", "--reasoning-effort"),
    both("LLAMA_ARG_THINK_BUDGET", "--reasoning-budget"),
    both("LLAMA_ARG_THINK_BUDGET_MESSAGE", "--reasoning-budget-message"),
    both("LLAMA_ARG_REASONING_PRESERVE", "--reasoning-preserve"),
    both("LLAMA_ARG_CHAT_TEMPLATE", "--chat-template"),
    both("LLAMA_ARG_CHAT_TEMPLATE_FILE", "--chat-template-file"),
    both("LLAMA_ARG_SKIP_CHAT_PARSING", "--skip-chat-parsing"),
    both("LLAMA_ARG_LOG_FILE", "--log-file"),
    both("LLAMA_ARG_LOG_JSONL", "--log-jsonl"),
    both("LLAMA_ARG_LOG_COLORS", "--log-colors"),
    both("LLAMA_ARG_OFFLINE", "--offline"),
    both("LLAMA_ARG_LOG_VERBOSITY", "-lv"),
    both("LLAMA_ARG_LOG_PREFIX", "--log-prefix"),
    both("LLAMA_ARG_LOG_TIMESTAMPS", "--log-timestamps"),
    both("LLAMA_ARG_SPEC_DRAFT_HF_REPO", "--spec-draft-hf"),
    both("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", "--spec-draft-type-k"),
    both("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", "--spec-draft-type-v"),
    both("LLAMA_ARG_SPEC_DRAFT_CPU_MOE", "--spec-draft-cpu-moe"),
    both("LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE", "--spec-draft-n-cpu-moe"),
    both("LLAMA_ARG_SPEC_DRAFT_N_MAX", "--spec-draft-n-max"),
    both("LLAMA_ARG_SPEC_DRAFT_N_MIN", "--spec-draft-n-min"),
    both("LLAMA_ARG_SPEC_DRAFT_N_UBATCH", "--spec-draft-n-ubatch"),
    both("LLAMA_ARG_SPEC_SYNTH_LEN", "--spec-synth-len"),
    both("LLAMA_ARG_SPEC_SYNTH_RATES", "--spec-synth-rates"),
    both("LLAMA_ARG_SPEC_DRAFT_P_SPLIT", "--spec-draft-p-split"),
    both("LLAMA_ARG_SPEC_DRAFT_P_MIN", "--spec-draft-p-min"),
    both("LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING", "--spec-draft-backend-sampling"),
    both("LLAMA_ARG_SPEC_DRAFT_SAMPLING", "--spec-draft-sampling"),
    both("LLAMA_ARG_N_GPU_LAYERS_DRAFT", "--spec-draft-ngl"),
    both("LLAMA_ARG_SPEC_DRAFT_MODEL", "--spec-draft-model"),
    both("LLAMA_ARG_SPEC_TYPE", "--spec-type"),
    both("LLAMA_ARG_DRAFT_MAX", "--draft"),
    both("LLAMA_ARG_DRAFT_MIN", "--draft-min"),
    both("LLAMA_ARG_TENSOR_SPLIT", "-ts"),
    both("LLAMA_ARG_FIT_TARGET", "-fitt"),
    served("LLAMA_ARG_KV_UNIFIED_PER_SLOT", "--kv-unified-per-slot"),
    served("LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", "-cms"),
    served("LLAMA_ARG_KV_UNIFIED", "-kvu"),
    served("LLAMA_ARG_CACHE_IDLE_SLOTS", "--cache-idle-slots"),
    served("LLAMA_ARG_POOLING", "--pooling"),
    both("LLAMA_ARG_N_PARALLEL", "-np"),
    served("LLAMA_ARG_CONT_BATCHING", "-cb"),
    served("LLAMA_ARG_MTMD_BATCH_MAX_TOKENS", "--mtmd-batch-max-tokens"),
    served("LLAMA_ARG_ALIAS", "-a"),
    served("LLAMA_ARG_TAGS", "--tags"),
    served("LLAMA_ARG_HOST", "--host"),
    served("LLAMA_ARG_PORT", "--port"),
    served("LLAMA_ARG_REUSE_PORT", "--reuse-port"),
    served("LLAMA_ARG_STATIC_PATH", "--path"),
    served("LLAMA_ARG_CORS_ORIGINS", "--cors-origins"),
    served("LLAMA_ARG_CORS_METHODS", "--cors-methods"),
    served("LLAMA_ARG_CORS_HEADERS", "--cors-headers"),
    served("LLAMA_ARG_CORS_CREDENTIALS", "--cors-credentials"),
    served("LLAMA_ARG_API_PREFIX", "--api-prefix"),
    served("LLAMA_ARG_UI_CONFIG", "--ui-config"),
    served("LLAMA_ARG_UI_CONFIG_FILE", "--ui-config-file"),
    served("LLAMA_ARG_UI_MCP_PROXY", "--ui-mcp-proxy"),
    served("LLAMA_ARG_TOOLS", "--tools"),
    served("LLAMA_ARG_TOOLS_RUNTIME", "--tools-runtime"),
    served("LLAMA_ARG_MCP_SERVERS_CONFIG", "--mcp-servers-config"),
    served("LLAMA_ARG_MCP_SERVERS_JSON", "--mcp-servers-json"),
    served("LLAMA_ARG_AGENT", "-ag"),
    served("LLAMA_ARG_UI", "--ui"),
    served("LLAMA_ARG_CONNECT", "--connect"),
    served("LLAMA_ARG_CONNECT_CODE", "--connect-code"),
    served("LLAMA_ARG_EMBEDDINGS", "--embedding"),
    served("LLAMA_ARG_RERANKING", "--rerank"),
    served("LLAMA_ARG_SSL_KEY_FILE", "--ssl-key-file"),
    served("LLAMA_ARG_SSL_CERT_FILE", "--ssl-cert-file"),
    served("LLAMA_ARG_TIMEOUT", "-to"),
    served("LLAMA_ARG_SSE_PING_INTERVAL", "--sse-ping-interval"),
    served("LLAMA_ARG_THREADS_HTTP", "--threads-http"),
    served("LLAMA_ARG_CACHE_PROMPT", "--cache-prompt"),
    served("LLAMA_ARG_CACHE_REUSE", "--cache-reuse"),
    served("LLAMA_ARG_ENDPOINT_METRICS", "--metrics"),
    served("LLAMA_ARG_ENDPOINT_PROPS", "--props"),
    served("LLAMA_ARG_ENDPOINT_SLOTS", "--slots"),
    served("LLAMA_ARG_SLOT_SAVE_PATH", "--slot-save-path"),
    served("LLAMA_ARG_MODELS_DIR", "--models-dir"),
    served("LLAMA_ARG_MODELS_PRESET", "--models-preset"),
    served("LLAMA_ARG_MODELS_MAX", "--models-max"),
    served("LLAMA_ARG_MODELS_MEMORY_MARGIN", "--models-memory-margin"),
    served("LLAMA_ARG_MODELS_AUTOLOAD", "--models-autoload"),
    served("LLAMA_ARG_PREFILL_ASSISTANT", "--prefill-assistant"),
    variable("LLAMA_ARG_SHOW_TIMINGS", "--show-timings", Readers::Talk),
    variable("LLAMA_ARG_GRP_ATTN_N", "-gan", Readers::Talk),
    variable("LLAMA_ARG_GRP_ATTN_W", "-gaw", Readers::Talk),
    variable("LLAMA_ARG_FIT_ESTIMATE", "-fitp", Readers::None),
    variable("HF_TOKEN", "-hft", Readers::Elsewhere),
    variable("LLAMA_API_KEY", "--api-key", Readers::Elsewhere),
    variable("LLAMA_ARG_API_KEY_FILE", "--api-key-file", Readers::Elsewhere),
];

/// Variables that earlier versions of llama.cpp read.
pub(super) const EARLIER: &[Variable] = &[
    both("LLAMA_ARG_MMAP", "--mmap"),
    both("LLAMA_ARG_MLOCK", "--mlock"),
    both("LLAMA_ARG_DIO", "-dio"),
    both("LLAMA_OFFLINE", "--offline"),
    both("LLAMA_ARG_MODEL_DRAFT", "-md"),
    served("LLAMA_ARG_WEBUI", "--webui"),
];

/// The variables of an environment that are llama.cpp's.
#[derive(Debug, Default)]
pub(crate) struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// Of this process.
    pub(crate) fn of_process() -> Self {
        Self::new(std::env::vars_os())
    }

    pub(crate) fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let variables = variables.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self(variables.filter(|(name, _)| name.starts_with("LLAMA_") || known(name).is_some()).collect())
    }

    /// Adds to a command line what the variables set that the command line does not set.
    pub(super) fn add_to(&self, line: &mut Words, own: &Own<'_>, verb: (&str, &Command)) {
        let (name, _) = verb;
        if !["run", "chat", "serve", "plan"].contains(&name) || line.asks_for_help() {
            return;
        }
        for variable in all().filter(|variable| variable.readers.include(name)) {
            self.add_variable(variable, line, own, verb);
        }
        for name in self.0.keys().filter(|name| name.starts_with("LLAMA_ARG_") && known(name).is_none()) {
            line.notes.push(format!("{name} is not a variable of llama.cpp, and is not used"));
        }
    }

    fn add_variable(&self, variable: &Variable, line: &mut Words, own: &Own<'_>, (verb, program): (&str, &Command)) {
        let row = variable.row();
        let Some((name, value)) = self.value(variable, row) else { return };
        let Some(value) = value else {
            line.refused.push(format!("{name}: its value is not valid text"));
            return;
        };
        // As in llama.cpp, the variable of a switch without an opposite can only turn it on.
        if matches!(row.value, Value::None) && is_no(value) {
            return;
        }
        if line.rows.contains(&row.names[0]) {
            line.notes.push(format!("{name} is not used: the command line sets {}", variable.flag));
            return;
        }
        let mut added = Words { leaves_out: verb != "serve", ..Words::default() };
        added.row(row, (&name, Some(value)), &[], own, (verb, program));
        if !added.refused.is_empty() {
            line.refused.append(&mut added.refused);
            return;
        }
        if let Some(set) = added.set_by(line, own, verb, program) {
            line.notes.push(format!("{name} is not used: the command line sets {set}"));
            return;
        }
        if let Some(problem) = added.wrong_value(verb, program) {
            line.refused.push(format!("{name}: {problem}"));
            return;
        }
        // `plan` reads everything that the other verbs read, and most of it does not affect a placement.
        if verb != "plan" {
            line.notes.append(&mut added.left_out);
        }
        let words: Vec<String> = added.texts().chain(added.model.clone()).collect();
        if !words.is_empty() {
            line.used.push(format!("{name} ({})", words.join(" ")));
        }
        if let Some(model) = added.model
            && let Some(other) = line.model.replace(model)
        {
            line.refused.push(format!("{name}: the model is already {other}"));
        }
        line.of_variables.append(&mut added.words);
    }

    /// The variable that is set, the flag's own or the one that turns it off, and its value. `None` in place of the
    /// value means that it is not valid text.
    fn value(&self, variable: &Variable, row: &Row) -> Option<(String, Option<&str>)> {
        // As in llama.cpp (`get_value_from_env`), the value of this variable does not matter.
        if let Some(off) = variable.off(row).filter(|off| self.0.contains_key(off)) {
            return Some((off, Some("0")));
        }
        let value = self.0.get(variable.name)?.to_str();
        (value != Some("")).then(|| (variable.name.to_owned(), value))
    }
}

impl Variable {
    pub(super) fn row(&self) -> &'static Row {
        find(self.flag).unwrap_or_else(|| unreachable!("{} is in the table", self.flag))
    }

    /// The variable that turns the flag off, if the flag can be turned off.
    pub(super) fn off(&self, row: &Row) -> Option<String> {
        let rest = self.name.strip_prefix("LLAMA_ARG_").filter(|_| !row.off.is_empty())?;
        Some(format!("LLAMA_ARG_NO_{rest}"))
    }
}

fn all() -> impl Iterator<Item = &'static Variable> {
    VARIABLES.iter().chain(EARLIER)
}

/// The variable with this name.
fn known(name: &str) -> Option<&'static Variable> {
    all().find(|variable| variable.name == name || variable.off(variable.row()).is_some_and(|off| off == name))
}

impl Words {
    fn texts(&self) -> impl Iterator<Item = String> {
        self.words.iter().map(|word| word.to_string_lossy().into_owned())
    }

    /// Whether the command line only asks how the verb is used.
    fn asks_for_help(&self) -> bool {
        self.texts().take_while(|word| word != "--").any(|word| word == "--help" || word == "-h")
    }

    /// What the command line sets in place of these words of a variable: the same flag of ours, a flag that excludes
    /// it, or a model.
    fn set_by(&self, line: &Self, own: &Own<'_>, verb: &str, program: &Command) -> Option<String> {
        let verb = program.find_subcommand(verb)?;
        let of_model = self.model.as_ref().and_then(|_| verb.get_arguments().find(|arg| arg.get_id() == "model"));
        if of_model.is_some() && line.names_model {
            return Some("the model".to_owned());
        }
        let texts: Vec<String> = self.texts().collect();
        let added = || texts.iter().filter_map(|word| own.arg(word)).chain(of_model);
        let given = line.texts().take_while(|word| word != "--").find(|word| {
            own.arg(word).is_some_and(|given| {
                added().any(|added| {
                    let is_same = given.get_id() == added.get_id();
                    let is_list = matches!(added.get_action(), ArgAction::Append);
                    let excludes = |one, other: &clap::Arg| {
                        verb.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
                    };
                    if is_same { !is_list } else { excludes(given, added) || excludes(added, given) }
                })
            })
        });
        given.map(|word| word.split('=').next().unwrap_or_default().to_owned())
    }

    /// The error if one of our flags does not accept the value that a variable sets.
    fn wrong_value(&self, verb: &str, program: &Command) -> Option<String> {
        let words = ["autoplace", verb, "model.gguf"].map(OsString::from).into_iter().chain(self.words.iter().cloned());
        let error = program.clone().try_get_matches_from(words).err()?;
        let is_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
        let text = error.to_string();
        let line = text.lines().next()?;
        is_value.then(|| line.strip_prefix("error: ").unwrap_or(line).to_owned())
    }
}
