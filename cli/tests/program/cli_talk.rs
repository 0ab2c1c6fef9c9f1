//! `autoplace run` and `autoplace chat` with pipes: answers go to stdout, and everything else goes to stderr.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Output, Stdio};

use crate::cli_support::{User, demo, text};
use test_support::hub_server::{Content, Server};

const PROMPT: &str = "And the king said unto his servants,";
/// Arguments for a short text in which the likeliest token is always chosen.
const SHORT: [&str; 6] = ["--temp", "0", "-n", "12", "-c", "512"];

/// The output of the program for these arguments and this stdin. The argument `demo` stands for the demo model.
fn talk(user: &User, args: &[&str], input: &str) -> Output {
    let demo = demo();
    let args: Vec<&str> = args.iter().map(|arg| if *arg == "demo" { &demo } else { *arg }).collect();
    let mut command = user.command(&[&args[..], &SHORT].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // Writing may fail, because the program may end at once and read nothing.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

/// The output of the program for these arguments and a context of this size.
fn talk_in(user: &User, args: &[&str], context: &str) -> Output {
    let demo = demo();
    let args: Vec<&str> = args.iter().map(|arg| if *arg == "demo" { &demo } else { *arg }).collect();
    user.autoplace(&[&args[..], &["--temp", "0", "-c", context]].concat())
}

/// The answer, and the text on stderr.
#[track_caller]
fn said(output: &Output) -> (String, String) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    (text(&output.stdout), stderr)
}

#[test]
fn a_prompt_is_an_argument_or_comes_through_a_pipe_or_both_one_after_the_other() {
    let user = User::new();
    let (answer, beside) = said(&talk(&user, &["run", "demo", PROMPT], ""));
    assert!(!answer.trim().is_empty() && !answer.contains(PROMPT), "{answer:?}");
    let lines: Vec<&str> = beside.lines().collect();
    assert!(lines[0].contains(" layers on ") && lines[lines.len() - 1].contains("no chat template"), "{beside}");
    assert!(!beside.contains('\u{1b}'), "a pipe has no colours: {beside:?}");

    assert_eq!(said(&talk(&user, &["run", "demo"], &format!("{PROMPT}\n"))).0, answer);
    assert_eq!(said(&talk(&user, &["run", "demo", "-"], PROMPT)).0, answer);
    let (head, tail) = PROMPT.split_at(13);
    let both = said(&talk(&user, &["run", "demo", head], tail)).0;
    assert_eq!(both, said(&talk(&user, &["run", "demo", &format!("{head}\n\n{tail}")], "")).0);
}

/// The program waits for a pipe into which nobody writes, and says so.
#[test]
fn a_pipe_that_stays_open_is_waited_for_with_a_word() {
    let user = User::new();
    let mut command = user.command(&[&["run", &demo(), PROMPT], &SHORT[..]].concat());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut beside = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    beside.read_line(&mut first).unwrap();
    assert_eq!(first, "waiting for the end of stdin: its text is added to the prompt\n");
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout), (Some(0), &talk(&user, &["run", "demo", PROMPT], "").stdout));
}

/// A tokenizer would need a hundred times the memory of the text.
#[test]
fn a_prompt_that_is_far_too_long_is_refused_untokenized() {
    let user = User::new();
    for args in [&["run", "demo"][..], &["run", "demo", "--raw"]] {
        let refused = talk(&user, args, &"a".repeat(512 * 128 + 1));
        let beside = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{beside}");
        assert!(beside.contains("is more text than a context of 512 tokens can hold: --ctx N"), "{beside}");
    }
}

#[test]
fn a_saved_plan_is_followed_and_an_answer_that_its_context_ends_says_so() {
    let (user, demo) = (User::new(), demo());
    let plan = user.path("plan.json").display().to_string();
    user.says(&["plan", &demo, "--ctx", "64", "--save", &plan]);
    let (_, beside) = said(&user.autoplace(&["run", &demo, PROMPT, "--temp", "0", "-n", "-1", "--plan", &plan]));
    assert!(beside.ends_with("the answer ends here: --ctx N or --ctx auto gives more\n"), "{beside}");
    let long = user.autoplace(&["run", &demo, &"word ".repeat(999), "--plan", &plan]).stderr;
    assert!(
        text(&long).ends_with("the answer needs at least one of them: --ctx N or --ctx auto gives more\n"),
        "{}",
        text(&long)
    );
}

#[test]
fn a_file_that_is_no_plan_is_named_with_what_it_should_be() {
    let (user, demo) = (User::new(), demo());
    let path = |name: &str| user.path(name).display().to_string();
    let (plan, machine, cut, toml) = (path("plan.json"), path("pc.json"), path("cut.json"), path("pool.toml"));
    user.says(&["plan", &demo, "--ctx", "64", "--save", &plan]);
    user.says(&["devices", "--write", &machine]);
    let whole = fs::read_to_string(&plan).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    fs::write(&toml, "[models.a]\nmodel = \"a.gguf\"\n").unwrap();
    let written = "a plan is a file that `autoplace plan --save` writes";
    for (file, problem) in [
        (&machine, "missing field `made_by` at line "),
        (&cut, "EOF while parsing"),
        (&toml, "line 1 column 2"),
        (&demo, "it is a GGUF file"),
    ] {
        for args in [&["run", &demo, PROMPT, "--plan", file][..], &["serve", &demo, "--port", "0", "--plan", file]] {
            user.fails(args, 1, &[&format!("{file}: "), problem, written]);
        }
    }
}

#[test]
fn draft_options_without_effect_are_noted() {
    let user = User::new();
    let noted = |args: &[&str]| {
        let (_, beside) = said(&talk(&user, &[&["run", "demo", PROMPT], args].concat(), ""));
        beside.lines().find(|line| line.contains("has no effect")).map(str::to_owned)
    };
    let nothing = "--draft-max 5 --draft-p-min 0.5 has no effect: nothing drafts tokens";
    assert_eq!(noted(&["--draft-max", "5", "--draft-p-min", "0.5"]).as_deref(), Some(nothing));
    let lookup = "--draft-p-min 0.5 has no effect: --prompt-lookup knows no probabilities";
    assert_eq!(noted(&["--prompt-lookup", "--draft-p-min", "0.5"]).as_deref(), Some(lookup));
    assert_eq!(noted(&["--prompt-lookup", "--draft-max", "5"]), None);
}

/// The plan is for a card that this machine does not have.
#[test]
fn a_plan_that_cannot_be_followed_is_an_error_or_made_again_on_request() {
    let (user, demo) = (User::new(), demo());
    let plan = user.path("plan.json").display().to_string();
    user.says(&["plan", &demo, "--gpu", "RTX 4090", "--policy", "most-layers", "--ctx", "256", "--save", &plan]);
    let run = ["run", &demo, PROMPT, "--raw", "--temp", "0", "-n", "4", "--plan", &plan];
    user.fails(&run, 1, &["RTX 4090"]);
    let (answer, beside) = said(&user.autoplace(&[&run[..], &["--replan"]].concat()));
    assert!(!answer.trim().is_empty());
    assert!(beside.contains("planned again") && beside.contains("RTX 4090"), "{beside}");
    // The plan's request is stored, and a new plan is made from it.
    let long = user.autoplace(&["run", &demo, &"word ".repeat(999), "--plan", &plan, "--replan"]).stderr;
    assert!(text(&long).contains("256"), "{}", text(&long));
    // If the plan can be followed, it is followed.
    user.says(&["plan", &demo, "--ctx", "64", "--save", &plan]);
    let (same, beside) = said(&user.autoplace(&[&run[..], &["--replan"]].concat()));
    assert_eq!(same, answer);
    assert!(!beside.contains("planned again"), "{beside}");
    user.fails(&["run", &demo, PROMPT, "--replan"], 2, &["--plan"]);
}

#[test]
fn an_answer_is_held_to_a_grammar_of_llama_cpps() {
    let user = User::new();
    let grammar = "# two words\nroot ::= word \"-\" word\nword ::= [a-z]{2,5}\n";
    let file = user.path("words.gbnf");
    fs::write(&file, grammar).unwrap();
    let (answer, _) = said(&talk(&user, &["run", "demo", PROMPT, "--grammar-file", &file.display().to_string()], ""));
    let words: Vec<&str> = answer.trim().split('-').collect();
    assert!(words.len() == 2 && words.iter().all(|word| (2..=5).contains(&word.len())), "{answer}");
    assert_eq!(said(&talk(&user, &["run", "demo", PROMPT, "--grammar", grammar], "")).0, answer);
    // An error in the syntax is reported before the model is loaded.
    let refused = talk(&user, &["run", "demo", PROMPT, "--grammar", "root ::= a"], "");
    assert!(text(&refused.stderr).contains("line 1, column 10: the rule `a` is not defined"), "{refused:?}");
}

#[test]
fn a_full_context_shifts_on_request() {
    let user = User::new();
    let shift = ["run", "demo", PROMPT, "--raw", "--context-shift", "--keep", "4", "-n", "200", "--ignore-eos"];
    let command = |more: &[&str]| talk_in(&user, &[&shift[..], more].concat(), "64");
    let (answer, beside) = said(&command(&[]));
    assert!(answer.split_whitespace().count() > 64 / 2, "{answer}");
    assert!(!beside.contains("the context is full"), "{beside}");
    let refused = command(&["-ctk", "q8_0", "-fa", "on"]);
    assert!(text(&refused.stderr).contains("cannot shift its oldest tokens out: keys of Q8_0"), "{refused:?}");
}

#[test]
fn every_line_of_a_pipe_is_a_message_as_it_is() {
    let user = User::new();
    let file = user.path("said.jinja");
    fs::write(&file, "{% for m in messages %}{{ m.content }} {% endfor %}").unwrap();
    let chat = ["chat", "demo", "--template", file.to_str().unwrap()];
    let first = said(&talk(&user, &chat, "Blessed is the man that\n")).0;
    let both = said(&talk(&user, &chat, "Blessed is the man that\n\n/quit\n")).0;
    // In a pipe, `/quit` is not a command, so it is answered too.
    assert!(both.starts_with(&first) && both.len() > first.len() + 1, "{first:?} {both:?}");
    let with_system = [&chat[..], &["--system", "And it came to pass"]].concat();
    assert_ne!(said(&talk(&user, &with_system, "Blessed is the man that\n")).0, first);
}

#[test]
fn reasoning_is_not_part_of_the_answer() {
    let user = User::new();
    let file = user.path("thinks.jinja");
    // The template begins the reasoning, and the model never ends it.
    fs::write(&file, "{{ messages[0].content }}<think>{% if false %}</think>{% endif %}").unwrap();
    let (answer, beside) = said(&talk(&user, &["run", "demo", "--template", file.to_str().unwrap(), PROMPT], ""));
    assert_eq!(answer, "\n");
    assert!(
        beside.lines().count() > 1 && beside.lines().nth(1).is_some_and(|line| !line.trim().is_empty()),
        "{beside:?}"
    );
}

#[test]
fn an_impossible_request_is_refused_before_anything_is_loaded() {
    let user = User::new();
    let demo = demo();
    user.fails(
        &["run", "/nowhere/at/all.gguf", "hi"],
        1,
        &["all.gguf: there is no such file; a model is a GGUF file, or"],
    );
    user.fails(&["chat", "qwen3:8b"], 1, &["there is no such file", "`autoplace list`"]);
    user.fails(&["plan", "Qwen/Qwen3-8B-GGUF"], 1, &["hf:Qwen/Qwen3-8B-GGUF is the model of that name on the hub"]);
    user.fails(&["run", &demo], 1, &["no prompt"]);
    user.fails(&["chat", &demo], 1, &["no chat template", "--template", "chatml"]);
    user.fails(&["run", &demo, "hi", "--system", "Be brief."], 1, &["no chat template"]);
    user.fails(&["chat", &demo, "--template", "/nowhere/at/all.jinja"], 1, &["all.jinja"]);
    user.fails(&["chat", &demo, "--temp", "hot"], 2, &["--temp"]);
    user.fails(&["chat", &demo, "--top-p", "7"], 2, &["--top-p", "a number from 0 to 1"]);
    user.fails(&["chat", &demo, "--json-schema", r#"{"type": "foo"}"#], 2, &["cannot be enforced", "foo"]);
    user.fails(&["chat", &demo, "-n", "-3"], 2, &["--max-tokens"]);
    // `--plan` cannot be combined with arguments that ask for another plan.
    user.fails(&["chat", &demo, "--plan", "p.json", "--ctx", "512"], 2, &["--plan", "--ctx"]);
    user.fails(&["chat", &demo, "--plan", "p.json", "--policy", "fastest"], 2, &["--plan", "--policy"]);
    user.fails(&["template", &demo], 1, &["ships no chat template"]);
    let file = user.path("system.txt");
    fs::write(&file, "Be brief.").unwrap();
    let both = ["--template", "chatml", "--system", "Be brief.", "--system-file", file.to_str().unwrap()];
    user.fails(&[&["chat", &demo][..], &both].concat(), 1, &["both --system and --system-file"]);
}

#[test]
fn a_prompt_is_rendered_from_the_files_and_variables_of_the_user() {
    let user = User::new();
    let file = |name: &str, text: &str| {
        let path = user.path(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let source = "{{ tools | length }} {{ tone }} {{ depth + 1 }}{% for m in messages %} {{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}>{% endif %}";
    let template = file("shows.jinja", source);
    let messages = file("messages.json", r#"[{"role": "user", "content": "Hello!"}]"#);
    let tools = file("tools.json", r#"[{"type": "function", "function": {"name": "walk", "parameters": {}}}]"#);
    let args = ["template", &template, "--messages", &messages, "--tools", &tools];
    let with_variables = [&args[..], &["--set", "tone=brief", "--set", "depth=2"]].concat();
    assert_eq!(user.says(&with_variables), "1 brief 3 Hello!>\n");
    let without_answer = [&with_variables[..], &["--no-generation-prompt"]].concat();
    assert_eq!(user.says(&without_answer), "1 brief 3 Hello!\n");

    user.fails(&[&args[..], &["--set", "tone"]].concat(), 2, &["NAME=VALUE"]);
    let broken = file("broken.json", "[{");
    user.fails(&["template", &template, "--messages", &broken], 1, &["broken.json", "line 1 column 2", "a JSON list"]);
    let one = file("one.json", "{\n\"role\": \"user\"}");
    user.fails(
        &["template", &template, "--messages", &one],
        1,
        &["one.json", "expected a sequence at line 1", "a JSON list"],
    );
    user.fails(&["template", &template, "--tools", &demo()], 1, &[&demo(), "it is a GGUF file", "a JSON list"]);
}

#[test]
fn a_text_shorter_than_the_magic_of_gguf_is_a_template() {
    let user = User::new();
    let file = user.path("short.jinja");
    for source in ["a\n", "a"] {
        fs::write(&file, source).unwrap();
        assert_eq!(user.says(&["template", file.to_str().unwrap()]).trim_end(), "a");
    }
}

#[test]
fn a_model_of_a_hub_answers_after_a_permitted_fetch_and_then_without_the_hub() {
    let user = User::new();
    let model = fs::read(demo()).unwrap();
    let projector = ("mmproj-F16.gguf", Content::large(vec![0; 64]));
    let server = Server::new([("demo-Q8_0.gguf", Content::large(model)), projector]);
    let asked = |args: &[&str]| {
        let mut command = user.command(args);
        command.env("HF_ENDPOINT", server.endpoint()).env("HF_HOME", user.path("hf")).stdin(Stdio::null());
        command.output().expect("the program starts")
    };
    let run = |more: &[&str]| asked(&[&["run", "hf:some/thing", PROMPT], more, &SHORT].concat());
    let plan = || asked(&["plan", "hf:some/thing:q8_0"]);
    assert!(text(&plan().stderr).ends_with("is not here: `autoplace run hf:some/thing:q8_0` fetches it\n"));
    // In offline mode, no message recommends a fetch.
    let mut offline = user.command(&["plan", "hf:some/thing:q8_0"]);
    let offline = offline.env("HF_HOME", user.path("hf")).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let said_offline = text(&offline.stderr);
    assert!(said_offline.contains("HF_HUB_OFFLINE") && !said_offline.contains("fetches it"), "{said_offline}");
    let refused = run(&[]);
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(1), ""));
    assert!(text(&refused.stderr).contains("demo-Q8_0 is not here: --yes fetches its 4."), "{}", text(&refused.stderr));
    let (answer, beside) = said(&run(&["--yes"]));
    assert_eq!(answer, said(&talk(&user, &["run", "demo", PROMPT], "")).0);
    assert!(beside.contains("mmproj-F16.gguf: "), "what is left out is said: {beside}");
    assert!(beside.contains("> Q8_0") && beside.contains("0 of 7 layers on GPUs"), "{beside}");
    let sent = server.sent();
    assert_eq!(said(&run(&[])).0, answer);
    assert!(text(&plan().stdout).contains("all 7 layers"));
    assert_eq!(server.sent(), sent, "what is here needs no network");
}
