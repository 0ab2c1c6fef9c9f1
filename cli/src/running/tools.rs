//! Asks each kind of program for its model and settings. The result has the same form for all of them.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::Http;
use super::process::Process;
use super::seen::{Seen, file_name};
use crate::flags::Flags;

/// How long to wait between two looks at a busy slot of llama-server. The speed is computed from the tokens that the
/// slot generates in between.
const LOOK: Duration = Duration::from_secs(1);

/// The model and the settings of a llama-server.
pub(super) fn llama_server(process: &Process, http: &Http) -> Result<Seen, String> {
    let mut seen = Seen { flags: Flags::of_server(&process.words, |name| process.variable(name)), ..Seen::default() };
    let props = http.get("/props").and_then(|props| match is_same(&props, &seen.flags) {
        true => Ok(props),
        false => {
            Err("another server answers at the program's address, for example because the program runs in a container"
                .to_owned())
        }
    });
    let props = props.unwrap_or_else(|why| {
        seen.notes.push(why);
        Value::Null
    });
    if props["role"] == "router" {
        return Err("this program starts a server for each model: give the process id of that server".to_owned());
    }
    seen.version = text(&props["build_info"]);
    seen.unlike.extend(seen.flags.others.iter().map(|flag| format!("{flag} also affects its placement")));
    if props["modalities"]["vision"] == true || props["modalities"]["audio"] == true {
        seen.unlike.push("a projector (mmproj) is loaded beside the model".to_owned());
    }
    let slots = number(&props["total_slots"]);
    // If the number of slots is not set, all slots share the whole context.
    let is_said = seen.flags.get("-np").is_some_and(|slots| !slots.starts_with('-'));
    let is_unified = seen.flags.get("-kvu").map_or(!is_said, |value| value != "off");
    seen.sequences = slots.filter(|&slots| slots > 1).map(|slots| (slots, is_unified));
    // If the context is longer than the training length, llama-server reports a shorter one, but allocates the whole
    // length.
    let is_stated = seen.flags.get("-c").is_some_and(|tokens| tokens != "0");
    let each = number(&props["default_generation_settings"]["n_ctx"]);
    if let Some(each) = each.filter(|_| !is_stated) {
        let parts = if is_unified { 1 } else { slots.unwrap_or(1) };
        seen.flags.set("-c", each.saturating_mul(parts).to_string());
    }
    let model = text(&props["model_path"]).or_else(|| seen.flags.get("-m").map(str::to_owned));
    seen.model = model.map(|model| process.path(&model));
    // A request for the slots would make a sleeping server load its model again.
    if !props.is_null() && props["is_sleeping"] != true && props["endpoint_slots"] != false {
        match generated(http) {
            Ok(speed) => seen.speed = speed,
            Err(error) => seen.notes.push(error),
        }
    }
    Ok(seen)
}

/// Whether the server at this address is a llama-server whose model is the one in this process's arguments.
pub(super) fn is_llama_server(process: &Process, http: &Http) -> bool {
    let flags = Flags::of_server(&process.words, |name| process.variable(name));
    let is_one = |props: &Value| ["build_info", "default_generation_settings"].iter().any(|key| !props[key].is_null());
    http.get("/props").is_ok_and(|props| is_one(&props) && is_same(&props, &flags))
}

/// Whether this answer comes from the server that has these flags. It may come from another server: a container has its
/// own ports, and outside the container another server may have the same port.
fn is_same(props: &Value, flags: &Flags) -> bool {
    match (props["model_path"].as_str(), flags.get("-m")) {
        (Some(answered), Some(started)) => file_name(answered) == file_name(started),
        _ => true,
    }
}

/// Tokens per second of the slot that is generating; `None` unless exactly one slot is.
fn generated(http: &Http) -> Result<Option<f64>, String> {
    let look = || -> Result<Option<(Value, u64)>, String> {
        let slots = http.get("/slots")?;
        let slots = slots.as_array().map_or(&[][..], Vec::as_slice);
        let mut busy = slots.iter().filter(|slot| slot["is_processing"] == true);
        let (Some(slot), None) = (busy.next(), busy.next()) else { return Ok(None) };
        let next = &slot["next_token"];
        // Newer versions of llama-server send a list.
        let decoded = next.get(0).unwrap_or(next)["n_decoded"].as_u64();
        Ok(decoded.filter(|&decoded| decoded > 0).map(|tokens| (slot["id_task"].clone(), tokens)))
    };
    let begin = Instant::now();
    let Some((task, before)) = look()? else { return Ok(None) };
    sleep(LOOK);
    let Some((_, after)) = look()?.filter(|(now, _)| *now == task) else { return Ok(None) };
    let new = after.saturating_sub(before);
    Ok((new > 0).then(|| new as f64 / begin.elapsed().as_secs_f64()))
}

/// The model and the settings of Ollama. The error is one line, and says which answer is missing.
pub(super) fn ollama(process: &Process, http: &Http) -> Result<Seen, String> {
    let running = http.get("/api/ps")?;
    let mut models: Vec<&Value> = running["models"].as_array().into_iter().flatten().collect();
    models.sort_by_key(|model| std::cmp::Reverse(model["size"].as_u64()));
    let [model, rest @ ..] = models.as_slice() else {
        return Err("no model is loaded now: send it a request first".to_owned());
    };
    let mut seen = Seen::default();
    if !rest.is_empty() {
        seen.unlike.push(format!("{} more of its models are loaded", rest.len()));
    }
    seen.version = http.get("/api/version").ok().and_then(|answer| text(&answer["version"]));
    seen.on_gpus = model["size_vram"].as_u64().zip(model["size"].as_u64());
    let shown = http.post("/api/show", &json!({"model": model["name"]}))?;
    let file = shown["modelfile"].as_str().unwrap_or_default();
    let from = file.lines().filter_map(|line| line.strip_prefix("FROM "));
    let mut files = from.filter(|from| from.contains(['/', '\\']));
    seen.model = files.next().map(|file| process.path(file));
    if files.next().is_some() {
        seen.unlike.push("a projector (mmproj) is loaded beside the model".to_owned());
    }
    if file.lines().any(|line| line.starts_with("ADAPTER ")) {
        seen.unlike.push("an adapter is loaded beside the model".to_owned());
    }
    // In newer versions of Ollama, a llama-server computes, and it reads llama.cpp's environment variables.
    let variable = |name: &str| process.variable(name).filter(|value| !value.is_empty());
    seen.flags = Flags::of_server(&[], variable);
    seen.unlike
        .extend(seen.flags.others.iter().map(|flag| format!("the variable of {flag} also affects its placement")));
    let at_once = variable("OLLAMA_NUM_PARALLEL").and_then(|value| value.parse().ok()).unwrap_or(1);
    seen.sequences = (at_once > 1).then_some((at_once, false));
    if let Some(each) = number(&model["context_length"]) {
        seen.flags.set("-c", each.saturating_mul(at_once.max(1)).to_string());
    }
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    let parameter = |name: &str| {
        let mut all = parameters.lines().filter_map(|line| line.trim().split_once(' '));
        all.rfind(|(known, _)| *known == name).map(|(_, value)| value.trim())
    };
    let cache = variable("OLLAMA_KV_CACHE_TYPE");
    let said = [("-ngl", parameter("num_gpu")), ("-ub", parameter("num_batch")), ("-ctk", cache), ("-ctv", cache)];
    for (flag, value) in said.into_iter().chain([("-fa", variable("OLLAMA_FLASH_ATTENTION"))]) {
        value.into_iter().for_each(|value| seen.flags.set(flag, value));
    }
    Ok(seen)
}

/// The model and the settings of LM Studio, from its REST API (lmstudio.ai/docs, `GET /api/v1/models`; before 0.4 `GET
/// /api/v0/models`). The error is one line, and says which answer is missing.
pub(super) fn lm_studio(http: &Http) -> Result<Seen, String> {
    // Each model that is loaded, with its load settings if they are reported.
    let mut loaded: Vec<(Value, Value)> = Vec::new();
    if let Ok(models) = http.get("/api/v1/models") {
        for model in models["models"].as_array().into_iter().flatten() {
            let instances = model["loaded_instances"].as_array().into_iter().flatten();
            loaded.extend(instances.map(|instance| (model.clone(), instance["config"].clone())));
        }
    } else {
        let models = http.get("/api/v0/models")?;
        let all = models["data"].as_array().into_iter().flatten();
        loaded.extend(all.filter(|model| model["state"] == "loaded").map(|model| (model.clone(), Value::Null)));
    }
    // Models that generate text come first. Among these, the largest come first.
    let is_other = |model: &Value| model["type"].as_str().is_some_and(|kind| kind.starts_with("embed"));
    loaded.sort_by_key(|(model, _)| (is_other(model), std::cmp::Reverse(model["size_bytes"].as_u64())));
    let [(model, config), rest @ ..] = loaded.as_slice() else {
        return Err("no model is loaded now: load one first".to_owned());
    };
    let name = text(&model["key"]).or_else(|| text(&model["id"]));
    let mut seen = Seen { name, ..Seen::default() };
    if !rest.is_empty() {
        seen.unlike.push(format!("{} more of its models are loaded", rest.len()));
    }
    if let Some(n_ctx) = number(&config["context_length"]).or_else(|| number(&model["loaded_context_length"])) {
        seen.flags.set("-c", n_ctx.to_string());
    }
    for (key, flag) in [("offload_kv_cache_to_gpu", "-kvo"), ("flash_attention", "-fa")] {
        if let Some(is_on) = config[key].as_bool() {
            seen.flags.set(flag, if is_on { "on" } else { "off" });
        }
    }
    let unknown = "LM Studio does not report its layers on GPUs, the types of its cache and its speed";
    seen.notes.push(unknown.to_owned());
    Ok(seen)
}

/// The flags of KoboldCpp that affect placement, each with the equivalent flag of llama.cpp. KoboldCpp's settings file
/// uses the same names.
const KOBOLDCPP: [(&str, &str); 4] =
    [("gpulayers", "-ngl"), ("contextsize", "-c"), ("blasbatchsize", "-ub"), ("batchsize", "-ub")];
/// The flags of KoboldCpp that affect placement, but that no request can express.
const KOBOLDCPP_OTHERS: [&str; 9] =
    ["tensor_split", "maingpu", "overridetensors", "moecpu", "mmproj", "draftmodel", "lora", "lowvram", "usecpu"];

/// The model and the settings of KoboldCpp, from its arguments or its settings file. The context and the speed come
/// from its API. The error is one line, and says what cannot be read.
pub(super) fn koboldcpp(process: &Process, http: &Http) -> Result<Seen, String> {
    let version = http.get("/api/extra/version").ok().and_then(|answer| text(&answer["version"]));
    let mut seen = Seen { version, ..Seen::default() };
    let settings = match process.value(&["--config"]) {
        Some(file) => settings(&process.path(file))?,
        None => Value::Null,
    };
    // In KoboldCpp, a flag may be spelled with underscores or with dashes.
    let flag = |name: &str| format!("--{}", name.replace('_', "-"));
    let said = |name: &str| {
        let said = process.value(&[&flag(name)]).map(str::to_owned);
        said.or_else(|| number_or_text(&settings[name]))
    };
    for (name, flag) in KOBOLDCPP {
        // With -1, KoboldCpp chooses the value itself.
        if let Some(value) = said(name).filter(|value| value != "-1") {
            seen.flags.set(flag, value);
        }
    }
    for name in KOBOLDCPP_OTHERS {
        let is_there = |word: &String| word.replace('_', "-").split('=').next() == Some(&flag(name));
        // A settings file contains even the values that are not set.
        let is_set = |value: &Value| {
            let is_nothing = matches!(value, Value::Null | Value::Bool(false));
            let is_empty = *value == "" || *value == json!([]);
            !is_nothing && !is_empty && value.as_i64().is_none_or(|number| number > 0)
        };
        if process.words.iter().any(is_there) || is_set(&settings[name]) {
            seen.unlike.push(format!("--{name} also affects its placement"));
        }
    }
    let ty = match said("quantkv").as_deref() {
        Some("1" | "q8_0") => Some("q8_0"),
        Some("2" | "q4_0") => Some("q4_0"),
        _ => None,
    };
    if let Some(ty) = ty {
        seen.flags.set("-ctk", ty);
        seen.flags.set("-ctv", ty);
    }
    let n_ctx = http.get("/api/extra/true_max_context_length").ok();
    if let Some(n_ctx) = n_ctx.and_then(|answer| number(&answer["value"])) {
        seen.flags.set("-c", n_ctx.to_string());
    }
    let file = said("model").or_else(|| text(&settings["model_param"]));
    let file = file.or_else(|| process.words.iter().skip(1).find(|word| word.ends_with(".gguf")).cloned());
    seen.model = file.map(|file| process.path(&file));
    seen.name = http.get("/api/v1/model").ok().and_then(|answer| text(&answer["result"]));
    let last = http.get("/api/extra/perf").ok().and_then(|answer| answer["last_eval_speed"].as_f64());
    seen.speed = last.filter(|&speed| speed > 0.0);
    Ok(seen)
}

fn settings(file: &Path) -> Result<Value, String> {
    let in_file = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| in_file(&error))?;
    serde_json::from_str(&text).map_err(|error| in_file(&error))
}

fn number_or_text(value: &Value) -> Option<String> {
    text(value).or_else(|| value.as_i64().map(|number| number.to_string()))
}

/// The text that a value contains; `None` if it is empty or not a text.
fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}
