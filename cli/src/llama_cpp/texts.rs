//! The flags for prompts, conversations, answers and output.

use serde_json::json;

use super::{Here, Row, Value};

const SHOWN: &str =
    "answers go to stdout and everything else to stderr, dimmed if the terminal supports and permits it (`NO_COLOR`)";
const LOGS: &str = "llama.cpp's log is not shown; the library hands it to `tracing`";

pub(super) const ROWS: &[Row] = &[
    Row::flag(&["-p", "--prompt"], &["--prompt"]).library("the argument of `.generate(prompt)` of a model: a text, tokens, or a template's prompt"),
    Row::flag(&["-f", "--file", "-bf", "--binary-file"], &["--file"]).library("the same"),
    Row::on_off([&["-e", "--escape"], &["--no-escape"]], ["", "--no-escape"]).library("no: the text of a program is used as it is"),
    Row::flag(&["-n", "--predict", "--n-predict"], &["--max-tokens"]).usual(&["-1", "-2"]).library("`.max_tokens(n)` of a request"),
    Row::flag(&["-r", "--reverse-prompt"], &["--stop"]).library("`.stop(text)` of a request"),
    Row::switch(&["-sp", "--special"], "--special").library("`.special(true)` of a request"),
    Row::flag(&["-sys", "--system-prompt"], &["--system"]).library("`.system(text)` of a chat"),
    Row::flag(&["-sysf", "--system-prompt-file"], &["--system-file"]).library("the same"),
    Row::on_off([&["-cnv", "--conversation"], &["-no-cnv", "--no-conversation"]], ["", "--raw"]).library("`.chat()` of a model; without it a prompt is raw text"),
    Row::switch(&["-st", "--single-turn"], "--single-turn").library("a program's own loop"),
    Row::refused_switch(&["-i", "--interactive", "-if", "--interactive-first"], "`autoplace chat` is interactive"),
    Row::refused_switch(&["-mli", "--multiline-input"], "a line that ends with `\\` continues on the next line"),
    Row::reads(&["--chat-template"], chat_template, "`--template`: llama.cpp's `llama3`, `phi3` and `deepseek3` are `llama-3`, `phi-3` and `deepseek`; its `deepseek` is refused").library("`.chat_with(template)` of a model: `ChatTemplate::family`, `ChatTemplate::new`"),
    Row::flag(&["--chat-template-file"], &["--template"]).library("`.chat_with(template)` of a model: `ChatTemplate::family`, `ChatTemplate::new`"),
    Row::always([&["--jinja"], &["--no-jinja"]], "the model's own template is run, not recognised"),
    Row::flag(&["--chat-template-kwargs"], &["--template-kwargs"]).library("`.variable(name, value)` of a chat"),
    Row::reads(&["-rea", "--reasoning"], reasoning, "`--template-kwargs`: `enable_thinking`; `auto` leaves it to the template").library("`.variable(name, value)` of a chat: `enable_thinking`"),
    Row::reads(&["--reasoning-effort"], reasoning_effort, "`--template-kwargs`: `reasoning_effort`; `default` leaves it to the template").library("the same: `reasoning_effort`"),
    Row::on_off([&["--reasoning-preserve"], &["--no-reasoning-preserve"]], [r#"--template-kwargs={"preserve_reasoning":true}"#, r#"--template-kwargs={"preserve_reasoning":false}"#]).library("the same: `preserve_reasoning`"),
    Row::reads(&["--reasoning-format"], reasoning_format, "`none`: `--plain`. `auto` and `deepseek`: already so; `deepseek-legacy` is refused").library("`.reply_format(f)` of a chat; `ReplyFormat::plain` reads nothing"),
    Row::on_off([&["--skip-chat-parsing"], &["--no-skip-chat-parsing"]], ["--plain", ""]).library("the same"),
    Row::reads(&["--reasoning-budget"], reasoning_budget, "-1: no limit, the default. 0: `--template-kwargs` turns thinking off. Another number is refused: a model answers worse if its reasoning is cut short").library("`.variable(name, value)` of a chat: a template's own switch is what the model was trained with"),
    Row::refused(&["--reasoning-budget-message"], "reasoning is not cut short"),
    Row::refused(&["--prompt-cache"], "prompts are kept in a folder and not in one file: --cache-dir").library("`StoreOptions::folder` of `.prompt_store(..)`"),
    Row::refused_switch(&["--prompt-cache-all"], "--cache-dir keeps prompts with their answers").library("the same"),
    Row::refused_switch(&["--prompt-cache-ro"], "a folder of --cache-dir is written by the first process that uses it, and read by others").library("the same"),
    Row::refused_switch(&["--in-prefix-bos"], "the chat template writes the text around messages"),
    Row::refused(&["--in-prefix", "--in-suffix"], "the chat template writes the text around messages"),
];

pub(super) const PROGRAM: &[Row] = &[
    Row::new(&["-h", "--help"], Value::None, Here::Switch("--help", "")).library("no: a library has none"),
    Row::new(&["--usage"], Value::None, Here::Switch("--help", "")).library("the same"),
    Row::refused_switch(&["--version"], "`autoplace --version` prints it").library("the same"),
    Row::refused_switch(&["--completion-bash"], "`autoplace completions bash` prints it").library("the same"),
    Row::refused(&["--server-base"], "the program runs the model itself")
        .library("`Endpoint`: a server's model in a program"),
    Row::refused_switch(&["--verbose-prompt"], "`autoplace template` prints what a model is shown"),
    Row::never([&["--display-prompt"], &["--no-display-prompt"]], "the prompt is not printed again"),
    Row::only(&["-co", "--color"], &["auto"], SHOWN),
    Row::refused_switch(&["--simple-io"], SHOWN),
    Row::refused(&["-ptc", "--print-token-count"], "`/stats` in a chat shows the number of tokens"),
    Row::refused(&["-o", "--output", "--output-file"], "an answer goes to stdout"),
    Row::new(&["--perf"], Value::None, Here::Switch("", "")).off(&["--no-perf"]).library("`.statistics()` of a stream"),
    Row::never([&["--show-timings"], &["--no-show-timings"]], "`/stats` in a chat shows them").library("the same"),
    Row::switch(&["--log-disable"], "").library("`tracing`: a subscriber of the application's decides"),
    Row::refused(&["--log-file", "--log-prompts-dir", "--log-colors", "-lv", "--verbosity", "--log-verbosity"], LOGS)
        .library("the same"),
    Row::never([&["--log-jsonl"], &["--no-log-jsonl"]], LOGS).library("the same"),
    Row::never([&["--log-prefix"], &["--no-log-prefix"]], LOGS).library("the same"),
    Row::never([&["--log-timestamps"], &["--no-log-timestamps"]], LOGS).library("the same"),
    Row::refused_switch(&["-v", "--verbose", "--log-verbose"], LOGS).library("the same"),
];

/// Translates the name of a template (src/llama-chat.cpp, `LLM_CHAT_TEMPLATES`), if a family of ours has another name.
/// Anything else may be a family, a file or the source of a template.
fn chat_template(template: &str) -> Result<Vec<String>, String> {
    let ours = match template {
        "llama3" => "llama-3",
        "phi3" => "phi-3",
        "deepseek3" => "deepseek",
        "deepseek" => {
            return Err(
                "`deepseek` is DeepSeek Coder's template in llama.cpp, and no family here: name a file with it, \
                        or `deepseek3`, the template of later models"
                    .to_owned(),
            );
        }
        other => other,
    };
    Ok(vec![format!("--template={ours}")])
}

fn variable(name: &str, value: serde_json::Value) -> Vec<String> {
    vec![format!("--template-kwargs={}", json!({ name: value }))]
}

fn reasoning(value: &str) -> Result<Vec<String>, String> {
    match value {
        "auto" | "-1" => Ok(Vec::new()),
        yes if super::is_yes(yes) => Ok(variable("enable_thinking", true.into())),
        no if super::is_no(no) => Ok(variable("enable_thinking", false.into())),
        _ => Err(format!("`{value}` is not on, off or auto")),
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the shape of all readers of values")]
fn reasoning_effort(level: &str) -> Result<Vec<String>, String> {
    Ok(if level == "default" { Vec::new() } else { variable("reasoning_effort", level.into()) })
}

fn reasoning_format(format: &str) -> Result<Vec<String>, String> {
    match format {
        "auto" | "deepseek" => Ok(Vec::new()),
        "none" => Ok(vec!["--plain".to_owned()]),
        _ => Err(format!("`{format}` is not supported: use auto, deepseek or none")),
    }
}

fn reasoning_budget(tokens: &str) -> Result<Vec<String>, String> {
    match tokens {
        "-1" => Ok(Vec::new()),
        "0" => Ok(variable("enable_thinking", false.into())),
        _ => {
            Err("a model answers worse if its reasoning is cut short: use -1 (no limit) or 0 (no thinking)".to_owned())
        }
    }
}
