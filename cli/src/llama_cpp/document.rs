//! Generates docs/flags.md from the table, and checks the table against llama.cpp's source, in the version that this
//! workspace builds.

use std::collections::BTreeSet;
use std::fmt::Write;

use clap::CommandFactory;

use super::words::verbs_with;
use super::{Here, Row, TABLE, Value, Words, find};
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
    text
}

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

/// Translates a command line.
fn words(line: &str) -> Result<(String, Vec<String>), String> {
    let words = shlex::split(&format!("autoplace {line}")).unwrap();
    let read = Words::read(words.into_iter().map(Into::into).collect(), &Args::command())?;
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
        ("serve a --sse-ping-interval 30", "serve a"),
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
        ("serve a --sse-ping-interval -1", &["--sse-ping-interval: a stream has a comment after 15 seconds"]),
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
                    match Words::read(line.into_iter().map(Into::into).collect(), &program) {
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
