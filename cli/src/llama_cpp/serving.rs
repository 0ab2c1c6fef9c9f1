//! Flags of `llama-server`.

use super::Row;
use super::lists::api_keys;

const AS_MANY_AS_FIT: &str = "as many models are loaded as fit, and others make room (docs/pool.md)";
const NO_UI: &str =
    "the page at `/` shows the server and the placement, and does not chat: any client of OpenAI's API does";
const NO_TOOLS: &str = "the client has the tools, and calls them";
const CORS: &str = "pages of the sites that --allow-origin names may send the same requests as OpenAI's clients; other pages may send none";
const TUNNEL: &str = "the server opens no tunnel: it is reached at its address, or through a proxy";
const TLS: &str = "a proxy in front of it speaks TLS";

pub(super) const ROWS: &[Row] = &[
    Row::flag(&["--host"], &["--host"])
        .library("the listener is the application's: `.serve(listener, stop)` of a `Server`"),
    Row::flag(&["--port"], &["--port"]).library("the same"),
    Row::refused_switch(&["--reuse-port"], "a port has one server").library("the same"),
    Row::reads(&["-a", "--alias"], alias, "`--alias NAME` for each")
        .library("the name in `Api::new`, and `Api::alias` for each further name"),
    Row::reads(&["--api-key"], api_key, "`--api-key KEY` for each").library("`.key(k)` of a `Server` for each"),
    Row::flag(&["--api-key-file"], &["--api-key-file"]).library("the same"),
    Row::flag(&["-to", "--timeout"], &["--timeout"]).library("`.timeout(t)` of a `Server`"),
    Row::reads(&["--cors-origins"], origins, "`--allow-origin` for each; `*` and `localhost` are refused: any page, or any page of this machine, could use it")
        .library("`.allow_origin(o)` of a `Server`"),
    Row::refused(&["--cors-methods", "--cors-headers"], CORS),
    Row::never([&["--cors-credentials"], &["--no-cors-credentials"]], CORS),
    Row::refused(&["--ssl-key-file", "--ssl-cert-file"], TLS),
    Row::refused(&["--path", "--ui-config", "--webui-config", "--ui-config-file", "--webui-config-file"], NO_UI),
    Row::never([&["--ui", "--webui"], &["--no-ui", "--no-webui"]], NO_UI),
    Row::never([&["--ui-mcp-proxy", "--webui-mcp-proxy"], &["--no-ui-mcp-proxy", "--no-webui-mcp-proxy"]], NO_UI),
    Row::refused(&["--tools", "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json"], NO_TOOLS),
    Row::never([&["-ag", "--agent"], &["-no-ag", "--no-agent"]], NO_TOOLS),
    Row::refused_switch(&["--connect"], TUNNEL),
    Row::refused(&["--connect-code"], TUNNEL),
    Row::flag(&["--api-prefix"], &["--api-prefix"]).library("`.prefix(path)` of a `Server`"),
    Row::refused(
        &["--media-path"],
        "images come as data URLs, or from an --allow-media-host; the server reads no local files",
    ),
    Row::refused(&["--mtmd-batch-max-tokens"], "each image is encoded alone"),
    Row::refused(&["--threads-http"], "connections have no threads of their own"),
    Row::flag(&["--sse-ping-interval"], &["--sse-ping-interval"]).library("`.ping(t)` of a `Server`"),
    Row::always([&["--metrics"], &[]], "/metrics is always on, and needs the key")
        .library("`.metrics()` of an `Engine`"),
    Row::refused_switch(&["--props"], "the settings that /props shows are set when the server starts"),
    // It needs the key, and shows no texts.
    Row::on_off([&["--slots"], &["--no-slots"]], ["", "--no-slots"]).library("`.without_slots()` of a `Server`"),
    Row::refused(&["--slot-save-path"], "computed prompts are stored automatically: --cache-dir")
        .library("`StoreOptions::folder`"),
    Row::refused(
        &["-sps", "--slot-prompt-similarity"],
        "each text takes the sequence that shares the most of its prompt",
    ),
    Row::refused(
        &["--sleep-idle-seconds"],
        "one model stays until the server ends; `idle` in pool.toml unloads one of several",
    ),
    Row::always(
        [&["-cb", "--cont-batching"], &["-nocb", "--no-cont-batching"]],
        "new texts join the running computation",
    )
    .library("an `Engine` always does so"),
    Row::on_off([&["--cache-prompt"], &["--no-cache-prompt"]], ["", "--no-cache-prompt"])
        .library("`.cache_prompt(false)` of a request, and of an `Api` for requests that do not set it"),
    Row::only(
        &["--cache-reuse"],
        &["0"],
        "tokens that are moved in the cache were computed after other tokens, so the text would change",
    ),
    Row::refused(&["-cms", "--checkpoint-min-step"], "checkpoints are limited by bytes")
        .library("`.checkpoints(bytes)` of the builder"),
    // With either of these flags, a sequence is stored before another text takes its place, if --cache-ram allows it.
    // Here the sequence also stays in the context until then.
    Row::on_off([&["--cache-idle-slots"], &["--no-cache-idle-slots"]], ["", ""])
        .library("an idle sequence stays in the context until another text takes its place, and is stored before that"),
    Row::refused(
        &["--kv-unified-per-slot"],
        "-c and -np set the number of tokens of each sequence, and -kvu shares all tokens",
    ),
    Row::refused(
        &["-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"],
        "n-grams are the text's own (--prompt-lookup)",
    ),
    Row::switch(&["--spm-infill"], "--spm-infill").library("`Api::infill_suffix_first`"),
    Row::always([&["--prefill-assistant"], &["--no-prefill-assistant"]], "set `continue_final_message` in a request"),
    Row::switch(&["--lora-init-without-apply"], "--lora-init-without-apply")
        .library("`.lora(path, 0.0)` of the builder"),
    Row::flag(&["--models-dir"], &["--models-dir"]).library("a `ModelSpec` for each file, of a `Pool`"),
    Row::refused(&["--models-preset"], "`serve --models FILE` reads models with their settings (docs/pool.md)"),
    Row::refused(&["--models-max"], AS_MANY_AS_FIT),
    Row::refused(&["--models-memory-margin"], "each load leaves its headroom free (--headroom)"),
    Row::reads(&["--tags"], tags, "`--tags TAG` for each").library("`Api::tag` for each"),
    Row::always(
        [&["--models-autoload"], &["--no-models-autoload"]],
        "a model is loaded when a request names it; `?autoload=false` in a request loads none",
    )
    .library("`pool.get(name)` loads, `pool.loaded(name)` does not"),
    Row::switch(&["--embedding", "--embeddings", "-embd"], "--embeddings")
        .library("`.embeddings(pooling)` of the builder"),
    Row::switch(&["--rerank", "--reranking"], "--embeddings=rank")
        .library("`.embeddings(Pooling::Rank)` of the builder"),
    Row::flag(&["--pooling"], &["--embeddings"]).library("the pooling of `.embeddings(pooling)`"),
    Row::refused(&["--attention"], "the model's file states whether its attention is causal"),
    Row::flag(&["--embd-normalize"], &["--embd-normalize"])
        .library("`.normalize(kind)` of an embedder: `Normalization`"),
];

fn origins(list: &str) -> Result<Vec<String>, String> {
    let origins = list.split(',').map(|origin| match origin.trim() {
        "*" => Err("`*` would let any page use the server: name the sites".to_owned()),
        "localhost" => Err(
            "`localhost` would let any page of this machine use the server: name them, such as http://localhost:3000"
                .to_owned(),
        ),
        origin => Ok(format!("--allow-origin={origin}")),
    });
    origins.collect()
}

/// Translates names, which are separated by commas.
fn alias(names: &str) -> Result<Vec<String>, String> {
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    at_least_one(names.map(|name| format!("--alias={name}")), "the name is missing")
}

/// Translates tags, which are separated by commas.
fn tags(tags: &str) -> Result<Vec<String>, String> {
    let tags = tags.split(',').map(str::trim).filter(|tag| !tag.is_empty());
    at_least_one(tags.map(|tag| format!("--tags={tag}")), "the tag is missing")
}

/// Translates keys, which are separated by commas.
fn api_key(keys: &str) -> Result<Vec<String>, String> {
    at_least_one(api_keys(keys).map(|key| format!("--api-key={key}")), "the key is missing")
}

fn at_least_one(words: impl Iterator<Item = String>, missing: &str) -> Result<Vec<String>, String> {
    let words: Vec<String> = words.collect();
    if words.is_empty() { Err(missing.to_owned()) } else { Ok(words) }
}
