//! Command lines as users of llama.cpp type them, given to this program.

use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

use crate::cli_plan::file;
use crate::cli_support::{User, demo, text};
use test_support::shapes::QWEN3_30B_A3B;

const PROMPT: &str = "And the king said unto his servants,";

/// The output of the program for these arguments and this stdin.
fn asked(user: &User, words: &[&str], input: &str) -> Output {
    let mut command = user.command(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // Writing may fail, because the program may end at once and read nothing.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

#[track_caller]
fn answer(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn command_lines_of_llama_cpp_answer_as_ours_do() {
    let (user, demo) = (User::new(), demo());
    let ours = answer(&asked(&user, &["run", &demo, PROMPT, "--temp", "0", "--max-tokens", "12", "--ctx", "512"], ""));
    let begin = ["run", "-m", &demo, "-p", PROMPT, "-n", "12", "-c", "512"];
    for more in [
        &["--temp", "0", "-fa", "1", "-s", "42", "-t", "1", "-ub", "256", "-b", "512"][..],
        &["--temp", "0", "-fa", "auto", "-no-cnv", "--no-display-prompt", "-lm", "none", "-np", "1"],
        &["--top_k", "1", "--seed", "7", "-nkvo", "--jinja", "--swa-full", "-tb", "1", "--no-mmap"],
    ] {
        assert_eq!(answer(&asked(&user, &[&begin[..], more].concat(), "")), ours, "{more:?}");
    }
    // A command line for a GPU. On a machine without one, the answer is the same.
    let layers = asked(&user, &[&begin[..], &["--temp", "0", "-ngl", "all"]].concat(), "");
    let beside = text(&layers.stderr);
    if beside.contains("no usable GPU found: --ngl is left out") {
        assert_eq!(answer(&layers), ours);
    }
    // `\n` is a line break, as in llama.cpp.
    let escaped = asked(
        &user,
        &["run", "-m", &demo, "-p", r"And\x20the king said unto his servants,", "-n", "12", "-c", "512", "--temp", "0"],
        "",
    );
    assert_eq!(answer(&escaped), ours);
}

#[test]
fn a_system_message_a_seed_and_a_template_are_what_llama_cpp_means_by_them() {
    let (user, demo) = (User::new(), demo());
    let template = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}{{ note }}";
    let chat = |more: &[&str]| {
        let begin = ["chat", &demo, "--chat-template", template, "-n", "6", "-c", "512", "-st"];
        answer(&asked(&user, &[&begin[..], more].concat(), "Blessed is the man\n"))
    };
    let system = chat(&["--temp", "0", "-sys", "Be brief."]);
    assert_eq!(chat(&["--temp", "0", "--system", "Be brief."]), system);
    let file = user.path("system.txt");
    fs::write(&file, "\u{feff}Be brief.\n").unwrap();
    assert_eq!(chat(&["--temp", "0", "-sysf", file.to_str().unwrap()]), system);
    // The same seed gives the same text.
    assert_eq!(chat(&["-s", "42", "--temp", "2"]), chat(&["--seed", "42", "--temp", "2"]));
    let kwargs = ["--temp", "0", "--chat-template-kwargs", r#"{"note": "In the beginning"}"#];
    assert_ne!(chat(&kwargs), chat(&["--temp", "0"]));
}

#[test]
fn a_byte_order_mark_at_the_beginning_of_a_pipe_is_ignored() {
    let (user, demo) = (User::new(), demo());
    let words = ["run", &demo, "--temp", "0", "-n", "8", "-c", "512"];
    let [plain, marked] =
        [PROMPT.to_owned(), format!("\u{feff}{PROMPT}")].map(|said| answer(&asked(&user, &words, &said)));
    assert_eq!(plain, marked);
    let chat = ["chat", &demo, "--template", "chatml", "--temp", "0", "-n", "8", "-c", "512"];
    let [plain, marked] = ["Hello\n", "\u{feff}Hello\n"].map(|said| answer(&asked(&user, &chat, said)));
    assert_eq!(plain, marked);
    // A text with nothing but a byte order mark is an empty prompt.
    let nothing = asked(&user, &words, "\u{feff}\n");
    assert!(text(&nothing.stderr).contains("there is no prompt"), "{}", text(&nothing.stderr));
}

#[test]
fn unsupported_flags_are_refused_by_name_before_anything_is_loaded() {
    let (user, demo) = (User::new(), demo());
    user.fails(
        &["run", &demo, "-sm", "row", "--numa", "isolate", "x"],
        2,
        &["-sm: the memory that `row` allocates", "--numa: "],
    );
    user.fails(&["run", &demo, "-sy", "Be brief.", "x"], 2, &["-sy is not a flag", "-sys"]);
    user.fails(&["serve", &demo, "-p", "x"], 2, &["-p: `autoplace run` or `chat` takes it"]);
    user.fails(&["chat", &demo, "--template", "chatlm"], 1, &["no family `chatlm`", "chatml", "or a file"]);
    user.fails(&["run", &demo, "-ot", "exps", "x"], 1, &["--override-tensor `exps`"]);
    user.fails(&["run", &demo, "-dev", "CUDA7", "x"], 1, &["no device CUDA7"]);
    let plan = user.command(&["plan", &demo, "-ngl", "0", "-t", "4", "--temp", "0.7"]).output().unwrap();
    assert_eq!(plan.status.code(), Some(0), "{}", text(&plan.stderr));
    let notes = text(&plan.stderr);
    assert!(
        notes.contains("-t does not affect placement") && notes.contains("--temp does not affect placement"),
        "{notes}"
    );
}

#[test]
fn a_placement_that_llama_cpps_flags_state_is_planned_or_lacks_bytes_that_are_named() {
    let (user, (_dir, model)) = (User::new(), file(&QWEN3_30B_A3B.builder()));
    let begin = ["plan", &model, "--gpu", "RTX 3060 12GB", "--ram", "64GiB", "--no-probe", "-c", "4096"];
    let plan = |more: &[&str]| user.says(&[&begin[..], more].concat());
    let experts = plan(&["-ngl", "all", "-cmoe"]);
    assert!(experts.contains("49 of 49 layers on RTX 3060, weights of 48 blocks on the host"), "{experts}");
    assert_eq!(plan(&["-ngl", "all", "-ot", r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"]), experts);
    assert_eq!(plan(&["-ngl", "all", "-ncmoe", "48"]).matches("weights of 48 blocks").count(), 1);
    user.fails(
        &[&begin[..], &["-ngl", "all", "-ncmoe", "4"]].concat(),
        1,
        &["does not fit with 49 of 49 layers", "missing on RTX 3060"],
    );
    let two = [&begin[..], &["--gpu", "RTX 3090", "-ts", "1,2", "-cmoe", "-ngl", "99"]].concat();
    let split = user.says(&two);
    assert!(split.contains("RTX 3060 and RTX 3090"), "{split}");
    let one =
        user.says(&[&two[..7], &["-c", "4096", "--gpu", "RTX 3090", "-sm", "none", "-mg", "1", "-cmoe"]].concat());
    assert!(one.contains("RTX 3090") && !one.contains("RTX 3060"), "{one}");
}
