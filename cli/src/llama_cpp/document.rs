//! Generates docs/flags.md from the table, and checks the table against llama.cpp's source, in the version that this
//! workspace builds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use clap::CommandFactory;

use super::variables::{EARLIER, Readers, VARIABLES, Variable};
use super::words::verbs_with;
use super::{Environment, Here, Row, TABLE, Value, Words, find};
use crate::args::Args;
use test_support::llama_source::read;

const PLACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/flags.md");

const HEAD: &str = "\
# llama.cpp's flags in autoplace

The tables have every flag of llama.cpp's programs (`llama-cli`, `llama-completion`, `llama-server`, `llama-bench` and the others), with its counterpart in the
program `autoplace` and in the library. The program reads llama.cpp's spellings, and also `_` for `-`, and `=` before a value. The word after a flag that has a value is always
that value. If several flags are not supported, one error names all of them, each with the reason. A cluster of letters is never read as several flags: `-xyz` is a flag of this table, or an error.

*all* means `run`, `chat`, `serve` and `plan`. `plan` ignores flags that do not affect a placement, and says so. *already so* marks flags for the program's usual behaviour. *no* is followed by the reason.

A test writes this file from the program's own table (`cli/src/llama_cpp`), and compares the table with the pinned source: `AUTOPLACE_WRITE=1 cargo test -p autoplace-cli llama_cpp`.
Methods *of the builder* belong to `Model::builder(path)`, methods *of a request* to `model.generate(prompt)`, and methods *of a chat* to `model.chat()?`.
";

/// The text of docs/flags.md.
fn document() -> String {
    let program = Args::command();
    let mut text = HEAD.to_owned();
    for (title, rows) in TABLE {
        write!(text, "\n## {title}\n\n| flags | in the program | in the library |\n|---|---|---|\n").unwrap();
        for row in rows {
            let names: Vec<String> = row.spellings().map(|name| format!("`{name}`")).collect();
            let library = if row.library.is_empty() { "-" } else { row.library };
            writeln!(text, "| {} | {} | {library} |", names.join(" "), here(row, &program)).unwrap();
        }
    }
    text.push_str(VARIABLES_HEAD);
    for variable in VARIABLES.iter().chain(EARLIER) {
        let names: Vec<String> = [variable.name.to_owned()].into_iter().chain(variable.off(variable.row())).collect();
        let read = match variable.readers {
            Readers::All => "all",
            Readers::Serve => "serve, plan",
            Readers::Talk => "run, chat, plan",
            Readers::None => "*no*: llama.cpp's server and command-line programs do not read it either",
            Readers::Elsewhere => "where the value is used ([server.md](server.md), [hub.md](hub.md))",
        };
        writeln!(text, "| `{}` | `{}` | {read} |", names.join("` `"), variable.flag).unwrap();
    }
    text
}

const VARIABLES_HEAD: &str = "
## Environment variables

`run`, `chat`, `serve` and `plan` read the variables that llama.cpp's programs read in place of flags, those of earlier versions too. A variable does what its flag does: its value is translated in the same way, and what the flag refuses
is refused with the variable's name. One line on stderr names the variables that were used, with the flags that they set.

- A flag on the command line takes precedence, and a line says so; so does a flag that excludes the variable's flag, such as `--plan`, and a model on the command line.
- The variable of a switch can be `on`, `enabled`, `true` or `1`, and `off`, `disabled`, `false` or `0`. A variable `LLAMA_ARG_NO_..` turns the switch off, whatever its value is.
- An empty variable counts as not set, except for the empty list of keys, which is an error.
- Each verb reads the variables that the corresponding program of llama.cpp reads: `serve` those of `llama-server`, `run` and `chat` those of `llama-cli`. `run` and `chat` say which of them set something that only `serve` has. `plan` reads all, and uses those that affect a placement.
- An unknown variable `LLAMA_ARG_..` is named on stderr, and is not used.

| variable | in place of | read by |
|---|---|---|
";

/// What the program does with a flag, and the verbs that accept it.
fn here(row: &Row, program: &clap::Command) -> String {
    let verbs = |flag: &str| {
        let verbs: Vec<&str> = verbs_with(program, flag).into_iter().filter(|verb| VERBS.contains(verb)).collect();
        assert!(!verbs.is_empty() || flag == "--help", "no verb has {flag}");
        if verbs.len() >= VERBS.len() || flag == "--help" { "all".to_owned() } else { verbs.join(", ") }
    };
    let flag = |flag: &str| format!("`{}` ({})", flag.trim_end_matches('='), verbs(flag));
    match row.here {
        Here::Refused(reason) => format!("*no*: {reason}"),
        Here::Only(["on"], reason) => format!("*already so*; off, *no*: {reason}"),
        Here::Only(["off"], reason) => format!("off, *already so*; on, *no*: {reason}"),
        Here::Only([], reason) => format!("*no*: {reason}"),
        Here::Only(values, reason) => format!("{}: *already so*. Else *no*: {reason}", list(values)),
        Here::Reads(_, what) => what.to_owned(),
        Here::Flag(flags) => {
            let flags: Vec<String> = flags.iter().map(|name| flag(name)).collect();
            let usual =
                if row.usual.is_empty() { String::new() } else { format!("; {}: *already so*", list(row.usual)) };
            flags.join(", ") + &usual
        }
        Here::Switch("", "") => "*already so*".to_owned(),
        Here::Switch(on, "") if row.off.is_empty() => flag(on),
        Here::Switch(on, "") => format!("{}; off, *already so*", flag(on)),
        Here::Switch("", off) => format!("*already so*; off, {}", flag(off)),
        Here::Switch(on, off) => format!("{}; off, {}", flag(on), flag(off)),
    }
}

const VERBS: [&str; 4] = ["run", "chat", "serve", "plan"];

fn list(values: &[&str]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
    values.join(", ")
}

#[test]
fn docs_flags_md_is_made_of_the_table() {
    let text = document();
    if std::env::var_os("AUTOPLACE_WRITE").is_some() {
        std::fs::write(PLACE, &text).unwrap();
    }
    assert!(std::fs::read_to_string(PLACE).unwrap() == text, "AUTOPLACE_WRITE=1 writes docs/flags.md anew");
}

/// The texts in quotes that begin with a dash.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2).filter(|part| part.starts_with('-'))
}

/// The flags that common/arg.cpp registers (`add_opt(common_arg({"-m", "--model"}, "FNAME", ...`): for each, its
/// spellings and its number of values.
fn registered() -> Vec<(Vec<String>, usize)> {
    let source = read("common/arg.cpp");
    let options = source.split("add_opt(common_arg(").skip(1).map(|option| {
        let (names, rest) = option.split_once('}').expect("a list of names");
        // If there is a second list, it contains the spellings that turn the flag off.
        let rest = rest.trim_start_matches([',', ' ', '\n']);
        let (opposites, rest) = match rest.starts_with('{') {
            true => rest.split_once('}').expect("a list of names"),
            false => ("", rest),
        };
        let spellings = quoted(names).chain(quoted(opposites)).map(str::to_owned).collect();
        // All parameters of the handler but the first are values of the flag.
        let handler = rest.split_once("[](common_params &").map_or("", |(_, handler)| handler);
        let parameters = handler.split_once(')').map_or("", |(parameters, _)| parameters);
        // A parameter of type `bool` is not a value: it says which spelling was used.
        (
            spellings,
            parameters.split(',').skip(1).filter(|parameter| !parameter.trim_start().starts_with("bool ")).count(),
        )
    });
    options.collect()
}

#[test]
fn every_flag_of_llama_cpp_is_in_the_table_once_with_as_many_values() {
    let registered = registered();
    assert!(registered.len() > 300, "{}", registered.len());
    let mut seen = BTreeSet::new();
    for spelling in TABLE.iter().flat_map(|(_, rows)| *rows).flat_map(Row::spellings) {
        assert!(seen.insert(spelling), "{spelling} is twice in the table");
    }
    let mut missing = Vec::new();
    for (spellings, values) in &registered {
        for spelling in spellings {
            let Some(row) = find(spelling) else {
                missing.push(spelling);
                continue;
            };
            let taken = match row.value {
                Value::None => 0,
                Value::One => 1,
                Value::Two => 2,
                // A switch has no value in these programs, but it has one in llama-bench.
                Value::Optional(_) => usize::from(matches!(row.here, Here::Flag(_))),
            };
            // The handler of a removed flag ignores the value, so the numbers may differ.
            let is_removed = matches!(row.here, Here::Refused(reason) if reason.contains("removed"));
            assert!(taken == *values || is_removed, "{spelling} has {values} values");
        }
    }
    assert!(missing.is_empty(), "the table lacks {missing:?}");
}

#[test]
fn every_flag_of_a_tool_with_its_own_parser_is_in_the_table() {
    for tool in
        ["llama-bench/llama-bench", "quantize/quantize", "gguf-split/gguf-split", "rpc/rpc-server", "tuning/main"]
    {
        let source = read(&format!("tools/{tool}.cpp"));
        let is_flag = |text: &&str| {
            let name = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).unwrap_or_default();
            name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        let flags: BTreeSet<&str> = source.split('"').filter(is_flag).collect();
        assert!(flags.len() > 8, "{tool}: {flags:?}");
        let missing: Vec<_> = flags.into_iter().filter(|flag| find(flag).is_none()).collect();
        assert!(missing.is_empty(), "the table lacks {missing:?} of {tool}");
    }
}

#[test]
fn every_flag_of_llama_bench_is_in_the_table() {
    let readme = read("tools/llama-bench/README.md");
    let usage =
        readme.split("usage: llama-bench").nth(1).and_then(|usage| usage.split("```").next()).expect("its usage");
    let mut flags = 0;
    for line in usage.lines().filter(|line| line.trim_start().starts_with('-')) {
        // A line consists of the spellings, two spaces or a `<`, and the description.
        let spellings =
            line.trim_start().split("  ").next().and_then(|spellings| spellings.split('<').next()).unwrap_or_default();
        for spelling in spellings.split([',', ' ']).filter(|word| word.starts_with('-')) {
            assert!(find(spelling).is_some(), "the table lacks llama-bench's {spelling}");
            flags += 1;
        }
    }
    assert!(flags > 60, "{flags}");
}

/// The variables that common/arg.cpp registers (`.set_env("LLAMA_ARG_MODEL")`): for each, the spellings of its flag,
/// whether the flag has an opposite, and the programs that have it. If a flag is registered twice, the programs are
/// joined.
fn registered_variables() -> BTreeMap<String, (Vec<String>, bool, String)> {
    let source = read("common/arg.cpp");
    let mut variables: BTreeMap<String, (Vec<String>, bool, String)> = BTreeMap::new();
    for option in source.split("add_opt(common_arg(").skip(1) {
        let Some((_, rest)) = option.split_once(".set_env(\"") else { continue };
        let (name, _) = rest.split_once('"').unwrap();
        let begin = option.find('{').expect("a list of names");
        let (names, rest) = option[begin..].split_once('}').unwrap();
        let has_opposite = rest.trim_start_matches([',', ' ', '\n']).starts_with('{');
        let programs = option
            .split_once(".set_examples(")
            .map_or("LLAMA_EXAMPLE_COMMON", |(_, examples)| examples.split_once(')').unwrap().0);
        // The list of the programs that read images.
        let programs = match programs {
            "mmproj_examples" => source.split_once("mmproj_examples = {").unwrap().1.split_once('}').unwrap().0,
            programs => programs,
        };
        let entry = variables.entry(name.to_owned()).or_default();
        entry.0 = quoted(names).map(str::to_owned).collect();
        entry.1 = has_opposite;
        entry.2.push_str(programs);
    }
    variables
}

#[test]
fn every_variable_of_llama_cpp_is_in_the_list_with_its_flag_and_the_verbs_that_read_it() {
    let registered = registered_variables();
    assert!(registered.len() > 150, "{}", registered.len());
    let listed: BTreeMap<&str, &Variable> = VARIABLES.iter().map(|variable| (variable.name, variable)).collect();
    assert_eq!(listed.len(), VARIABLES.len(), "a variable is twice in the list");
    for (name, (spellings, has_opposite, programs)) in &registered {
        let variable = listed.get(&**name).unwrap_or_else(|| panic!("the list lacks {name} of {spellings:?}"));
        assert!(spellings.iter().any(|spelling| spelling == variable.flag), "{name}: {spellings:?}");
        assert_eq!(variable.off(variable.row()).is_some(), *has_opposite, "{name}");
        let has = |names: &[&str]| {
            let mut programs = programs.split(|c: char| !c.is_ascii_uppercase() && c != '_');
            programs.any(|program| names.contains(&program.trim_start_matches("LLAMA_EXAMPLE_")))
        };
        let readers = match (has(&["COMMON", "SERVER"]), has(&["COMMON", "CLI", "COMPLETION", "MTMD"])) {
            (true, true) => Readers::All,
            (true, false) => Readers::Serve,
            (false, true) => Readers::Talk,
            (false, false) => Readers::None,
        };
        assert!([readers, Readers::Elsewhere].contains(&variable.readers), "{name}: {readers:?}");
    }
    for variable in VARIABLES {
        assert!(registered.contains_key(variable.name), "llama.cpp has no {}", variable.name);
    }
    for variable in EARLIER {
        assert!(!registered.contains_key(variable.name), "llama.cpp has {} again", variable.name);
        assert!(find(variable.flag).is_some(), "{}", variable.flag);
    }
}

/// A command line, translated with these variables.
fn with_variables(line: &str, variables: &[(&str, &str)]) -> Result<Words, String> {
    let words = shlex::split(&format!("autoplace {line}")).unwrap();
    let variables = variables.iter().map(|&(name, value)| (name.into(), value.into()));
    Words::read(words.into_iter().map(Into::into).collect(), &Environment::new(variables), &Args::command())
}

#[test]
fn variables_become_our_flags_unless_the_command_line_sets_them() {
    for (variables, line, ours) in [
        (&[("LLAMA_ARG_CTX_SIZE", "8192"), ("LLAMA_ARG_PORT", "81")][..], "serve a", "serve --ctx=8192 --port=81 a"),
        (&[("LLAMA_ARG_CTX_SIZE", "8192")], "serve a -c 512", "serve a --ctx=512"),
        (&[("LLAMA_ARG_CTX_SIZE", "8192")], "serve a --ctx 512", "serve a --ctx 512"),
        (&[("LLAMA_ARG_CTX_SIZE", "8192")], "run --ctx=512 a hi", "run --ctx=512 a hi"),
        (
            &[("LLAMA_ARG_MODEL", "m.gguf"), ("LLAMA_ARG_N_GPU_LAYERS", "9")],
            "run -p hi",
            "run m.gguf --ngl=9 --prompt=hi",
        ),
        (&[("LLAMA_ARG_MODEL", "m.gguf")], "run a hi", "run a hi"),
        (&[("LLAMA_ARG_MODEL", "m.gguf")], "chat -m b", "chat b"),
        (&[("LLAMA_ARG_MODEL", "m.gguf")], "run -", "run m.gguf -"),
        (&[("LLAMA_ARG_HF_REPO", "o/n:Q4_K_M")], "serve", "serve hf:o/n:Q4_K_M --yes"),
        (&[("LLAMA_ARG_MODEL", "m.gguf")], "serve --models-dir d", "serve m.gguf --models-dir=d"),
        (&[("LLAMA_ARG_MODELS_DIR", "d")], "serve a", "serve --models-dir=d a"),
        // Switches.
        (
            &[("LLAMA_ARG_KV_OFFLOAD", "disabled"), ("LLAMA_ARG_SWA_FULL", "true")],
            "plan a",
            "plan --swa-full --kv-offload=off a",
        ),
        (&[("LLAMA_ARG_NO_KV_OFFLOAD", "")], "plan a", "plan --kv-offload=off a"),
        (&[("LLAMA_ARG_NO_KV_OFFLOAD", "1"), ("LLAMA_ARG_KV_OFFLOAD", "1")], "plan a -kvo", "plan a --kv-offload=on"),
        (
            &[("LLAMA_ARG_SWA_FULL", "false"), ("LLAMA_ARG_JINJA", "true"), ("LLAMA_ARG_CONT_BATCHING", "1")],
            "serve a",
            "serve a",
        ),
        (&[("LLAMA_ARG_NO_MMAP", "1"), ("LLAMA_OFFLINE", "1")], "run a x", "run --no-mmap --offline a x"),
        (&[("LLAMA_ARG_N_PREDICT", "9")], "serve a", "serve --max-tokens=9 a"),
        (&[("LLAMA_ARG_N_PREDICT", "-1"), ("LLAMA_ARG_NO_CACHE_PROMPT", "1")], "serve a", "serve --no-cache-prompt a"),
        (&[("LLAMA_ARG_REUSE_PORT", "0"), ("LLAMA_ARG_NO_UI", "1")], "serve a", "serve a"),
        // Empty variables, and those of other verbs and programs.
        (&[("LLAMA_ARG_CTX_SIZE", ""), ("LLAMA_ARG_SSL_KEY_FILE", "")], "serve a", "serve a"),
        (&[("LLAMA_ARG_SSL_KEY_FILE", "k"), ("LLAMA_ARG_HOST", "0.0.0.0")], "run a x", "run a x"),
        (&[("LLAMA_ARG_FIT_ESTIMATE", "on"), ("LLAMA_ARG_SHOW_TIMINGS", "on")], "serve a", "serve a"),
        (&[("LLAMA_ARG_CTX_SIZE", "8192")], "devices", "devices"),
        (&[("LLAMA_ARG_TOOLS", "all")], "serve --help", "serve --help"),
        // Flags that exclude the variable's, and lists.
        (&[("LLAMA_ARG_CACHE_TYPE_K", "q8_0")], "plan a --kv q4_0", "plan a --kv q4_0"),
        (&[("LLAMA_ARG_CTX_SIZE", "99")], "serve a --plan p", "serve a --plan p"),
        (&[("LLAMA_ARG_ALIAS", "x,y")], "serve a -a z", "serve a --alias=z"),
        (&[("LLAMA_ARG_ALIAS", "x,y")], "serve a", "serve --alias=x --alias=y a"),
        (
            &[("LLAMA_ARG_REASONING", "off")],
            "chat a --chat-template-kwargs '{}'",
            r#"chat --template-kwargs={"enable_thinking":false} a --template-kwargs={}"#,
        ),
    ] {
        let read = with_variables(line, variables).map(|read| {
            let words: Vec<&str> = read.words.iter().skip(1).map(|word| word.to_str().unwrap()).collect();
            words.join(" ")
        });
        assert_eq!(read, Ok(ours.to_owned()), "{variables:?} {line}");
    }
}

#[test]
fn variables_that_are_used_or_not_used_are_named() {
    let variables = [("LLAMA_ARG_CTX_SIZE", "8192"), ("LLAMA_ARG_NO_KV_OFFLOAD", "1"), ("LLAMA_ARG_NEW", "1")];
    let read = with_variables("serve a -c 512", &variables).unwrap();
    assert_eq!(read.used, ["LLAMA_ARG_NO_KV_OFFLOAD (--kv-offload=off)"]);
    assert_eq!(
        read.notes,
        [
            "LLAMA_ARG_CTX_SIZE is not used: the command line sets -c",
            "LLAMA_ARG_NEW is not a variable of llama.cpp, and is not used"
        ]
    );
    let read = with_variables("run a x", &[("LLAMA_ARG_MODEL", "m"), ("LLAMA_ARG_N_PARALLEL", "4")]).unwrap();
    assert_eq!(
        read.notes,
        [
            "LLAMA_ARG_MODEL is not used: the command line sets the model",
            "LLAMA_ARG_N_PARALLEL is not used: `autoplace serve` or `plan` takes it, not run"
        ]
    );
    let read = with_variables("serve a --plan p", &[("LLAMA_ARG_CTX_SIZE", "9")]).unwrap();
    assert_eq!(read.notes, ["LLAMA_ARG_CTX_SIZE is not used: the command line sets --plan"]);
}

#[test]
fn what_a_flag_refuses_its_variable_refuses_by_its_own_name() {
    let refused = |line, variables: &[(&str, &str)], part: &str| {
        let refused = with_variables(line, variables).unwrap_err();
        assert!(refused.contains(part), "{variables:?} {line}: {refused}");
    };
    refused("serve a", &[("LLAMA_ARG_SSL_KEY_FILE", "k")], "LLAMA_ARG_SSL_KEY_FILE: a proxy");
    refused("serve a", &[("LLAMA_ARG_UI", "true")], "LLAMA_ARG_UI: the page");
    refused("serve a", &[("LLAMA_ARG_NO_JINJA", "1")], "LLAMA_ARG_NO_JINJA: the model's own");
    refused("run a x", &[("LLAMA_ARG_SPLIT_MODE", "row")], "LLAMA_ARG_SPLIT_MODE: the memory that `row`");
    refused("run a x", &[("LLAMA_ARG_SWA_FULL", "yes")], "LLAMA_ARG_SWA_FULL: `yes` is not on or off");
    refused("serve a", &[("LLAMA_ARG_CTX_SIZE", "many")], "LLAMA_ARG_CTX_SIZE: invalid value 'many'");
    refused("serve a", &[("LLAMA_ARG_N_PARALLEL", "0")], "LLAMA_ARG_N_PARALLEL: invalid value '0'");
    refused("serve", &[("LLAMA_ARG_MODEL", "m"), ("LLAMA_ARG_HF_REPO", "o/n")], ": the model is already ");
    // All at once, beside the flags.
    let variables = [("LLAMA_ARG_NUMA", "isolate"), ("LLAMA_ARG_SSL_KEY_FILE", "k")];
    let refused = with_variables("serve a -sm row", &variables).unwrap_err();
    for part in ["-sm: ", "LLAMA_ARG_NUMA: ", "LLAMA_ARG_SSL_KEY_FILE: "] {
        assert!(refused.contains(part), "{refused}");
    }
}

/// clap must never get a flag that it does not know, and no variable may be dropped silently.
#[test]
fn each_variable_is_taken_or_refused_by_each_verb_that_reads_it() {
    let program = Args::command();
    let samples =
        ["1", "on", "0", "auto", "q8_0", "3,1", "exps=CPU", "none", "{}", "127.0.0.1", "draft-mtp", "yarn", "x"];
    for variable in VARIABLES.iter().chain(EARLIER).filter(|variable| variable.readers != Readers::Elsewhere) {
        for verb in VERBS {
            let is_read = match variable.readers {
                Readers::All => true,
                Readers::Serve => matches!(verb, "serve" | "plan"),
                Readers::Talk => verb != "serve",
                Readers::None | Readers::Elsewhere => false,
            };
            let names_model = ["-m", "-hf"].contains(&variable.flag);
            let is_taken = samples.iter().any(|sample| {
                let line = format!("{verb} {}", if names_model { "" } else { "model.gguf" });
                let read = match with_variables(&line, &[(variable.name, sample)]) {
                    Err(refused) => return is_read && refused.contains(variable.name),
                    Ok(read) => read,
                };
                assert!(is_read || read.used.is_empty(), "{verb} {}: {:?}", variable.name, read.used);
                program.clone().try_get_matches_from(&read.words).is_ok()
            });
            assert!(is_taken || names_model && !is_read, "{verb} {}", variable.name);
            // Flags that exclude it are found.
            drop(with_variables(&format!("{verb} a --plan p"), &[(variable.name, "1")]));
        }
    }
}

/// Translates a command line.
fn words(line: &str) -> Result<(String, Vec<String>), String> {
    let words = shlex::split(&format!("autoplace {line}")).unwrap();
    let words = words.into_iter().map(Into::into).collect();
    let read = Words::read(words, &Environment::default(), &Args::command())?;
    let words: Vec<&str> = read.words.iter().skip(1).map(|word| word.to_str().unwrap()).collect();
    Ok((words.join(" "), read.left_out))
}

#[test]
fn llama_cpps_command_lines_become_ours() {
    for (line, ours) in [
        ("run -m a.gguf -p hi -ngl 99", "run a.gguf --prompt=hi --ngl=99"),
        ("run hi -m a.gguf", "run a.gguf hi"),
        ("chat a.gguf -sys 'Be brief.' -s 42", "chat a.gguf --system=Be brief. --seed=42"),
        ("run -hf o/n:Q4_K_M -p -x", "run hf:o/n:Q4_K_M --yes --prompt=-x"),
        ("plan -hf o/n", "plan hf:o/n"),
        ("plan a -ngl auto -c 0 -fa 1 -fa", "plan a --ngl=auto --ctx=0 --flash-attn=1 --flash-attn=on"),
        ("plan a -fa maybe", "plan a --flash-attn=maybe"),
        ("plan a -fa -ngl -1", "plan a --flash-attn=on --ngl=-1"),
        ("plan a --n_gpu_layers=7 -ub=256", "plan a --ngl=7 --ubatch=256"),
        ("serve a -np 4 -kvu -t 8 -tb 9", "serve a --parallel=4 --kv-unified --threads=8 --threads-batch=9"),
        ("run a -np -1 -t -1 x", "run a x"),
        ("serve a -cram 512 --no-cache-idle-slots --cache-idle-slots", "serve a --cache-ram=512MiB"),
        ("serve a -cram 0", "serve a --cache-ram=off"),
        ("serve a -cram -1", "serve a --cache-ram=auto"),
        ("plan a --moe-cache-mib 0", "plan a --moe-cache=off"),
        ("plan a --moe-cache-mib 512", "plan a --moe-cache=512MiB"),
        ("plan a -nkvo", "plan a --kv-offload=off"),
        ("plan a -nkvo 0 --kv-offload on", "plan a --kv-offload=on"),
        ("plan a --repack 0 -nr", "plan a --no-repack"),
        ("plan a --mmap 0", "plan a --no-mmap"),
        ("plan a --kv-offload auto", "plan a --kv-offload=auto"),
        ("run a --kv-offload=auto x", "run a --kv-offload=auto x"),
        ("plan a --mmap=0 --no-host 0 --no-host=off", "plan a --no-mmap"),
        // The last of several values counts, also if it is the usual one.
        ("run a --no-mmap --mmap -no-cnv -cnv -nkvo -kvo -cnv x", "run a --kv-offload=on x"),
        ("serve a -np 4 -np 1 -t 8 -t -1", "serve a"),
        ("run a -s 42 -s -1 x", "run a x"),
        ("chat a --chat-template deepseek3", "chat a --template=deepseek"),
        ("chat a --chat-template chatml", "chat a --template=chatml"),
        ("chat a --chat-template-file deepseek", "chat a --template=deepseek"),
        ("run a -s -1 -s 42 x", "run a --seed=42 x"),
        ("serve a -a ' b ' --api-key k", "serve a --alias=b --api-key=k"),
        (
            r#"serve a -a 'c, b,' --alias d --api-key 'k,,"l,m"' --api-key-file f --api-key-file g"#,
            "serve a --alias=c --alias=b --alias=d --api-key=k --api-key=l,m --api-key-file=f --api-key-file=g",
        ),
        ("serve a --sse-ping-interval -1 --slots", "serve a --sse-ping-interval=-1"),
        ("serve a --cors-origins 'http://a, http://b'", "serve a --allow-origin=http://a --allow-origin=http://b"),
        ("plan a -sm none -mg 1", "plan a --split-mode=none --main-gpu=1"),
        ("plan a -sm layer -ts 3,1 -ot 'exps=CPU'", "plan a --tensor-split=3,1 --override-tensor=exps=CPU"),
        ("plan a -md d.gguf -mm m.gguf", "plan a --with=draft=d.gguf --with=mmproj=m.gguf"),
        (
            r#"run a -mm m --image '"x,1.png","y ""2"".jpg",z' -p hi"#,
            r#"run a --mmproj=m --image=x,1.png --image=y "2".jpg --image=z --prompt=hi"#,
        ),
        (
            "run a -mm m.gguf --image x.png,y.jpg --audio z.wav -p hi",
            "run a --mmproj=m.gguf --image=x.png --image=y.jpg --audio=z.wav --prompt=hi",
        ),
        ("chat a --no-mmproj", "chat a --no-mmproj"),
        ("run a -md d.gguf --spec-draft-n-max 5 x", "run a --draft-model=d.gguf --draft-max=5 x"),
        ("plan a -md d -ngld 9 -devd none", "plan a --with=draft=d --draft-ngl=9 --draft-device=none"),
        (
            "run a -md d --cache-type-k-draft q8_0 -ctvd q4_0 x",
            "run a --draft-model=d --draft-cache-type-k=q8_0 --draft-cache-type-v=q4_0 x",
        ),
        ("plan a -ub auto", "plan a --ubatch=auto"),
        ("run a -lm none x --jinja --no-display-prompt -cnv", "run a --no-mmap x"),
        ("run a -rea off x", "run a --template-kwargs={\"enable_thinking\":false} x"),
        ("run a --sampling-seq kpt x", "run a --samplers=top_k;top_p;temperature x"),
        (
            "run a --sampler-seq dkypsmtxea x",
            "run a --samplers=dry;top_k;typ_p;top_p;top_n_sigma;min_p;temperature;xtc;penalties;adaptive_p x",
        ),
        ("plan a -fitt 512 -fitc 8192", "plan a --headroom=512MiB --ctx=8192+"),
        ("plan a --rope-scale 4 --lora x,y", "plan a --rope-freq-scale=0.25 --lora=x --lora=y"),
        (
            "run a --control-vector-layer-range 1 5 --control-vector-scaled c:0.5,d:1 x",
            "run a --control-vector-layer-range=1,5 --control-vector-scaled=c:0.5 --control-vector-scaled=d:1 x",
        ),
        // Our own flags are not changed if they are in clap's syntax.
        ("plan a -c4096 --with mmproj=m --headroom -5", "plan a --ctx=4096 --with mmproj=m --headroom=-5"),
        ("run a -y -n12 -- -sys", "run a -y --max-tokens=12 -- -sys"),
        ("plan a --kv --json", "plan a --kv --json"),
        ("measure a --before '-ngl 5'", "measure a --before=-ngl 5"),
        ("devices --measure=2", "devices --measure=2"),
        ("template a --tools t.json", "template a --tools t.json"),
        ("run a --prompt-lookup --draft-max 3 x", "run a --prompt-lookup --draft-max 3 x"),
        ("plan a --mtp=2 --embeddings=mean", "plan a --mtp=2 --embeddings=mean"),
        ("plan a --mtp --pooling cls", "plan a --mtp --embeddings=cls"),
        ("serve a --embedding --pooling cls", "serve a --embeddings --embeddings=cls"),
        ("serve a --reranking", "serve a --embeddings=rank"),
        ("serve a --tags 'old, small'", "serve a --tags=old --tags=small"),
    ] {
        assert_eq!(words(line).map(|(words, _)| words), Ok(ours.to_owned()), "{line}");
    }
}

/// A flag of ours may have values that llama.cpp's flag of this name lacks.
#[test]
fn values_of_our_own_flags_survive_the_translation() {
    let mut checked = 0;
    for verb in Args::command().get_subcommands() {
        for arg in verb.get_arguments().filter(|arg| arg.get_action().takes_values()) {
            let Some(flag) = arg.get_long() else { continue };
            for value in arg.get_possible_values() {
                let said = format!("--{flag}={}", value.get_name());
                let lines = [said.clone(), said.replacen('=', " ", 1)];
                let is_two_words = !arg.is_require_equals_set();
                for line in &lines[..1 + usize::from(is_two_words)] {
                    let (read, _) = words(&format!("{} {line}", verb.get_name())).unwrap();
                    let read = read.split_once(' ').map_or("", |(_, read)| read).replacen(' ', "=", 1);
                    // Without this flag, the program behaves in this way too.
                    let is_usual = said == "--split-mode=layer" && read.is_empty();
                    assert!(read == said || is_usual, "{} {line}: {read}", verb.get_name());
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn all_unsupported_flags_are_refused_by_name_at_once() {
    for (line, parts) in [
        (
            "run a -sm row --numa isolate",
            &["-sm: the memory that `row` allocates", "--numa: the system binds threads"][..],
        ),
        ("run a -xyz", &["-xyz is not a flag"]),
        ("run a -inf -sinf -nan", &["-inf is not a flag", "-sinf is not a flag", "-nan is not a flag"]),
        ("run a –jinja", &["–jinja: write --jinja, with `-`"]),
        ("run a —ngl=5 −c 512", &["—ngl=5: write -ngl=5, with `-`", "−c: write -c, with `-`"]),
        ("plan a --kv-unified=maybe -nkvo=2", &["--kv-unified: `maybe` is not on or off", "-nkvo: `2` is not"]),
        ("plan a --no-host", &["--no-host: a plan counts"]),
        ("serve a -a , --api-key ''", &["-a: the name is missing", "--api-key: the key is missing"]),
        ("serve a --cors-origins http://a,localhost", &["--cors-origins: `localhost`"]),
        (
            "run a --imatrix f --pure --merge -H x",
            &["--imatrix: llama-quantize", "--pure: llama-q", "--merge: llama-g", "-H: "],
        ),
        ("run a -yc 5", &["-yc is not a flag"]),
        ("run a -sy x", &["-sy is not a flag", "-sys"]),
        ("serve a -p hi", &["-p: `autoplace run` or `chat` takes it, not serve"]),
        ("run a --port 80", &["--port: `autoplace serve` takes it, not run"]),
        ("run a -ngl", &["-ngl: its value is missing"]),
        ("serve a --grammar x", &["--grammar: `autoplace run` or `chat` takes it, not serve"]),
        ("run a --no-jinja", &["--no-jinja: the model's own"]),
        ("chat a --chat-template deepseek", &["--chat-template: `deepseek` is DeepSeek Coder's"]),
        ("run -m a -hf b/c", &["-hf: the model is already a"]),
        ("serve a --cors-origins '*'", &["--cors-origins: `*`"]),
        ("run a -cram -5", &["-cram: `-5` is not a size in MiB"]),
        (
            "run a -fitt x --sampler-seq kz",
            &["-fitt: `x` is not a number of MiB", "--sampler-seq: `z` is not a sampler"],
        ),
        ("run a -fitt 512,256", &["-fitt: the headroom is the same for every GPU"]),
        (
            "run a --prompt-cache x --prompt-cache-all --prompt-cache-ro",
            &[
                "--prompt-cache: prompts are kept in a folder and not in one file: --cache-dir",
                "--prompt-cache-all: --cache-dir keeps",
                "--prompt-cache-ro: a folder",
            ],
        ),
        ("run a --hellaswag -pg 1,2", &["--hellaswag: llama-perplexity", "-pg: `autoplace measure`"]),
    ] {
        let refused = words(line).unwrap_err();
        parts.iter().for_each(|part| assert!(refused.contains(part), "{line}: {refused}"));
    }
    // `plan` accepts flags that affect placement. It reports that it has left out the others.
    let (ours, left_out) = words("plan a -ngl 5 --temp 0.7 -t 8 --port 80 -p x").unwrap();
    assert_eq!(ours, "plan a --ngl=5");
    assert_eq!(left_out.len(), 4, "{left_out:?}");
    assert!(left_out[0].starts_with("--temp does not affect placement"));
    // A list is one flag, also if it becomes several of ours.
    assert_eq!(words("run a --api-key k,l").unwrap_err(), "--api-key: `autoplace serve` takes it, not run");
    assert_eq!(words("plan a --api-key k,l").unwrap().1.len(), 1);
}

/// Each flag is passed alone. clap must never get a flag that it does not know, and no flag may be dropped silently.
#[test]
fn each_spelling_is_taken_or_refused_by_each_verb() {
    let program = Args::command();
    let mut schema = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut schema, b"{}").unwrap();
    let file = schema.path().to_str().unwrap();
    let mut grammar = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut grammar, b"root ::= [a-z]+").unwrap();
    let samples = [
        file,
        grammar.path().to_str().unwrap(),
        "root ::= [a-z]+",
        "1",
        "99",
        "on",
        "auto",
        "q8_0",
        "3,1",
        "exps=CPU",
        "a:1",
        "none",
        "layer",
        "5+1",
        "{}",
        "127.0.0.1",
        "127.0.0.1:1",
        "kpt",
        "draft-mtp",
        "yarn",
        "top_k",
        "x",
    ];
    for verb in VERBS {
        for row in TABLE.iter().flat_map(|(_, rows)| *rows) {
            for spelling in row.spellings().filter(|spelling| !matches!(*spelling, "-h" | "--help" | "--usage")) {
                // These flags already name the model.
                let model: &[&str] =
                    if row.names.iter().any(|name| ["-m", "-hf"].contains(name)) { &[] } else { &["model.gguf"] };
                let mut problems = Vec::new();
                let is_taken = samples.iter().any(|sample| {
                    let values: &[&str] = match row.value {
                        Value::Two => &[sample, sample],
                        Value::One => &[sample],
                        _ => &[],
                    };
                    let line = [&["autoplace", verb][..], model, &[spelling], values].concat();
                    let line = line.into_iter().map(Into::into).collect();
                    match Words::read(line, &Environment::default(), &program) {
                        Err(refused) => refused.contains(spelling),
                        Ok(read) if !read.left_out.is_empty() => read.left_out[0].contains(spelling),
                        Ok(read) => match program.clone().try_get_matches_from(&read.words) {
                            Ok(_) => true,
                            Err(error) => {
                                problems.push(error.to_string());
                                false
                            }
                        },
                    }
                });
                assert!(is_taken, "{verb} {spelling}: {problems:?}");
            }
        }
    }
}
