//! What each program says of the model that it runs: its answers flow in, in one form they flow out.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Seen;
use super::http::Http;
use super::process::Process;
use crate::flags::Flags;

/// How long llama-server's slot is watched for tokens.
const LOOK: Duration = Duration::from_secs(1);

/// What it runs.
pub(super) fn llama_server(process: &Process, http: &Http) -> Result<Seen, String> {
    let mut seen = Seen { flags: Flags::of_server(&process.words, |it| process.variable(it)), ..Seen::default() };
    let props = http.get("/props").and_then(|props| match is_same(&props, &seen.flags) {
        true => Ok(props),
        false => Err("another server answers at its address, as where it runs in a container".to_owned()),
    });
    let props = props.unwrap_or_else(|why| {
        seen.notes.push(why);
        Value::Null
    });
    if props["role"] == "router" {
        return Err("it starts a server for each model: say the process id of that one".to_owned());
    }
    seen.version = text(&props["build_info"]);
    seen.unlike.extend(seen.flags.others.iter().map(|flag| format!("{flag} places it too")));
    if props["modalities"]["vision"] == true || props["modalities"]["audio"] == true {
        seen.unlike.push("an mmproj is loaded beside it".to_owned());
    }
    let slots = number(&props["total_slots"]);
    // Slots whose number nobody said share all of the context.
    let is_said = seen.flags.get("-np").is_some_and(|slots| !slots.starts_with('-'));
    let is_unified = seen.flags.get("-kvu").map_or(!is_said, |it| it != "off");
    seen.sequences = slots.filter(|&slots| slots > 1).map(|slots| (slots, is_unified));
    // One that is longer than the model was trained for is said shorter, and takes its memory all the same.
    let is_stated = seen.flags.get("-c").is_some_and(|tokens| tokens != "0");
    let each = number(&props["default_generation_settings"]["n_ctx"]);
    if let Some(each) = each.filter(|_| !is_stated) {
        let parts = if is_unified { 1 } else { slots.unwrap_or(1) };
        seen.flags.set("-c", each.saturating_mul(parts).to_string());
    }
    let model = text(&props["model_path"]).or_else(|| seen.flags.get("-m").map(str::to_owned));
    seen.model = model.map(|model| process.path(&model));
    // Asked for its slots, one that sleeps loads the model again.
    if !props.is_null() && props["is_sleeping"] != true && props["endpoint_slots"] != false {
        match generated(http) {
            Ok(speed) => seen.speed = speed,
            Err(error) => seen.notes.push(error),
        }
    }
    Ok(seen)
}

/// Whether a llama-server answers, and runs the model that this one was started with.
pub(super) fn is_llama_server(process: &Process, http: &Http) -> bool {
    let flags = Flags::of_server(&process.words, |it| process.variable(it));
    let is_one = |props: &Value| ["build_info", "default_generation_settings"].iter().any(|key| !props[key].is_null());
    http.get("/props").is_ok_and(|props| is_one(&props) && is_same(&props, &flags))
}

/// Whether this is said by the server that was started so: a container has ports of its own, and another server may
/// have the same here.
fn is_same(props: &Value, flags: &Flags) -> bool {
    match (props["model_path"].as_str(), flags.get("-m")) {
        (Some(answered), Some(started)) => file_name(answered) == file_name(started),
        _ => true,
    }
}

/// Tokens per second of the one slot that generates, if just one does.
fn generated(http: &Http) -> Result<Option<f64>, String> {
    let look = || -> Result<Option<(Value, u64)>, String> {
        let slots = http.get("/slots")?;
        let slots = slots.as_array().map_or(&[][..], Vec::as_slice);
        let mut busy = slots.iter().filter(|slot| slot["is_processing"] == true);
        let (Some(slot), None) = (busy.next(), busy.next()) else { return Ok(None) };
        let next = &slot["next_token"];
        // A list of late.
        let decoded = next.get(0).unwrap_or(next)["n_decoded"].as_u64();
        Ok(decoded.filter(|&decoded| decoded > 0).map(|it| (slot["id_task"].clone(), it)))
    };
    let begin = Instant::now();
    let Some((task, before)) = look()? else { return Ok(None) };
    sleep(LOOK);
    let Some((_, after)) = look()?.filter(|(now, _)| *now == task) else { return Ok(None) };
    let new = after.saturating_sub(before);
    Ok((new > 0).then(|| new as f64 / begin.elapsed().as_secs_f64()))
}

/// What it runs.
/// Fails with a line that says which answer is missing.
pub(super) fn ollama(process: &Process, http: &Http) -> Result<Seen, String> {
    let running = http.get("/api/ps")?;
    let mut models: Vec<&Value> = running["models"].as_array().into_iter().flatten().collect();
    models.sort_by_key(|model| std::cmp::Reverse(model["size"].as_u64()));
    let [model, rest @ ..] = models.as_slice() else {
        return Err("no model is loaded now: ask it for something first".to_owned());
    };
    let mut seen = Seen::default();
    if !rest.is_empty() {
        seen.unlike.push(format!("{} more of its models are loaded", rest.len()));
    }
    seen.version = http.get("/api/version").ok().and_then(|it| text(&it["version"]));
    seen.on_gpus = model["size_vram"].as_u64().zip(model["size"].as_u64());
    let shown = http.post("/api/show", &json!({"model": model["name"]}))?;
    let file = shown["modelfile"].as_str().unwrap_or_default();
    let from = file.lines().filter_map(|line| line.strip_prefix("FROM "));
    let mut files = from.filter(|from| from.contains(['/', '\\']));
    seen.model = files.next().map(|file| process.path(file));
    if files.next().is_some() {
        seen.unlike.push("an mmproj is loaded beside it".to_owned());
    }
    if file.lines().any(|line| line.starts_with("ADAPTER ")) {
        seen.unlike.push("an adapter is loaded beside it".to_owned());
    }
    // Its runner is a llama-server of late, and heeds its variables.
    let variable = |name: &str| process.variable(name).filter(|value| !value.is_empty());
    seen.flags = Flags::of_server(&[], variable);
    seen.unlike.extend(seen.flags.others.iter().map(|flag| format!("the variable of {flag} places it too")));
    let at_once = variable("OLLAMA_NUM_PARALLEL").and_then(|it| it.parse().ok()).unwrap_or(1);
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

/// Of a path of any system.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// A text with something in it.
fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}
