//! What each program says of the model that it runs: its answers flow in, in one form they flow out.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Seen;
use super::http::Http;
use super::process::Process;
use crate::emit::Tool;
use crate::flags;

/// How long llama-server's slots are watched for tokens.
const LOOK: Duration = Duration::from_secs(1);

/// Which program answers. Some take others' interfaces too, and are asked for their own first.
///
/// # Errors
///
/// A line that says what llama-server's address answered, or that nothing known answers.
pub(super) fn answering(http: &Http) -> Result<Tool, String> {
    let has = |path: &str, is: fn(&Value) -> bool| http.get(path).is_ok_and(|it| is(&it));
    if has("/api/extra/version", |it| it["result"] == "KoboldCpp") {
        return Ok(Tool::KoboldCpp);
    }
    let loaded = |it: &Value| it["models"][0]["loaded_instances"].is_array();
    if has("/api/v1/models", loaded)
        || has("/api/v0/models", |it| it["data"][0]["state"].is_string())
    {
        return Ok(Tool::LmStudio);
    }
    if has("/api/ps", |it| it["models"].is_array()) {
        return Ok(Tool::Ollama);
    }
    match http.get("/props") {
        Ok(props) if props["default_generation_settings"].is_object() => Ok(Tool::LlamaCpp),
        Ok(_) => {
            Err("what answers is none of llama-server, Ollama, LM Studio and koboldcpp".to_owned())
        }
        Err(error) => Err(error),
    }
}

/// # Errors
///
/// A line that says which answer is missing.
pub(super) fn look(tool: Tool, process: Option<&Process>, http: &Http) -> Result<Seen, String> {
    match tool {
        Tool::LlamaCpp | Tool::LlamaCpp2 => llama_server(process, http),
        Tool::Ollama => ollama(process, http),
        Tool::LmStudio => lm_studio(http),
        Tool::KoboldCpp => koboldcpp(process, http),
    }
}

/// Its variables that place a model (common/arg.cpp), which flags override.
const VARIABLES: [(&str, &str); 8] = [
    ("LLAMA_ARG_MODEL", "-m"),
    ("LLAMA_ARG_N_GPU_LAYERS", "-ngl"),
    ("LLAMA_ARG_CTX_SIZE", "-c"),
    ("LLAMA_ARG_BATCH", "-b"),
    ("LLAMA_ARG_UBATCH", "-ub"),
    ("LLAMA_ARG_CACHE_TYPE_K", "-ctk"),
    ("LLAMA_ARG_CACHE_TYPE_V", "-ctv"),
    ("LLAMA_ARG_FLASH_ATTN", "-fa"),
];

fn llama_server(process: Option<&Process>, http: &Http) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let props = match http.get("/props") {
        Ok(props) => props,
        Err(error) if process.is_none() => return Err(error),
        Err(error) => {
            seen.notes.push(error);
            Value::Null
        }
    };
    seen.version = text(&props["build_info"]);
    let mut words = Vec::new();
    let mut model = text(&props["model_path"]);
    if let Some(process) = process {
        let variable = |(name, flag): &(&str, &str)| {
            Some([(*flag).to_owned(), process.variable(name)?.to_owned()])
        };
        words.extend(VARIABLES.iter().filter_map(variable).flatten());
        words.extend_from_slice(&process.words);
        let said = process.value(&["-m", "--model"]).or(process.variable("LLAMA_ARG_MODEL"));
        model = model.or(said.map(str::to_owned));
    }
    let others;
    (seen.words, others) = flags::placing(&words);
    if !others.is_empty() {
        seen.notes.push(format!("{} are not taken into account", others.join(", ")));
    }
    let slots = number(&props["total_slots"]);
    // Slots whose number nobody said share all of the context.
    let parted = process.is_some_and(|it| it.value(&["-np", "--parallel"]).is_some())
        && !words.iter().any(|word| word == "-kvu" || word == "--kv-unified");
    seen.sequences = slots.filter(|&slots| slots > 1).map(|slots| (slots, !parted));
    // One that is longer than the model was trained for is said shorter, and takes its memory all the same.
    let said = seen.words.windows(2).rev().find(|pair| pair[0] == "-c" || pair[0] == "--ctx-size");
    let each = number(&props["default_generation_settings"]["n_ctx"]);
    if let (Some(each), None) = (each, said.filter(|pair| pair[1] != "0")) {
        let all = if parted { each.saturating_mul(slots.unwrap_or(1)) } else { each };
        seen.words.extend(["-c".to_owned(), all.to_string()]);
    }
    match model {
        Some(model) => seen.model = Some(absolute(process, &model)),
        None if props["role"] == "router" => {
            return Err(
                "it starts a server for each model: give the process id of that one".to_owned()
            );
        }
        None => {}
    }
    if !props.is_null() {
        match generated(http) {
            Ok(speed) => seen.speed = speed,
            Err(error) => seen.notes.push(error),
        }
    }
    Ok(seen)
}

/// Tokens per second over all slots, where they generate now.
fn generated(http: &Http) -> Result<Option<f64>, String> {
    let count = || -> Result<Vec<(Value, u64)>, String> {
        let slots = http.get("/slots")?;
        let slots = slots.as_array().map_or(&[][..], Vec::as_slice);
        let decoded = |slot: &Value| {
            let next = &slot["next_token"];
            // A list of late.
            let next = next.get(0).unwrap_or(next);
            (slot["id_task"].clone(), next["n_decoded"].as_u64().unwrap_or(0))
        };
        Ok(slots.iter().filter(|it| it["is_processing"] == true).map(decoded).collect())
    };
    let (before, begin) = (count()?, Instant::now());
    if before.is_empty() {
        return Ok(None);
    }
    sleep(LOOK);
    let after = count()?;
    let seconds = begin.elapsed().as_secs_f64();
    let new = after.iter().filter_map(|(task, now)| {
        let (_, then) = before.iter().find(|(earlier, _)| earlier == task)?;
        now.checked_sub(*then)
    });
    let new: u64 = new.sum();
    Ok((new > 0).then(|| new as f64 / seconds))
}

fn ollama(process: Option<&Process>, http: &Http) -> Result<Seen, String> {
    let running = http.get("/api/ps")?;
    let mut models: Vec<&Value> = running["models"].as_array().into_iter().flatten().collect();
    models.sort_by_key(|model| std::cmp::Reverse(model["size"].as_u64()));
    let [model, rest @ ..] = models.as_slice() else {
        return Err(format!("{}: no model is loaded now: ask it for something first", http.url()));
    };
    let mut seen = Seen { name: text(&model["name"]).unwrap_or_default(), ..Seen::default() };
    for model in rest {
        seen.notes.push(format!("{} is loaded too", model["name"]));
    }
    seen.version = http.get("/api/version").ok().and_then(|it| text(&it["version"]));
    seen.on_gpus = model["size_vram"].as_u64().zip(model["size"].as_u64());
    let shown = http.post("/api/show", &json!({"model": seen.name}))?;
    let file = shown["modelfile"].as_str().unwrap_or_default();
    let from = file.lines().find_map(|line| line.strip_prefix("FROM "));
    seen.model = from.filter(|from| from.contains(['/', '\\'])).map(PathBuf::from);
    let mut push = |flag: &str, value: &str| seen.words.extend([flag.to_owned(), value.to_owned()]);
    let variable = |name| process.and_then(|it| it.variable(name));
    if let Some(each) = number(&model["context_length"]) {
        let at_once = variable("OLLAMA_NUM_PARALLEL").and_then(|it| it.parse().ok());
        push("-c", &each.saturating_mul(at_once.unwrap_or(1).max(1)).to_string());
    }
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    let asked = parameters.lines().find_map(|line| line.trim().strip_prefix("num_gpu"));
    if let Some(layers) = asked {
        push("-ngl", layers.trim());
    }
    if let Some(ty) = variable("OLLAMA_KV_CACHE_TYPE").filter(|ty| !ty.is_empty()) {
        push("-ctk", ty);
        push("-ctv", ty);
    }
    Ok(seen)
}

fn lm_studio(http: &Http) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let mut push = |words: &[&str]| seen.words.extend(words.iter().map(|&it| it.to_owned()));
    if let Ok(models) = http.get("/api/v1/models") {
        let all = models["models"].as_array().into_iter().flatten();
        let mut loaded = all.filter(|model| model["loaded_instances"][0].is_object());
        let model = loaded.next().ok_or_else(|| nothing_loaded(http))?;
        let config = &model["loaded_instances"][0]["config"];
        if let Some(n_ctx) = number(&config["context_length"]) {
            push(&["-c", &n_ctx.to_string()]);
        }
        if config["offload_kv_cache_to_gpu"] == false {
            push(&["-nkvo"]);
        }
        match config["flash_attention"].as_bool() {
            Some(true) => push(&["-fa", "on"]),
            Some(false) => push(&["-fa", "off"]),
            None => {}
        }
        seen.name = text(&model["key"]).unwrap_or_default();
        seen.notes.extend(loaded.map(|model| format!("{} is loaded too", model["key"])));
    } else {
        let models = http.get("/api/v0/models")?;
        let mut all = models["data"].as_array().into_iter().flatten();
        let model = all.find(|model| model["state"] == "loaded");
        let model = model.ok_or_else(|| nothing_loaded(http))?;
        if let Some(n_ctx) = number(&model["loaded_context_length"]) {
            push(&["-c", &n_ctx.to_string()]);
        }
        seen.name = text(&model["id"]).unwrap_or_default();
    }
    Ok(seen)
}

fn nothing_loaded(http: &Http) -> String {
    format!("{}: no model is loaded now", http.url())
}

/// Its flags that place a model, in llama.cpp's words. A file of settings has the same names.
const KOBOLDCPP: [(&str, &str); 3] =
    [("gpulayers", "-ngl"), ("contextsize", "-c"), ("batchsize", "-ub")];

fn koboldcpp(process: Option<&Process>, http: &Http) -> Result<Seen, String> {
    let version = http.get("/api/extra/version").ok().and_then(|it| text(&it["version"]));
    let mut seen = Seen { version, ..Seen::default() };
    let settings = match process.and_then(|it| Some((it, it.value(&["--config"])?))) {
        Some((process, file)) => settings(&absolute(Some(process), file))?,
        None => Value::Null,
    };
    let said = |name: &str| {
        let flag = process.and_then(|it| it.value(&[&format!("--{name}")])).map(str::to_owned);
        flag.or_else(|| number_or_text(&settings[name]))
    };
    for (name, flag) in KOBOLDCPP {
        if let Some(value) = said(name) {
            seen.words.extend([flag.to_owned(), value]);
        }
    }
    let ty = match said("quantkv").as_deref() {
        Some("1") => Some("q8_0"),
        Some("2") => Some("q4_0"),
        _ => None,
    };
    for flag in ["-ctk", "-ctv"] {
        seen.words.extend(ty.iter().flat_map(|ty| [flag.to_owned(), (*ty).to_owned()]));
    }
    let n_ctx = http.get("/api/extra/true_max_context_length").ok();
    if let Some(n_ctx) = n_ctx.and_then(|it| number(&it["value"])) {
        seen.words.extend(["-c".to_owned(), n_ctx.to_string()]);
    }
    let words = process.map_or(&[][..], |it| it.words.as_slice());
    let file = said("model").or_else(|| text(&settings["model_param"]));
    let file = file.or_else(|| words.iter().skip(1).find(|it| it.ends_with(".gguf")).cloned());
    seen.model = file.map(|file| absolute(process, &file));
    seen.name =
        http.get("/api/v1/model").ok().and_then(|it| text(&it["result"])).unwrap_or_default();
    let last = http.get("/api/extra/perf").ok().and_then(|it| it["last_eval_speed"].as_f64());
    seen.speed = last.filter(|&speed| speed > 0.0);
    Ok(seen)
}

fn settings(file: &Path) -> Result<Value, String> {
    let in_file = |error: String| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| in_file(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| in_file(error.to_string()))
}

/// A path as the program means it.
fn absolute(process: Option<&Process>, path: &str) -> PathBuf {
    match process.and_then(|process| process.folder.as_ref()) {
        Some(folder) => folder.join(path),
        None => PathBuf::from(path),
    }
}

/// A text with something in it.
fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

fn number_or_text(value: &Value) -> Option<String> {
    text(value).or_else(|| value.as_i64().map(|number| number.to_string()))
}
